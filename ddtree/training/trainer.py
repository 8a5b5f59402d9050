"""The train stage: steps until the time or the number of them is up, from the last checkpoint on.

What a step does depends on (seed, step) alone: documents, anchors, vocabulary. The learning rate rises over
the first steps, stays, and falls over the last share of the run, so that only the fall knows how long the run
is. Weights are kept in float32 and computed with in the target's dtype.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddtree.storage import Progress
from ddtree.training.batches import make_batch, pick_documents
from ddtree.training.features import FeatureCache
from ddtree.training.files import write_atomically
from ddtree.training.learner import Learner
from ddtree.training.settings import TrainSettings

_PAUSE = 10.0
"""A step that takes so many times its predecessors' mean was paused; what is above it is not counted."""


class Trainer:
    """A drafter in training, with all of it that a checkpoint holds."""

    def __init__(self, learner: Learner, cache: FeatureCache, settings: TrainSettings, folder: Path) -> None:
        """Takes up the folder's checkpoint where there is one."""
        self.learner = learner
        self.cache = cache
        self.settings = settings
        self.folder = folder
        self.step = 0
        self.seconds = 0.0  # of work, pauses left out
        self.weights = [weight.detach().float().clone() for weight in learner.model.parameters()]
        learner.model.to(learner.head.dtype)
        self.optimiser = torch.optim.AdamW(
            self.weights,
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        if self._checkpoint.is_file():
            self._load()
        self._cut_log()
        self._losses: list[str] = []

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def _log(self) -> Path:
        return self.folder / "losses.jsonl"

    def run(
        self,
        *,
        minutes: float | None,
        steps: int | None,
        checkpoint_minutes: float,
        progress: Progress,
        should_stop: Callable[[], bool],
    ) -> bool:
        """Trains until `steps` steps or `minutes` of work are done (from the very first one on); whether it
        came to the end. Leaves a checkpoint every `checkpoint_minutes`, and when it is stopped."""
        saved = began = time.monotonic()
        while (share := self._share(minutes, steps)) < 1:
            if should_stop():
                self._save()
                return False
            loss = self._train_step(self._rate(share))
            now = time.monotonic()
            mean = self.seconds / self.step if self.step else now - began
            self.seconds += min(now - began, _PAUSE * max(mean, 0.1))
            began = now
            self.step += 1
            entry = {"step": self.step, "loss": round(loss, 5), "seconds": round(self.seconds, 2)}
            self._losses.append(json.dumps(entry) + "\n")
            progress(f"training: step {self.step}, loss {loss:.3f}", self._share(minutes, steps))
            if now - saved >= 60 * checkpoint_minutes:
                self._save()
                saved = now
        self._save()
        return True

    def _share(self, minutes: float | None, steps: int | None) -> float:
        """How much of the run is done."""
        by_time = self.seconds / (60 * minutes) if minutes else 0.0
        return max(by_time, self.step / steps if steps else 0.0)

    def _rate(self, share: float) -> float:
        rising = min(1.0, (self.step + 1) / self.settings.warm_up)
        decay = self.settings.decay
        falling = min(1.0, (1 - share) / decay) if decay else 1.0
        return self.settings.learning_rate * rising * falling

    def _train_step(self, rate: float) -> float:
        settings, model = self.settings, self.learner.model
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.step)
        picked = pick_documents(
            self.step, settings.documents, settings.held_out, len(self.cache), settings.seed
        )
        batch = make_batch(
            self.cache, picked, settings.anchors, settings.block_size - 1, settings.gamma, generator
        )
        loss = self.learner.loss(batch.to(self.learner.head.device), generator)
        loss.backward()  # type: ignore[no-untyped-call]
        for weight, computed in zip(self.weights, model.parameters(), strict=True):
            weight.grad = None if computed.grad is None else computed.grad.float()
            computed.grad = None
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self._to_model()
        return loss.item()

    @torch.no_grad()
    def _to_model(self) -> None:
        for weight, computed in zip(self.weights, self.learner.model.parameters(), strict=True):
            computed.copy_(weight)

    def _save(self) -> None:
        """The losses up to here, then the checkpoint: after a kill in between, `_cut_log` puts it right."""
        with self._log.open("a", encoding="utf-8") as log:
            log.writelines(self._losses)
        self._losses.clear()
        held = io.BytesIO()
        state: dict[str, Any] = {
            "step": self.step,
            "seconds": self.seconds,
            "weights": self.weights,
            "optimiser": self.optimiser.state_dict(),
        }
        torch.save(state, held)
        write_atomically(self._checkpoint, held.getvalue())

    def _load(self) -> None:
        state = torch.load(self._checkpoint, map_location=self.learner.head.device, weights_only=True)
        self.step, self.seconds = state["step"], state["seconds"]
        with torch.no_grad():
            for weight, saved in zip(self.weights, state["weights"], strict=True):
                weight.copy_(saved)
        self.optimiser.load_state_dict(state["optimiser"])
        self._to_model()

    def _cut_log(self) -> None:
        """Leaves a line for each step done: those after the checkpoint are trained again."""
        if self._log.is_file():
            lines = self._log.read_text(encoding="utf-8").splitlines(keepends=True)
            write_atomically(self._log, "".join(lines[: self.step]).encode())
