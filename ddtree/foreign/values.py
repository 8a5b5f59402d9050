"""Values of any origin as arrays, with errors that name the field."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddtree.foreign.errors import ForeignError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def ints(name: str, value: Any) -> Ints:
    """int64 of any shape; whole floats are taken. Raises ForeignError."""
    array = _array(name, value)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "f" and np.all(np.isfinite(array)) and np.all(array == np.floor(array)):
        return array.astype(np.int64)
    raise ForeignError(f"{name} must hold whole numbers, not {_sample(array)}")


def floats(name: str, value: Any, missing: float | None = None) -> Floats:
    """float64 of any shape; `missing` stands for null, which is refused without it. Raises ForeignError."""
    array = _array(name, value)
    if array.dtype == object and missing is not None:
        flat = [missing if entry is None else entry for entry in array.ravel().tolist()]
        if all(isinstance(entry, (int, float)) for entry in flat):
            return np.array(flat, dtype=np.float64).reshape(array.shape)
    if array.dtype.kind not in "fiu":
        raise ForeignError(f"{name} must hold numbers, not {_sample(array)}")
    return array.astype(np.float64)


def one_int(name: str, value: Any) -> int:
    """Raises ForeignError for what is no single whole number."""
    array = ints(name, value)
    if array.size != 1:
        raise ForeignError(f"{name} must be one whole number, not {array.size} of them")
    return int(array.ravel()[0])


def _array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, (str, dict)) or value is None:
        raise ForeignError(f"{name} must be an array of numbers, not {_short(value)}")
    try:
        return np.asarray(value)
    except (ValueError, OverflowError):
        raise ForeignError(f"{name} is ragged: its rows must all be as long") from None


def _sample(array: NDArray[Any]) -> str:
    for entry in array.ravel()[:1000].tolist():
        if not isinstance(entry, (int, float)) or entry != entry or int(entry) != entry:
            return _short(entry)
    return str(array.dtype)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
