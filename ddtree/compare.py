"""Where two decoded texts part, and how close the target's choice was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Difference:
    """The first index at which two token sequences differ; a token is None where its sequence has ended.

    `margin`: the logit of the left token minus that of the right, in a plain pass over the common prefix;
    None where one sequence has ended.
    """

    index: int
    left: int | None
    right: int | None
    margin: float | None

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone can explain it: the two logits lie within 1e-4."""
        return self.margin is not None and abs(self.margin) < 1e-4


def first_difference(
    model: Any, prompt_ids: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> Difference | None:
    """Compare two continuations of `prompt_ids`; None when they are equal. `model` is a transformers causal
    LM, used for one plain pass; give it in float64 to tell a near tie from a fault."""
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else None
        b = right[index] if index < len(right) else None
        if a == b:
            continue
        if a is None or b is None:
            return Difference(index, a, b, None)
        with torch.inference_mode():
            ids = torch.tensor([[*prompt_ids, *left[:index]]], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, -1].double()
        return Difference(index, a, b, float(logits[a] - logits[b]))
    return None
