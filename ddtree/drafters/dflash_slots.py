"""What a drafter trained here may have beyond the z-lab layout; its `dflash_config` says so.

`direct_path`: what EAGLE gives its head (arXiv 2401.15077, section 4.1): the projected features of the last
context token and the root's embedding go straight into every block slot, where the z-lab layout has to fetch
them through attention.

`slots: heads`: the layers run on the root alone, and each drafted position is made of its output by a linear
layer of its own and a gated unit that all share, where the z-lab layout runs a block of masks through the
layers. An anchor costs an eighth of the layers' work then, and all tokens of a text can be anchors at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class DirectPath(nn.Module):
    """Last context token and root to what is added to every slot."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.root_norm = nn.RMSNorm(width, eps)
        self.proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, context: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        """context, root [..., width]: projected features, the root's embedding -> [..., width]."""
        return self.proj(torch.cat((context, self.root_norm(root)), dim=-1))  # type: ignore[no-any-return]


class SlotHeads(nn.Module):
    """The root's hidden state to those of the positions after it."""

    def __init__(self, slots: int, width: int, intermediate_size: int, eps: float) -> None:
        super().__init__()
        self.proj = nn.Linear(width, slots * width, bias=False)  # every slot's layer, one behind the other
        self.norm = nn.RMSNorm(width, eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, intermediate_size, bias=False),
                "up_proj": nn.Linear(width, intermediate_size, bias=False),
                "down_proj": nn.Linear(intermediate_size, width, bias=False),
            }
        )

    def forward(self, hidden: torch.Tensor, slots: int) -> torch.Tensor:
        """hidden [width] -> [slots, width]: the first `slots` positions."""
        moved = self.proj(hidden[None]).view(-1, hidden.shape[0])
        hidden = hidden + moved[:slots]
        x = self.norm(hidden)
        gated = F.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x)
        return hidden + self.mlp["down_proj"](gated)  # type: ignore[no-any-return]
