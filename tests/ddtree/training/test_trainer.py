"""The train stage: the same losses from the same seed, also across stops, pauses left out of the time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tiny_drafters
import torch
from tiny_texts import random_cache

from ddtree.training import trainer as trainer_module
from ddtree.training.features import FeatureCache
from ddtree.training.learner import Learner
from ddtree.training.settings import TrainSettings
from ddtree.training.setup import feature_scales, first_weights, token_counts
from ddtree.training.trainer import Trainer

SETTINGS = TrainSettings(
    seed=3,
    held_out=2,
    layers=1,
    slot_intermediate_size=48,
    vocabulary=96,
    frequent=64,
    documents=2,
    anchors=8,
    warm_up=5,
    learning_rate=3e-3,
)
CONFIG = dataclasses.replace(
    tiny_drafters.CONFIG,
    block_size=8,
    num_layers=1,
    direct_path=True,
    slots="heads",
    slot_intermediate_size=48,
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    return random_cache(tmp_path_factory.mktemp("features"))


def make(cache: FeatureCache, folder: Path, settings: TrainSettings = SETTINGS) -> Trainer:
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(211, 64, generator=generator)
    counts = token_counts(cache, settings.held_out, 211)
    config = dataclasses.replace(CONFIG, slots=settings.slots, direct_path=settings.direct_path)
    learner = Learner(
        first_weights(config, 96, None, settings.seed),
        embedding,
        embedding,
        feature_scales(cache, settings.held_out),
        counts.topk(settings.frequent).indices,
        vocabulary=settings.vocabulary,
        soft=settings.soft,
    )
    return Trainer(learner, cache, settings, folder)


def run(trainer: Trainer, steps: int, stop_after: int | None = None) -> bool:
    begun = trainer.step

    def should_stop() -> bool:
        return stop_after is not None and trainer.step - begun >= stop_after

    return trainer.run(
        minutes=None,
        steps=steps,
        checkpoint_minutes=1e9,
        progress=lambda what, share: None,
        should_stop=should_stop,
    )


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = (folder / "losses.jsonl").read_text().splitlines()
    return [(entry["step"], entry["loss"]) for entry in map(json.loads, lines)]


def test_the_same_seed_gives_the_same_losses(cache: FeatureCache, tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert run(make(cache, tmp_path / name), 30)
    assert len(losses(tmp_path / "first")) == 30
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    other = dataclasses.replace(SETTINGS, seed=4)
    run(make(cache, tmp_path / "other", other), 30)
    assert losses(tmp_path / "other") != losses(tmp_path / "first")


def test_a_stopped_run_goes_on_as_if_it_had_not_been(cache: FeatureCache, tmp_path: Path) -> None:
    run(make(cache, tmp_path / "whole"), 20)
    assert not run(make(cache, tmp_path / "halves"), 20, stop_after=11)
    assert make(cache, tmp_path / "halves").step == 11
    assert run(make(cache, tmp_path / "halves"), 20)
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    "variation", [{}, {"soft": 0.0}, {"soft": 1.0}, {"slots": "masks"}, {"direct_path": False}], ids=str
)
def test_it_learns_what_it_sees(
    cache: FeatureCache, tmp_path: Path, variation: dict[str, float | bool | str]
) -> None:
    """Random documents, met twenty times: the loss of the last ten steps is well below that of the first."""
    settings = dataclasses.replace(SETTINGS, **variation)  # type: ignore[arg-type]
    run(make(cache, tmp_path / "run", settings), 100)
    seen = [loss for _, loss in losses(tmp_path / "run")]
    assert sum(seen[-10:]) < 0.8 * sum(seen[:10])


def test_a_pause_is_not_counted(cache: FeatureCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that gives a second a step and 500 to the sixth: ten times the mean of those before is kept."""
    trainer = make(cache, tmp_path / "run")
    now = [0.0]

    def clock() -> float:
        now[0] += 500.0 if trainer.step == 5 and now[0] < 500 else 1.0
        return now[0]

    monkeypatch.setattr(trainer_module.time, "monotonic", clock)
    monkeypatch.setattr(trainer, "_train_step", lambda rate: 0.0)
    run(trainer, 10)
    assert trainer.seconds == pytest.approx(9 * 1 + 10 * 1)


def test_the_rate_rises_stays_and_falls(cache: FeatureCache, tmp_path: Path) -> None:
    trainer = make(cache, tmp_path / "run")
    rates = []
    for step, share in ((0, 0.0), (1, 0.1), (4, 0.2), (50, 0.6), (80, 0.8), (99, 0.99)):
        trainer.step = step
        rates.append(trainer._rate(share) / SETTINGS.learning_rate)
    assert rates == pytest.approx([0.2, 0.4, 1, 1, 0.5, 0.025])
