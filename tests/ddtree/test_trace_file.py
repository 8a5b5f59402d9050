"""Reading traces: every broken file gets one line that says where, and a good one survives unchanged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeDrafter, FakeTarget, favour, follow

from ddtree.decoder import TreeDecoder
from ddtree.settings import Settings
from ddtree.trace_file import TraceError, load_trace


def made(**settings: Any) -> str:
    target = FakeTarget(follow([1, 2, 3, 4, 5, 6, 1, 2, 3, 1]), 8)
    drafter = FakeDrafter(favour(1, 2, 3), fail_at=settings.pop("fail_at", None))
    decoder = TreeDecoder(target, drafter, Settings(max_new_tokens=8, budget=5, seed=1, **settings))
    list(decoder.decode("a"))
    return decoder.trace().to_json()


@pytest.fixture(scope="module")
def good() -> str:
    return made(temperature=1.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"drafter": "dflash"},
        {"temperature": 0.7},
        {"fail_at": 1},
        {"threshold_acc": 0.5, "temperature": 1.0},
    ],
)
def test_export_import_export_is_byte_identical(settings: dict[str, Any]) -> None:
    text = made(**settings)
    assert load_trace(text.encode()).to_json() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in a trace"))


def test_a_seed_past_2_53_survives(good: str) -> None:
    value = json.loads(good)
    value["settings"]["seed"] = "18446744073709551615"
    again = load_trace(json.dumps(value).encode())
    assert again.settings.seed == 2**64 - 1
    assert '"seed":"18446744073709551615"' in again.to_json()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"null", 'no "format": "ddtree-trace"'),
        (b"5", 'no "format": "ddtree-trace"'),
        (b"[]", 'no "format": "ddtree-trace"'),
        (b"{}", 'no "format": "ddtree-trace"'),
        (b'{"__proto__":{}}', 'no "format": "ddtree-trace"'),
        (b'{"format":"ddtree-trace","version":2}', "version 2 is not known"),
        (b'{"format":"ddtree-trace",', "line 1 column"),
        (b'{"a":\n NaN}', "line 2 column 2"),
        (b'{"a": -Infinity}', "line 1 column"),
        (b"\xff\xfe{\x00}\x00", "UTF-16"),
        ("{}".encode("utf-16-le"), "UTF-16"),
        ("{}".encode("utf-32"), "UTF-16 or UTF-32"),
        (gzip.compress(b"{}"), "gzip"),
        (b'{"format": "\xff"}', "line 1 column"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_trace(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(trace: dict[str, Any]) -> None:
        *head, last = path.replace("[", ".").replace("]", "").split(".")
        at: Any = trace
        for part in head:
            at = at[int(part) if part.isdigit() else part]
        at[int(last) if last.isdigit() else last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("steps[0].tree.parents[1]", 2, "steps[0].tree.parents[1]: is 2; a parent comes before its child"),
        ("steps[0].tree.parents[0]", 0, "steps[0].tree.parents[0]: is 0; the root's parent is -1"),
        ("steps[0].tree.parents", [-1, 2, 1], "steps[0].tree.parents: has 3 entries for 5 nodes"),
        ("steps[0].tree.depths[0]", 2, "steps[0].tree.depths[0]: is 2; its parent 0 makes it 1"),
        ("steps[0].tree.token_ids[2]", -1, "steps[0].tree.token_ids[2]: token id -1 is outside"),
        ("steps[1].tree.token_ids[2]", 10**12, "steps[1].tree.token_ids[2]: token id 1000000000000"),
        ("steps[0].tree.texts", ["x"], "steps[0].tree.texts: has 1 entries"),
        ("steps[0].accept.accept_index", [0, 2], "accept_index[1]: is 2, which is no child of 0"),
        ("steps[0].accept.accept_index", [1], "does not start at the root"),
        ("steps[0].accept.accept_index", [0, 99], "accept_index[1]: is 99; this tree has nodes 0 to 5"),
        ("steps[0].accept.bonus_token_id", 8, "steps[0].accept.bonus_token_id: token id 8"),
        ("steps[0].root.token_id", -1, "steps[0].root.token_id"),
        ("steps[0].decisions[0].node", 77, "steps[0].decisions[0].node: is 77"),
        ("steps[0].retrieve.retrieve_next_token", [1], "steps[0].retrieve.retrieve_next_token: has 1"),
        ("steps[1].index", 5, "steps[1].index: is 5"),
        ("steps[0].target.probs[0]", "x", "steps[0].target.probs[0]"),
        ("steps[0].surprise", 1, "steps[0].surprise"),
        ("steps[0].tree.origin[1]", "hybrid", "steps[0].tree.origin[1]"),
        ("steps[0].draft.rows.origins[0]", ["ngram"], "draft.rows.origins[0]: has 1 entries for"),
        ("steps[0].draft.rows.child_rows[0]", [], "draft.rows.child_rows[0]: has 0 entries for"),
        ("steps[0].draft.rows.child_rows", [], "rows of log_probs, 0 of child_rows"),
        ("steps[0].tree", None, "steps[0].tree: is null in a step that did not fail"),
        ("prompt.token_ids", [], "prompt"),
        ("settings.budget", 5000, "settings.budget"),
        ("steps", {}, "steps"),
    ],
)
def test_a_broken_part_is_named_by_its_json_path(good: str, path: str, value: Any, message: str) -> None:
    trace = json.loads(good)
    change(path, value)(trace)
    with pytest.raises(TraceError) as caught:
        load_trace(json.dumps(trace).encode())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
