"""The loss: cross-entropy against the target's token, its distribution, or a mix of both, over a sampled
vocabulary.

The output head is the target's and stays as it is; what a step costs is the logits. They are made over the
tokens that are frequent in the texts, the batch's own labels, and random others that stand for the rest
through a correction of their logits (Bengio and Senecal, 2008), chunk by chunk together with their gradient,
so that no [rows, vocabulary] matrix outlives a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_CHUNK = 256
"""Rows whose logits are held at a time: a few MB, which a core's cache keeps."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that a step's softmax runs over."""

    weight: torch.Tensor  # [n, width], the output head's rows
    correction: torch.Tensor  # float32 [n], added to their logits
    index: torch.Tensor  # int64 [V], a token's row; -1 where it has none


def sample_vocabulary(
    head: torch.Tensor, frequent: torch.Tensor, labels: torch.Tensor, total: int, generator: torch.Generator
) -> Vocabulary:
    """head [V, width]; frequent, labels int64 token ids; total: how many tokens there are to be in all. Those
    that are neither frequent nor labels are drawn, and each stands for as many as there are for one drawn."""
    size = head.shape[0]
    held = torch.zeros(size, dtype=torch.bool)
    held[frequent.cpu()] = True
    held[labels.cpu()] = True
    certain, rest = held.nonzero().flatten(), (~held).nonzero().flatten()
    drawn = rest[torch.randperm(len(rest), generator=generator)[: max(total - len(certain), 0)]]
    ids = torch.cat((certain, drawn)).to(head.device)
    correction = torch.zeros(len(ids))
    if len(drawn):
        correction[len(certain) :] = torch.log(torch.tensor(len(rest) / len(drawn)))
    index = torch.full((size,), -1, dtype=torch.int64, device=head.device)
    index[ids] = torch.arange(len(ids), device=head.device)
    return Vocabulary(head[ids], correction.to(head.device), index)


@torch.no_grad()
def target_probs(vocabulary: Vocabulary, states: torch.Tensor) -> torch.Tensor:
    """The target's distribution at temperature 1 over the sampled vocabulary, [n, vocabulary] in the head's
    dtype, of its last hidden states [n, width]."""
    probs = states.new_empty(len(states), len(vocabulary.weight))
    for start in range(0, len(states), _CHUNK):
        logits = (states[start : start + _CHUNK] @ vocabulary.weight.T).float() + vocabulary.correction
        probs[start : start + _CHUNK] = torch.softmax(logits, dim=-1)
    return probs


class _MixedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        vocabulary: Vocabulary,
        labels: torch.Tensor,
        probs: torch.Tensor,
        prob_rows: torch.Tensor,
        soft: float,
    ) -> torch.Tensor:
        rows = len(hidden)
        total = torch.zeros((), device=hidden.device)
        gradient = torch.empty_like(hidden)
        for start in range(0, rows, _CHUNK):
            part = hidden[start : start + _CHUNK]
            label = labels[start : start + _CHUNK, None]
            logits = (part @ vocabulary.weight.T).float().add_(vocabulary.correction)
            of_label = logits.gather(1, label)
            softened = torch.zeros_like(of_label)
            if soft > 0:
                wanted = probs[prob_rows[start : start + _CHUNK]].float()
                softened = torch.linalg.vecdot(wanted, logits)[:, None]
            predicted = torch.softmax(logits, dim=-1)
            log_sum = of_label - predicted.gather(1, label).clamp(min=1e-37).log()
            total += (log_sum - soft * softened - (1 - soft) * of_label).sum()
            if soft > 0:
                predicted.sub_(wanted, alpha=soft)
            predicted.scatter_add_(1, label, predicted.new_full(label.shape, soft - 1))
            gradient[start : start + _CHUNK] = predicted.to(hidden.dtype) @ vocabulary.weight
        context.save_for_backward(gradient)
        context.rows = rows
        return total / rows

    @staticmethod
    def backward(context: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return (gradient * (outer[0] / context.rows), None, None, None, None, None)


def mixed_cross_entropy(
    hidden: torch.Tensor,
    vocabulary: Vocabulary,
    labels: torch.Tensor,
    probs: torch.Tensor,
    prob_rows: torch.Tensor,
    soft: float,
) -> torch.Tensor:
    """Mean over rows of soft * H(target's distribution, drafter's) + (1 - soft) * -log drafter(label).

    hidden [n, width] in the head's dtype, after the output norm; labels int64 [n], rows of the vocabulary;
    probs [m, vocabulary] from `target_probs`, of which row i's are `probs[prob_rows[i]]`.
    """
    return _MixedCrossEntropy.apply(hidden, vocabulary, labels, probs, prob_rows, soft)  # type: ignore[no-any-return,no-untyped-call]
