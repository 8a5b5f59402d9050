"""The Inspector over HTTP: what is pasted is read, kept for a while, and walked by the kernel."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import httpx
import numpy as np
import pytest
from fake_server import Serve

from ddtree.foreign import recognise, walk_tree

LOGS = [[math.log(p) for p in row] for row in ([0.7, 0.3], [0.6, 0.4], [0.8, 0.2])]
WORKED = {"top_log_probs": LOGS, "top_token_ids": [[10, 11], [20, 21], [30, 31]], "budget": 5}


@pytest.fixture
def url(serve: Serve) -> str:
    return serve().url + "/api/inspections"


def give(url: str, value: Any, name: str = "") -> dict[str, Any]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    answer = httpx.post(url, params={"name": name}, content=data)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_the_worked_example(url: str) -> None:
    found = give(url, WORKED)
    tree = found["tree"]
    assert (found["kind"], found["written_as"], found["trees"]) == ("topk", "JSON", 1)
    assert found["missing"] == ["target probabilities", "coins"]
    assert tree["token_ids"] == [10, 20, 30, 11, 21]
    assert tree["retrieve_next_token"] == [1, 2, 3, -1, -1, -1]
    assert tree["retrieve_next_sibling"] == [-1, 4, 5, -1, -1, -1]
    assert tree["children"] == [[1, 4], [2, 5], [3], [], [], []]
    steps = [(s["array"].removeprefix("retrieve_"), s["at"], s["node"]) for s in tree["encoding"]]
    assert steps == [
        ("next_token", 0, 1),
        ("next_token", 1, 2),
        ("next_token", 2, 3),
        ("next_sibling", 1, 4),
        ("next_sibling", 2, 5),
    ]
    assert not tree["coins_given"] and len(tree["uniform_samples"]) == 6
    assert all(0 <= coin < 1 for coin in tree["uniform_samples"])


def test_a_walk_is_the_librarys(url: str) -> None:
    given = {"parents": [-1, 0, 1, 0], "token_ids": [5, 6, 7], "probs": [0.5, 0.25, 0.25]}
    found = give(url, given)
    for coins, final in ([0.4, 0.1, 0.2, 0.3], 0.5), ([0.6, 0.1, 0.2, 0.3], 0.9), ([0.9, 0, 0, 0], 0.1):
        asked = {"uniform_samples": coins, "final_uniform": final}
        walk = httpx.post(f"{url}/{found['id']}/trees/0/walk", json=asked).json()
        reference = walk_tree(recognise(given).trees[0], coins, final)
        assert walk["accept_index"] == reference.accept_index
        assert walk["bonus_token_id"] == reference.bonus_token_id
        assert walk["residual_mass"] == reference.residual_mass
        assert [d["cumulative"] for d in walk["decisions"]] == [d.cumulative for d in reference.decisions]
        assert walk["probs"] == reference.probs


def test_an_npz_with_rows_is_walked(url: str) -> None:
    out = io.BytesIO()
    rows = np.array([[[0.1, 0.9, 0], [0.5, 0.25, 0.25]]], dtype=np.float32)
    np.savez(
        out,
        retrive_next_token=[[1, -1]],
        retrive_next_sibling=[[-1, -1]],
        candidates=[[0, 1]],
        target_probs=rows,
        uniform_samples=[[0.5, 0.5]],
        uniform_samples_for_final_sampling=[0.6],
    )
    found = give(url, out.getvalue(), "step.npz")
    tree = found["tree"]
    assert (found["kind"], found["written_as"], tree["has_rows"], tree["coins_given"]) == (
        "arrays",
        ".npz",
        True,
        True,
    )
    asked = {"uniform_samples": tree["uniform_samples"], "final_uniform": tree["final_uniform"]}
    walk = httpx.post(f"{url}/{found['id']}/trees/0/walk", json=asked).json()
    assert (walk["accept_index"], walk["bonus_token_id"], walk["bonus_source"]) == ([0, 1], 1, "full_row")


def test_rounds_are_fetched_one_by_one(url: str) -> None:
    tree = {"node_token_ids": [5, 6], "node_depths": [1, 2], "parents": [-1, 0, 1]}
    rounds = [{"accepted_indices": path, "tree": tree} for path in ([0, 1], [0, 1, 2], [0])]
    found = give(url, {"round_trees": rounds})
    assert found["trees"] == 3
    assert found["acceptance"]["unconditional"] == [2 / 3, 1 / 3]
    assert httpx.get(f"{url}/{found['id']}/trees/1").json()["accept_index"] == [0, 1, 2]
    assert httpx.get(f"{url}/{found['id']}/trees/3").status_code == 404


@pytest.mark.parametrize(
    ("value", "name", "part"),
    [
        (b"{", "", "not JSON"),
        (b"\x80\x04]", "a.pkl", "never read here"),
        ({"top_log_probs": [[-1, -0.5]], "top_token_ids": [[1, 2]], "budget": 3}, "", "row 0, column 1"),
        (b"[" * 100_000, "", "brackets"),
    ],
)
def test_what_is_refused_is_one_sentence(url: str, value: Any, name: str, part: str) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    answer = httpx.post(url, params={"name": name}, content=data)
    assert answer.status_code == 422
    assert part in answer.json()["message"]


def test_an_inspection_makes_room_for_others(url: str) -> None:
    first = give(url, WORKED)["id"]
    for budget in range(4):
        give(url, {**WORKED, "budget": budget})
    answer = httpx.get(f"{url}/{first}/trees/0")
    assert answer.status_code == 404
    assert "paste it again" in answer.json()["message"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"uniform_samples": [0.5]}, "2 coins are needed"),
        ({"final_uniform": 1.0}, "coin final is 1.0"),
        ({"probs": [2.0]}, "the probability of node 1 is 2.0"),
        ({"probs": None}, "the walk needs target probabilities"),
        ({"threshold_acc": 3.0}, "threshold_acc is 3.0"),
    ],
)
def test_a_walk_that_cannot_be_is_one_sentence(url: str, change: dict[str, Any], part: str) -> None:
    found = give(url, {"parents": [-1, 0], "token_ids": [5]})
    asked = {"uniform_samples": [0.5, 0.5], "final_uniform": 0.5, "probs": [0.5], **change}
    answer = httpx.post(f"{url}/{found['id']}/trees/0/walk", json=asked)
    assert answer.status_code == 422
    assert part in answer.json()["message"]
