"""The settings of a run: one spelling on the wire, in HTTP, in a trace, in Python and (with dashes) on the
command line.

`None` in `drafter`, `block_size`, `seed` and `chat` means "choose for me"; the decoder resolves them when a
run starts, and every step records the resolved values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

MAX_BUDGET = 1024
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy decoding."""

_EXACT_IN_JSON = 2**53

Method = Literal["ddtree", "chain", "autoregressive"]
DrafterName = Literal["dflash", "ngram", "hybrid"]


def _parse_seed(value: Any) -> Any:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value


Seed = Annotated[
    int,
    BeforeValidator(_parse_seed),
    Field(strict=True, ge=0, lt=2**64),
    PlainSerializer(lambda seed: seed if seed <= _EXACT_IN_JSON else str(seed), when_used="json"),
]
"""0 <= seed < 2^64; past 2^53 it is a decimal string in JSON, where numbers are doubles."""


def _parse_budget(value: Any) -> Any:
    if value == "auto" or (type(value) is int and 0 <= value <= MAX_BUDGET):
        return value
    raise PydanticCustomError(
        "budget", 'Input should be an integer from 0 to {most}, or "auto"', {"most": MAX_BUDGET}
    )


Budget = Annotated[
    int | Literal["auto"],
    PlainValidator(_parse_budget),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_BUDGET},
                {"type": "string", "const": "auto"},
            ]
        }
    ),
]
"""Nodes, or "auto": each step has the number that its draft and the times so far speak for
(ddtree/autobudget.py)."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True)]


class Settings(BaseModel):
    """What a run decodes with. Immutable: `settings.updated(budget=31)` makes another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Method = Field("ddtree", description="how each step drafts: a tree, one chain, or not at all")
    drafter: DrafterName | None = Field(None, description="who drafts; null: the fastest there is")
    budget: Budget = Field(
        15, description='most nodes of a draft tree, root not counted; "auto": chosen in every step'
    )
    block_size: Count | None = Field(None, ge=1, description="drafted depth + 1; null: the drafter's own")
    temperature: Number = Field(0.0, ge=0, le=5, description="0: greedy; 1: the model's own distribution")
    top_p: Number = Field(
        1.0, gt=0, le=1, description="sample from the likeliest tokens of this total probability"
    )
    top_k: Count = Field(0, ge=0, description="sample from the k likeliest tokens; 0: from all")
    threshold_single: Number = Field(
        1.0, ge=0, le=1, description="accept a draft at least this likely; below 1: lossy"
    )
    threshold_acc: Number = Field(
        1.0, ge=0, le=1, description="divides the cumulative probability; below 1: lossy"
    )
    seed: Seed | None = Field(None, description="all coins follow from it; null: drawn and recorded")
    max_new_tokens: Count = Field(256, ge=1, description="most tokens to generate")
    chat: bool | None = Field(None, description="apply the chat template; null: where there is one")
    system: str | None = Field(None, description="the template's system text; null: the template's own")

    @property
    def lossy(self) -> bool:
        """Whether the acceptance thresholds leave the target's distribution."""
        return self.threshold_single < 1 or self.threshold_acc < 1

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def updated(self, **changes: Any) -> Settings:
        """These settings with some changed, validated again. Raises pydantic's ValidationError."""
        return Settings.model_validate({**self.model_dump(), **changes})


FIXED_IN_A_RUN = frozenset({"seed", "max_new_tokens", "chat", "system"})
"""Settings that hold from the start of a run to its end; the others may change between steps."""
