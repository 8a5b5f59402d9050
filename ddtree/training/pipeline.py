"""The stages of `ddtree train` over one working folder, each from where it was stopped.

settings.json   every setting; a resumed run must bring the same
log.jsonl       what was done when: versions, machine, stages, limits
texts.jsonl     the synthesise stage's, unless a file of texts was named
features/       documents and the target's hidden states
train/          the checkpoint and the loss of every step
drafter/        the exported checkpoint, what `--draft-model` takes
evaluation.json accepted drafts per step on held-out documents
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ddtree
from ddtree.storage import Progress
from ddtree.training import features, synthesise
from ddtree.training.evaluate import Shape, evaluate
from ddtree.training.export import export, figures, table
from ddtree.training.files import write_atomically
from ddtree.training.plain import load_plain
from ddtree.training.reader import read_drafter
from ddtree.training.settings import TrainSettings, keep_settings
from ddtree.training.setup import default_taps, drafter_config, make_learner, token_counts
from ddtree.training.texts import Text, documents, read_texts
from ddtree.training.trainer import Trainer

STAGES = ("synthesise", "features", "train", "export", "evaluate")
SHAPES = (Shape("chain", 1024), Shape("ddtree", 7), Shape("ddtree", 15), Shape("ddtree", 31))


@dataclass(frozen=True, slots=True)
class Limits:
    """How this call works; none of it decides what comes out, but where the train stage ends."""

    minutes: float | None = 30.0  # of the train stage, from its very first step on
    steps: int | None = None
    checkpoint_minutes: float = 3.0
    batch_tokens: int = 8192  # padded tokens of a features pass
    rows: int = 64  # sequences that are generated side by side
    device: str = "auto"
    dtype: str = "auto"
    until: str = "evaluate"  # the last stage of this call


class Pipeline:
    """One working folder and what the stages share."""

    def __init__(
        self,
        work: Path,
        settings: TrainSettings,
        limits: Limits,
        progress: Progress,
        should_stop: Callable[[], bool],
    ) -> None:
        """Raises ValueError for a setting out of range, or settings that are not those of the folder."""
        settings.check()
        if limits.minutes is None and limits.steps is None:
            raise ValueError("nothing says where training ends; give minutes or steps")
        self.work = work
        self.settings = settings
        self.limits = limits
        self.progress = progress
        self.should_stop = should_stop
        work.mkdir(parents=True, exist_ok=True)
        keep_settings(work / "settings.json", settings)
        self._plain: tuple[Any, Any, str] | None = None

    def run(self) -> bool:
        """All stages up to `limits.until`; whether they came to the end. Raises ValueError, OSError."""
        stages: dict[str, Callable[[], bool]] = {
            "synthesise": self._synthesise,
            "features": self._features,
            "train": self._train,
            "export": self._export,
            "evaluate": self._evaluate,
        }
        for name in STAGES[: STAGES.index(self.limits.until) + 1]:
            self._note(stage=name, event="begins")
            finished = stages[name]()
            self._note(stage=name, event="done" if finished else "stopped")
            if not finished:
                return False
        return True

    # ---- what the stages share ----

    @property
    def plain(self) -> tuple[Any, Any, str]:
        """(model, tokenizer, name) of the target, loaded when a stage first needs it."""
        if self._plain is None:
            limits = self.limits
            self._plain = load_plain(self.settings.model, limits.device, limits.dtype, self.progress)
        return self._plain

    def _note(self, **what: Any) -> None:
        entry = {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **what,
            "versions": {"ddtree": ddtree.__version__, "torch": torch.__version__},
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "limits": {name: getattr(self.limits, name) for name in Limits.__slots__},
        }
        with (self.work / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def _cache(self) -> features.FeatureCache:
        return features.FeatureCache(self.work / "features")

    # ---- the stages ----

    def _synthesise(self) -> bool:
        if self.settings.texts is not None or (self.work / "features" / "documents.npz").is_file():
            return True
        model, tokenizer, _ = self.plain
        return synthesise.synthesise(
            self.work / "texts.jsonl",
            model,
            tokenizer,
            self._prompts(),
            self.settings,
            rows=self.limits.rows,
            progress=self.progress,
            should_stop=self.should_stop,
        )

    def _prompts(self) -> list[str]:
        if self.settings.prompts is None:
            return []
        lines = Path(self.settings.prompts).read_text(encoding="utf-8").splitlines()
        return [line.strip() for line in lines if line.strip()]

    def _texts(self) -> list[Text]:
        named = self.settings.texts
        return read_texts(self.work / "texts.jsonl" if named is None else Path(named))

    def _features(self) -> bool:
        folder, settings = self.work / "features", self.settings
        if not (folder / "documents.npz").is_file():
            model, tokenizer, _ = self.plain
            text = model.config.get_text_config()
            made = documents(self._texts(), tokenizer, settings.max_tokens, settings.seed)
            made = made[: settings.max_documents or None]
            if len(made) < settings.held_out + settings.documents:
                raise ValueError(
                    f"there are {len(made)} documents; {settings.held_out} are held out and a step takes "
                    f"{settings.documents}: bring more texts, or lower held_out"
                )
            taps = settings.taps or default_taps(text.num_hidden_layers)
            features.create(folder, made, taps, text.hidden_size)
        cache = self._cache()
        if cache.done == len(cache):
            return True
        return features.fill(cache, self.plain[0], self.limits.batch_tokens, self.progress, self.should_stop)

    def _trainer(self) -> tuple[Trainer, dict[str, Any], torch.Tensor]:
        """The trainer as its checkpoint left it, the drafter's configuration, and the tokens' counts [V]."""
        cache, (model, tokenizer, _) = self._cache(), self.plain
        counts = token_counts(cache, self.settings.held_out, model.get_output_embeddings().weight.shape[0])
        config = drafter_config(self.settings, model, tokenizer, cache.taps, counts)
        learner = make_learner(self.settings, cache, model, config, counts)
        folder = self.work / "train"
        folder.mkdir(exist_ok=True)
        return Trainer(learner, cache, self.settings, folder), config, counts

    def _train(self) -> bool:
        trainer, _, _ = self._trainer()
        return trainer.run(
            minutes=self.limits.minutes,
            steps=self.limits.steps,
            checkpoint_minutes=self.limits.checkpoint_minutes,
            progress=self.progress,
            should_stop=self.should_stop,
        )

    def _export(self) -> bool:
        trainer, config, counts = self._trainer()
        names = [name for name, _ in trainer.learner.model.named_parameters()]
        size, token_ids = self.settings.draft_vocabulary, None
        if 0 < size < len(counts):
            token_ids = counts.topk(size).indices.sort().values
        export(self.work / "drafter", config, names, trainer.weights, trainer.learner.scales, token_ids)
        return True

    def _evaluate(self) -> bool:
        reader = read_drafter(self.work / "drafter", self.plain[0])
        held_out = range(self.settings.held_out)
        pooled = evaluate(reader, self._cache(), held_out, SHAPES, self.progress, self.should_stop)
        if self.should_stop():
            return False
        found = figures(pooled)
        write_atomically(self.work / "evaluation.json", (json.dumps(found, indent=2) + "\n").encode())
        self.progress("accepted drafts per step on held-out texts:\n" + table(found), None)
        return True
