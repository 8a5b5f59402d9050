"""The whole pass of a llama-like decoder (llama, mistral, qwen2, qwen3) as one call into the kernels.

A pass of a small model on a CPU is bound by reading its weights and by starting operations; here it is one
operation that reads each weight once. A node of a tree is scored to the last bit as plain decoding along its
path would score it (csrc/cpu/forward.h says why), in every dtype. Used where its values agree with
transformers' own forward on a tree pass; the model's modules stay as they are, for everybody else's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ddtree import _kernels
from ddtree.gguf import Blocks
from ddtree.support import tree_pass

if TYPE_CHECKING:
    from ddtree.kvcache import TargetCache
    from ddtree.target import Target

_FORWARDS = {torch.float32: _kernels.Float32Forward, torch.bfloat16: _kernels.BFloat16Forward}
_SOURCES = {torch.float32: 0, torch.bfloat16: 1}
_KINDS = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_BLOCK = 16
_GROUP = 32
_WIDEST_HEAD = 256

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.15}
"""Largest distance to transformers' logits on a tree pass, relative to theirs: rounding in another order. In
bfloat16 most of it is theirs: they round the residual stream in every layer, which is float32 here."""

_FIXED_ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings that depend on a token's position alone."""


class NativePass:
    """A target's pass in the kernels; made by `native_pass`."""

    def __init__(self, forward: Any, vocab_size: int, dtype: torch.dtype, weight_bytes: int) -> None:
        self._forward = forward
        self._vocab_size = vocab_size
        self._dtype = dtype
        self.weight_bytes = weight_bytes
        self._workers: int | None = None  # None: as many as torch's threads

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within: torch's threads work on this pass alone. What else a step asks of torch is too small for
        more than one, and waits for the others long where another process wants the core."""
        threads = torch.get_num_threads()
        if threads == 1 or self._workers is not None:
            yield
            return
        self._workers = threads
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            self._workers = None

    def __call__(
        self,
        cache: TargetCache,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        visibility: torch.Tensor,
        last_only: bool,
    ) -> torch.Tensor:
        """token_ids, positions int64 [n], visibility bool [n, n] -> logits [n or 1, V]. Writes keys, values
        and tapped states of the rows behind the committed ones."""
        n = token_ids.shape[0]
        logits = torch.empty(1 if last_only else n, self._vocab_size, dtype=self._dtype)
        token_ids, positions, visibility = (t.contiguous() for t in (token_ids, positions, visibility))
        keys, values, taps, stride = cache.pointers()
        self._forward.run(
            n,
            cache.length,
            cache.capacity,
            token_ids.data_ptr(),
            positions.data_ptr(),
            visibility.data_ptr(),
            keys,
            values,
            taps,
            stride,
            logits.data_ptr(),
            last_only,
            self._workers or torch.get_num_threads(),
        )
        return logits

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """The output head over final states [n, H] in the model's dtype -> logits [n, V]."""
        states = states.contiguous()
        logits = torch.empty(states.shape[0], self._vocab_size, dtype=self._dtype)
        workers = self._workers or torch.get_num_threads()
        self._forward.head(states.data_ptr(), states.shape[0], logits.data_ptr(), workers)
        return logits


def native_pass(target: Target, blocks: Blocks | None = None) -> NativePass | None:
    """The pass of a target whose decoder is of the llama kind and whose values agree, or None. The target
    uses it from then on. blocks: its weights as a GGUF file holds them; in bfloat16 they are read as such."""
    if target.device.type != "cpu" or target.dtype not in _FORWARDS or not _kernels.can_run_forward():
        return None
    if not _llama_like(target.model):
        return None
    _, expected = tree_pass(target)
    native = _build(target, blocks)
    target.native = native
    _, got = tree_pass(target)
    spread = (expected - expected.mean(-1, keepdim=True)).norm().clamp_min(1e-6)
    error = ((got - expected).norm() / spread).item()
    if error <= TOLERANCE[target.dtype]:
        return native
    target.native = None
    return None


def _llama_like(model: Any) -> bool:
    """Whether structure and sizes are what the kernels compute."""
    config = model.config
    if type(model).__name__ not in _KINDS or config.hidden_act != "silu":
        return False
    if (config.rope_parameters or {}).get("rope_type", "default") not in _FIXED_ROPES:
        return False
    attention = model.model.layers[0].self_attn
    dim: int = attention.head_dim
    sizes = (config.hidden_size, config.intermediate_size, config.num_attention_heads * dim)
    if dim % _BLOCK or dim > _WIDEST_HEAD or any(size % _GROUP for size in sizes):
        return False
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    expected = 7 * config.num_hidden_layers + 1
    return len(linears) == expected and all(
        type(linear) is nn.Linear
        and type(linear.weight) is nn.Parameter
        and linear.weight.dtype == model.dtype
        for linear in linears
    )


def _build(target: Target, blocks: Blocks | None) -> NativePass:
    model, config = target.model, target.model.config
    packer = _Packer(blocks if target.dtype is torch.bfloat16 and _kernels.has_amx() else None, target.dtype)
    first = model.model.layers[0].self_attn
    forward = _FORWARDS[target.dtype](
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        first.head_dim,
        config.intermediate_size,
        target.vocab_size,
        config.rms_norm_eps,
        first.scaling,
    )
    for index, (layer, window) in enumerate(zip(model.model.layers, target.layer_windows, strict=True)):
        attention, mlp, stem = layer.self_attn, layer.mlp, f"model.layers.{index}."
        forward.add_layer(
            packer.pack(_named(stem + "self_attn.", attention, "q_proj", "k_proj", "v_proj"), torch.cat),
            packer.pack(_named(stem + "self_attn.", attention, "o_proj"), torch.cat),
            packer.pack(_named(stem + "mlp.", mlp, "gate_proj", "up_proj"), _in_turn),
            packer.pack(_named(stem + "mlp.", mlp, "down_proj"), torch.cat),
            _floats(layer.input_layernorm.weight),
            _floats(layer.post_attention_layernorm.weight),
            _floats(attention.q_norm.weight) if hasattr(attention, "q_norm") else [],
            _floats(attention.k_norm.weight) if hasattr(attention, "k_norm") else [],
            window,
        )
    embedding = model.model.embed_tokens.weight
    head_name = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    cosines, sines = _angles(model, target.max_context)
    forward.finish(
        _floats(model.model.norm.weight),
        packer.pack({head_name: model.lm_head}, torch.cat),
        embedding.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        cosines.numel(),
    )
    return NativePass(forward, target.vocab_size, target.dtype, packer.bytes)


def _named(stem: str, module: Any, *names: str) -> dict[str, nn.Linear]:
    return {stem + name: getattr(module, name) for name in names}


def _floats(weight: torch.Tensor) -> list[float]:
    return weight.detach().float().tolist()


def _in_turn(parts: list[torch.Tensor]) -> torch.Tensor:
    """Blocks of 16 rows of each part in turn: the kernel meets gate and up of the same outputs together."""
    split = [part.reshape(-1, _BLOCK, *part.shape[1:]) for part in parts]
    return torch.stack(split, dim=1).reshape(-1, *parts[0].shape[1:])


def _angles(model: Any, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's own rotary table: cosines and sines [positions, head_dim / 2] float32."""
    places = torch.arange(positions)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, 1, 1), places)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].float().contiguous(), sin[0, :, :half].float().contiguous()


class _Packer:
    """Packs layers, from the GGUF file's blocks where there are some, else from their weights."""

    def __init__(self, blocks: Blocks | None, dtype: torch.dtype) -> None:
        self._blocks = blocks or {}
        self._dtype = dtype
        self.bytes = 0

    def pack(
        self, layers: dict[str, nn.Linear], arrange: Callable[[list[torch.Tensor]], torch.Tensor]
    ) -> Any:
        """One matrix of the layers' stacked outputs; arrange puts their rows in order."""
        linears = list(layers.values())
        stored = [self._blocks.get(f"{name}.weight") for name in layers]
        kinds = {tensor.kind for tensor in stored if tensor is not None}
        if None not in stored and len(kinds) == 1:
            source, parts = kinds.pop(), [tensor.rows for tensor in stored if tensor is not None]
        else:
            source, parts = _SOURCES[self._dtype], [linear.weight.detach() for linear in linears]
        rows = arrange(parts).contiguous()
        biased = any(linear.bias is not None for linear in linears)
        bias = arrange([_bias(linear) for linear in linears]).tolist() if biased else []
        self.bytes += rows.numel() * rows.element_size()
        return _kernels.pack(rows.data_ptr(), source, rows.shape[0], linears[0].in_features, bias)


def _bias(linear: nn.Linear) -> torch.Tensor:
    if linear.bias is None:
        return torch.zeros(linear.out_features)
    return linear.bias.detach().float()
