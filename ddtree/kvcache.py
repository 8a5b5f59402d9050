"""The target's cache: preallocated rows for keys, values and tapped hidden states.

A pass appends its rows behind the committed ones; committing moves the accepted rows to the front. The
layers are views of a few stacked buffers, so that a commit is one copy for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps of a token. Keys and values differ in size under latent attention."""

    heads: int
    key_dim: int
    value_dim: int
    device: torch.device | None = None  # None: where the run is


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """transformers' cache layer over rows of a buffer: `update` writes behind the committed rows and returns
    views of all rows so far; in a static pass it writes at the owner's slots and returns the whole buffer.
    Keys [1, heads, capacity, key_dim], values [1, heads, capacity, value_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    is_sliding = False
    is_croppable = False

    def __init__(self, owner: TargetCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner = owner
        self.keys = keys
        self.values = values
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.owner.slots is not None:
            self.keys.index_copy_(2, self.owner.slots, key_states)
            self.values.index_copy_(2, self.owner.slots, value_states)
            return self.keys, self.values
        start = self.owner.length
        rows = key_states.shape[2]
        self.keys.narrow(2, start, rows).copy_(key_states)
        self.values.narrow(2, start, rows).copy_(value_states)
        return self.keys.narrow(2, 0, start + rows), self.values.narrow(2, 0, start + rows)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: the rows are preallocated."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return self.owner.capacity


class RowCache(Cache):
    """transformers' cache over RowLayers, told by its type from a user's own caches."""


class TargetCache:
    """Rows of one run: `capacity` of them, of which the first `length` are committed."""

    def __init__(
        self,
        shapes: Sequence[LayerShape | None],
        capacity: int,
        taps: Sequence[int],
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """shapes: one per layer index, None where a layer keeps nothing (it reads another layer's rows)."""
        self.capacity = capacity
        self.length = 0
        self.pending = 0
        self.slots: torch.Tensor | None = None
        """Of a static pass: int64 [n] on the device, the rows that keys and values are written to."""
        self.taps = tuple(taps)
        self.features: torch.Tensor | None = None
        if self.taps:
            self.features = torch.zeros(capacity, len(self.taps) * hidden_size, dtype=dtype, device=device)
        self._buffers: list[torch.Tensor] = []
        self._addresses: tuple[list[int], list[int]] | None = None
        self.layers = RowCache(layers=self._make_layers(shapes, dtype, device))

    def _make_layers(
        self, shapes: Sequence[LayerShape | None], dtype: torch.dtype, device: torch.device
    ) -> list[Any]:
        """Stacks all tensors of one (heads, dim) on a device into a buffer [count, heads, capacity, dim]."""
        wanted: dict[tuple[torch.device, int, int], int] = {}
        for shape in shapes:
            for dim in () if shape is None else (shape.key_dim, shape.value_dim):
                assert shape is not None
                key = (shape.device or device, shape.heads, dim)
                wanted[key] = wanted.get(key, 0) + 1
        stacks = {
            key: torch.zeros(count, key[1], self.capacity, key[2], dtype=dtype, device=key[0])
            for key, count in wanted.items()
        }
        self._buffers = list(stacks.values())
        free = {key: iter(stack) for key, stack in stacks.items()}
        return [
            DummyLayer()  # type: ignore[no-untyped-call]
            if shape is None
            else RowLayer(
                self,
                next(free[shape.device or device, shape.heads, shape.key_dim])[None],
                next(free[shape.device or device, shape.heads, shape.value_dim])[None],
            )
            for shape in shapes
        ]

    def pointers(self) -> tuple[list[int], list[int], list[int], int]:
        """For the native pass, by layer: addresses of keys and values, and of the tapped states of the first
        row that is not committed (0: not tapped); the last number is the entries from a row's states to the
        next row's."""
        if self._addresses is None:
            layers: list[Any] = self.layers.layers
            self._addresses = (
                [layer.keys.data_ptr() for layer in layers],
                [layer.values.data_ptr() for layer in layers],
            )
        taps = [0] * len(self.layers.layers)
        stride = 0
        if self.features is not None:
            stride = self.features.shape[1]
            size = self.features.element_size()
            for index, tap in enumerate(self.taps):
                place = self.length * stride + index * (stride // len(self.taps))
                taps[tap] = self.features.data_ptr() + place * size
        return *self._addresses, taps, stride

    def move(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copies rows `source` to rows `destination`, int64 [m] on the device, in keys and values of all
        layers; all are read before any is written. What is committed is known on the device alone."""
        for buffer in self._buffers:
            buffer.index_copy_(2, destination, buffer.index_select(2, source))

    def clear(self) -> None:
        """Empty, as if new."""
        self.length = self.pending = 0
        for buffer in (*self._buffers, *(() if self.features is None else (self.features,))):
            buffer.zero_()

    def keep(self, rows: Sequence[int]) -> None:
        """Commits these rows of the pending ones, in this order: they move to `length` onwards in keys,
        values and features alike. Raises ValueError for a row that is not pending or stands twice."""
        if any(not 0 <= row < self.pending for row in rows) or len(set(rows)) != len(rows):
            raise ValueError(f"cannot commit rows {list(rows)}: {self.pending} rows are pending")
        start, count = self.length, len(rows)
        if list(rows) != list(range(count)):
            moved = torch.tensor(rows) + start
            for buffer in self._buffers:
                there = moved.to(buffer.device)
                buffer.narrow(2, start, count).copy_(buffer.index_select(2, there))
            if self.features is not None:
                there = moved.to(self.features.device)
                self.features.narrow(0, start, count).copy_(self.features.index_select(0, there))
        self.length += count
        self.pending = 0
