"""The devices that the kernels' tests run on: the CPU, and CUDA where this build and this machine have it."""

from __future__ import annotations

import pytest
import torch

from ddtree import _kernels

HAS_CUDA = _kernels.cuda is not None and torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA kernels in this build, or no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
on_every_device = pytest.mark.parametrize("device", DEVICES)
