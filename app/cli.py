"""The command line: `ddtree serve`, `run`, `bench`, `train`, `check`, `report`, `schema`, `models`.

Exit codes: app/exits.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

import ddtree
from app.bench.flags import add_bench_parser
from app.errors import explain
from app.exits import DONE, FAILED, INTERRUPTED, MISUSED
from app.followers import alone, following
from app.report_command import add_report_parser, write_report
from app.training import add_train_parser, train
from ddtree.settings import DrafterName, Method, Settings


class UsageError(Exception):
    """A command that cannot be carried out as given; the message is the whole of what is printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except UsageError as error:
        print(f"ddtree: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        print("ddtree: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ddtree",
        description="Tree speculative decoding, watched live. A small drafter proposes, DDTree makes the "
        "best tree of it, the target scores the whole tree in one pass, and a sampler commits one path.",
        epilog="Exit codes: 0 done, 1 the work failed, 2 the command could not be carried out as given.",
    )
    parser.add_argument("--version", action="version", version=f"ddtree {ddtree.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _serve_parser(commands)
    _run_parser(commands)
    bench = add_bench_parser(commands)
    _engine_flags(bench)
    bench.set_defaults(command=alone("bench", _bench))
    add_train_parser(commands).set_defaults(command=alone("train", _train))
    check = commands.add_parser(
        "check",
        help="re-derive every decision of a trace",
        description="Rebuild every tree from its candidate rows, every array from its tree, every path from "
        "coins and probabilities, and every counter from the steps; name each place that does not hold. Exit "
        "code 1 if there is one.",
    )
    check.add_argument(
        "file",
        metavar="FILE",
        help="a trace or a list of them, as exported by the page or by `ddtree run --trace`",
    )
    check.set_defaults(command=_check)
    add_report_parser(commands).set_defaults(command=_report)
    schema = commands.add_parser(
        "schema", help="print the JSON Schema of a trace", description="Print the JSON Schema of a trace."
    )
    schema.set_defaults(command=_schema)
    models = commands.add_parser(
        "models",
        help="list the models that can be loaded by name",
        description="List the targets and drafters that can be loaded by name, whether each is here, what "
        "the kernels were built for, and what this machine can run.",
    )
    models.set_defaults(command=_models)
    return parser


def _spread_flag(group: Any) -> None:
    group.add_argument(
        "--device-map",
        metavar="auto",
        help="auto: spread the target's layers over this machine's devices (needs accelerate)",
    )


def _engine_flags(parser: argparse.ArgumentParser) -> Any:
    group = parser.add_argument_group("models and machine")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="target: a Hugging Face id or folder, or a GGUF file (default: SmolLM2-135M)",
    )
    group.add_argument(
        "--draft-model",
        metavar="NAME",
        help="DFlash checkpoint folder or id; `none`: load none (default: the target's)",
    )
    group.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    group.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32 (default: %(default)s)")
    group.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: all cores; `serve` leaves one free)"
    )
    return group


def _serve_parser(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve the page",
        description="Serve the page and its API. Bound to loopback unless --host says otherwise; elsewhere a "
        "token is needed, which is printed once as part of the URL.",
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="0: any free one (default: %(default)s)")
    serve.add_argument(
        "--data", metavar="DIR", help="where runs are kept (default: the user's data directory)"
    )
    _spread_flag(_engine_flags(serve))
    serve.set_defaults(command=following(_serve))


def _run_parser(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="decode one prompt in the terminal",
        description="Decode one prompt and print the text as it comes; figures go to standard error.",
    )
    prompt = run.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument(
        "--prompt-file", metavar="FILE", help="read the prompt from FILE; - for standard input"
    )
    run.add_argument("--trace", metavar="FILE", help="write the run's trace to FILE as JSON")
    run.add_argument("--quiet", action="store_true", help="no progress and figures on standard error")
    _spread_flag(_engine_flags(run))
    group = run.add_argument_group("settings")
    for name, field in Settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        default = "" if field.default is None else f" (default: {field.default})"
        text = f"{field.description}{default}".replace("%", "%%")
        if name == "chat":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(flag, type=_SETTING_TYPES.get(name, str), help=text, **_CHOICES.get(name, {}))
    run.set_defaults(command=following(_run))


def _number_or_word(text: str) -> int | str:
    """What is no integer stays a word, which the settings know or refuse."""
    try:
        return int(text)
    except ValueError:
        return text


_SETTING_TYPES: dict[str, Any] = {
    "budget": _number_or_word,
    **dict.fromkeys(("block_size", "top_k", "seed", "max_new_tokens"), int),
    **dict.fromkeys(("temperature", "top_p", "threshold_single", "threshold_acc"), float),
}
_CHOICES: dict[str, dict[str, Any]] = {
    "method": {"choices": get_args(Method)},
    "drafter": {"choices": get_args(DrafterName)},
}


# ---- commands ----


def _serve(arguments: argparse.Namespace) -> int:
    from app.main import serve
    from app.settings import ServerSettings

    given = {
        name: value for name, value in vars(arguments).items() if name != "command" and value is not None
    }
    try:
        return serve(ServerSettings(**given))
    except ValidationError as error:
        raise _bad_value(error) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    prompt = _prompt(arguments)
    if arguments.threads is not None and arguments.threads < 1:
        raise UsageError(f"--threads {arguments.threads}: use 1 or more")
    if arguments.trace and not Path(arguments.trace).absolute().parent.is_dir():
        raise UsageError(f"--trace {arguments.trace}: its folder does not exist; create it first")
    say = _silent if arguments.quiet else _to_stderr
    decoder = _decoder(arguments, settings, say)
    try:
        for step in decoder.decode(prompt):
            if step.error is not None:
                print(f"\nddtree: step {step.index}: {step.error.message}", file=sys.stderr)
            elif step.committed is not None:
                stops = decoder.target.stop_token_ids
                texts = zip(step.committed.token_ids, step.committed.texts, strict=True)
                sys.stdout.write("".join(text for token_id, text in texts if token_id not in stops))
                sys.stdout.flush()
    except ValueError as error:
        raise UsageError(str(error)) from None
    finally:
        if arguments.trace and decoder.started:
            Path(arguments.trace).write_text(decoder.trace().to_json(), encoding="utf-8")
    print()
    summary = decoder.trace().summary
    assert summary is not None
    rate = "" if summary.tokens_per_second is None else f", {summary.tokens_per_second:.1f} tokens/s"
    tau = "" if summary.tau is None else f", tau {summary.tau:.2f}"
    lossy = ", lossy" if summary.lossy else ""
    say(f"{summary.committed} tokens in {summary.steps} steps{tau}{rate}{lossy}; {summary.finish_reason}")
    return FAILED if summary.finish_reason == "error" else DONE


def _bench(arguments: argparse.Namespace) -> int:
    from app.bench.command import run

    try:
        return run(arguments, _to_stderr)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from None


def _train(arguments: argparse.Namespace) -> int:
    try:
        return train(arguments)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from None


def _silent(text: str) -> None:
    del text


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settings(arguments: argparse.Namespace) -> Settings:
    given = {name: getattr(arguments, name) for name in Settings.model_fields}
    try:
        return Settings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise _bad_value(error) from None


def _bad_value(error: ValidationError) -> UsageError:
    name, sentence = explain(error)
    return UsageError(f"--{name.replace('_', '-')}: {sentence}")


def _prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt is not None:
        return str(arguments.prompt)
    try:
        data = (
            sys.stdin.buffer.read()
            if arguments.prompt_file == "-"
            else Path(arguments.prompt_file).read_bytes()
        )
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"--prompt-file {arguments.prompt_file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt-file {arguments.prompt_file}: not UTF-8 at byte {error.start}") from None


def _decoder(arguments: argparse.Namespace, settings: Settings, say: Any) -> Any:
    """Target, drafter and decoder as the flags ask; `say` gets a line for each thing worth knowing."""
    from ddtree.decoder import TreeDecoder
    from ddtree.engine import load_engine

    try:
        engine = load_engine(
            model=arguments.model,
            draft_model=arguments.draft_model,
            device=arguments.device,
            device_map=arguments.device_map,
            dtype=arguments.dtype,
            threads=arguments.threads,
            progress=lambda text, share: say(text if share is None else f"{text} {share:.0%}"),
        )
        for note in engine.target.notes:
            say(f"note: {note}")
        if engine.not_used:
            say(f"drafter not used: {engine.not_used}")
        return TreeDecoder(engine.target, engine.drafters, settings, engine.not_used)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from None


def _check(arguments: argparse.Namespace) -> int:
    from ddtree.trace_file import TraceError, load_traces

    try:
        data = sys.stdin.buffer.read() if arguments.file == "-" else Path(arguments.file).read_bytes()
    except OSError as error:
        raise UsageError(f"{arguments.file}: {error.strerror}") from None
    try:
        traces = load_traces(data)
    except TraceError as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return FAILED
    from ddtree.replay import check_trace

    several = len(traces) > 1
    findings = [
        f"[{i}].{finding}" if several else str(finding)
        for i, trace in enumerate(traces)
        for finding in check_trace(trace)
    ]
    for finding in findings:
        print(f"{arguments.file}: {finding}")
    steps = [step for trace in traces for step in trace.steps]
    nodes = sum(len(step.tree.token_ids) for step in steps if step.tree is not None)
    of_runs = f" of {len(traces)} runs" if several else ""
    if findings:
        print(f"{len(findings)} places do not hold in {len(steps)} steps{of_runs}", file=sys.stderr)
        return FAILED
    print(f"{arguments.file}: {len(steps)} steps{of_runs}, {nodes} nodes: everything holds")
    return DONE


def _report(arguments: argparse.Namespace) -> int:
    try:
        return write_report(arguments)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _schema(_: argparse.Namespace) -> int:
    from ddtree.trace import Trace

    print(json.dumps(Trace.model_json_schema(), indent=2))
    return DONE


def _models(_: argparse.Namespace) -> int:
    from ddtree.launch import describe_kernels
    from ddtree.models import list_models

    for line in [*map(str, list_models()), *describe_kernels()]:
        print(line)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
