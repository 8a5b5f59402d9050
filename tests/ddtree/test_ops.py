"""The torch operators: checked by torch's opcheck, traced whole by torch.compile, shaped by FakeTensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import on_every_device
from test_padded import candidate_rows
from torch._subclasses.fake_tensor import FakeTensorMode

from ddtree import ops

NAMES = ["build_trees", "verify_trees", "target_only"]


def arguments(name: str, device: str) -> tuple[Any, ...]:
    """Sound arguments of an operator: two trees of seven nodes, a vocabulary of 40."""
    generator = torch.Generator().manual_seed(2)
    log_probs, token_ids = candidate_rows(2, 3, 5, seed=2)
    if name == "build_trees":
        return log_probs.to(device), token_ids.to(device), None, 6
    fields, retrieve, _, _ = ops.build_trees(log_probs, token_ids, None, 6)
    arrays = [fields[:, 0], retrieve[:, 0], retrieve[:, 1], retrieve[:, 2]]
    candidates, index, next_token, next_sibling = (array.contiguous().to(device) for array in arrays)
    coins, finals = (
        torch.rand(2, 7, generator=generator).to(device),
        torch.rand(2, generator=generator).to(device),
    )
    logits = torch.randn(2, 7, 40, generator=generator).to(device)
    if name == "verify_trees":
        return logits, candidates, next_token, next_sibling, coins, finals, 0.9, 8, 0.9, 1.0, 1.0
    outputs = [torch.full(shape, -9, dtype=torch.int32, device=device) for shape in ((14,), (2, 5), (2,))]
    status = torch.zeros(2, dtype=torch.int32, device=device)
    trees = (candidates, index, next_token, next_sibling)
    return *outputs, *trees, coins, finals, logits.softmax(-1), status, 1.0, 1.0


@on_every_device
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, device: str) -> None:
    checks = torch.library.opcheck(getattr(ops, name), arguments(name, device))
    assert set(checks.values()) == {"SUCCESS"}


@on_every_device
@pytest.mark.parametrize("name", NAMES)
def test_compiled_whole_it_gives_the_same(name: str, device: str) -> None:
    operator = getattr(ops, name)

    def call(*given: Any) -> Any:
        outputs = operator(*given)
        return given[:3] if outputs is None else outputs

    expected = call(*arguments(name, device))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found = compiled(*arguments(name, device))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("name", ["build_trees", "verify_trees"])
def test_fake_tensors_have_the_real_shapes(name: str) -> None:
    real = getattr(ops, name)(*arguments(name, "cpu"))
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments_outside(name)]
        fake = getattr(ops, name)(*given)
    for one, other in zip(fake, real, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def arguments_outside(name: str) -> tuple[Any, ...]:
    """The arguments as real tensors, made outside of a fake mode that may be on."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        return arguments(name, "cpu")
