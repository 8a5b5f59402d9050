"""All stages on a tiny target: what they leave, what they refuse, where they go on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_target import FLAGS, save_target

import ddtree
from ddtree.training.export import table
from ddtree.training.features import FeatureCache
from ddtree.training.pipeline import Limits, Pipeline
from ddtree.training.plain import load_plain
from ddtree.training.settings import TrainSettings
from ddtree.training.texts import read_texts

LIMITS = Limits(minutes=None, steps=12, dtype="float32", rows=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def settings(folder: Path, **changed: Any) -> TrainSettings:
    return TrainSettings(**{"model": str(folder), **FLAGS, **changed})


def pipeline(work: Path, given: TrainSettings, limits: Limits = LIMITS, stop_after: int = 10**9) -> Pipeline:
    """Stops at the `stop_after`-th time it is asked."""
    asked = iter(range(1, 10**9))
    return Pipeline(work, given, limits, lambda what, share: None, lambda: next(asked) > stop_after)


@pytest.fixture(scope="module")
def done(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("work")
    assert pipeline(work, settings(folder)).run()
    return work


def test_texts_are_the_targets_own(folder: Path, done: Path) -> None:
    """Cold answers are greedy ones; the temperatures take turns."""
    texts = read_texts(done / "texts.jsonl")
    assert [text.temperature for text in texts] == [0.0, 0.7, 1.0] * 8
    model, tokenizer, _ = load_plain(str(folder), "cpu", "float32", lambda what, share: None)
    for text in texts[:6:3]:
        ids = tokenizer(text.prompt).input_ids + text.response_ids
        with torch.inference_mode():
            likeliest = model(torch.tensor([ids])).logits[0].argmax(-1)
        count = len(text.response_ids)
        assert likeliest[-count - 1 : -1].tolist() == text.response_ids


def test_features_are_the_hidden_states_that_decoding_taps(folder: Path, done: Path) -> None:
    cache = FeatureCache(done / "features")
    assert cache.done == len(cache) == 24
    target = ddtree.load_target(str(folder), dtype="float32")
    for document in (0, 23):
        tokens = cache.tokens(document)
        live = target.new_cache(len(tokens), cache.taps)
        list(target.prefill(live, tokens.tolist()))
        assert live.features is not None
        torch.testing.assert_close(
            cache.features(document).float(), live.features[: len(tokens)], rtol=1e-2, atol=1e-2
        )


def test_the_drafter_is_loaded_and_drafts(folder: Path, done: Path) -> None:
    target = ddtree.load_target(str(folder), dtype="float32")
    drafter = ddtree.load_drafter(str(done / "drafter"), target=target)
    assert (drafter.block_size, drafter.taps) == (8, FeatureCache(done / "features").taps)
    decoder = ddtree.TreeDecoder(
        target, drafter, ddtree.Settings(drafter="dflash", budget=7, max_new_tokens=8, chat=False)
    )
    assert sum(len(step.committed.token_ids) for step in decoder.decode("<5> <9>") if step.committed) == 8


def test_a_smaller_vocabulary_is_of_the_frequent_tokens(folder: Path, done: Path, tmp_path: Path) -> None:
    given = settings(folder, draft_vocabulary=50)
    assert pipeline(tmp_path, given, dataclasses.replace(LIMITS, until="export")).run()
    target = ddtree.load_target(str(folder), dtype="float32")
    drafter = ddtree.load_drafter(str(tmp_path / "drafter"), target=target)
    assert drafter._target_ids is not None and len(drafter._target_ids) == 50
    cache = FeatureCache(tmp_path / "features")
    answers = torch.cat([cache.tokens(i)[int(cache.starts[i]) :] for i in range(4, 24)])
    counts = torch.bincount(answers, minlength=211)
    left_out = [token for token in range(211) if token not in drafter._target_ids.tolist()]
    assert counts[drafter._target_ids].min() >= counts[left_out].max()


def test_the_evaluation_counts_every_temperature_and_tree(done: Path) -> None:
    found = json.loads((done / "evaluation.json").read_text())
    assert set(found) <= {"0", "0.7", "1"} and found
    for row in found.values():
        assert list(row) == ["chain", "ddtree 7", "ddtree 15", "ddtree 31"]
        for cell in row.values():
            assert cell["accepted_drafts_per_step"] == round(cell["accepted_drafts"] / cell["steps"], 4)
    header, _, first = table(found).splitlines()[:3]
    assert header == "| temperature | chain | ddtree 7 | ddtree 15 | ddtree 31 |"
    assert first.startswith(f"| {next(iter(found))} | ")


def test_the_log_holds_every_setting_and_stage(folder: Path, done: Path) -> None:
    kept = json.loads((done / "settings.json").read_text())
    assert set(kept) == {field.name for field in dataclasses.fields(TrainSettings)}
    entries = [json.loads(line) for line in (done / "log.jsonl").read_text().splitlines()]
    assert [(entry["stage"], entry["event"]) for entry in entries] == [
        (stage, event)
        for stage in ("synthesise", "features", "train", "export", "evaluate")
        for event in ("begins", "done")
    ]
    assert entries[0]["limits"]["steps"] == 12


def test_stopped_anywhere_it_comes_to_the_same(folder: Path, done: Path, tmp_path: Path) -> None:
    """Stopped again and again, after 1, 2, ... of the questions whether to stop."""
    for patience in range(1, 200):
        if pipeline(tmp_path, settings(folder), stop_after=6 * patience).run():
            break
    assert patience > 3
    for name in ("texts.jsonl", "evaluation.json", "drafter/model.safetensors"):
        assert (tmp_path / name).read_bytes() == (done / name).read_bytes(), name


def test_other_settings_are_refused_in_the_same_folder(folder: Path, done: Path) -> None:
    with pytest.raises(ValueError, match="begun with other settings: layers was 1 and is 2; use those"):
        pipeline(done, settings(folder, layers=2))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"soft": 1.5}, "soft is 1.5; it must be 0 to 1"),
        ({"documents": 0}, "documents is 0; it must be at least 1"),
        ({"frequent": 200}, "frequent is 200, more than the 128 of vocabulary"),
    ],
)
def test_bad_settings_are_named(folder: Path, tmp_path: Path, changed: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline(tmp_path, settings(folder, **changed))
    assert not list(tmp_path.iterdir())


def test_too_few_texts_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are 3 documents; 4 are held out"):
        pipeline(tmp_path, settings(folder, answers=3)).run()


def test_ones_own_prompts_come_first(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("<5> <6>\n\n<7> <8> <9>\n")
    given = settings(folder, prompts=str(prompts), answers=4)
    assert pipeline(tmp_path / "work", given, dataclasses.replace(LIMITS, until="synthesise")).run()
    texts = read_texts(tmp_path / "work" / "texts.jsonl")
    assert [text.prompt for text in texts[:2]] == ["<5> <6>", "<7> <8> <9>"]
    assert len(texts) == 4


def test_a_line_cut_off_by_a_kill_is_made_again(folder: Path, tmp_path: Path) -> None:
    given = settings(folder, answers=6)
    limits = dataclasses.replace(LIMITS, until="synthesise", rows=3)
    assert pipeline(tmp_path, given, limits).run()
    whole = (tmp_path / "texts.jsonl").read_bytes()
    third = [i for i, byte in enumerate(whole) if byte == 10][2]
    (tmp_path / "texts.jsonl").write_bytes(whole[: third + 20])
    assert pipeline(tmp_path, given, limits).run()
    assert (tmp_path / "texts.jsonl").read_bytes() == whole
