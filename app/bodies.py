"""Request bodies: never more bytes than allowed, strict UTF-8 JSON, one sentence for every fault."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from app.errors import ApiError, explain
from app.settings import MIB

Model = TypeVar("Model", bound=BaseModel)

_DRAINED = 4  # so many times the limit is read and dropped, so that the client sees the answer


async def body_parts(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it comes, at most `limit` bytes. Raises ApiError 413 in the end if there was more."""
    taken = 0
    async for part in request.stream():
        taken += len(part)
        if taken <= limit:
            yield part
        if taken > _DRAINED * limit:
            break
    if taken > limit:
        size = max(taken, int(request.headers.get("content-length", "0"))) / MIB
        message = f"the upload has {size:.1f} MiB, the limit is {limit / MIB:.1f} MiB: send a smaller one"
        raise ApiError(413, "too_large", message)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413."""
    return b"".join([part async for part in body_parts(request, limit)])


def parse_body(model: type[Model], body: bytes) -> Model:
    """The body as `model`. Raises ApiError 400 (no JSON; NaN is none) or 422 (a value is refused)."""
    try:
        pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "bad_json", f"the body is not JSON: {error}") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        field, message = explain(error)
        raise ApiError(422, "bad_value", message, field) from None
