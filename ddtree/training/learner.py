"""One training step: a batch through the drafter, the loss, the gradients."""

from __future__ import annotations

import torch

from ddtree.drafters.dflash import DFlashModel
from ddtree.training.batches import Batch
from ddtree.training.forward import anchor_hidden, slot_rows
from ddtree.training.norm import rms_norm
from ddtree.training.objective import mixed_cross_entropy, sample_vocabulary, target_means


class Learner:
    """The drafter and what its loss needs of the target: embedding, output head, feature scales."""

    def __init__(
        self,
        model: DFlashModel,
        embedding: torch.Tensor,
        head: torch.Tensor,
        scales: torch.Tensor,
        frequent: torch.Tensor,
        *,
        vocabulary: int,
        soft: float,
    ) -> None:
        """embedding, head [V, width] in the compute dtype; scales [taps * width]: what each feature is
        multiplied by before `fc`; frequent: token ids that every step's softmax holds."""
        self.model = model
        self.embedding = embedding
        self.head = head
        self.scales = scales
        self.frequent = frequent
        self.vocabulary = vocabulary
        self.soft = soft

    def rows(self, batch: Batch) -> torch.Tensor:
        """The drafter's normed hidden states [n, width] of the batch's trained pairs."""
        roots = self.embedding[batch.token_ids.gather(1, batch.anchors)]
        mask = self.embedding[self.model.config.mask_token_id]
        features = batch.features.to(self.head.dtype) * self.scales
        hidden = anchor_hidden(self.model, features, roots, mask, batch.anchors)
        if self.model.heads is None:
            rows = hidden.flatten(0, 1)[batch.anchor_rows, batch.slots]
        else:
            rows = slot_rows(self.model.heads, hidden.flatten(0, 2), batch.anchor_rows, batch.slots)
        return rms_norm(self.model.norm, rows)

    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """The mean loss of the batch's trained pairs, a scalar with gradients."""
        labels = batch.token_ids.flatten()[batch.before + 1]
        vocabulary = sample_vocabulary(self.head, self.frequent, labels, self.vocabulary, generator)
        used, mean_rows = torch.unique(batch.before, return_inverse=True)
        used = used[torch.arange(-(-len(used) // 256) * 256, device=used.device) % len(used)]
        width = self.head.shape[1]
        last = batch.features.flatten(0, 1)[used, -width:].to(self.head.dtype)
        means = target_means(vocabulary, last if self.soft > 0 else last[:0])
        return mixed_cross_entropy(
            self.rows(batch), vocabulary, vocabulary.index[labels], means, mean_rows, self.soft
        )
