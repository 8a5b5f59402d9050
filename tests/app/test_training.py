"""`ddtree train` as a process: killed it goes on, stopped it leaves a checkpoint, bad flags are named."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app import training
from app.cli import main
from ddtree.training.pipeline import STAGES
from ddtree.training.settings import TrainSettings


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_target import save_target

    return save_target(tmp_path_factory.mktemp("target"))


def command(target: Path, work: Path, *more: str) -> list[str]:
    from tiny_target import FLAGS

    flags = [word for name, value in FLAGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [
        "train",
        "--work",
        str(work),
        "--model",
        str(target),
        "--dtype",
        "float32",
        "--threads",
        "1",
        *flags,
        *more,
    ]


def start(target: Path, work: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app.cli", *command(target, work, *more)], stderr=subprocess.PIPE, text=True
    )


def steps(work: Path) -> list[int]:
    file = work / "train" / "losses.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.is_file() else []


def wait_for_steps(work: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(steps(work)) < count:
        assert time.monotonic() < deadline, f"{len(steps(work))} steps after a minute"
        time.sleep(0.02)


def test_killed_at_any_point_it_loses_one_checkpoint_interval_at_most(target: Path, tmp_path: Path) -> None:
    """Checkpoints as often as it can, three kills: every step of the log is there once, in order, and each
    start goes on at least from what the log held when the last one died."""
    flags = ("--steps", "1000000", "--checkpoint-minutes", "0.0001")
    for count in (20, 60, 100):
        process = start(target, tmp_path, *flags)
        wait_for_steps(tmp_path, count)
        process.kill()
        process.communicate()
    held = len(steps(tmp_path))
    assert main(command(target, tmp_path, "--steps", str(held + 5), "--until", "train")) == 0
    assert steps(tmp_path) == list(range(1, held + 6))


def test_sigterm_stops_at_a_checkpoint(target: Path, tmp_path: Path) -> None:
    process = start(target, tmp_path, "--steps", "1000000", "--checkpoint-minutes", "0.0001")
    wait_for_steps(tmp_path, 5)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert shown.splitlines()[-2:] == [
        "ddtree train: stopping at a checkpoint",
        "ddtree train: stopped; the same command goes on from here",
    ]
    held = len(steps(tmp_path))
    log = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["event"] == "stopped"
    assert main(command(target, tmp_path, "--steps", str(held + 1), "--until", "train")) == 0
    assert len(steps(tmp_path)) == held + 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--minutes", "0"], "--minutes 0.0: use a number above 0"),
        (["--threads", "0"], "--threads 0: use 1 or more"),
        (["--soft", "2"], "soft is 2.0; it must be 0 to 1"),
        (["--texts", "/no/such/file"], "No such file or directory: '/no/such/file'"),
        (["--device", "abacus"], "device 'abacus' is not known"),
    ],
)
def test_what_cannot_be_done_is_named(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(command(target, tmp_path, *more)) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("ddtree: ") and message in shown


def test_every_setting_has_a_flag_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for setting in dataclasses.fields(TrainSettings):
        assert "--" + setting.name.replace("_", "-") in shown
    assert training.STAGES == STAGES


def test_taps_are_a_list(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command(target, tmp_path, "--taps", "1;2"))
    assert "'1;2' is no list of layers; write them as 1,8,15" in capsys.readouterr().err
