"""The command line: help that reads like documentation, exit codes that mean something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from ddtree.settings import Settings
from ddtree.trace import Trace


def exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as stopped:
        return int(stopped.code or 0)


@pytest.mark.parametrize("command", ["serve", "run", "bench", "train", "check", "report", "schema", "models"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: ddtree {command}")
    assert len(shown.splitlines()) > 4


def test_every_setting_is_a_flag_with_its_description(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("run", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert "--" + name.replace("_", "-") in shown
        assert field.description is not None and field.description in shown.replace("- ", "-"), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "--prompt", "x", "--budget", "-1"],
            '--budget: budget cannot be -1: input should be an integer from 0 to 1024, or "auto"',
        ),
        (
            ["run", "--prompt", "x", "--budget", "2000"],
            '--budget: budget cannot be 2000: input should be an integer from 0 to 1024, or "auto"',
        ),
        (
            ["run", "--prompt", "x", "--temperature", "nan"],
            "--temperature: temperature cannot be nan: input should be a finite number",
        ),
        (
            ["run", "--prompt", "x", "--top-p", "0"],
            "--top-p: top_p cannot be 0.0: input should be greater than 0",
        ),
        (["run", "--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens: max_new_tokens cannot be 0"),
        (["run", "--prompt", "x", "--seed", "-3"], "--seed: seed cannot be -3"),
        (["run", "--prompt", "x", "--threads", "0"], "--threads 0: use 1 or more"),
        (["run", "--prompt-file", "/no/such/file"], "--prompt-file /no/such/file: No such file"),
        (["run", "--prompt", "x", "--trace", "/no/such/folder/t.json"], "its folder does not exist"),
        (["check", "/no/such/file"], "/no/such/file: No such file"),
        (
            ["run", "--prompt", "x", "--budget", "many"],
            "--budget: budget cannot be 'many': input should be an integer",
        ),
        (["run", "--prompt", "x", "--method", "magic"], "invalid choice: 'magic'"),
        (["run"], "one of the arguments --prompt --prompt-file is required"),
        (["fly"], "invalid choice: 'fly'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence_with_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_file_that_is_no_trace_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    file.write_text('{"format": "ddtree-trace", "version": 1, "steps": NaN}')
    assert exit_code("check", str(file)) == 1
    assert "line 1 column" in capsys.readouterr().err


def test_the_schema_is_the_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("schema") == 0
    assert json.loads(capsys.readouterr().out) == Trace.model_json_schema()


@pytest.mark.model
def test_run_prints_the_text_and_writes_a_trace_that_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    arguments = [
        "--prompt",
        "Name three colours.",
        "--max-new-tokens",
        "24",
        "--temperature",
        "1",
        "--seed",
        "3",
    ]
    assert exit_code("run", *arguments, "--trace", str(file)) == 0
    shown = capsys.readouterr()
    trace = Trace.model_validate_json(file.read_text())
    text = "".join(text for step in trace.steps if step.committed for text in step.committed.texts)
    assert shown.out.strip() and shown.out.strip() in text
    assert f"{trace.summary.committed} tokens in {trace.summary.steps} steps" in shown.err
    assert exit_code("check", str(file)) == 0
    assert "everything holds" in capsys.readouterr().out

    changed = json.loads(file.read_text())
    changed["steps"][0]["tree"]["log_weights"][0] -= 1
    file.write_text(json.dumps(changed))
    assert exit_code("check", str(file)) == 1
    assert "steps[0].tree.log_weights[0]" in capsys.readouterr().out


@pytest.mark.model
def test_a_model_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", "--prompt", "x", "--model", "/no/such/model.gguf") == 2
    assert "/no/such/model.gguf" in capsys.readouterr().err


@pytest.mark.model
def test_models_lists_the_default_target_and_its_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("models") == 0
    shown = capsys.readouterr().out
    assert "SmolLM2-135M-Instruct" in shown
    assert "smollm2-135m-dflash" in shown
    assert "kernels: " in shown
