"""Files as values: text, .npy, .npz and .safetensors. A pickle is never read: opening one can run code."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from ddtree.foreign.acceptance import read_prometheus
from ddtree.foreign.errors import ForeignError
from ddtree.foreign.text import read_text

MAX_FILE_BYTES = 64 * 2**20
"""Of a file, and of what is packed in it."""

_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_MIB = 2**20


def read_bytes(data: bytes, name: str = "") -> tuple[Any, str]:
    """(the value, what it was written as) of a file's bytes or of pasted text in UTF-8. Arrays of .npy, .npz
    and .safetensors are numpy arrays. Raises ForeignError."""
    if len(data) > MAX_FILE_BYTES:
        raise ForeignError(
            f"the file has {len(data) / _MIB:.0f} MiB, the limit is {MAX_FILE_BYTES / _MIB:.0f} MiB: keep "
            "the arrays of fewer steps, or fewer columns of target_probs"
        )
    ending = "." + name.lower().rpartition(".")[2] if "." in name else ""
    if ending in _PICKLED or data[:1] == b"\x80" or _is_torch_archive(data):
        raise ForeignError(
            f"{name or 'this'} is a pickle, which can run code when it is opened and is never read here: "
            "save the arrays with numpy.savez or safetensors and drop that file"
        )
    if data.startswith(b"PK"):
        return _read_npz(data), ".npz"
    if data.startswith(b"\x93NUMPY"):
        stem = name.rpartition("/")[2].rpartition(".")[0]
        return {stem or "array": _read_array(io.BytesIO(data), name or "the file")}, ".npy"
    if ending == ".safetensors" or _is_safetensors(data):
        return _read_safetensors(data, name), ".safetensors"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ForeignError(
            f"byte {error.start} is no UTF-8 text, and the file is no .npz, .npy or .safetensors: save it "
            "as one of these"
        ) from None
    counters = read_prometheus(text) if "vllm:spec_decode_" in text else None
    return (counters, "Prometheus text") if counters else read_text(text)


def _is_torch_archive(data: bytes) -> bool:
    if not data.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return any(entry.filename.endswith(".pkl") for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError):
        return False


def _read_npz(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > MAX_FILE_BYTES:
                raise ForeignError(
                    f"the archive unpacks to {size / _MIB:.0f} MiB, the limit is {MAX_FILE_BYTES / _MIB:.0f} "
                    "MiB: keep fewer arrays"
                )
            arrays = {}
            for entry in entries:
                if not entry.filename.endswith(".npy"):
                    raise ForeignError(
                        f"the archive holds {entry.filename!r}, which is no .npy array: write it with "
                        "numpy.savez"
                    )
                with archive.open(entry) as part:
                    arrays[entry.filename[:-4]] = _read_array(part, entry.filename)
            return arrays
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ForeignError(f"the .npz file is damaged ({error}): write it again with numpy.savez") from None


def _read_array(part: IO[bytes], name: str) -> np.ndarray[Any, Any]:
    """One array, its size checked before anything is allocated for it."""
    try:
        version = npy.read_magic(part)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read_header(part)
    except (ValueError, KeyError, EOFError) as error:
        raise ForeignError(f"{name} has no header of a NumPy array ({error}): write it again") from None
    if dtype.hasobject or dtype.kind not in "fiub":
        raise ForeignError(f"{name} holds {dtype}: only numbers are read, so convert it to float32 or int64")
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_FILE_BYTES:
        raise ForeignError(
            f"{name} is {list(shape)} of {dtype}, {size / _MIB:.0f} MiB; the limit is "
            f"{MAX_FILE_BYTES / _MIB:.0f}: keep fewer entries"
        )
    content = part.read(size)
    if len(content) < size:
        raise ForeignError(f"{name} ends after {len(content)} of {size} bytes: write the file again")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _is_safetensors(data: bytes) -> bool:
    """Eight bytes of length, then a JSON object of that length."""
    if len(data) < 10:
        return False
    (length,) = struct.unpack("<Q", data[:8])
    return bool(length <= len(data) - 8 and data[8:9] == b"{")


def _read_safetensors(data: bytes, name: str) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise ForeignError(
            f"{name or 'the .safetensors file'} is damaged ({error}): write it again"
        ) from None
    return {key: (t.float() if t.is_floating_point() else t).numpy() for key, t in tensors.items()}
