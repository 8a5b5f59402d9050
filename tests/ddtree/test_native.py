"""The native pass: transformers' values, and rows that depend on nothing but the tokens that they see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from tiny_models import BASE, FAMILIES, NARROW, VOCAB, TinyTokenizer, ours, twins

from ddtree import _kernels, native
from ddtree.gguf import GgufTensor
from ddtree.loading import make_target
from ddtree.support import tree_pass
from ddtree.target import Target

LLAMA_LIKE = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral, window left",
    "mistral, inside the window",
    "qwen2, some layers with a window",
]
DTYPES = [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.skipif(not _kernels.can_run_forward(), reason="needs AVX2 and FMA")


@pytest.fixture(params=["avx2", "avx512"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    best = _kernels.instruction_set()
    if not _kernels.use_instruction_set(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _kernels.use_instruction_set(best)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def scored(target: Target, prefix: list[int], tree: list[int], parents: list[int]) -> tuple[Any, Any, Any]:
    """Logits of a tree's rows, and the keys and tapped states they leave. tree[0] is the root."""
    cache = target.new_cache(len(prefix) + len(tree), taps=(1, 3))
    for _ in target.prefill(cache, prefix, chunk=7):
        pass
    paths: list[list[int]] = []
    for row, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    visibility = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    for row, path in enumerate(paths):
        visibility[row, path] = True
    positions = torch.tensor([len(prefix) + len(path) - 1 for path in paths])
    logits = target.verify(cache, torch.tensor(tree), positions, visibility)
    keys = cache.layers.layers[2].keys[0, :, len(prefix) :]
    assert cache.features is not None
    return logits, keys.clone(), cache.features[len(prefix) :].clone()


TREE = [5, 9, 3, 77, 9, 120, 4, 9, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70]
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 5]


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_llama_like_families_run_native(family: str, instruction_set: str) -> None:
    target, reference = twins(*FAMILIES[family])
    assert target.native is not None
    prefix = [(7 * i + 3) % VOCAB for i in range(37)]
    logits, _, taps = scored(target, prefix, TREE, PARENTS)
    for row in (0, 7, 17, 18):
        path = [row]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        with torch.inference_mode():
            ids = torch.tensor([prefix + [TREE[node] for node in path]])
            expected = reference(ids, output_hidden_states=True)
        torch.testing.assert_close(logits[row], expected.logits[0, -1], rtol=2e-4, atol=2e-4)
        states = torch.cat([expected.hidden_states[tap + 1][0, -1] for tap in (1, 3)])
        torch.testing.assert_close(taps[row], states, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral, window left"])
def test_a_node_is_scored_to_the_bit_as_its_path_decoded_alone(
    family: str, dtype: torch.dtype, instruction_set: str
) -> None:
    """Every node of a tree against one-row passes over its committed path, over prefixes that end anywhere in
    a block of keys."""
    target, _ = twins(*FAMILIES[family], dtype=dtype)
    target.native = target.native or native._build(target, None)
    for length in (1, 15, 16, 30):
        prefix = [(5 * i + 2) % VOCAB for i in range(length)]
        logits, keys, taps = scored(target, prefix, TREE, PARENTS)
        for row in (0, 2, 7, 17):
            path = [row]
            while PARENTS[path[0]] >= 0:
                path.insert(0, PARENTS[path[0]])
            before = prefix + [TREE[node] for node in path[:-1]]
            alone = scored(target, before, [TREE[row]], [-1])
            assert torch.equal(logits[row], alone[0][0])
            assert torch.equal(keys[:, row], alone[1][:, 0])
            assert torch.equal(taps[row], alone[2][0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_workers_change_nothing(dtype: torch.dtype, two_threads: None) -> None:
    target, _ = twins(*FAMILIES["qwen3"], dtype=dtype)
    target.native = target.native or native._build(target, None)
    prefix = list(range(40))
    results = {}
    for threads in (2, 1, 3, 5, 2):
        torch.set_num_threads(threads)
        results[threads] = scored(target, prefix, TREE, PARENTS)
    for threads in (1, 3, 5):
        for mine, theirs in zip(results[2], results[threads], strict=True):
            assert torch.equal(mine, theirs)


def test_alone_torchs_threads_work_on_the_pass(two_threads: None) -> None:
    target, _ = twins(*FAMILIES["llama"])
    assert target.native is not None
    with target.native.alone(), target.native.alone():
        assert torch.get_num_threads() == 1
        assert target.native._workers == 2
        scored(target, [1, 2], TREE, PARENTS)
    assert torch.get_num_threads() == 2
    assert target.native._workers is None


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_rows(rows: int, dtype: torch.dtype, instruction_set: str) -> None:
    """A chain of any length gives what its tokens give one by one."""
    target, _ = twins(*FAMILIES["llama"], dtype=dtype)
    target.native = target.native or native._build(target, None)
    tokens = [(11 * i + 1) % VOCAB for i in range(rows)]
    together, _, _ = scored(target, [8, 9], tokens, list(range(-1, rows - 1)))
    for row in {0, rows // 2, rows - 1}:
        alone, _, _ = scored(target, [8, 9, *tokens[:row]], [tokens[row]], [-1])
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize("sizes", [(64, 96, 32), (96, 160, 48), (32, 64, 16), (64, 64, 80)])
def test_sizes_that_fill_no_block(sizes: tuple[int, int, int], instruction_set: str) -> None:
    width, gated, dim = sizes
    options = {**NARROW, "hidden_size": width, "intermediate_size": gated, "head_dim": dim}
    target, reference = twins("qwen3", options)
    assert target.native is not None
    ids = torch.arange(1, 24)
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0, -1]
    logits, _, _ = scored(target, ids[:-1].tolist(), [int(ids[-1])], [-1])
    torch.testing.assert_close(logits[0], expected, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.startswith(("gemma2", "gpt", "cohere", "deepseek"))]
)
def test_others_keep_their_own_forward(family: str) -> None:
    target, _ = twins(*FAMILIES[family])
    assert target.native is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        {"hidden_act": "gelu"},
        {"head_dim": 24},
        {"intermediate_size": 100},
    ],
)
def test_what_the_kernels_do_not_compute_stays_with_transformers(changes: dict[str, Any]) -> None:
    target, _ = twins("llama", {**BASE, **changes})
    assert target.native is None


def test_biases_are_added() -> None:
    target, reference = twins("llama", {**BASE, "attention_bias": True, "mlp_bias": True})
    assert target.native is not None
    with torch.inference_mode():
        expected = reference(torch.tensor([[3, 5, 8]])).logits[0, -1]
    logits, _, _ = scored(target, [3, 5], [8], [-1])
    torch.testing.assert_close(logits[0], expected, rtol=2e-4, atol=2e-4)


def test_the_head_alone(instruction_set: str) -> None:
    target, reference = twins("llama", BASE)
    states = torch.randn(19, BASE["hidden_size"], generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        torch.testing.assert_close(target.head(states), reference.lm_head(states), rtol=1e-4, atol=1e-5)


def test_a_pass_with_other_values_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _, reference = twins("llama", BASE)
    right = native._angles
    monkeypatch.setattr(native, "_angles", lambda *a: tuple(table * 1.01 for table in right(*a)))
    target = make_target(ours("llama", BASE, reference), TinyTokenizer(), "llama")
    assert target.native is None


def test_nan_weights_give_nan_logits() -> None:
    target, _ = twins("llama", BASE)
    assert target.native is not None
    target.model.model.embed_tokens.weight.data[9] = torch.nan
    logits, _, _ = scored(target, [1, 2], [5, 9], [-1, 0])
    assert logits[0].isfinite().all()
    assert logits[1].isnan().all()


QUANTISED = [("Q4_0", 2), ("Q4_1", 3), ("Q8_0", 8)]


@pytest.mark.skipif(not _kernels.has_amx(), reason="4-bit products need AMX")
@pytest.mark.parametrize(("name", "kind"), QUANTISED)
def test_gguf_blocks_give_the_bits_of_their_bfloat16_weights(name: str, kind: int) -> None:
    """Each layer read as the file holds it against the same layer dequantised and rounded to bfloat16."""
    target, _ = twins("llama", {**BASE, "tie_word_embeddings": False}, dtype=torch.bfloat16)
    blocks = {}
    with torch.no_grad():
        for parameter, weight in [*target.model.named_parameters()]:
            if not parameter.endswith("_proj.weight") and parameter != "lm_head.weight":
                continue
            kind_type = gguf.GGMLQuantizationType(kind)
            rows = quantize(weight.float().numpy(), kind_type)
            assert rows.dtype == np.uint8
            blocks[parameter] = GgufTensor(kind, torch.from_numpy(rows))
            weight.copy_(torch.from_numpy(dequantize(rows, kind_type)))
    passes = [native._build(target, None), native._build(target, blocks)]
    assert passes[1].weight_bytes < 0.6 * passes[0].weight_bytes
    for count in (3, len(TREE)):
        results = []
        for one in passes:
            target.native = one
            results.append(scored(target, list(range(20)), TREE[:count], PARENTS[:count]))
        for plain, packed in zip(*results, strict=True):
            assert torch.equal(plain, packed)
    long = [(3 * i) % VOCAB for i in range(67)]
    chains = []
    for one in passes:
        target.native = one
        chains.append(scored(target, [1], long, list(range(-1, 66)))[0])
    assert torch.equal(*chains)


def test_a_tree_pass_is_that_of_the_modules_within_rounding() -> None:
    """In bfloat16 the native pass keeps the residual stream in float32: it is nearer to float32's logits."""
    in_float32, reference = twins("llama", BASE)
    _, exact = tree_pass(in_float32)
    target = make_target(ours("llama", BASE, reference.to(torch.bfloat16)), TinyTokenizer(), "llama")
    mine = target.native or native._build(target, None)
    distances = []
    for one in (mine, None):
        target.native = one
        distances.append((tree_pass(target)[1] - exact).norm().item())
    assert distances[0] < distances[1]
