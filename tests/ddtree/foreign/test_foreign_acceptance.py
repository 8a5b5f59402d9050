"""Acceptance records of vLLM, SGLang and TensorRT-LLM, counted as they count."""

from __future__ import annotations

from typing import Any

import pytest

from ddtree.foreign import ForeignError, recognise
from ddtree.foreign.acceptance import of_counts, read_prometheus, read_records

# Accepted counts [0, 3, 1, 2] of three drafted: of all steps, and of those that came to the depth before.
RATES = ([0.75, 0.5, 0.25], [0.75, 2 / 3, 0.5])


def rates(value: Any) -> tuple[Any, Any]:
    record = recognise(value).acceptance
    assert record is not None
    return record.unconditional(), record.conditional()


def test_counts_of_steps() -> None:
    record = of_counts("rounds", [0, 3, 1, 2])
    assert (record.unconditional(), record.conditional()) == RATES
    assert (record.steps, record.accepted) == (4, 6)


VLLM = {
    "num_drafts": 4,
    "num_draft_tokens": 12,
    "num_accepted_tokens": 6,
    "num_accepted_tokens_per_pos": [3, 2, 1],
}


@pytest.mark.parametrize(
    "value",
    [
        VLLM,
        {"spec_decoding_stats": VLLM},
        [
            {"name": f"vllm:spec_decode_{name}", "value" if isinstance(v, int) else "values": v}
            for name, v in VLLM.items()
        ],
        {"meta_info": {"spec_verify_ct": 4, "spec_accept_histogram": [1, 1, 1, 1], "completion_tokens": 10}},
        [
            {"text": "x", "meta_info": {"spec_verify_ct": 2, "spec_correct_drafts_histogram": h}}
            for h in ([1, 1], [0, 0, 1, 1])
        ],
    ],
)
def test_the_same_steps_by_each_engine(value: Any) -> None:
    assert rates(value) == RATES


def test_the_lines_of_vllms_metrics() -> None:
    lines = [
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 4.0',
        "vllm:spec_decode_num_accepted_tokens_total 6",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {3 - i}.0' for i in range(3)
    ]
    lines += ["vllm:spec_decode_num_drafts_created{} 1.7e9"]
    assert rates(read_prometheus("\n".join(lines))) == RATES
    assert read_prometheus("nothing 1") is None


def test_what_a_record_lacks_is_missing() -> None:
    record = read_records(
        {
            "perf_metrics": {
                "speculative_decoding": {
                    "acceptance_rate": 0.5,
                    "total_accepted_draft_tokens": 6,
                    "total_draft_tokens": 12,
                }
            }
        }
    )
    assert record is not None
    assert (record.source, record.accepted, record.drafted, record.steps) == ("TensorRT-LLM", 6, 12, None)
    assert record.unconditional() is None
    assert record.missing == ["verify steps", "acceptance by depth", "trees", "ranks"]
    stats = {
        "specDecodingStats": {
            "numDraftTokens": 12,
            "numAcceptedTokens": 6,
            "numRequestsWithDraftTokens": 4,
            "acceptanceLength": 2.5,
        }
    }
    found = read_records([stats, stats])
    assert found is not None
    assert (found.requests, found.accepted, found.steps) == (2, 12, 8)
    sg = read_records(
        {
            "spec_verify_ct": 4,
            "spec_num_correct_drafts": 6,
            "spec_num_proposed_drafts": 12,
            "spec_accept_length": 2.5,
        }
    )
    assert sg is not None
    assert (sg.accepted, sg.drafted, sg.mean_emitted, sg.per_position) == (6, 12, 2.5, None)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"num_drafts": -1, "num_accepted_tokens": 0}, "num_drafts is -1"),
        ({"num_drafts": "x", "num_accepted_tokens": 0}, "num_drafts is 'x'"),
        (
            {"num_drafts": 1, "num_accepted_tokens": 6, "num_accepted_tokens_per_pos": [3]},
            "counters disagree",
        ),
        ([VLLM, {"spec_verify_ct": 1}], "records of SGLang and vLLM"),
    ],
)
def test_counters_that_cannot_be(value: Any, part: str) -> None:
    with pytest.raises(ForeignError) as refusal:
        read_records(value)
    assert part in str(refusal.value)
