"""RMSNorm and its gradient against torch's."""

from __future__ import annotations

import torch

from ddtree.training.norm import rms_norm


def test_values_and_gradients_are_torchs() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 7, 32, generator=generator, requires_grad=True)
    module = torch.nn.RMSNorm(32, 1e-5)
    torch.nn.init.normal_(module.weight, generator=generator)
    outer = torch.randn(5, 7, 32, generator=generator)
    ours, theirs = rms_norm(module, x), module(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for got, expected in zip(
        torch.autograd.grad(ours, (x, module.weight), outer),
        torch.autograd.grad(theirs, (x, module.weight), outer),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_half_precision_stays_half() -> None:
    module = torch.nn.RMSNorm(64, 1e-5).bfloat16()
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    made = rms_norm(module, x)
    assert made.dtype is torch.bfloat16
    torch.testing.assert_close(made.float(), module.float()(x.float()), rtol=2e-2, atol=2e-2)
