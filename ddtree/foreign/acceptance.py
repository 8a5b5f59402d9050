"""Acceptance records of serving engines: how often drafts were accepted, without any tree.

- vLLM: the counters num_drafts, num_draft_tokens, num_accepted_tokens and num_accepted_tokens_per_pos, as
  `SpecDecodingStats`, as `LLM.get_metrics()` lists them, or as the lines of /metrics.
- SGLang: a response's `meta_info`: spec_verify_ct, the drafts proposed and accepted (renamed over time), and
  the histogram of verify steps by accepted drafts.
- TensorRT-LLM: a request's `speculative_decoding` (acceptance_rate, total_accepted_draft_tokens,
  total_draft_tokens), the iteration log's `specDecodingStats`, avg_decoded_tokens_per_iter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree.foreign.errors import ForeignError

_MOST_RECORDS = 100_000
_PROMETHEUS = re.compile(
    r"^(vllm:spec_decode_\w+?)(?:_total)?(?:\{([^}]*)\})?\s+([0-9.eE+-]+)\s*$", re.MULTILINE
)
_POSITION = re.compile(r'position="(\d+)"')
_VLLM = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
_SGLANG_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_SGLANG_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_SGLANG_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True)
class AcceptanceRecord:
    """Pooled over `requests` records; None: the format does not say."""

    source: str
    requests: int = 1
    steps: int | None = None  # verify passes
    drafted: int | None = None  # draft tokens
    accepted: int | None = None  # of them
    per_position: list[int] | None = None  # [i]: steps that accepted more than i drafts
    mean_emitted: float | None = None  # tokens a step as reported, bonus included
    missing: list[str] = field(default_factory=list)

    def unconditional(self) -> list[float] | None:
        """Of all steps, those that accepted at depth i + 1."""
        if self.per_position is None or not self.steps:
            return None
        return [count / self.steps for count in self.per_position]

    def conditional(self) -> list[float | None] | None:
        """Of the steps that accepted at depth i, those that did so at depth i + 1."""
        if self.per_position is None or not self.steps:
            return None
        before = [self.steps, *self.per_position]
        return [count / b if b else None for count, b in zip(self.per_position, before, strict=False)]


def of_counts(source: str, counts: Sequence[int]) -> AcceptanceRecord:
    """From the accepted drafts of each step."""
    deepest = max(counts, default=0)
    return AcceptanceRecord(
        source,
        steps=len(counts),
        accepted=sum(counts),
        per_position=[sum(count > i for count in counts) for i in range(deepest)],
    )


def read_prometheus(text: str) -> dict[str, Any] | None:
    """vLLM's counters from the text of /metrics, summed over engines; None: there are none."""
    found: dict[str, Any] = {}
    by_position: dict[int, int] = {}
    for name, labels, value in _PROMETHEUS.findall(text):
        key = name.removeprefix("vllm:spec_decode_")
        if key == "num_accepted_tokens_per_pos":
            position = _POSITION.search(labels or "")
            if position and int(position[1]) < 1024:
                by_position[int(position[1])] = by_position.get(int(position[1]), 0) + int(float(value))
        elif key in _VLLM:
            found[key] = found.get(key, 0) + int(float(value))
    if by_position:
        found["num_accepted_tokens_per_pos"] = [by_position.get(i, 0) for i in range(max(by_position) + 1)]
    return found or None


def read_records(value: Any) -> AcceptanceRecord | None:
    """The acceptance record anywhere in `value`, several of one engine pooled; None: there is none. Raises
    ForeignError for records of several engines and for counters that cannot be."""
    records = [record for found in _objects(value) if (record := _record(found)) is not None]
    listed = _listed_metrics(value)
    if listed is not None:
        records.append(listed)
    if not records:
        return None
    sources = sorted({record.source for record in records})
    if len(sources) > 1:
        raise ForeignError(f"these are records of {' and '.join(sources)}: give one engine's at a time")
    return _pooled(records)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every dict in a nest of dicts and lists."""
    stack, seen = [value], 0
    while stack:
        here = stack.pop()
        seen += 1
        if seen > _MOST_RECORDS:
            raise ForeignError(f"more than {_MOST_RECORDS} entries: give the records of fewer requests")
        if isinstance(here, dict):
            yield here
            stack += [entry for entry in here.values() if isinstance(entry, (dict, list))]
        elif isinstance(here, list) and here and not isinstance(here[0], (int, float)):
            stack += [entry for entry in here if isinstance(entry, (dict, list))]


def _record(found: dict[str, Any]) -> AcceptanceRecord | None:
    if "num_drafts" in found and "num_accepted_tokens" in found:
        return _of_vllm(found)
    if "spec_verify_ct" in found:
        return _of_sglang(found)
    if "total_draft_tokens" in found and "total_accepted_draft_tokens" in found:
        return AcceptanceRecord(
            "TensorRT-LLM",
            drafted=_count(found, "total_draft_tokens"),
            accepted=_count(found, "total_accepted_draft_tokens"),
        )
    if "numDraftTokens" in found and "numAcceptedTokens" in found:
        return AcceptanceRecord(
            "TensorRT-LLM",
            steps=_count(found, "numRequestsWithDraftTokens"),
            drafted=_count(found, "numDraftTokens"),
            accepted=_count(found, "numAcceptedTokens"),
        )
    return None


def _of_vllm(found: dict[str, Any]) -> AcceptanceRecord:
    return AcceptanceRecord(
        "vLLM",
        steps=_count(found, "num_drafts"),
        drafted=_count(found, "num_draft_tokens"),
        accepted=_count(found, "num_accepted_tokens"),
        per_position=_counts(found, "num_accepted_tokens_per_pos"),
    )


def _of_sglang(found: dict[str, Any]) -> AcceptanceRecord:
    histogram = next((h for name in _SGLANG_HISTOGRAM if (h := _counts(found, name))), None)
    emitted = found.get("spec_accept_length")
    return AcceptanceRecord(
        "SGLang",
        steps=_count(found, "spec_verify_ct"),
        drafted=next((_count(found, name) for name in _SGLANG_DRAFTED if name in found), None),
        accepted=next((_count(found, name) for name in _SGLANG_ACCEPTED if name in found), None),
        per_position=None
        if histogram is None
        else [sum(histogram[i + 1 :]) for i in range(len(histogram) - 1)],
        mean_emitted=float(emitted) if isinstance(emitted, (int, float)) else None,
    )


def _listed_metrics(value: Any) -> AcceptanceRecord | None:
    """What `LLM.get_metrics()` gives: a list of objects with name and value or values."""
    found: dict[str, Any] = {}
    for entry in value if isinstance(value, list) else ():
        name = entry.get("name", "") if isinstance(entry, dict) else ""
        if isinstance(name, str) and name.startswith("vllm:spec_decode_"):
            key = name.removeprefix("vllm:spec_decode_").removesuffix("_total")
            found[key] = entry.get("values", entry.get("value"))
    return _record(found)


def _count(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or value != value
        or not 0 <= value < 2**53
    ):
        raise ForeignError(f"{name} is {value!r}; a counter is a whole number from 0 on")
    return int(value)


def _counts(found: dict[str, Any], name: str) -> list[int] | None:
    values = found.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) > 1024:
        raise ForeignError(f"{name} must be a list of at most 1024 counters")
    return [_count({name: value}, name) or 0 for value in values]


def _pooled(records: list[AcceptanceRecord]) -> AcceptanceRecord:
    """Sums; what one record lacks, the whole lacks."""

    def total(name: str) -> int | None:
        values = [getattr(record, name) for record in records]
        return None if None in values else sum(values)

    lists = [record.per_position for record in records]
    deepest = max((len(one) for one in lists if one is not None), default=0)
    known = None not in lists
    per_position = [sum(one[i] for one in lists if one is not None and i < len(one)) for i in range(deepest)]
    steps = total("steps")
    if known and steps is not None and per_position and per_position[0] > steps:
        raise ForeignError(
            f"{per_position[0]} steps accepted a first draft, but there were {steps}: the counters disagree"
        )
    emitted = records[0].mean_emitted if len(records) == 1 else None
    fields = {
        "verify steps": steps,
        "draft tokens": total("drafted"),
        "accepted drafts": total("accepted"),
        "acceptance by depth": per_position if known else None,
    }
    return AcceptanceRecord(
        records[0].source,
        len(records),
        steps,
        fields["draft tokens"],  # type: ignore[arg-type]
        fields["accepted drafts"],  # type: ignore[arg-type]
        per_position if known else None,
        emitted,
        [*(name for name, value in fields.items() if value is None), "trees", "ranks"],
    )
