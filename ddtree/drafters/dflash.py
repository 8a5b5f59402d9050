"""The DFlash drafter (arXiv 2602.06036): one non-causal pass over a block of masks gives the distribution of
each of the next positions.

The block is the root's embedding followed by masks, at the root's position and those after it. Its keys and
values stand behind those of the context: the target's tapped hidden states of every committed token before
the root, projected (`fc`), normed and fed to each layer's own key and value projections. Embedding and output
head are the target's. Tensor names and arithmetic are those of the z-lab checkpoints; the state after target
layer i is hidden_states[i + 1], for the last layer after the final norm, as the published code indexes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddtree.drafters.base import Context, Draft, DraftFault
from ddtree.drafters.dflash_config import DFlashConfig
from ddtree.drafters.dflash_slots import DirectPath, SlotHeads
from ddtree.merged import merge_projections
from ddtree.packed import pack_model
from ddtree.settings import DrafterName
from ddtree.topk import RowFault, topk_log_softmax


@dataclass(slots=True)
class DFlashState:
    """Keys and values of the committed context in each layer, block rows behind them for the pass."""

    keys: list[torch.Tensor]  # per layer [Hkv, capacity + block_size, D]
    values: list[torch.Tensor]
    last: torch.Tensor  # [width], the projected features of the last context token; zero without one
    length: int = field(default=0)  # context tokens held


class DFlashLayer(nn.Module):
    def __init__(self, config: DFlashConfig, intermediate_size: int) -> None:
        super().__init__()
        width, heads, key_heads, dim = (
            config.hidden_size,
            config.num_heads,
            config.num_key_heads,
            config.head_dim,
        )
        self.input_layernorm = nn.RMSNorm(width, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(width, config.rms_norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(width, heads * dim, bias=False),
                "k_proj": nn.Linear(width, key_heads * dim, bias=False),
                "v_proj": nn.Linear(width, key_heads * dim, bias=False),
                "o_proj": nn.Linear(heads * dim, width, bias=False),
                "q_norm": nn.RMSNorm(dim, config.rms_norm_eps),
                "k_norm": nn.RMSNorm(dim, config.rms_norm_eps),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, intermediate_size, bias=False),
                "up_proj": nn.Linear(width, intermediate_size, bias=False),
                "down_proj": nn.Linear(intermediate_size, width, bias=False),
            }
        )
        self.head_dim = dim

    def keys_values(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, width] -> keys (normed, rotated) and values, [Hkv, n, D] each."""
        n = x.shape[0]
        keys = self.self_attn["k_proj"](x).view(n, -1, self.head_dim)
        values = self.self_attn["v_proj"](x).view(n, -1, self.head_dim)
        return rotate(self.self_attn["k_norm"](keys).transpose(0, 1), cos, sin), values.transpose(0, 1)

    def forward(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        length: int,
    ) -> torch.Tensor:
        """hidden [B, width]; keys, values: the layer's rows, of which `length` are context; the block's are
        written behind them."""
        block = hidden.shape[0]
        query, new_keys, new_values = self.project(hidden, cos, sin)
        keys.narrow(1, length, block).copy_(new_keys)
        values.narrow(1, length, block).copy_(new_values)
        total = length + block
        return self.attend(hidden, query, keys.narrow(1, 0, total), values.narrow(1, 0, total))

    def project(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [B, width] -> queries [H, B, D], keys and values [Hkv, B, D], of the block."""
        x = self.input_layernorm(hidden)
        keys, values = self.keys_values(x, cos, sin)
        query = self.self_attn["q_proj"](x).view(hidden.shape[0], -1, self.head_dim)
        return rotate(self.self_attn["q_norm"](query).transpose(0, 1), cos, sin), keys, values

    def attend(
        self,
        hidden: torch.Tensor,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The layer's output [B, width]: `query` over keys, values [Hkv, T, D]; mask: additive [1, 1, 1, T],
        one for all queries."""
        block, heads, key_heads = hidden.shape[0], query.shape[0], keys.shape[0]
        grouped = query.reshape(1, key_heads, heads // key_heads * block, self.head_dim)
        attended = F.scaled_dot_product_attention(grouped, keys[None], values[None], attn_mask=mask)
        attended = attended.view(heads, block, self.head_dim).transpose(0, 1).reshape(block, -1)
        hidden = hidden + self.self_attn["o_proj"](attended)
        x = self.post_attention_layernorm(hidden)
        gated = F.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x)
        return hidden + self.mlp["down_proj"](gated)  # type: ignore[no-any-return]


class DFlashModel(nn.Module):
    """The drafter's weights and forward, without the target's embedding and head."""

    def __init__(self, config: DFlashConfig, intermediate_size: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config, intermediate_size) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.direct = DirectPath(width, config.rms_norm_eps) if config.direct_path else None
        self.heads = (
            SlotHeads(config.block_size - 1, width, config.slot_intermediate_size, config.rms_norm_eps)
            if config.slots == "heads"
            else None
        )
        self.config = config
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.frequencies = 1.0 / config.rope_theta**exponents  # no buffer: it stays float32 in any model

    def extend(self, state: DFlashState, features: torch.Tensor) -> None:
        """Appends context: features [n, taps * width] of the tokens that follow the state's."""
        n = features.shape[0]
        context = self.hidden_norm(self.fc(features))
        cos, sin = self._angles(state.length, n, features.dtype)
        for layer, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            assert isinstance(layer, DFlashLayer)
            new_keys, new_values = layer.keys_values(context, cos, sin)
            keys.narrow(1, state.length, n).copy_(new_keys)
            values.narrow(1, state.length, n).copy_(new_values)
        state.last = context[-1]
        state.length += n

    def forward(self, state: DFlashState, embeddings: torch.Tensor) -> torch.Tensor:
        """embeddings [B, width] of root and masks, the root right behind the context -> hidden [B - 1, width]
        of the positions after the root."""
        block = embeddings.shape[0]
        hidden = embeddings if self.heads is None else embeddings[:1]
        if self.direct is not None:
            hidden = hidden + self.direct(state.last, embeddings[0])
        cos, sin = self._angles(state.length, hidden.shape[0], embeddings.dtype)
        for layer, keys, values in zip(self.layers, state.keys, state.values, strict=True):
            hidden = layer(hidden, cos, sin, keys, values, state.length)
        hidden = hidden[1:] if self.heads is None else self.heads(hidden[0], block - 1)
        return self.norm(hidden)  # type: ignore[no-any-return]

    def _angles(self, start: int, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(start, start + count, dtype=torch.float32)[:, None] * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        device = self.norm.weight.device
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [..., n, D] by [n, D] angles; the halves of D turn together."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class DFlashDrafter:
    """Drafts for one target; made by `ddtree.load_drafter`."""

    kind: DrafterName = "dflash"

    def __init__(
        self,
        name: str,
        config: DFlashConfig,
        model: DFlashModel,
        target: Any,
        head: nn.Linear | None = None,
        target_ids: torch.Tensor | None = None,
    ) -> None:
        """head: the checkpoint's own output head [Vd, width], None: the target's. target_ids: int64 [Vd], the
        target's id of each of its tokens, None: the same id. Packs model and head in place on a CPU."""
        self.name = name
        self.config = config
        self.block_size = config.block_size
        self.taps = config.target_layer_ids
        self.max_context: int | None = config.max_context
        self._device, self._dtype = target.device, target.dtype
        self._vocab_size: int = target.vocab_size
        self._target_ids = None if target_ids is None else target_ids.to(target.device)
        self._embed = target.embed
        parts = nn.ModuleDict({"model": model} if head is None else {"model": model, "head": head})
        parts.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
        if target.device.type == "cpu":
            merge_projections(parts)
            pack_model(parts)
        self.model = model
        self._head = target.head if head is None else parts["head"]

    def new_state(self, capacity: int) -> DFlashState:
        config = self.config
        shape = (config.num_layers, config.num_key_heads, capacity + config.block_size, config.head_dim)
        keys = torch.zeros(shape, dtype=self._dtype, device=self._device)
        last = torch.zeros(config.hidden_size, dtype=self._dtype, device=self._device)
        return DFlashState(list(keys), list(torch.zeros_like(keys)), last)

    @torch.inference_mode()
    def draft(
        self, state: DFlashState, context: Context, *, block_size: int, candidates: int, temperature: float
    ) -> Draft:
        """Rows of depths 1..block_size - 1: the `candidates` likeliest tokens of each, the target's ids."""
        logits = self.logits(state, context, block_size)
        try:
            top_log_probs, top_ids = topk_log_softmax(logits, candidates, temperature)
        except RowFault as fault:
            depth = fault.row + 1
            raise DraftFault(
                f"the drafter's logits at depth {depth} cannot be used: {fault}", depth
            ) from fault
        top_ids, logits = self.in_target_ids(top_ids, logits)
        return Draft(top_log_probs, top_ids, None, self.kind, temperature, logits)

    def in_target_ids(self, top_ids: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same candidates, ids [R, K], and logits [R, Vd], in the target's vocabulary."""
        if self._target_ids is None:
            return top_ids, logits
        wide = logits.new_full((logits.shape[0], self._vocab_size), -torch.inf)
        return self._target_ids[top_ids], wide.index_copy_(1, self._target_ids, logits)

    @torch.inference_mode()
    def logits(self, state: DFlashState, context: Context, block_size: int) -> torch.Tensor:
        """[block_size - 1, V] in the model's dtype, row d for depth d + 1; the drafter's own vocabulary."""
        if context.features is None:
            raise ValueError("a DFlash drafter needs the target's tapped hidden states")
        root = len(context.token_ids) - 1
        if state.length > root:
            # one row less than it could keep: extending sets `last` anew
            state.length = max(root - 1, 0)
            state.last = torch.zeros_like(state.last)
        if state.length < root:
            self.model.extend(state, context.features[state.length : root])
        ids = torch.full((block_size,), self.config.mask_token_id, dtype=torch.int64, device=self._device)
        ids[0] = context.token_ids[root]
        return self.head(self.model(state, self.embed(ids)))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The target's embeddings of token_ids [n]: [n, width]."""
        return self._embed(token_ids)  # type: ignore[no-any-return]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, width] -> logits [n, Vd]."""
        return self._head(hidden)  # type: ignore[no-any-return]
