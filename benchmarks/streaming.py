"""What the service costs a run: the wall time of the same run, arm by arm in turn, on the default model.

library  the decoder alone, in a loop
nobody   the service: stored step by step, watched by nobody
viewers  the service, watched by three sockets in processes of their own, one of which never reads

Prints the ratio nobody / library (trace as JSON, storage, scheduling) and viewers / nobody (streaming), each
the geometric mean of paired ratios with its 95 % interval; what passes between two steps; and the share of a
step, with what passes until the next, that is neither drafter nor target forward. A run's time is taken on
the thread that decodes, from the first chunk of the prompt to the end of the last step, with all that lies
between; every arm decodes the same tokens.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import commit, machine, ratio_interval
from websockets.sync.client import connect

from app.engine import Decoder, LoadedEngine, Progress, default_threads, load_engine
from app.main import Server
from app.settings import ServerSettings
from ddtree.settings import Settings

PROMPT = "Explain to a child how rain is made, and why the sky is blue."
ARMS = ("library", "nobody", "viewers")


class TimedDecoder:
    """A decoder that notes when its run began, how long its steps took, and when it ended."""

    def __init__(self, decoder: Decoder, done: list[dict[str, float]]) -> None:
        self._decoder = decoder
        self._done = done
        self._inside = self._prefill = self._forward = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def start(self, prompt: str) -> Any:
        run = self._decoder.start(prompt)
        self._began = time.perf_counter()
        return run

    def prefill(self, run: Any) -> Iterator[float]:
        chunks = self._decoder.prefill(run)
        while True:
            began = time.perf_counter()
            share = next(chunks, None)
            self._prefill += time.perf_counter() - began
            if share is None:
                return
            yield share

    def step(self, run: Any) -> Any:
        began = time.perf_counter()
        step = self._decoder.step(run)
        ended = time.perf_counter()
        self._inside += ended - began
        self._forward += (step.timing_ms.draft + step.timing_ms.verify) / 1e3
        if run.finish_reason is not None:
            wall = ended - self._began
            inside = self._prefill + self._inside
            stepping = wall - self._prefill
            rest = stepping - self._forward
            self._done.append(
                {"wall": wall, "inside": inside, "steps": run.steps, "stepping": stepping, "rest": rest}
            )
        return step


class TimedEngine:
    """The default engine, loaded once, used by the service and by the bare library in turn."""

    def __init__(self) -> None:
        self.done: list[dict[str, float]] = []
        self.ready = threading.Event()

    def load(self, settings: ServerSettings, progress: Progress) -> LoadedEngine:
        self._engine = load_engine(settings, progress)
        self.description = self._engine.description
        self.ready.set()
        return self

    def new_decoder(self, settings: Settings) -> Decoder:
        timed: Any = TimedDecoder(self._engine.new_decoder(settings), self.done)
        return timed  # type: ignore[no-any-return]


class Viewers:
    """Processes of their own: two that read all, one that never reads."""

    def __init__(self, url: str) -> None:
        self._url = url
        command = [sys.executable, __file__, "--viewer", url]
        self._readers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        self._deaf: socket.socket | None = None

    def watch(self, run_id: str) -> None:
        for reader in self._readers:
            assert reader.stdin is not None
            reader.stdin.write(run_id + "\n")
            reader.stdin.flush()
        self._deaf = deaf_viewer(self._url, run_id)

    def wait(self) -> list[int]:
        """Steps that each reader saw, told as missed ones included."""
        assert self._deaf is not None
        self._deaf.close()
        return [int(reader.stdout.readline()) for reader in self._readers if reader.stdout is not None]

    def close(self) -> None:
        for reader in self._readers:
            assert reader.stdin is not None
            reader.stdin.close()
            reader.wait()


def deaf_viewer(url: str, run_id: str) -> socket.socket:
    """A websocket that asks to watch and never reads."""
    host, port = url.removeprefix("http://").split(":")
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((host, int(port)))
    deaf.sendall(
        f"GET /ws/decode HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert deaf.recv(12) == b"HTTP/1.1 101"
    payload = json.dumps({"type": "watch", "run_id": run_id}).encode()
    deaf.sendall(bytes([0x81, 0x80 | len(payload), 0, 0, 0, 0]) + payload)
    return deaf


def be_viewer(url: str) -> None:
    """Watches each run whose id comes on standard input; says how many of its steps it learned of."""
    for line in sys.stdin:
        with connect(url.replace("http", "ws", 1) + "/ws/decode", max_size=None, compression=None) as viewer:
            viewer.send(json.dumps({"type": "watch", "run_id": line.strip()}))
            seen = 0
            while (frame := json.loads(viewer.recv()))["type"] != "finished":
                if frame["type"] == "step":
                    seen += 1
                elif frame["type"] == "lagging":
                    seen += frame["to"] - frame["from"] + 1
        print(seen, flush=True)


def in_library(engine: TimedEngine, settings: Settings) -> None:
    decoder = engine.new_decoder(settings)
    run = decoder.start(PROMPT)
    for _ in decoder.prefill(run):
        pass
    while run.finish_reason is None:
        decoder.step(run)


def in_service(server: Server, engine: TimedEngine, settings: Settings, viewers: Viewers | None) -> None:
    """Start a run, leave the socket, and wait for its end without asking."""
    before = len(engine.done)
    url = server.url.rstrip("/")
    with connect(url.replace("http", "ws", 1) + "/ws/decode", max_size=None, compression=None) as starter:
        content = {"prompt": PROMPT, "settings": settings.model_dump(mode="json")}
        starter.send(json.dumps({"type": "start", **content}))
        while (frame := json.loads(starter.recv()))["type"] != "started":
            assert frame["type"] != "error", frame
    if viewers is not None:
        viewers.watch(frame["run_id"])
    while len(engine.done) == before:
        time.sleep(0.05)
    if viewers is not None:
        seen = viewers.wait()
        assert seen == [int(engine.done[-1]["steps"])] * 2, seen


def measure(arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The runs of each arm, in the order of the pairs."""
    engine = TimedEngine()
    settings = Settings(max_new_tokens=arguments.tokens, budget=arguments.budget, seed=1)
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = Server(ServerSettings(port=0, data=Path(folder), threads=arguments.threads), engine.load)
        thread = threading.Thread(target=server.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        assert engine.ready.wait(120)
        viewers = Viewers(server.url.rstrip("/"))
        stack.callback(viewers.close)
        in_library(engine, settings)
        in_service(server, engine, settings, viewers)
        for pair in range(arguments.pairs):
            order = ARMS if pair % 2 == 0 else tuple(reversed(ARMS))
            for arm in order:
                if arm == "library":
                    in_library(engine, settings)
                else:
                    in_service(server, engine, settings, viewers if arm == "viewers" else None)
                measured[arm].append(engine.done[-1])
            walls = ", ".join(f"{arm} {measured[arm][-1]['wall']:.3f}" for arm in ARMS)
            print(f"  {pair + 1}/{arguments.pairs}: {walls} s", flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--viewer", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=24, help="runs of each arm (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of a run (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=15, help="default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=default_threads(), help="default: %(default)s, as served"
    )
    arguments = parser.parse_args()
    if arguments.viewer:
        be_viewer(arguments.viewer)
        return
    import torch

    torch.set_num_threads(arguments.threads)  # of this thread, for the library; the worker sets its own
    print(f"streaming: {machine()}, commit {commit()}")
    measured = measure(arguments)
    for over, under in (("nobody", "library"), ("viewers", "nobody")):
        pairs = zip(measured[over], measured[under], strict=True)
        ratios = [run["wall"] / other["wall"] for run, other in pairs]
        mean, low, high = ratio_interval(ratios)
        print(f"{over} / {under}: {mean:.4f}, 95 % interval {low:.4f} to {high:.4f} ({len(ratios)} pairs)")
    for arm in ARMS:
        between = sum(run["wall"] - run["inside"] for run in measured[arm])
        steps = sum(run["steps"] for run in measured[arm])
        wall = sum(run["wall"] for run in measured[arm])
        each = f"{wall / steps * 1e3:.2f} ms a step"
        rest = sum(run["rest"] for run in measured[arm]) / sum(run["stepping"] for run in measured[arm])
        print(
            f"{arm}: {each}, of which {between / steps * 1e6:.0f} us between steps; "
            f"{rest:.1%} of a step is neither drafter nor target forward"
        )


if __name__ == "__main__":
    main()
