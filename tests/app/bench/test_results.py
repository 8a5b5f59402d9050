"""Rates, ratios and tables from records written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from app.bench.results import results, table
from app.bench.store import Plan, PlannedPrompt, Record
from ddtree.statistics import Statistics
from ddtree.trace import Engine


def plan(**changes: Any) -> Plan:
    return Plan(
        **{
            "lanes": ["autoregressive", "ddtree", "generate"],
            "temperatures": [0.0],
            "repeats": 1,
            "new_tokens": 8,
            "prompt_limit": 16,
            "acceptance_only": False,
            "seed": 0,
            "model": "fake",
            "drafters": ["fake"],
            "machine": "none",
            "engine": Engine(versions={}, device="cpu", dtype="float32", threads=1, kernels="portable"),
            "prompts": [
                PlannedPrompt(id=id, category=category, text="a", tokens=1, cut=False)
                for id, category in (("p", "x"), ("q", "y"))
            ],
            **changes,
        }
    )


def record(prompt: str, lane: str, wall_s: float | None, **changes: Any) -> Record:
    statistics = changes.pop("statistics", Statistics(steps=4, committed=8, accepted_drafts=4))
    return Record(
        **{
            "prompt": prompt,
            "lane": lane,
            "temperature": 0.0,
            "repeat": 0,
            "seed": 0,
            "wall_s": wall_s,
            "step_s": None if lane == "generate" or wall_s is None else wall_s / 2,
            "finish": "length",
            "statistics": statistics,
            **changes,
        }
    )


RECORDS = [
    record("p", "autoregressive", 4.0, statistics=Statistics(steps=8, committed=8)),
    record("p", "ddtree", 2.0, statistics=Statistics(steps=2, committed=8, accepted_drafts=6)),
    record("p", "generate", 8.0, statistics=Statistics(steps=8, committed=8)),
    record("q", "autoregressive", 2.0, statistics=Statistics(steps=8, committed=8)),
    record("q", "ddtree", 4.0, statistics=Statistics(steps=8, committed=8)),
    record("q", "generate", 2.0, statistics=Statistics(steps=8, committed=8)),
]


def entry(found: dict[str, Any], lane: str) -> Any:
    return next(entry for entry in found["entries"] if entry["lane"] == lane)


def test_rates_are_geometric_means_and_ratios_are_paired() -> None:
    """ddtree: 4 and 2 tokens/s, against 2 and 4: twice and half."""
    found = results(plan(), RECORDS, "now")
    tree = entry(found, "ddtree")
    assert tree["rate"]["mean"] == pytest.approx(8**0.5)
    assert tree["ratio"]["mean"] == pytest.approx(1.0)
    assert (tree["ratio"]["low"], tree["ratio"]["high"]) == pytest.approx((0.5, 2.0))
    assert tree["step_rate"]["mean"] == pytest.approx(2 * 8**0.5)
    assert entry(found, "generate")["ratio"]["mean"] == pytest.approx(0.5**0.5)
    assert entry(found, "generate")["step_rate"] is entry(found, "generate")["step_ratio"] is None
    assert entry(found, "autoregressive")["ratio"]["mean"] == 1.0
    assert found["complete"]


def test_tau_pools_steps_and_is_no_mean_of_ratios() -> None:
    tree = entry(results(plan(), RECORDS, "now"), "ddtree")
    assert (tree["tau"], tree["accepted_depth"]) == (1.6, 0.6)  # the mean of 4 and 1 is 2.5
    assert {name: part["tau"] for name, part in tree["categories"].items()} == {"x": 4.0, "y": 1.0}


def test_a_run_that_failed_is_named_and_left_out() -> None:
    failed = record("q", "ddtree", 1.0, finish="error", error="the row is NaN")
    found = results(plan(), [*RECORDS[:4], failed, RECORDS[5]], "now")
    assert found["errors"] == [{"prompt": "q", "lane": "ddtree", "message": "the row is NaN"}]
    assert (entry(found, "ddtree")["runs"], entry(found, "ddtree")["tau"]) == (1, 4.0)


def test_without_times_the_table_has_no_columns_of_them() -> None:
    untimed = [one.model_copy(update={"wall_s": None, "step_s": None}) for one in RECORDS]
    found = results(plan(acceptance_only=True), untimed[:4], "now")
    assert not found["complete"]
    assert table(found).splitlines()[0].split() == ["lane", "T", "tau", "depth", "runs"]


def test_the_table_to_the_letter() -> None:
    lossy = [one.model_copy(update={"lossy": one.lane == "ddtree"}) for one in RECORDS]
    assert (
        table(results(plan(), lossy, "now"))
        == """
lane            T  tokens/s  ratio          95 %  in steps  ratio          95 %    tau  depth  runs
autoregressive  0       2.8   1.00  1.00 to 1.00       5.7   1.00  1.00 to 1.00  1.000  0.000     2
ddtree (lossy)  0       2.8   1.00  0.50 to 2.00       5.7   1.00  0.50 to 2.00  1.600  0.600     2
generate        0       2.0   0.71  0.50 to 1.00                                 1.000  0.000     2
""".strip()
    )
