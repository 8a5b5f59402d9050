"""torchrun's environment and the device map: what cannot be honoured is said in one sentence."""

from __future__ import annotations

import importlib.util

import pytest

from ddtree.ranks import Placement, Ranks, place, read_ranks

TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_without_torchrun_there_is_one_process() -> None:
    assert read_ranks({}) is None
    assert read_ranks({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}) is None
    assert read_ranks({"WORLD_SIZE": "1"}) is None


def test_what_torchrun_says() -> None:
    ranks = read_ranks(TORCHRUN)
    assert ranks == Ranks(rank=1, size=4, local_size=2)
    assert not ranks.leads and Ranks(0, 2, 2).leads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; torchrun sets it to a number of at least 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "4"}, "RANK is 4, but WORLD_SIZE is 4: ranks are 0 to 3"),
        ({"RANK": "", "MASTER_PORT": ""}, "WORLD_SIZE is 4, but RANK, MASTER_PORT not set: start the"),
    ],
)
def test_an_environment_that_is_wrong_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        read_ranks({**TORCHRUN, **changes})
    assert "torchrun" in str(raised.value) or "ranks are" in str(raised.value)
    assert "\n" not in str(raised.value)


TWO = Ranks(0, 2, 2)


@pytest.mark.parametrize(
    ("device", "device_map", "ranks", "message"),
    [
        ("auto", "balanced", None, "device map 'balanced' is not known; the only one is auto"),
        ("auto", "auto", TWO, "two ways to spread a target: leave one out"),
        ("cuda:1", "auto", None, "device map auto chooses the devices itself: leave out device 'cuda:1'"),
        ("cuda:1", None, TWO, "'cuda:1' is one device, but torchrun has started 2 processes"),
    ],
)
def test_a_placement_that_contradicts_itself_is_refused(
    device: str, device_map: str | None, ranks: Ranks | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        place(device, device_map, ranks)


def test_device_map_needs_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place("auto", "auto", None) == Placement("auto", "auto", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"needs accelerate: pip install 'ddtree-scope\[multi\]'"):
        place("auto", "auto", None)


def test_what_can_be_honoured() -> None:
    assert place("cpu", None, None) == Placement("cpu", None, None)
    assert place("auto", None, TWO) == Placement("auto", None, TWO)
