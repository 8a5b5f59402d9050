"""Lanes: the ways of decoding that a bench compares, in a spelling that can be remembered.

    NAME or NAME:KEY=VALUE,KEY=VALUE

ddtree, chain, autoregressive    this project's decoder; keys are settings: drafter, budget, block-size,
                                 top-k, top-p, threshold-single, threshold-acc
generate                         transformers' generate on an untouched model
prompt-lookup                    the same with prompt_lookup_num_tokens; key: tokens (10)
dflash-generate                  the same with speculation_type="dflash"; key: draft-model (the bench's own)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from app.errors import explain
from ddtree.settings import Method, Settings

METHODS = get_args(Method)
BASELINES = ("generate", "prompt-lookup", "dflash-generate")
LANE_SETTINGS = (
    "drafter",
    "budget",
    "block_size",
    "top_k",
    "top_p",
    "threshold_single",
    "threshold_acc",
)
"""Settings that a lane may give; the others are the whole bench's."""

LOOKUP_TOKENS = 10

DEFAULT_LANES = ("autoregressive", "ddtree", "chain:budget=7", *BASELINES)
DEFAULT_ACCEPTANCE_LANES = ("ddtree",)


@dataclass(frozen=True, slots=True)
class Lane:
    """`label`: the one spelling of this lane. `settings`: of this project's decoder, None for a baseline."""

    label: str
    name: str
    settings: Settings | None
    lookup_tokens: int = LOOKUP_TOKENS
    draft_model: str | None = None  # of dflash-generate; None: the one that is loaded

    @property
    def plain(self) -> bool:
        """Whether it is the lane that the others are compared with."""
        return self.label == "autoregressive"


def parse_lane(text: str) -> Lane:
    """Raises ValueError, one sentence that names the value and what may stand there."""
    name, _, rest = text.partition(":")
    if name not in (*METHODS, *BASELINES):
        known = ", ".join((*METHODS, *BASELINES))
        raise ValueError(f"lane {text!r}: there is no {name!r}; take one of {known}")
    given = _pairs(text, rest)
    if name in METHODS:
        return _own(text, name, given)
    return _baseline(text, name, given)


def parse_lanes(texts: list[str]) -> list[Lane]:
    """Raises ValueError, also for a lane that stands there twice."""
    lanes = [parse_lane(text) for text in texts]
    labels = [lane.label for lane in lanes]
    for text, label in zip(texts, labels, strict=True):
        if labels.count(label) > 1:
            raise ValueError(f"lane {text!r} is given twice; leave one out")
    return lanes


def _own(text: str, name: str, given: dict[str, Any]) -> Lane:
    changes = {key.replace("-", "_"): value for key, value in given.items()}
    for key in changes:
        if key not in LANE_SETTINGS:
            known = ", ".join(setting.replace("_", "-") for setting in LANE_SETTINGS)
            raise ValueError(f"lane {text!r}: {key!r} is no setting of a lane; take one of {known}")
    try:
        settings = Settings.model_validate({**changes, "method": name})
    except ValidationError as error:
        raise ValueError(f"lane {text!r}: {explain(error)[1]}") from None
    ordered = {key.replace("_", "-"): changes[key] for key in LANE_SETTINGS if key in changes}
    return Lane(_label(name, ordered), name, settings)


def _baseline(text: str, name: str, given: dict[str, Any]) -> Lane:
    known = {"prompt-lookup": "tokens", "dflash-generate": "draft-model"}.get(name)
    for key in given:
        if key != known:
            takes = f"takes {known}" if known else "takes no keys"
            raise ValueError(f"lane {text!r}: {key!r} is not known; {name} {takes}")
    tokens = given.get("tokens", LOOKUP_TOKENS)
    if type(tokens) is not int or tokens < 1:
        raise ValueError(f"lane {text!r}: tokens must be an integer of at least 1, not {tokens!r}")
    draft_model = str(given["draft-model"]) if "draft-model" in given else None
    return Lane(_label(name, given), name, None, tokens, draft_model)


def _pairs(text: str, rest: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"lane {text!r}: {pair!r} must be written KEY=VALUE")
        pairs[key] = _value(value)
    return pairs


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _label(name: str, given: dict[str, Any]) -> str:
    return name + (":" + ",".join(f"{key}={value}" for key, value in given.items()) if given else "")
