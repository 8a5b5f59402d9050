"""What a bench's records come to: for each lane and temperature its rates, ratios and acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from app.bench.intervals import geometric_interval
from app.bench.lanes import parse_lane
from app.bench.store import Plan, Record
from ddtree.statistics import Acceptance, Statistics, pooled

Rate = Callable[[Record], float | None]


def results(plan: Plan, records: Iterable[Record], created_at: str) -> dict[str, Any]:
    """One JSON object: the plan without its texts, and an entry for each lane at each temperature.

    `rate`: tokens/s of whole runs, prefill included; `step_rate`: inside steps. Both are geometric means over
    prompts and repeats, with the 95 % interval of `geometric_interval`; `ratio` and `step_ratio` are those of
    the paired quotients with the autoregressive lane on the same prompt in the same round. tau and acceptance
    pool tokens over steps.
    """
    everything = list(records)
    entries = [
        _entry(plan, everything, label, temperature)
        for temperature in plan.temperatures
        for label in plan.lanes
    ]
    return {
        "format": "ddtree-bench",
        "version": 1,
        "created_at": created_at,
        "plan": {
            **plan.model_dump(mode="json", exclude={"prompts"}),
            "prompts": [prompt.model_dump(exclude={"text"}) for prompt in plan.prompts],
        },
        "complete": len(everything) == len(plan.rounds) * len(entries),
        "entries": entries,
        "errors": [
            {"prompt": record.prompt, "lane": record.lane, "message": record.error}
            for record in everything
            if record.error is not None
        ],
    }


def _entry(plan: Plan, everything: list[Record], label: str, temperature: float) -> dict[str, Any]:
    runs = [record for record in everything if record.temperature == temperature and record.error is None]
    own = [record for record in runs if record.lane == label]
    plain = {(r.prompt, r.repeat): r for r in runs if parse_lane(r.lane).plain}
    total = pooled(record.statistics for record in own)
    # Of a baseline's steps only the number is known.
    known = total if parse_lane(label).settings is not None else Statistics()
    return {
        "lane": label,
        "temperature": temperature,
        "runs": len(own),
        "lossy": any(record.lossy for record in own),
        "steps": total.steps,
        "committed": total.committed,
        "tau": total.tau,
        "accepted_depth": total.accepted_depth,
        "acceptance_rate": known.acceptance_rate,
        "node_efficiency": known.node_efficiency,
        "rate": _interval(plan, own, _wall_rate),
        "ratio": _interval(plan, own, _against(plain, _wall_rate)),
        "step_rate": _interval(plan, own, _step_rate),
        "step_ratio": _interval(plan, own, _against(plain, _step_rate)),
        "by_depth": [_acceptance(depth) for depth in known.by_depth()],
        "by_rank": [_acceptance(rank) for rank in known.by_rank()],
        "by_depth_and_rank": [
            [{"proposed": n, **_acceptance(cell)} for n, cell in zip(counts, row, strict=True)]
            for counts, row in zip(known.proposed, known.by_depth_and_rank(), strict=True)
        ],
        # Where only acceptance was asked for, nobody kept the machine quiet.
        "stage_ms": {} if plan.acceptance_only else known.stage_means(),
        "categories": _categories(plan, own),
    }


def _categories(plan: Plan, own: Sequence[Record]) -> dict[str, dict[str, Any]]:
    category = {prompt.id: prompt.category for prompt in plan.prompts}
    found = {}
    for name in dict.fromkeys(category.values()):
        there = [record for record in own if category[record.prompt] == name]
        total = pooled(record.statistics for record in there)
        found[name] = {"runs": len(there), "steps": total.steps, "tau": total.tau}
    return found


def _wall_rate(record: Record) -> float | None:
    return record.statistics.committed / record.wall_s if record.wall_s else None


def _step_rate(record: Record) -> float | None:
    return record.statistics.committed / record.step_s if record.step_s else None


def _against(plain: dict[tuple[str, int], Record], rate: Rate) -> Rate:
    """The quotient of a record's rate and that of the autoregressive run beside it."""

    def quotient(record: Record) -> float | None:
        beside = plain.get((record.prompt, record.repeat))
        mine, other = rate(record), None if beside is None else rate(beside)
        return mine / other if mine and other else None

    return quotient


def _interval(plan: Plan, own: Sequence[Record], rate: Rate) -> dict[str, Any] | None:
    values: dict[str, list[float]] = {prompt.id: [] for prompt in plan.prompts}
    for record in own:
        value = rate(record)
        if value is not None:
            values[record.prompt].append(value)
    interval = geometric_interval(list(values.values()))
    return None if interval is None else asdict(interval)


def _acceptance(counts: Acceptance) -> dict[str, Any]:
    return {
        "reached": counts.reached,
        "accepted": counts.accepted,
        "unconditional": counts.unconditional,
        "conditional": counts.conditional,
    }


COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("lane", lambda entry: entry["lane"] + (" (lossy)" if entry["lossy"] else "")),
    ("T", lambda entry: f"{entry['temperature']:g}"),
    ("tokens/s", lambda entry: _mean(entry["rate"], 1)),
    ("ratio", lambda entry: _mean(entry["ratio"], 2)),
    ("95 %", lambda entry: _span(entry["ratio"])),
    ("in steps", lambda entry: _mean(entry["step_rate"], 1)),
    ("ratio", lambda entry: _mean(entry["step_ratio"], 2)),
    ("95 %", lambda entry: _span(entry["step_ratio"])),
    ("tau", lambda entry: _digits(entry["tau"])),
    ("depth", lambda entry: _digits(entry["accepted_depth"])),
    ("runs", lambda entry: str(entry["runs"])),
)


def table_cells(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(heads, a row for each entry); a column is left out where no entry has a value."""
    rows = [[cell(entry) for _, cell in COLUMNS] for entry in found["entries"]]
    kept = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    return [COLUMNS[i][0] for i in kept], [[row[i] for i in kept] for row in rows]


def table(found: dict[str, Any]) -> str:
    """The same as text, the first column to the left."""
    heads, rows = table_cells(found)
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


def _mean(interval: dict[str, Any] | None, digits: int) -> str:
    return "" if interval is None else f"{interval['mean']:.{digits}f}"


def _span(interval: dict[str, Any] | None) -> str:
    if interval is None or interval["low"] is None:
        return ""
    return f"{interval['low']:.2f} to {interval['high']:.2f}"


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
