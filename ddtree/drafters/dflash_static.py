"""A DFlash drafter's part of a static step: where its context ends is known on the device alone.

The arithmetic is `ddtree.drafters.dflash`'s over the same rows; here every shape is fixed, the context's rows
are written where a tensor says, and attention sees the whole buffer through a mask.
"""

from __future__ import annotations

import torch

from ddtree.drafters.dflash import DFlashDrafter, DFlashLayer


class StaticDFlash:
    """The drafter with the context rows of one run, preallocated."""

    def __init__(self, drafter: DFlashDrafter, capacity: int) -> None:
        """capacity: most rows of the target's cache, the uncommitted ones included."""
        self.drafter = drafter
        self.rows = drafter.new_state(capacity)
        self.last = self.rows.last  # [width], the same memory as long as the run's state lives
        device = self.last.device
        self._of_rows = torch.arange(self.rows.keys[0].shape[1], device=device)
        self._frequencies = drafter.model.frequencies.to(device)
        masks = [drafter.config.mask_token_id] * (drafter.block_size - 1)
        self._masks = torch.tensor(masks, dtype=torch.int64, device=device)

    @property
    def length(self) -> int:
        """Context tokens held, as far as the host knows."""
        return self.rows.length

    @length.setter
    def length(self, length: int) -> None:
        self.rows.length = length

    def clear(self) -> None:
        self.rows.length = 0
        for buffer in (*self.rows.keys, *self.rows.values, self.last):
            buffer.zero_()

    def catch_up(self, features: torch.Tensor, root: int) -> None:
        """Takes the tokens before `root` into the context; features: the target's tapped states of all. For
        the time between two runs of static steps: the host knows the lengths, and may wait."""
        if self.rows.length < root:
            self.drafter.model.extend(self.rows, features[self.rows.length : root])
            self.last.copy_(self.rows.last)
            self.rows.last = self.last

    def draft(self, root: torch.Tensor, length: torch.Tensor, depth: int) -> torch.Tensor:
        """Logits [depth, Vd] of the positions after the root; root, length (context tokens) int64 [1]."""
        model = self.drafter.model
        embeddings = self.drafter.embed(torch.cat((root, self._masks[:depth])))
        hidden = embeddings if model.heads is None else embeddings[:1]
        if model.direct is not None:
            hidden = hidden + model.direct(self.last, embeddings[0])
        count = hidden.shape[0]
        slots = length + self._of_rows[:count]
        cos, sin = self._angles(slots, hidden.dtype)
        hidden_rows = self._of_rows >= length + count
        mask = torch.zeros(hidden_rows.shape, dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill_(hidden_rows, torch.finfo(hidden.dtype).min)[None, None, None]
        for layer, keys, values in zip(model.layers, self.rows.keys, self.rows.values, strict=True):
            assert isinstance(layer, DFlashLayer)
            query, new_keys, new_values = layer.project(hidden, cos, sin)
            keys.index_copy_(1, slots, new_keys)
            values.index_copy_(1, slots, new_values)
            hidden = layer.attend(hidden, query, keys, values, mask)
        hidden = hidden[1:] if model.heads is None else model.heads(hidden[0], depth)
        return self.drafter.head(model.norm(hidden))

    def extend(self, features: torch.Tensor, slots: torch.Tensor, accepted: torch.Tensor) -> None:
        """Appends committed tokens to the context: tapped states [m, taps * H] of the rows of a path, which
        go to rows `slots` int64 [m]. The first accepted + 1 are a path (accepted int64 [1]); what the others
        leave is overwritten before it is seen."""
        model = self.drafter.model
        context = model.hidden_norm(model.fc(features))
        cos, sin = self._angles(slots, features.dtype)
        for layer, keys, values in zip(model.layers, self.rows.keys, self.rows.values, strict=True):
            assert isinstance(layer, DFlashLayer)
            new_keys, new_values = layer.keys_values(context, cos, sin)
            keys.index_copy_(1, slots, new_keys)
            values.index_copy_(1, slots, new_values)
        self.last.copy_(context.index_select(0, accepted)[0])

    def _angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)
