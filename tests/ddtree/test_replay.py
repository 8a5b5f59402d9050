"""The replay finds every changed decision of a trace, and nothing in an unchanged one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fakes import FakeDrafter, FakeTarget, favour
from test_trace_file import change

from ddtree.decoder import TreeDecoder
from ddtree.replay import check_trace
from ddtree.settings import Settings
from ddtree.trace import Trace
from ddtree.trace_file import load_trace


def rows(context: tuple[int, ...]) -> list[float]:
    return (2 * torch.randn(8, generator=torch.Generator().manual_seed(len(context) * 31))).tolist()


def made(prompt: str = "a", **settings: Any) -> dict[str, Any]:
    decoder = TreeDecoder(
        FakeTarget(rows, 8),
        FakeDrafter(favour(1, 2, 3)),
        Settings.model_validate({"max_new_tokens": 12, "seed": 7, **settings}),
    )
    list(decoder.decode(prompt))
    value: dict[str, Any] = json.loads(decoder.trace().to_json())
    return value


@pytest.fixture(scope="module")
def sampled() -> str:
    return json.dumps(made(temperature=1.0, budget=9))


@pytest.mark.parametrize("method", ["ddtree", "chain", "autoregressive"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "threshold_acc": 0.5},
        {"temperature": 1.0, "threshold_single": 0.3},
        {"temperature": 1.0, "threshold_acc": 0.0},
        {"temperature": 0.0, "threshold_acc": 0.5},
        {"temperature": 1.0, "budget": 600},
        {"drafter": "dflash", "budget": 9},
        {"drafter": "ngram", "temperature": 0.7},
        {"drafter": "hybrid", "temperature": 0.7, "block_size": 3},
    ],
)
def test_what_the_decoder_made_holds(method: str, settings: dict[str, Any]) -> None:
    trace = load_trace(json.dumps(made(method=method, **settings)).encode())
    assert [str(finding) for finding in check_trace(trace)] == []


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("steps[0].tree.log_weights[0]", -0.1, "steps[0].tree.log_weights[0]"),
        ("steps[0].tree.ranks[1]", 3, "steps[0].tree.ranks[1]"),
        ("steps[0].tree.row[1]", 0, "steps[0].tree.row[1]"),
        ("steps[0].tree.token_ids[0]", 5, "steps[0].tree.token_ids[0]"),
        ("steps[0].draft.rows.top_log_probs[0][1]", -0.01, "steps[0].draft.rows"),
        ("steps[0].retrieve.retrieve_next_token[0]", 2, "steps[0].retrieve.retrieve_next_token[0]"),
        ("steps[0].retrieve.retrieve_next_sibling[1]", -1, "steps[0].retrieve.retrieve_next_sibling[1]"),
        ("steps[0].sampling.uniform_samples[0]", 0.123, "steps[0].sampling.uniform_samples[0]"),
        ("steps[0].sampling.final_uniform", 0.5, "steps[0].sampling.final_uniform"),
        ("steps[0].decisions[0].prob", 0.99, "steps[0].decisions[0].prob"),
        ("steps[0].decisions[0].cumulative", 0.001, "steps[0].decisions[0].cumulative"),
        ("steps[0].accept.accept_token_num", 7, "steps[0].accept.accept_token_num"),
        ("steps[0].accept.bonus_cumulative", 0.0, "steps[0].accept.bonus_cumulative"),
        ("steps[0].accept.residual_mass", 0.0, "steps[0].accept.residual_mass"),
        ("steps[0].accept.bonus_prob", 0.77, "steps[0].accept.bonus_prob"),
        ("steps[0].committed.token_ids[0]", 6, "steps[0].committed.token_ids"),
        ("steps[1].root.token_id", 0, "steps[1].root.token_id"),
        ("steps[1].root.position", 9, "steps[1].root.position"),
        ("steps[1].settings.seed", 8, "steps[1].sampling.uniform_samples"),
        ("summary.committed", 11, "summary.committed"),
        ("summary.accepted_drafts", 99, "summary.accepted_drafts"),
        ("summary.tau", 1.0, "summary.tau"),
        ("summary.steps", 1, "summary.steps"),
        ("summary.finish_reason", "stop", "summary.finish_reason"),
        ("summary.lossy", True, "summary.lossy"),
    ],
)
def test_a_changed_decision_is_found_where_it_stands(sampled: str, path: str, value: Any, found: str) -> None:
    trace = json.loads(sampled)
    change(path, value)(trace)
    findings = check_trace(load_trace(json.dumps(trace).encode()))
    assert any(finding.path.startswith(found) for finding in findings), [str(f) for f in findings]


@pytest.mark.parametrize("drafter", ["dflash", "ngram", "hybrid"])
def test_every_changed_origin_is_found(drafter: str) -> None:
    text = json.dumps(made(drafter=drafter, prompt="abcabdabc", max_new_tokens=1))
    tree = json.loads(text)["steps"][0]["tree"]
    assert set(tree["origin"]) == ({"dflash", "ngram"} if drafter == "hybrid" else {drafter})
    for i, origin in enumerate(tree["origin"]):
        trace = json.loads(text)
        trace["steps"][0]["tree"]["origin"][i] = {"dflash": "ngram", "ngram": "dflash"}[origin]
        findings = check_trace(load_trace(json.dumps(trace).encode()))
        assert [finding.path for finding in findings] == [f"steps[0].tree.origin[{i}]"]


def test_a_hybrids_rows_say_where_candidates_come_from() -> None:
    hybrid, plain = (made(drafter=drafter, prompt="abcab") for drafter in ("hybrid", "dflash"))
    rows = plain["steps"][0]["draft"]["rows"]
    rows["origins"] = [["dflash"] * len(row) for row in rows["top_token_ids"]]
    hybrid["steps"][0]["draft"]["rows"]["origins"] = None
    for trace, message in (
        (hybrid, "a draft of hybrid has no origins"),
        (plain, "a draft of dflash has origins"),
    ):
        findings = check_trace(Trace.model_validate(trace))
        assert any(message in finding.message for finding in findings), [str(f) for f in findings]


def test_a_verdict_turned_round_is_found(sampled: str) -> None:
    trace = json.loads(sampled)
    for step in trace["steps"]:
        if step["decisions"]:
            decision = step["decisions"][0]
            decision["verdict"] = "accepted" if decision["verdict"] == "rejected" else "rejected"
            break
    findings = check_trace(load_trace(json.dumps(trace).encode()))
    assert any(finding.path.endswith("decisions[0].verdict") for finding in findings)
