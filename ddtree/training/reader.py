"""A drafter's checkpoint read for many roots at once: what drafting at each of them would give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ddtree.drafters.checkpoint import read_tensors, target_token_ids
from ddtree.drafters.dflash import DFlashModel
from ddtree.drafters.dflash_config import read_config
from ddtree.topk import topk_log_softmax
from ddtree.training.forward import anchor_hidden, slot_rows

CANDIDATES = 32
"""Entries of a candidate row, as many as live decoding takes for budgets up to it."""

_CHUNK = 256
"""Rows whose logits are held at a time."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A drafter with what it needs of its target, for many roots at once."""

    model: DFlashModel
    embedding: torch.Tensor  # [V, width]
    head: torch.Tensor  # [Vd, width], the rows of the tokens it drafts
    token_ids: torch.Tensor | None  # int64 [Vd], the target's ids of them; None: all of the target's

    @torch.inference_mode()
    def rows(
        self, token_ids: torch.Tensor, roots: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidate rows of the blocks behind each of `roots`: log-probabilities float32 and the target's
        token ids, [roots, L, CANDIDATES] both.

        token_ids int64 [n]; roots int64 [r]; features [n, taps * H]."""
        model, device, dtype = self.model, self.head.device, self.head.dtype
        positions = model.config.block_size - 1
        anchors = roots.to(device)
        hidden = anchor_hidden(
            model,
            features.to(device, dtype)[None],
            self.embedding[token_ids.to(device)[anchors]][None],
            self.embedding[model.config.mask_token_id],
            anchors[None],
        )[0]
        if model.heads is not None:
            every = torch.arange(len(roots), device=device).repeat(positions)
            slots = torch.arange(positions, device=device).repeat_interleave(len(roots))
            made = slot_rows(model.heads, hidden[:, 0], every, slots)
            hidden = made.view(positions, len(roots), -1).transpose(0, 1)
        hidden = model.norm(hidden).flatten(0, 1)
        parts = [topk_log_softmax(part @ self.head.T, CANDIDATES) for part in torch.split(hidden, _CHUNK)]
        log_probs, ids = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
        if self.token_ids is not None:
            ids = self.token_ids[ids]
        shape = (len(roots), positions, -1)
        return log_probs.view(shape), ids.view(shape)


def read_drafter(folder: Path, target: Any) -> Reader:
    """target: the model as transformers loads it, whose dtype and device are taken."""
    config, tensors = read_config(folder), read_tensors(folder)
    head = target.get_output_embeddings().weight.detach()
    offsets, own_head = tensors.pop("d2t", None), tensors.pop("lm_head.weight", None)
    token_ids = None if offsets is None else target_token_ids(offsets, head.shape[0])
    if own_head is not None:
        head = own_head.to(head)
    elif token_ids is not None:
        head = head[token_ids.to(head.device)]
    model = DFlashModel(config, tensors["layers.0.mlp.gate_proj.weight"].shape[0])
    model.load_state_dict(tensors)
    return Reader(
        model.to(head.device, head.dtype).requires_grad_(False),
        target.get_input_embeddings().weight.detach(),
        head,
        token_ids,
    )
