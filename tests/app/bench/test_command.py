"""`ddtree bench` from its flags to its files, over a made-up target."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import Bench

from app.bench.runner import Runner
from app.cli import main

LANES = ("--lane", "autoregressive", "--lane", "ddtree", "--lane", "generate")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_every_lane_runs_on_every_prompt_and_the_files_say_what_came_of_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*LANES, "--repeats", "2", "--temperatures", "0", "1") == 0
    shown = capsys.readouterr()
    counts = Counter((r["lane"], r["temperature"]) for r in bench.records())
    assert counts == dict.fromkeys(
        ((lane, t) for lane in ("autoregressive", "ddtree", "generate") for t in (0.0, 1.0)), 6
    )
    assert bench.results()["complete"] and bench.results()["errors"] == []
    plain, tree = bench.entry("autoregressive"), bench.entry("ddtree")
    assert plain["tau"] == 1.0 and tree["tau"] > 1.2
    assert tree["committed"] == plain["committed"]  # greedy: the same texts
    assert plain["ratio"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert tree["ratio"]["low"] <= tree["ratio"]["mean"] <= tree["ratio"]["high"]
    assert set(tree["categories"]) == {"even", "odd"}
    assert "prompts: p0 p1 p2" in shown.err
    assert "1 of 3 prompts cut to 20 tokens" in shown.err
    assert "6/6 prompt p2" in shown.err and "0 s left" in shown.err
    assert shown.out.splitlines()[0].startswith("lane")
    assert len(shown.out.splitlines()) == 7
    assert (bench.out / "report.html").read_text().startswith("<!doctype html>")


def test_which_lane_goes_first_rotates(bench: Bench) -> None:
    bench(*LANES, "--repeats", "1")
    order = [r["lane"] for r in bench.records()]
    assert [order[i] for i in (0, 3, 6)] == ["autoregressive", "ddtree", "generate"]


def test_the_lane_that_ratios_need_is_added(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--lane", "chain:budget=3", "--repeats", "1") == 0
    assert bench.results()["plan"]["lanes"] == ["autoregressive", "chain:budget=3"]
    assert "lane autoregressive added" in capsys.readouterr().err


def test_a_default_lane_that_cannot_be_had_is_left_out_and_one_asked_for_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The made-up target has no trained drafter that transformers could speculate with."""
    assert bench("--repeats", "1") == 0
    reason = "no trained drafter comes with fake; name one with --draft-model"
    assert f"lane dflash-generate left out: {reason}" in capsys.readouterr().err
    assert "dflash-generate" not in bench.results()["plan"]["lanes"]
    assert bench("--lane", "dflash-generate") == 2
    assert f"lane 'dflash-generate': {reason}" in capsys.readouterr().err
    assert bench("--lane", "dflash-generate", "--draft-model", "none") == 2
    assert "there is no drafter (--draft-model none)" in capsys.readouterr().err


def test_acceptance_only_times_nothing(bench: Bench) -> None:
    assert bench("--acceptance-only", "--temperatures", "0", "0.7", "1") == 0
    assert bench.results()["plan"]["lanes"] == ["ddtree"]
    assert all(r["wall_s"] is r["step_s"] is None for r in bench.records())
    assert (bench.entry("ddtree")["rate"], bench.entry("ddtree")["stage_ms"]) == (None, {})


def test_acceptance_equals_what_the_exported_traces_say(bench: Bench, tmp_path: Path) -> None:
    """Counted from the trace files alone: committed tokens are led down each tree by their ids."""
    traces = tmp_path / "traces"
    assert bench("--acceptance-only", "--temperatures", "0", "1", "--traces", str(traces)) == 0
    assert len(list(traces.iterdir())) == 6
    for temperature in (0.0, 1.0):
        reached, accepted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        steps = committed = 0
        lengths = Counter[int]()
        for file in traces.glob(f"*-t{temperature:g}-*.json"):
            for step in json.loads(file.read_text())["steps"]:
                tree, at = step["tree"], 0
                steps += 1
                committed += len(step["committed"]["token_ids"])
                lengths.update(range(1, len(step["committed"]["token_ids"]) + 1))
                for token in step["committed"]["token_ids"]:
                    children = [i for i, parent in enumerate(tree["parents"]) if parent == at and i]
                    cells = {i: (tree["depths"][i - 1], tree["ranks"][i - 1]) for i in children}
                    reached.update(cells.values())
                    at = next((i for i in children if tree["token_ids"][i - 1] == token), -1)
                    accepted.update([cells[at]] if at > 0 else [])
        entry = bench.entry("ddtree", temperature)
        assert entry["tau"] == committed / steps
        cells = {
            (depth, rank): cell
            for depth, row in enumerate(entry["by_depth_and_rank"], 1)
            for rank, cell in enumerate(row)
        }
        assert {at: cell["reached"] for at, cell in cells.items() if cell["reached"]} == dict(reached)
        assert {at: cell["accepted"] for at, cell in cells.items() if cell["accepted"]} == dict(accepted)
        for depth, found in enumerate(entry["by_depth"], 1):
            taken = sum(count for (at, _), count in accepted.items() if at == depth)
            assert (found["accepted"], found["unconditional"]) == (taken, taken / steps)
            assert found["conditional"] == (taken / lengths[depth] if lengths[depth] else None)


def decoded(bench: Bench) -> list[tuple[int, int]]:
    """Which rounds were decoded from now on."""
    seen: list[tuple[int, int]] = []
    original = Runner.round

    def watched(self: Runner, repeat: int, index: int) -> Any:
        seen.append((repeat, index))
        return original(self, repeat, index)

    bench.patch.setattr(Runner, "round", watched)
    return seen


def test_ctrl_c_ends_after_the_prompt_in_work_and_the_same_command_goes_on(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Runner.round

    def interrupted(self: Runner, repeat: int, index: int) -> Any:
        if index == 1:
            signal.raise_signal(signal.SIGINT)
        return original(self, repeat, index)

    bench.patch.setattr(Runner, "round", interrupted)
    assert bench(*LANES, "--repeats", "1") == 130
    assert "stopping after the prompt in work" in capsys.readouterr().err
    assert len(bench.records()) == 6
    assert not bench.results()["complete"]
    assert "was stopped before its end" in (bench.out / "report.html").read_text()
    bench.patch.setattr(Runner, "round", original)
    seen = decoded(bench)
    assert bench(*LANES, "--repeats", "1") == 0
    assert seen == [(0, 2)]
    assert "going on: 2 of 3 rounds are there" in capsys.readouterr().err
    assert bench.results()["complete"] and len(bench.records()) == 9


def test_a_round_that_was_broken_off_is_run_again_as_a_whole(bench: Bench) -> None:
    bench(*LANES, "--repeats", "1")
    file = bench.out / "records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:7]) + lines[7][:40])  # killed while it wrote the round's second lane
    seen = decoded(bench)
    assert bench(*LANES, "--repeats", "1") == 0
    assert seen == [(0, 2)]
    assert len(bench.records()) == 10
    assert bench.entry("generate")["runs"] == bench.entry("ddtree")["runs"] == 3


def test_a_finished_bench_only_writes_its_results_again(bench: Bench) -> None:
    bench(*LANES, "--repeats", "1")
    before = bench.results()
    seen = decoded(bench)
    assert bench(*LANES, "--repeats", "1") == 0
    assert seen == []
    assert bench.results() | {"created_at": ""} == before | {"created_at": ""}


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (("--new-tokens", "9"), "holds a bench with new_tokens 12, here it is 9: name another folder"),
        (("--temperatures", "1"), "temperatures [0.0], here it is [1.0]"),
        (("--lane", "chain"), "lanes ['autoregressive', 'ddtree', 'generate']"),
        (("--sample", "2"), "other prompts (3, here 2)"),
    ],
)
def test_other_settings_are_refused(
    bench: Bench, flags: tuple[str, ...], difference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(*LANES, "--repeats", "1")
    kept = bench.records()
    assert bench(*LANES, "--repeats", "1", *flags) == 2
    assert difference in capsys.readouterr().err
    assert bench.records() == kept


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lane", "tree"), "lane 'tree': there is no 'tree'"),
        (("--lane", "ddtree:drafter=ngram,block-size=99"), "block_size 99 is more than the"),
        (("--sample", "0"), "--sample 0: use 1 or more"),
        (("--temperatures", "6"), "--temperatures 6: use 0 to 5"),
        (("--temperatures", "1", "1"), "one is given twice"),
        (("--jobs", "2"), "--jobs 2: runs side by side cannot be timed; add --acceptance-only"),
        (("--prompt-limit", "60"), "--prompt-limit 60 and --new-tokens 12 do not fit fake's context of 64"),
        (("--categories", "even", "prose"), "--categories prose: no prompt has it; there are even, odd"),
        (("--prompts", "/no/such/file"), "--prompts /no/such/file: No such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    bench: Bench, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*flags) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not bench.out.exists()


def test_a_folder_with_something_else_in_it_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.out.mkdir()
    (bench.out / "plan.json").write_text("{}")
    assert bench("--acceptance-only") == 2
    assert "its plan.json is not a bench's" in capsys.readouterr().err
    (bench.out / "plan.json").unlink()
    (bench.out / "records.jsonl").write_text('{"lane": 1}\n')
    assert bench("--acceptance-only") == 2
    assert "records.jsonl, line 1: not a bench's record" in capsys.readouterr().err


@pytest.mark.model
def test_two_processes_count_what_one_counts(tmp_path: Path) -> None:
    """The default model, acceptance only; a process each has one thread either way."""
    flags = ["--acceptance-only", "--sample", "2", "--new-tokens", "8", "--temperatures", "1", "--threads"]
    found = {}
    for name, threads, jobs in (("one", "1", "1"), ("two", "2", "2")):
        out = tmp_path / name
        assert main(["bench", "--out", str(out), *flags, threads, "--jobs", jobs]) == 0
        found[name] = json.loads((out / "results.json").read_text())["entries"]
    assert found["one"] == found["two"]
    assert sys.modules["torch"].get_num_threads() == 1
