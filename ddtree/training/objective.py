"""The loss: cross-entropy against the target's token, its distribution, or a mix of both, over a sampled
vocabulary.

The output head is the target's and stays as it is; what a step costs is the logits. They are made over the
tokens that are frequent in the texts, the batch's own labels, and random others that stand for the rest
through a correction of their logits (Bengio and Senecal, 2008), chunk by chunk together with their gradient,
so that no [rows, vocabulary] matrix outlives a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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


class TargetMeans(NamedTuple):
    """What the loss needs of the target's distributions p: the logits' mean under p is linear in the hidden
    state, so no row of p itself is kept."""

    weight: torch.Tensor  # [m, width], the mean under p of the head's rows
    correction: torch.Tensor  # float32 [m], that of the corrections


@torch.no_grad()
def target_means(vocabulary: Vocabulary, states: torch.Tensor) -> TargetMeans:
    """Of the target's distributions at temperature 1 over the sampled vocabulary; states [m, width]: its last
    hidden states, in the head's dtype."""
    weights, corrections = [states[:0]], [vocabulary.correction[:0]]
    for part in torch.split(states, _CHUNK):
        probs = torch.softmax(_logits(vocabulary, part), dim=-1)
        weights.append(probs @ vocabulary.weight)
        corrections.append(probs.float() @ vocabulary.correction)
    return TargetMeans(torch.cat(weights), torch.cat(corrections))


def _logits(vocabulary: Vocabulary, hidden: torch.Tensor) -> torch.Tensor:
    """[n, width] -> [n, vocabulary], corrected."""
    return torch.addmm(vocabulary.correction.to(hidden.dtype), hidden, vocabulary.weight.T)


class _MixedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        vocabulary: Vocabulary,
        labels: torch.Tensor,
        means: TargetMeans,
        mean_rows: torch.Tensor,
        soft: float,
    ) -> torch.Tensor:
        wanted = vocabulary.weight[labels] * (1 - soft)
        level = vocabulary.correction[labels] * (1 - soft)
        if soft > 0:
            wanted += means.weight[mean_rows] * soft
            level += means.correction[mean_rows] * soft
        gradient = torch.empty_like(hidden)
        log_sums = []
        for start in range(0, len(hidden), _CHUNK):
            label = labels[start : start + _CHUNK, None]
            logits = _logits(vocabulary, hidden[start : start + _CHUNK])
            predicted = torch.softmax(logits, dim=-1)
            of_label = predicted.gather(1, label).float().clamp_(min=1e-37).log_()
            log_sums.append(logits.gather(1, label) - of_label)
            gradient[start : start + _CHUNK] = predicted @ vocabulary.weight
        context.save_for_backward(gradient.sub_(wanted))
        reached = torch.linalg.vecdot(hidden.float(), wanted.float()) + level
        loss: torch.Tensor = torch.cat(log_sums).mean() - reached.mean()
        return loss

    @staticmethod
    def backward(context: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return (gradient * (outer[0] / len(gradient)), None, None, None, None, None)


def mixed_cross_entropy(
    hidden: torch.Tensor,
    vocabulary: Vocabulary,
    labels: torch.Tensor,
    means: TargetMeans,
    mean_rows: torch.Tensor,
    soft: float,
) -> torch.Tensor:
    """Mean over rows of soft * H(target's distribution, drafter's) + (1 - soft) * -log drafter(label).

    hidden [n, width] in the head's dtype, after the output norm; labels int64 [n], rows of the vocabulary;
    means from `target_means`, of which row i's are those of `mean_rows[i]`.
    """
    return _MixedCrossEntropy.apply(hidden, vocabulary, labels, means, mean_rows, soft)  # type: ignore[no-any-return,no-untyped-call]
