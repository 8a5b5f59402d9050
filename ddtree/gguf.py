"""GGUF files as Hugging Face folders: weights dequantised to safetensors, configuration and tokenizer beside
them, so that a 4-bit file loads like any other model.

The value layouts undone here are llama.cpp's converter's (convert_hf_to_gguf.py): it interleaves the rows of
query and key projections of the llama family and stores the others as they are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddtree.errors import ModelUnavailable, UnsupportedModel
from ddtree.storage import Progress

_INTERLEAVED = {"llama"}
_ARCHITECTURES = {"llama", "qwen2", "qwen3"}
_ROPE_FACTORS = "rope_freqs.weight"
_SHARD_BYTES = 2**30
_BLOCKS_FILE = "gguf-blocks.safetensors"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A weight's rows in the file's own blocks of 32 inputs: uint8 [outputs, bytes of a row]."""

    kind: int  # GGMLQuantizationType: 2 Q4_0, 3 Q4_1, 8 Q8_0
    rows: Any  # torch.Tensor


Blocks = dict[str, GgufTensor]
"""Parameter names of the transformers model to their blocks."""

BLOCK_KINDS = frozenset({2, 3, 8})


def convert_gguf(source: Path, folder: Path, progress: Progress) -> None:
    """Writes config.json, generation_config.json, the tokenizer and float32 safetensors of `source` into the
    existing, empty `folder`. Memory stays below a shard of 1 GiB and a tensor. Raises UnsupportedModel for an
    architecture or a tensor that has no place here, and for a file that is no GGUF."""
    from gguf import GGUFReader

    progress("reading the GGUF file", None)
    try:
        reader = GGUFReader(source)
        architecture = reader.fields["general.architecture"].contents()
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise UnsupportedModel(f"{source} cannot be read as a GGUF file: {error}") from error
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"{source.name} has the GGUF architecture {architecture!r}, which cannot be converted (only "
            f"{', '.join(sorted(_ARCHITECTURES))} can); give the model's Hugging Face folder or id instead"
        )
    config = _read_config(source, reader, architecture)
    _write_tokenizer(source, folder, reader)
    config.save_pretrained(folder)
    _write_weights(reader, architecture, config, folder, progress)


def _read_config(source: Path, reader: Any, architecture: str) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.architectures = [type(config).__name__.removesuffix("Config") + "ForCausalLM"]
    config.dtype = "float32"
    head_dim = reader.fields.get(f"{architecture}.attention.key_length")
    if head_dim is not None:  # transformers leaves it at the family's default
        config.head_dim = int(head_dim.contents())
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS:
            config.rope_parameters = _llama3_rope(config, _dequantise(tensor))
    return config


def _llama3_rope(config: Any, divisors: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The file holds what each frequency is divided by; transformers wants Llama 3's rule that gave it.
    Raises UnsupportedModel for divisors of another rule."""
    rule = {
        "rope_type": "llama3",
        "rope_theta": config.rope_parameters["rope_theta"],
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies = rule["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = rule["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    unscaled = np.clip(
        (turns - rule["low_freq_factor"]) / (rule["high_freq_factor"] - rule["low_freq_factor"]), 0, 1
    )
    expected = 1 / ((1 - unscaled) / rule["factor"] + unscaled)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise UnsupportedModel(
            f"the GGUF file scales its rotary embedding ({_ROPE_FACTORS}) by a rule that is not Llama 3's; "
            "give the model's Hugging Face folder or id instead"
        )
    return rule


def _write_tokenizer(source: Path, folder: Path, reader: Any) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    kind = reader.fields.get("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == "smollm":
        # SmolLM splits digits one by one; transformers reads the file as plain GPT-2.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)


def _write_weights(reader: Any, architecture: str, config: Any, folder: Path, progress: Progress) -> None:
    from safetensors.numpy import save_file

    names = _names(reader, architecture, config)
    total = sum(int(tensor.n_elements) for tensor in reader.tensors)
    free = shutil.disk_usage(folder).free
    if free < total * 5.2:
        raise ModelUnavailable(
            f"the converted model takes {total * 5.2 / 1e6:.0f} MB, and {folder.parent} has {free / 1e6:.0f} "
            "MB left; free some, or set XDG_CACHE_HOME to another disk"
        )
    done = 0
    blocks: dict[str, np.ndarray[Any, Any]] = {}
    kinds: dict[str, str] = {}
    shard: dict[str, np.ndarray[Any, Any]] = {}
    shards: list[list[str]] = []

    def flush() -> None:
        save_file(shard, folder / f"shard-{len(shards)}.safetensors", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for tensor, name in names:
        values = _in_order(_dequantise(tensor), name, architecture, config)
        if int(tensor.tensor_type) in BLOCK_KINDS:
            blocks[name] = np.ascontiguousarray(_in_order(tensor.data, name, architecture, config))
            kinds[name] = str(int(tensor.tensor_type))
        if shard and sum(held.nbytes for held in shard.values()) + values.nbytes > _SHARD_BYTES:
            flush()
        shard[name] = np.ascontiguousarray(values)
        done += values.size
        progress("dequantising the weights", done / total)
    progress("writing the weights", None)
    flush()
    _name_shards(folder, shards, total * 4)
    save_file(blocks, folder / _BLOCKS_FILE, metadata=kinds)


def read_blocks(folder: str) -> Blocks | None:
    """The quantised weights that `convert_gguf` left in a converted folder, or None in any other."""
    from safetensors import safe_open

    file = Path(folder) / _BLOCKS_FILE
    if not file.is_file():
        return None
    with safe_open(file, framework="pt") as opened:
        kinds = opened.metadata() or {}
        return {name: GgufTensor(int(kinds[name]), opened.get_tensor(name)) for name in sorted(kinds)}


def _name_shards(folder: Path, shards: list[list[str]], total_bytes: int) -> None:
    """Gives the shards the names that transformers looks for, with an index when there are several."""
    if len(shards) == 1:
        (folder / "shard-0.safetensors").rename(folder / "model.safetensors")
        return
    weight_map = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{index}.safetensors").rename(folder / file)
        weight_map.update(dict.fromkeys(names, file))
    index_text = json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": weight_map}, indent=1)
    (folder / "model.safetensors.index.json").write_text(index_text)


def _names(reader: Any, architecture: str, config: Any) -> Iterator[tuple[Any, str]]:
    """Each tensor of the file with its parameter's name in transformers' model. Raises UnsupportedModel when
    one side has something the other lacks."""
    import torch
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from transformers import AutoModelForCausalLM

    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    name_map = get_tensor_name_map(arch, config.num_hidden_layers)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    parameters = model.state_dict()
    by_gguf: dict[str, str] = {}
    for name in parameters:
        stem, _, suffix = name.rpartition(".")
        by_gguf[f"{name_map.get_name(stem)}.{suffix}"] = name
    tensors = [tensor for tensor in reader.tensors if tensor.name != _ROPE_FACTORS]
    in_file = {tensor.name for tensor in tensors}
    tied = {"output.weight"} if config.tie_word_embeddings else set()
    missing = sorted(by_gguf.keys() - in_file - tied)
    unknown = sorted(in_file - by_gguf.keys())
    if missing or unknown:
        what = f"lacks {missing[0]}" if missing else f"holds {unknown[0]}, which has no place in the model"
        raise UnsupportedModel(f"the GGUF file {what}; give the model's Hugging Face folder or id instead")
    for tensor in tensors:
        name = by_gguf[tensor.name]
        shape, wanted = tuple(int(size) for size in reversed(tensor.shape)), tuple(parameters[name].shape)
        if shape != wanted:
            raise UnsupportedModel(f"{tensor.name} has shape {shape}; the file's configuration says {wanted}")
        yield tensor, name


def _dequantise(tensor: Any) -> np.ndarray[Any, Any]:
    from gguf.quants import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"{tensor.name} is stored as {tensor.tensor_type.name}, which cannot be read"
        ) from error
    return np.asarray(values, dtype=np.float32)


def _in_order(rows: np.ndarray[Any, Any], name: str, architecture: str, config: Any) -> np.ndarray[Any, Any]:
    """A tensor's rows as transformers' module has them."""
    if architecture in _INTERLEAVED and ".q_proj." in name:
        return _undo_interleaving(rows, config.num_attention_heads)
    if architecture in _INTERLEAVED and ".k_proj." in name:
        return _undo_interleaving(rows, config.num_key_value_heads)
    return rows


def _undo_interleaving(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows (or bias entries) of a head: from pairs (i, i + dim/2) side by side back to two halves."""
    dim = values.shape[0] // heads
    paired = values.reshape(heads, dim // 2, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
