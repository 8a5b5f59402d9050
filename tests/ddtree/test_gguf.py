"""GGUF files become folders that hold the model they were written from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import OPTIONS, TOKENS, silent, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ddtree import gguf as conversion
from ddtree.errors import ModelUnavailable, UnsupportedModel
from ddtree.gguf import convert_gguf


def model(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**OPTIONS, **changes}))
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(std=0.3)
    return made.float().eval()


def converted(tmp_path: Path, kind: str, source: Any) -> Path:
    write_gguf(tmp_path / "model.gguf", kind, source)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "model.gguf", folder, silent)
    return folder


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"tie_word_embeddings": False}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
    ],
)
def test_weights_come_back(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    source = model(kind, **changes)
    loaded = AutoModelForCausalLM.from_pretrained(converted(tmp_path, kind, source), dtype=torch.float32)
    assert type(loaded) is type(source)
    found = loaded.state_dict()
    for name, weight in source.state_dict().items():
        tolerance = 0.01 * weight.abs().max().item() if ".mlp." in name else 0.0  # Q8_0, float32
        torch.testing.assert_close(found[name], weight, rtol=0, atol=tolerance, msg=name)
    ids = torch.tensor([[3, 5, 8, 13]])
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, source(ids).logits, rtol=0.1, atol=0.3)


def test_the_tokenizer_splits_digits_and_keeps_its_special_tokens(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, "llama", model("llama")))
    assert tokenizer.tokenize("ab12 a<|im_end|>") == ["ab", "1", "2", "Ġa", "<|im_end|>"]
    assert tokenizer.eos_token_id == 2
    assert len(tokenizer) == len(TOKENS)


def test_large_files_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_SHARD_BYTES", 60_000)
    source = model("llama")
    folder = converted(tmp_path, "llama", source)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert sorted(path.name for path in folder.glob("model*.safetensors")) == files
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(loaded.model.embed_tokens.weight, source.model.embed_tokens.weight)


def test_progress_runs_to_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", model("llama"))
    (tmp_path / "folder").mkdir()
    seen: list[tuple[str, float | None]] = []
    convert_gguf(
        tmp_path / "model.gguf", tmp_path / "folder", lambda what, fraction: seen.append((what, fraction))
    )
    fractions = [fraction for _, fraction in seen if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "gemma", model("llama"))
    with pytest.raises(UnsupportedModel, match="the GGUF architecture 'gemma', which cannot be converted"):
        convert_gguf(tmp_path / "model.gguf", tmp_path, silent)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", model("llama"), strange=np.ones(4, dtype=np.float32))
    with pytest.raises(UnsupportedModel, match="holds strange, which has no place in the model"):
        convert_gguf(tmp_path / "model.gguf", tmp_path, silent)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, " * 10])
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(UnsupportedModel, match="cannot be read as a GGUF file"):
        convert_gguf(tmp_path / "model.gguf", tmp_path, silent)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    source = model("llama")
    source.config.intermediate_size = 128
    write_gguf(tmp_path / "model.gguf", "llama", source)
    with pytest.raises(
        UnsupportedModel, match=r"has shape \(96, 64\); the file's configuration says \(128, 64\)"
    ):
        convert_gguf(tmp_path / "model.gguf", tmp_path, silent)


def llama3_divisors(config: Any, factor: float) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter computes them."""
    divisors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * config.rope_parameters["rope_theta"] ** (i / config.head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


def test_llama3s_rope_scaling_is_read_back(tmp_path: Path) -> None:
    source = model("llama", rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    divisors = llama3_divisors(source.config, 32.0)
    assert len(set(divisors.tolist())) > 2
    write_gguf(tmp_path / "model.gguf", "llama", source, **{"rope_freqs.weight": divisors})
    (tmp_path / "folder").mkdir()
    convert_gguf(tmp_path / "model.gguf", tmp_path / "folder", silent)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    scaled = source.model.rotary_emb.inv_freq / torch.tensor(divisors)
    torch.testing.assert_close(loaded.model.rotary_emb.inv_freq, scaled, rtol=1e-5, atol=0)


def test_another_rope_scaling_is_refused(tmp_path: Path) -> None:
    divisors = np.linspace(1, 32, 8, dtype=np.float32)
    write_gguf(tmp_path / "model.gguf", "llama", model("llama"), **{"rope_freqs.weight": divisors})
    with pytest.raises(UnsupportedModel, match="a rule that is not Llama 3's"):
        convert_gguf(tmp_path / "model.gguf", tmp_path, silent)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", model("llama"))
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1e5))
    with pytest.raises(
        ModelUnavailable, match=r"takes 0 MB, and .* has 0 MB left; free some, or set XDG_CACHE_HOME"
    ):
        convert_gguf(tmp_path / "model.gguf", tmp_path, silent)
