"""Errors as clients see them: a code, one sentence that names the value and the remedy, and the field.

HTTP answers and `error` frames say the same things, so both are made here.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ddtree.trace_file import json_path

_SHOWN = 60  # characters of a refused value that an error repeats


class ApiError(Exception):
    """Becomes an HTTP answer {code, message, field} with `status`."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field

    def body(self) -> dict[str, str | None]:
        return {"code": self.code, "message": self.message, "field": self.field}


def shown(value: Any) -> str:
    """A refused value, short and on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def explain(error: ValidationError, skip: int = 0) -> tuple[str, str]:
    """The first fault of a pydantic validation: (its JSON path without the first `skip` parts, one sentence
    that names path and value)."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = json_path(first["loc"][skip:]) or "the message"
    reason = first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return path, f"{path} is missing"
    if first["type"] == "extra_forbidden":
        return path, f"{path} is not known here: leave it out or correct its name"
    return path, f"{path} cannot be {shown(first['input'])}: {reason}"
