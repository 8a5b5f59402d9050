"""Text of any origin: what Python, torch and NumPy print reads back as what was printed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddtree.foreign import ForeignError
from ddtree.foreign.text import MAX_LITERAL_CHARS, read_text

NUMBERS = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False, width=32))
ROWS = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(ROWS)
def test_json_and_literals_read_back(rows: list[list[float]]) -> None:
    named = {"top_log_probs": rows, "budget": 3, "note": "a 'quoted' word", "none": None, "yes": True}
    assert read_text(json.dumps(named)) == (named, "JSON")
    assert read_text(repr(named))[0] == named
    tuples = repr(tuple(tuple(row) for row in rows))
    assert read_text(tuples)[0] == rows


@given(ROWS)
def test_printouts_of_numpy_and_torch_read_back(rows: list[list[float]]) -> None:
    array = np.array(rows, dtype=np.float32)
    with np.printoptions(precision=9, threshold=10**6, floatmode="unique"):
        for text in (str(array), repr(array), f"x = {array!r}"):
            value = read_text(text)[0]
            value = value["x"] if isinstance(value, dict) else value
            assert np.array_equal(np.array(value, dtype=np.float32), array)
    whole = torch.tensor([[int(abs(v)) % 1000 if abs(v) < 1e9 else 7 for v in row] for row in rows])
    assert read_text(repr(whole))[0] == whole.tolist()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "tensor([[-0.3567, -1.2040],\n        [-0.5108, -inf]], dtype=torch.float64)",
            [[-0.3567, -1.204], [-0.5108, -np.inf]],
        ),
        ("tensor([1, 2], device='cuda:0', grad_fn=<CopySlices>)", [1, 2]),
        ("array([[1., 2.],\n       [3., 4.]], dtype=float32)", [[1, 2], [3, 4]]),
        ("[[ 1  2 -1]\n [ 4 -1  6]]", [[1, 2, -1], [4, -1, 6]]),
        ("[-0.36 -1.2e-3 nan]", [-0.36, -0.0012, None]),
        (
            "parents = [-1, 0, 0]  # root first\ntoken_ids: (5, 7,)",
            {"parents": [-1, 0, 0], "token_ids": [5, 7]},
        ),
        (
            "{'a': tensor([1, 2]), 'b': np.float32(0.5), 'c': [np.int64(3)]}",
            {"a": [1, 2], "b": 0.5, "c": [3]},
        ),
        (
            "EagleVerifyInput(draft_token=tensor([3, 4]), spec_steps=2)",
            {"draft_token": [3, 4], "spec_steps": 2},
        ),
        ('{"a": 1}\n{"a": 2}', [{"a": 1}, {"a": 2}]),
    ],
)
def test_what_people_paste(text: str, value: Any) -> None:
    found = read_text(text)[0]
    if isinstance(value, list) and None in value:
        assert found[:2] == value[:2] and found[2] != found[2]
    else:
        assert found == value


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "nothing was given"),
        ("{", "not JSON"),
        ("[1, 2", "']' is missing"),
        ("tensor([[1, 2, ..., 3]])", "summarised"),
        ("[1, 2] [3, 4]", "a second value without a name"),
        ("parents [1]", "write name = value"),
        ("[" * 100 + "]" * 100, "not JSON"),
        ("[" * 5000, "brackets within brackets"),
        ("tensor(" * 100, "brackets within brackets"),
        ("9" * 5000 + "a", "too long"),
        ("__import__('os').system('x')", "not expected"),
        ("a b c", "write name = value"),
        ("$", "line 1, column 1"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, part: str) -> None:
    if text == "[" * 100 + "]" * 100:
        assert read_text(text)[1] == "JSON"  # the depth of JSON is bounded by its reader
        return
    with pytest.raises(ForeignError) as refusal:
        read_text(text)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@given(st.text(alphabet="[](){},:=;.'\"<>#-+0123456789eaintensorfy_ \n", max_size=200))
def test_any_text_is_read_or_refused_and_never_hangs(text: str) -> None:
    with suppress(ForeignError):
        read_text(text)


def test_the_reader_is_linear_and_bounded() -> None:
    text = "x = [" + "1 " * 200_000 + "]"
    began = time.perf_counter()
    assert len(read_text(text)[0]["x"]) == 200_000
    assert time.perf_counter() - began < 10
    with pytest.raises(ForeignError, match="too many for a literal"):
        read_text("x = [" + "1 " * MAX_LITERAL_CHARS)
