"""A server that needs no model: its engine plays the steps of a recorded run again and again, at a pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from app.engine import Description, Progress
from app.main import Server
from app.settings import ServerSettings
from ddtree import trace
from ddtree.fork import Fork
from ddtree.settings import Settings
from ddtree.trace_file import load_trace

STOP_LIMIT_S = 20.0


@dataclass
class ReplayedRun:
    settings: Settings
    prompt: str
    finish_reason: trace.FinishReason | None = None
    steps: int = 0
    committed: int = 0
    fork: Fork | None = None

    def cancel(self) -> None:
        self.finish_reason = self.finish_reason or "cancelled"


class ReplayedDecoder:
    def __init__(self, engine: ReplayedEngine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings

    def resolve(self, settings: Settings) -> Settings:
        defaults = self.engine.recorded.settings
        open_ones = [name for name in ("drafter", "block_size", "chat") if getattr(settings, name) is None]
        return settings.model_copy(update={name: getattr(defaults, name) for name in open_ones})

    def start(self, prompt: str, fork: Fork | None = None) -> ReplayedRun:
        """A fork plays on from its step; at another temperature than the recording's it leaves one out after
        the first, so that the texts part."""
        seed = self.settings.seed or 1
        settings = self.resolve(self.settings).model_copy(update={"seed": seed})
        return ReplayedRun(settings, prompt, fork=fork)

    def prefill(self, run: ReplayedRun) -> Iterator[float]:
        yield 1.0

    def step(self, run: ReplayedRun) -> trace.Step:
        time.sleep(self.engine.seconds)
        whole, last = self.engine.plays(run.settings)
        at = run.steps if run.fork is None else run.fork.step + run.steps
        other = run.settings.temperature != self.engine.recorded.settings.temperature
        if run.fork is not None and other and run.steps:
            at += 1
        step = whole[at % len(whole)]
        settings = self.resolve(self.settings).model_copy(update={"seed": run.settings.seed})
        run.steps += 1
        assert step.committed is not None
        run.committed += len(step.committed.token_ids)
        if run.steps >= last:
            run.finish_reason = "length"
        return step.model_copy(update={"index": run.steps - 1, "settings": settings})

    def head(self, run: ReplayedRun) -> trace.Trace:
        prompt = self.engine.recorded.prompt.model_copy(update={"text": run.prompt})
        fork = None
        if run.fork is not None:
            fork = trace.ForkedFrom(run_id=run.fork.run_id, step=run.fork.step)
            committed = [step.committed for step in self.engine.recorded.steps[: fork.step] if step.committed]
            texts = [*prompt.texts, *(text for done in committed for text in done.texts)]
            prompt = prompt.model_copy(update={"token_ids": list(run.fork.token_ids), "texts": texts})
        return self.engine.recorded.model_copy(
            update={
                "prompt": prompt,
                "settings": run.settings,
                "forked_from": fork,
                "steps": [],
                "summary": None,
            }
        )

    def summary(self, run: ReplayedRun) -> trace.Summary:
        return trace.Summary(
            finish_reason=run.finish_reason or "cancelled",
            steps=run.steps,
            committed=run.committed,
            accepted_drafts=run.committed - run.steps,
            tau=run.committed / run.steps if run.steps else None,
            tokens_per_second=None,
            wall_s=0.0,
            prefill_s=0.0,
            lossy=False,
        )


class ReplayedEngine:
    """`steps` is when a run ends, `seconds` what a step takes."""

    def __init__(self, recorded: Path, steps: int, seconds: float) -> None:
        self.recorded = load_trace(recorded.read_bytes())
        self.steps, self.seconds = steps, seconds
        head = self.recorded
        self.description = Description(head.engine, head.target, [head.drafter], head.drafter.kind, True)

    def plays(self, settings: Settings) -> tuple[list[trace.Step], int]:
        """The steps that a run of these settings plays, and after how many it ends."""
        return [step for step in self.recorded.steps if step.committed is not None], self.steps

    def new_decoder(self, settings: Settings) -> ReplayedDecoder:
        return ReplayedDecoder(self, settings)


class ReplayedServer:
    """The real server on a thread of this process, with a `ReplayedEngine`; entering gives its URL. `loading`
    is called instead of loading at once: it may take its time, report progress, or raise."""

    def __init__(
        self,
        recorded: Path,
        data: Path,
        steps: int,
        seconds: float,
        port: int = 0,
        loading: Callable[[Progress], None] = lambda progress: None,
        engine: ReplayedEngine | None = None,
    ) -> None:
        engine = engine or ReplayedEngine(recorded, steps, seconds)

        def load(settings: ServerSettings, progress: Progress) -> ReplayedEngine:
            loading(progress)
            return engine

        self._server = Server(ServerSettings(port=port, data=data), load)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        return self._server.url.split("?")[0].rstrip("/")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_LIMIT_S)
        assert not self._thread.is_alive(), "the server does not stop"
