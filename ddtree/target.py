"""The target: a transformers causal LM that scores a whole tree in one pass and keeps one path of it.

A row of a pass is a node: its token, its position (root position + depth) and what it sees (the committed
tokens, its ancestors, itself). `verify` appends the rows behind the committed ones, `commit` keeps the
accepted path. Prefill and the autoregressive step are the same pass over a chain.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ddtree.attention import static_tree_mask, tree_mask
from ddtree.autobudget import StepTimes
from ddtree.kvcache import LayerShape, TargetCache

if TYPE_CHECKING:
    from ddtree.native import NativePass
    from ddtree.parallel import Leader

Masks = torch.Tensor | dict[str, torch.Tensor] | None


class Target:
    """A loaded model with its tokenizer; made by `ddtree.load_target`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        layer_shapes: Sequence[LayerShape | None],
        vocab_size: int,
        max_context: int,
        layer_windows: Sequence[int],
        stop_token_ids: tuple[int, ...],
        notes: list[str],
        spread: str | None = None,
    ) -> None:
        """layer_windows: each layer's sliding window in tokens, 0 where it sees everything. spread: how the
        model lies on several devices or processes, None: on one (ddtree/parallel.py)."""
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.stop_token_ids = stop_token_ids
        self.notes = notes if spread is None else [*notes, spread]
        self.spread = spread
        self.leader: Leader | None = None
        config = model.config.get_text_config()
        self.num_layers: int = config.num_hidden_layers
        self.hidden_size: int = config.hidden_size
        self._layer_shapes = list(layer_shapes)
        self.layer_windows = tuple(layer_windows)
        self._windows = sorted(set(layer_windows))
        self.native: NativePass | None = None
        self.idle: list[Any] = []
        """Pipelines of ended runs, with their graphs, for the next ones (ddtree/static_pipeline.py)."""
        self.times = StepTimes()
        self._keeps_last_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self, capacity: int, taps: Sequence[int] = ()) -> TargetCache:
        """Rows for a run of at most `capacity` tokens, the uncommitted ones of a pass included. taps: layers
        whose output is kept; tap i is hidden_states[i + 1], for the last layer after the final norm."""
        bad = [tap for tap in taps if not 0 <= tap < self.num_layers]
        if bad:
            raise ValueError(
                f"layers {bad} cannot be tapped: {self.name} has layers 0 to {self.num_layers - 1}"
            )
        cache = TargetCache(self._layer_shapes, capacity, taps, self.hidden_size, self.dtype, self.device)
        if self.leader is not None:
            self.leader.opened(cache)
        return cache

    def prefill(self, cache: TargetCache, token_ids: Sequence[int], chunk: int = 256) -> Iterator[int]:
        """Commits `token_ids`, `chunk` at a time; yields how many are done. Stop iterating to stop."""
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        for start in range(0, len(token_ids), chunk):
            part = ids[start : start + chunk]
            n = part.shape[0]
            positions = torch.arange(cache.length, cache.length + n, device=self.device)
            causal = torch.ones(n, n, dtype=torch.bool, device=self.device).tril_()
            self.run_pass(cache, part, positions, causal, last_logits_only=True)
            self.commit(cache, range(n))
            yield start + n

    def verify(
        self, cache: TargetCache, token_ids: torch.Tensor, positions: torch.Tensor, visibility: torch.Tensor
    ) -> torch.Tensor:
        """Scores n rows: token_ids [n] int64, positions [n] int64, visibility [n, n] bool (row i sees row j).
        Returns logits [n, V] in the model's dtype. The rows stand behind the committed ones until `commit` or
        the next pass. Raises ValueError when the cache has no room for them."""
        return self.run_pass(cache, token_ids, positions, visibility, last_logits_only=False)

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """The output head: final, normed states [n, H] -> logits [n, V], both in the model's dtype."""
        if self.native is not None:
            return self.native.head(states)
        if self.leader is not None:
            self.leader.scores(states)
        return self.model.get_output_embeddings()(states).to(states.device)  # type: ignore[no-any-return]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The input embeddings of token_ids [n] int64: [n, H] in the model's dtype."""
        if self.leader is not None:
            self.leader.embeds(token_ids)
        return self.model.get_input_embeddings()(token_ids)  # type: ignore[no-any-return]

    def commit(self, cache: TargetCache, rows: Sequence[int]) -> None:
        """Keeps these rows of the last pass (0 = root, first), in this order; the others are forgotten."""
        if self.leader is not None:
            self.leader.keeps(cache, rows)
        cache.keep(rows)

    @torch.inference_mode()
    def score(
        self,
        cache: TargetCache,
        length: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        visibility: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`verify` through the model's modules, with shapes that depend on nothing that is computed. The
        committed rows are the first `length` (int64 [1], on the device like all arguments); the cache's own
        length is not read. Returns logits [n, V] and the tapped states [n, taps * H]. Never synchronises."""
        masks = [
            static_tree_mask(visibility, length, cache.capacity, self.dtype, positions, window)
            for window in self._windows_within(cache.capacity)
        ]
        cache.slots = length + torch.arange(token_ids.shape[0], device=self.device)
        try:
            output = self._run(cache, token_ids, positions, _by_layer_type(masks), {})
        finally:
            cache.slots = None
        states = [output.hidden_states[tap + 1][0] for tap in cache.taps]
        return output.logits[0], torch.cat(states, dim=1) if states else output.logits.new_empty(0, 0)

    def _run(
        self,
        cache: TargetCache,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        masks: Masks,
        options: dict[str, Any],
    ) -> Any:
        if cache.taps:
            options["output_hidden_states"] = [tap + 1 for tap in cache.taps]
        return self.model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=masks,
            cache=cache.layers,
            use_cache=True,
            **options,
        )

    @torch.inference_mode()
    def run_pass(
        self,
        cache: TargetCache,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        visibility: torch.Tensor,
        last_logits_only: bool,
    ) -> torch.Tensor:
        """`verify`; last_logits_only: logits [1, V] of the last row where the model can do with that."""
        n = token_ids.shape[0]
        if cache.length + n > cache.capacity:
            raise ValueError(
                f"a pass of {n} rows after {cache.length} tokens exceeds the cache of {cache.capacity}"
            )
        cache.pending = 0
        if self.leader is not None:
            self.leader.passes(cache, token_ids, positions, visibility, last_logits_only=last_logits_only)
        token_ids, positions, visibility = (
            part.to(self.device) for part in (token_ids, positions, visibility)
        )
        if self.native is not None:
            logits = self.native(cache, token_ids, positions, visibility, last_logits_only)
            cache.pending = n
            return logits
        options: dict[str, Any] = {}
        if last_logits_only and self._keeps_last_logits:
            options["logits_to_keep"] = 1
        masks = self._masks(cache.length, positions, visibility)
        output = self._run(cache, token_ids, positions, masks, options)
        if cache.features is not None:
            rows = cache.features.narrow(0, cache.length, n).view(n, len(cache.taps), -1)
            for index, tap in enumerate(cache.taps):
                rows[:, index].copy_(output.hidden_states[tap + 1][0])
        cache.pending = n
        return output.logits[0]  # type: ignore[no-any-return]

    def _masks(self, length: int, positions: torch.Tensor, visibility: torch.Tensor) -> Masks:
        """The pass's mask; where layers differ and the window is left, one for each type of layer."""
        n = positions.shape[0]
        windows = self._windows_within(length + n)
        if n == 1 and not any(windows):
            return None
        return _by_layer_type(
            [tree_mask(visibility, length, self.dtype, positions, window) for window in windows]
        )

    def _windows_within(self, tokens: int) -> list[int]:
        """The layers' different windows, 0 for those that `tokens` tokens do not leave."""
        return list(dict.fromkeys(window if 0 < window < tokens else 0 for window in self._windows))


def _by_layer_type(masks: list[torch.Tensor]) -> Masks:
    if len(masks) == 1:
        return masks[0]
    return {"full_attention": masks[0], "sliding_attention": masks[1]}
