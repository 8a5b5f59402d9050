"""What the worker asks of the library, and how it is loaded. Nothing here imports torch before `load_engine`.

The protocols say exactly what the service uses of `ddtree.TreeDecoder`; tests put a small fake in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.settings import ServerSettings
from ddtree.fork import Fork
from ddtree.settings import DrafterName, Settings
from ddtree.trace import DrafterInfo, Engine, FinishReason, Step, Summary, TargetInfo, Trace

Progress = Callable[[str, float | None], None]
"""What loading is at, and how far (0..1) where that is known."""


class Run(Protocol):
    settings: Settings  # those of the start, with nothing left to choose
    finish_reason: FinishReason | None

    def cancel(self) -> None: ...


class Decoder(Protocol):
    """One run's `ddtree.TreeDecoder`."""

    settings: Settings

    def resolve(self, settings: Settings) -> Settings: ...
    def start(self, prompt: str, fork: Fork | None = None) -> Any: ...
    def prefill(self, run: Any) -> Iterator[float]: ...
    def step(self, run: Any) -> Step: ...
    def head(self, run: Any) -> Trace: ...
    def summary(self, run: Any) -> Summary: ...


@dataclass(frozen=True, slots=True)
class Description:
    """What is loaded, as the page and /api/models say it."""

    engine: Engine
    target: TargetInfo
    drafters: list[DrafterInfo]
    default_drafter: DrafterName | None
    has_chat_template: bool


class LoadedEngine(Protocol):
    description: Description

    def new_decoder(self, settings: Settings) -> Decoder:
        """Raises ddtree.SettingsError for a value that what is loaded cannot honour."""

    def check_step(
        self, context: Sequence[int], step: Step, following: Sequence[int], draws: int, seed: int
    ) -> Iterator[Any]:
        """ddtree.lossless.check_step with the target that is loaded: in short turns, progress and in the end
        the verdict."""

    def shown(self, token_id: int) -> str:
        """A token as people see it."""


LoadEngine = Callable[[ServerSettings, Progress], LoadedEngine]


def default_threads() -> int:
    """CPU threads that decode when nobody says: all cores but one, which the browser and this service share.

    benchmarks/threads.py measures it. On two cores a second thread makes a run that nobody watches faster,
    but beside a browser that draws every step it makes it much slower than one thread: each small operation
    waits for the thread that lost its core. This is a server for watching, so it keeps a core free;
    `--threads` says otherwise.
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)


class _Library:
    """Target and drafters, loaded; every run gets a decoder of its own over them."""

    def __init__(self, loaded: Any) -> None:
        from ddtree.describe import drafter_info, engine_info, target_info

        self._loaded = loaded
        decoder = self._decoder(Settings())
        resolved = decoder.resolve(Settings())
        self._tokens = decoder.tokens
        self.description = Description(
            engine=engine_info(loaded.target),
            target=target_info(loaded.target),
            drafters=[drafter_info(drafter, loaded.not_used) for drafter in decoder.drafters.values()],
            default_drafter=resolved.drafter,
            has_chat_template=bool(resolved.chat),
        )

    def _decoder(self, settings: Settings) -> Any:
        from ddtree.decoder import TreeDecoder

        return TreeDecoder(self._loaded.target, self._loaded.drafters, settings, self._loaded.not_used)

    def new_decoder(self, settings: Settings) -> Decoder:
        decoder: Decoder = self._decoder(settings)
        return decoder

    def check_step(
        self, context: Sequence[int], step: Step, following: Sequence[int], draws: int, seed: int
    ) -> Iterator[Any]:
        from ddtree.lossless import check_step

        return check_step(self._loaded.target, context, step, following, draws, seed)

    def shown(self, token_id: int) -> str:
        text: str = self._tokens.shown(token_id)
        return text


def load_engine(settings: ServerSettings, progress: Progress) -> LoadedEngine:
    """Imports torch and loads what `settings` names. Blocks for seconds; raises ValueError or OSError."""
    progress("importing torch", None)
    from ddtree.engine import load_engine as load

    loaded = load(
        model=settings.model,
        draft_model=settings.draft_model,
        device=settings.device,
        device_map=settings.device_map,
        dtype=settings.dtype,
        threads=settings.threads or default_threads(),
        progress=progress,
    )
    return _Library(loaded)
