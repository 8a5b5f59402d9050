"""The stateless endpoints: a tree from pasted rows, a check of pasted arrays."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from fake_server import Serve

LOGS = [[math.log(p) for p in row] for row in ([0.7, 0.3], [0.6, 0.4], [0.8, 0.2])]
WORKED = {"top_log_probs": LOGS, "top_token_ids": [[10, 11], [20, 21], [30, 31]], "budget": 5}


@pytest.fixture
def url(serve: Serve) -> str:
    return serve().url


def test_the_worked_example_to_the_digit(url: str) -> None:
    answer = httpx.post(url + "/api/tree", json=WORKED)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    tree, retrieve = body["tree"], body["retrieve"]
    assert (body["num_nodes"], body["budget"]) == (5, 5)
    assert tree["token_ids"] == [10, 20, 30, 11, 21]
    assert tree["depths"] == [1, 2, 3, 1, 2]
    assert tree["parents"] == [-1, 0, 1, 2, 0, 1]
    assert tree["ranks"] == [0, 0, 0, 1, 1]
    assert tree["row"] == [0, 1, 2, 0, 1]
    assert [round(weight, 3) for weight in tree["log_weights"]] == [-0.357, -0.868, -1.091, -1.204, -1.273]
    assert tree["draft_log_probs"] == [LOGS[0][0], LOGS[1][0], LOGS[2][0], LOGS[0][1], LOGS[1][1]]
    assert retrieve["retrieve_index"] == [0, 1, 2, 3, 4, 5]
    assert retrieve["retrieve_next_token"] == [1, 2, 3, -1, -1, -1]
    assert retrieve["retrieve_next_sibling"] == [-1, 4, 5, -1, -1, -1]


def test_null_is_minus_infinity_and_never_enters(url: str) -> None:
    given = {"top_log_probs": [[0.0, None]], "top_token_ids": [[1, 2]], "budget": 3}
    body = httpx.post(url + "/api/tree", json=given).json()
    assert body["num_nodes"] == 1 and body["tree"]["token_ids"] == [1]


@pytest.mark.parametrize("rows", [[], [[]]])
def test_without_candidates_there_is_the_root_alone(url: str, rows: list[Any]) -> None:
    body = httpx.post(
        url + "/api/tree", json={"top_log_probs": rows, "top_token_ids": rows, "budget": 3}
    ).json()
    assert body["num_nodes"] == 0 and body["tree"]["parents"] == [-1]
    assert body["retrieve"]["retrieve_next_token"] == [-1]


def test_child_rows_build_a_path_conditioned_tree(url: str) -> None:
    given = {
        "top_log_probs": [[math.log(0.6), math.log(0.4)], [0.0, None], [0.0, None]],
        "top_token_ids": [[1, 2], [3, 0], [4, 0]],
        "child_rows": [[1, 2], [-1, -1], [-1, -1]],
        "budget": 8,
    }
    tree = httpx.post(url + "/api/tree", json=given).json()["tree"]
    assert (tree["token_ids"], tree["parents"]) == ([1, 3, 2, 4], [-1, 0, 1, 0, 3])


@pytest.mark.parametrize(
    ("change", "status", "field", "reason"),
    [
        ({"budget": -1}, 422, "budget", "-1"),
        ({"budget": 1025}, 422, "budget", "1024"),
        ({"budget": 1.5}, 422, "budget", "1.5"),
        ({"top_token_ids": [[10, 11], [20, 21]]}, 422, "top_token_ids", "2 rows"),
        ({"top_token_ids": [[10, 11], [20], [30, 31]]}, 422, "top_token_ids[1]", "1 entries"),
        ({"top_token_ids": [[10, 10], [20, 21], [30, 31]]}, 422, None, "row 0, column 1"),
        ({"top_token_ids": [[-1, 10], [20, 21], [30, 31]]}, 422, "top_token_ids[0][0]", "-1"),
        ({"top_log_probs": [[-1.0, -0.5], *LOGS[1:]]}, 422, None, "row 0"),
        ({"top_log_probs": [[0.5, 0.25], *LOGS[1:]]}, 422, None, "row 0"),
        ({"colour": 1}, 422, "colour", "not known"),
    ],
)
def test_a_bad_tree_request_is_named(
    url: str, change: dict[str, Any], status: int, field: str | None, reason: str
) -> None:
    answer = httpx.post(url + "/api/tree", json={**WORKED, **change})
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["field"] == field and reason in body["message"] and "\n" not in body["message"]


@pytest.mark.parametrize("body", [b"", b"null", b"[1,", b'{"budget": NaN}', "{}".encode("utf-16")])
def test_a_body_that_is_no_json_object_is_refused(url: str, body: bytes) -> None:
    for path in ("/api/tree", "/api/retrieve/check"):
        answer = httpx.post(url + path, content=body)
        assert answer.status_code in (400, 422)
        assert "\n" not in answer.json()["message"]


def test_nan_is_refused_with_its_position(url: str) -> None:
    answer = httpx.post(url + "/api/tree", content=b'{"top_log_probs": [[NaN]]}')
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_json")
    assert "line 1 column 21" in answer.json()["message"]


def test_sound_arrays_are_sound_in_either_spelling(url: str) -> None:
    for name in ("retrieve", "retrive"):
        given = {
            f"{name}_index": [0, 1, 2],
            f"{name}_next_token": [1, -1, -1],
            f"{name}_next_sibling": [-1, 2, -1],
        }
        assert httpx.post(url + "/api/retrieve/check", json=given).json() == {"ok": True, "faults": []}


def test_faults_are_listed_with_their_nodes(url: str) -> None:
    def faults(**given: Any) -> list[tuple[str, int]]:
        body = httpx.post(url + "/api/retrieve/check", json=given).json()
        assert body["ok"] is (not body["faults"])
        return [(fault["kind"], fault["node"]) for fault in body["faults"]]

    cyclic = faults(retrieve_next_token=[1, -1, -1, -1], retrieve_next_sibling=[-1, 2, 2, -1], num_nodes=3)
    assert cyclic == [("cycle", 2), ("unreachable", 3)]
    assert ("out_of_range", 0) in faults(retrieve_next_token=[9, -1, -1], retrieve_next_sibling=[-1, -1, -1])
    assert faults(
        retrieve_index=[4, 5, 7], retrieve_next_token=[1, 2, -1], retrieve_next_sibling=[-1, -1, -1]
    ) == [("wrong_index", 2)]


def test_arrays_that_do_not_fit_together_are_refused(url: str) -> None:
    given = {"retrieve_next_token": [1, -1], "retrieve_next_sibling": [-1]}
    answer = httpx.post(url + "/api/retrieve/check", json=given)
    assert answer.status_code == 422 and "2 and 1" in answer.json()["message"]
    given = {"retrieve_index": [0], "retrieve_next_token": [1, -1], "retrieve_next_sibling": [-1, -1]}
    answer = httpx.post(url + "/api/retrieve/check", json=given)
    assert answer.status_code == 422 and answer.json()["field"] == "retrieve_index"
