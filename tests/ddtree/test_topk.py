"""Top-k with log-sum-exp against torch, in every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree import _kernels
from ddtree.topk import RowFault, topk_log_softmax

INF = float("inf")
SETS = ("portable", "avx2", "avx512")


@pytest.fixture(params=SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    best = _kernels.instruction_set()
    if not _kernels.use_instruction_set(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _kernels.use_instruction_set(best)


def reference(logits: torch.Tensor, k: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, equal values by lower id: a stable sort."""
    scaled = logits.double() / temperature
    ids = torch.sort(logits.double(), dim=-1, descending=True, stable=True).indices[
        :, : min(k, logits.shape[1])
    ]
    return torch.gather(scaled, 1, ids) - torch.logsumexp(scaled, dim=-1, keepdim=True), ids


def assert_equals_reference(logits: torch.Tensor, k: int, temperature: float = 1.0) -> None:
    top_log_probs, top_token_ids = topk_log_softmax(logits, k, temperature)
    expected, ids = reference(logits, k, temperature)
    assert top_log_probs.dtype == torch.float32
    assert top_token_ids.tolist() == ids.tolist()
    torch.testing.assert_close(top_log_probs.double(), expected, rtol=1e-6, atol=1e-6)
    assert bool((top_log_probs <= 0).all())
    assert bool((top_log_probs[:, :-1] >= top_log_probs[:, 1:]).all())


def random_logits(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 4


@pytest.mark.parametrize("size", [1, 2, 15, 31, 32, 33, 100, 1023, 1024, 1025, 2048, 5000, 49152])
@pytest.mark.parametrize("k", [1, 8, 64])
def test_equals_torch(instruction_set: str, size: int, k: int) -> None:
    assert_equals_reference(random_logits(3, size, seed=size), k)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [7, 1000, 4096, 49152])
def test_half_precision_has_many_ties(instruction_set: str, dtype: torch.dtype, size: int) -> None:
    assert_equals_reference(random_logits(4, size).to(dtype), 64)


@pytest.mark.parametrize("temperature", [1e-5, 0.3, 0.7, 1.5, 5.0])
def test_temperature(instruction_set: str, temperature: float) -> None:
    assert_equals_reference(random_logits(3, 3000), 64, temperature)


def test_subnormal_halves(instruction_set: str) -> None:
    logits = torch.tensor([[6e-8, -6e-8, 3e-5, 0.0, -3e-5, 6e-5, 65504.0, -65504.0]], dtype=torch.float16)
    assert_equals_reference(logits, 8)


@pytest.mark.parametrize("k", [1, 3, 500, 1023, 1024, 1025, 3000, 10_000])
def test_k_up_to_the_vocabulary(instruction_set: str, k: int) -> None:
    logits = random_logits(2, 3000)
    assert topk_log_softmax(logits, k)[0].shape == (2, min(k, 3000))
    assert_equals_reference(logits, k)


def test_rising_and_falling_rows(instruction_set: str) -> None:
    rising = torch.linspace(-20, 5, 20_000)
    assert_equals_reference(torch.stack([rising, rising.flip(0)]), 64)


@pytest.mark.parametrize("size", [40, 5000])
def test_equal_values_come_by_lower_id_also_at_the_cut(instruction_set: str, size: int) -> None:
    logits = torch.zeros(1, size)
    logits[0, [3, size - 1]] = 1.0
    _, ids = topk_log_softmax(logits, 10)
    assert ids.tolist() == [[3, size - 1, 0, 1, 2, 4, 5, 6, 7, 8]]
    signed = torch.full((1, size), -0.0)
    signed[0, 1::2] = 0.0  # equal to -0.0
    _, ids = topk_log_softmax(signed, 6)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_few_distinct_values(data: st.DataObject) -> None:
    size, k = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 90))
    values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -INF, -90.0, 60.0])
    row = data.draw(st.lists(values, min_size=size, max_size=size))
    if max(row) == -INF:
        with pytest.raises(RowFault):
            topk_log_softmax(torch.tensor([row]), k)
    else:
        top_log_probs, ids = topk_log_softmax(torch.tensor([row]), k)
        expected, expected_ids = reference(torch.tensor([row]), k, 1.0)
        assert ids.tolist() == expected_ids.tolist()
        torch.testing.assert_close(top_log_probs.double(), expected, rtol=1e-6, atol=1e-6)


def test_minus_infinity_fills_the_end(instruction_set: str) -> None:
    logits = torch.full((1, 3000), -INF)
    logits[0, [2000, 17]] = torch.tensor([1.0, 1.0])
    top_log_probs, ids = topk_log_softmax(logits, 5)
    assert ids.tolist() == [[17, 2000, 0, 1, 2]]
    assert top_log_probs[0, 2:].tolist() == [-INF] * 3
    torch.testing.assert_close(top_log_probs[0, :2], torch.log(torch.tensor([0.5, 0.5])))


def test_large_and_small_logits(instruction_set: str) -> None:
    for offset in (1e30, -1e30, 3e38, -3e38, 500.0):
        logits = torch.tensor([[offset, offset, -3.4e38, offset]])
        top_log_probs, ids = topk_log_softmax(logits, 4)
        assert ids.tolist() == [[0, 1, 3, 2]]
        torch.testing.assert_close(top_log_probs[0, :3], torch.log(torch.full((3,), 1 / 3)))


@pytest.mark.parametrize("size", [5, 1024, 3000])
@pytest.mark.parametrize("bad", [float("nan"), INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_faulty_entry_names_its_row(
    instruction_set: str, size: int, bad: float, dtype: torch.dtype
) -> None:
    for place in {0, size // 2, size - 1}:
        logits = random_logits(4, size).to(dtype)
        logits[2, place] = bad
        with pytest.raises(RowFault, match="row 2 of the logits has NaN") as raised:
            topk_log_softmax(logits, 8)
        assert raised.value.row == 2


def test_nan_among_minus_infinities(instruction_set: str) -> None:
    logits = torch.full((2, 2500), -INF)
    logits[:, 2400] = 0.0
    logits[1, 3] = float("nan")
    with pytest.raises(RowFault) as raised:
        topk_log_softmax(logits, 4)
    assert raised.value.row == 1


def test_a_row_without_mass(instruction_set: str) -> None:
    logits = random_logits(3, 2000)
    logits[1] = -INF
    with pytest.raises(RowFault) as raised:
        topk_log_softmax(logits, 4)
    assert raised.value.row == 1


def test_every_instruction_set_gives_the_same_bits() -> None:
    best = _kernels.instruction_set()
    logits = random_logits(4, 10_007)
    try:
        results = [topk_log_softmax(logits, 64, 0.8) for name in SETS if _kernels.use_instruction_set(name)]
    finally:
        _kernels.use_instruction_set(best)
    assert all(torch.equal(values, results[0][0]) for values, _ in results)
    assert all(torch.equal(ids, results[0][1]) for _, ids in results)


def test_strided_logits() -> None:
    logits = random_logits(6, 300)
    for view in (logits[::2], logits.t(), logits[:, 5:170:3]):
        assert_equals_reference(view, 7)
    values, ids = topk_log_softmax(torch.empty(0, 50), 4)
    assert (values.shape, ids.shape) == ((0, 4), (0, 4))


def test_faults_of_the_call() -> None:
    logits = torch.zeros(2, 5)
    with pytest.raises(ValueError, match="k is 0"):
        topk_log_softmax(logits, 0)
    for temperature in (0.0, 1e-6, -1.0, INF, float("nan")):
        with pytest.raises(ValueError, match="temperature is"):
            topk_log_softmax(logits, 1, temperature)
    with pytest.raises(ValueError, match=r"not torch.float64 \[2, 5\]"):
        topk_log_softmax(logits.double(), 1)
    with pytest.raises(ValueError, match=r"not torch.float32 \[10\]"):
        topk_log_softmax(logits.flatten(), 1)
    with pytest.raises(RowFault):
        topk_log_softmax(torch.empty(2, 0), 3)
    assert not _kernels.use_instruction_set("sse9")
