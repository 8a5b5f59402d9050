"""An engine without a model: its steps are made up, but fit together; tests script what a real one cannot do
on demand (block, fail, be slow)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.engine import Description, Progress
from app.settings import ServerSettings
from ddtree import trace
from ddtree.fork import Fork
from ddtree.prompt import SettingsError
from ddtree.settings import FIXED_IN_A_RUN, Settings

ENGINE = trace.Engine(versions={"ddtree": "0"}, device="cpu", dtype="float32", threads=1, kernels="portable")
TARGET = trace.TargetInfo(name="fake", vocab_size=1000, num_layers=1, hidden_size=1, max_context=100_000)
DRAFTER = trace.DrafterInfo(name="fake-ngram", kind="ngram", block_size=3, not_used="there is none for tests")


@dataclass
class FakeRun:
    prompt: str
    settings: Settings
    finish_reason: trace.FinishReason | None = None
    steps: int = 0
    committed: int = 0
    fork: Fork | None = None

    @property
    def forked_from(self) -> trace.ForkedFrom | None:
        return None if self.fork is None else trace.ForkedFrom(run_id=self.fork.run_id, step=self.fork.step)

    @property
    def prompt_ids(self) -> list[int]:
        return [0] if self.fork is None else list(self.fork.token_ids)

    @property
    def prompt_texts(self) -> list[str]:
        return [self.prompt] if self.fork is None else [str(i) for i in self.fork.token_ids]

    def cancel(self) -> None:
        self.finish_reason = self.finish_reason or "cancelled"


def made_step(run: FakeRun, settings: Settings) -> trace.Step:
    """Two nodes below the root, the first of them accepted: commits a draft and a bonus token."""
    at = run.committed
    committed = [at % 900, (at + 1) % 900][: settings.max_new_tokens - at]
    return trace.Step(
        index=run.steps,
        root=trace.Root(token_id=max(0, at - 1) % 900, text="r", position=at),
        settings=settings,
        draft=trace.Draft(
            source="ngram",
            temperature=1.0,
            rows=trace.CandidateRows(top_log_probs=[[-0.5, -1.5]], top_token_ids=[[at % 900, 901]]),
        ),
        tree=trace.Tree(
            token_ids=[at % 900, 901],
            texts=["a", "b"],
            parents=[-1, 0, 0],
            depths=[1, 1],
            ranks=[0, 1],
            row=[0, 0],
            log_weights=[-0.5, -1.5],
            draft_log_probs=[-0.5, -1.5],
            origin=["ngram", "ngram"],
        ),
        retrieve=trace.Retrieve(
            retrieve_index=[0, 1, 2], retrieve_next_token=[1, -1, -1], retrieve_next_sibling=[-1, 2, -1]
        ),
        target=trace.TargetScores(probs=[1.0, 0.0], raw_probs=[0.75, 0.125], rows=[]),
        sampling=trace.Sampling(
            uniform_samples=[0.25, 0.5, 0.75],
            final_uniform=0.5,
            threshold_single=1.0,
            threshold_acc=1.0,
            rule="greedy",
        ),
        decisions=[trace.Decision(node=1, prob=1.0, cumulative=1.0, coin=0.25, verdict="accepted")],
        accept=trace.Accept(
            accept_index=[0, 1],
            accept_token_num=1,
            bonus_token_id=(at + 1) % 900,
            bonus_text="c",
            bonus_source="argmax",
            bonus_prob=1.0,
            bonus_cumulative=1.0,
            residual_mass=1.0,
            bonus_draft_rank=None,
        ),
        committed=trace.Committed(token_ids=committed, texts=[f"{i} " for i in committed]),
        timing_ms=trace.Timing(
            draft=0.1, build=0.1, encode=0.1, verify=0.1, sample=0.1, commit=0.1, other=0.1, total=0.7
        ),
    )


@dataclass
class FakeDecoder:
    engine: FakeEngine
    _settings: Settings
    run: FakeRun | None = None

    @property
    def settings(self) -> Settings:
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        for name in FIXED_IN_A_RUN:
            if getattr(settings, name) != getattr(self._settings, name):
                raise SettingsError("not_live", f"{name} cannot change while a run goes on", name)
        self._settings = settings

    def resolve(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"drafter": "ngram", "block_size": 3, "chat": False})

    def start(self, prompt: str, fork: Fork | None = None) -> FakeRun:
        if not prompt:
            raise SettingsError("bad_value", "the prompt is empty; type at least one character", "prompt")
        seed = 7 if self.settings.seed is None else self.settings.seed
        self.run = FakeRun(prompt, self.resolve(self.settings).model_copy(update={"seed": seed}), fork=fork)
        return self.run

    def prefill(self, run: FakeRun) -> Iterator[float]:
        for done in range(self.engine.prefill_chunks):
            self.engine.at("prefill", run)
            yield (done + 1) / self.engine.prefill_chunks

    def step(self, run: FakeRun) -> trace.Step:
        self.engine.at("step", run)
        settings = self.resolve(self.settings).model_copy(update={"seed": run.settings.seed})
        if run.steps == self.engine.fails_at:
            run.finish_reason = "error"
            error = trace.StepError(code="draft_fault", message="the drafter's row 1 has NaN", depth=1)
            return trace.Step(
                index=run.steps,
                root=trace.Root(token_id=0, text="r", position=run.committed),
                settings=settings,
                error=error,
            )
        step = made_step(run, settings)
        assert step.committed is not None
        run.steps += 1
        run.committed += len(step.committed.token_ids)
        if run.committed >= settings.max_new_tokens:
            run.finish_reason = "length"
        return step

    def head(self, run: FakeRun) -> trace.Trace:
        return trace.Trace(
            created_at="2025-01-01T00:00:00.000+00:00",
            engine=ENGINE,
            target=TARGET,
            drafter=DRAFTER,
            tokenizer=trace.TokenizerInfo(name="fake", vocab_size=1000),
            stop_token_ids=[999],
            prompt=trace.Prompt(text=run.prompt, token_ids=run.prompt_ids, texts=run.prompt_texts),
            forked_from=run.forked_from,
            settings=run.settings,
            steps=[],
            summary=None,
        )

    def summary(self, run: FakeRun) -> trace.Summary:
        return trace.Summary(
            finish_reason=run.finish_reason or "cancelled",
            steps=run.steps,
            committed=run.committed,
            accepted_drafts=run.steps,
            tau=run.committed / run.steps if run.steps else None,
            tokens_per_second=None,
            wall_s=0.5,
            prefill_s=0.25,
            lossy=self.settings.lossy,
        )


@dataclass
class FakeEngine:
    """`at(place, run)` is called on the worker's thread before each chunk of prefill and each step."""

    at: Callable[[str, FakeRun], None] = lambda place, run: None
    prefill_chunks: int = 2
    fails_at: int | None = None  # the step that fails with a fault of the drafter
    checks: Callable[..., Iterator[object]] = lambda *asked: iter(())  # ddtree.lossless.check_step's part
    description: Description = field(
        default_factory=lambda: Description(ENGINE, TARGET, [DRAFTER], "ngram", has_chat_template=False)
    )

    def new_decoder(self, settings: Settings) -> FakeDecoder:
        return FakeDecoder(self, settings)

    def check_step(self, *asked: object) -> Iterator[object]:
        return self.checks(*asked)

    def shown(self, token_id: int) -> str:
        return f"<{token_id}>"

    def load(self, settings: ServerSettings, progress: Progress) -> FakeEngine:
        progress("making things up", 0.5)
        return self


def slow(seconds: float) -> Callable[[str, FakeRun], None]:
    """For `FakeEngine.at`: every step takes so long."""
    return lambda place, run: time.sleep(seconds) if place == "step" else None


class Brake:
    """For `FakeEngine.at`: the model blocks from step `step` of a prompt on, until `release()`."""

    def __init__(self, step: int = 0, prompt: str | None = None) -> None:
        self.step, self.prompt = step, prompt
        self.reached, self._released = threading.Event(), threading.Event()

    def release(self) -> None:
        self._released.set()

    def __call__(self, place: str, run: FakeRun) -> None:
        if place == "step" and run.steps >= self.step and self.prompt in (None, run.prompt):
            self.reached.set()
            assert self._released.wait(60)
