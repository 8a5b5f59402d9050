"""A target cut over two processes, and one whose layers are placed by accelerate: the text of one process."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from fakes import word_tokenizer
from safetensors.torch import save_file
from tiny_drafters import random_model
from tiny_models import BASE, ours, twins

import ddtree
from ddtree import parallel
from ddtree.drafters.dflash_config import parse_config
from ddtree.errors import UnsupportedModel
from ddtree.kvcache import LayerShape, TargetCache
from ddtree.loading import make_target
from ddtree.models import load_drafter, load_target
from ddtree.packed import PackedLinear
from ddtree.ranks import Placement, Ranks
from ddtree.replay import check_trace
from ddtree.target import Target
from ddtree.trace_file import load_trace

LETTERS = 24
PROMPT = "abcdef"
OPTIONS = {**BASE, "vocab_size": LETTERS}
DRAFTER = {
    "block_size": 6,
    "dflash_config": {"mask_token_id": 4, "target_layer_ids": [0, 3]},
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 5000.0,
    "max_position_embeddings": 256,
    "vocab_size": LETTERS,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A random llama and a random drafter for it, on disk."""
    folder = tmp_path_factory.mktemp("models")
    reference = twins("llama", OPTIONS)[1]
    reference.config.eos_token_id = reference.generation_config.eos_token_id = None
    reference.save_pretrained(folder / "target")
    word_tokenizer(LETTERS).save_pretrained(folder / "target")
    (folder / "drafter").mkdir()
    (folder / "drafter" / "config.json").write_text(json.dumps(DRAFTER))
    save_file(random_model(parse_config(DRAFTER)).state_dict(), folder / "drafter" / "model.safetensors")
    return str(folder / "target"), str(folder / "drafter")


def text(target: Target, drafter: Any) -> list[int]:
    settings = ddtree.Settings(max_new_tokens=20, drafter="dflash", chat=False)
    steps = ddtree.TreeDecoder(target, drafter, settings).decode(PROMPT)
    return [token for step in steps if step.committed for token in step.committed.token_ids]


@pytest.fixture(scope="module")
def expected(folders: tuple[str, str]) -> list[int]:
    target = load_target(folders[0], dtype="float32")
    return text(target, load_drafter(folders[1], target=target))


# ---- several processes ----


def test_two_processes_decode_the_text_of_one(
    folders: tuple[str, str], expected: list[int], tmp_path: Path
) -> None:
    """As torchrun starts them: rank 0 prints and writes the trace, rank 1 follows in silence and ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--dtype", "float32", "--drafter", "dflash", "--max-new-tokens", "20", "--no-chat", "--quiet"]
    trace_file = tmp_path / "run.json"
    command = [sys.executable, "-m", "app.cli", "run", "--model", folders[0], "--draft-model", folders[1]]
    command += ["--prompt", PROMPT, "--trace", str(trace_file), *flags]
    ranks = []
    for rank in range(2):
        environ = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        root = Path(__file__).parents[2]
        ranks.append(
            subprocess.Popen(
                command, env=environ, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    try:
        said = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[1] == ("", "")
    trace = load_trace(trace_file.read_bytes())
    assert [token for step in trace.steps if step.committed for token in step.committed.token_ids] == expected
    assert said[0][0].strip() == "".join(chr(ord("a") + token) for token in expected)
    assert trace.target.notes == ["each layer is cut over 2 processes"]
    assert any(step.draft for step in trace.steps)
    assert check_trace(trace) == []


class Wire:
    """torch.distributed between a leader and a follower in one process: what is said is kept and heard
    later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        self.hearing = False
        self.ended = 0
        for name, stand_in in (
            ("new_group", lambda **_: None),
            ("is_initialized", lambda: True),
            ("destroy_process_group", self._end),
            ("broadcast_object_list", self._broadcast),
        ):
            monkeypatch.setattr(parallel.dist, name, stand_in)
        monkeypatch.setattr(parallel.atexit, "register", lambda _: None)

    def _broadcast(self, objects: list[Any], **_: Any) -> None:
        if self.hearing:
            objects[0] = self.said.pop(0)
        else:
            self.said.append(objects[0])

    def _end(self) -> None:
        self.ended += 1


def test_a_follower_keeps_the_caches_that_the_leader_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    reference = twins("llama", OPTIONS)[1]
    leading, following = (
        make_target(ours("llama", OPTIONS, reference), word_tokenizer(LETTERS), "it", spread="it is spread")
        for _ in range(2)
    )
    opened: list[TargetCache] = []
    new_cache = following.new_cache

    def kept(*arguments: Any) -> TargetCache:
        opened.append(new_cache(*arguments))
        return opened[-1]

    monkeypatch.setattr(following, "new_cache", kept)
    leader = leading.leader = parallel.Leader()
    decoder = ddtree.TreeDecoder(leading, None, ddtree.Settings(max_new_tokens=12, chat=False))
    runs = [decoder.start(prompt) for prompt in ("abcabcabcabc", "fedfed")]
    for run in runs:
        decoder._run = run
        list(decoder.prefill(run))
    for _ in range(4):
        for run in runs:
            decoder.step(run)
    caches = [run.cache for run in runs]
    states = torch.randn(2, 64)
    leading.head(states)
    leading.embed(torch.tensor([3, 4]))
    leader.dismiss()
    wire.hearing = True
    parallel.follow(following)
    assert wire.said == [] and wire.ended == 2
    assert [cache.length for cache in opened] == [cache.length for cache in caches]
    for mine, theirs in zip(caches, opened, strict=True):
        for layer, other in zip(mine.layers.layers, theirs.layers.layers, strict=True):
            rows = slice(0, mine.length)
            torch.testing.assert_close(layer.keys[:, :, rows], other.keys[:, :, rows])
            torch.testing.assert_close(layer.values[:, :, rows], other.values[:, :, rows])


def test_a_cache_that_is_gone_is_told_with_the_next_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    leader = parallel.Leader()
    cache = TargetCache([LayerShape(1, 2, 2)], 4, (), 8, torch.float32, torch.device("cpu"))
    leader.opened(cache)
    del cache
    gc.collect()
    leader.embeds(torch.tensor([1]))
    assert [message[:2] for message in wire.said] == [([], "open"), ([0], "embed")]


CPU = Placement(ranks=Ranks(0, 2, 2))


@pytest.mark.parametrize(
    ("config", "placement", "message"),
    [
        ({"base_model_tp_plan": None}, CPU, "no tensor parallel plan for it .llama.: start one process"),
        ({"num_key_value_heads": 3}, CPU, "num_key_value_heads 3, which 2 processes cannot share"),
        ({"num_attention_heads": 5}, CPU, "num_attention_heads 5, which 2 processes cannot share"),
        ({}, Placement("cuda", ranks=CPU.ranks), "'cuda' was asked for, but torchrun's processes run on the"),
    ],
)
def test_what_processes_cannot_share_is_said_in_a_sentence(
    config: dict[str, Any], placement: Placement, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text_config = SimpleNamespace(
        **{
            "model_type": "llama",
            "base_model_tp_plan": {"layers.*": "colwise"},
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **config,
        }
    )
    given = SimpleNamespace(get_text_config=lambda: text_config)
    with pytest.raises(ValueError, match=message) as raised:
        parallel.loading_options("it", given, placement)
    assert "\n" not in str(raised.value)


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    given = SimpleNamespace(get_text_config=lambda: SimpleNamespace())
    with pytest.raises(ValueError, match="started 2 processes here, but torch sees 1 CUDA devices"):
        parallel.loading_options("it", given, CPU)


# ---- several devices ----


def test_device_map_auto_on_one_device_changes_nothing(folders: tuple[str, str], expected: list[int]) -> None:
    target = load_target(folders[0], dtype="float32", device_map="auto")
    assert target.spread is None and target.leader is None
    assert text(target, load_drafter(folders[1], target=target)) == expected


def test_a_model_with_accelerates_hooks_decodes_the_same_text(
    folders: tuple[str, str], expected: list[int]
) -> None:
    """All places are the CPU here; what moves tensors between devices is in place all the same."""
    reference = twins("llama", OPTIONS)[1]
    model = ours("llama", OPTIONS, reference)
    places = {name: "cpu" for name, _ in model.named_children() if name != "model"}
    places |= {f"model.{name}": "cpu" for name, _ in model.model.named_children() if name != "layers"}
    places |= {f"model.layers.{i}": "cpu" for i in range(4)}
    model = dispatch_model(model, places, force_hooks=True)
    target = make_target(model, word_tokenizer(LETTERS), "it", spread="its layers lie about")
    assert target.native is None
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert target.notes[-1] == "its layers lie about"
    target.stop_token_ids = ()
    assert text(target, load_drafter(folders[1], target=target)) == expected


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (None, None),
        ({"": "cpu"}, None),
        ({"a": 0, "b": 0}, None),
        ({"a": 1, "b": 0, "c": "cpu"}, "its layers lie on 3 devices: 0, 1, cpu"),
    ],
)
def test_how_a_model_is_spread_is_said_in_words(places: Any, said: str | None) -> None:
    model = SimpleNamespace(hf_device_map=places)
    assert parallel.spread_of("it", model, Placement(device_map="auto")) == said


def test_a_model_that_would_lie_on_disk_is_refused() -> None:
    model = SimpleNamespace(hf_device_map={"a": 0, "b": "disk", "c": "disk"})
    with pytest.raises(UnsupportedModel, match="2 of its 3 parts would stay on disk; take a smaller model"):
        parallel.spread_of("it", model, Placement(device_map="auto"))


def test_a_layers_rows_lie_on_its_device() -> None:
    meta, cpu = torch.device("meta"), torch.device("cpu")
    shapes = [LayerShape(2, 8, 8, cpu), None, LayerShape(2, 8, 4, meta), LayerShape(2, 8, 8)]
    cache = TargetCache(shapes, 10, (0,), 16, torch.float32, cpu)
    layers = cache.layers.layers
    assert [layers[i].keys.device for i in (0, 2, 3)] == [cpu, meta, cpu]
    assert [tuple(layers[2].keys.shape), tuple(layers[2].values.shape)] == [(1, 2, 10, 8), (1, 2, 10, 4)]
    layers[0].keys[:] = torch.arange(10.0)[:, None]
    cache.pending = 4
    cache.keep([0, 2, 3])
    assert layers[0].keys[0, 0, :3, 0].tolist() == [0, 2, 3] and cache.length == 3
