"""Commands in the processes of torchrun: the first one works, the others follow, a wrong start is told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

import ddtree.models
import ddtree.parallel
from app.cli import main
from app.exits import DONE, FAILED, MISUSED

RANK_1 = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def set_environment(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("command", [["run", "--prompt", "a"], ["serve"]])
@pytest.mark.parametrize(
    ("environment", "flags", "message"),
    [
        ({"WORLD_SIZE": "2"}, [], "ddtree: WORLD_SIZE is 2, but RANK, LOCAL_RANK"),
        ({"WORLD_SIZE": "x"}, [], "ddtree: WORLD_SIZE is 'x'"),
        (RANK_1, ["--device-map", "auto"], "leave one out"),
        ({}, ["--device-map", "all"], "device map 'all' is not known"),
        ({}, ["--device-map", "auto", "--device", "cpu"], "leave out device 'cpu'"),
    ],
)
def test_a_wrong_start_is_one_sentence(
    command: list[str],
    environment: dict[str, str],
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_environment(monkeypatch, **environment)
    assert main([*command, *flags]) == MISUSED
    said = capsys.readouterr()
    assert said.out == "" and message in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("command", [["bench", "--out", "x"], ["train", "--work", "x"]])
def test_bench_and_train_run_in_one_process(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch, **RANK_1)
    assert main(command) == MISUSED
    assert f"`ddtree {command[0]}` runs in one process" in capsys.readouterr().err


def test_a_later_rank_loads_its_part_and_follows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch, **RANK_1)
    seen: list[Any] = []

    def load_target(*arguments: Any) -> str:
        seen.append(arguments)
        return "the target"

    monkeypatch.setattr(ddtree.models, "load_target", load_target)
    monkeypatch.setattr(ddtree.parallel, "follow", seen.append)
    assert main(["serve", "--model", "m", "--dtype", "float32"]) == DONE
    assert seen == [("m", "auto", "float32"), "the target"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # rank 0 says when it ends
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_rank_that_fails_says_which_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch, **RANK_1)

    def fails(*_: Any) -> None:
        raise ValueError("there is no such model")

    def is_left(_: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(ddtree.models, "load_target", fails)
    assert main(["run", "--prompt", "a"]) == MISUSED
    assert capsys.readouterr().err == "ddtree: rank 1: there is no such model\n"
    monkeypatch.setattr(ddtree.models, "load_target", lambda *_: None)
    monkeypatch.setattr(ddtree.parallel, "follow", is_left)
    assert main(["run", "--prompt", "a"]) == FAILED
    assert capsys.readouterr().err == "ddtree: rank 1: rank 0 is gone without a word\n"
