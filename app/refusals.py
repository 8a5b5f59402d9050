"""Why a command is not obeyed, as the asker is told."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from app.errors import explain
from app.protocol import ErrorFrame

log = logging.getLogger("ddtree.app")


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal(error: Exception) -> ErrorFrame:
    """What the asker is told. Settings errors carry `code` and `field`; anything unforeseen is logged."""
    if isinstance(error, ValidationError):
        field, message = explain(error)
        return ErrorFrame(code="bad_value", message=message, field=field)
    code = getattr(error, "code", None)
    if isinstance(code, str):
        return ErrorFrame(code=code, message=str(error), field=getattr(error, "field", None))
    log.error("a command failed", exc_info=error)
    return ErrorFrame(code="internal", message=f"the server failed: {type(error).__name__}: {error}")
