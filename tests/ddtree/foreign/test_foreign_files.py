"""Array files read back; pickles, bombs and damaged files are refused in one sentence."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from ddtree.foreign import ForeignError, files, read_bytes

ARRAYS = {
    "parents": np.array([-1, 0, 0, 1]),
    "top_log_probs": np.log(np.array([[0.7, 0.3], [0.6, 0.4]], dtype=np.float32)),
}


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


@pytest.mark.parametrize("name", ["run.npz", "run.safetensors", ""])
def test_array_files_read_back(name: str) -> None:
    data = safetensors.numpy.save(ARRAYS) if "safe" in name else npz(**ARRAYS)
    value, kind = read_bytes(data, name)
    assert kind == (".safetensors" if "safe" in name else ".npz")
    assert value.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        assert np.array_equal(value[key], array)


def test_bfloat16_and_columns_first() -> None:
    import safetensors.torch

    data = safetensors.torch.save({"probs": torch.tensor([0.5, 0.25], dtype=torch.bfloat16)})
    assert read_bytes(data)[0]["probs"].tolist() == [0.5, 0.25]
    out = io.BytesIO()
    np.save(out, np.asfortranarray(np.arange(6).reshape(2, 3)))
    assert read_bytes(out.getvalue(), "x/parents.npy")[0]["parents"].tolist() == [[0, 1, 2], [3, 4, 5]]


def torch_file() -> bytes:
    out = io.BytesIO()
    torch.save({"parents": torch.tensor([1])}, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (torch_file(), "round_trees.pt"),
        (torch_file(), "disguised.npz"),
        (pickle.dumps([1, 2]), ""),
        (b"anything", "x.PKL"),
    ],
)
def test_a_pickle_is_never_read(data: bytes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("unpickled"))
    with pytest.raises(
        ForeignError, match=r"is a pickle, .* save the arrays with numpy.savez or safetensors"
    ):
        read_bytes(data, name)


def test_objects_in_an_npz_are_refused() -> None:
    with pytest.raises(ForeignError, match="holds object: only numbers are read"):
        read_bytes(npz(x=np.array([{"a": 1}], dtype=object)), "x.npz")


def test_sizes_are_checked_before_anything_is_allocated() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    lying = io.BytesIO()
    with zipfile.ZipFile(lying, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(ForeignError, match="the limit is 64"):
        read_bytes(lying.getvalue())
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * (files.MAX_FILE_BYTES + 1))
    with pytest.raises(ForeignError, match="unpacks to 64 MiB"):
        read_bytes(bomb.getvalue())
    with pytest.raises(ForeignError, match="the file has 64 MiB, the limit is 64 MiB"):
        read_bytes(b"1" * (files.MAX_FILE_BYTES + 1))


@pytest.mark.parametrize(
    ("data", "name", "part"),
    [
        (npz(**ARRAYS)[:-30], "x.npz", "damaged"),
        (safetensors.numpy.save(ARRAYS)[:-3], "x.safetensors", "damaged"),
        (b"\x93NUMPYxxxx", "x.npy", "no header"),
        (b"\xff\xfe{\0}\0", "x.json", "no UTF-8 text"),
        (b"\x1f\x8b\x08", "x.json.gz", "no UTF-8 text"),
        (b"", "x.json", "nothing was given"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(data: bytes, name: str, part: str) -> None:
    with pytest.raises(ForeignError) as refusal:
        read_bytes(data, name)
    assert part in str(refusal.value)


def test_the_metrics_text_of_vllm_is_found() -> None:
    lines = [
        "# HELP x",
        'vllm:spec_decode_num_drafts_total{engine="0"} 4.0',
        "vllm:spec_decode_num_accepted_tokens 6",
    ]
    text = "\n".join(lines).encode()
    assert read_bytes(text) == ({"num_drafts": 4, "num_accepted_tokens": 6}, "Prometheus text")
