"""The loss against torch's cross-entropy; the sampled vocabulary against the whole one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ddtree.training.objective import mixed_cross_entropy, sample_vocabulary, target_means


def everything(head: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(head))


@pytest.mark.parametrize("soft", [0.0, 0.4, 1.0])
def test_loss_and_gradient_are_cross_entropys_over_the_whole_vocabulary(soft: float) -> None:
    """600 rows: more than a chunk."""
    generator = torch.Generator().manual_seed(2)
    head = torch.randn(50, 16, generator=generator)
    hidden = torch.randn(600, 16, generator=generator, requires_grad=True)
    states = torch.randn(40, 16, generator=generator)
    labels = torch.randint(0, 50, (600,), generator=generator)
    rows = torch.randint(0, 40, (600,), generator=generator)
    vocabulary = sample_vocabulary(head, everything(head), labels, 50, generator)
    means = target_means(vocabulary, states)
    ours = mixed_cross_entropy(hidden, vocabulary, vocabulary.index[labels], means, rows, soft)
    wanted = torch.softmax(states @ head.T, -1)[rows] * soft + F.one_hot(labels, 50) * (1 - soft)
    theirs = F.cross_entropy(hidden @ head.T, wanted)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.autograd.grad(3 * ours, hidden)[0],
        torch.autograd.grad(3 * theirs, hidden)[0],
        rtol=1e-3,
        atol=1e-6,
    )


def test_a_sampled_vocabulary_holds_what_it_must_and_as_many_as_asked_for() -> None:
    head = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    frequent, labels = torch.tensor([3, 5, 8]), torch.tensor([5, 700, 700, 999])
    made = sample_vocabulary(head, frequent, labels, 40, torch.Generator().manual_seed(1))
    assert made.weight.shape == (40, 4)
    assert (made.index >= 0).sum() == 40
    for token in (3, 5, 8, 700, 999):
        assert torch.equal(made.weight[made.index[token]], head[token])
        assert made.correction[made.index[token]] == 0
    drawn = made.correction[made.correction != 0]
    torch.testing.assert_close(drawn, torch.full((35,), (995 / 35)).log())
    again = sample_vocabulary(head, frequent, labels, 40, torch.Generator().manual_seed(1))
    assert torch.equal(made.index, again.index)


def test_drawn_tokens_stand_for_the_rest() -> None:
    """The normaliser over a sampled vocabulary is the whole one's in the mean: 400 draws, standard error
    under half a percent, so a true estimate leaves 2 % once in 10,000."""
    generator = torch.Generator().manual_seed(3)
    head, hidden = torch.randn(500, 8, generator=generator), torch.randn(8, generator=generator) * 0.3
    frequent = torch.arange(20)
    whole = (head @ hidden).exp().sum()
    sums = []
    for _ in range(400):
        made = sample_vocabulary(head, frequent, frequent[:1], 100, generator)
        sums.append((made.weight @ hidden + made.correction).exp().sum())
    assert abs(torch.stack(sums).mean() / whole - 1) < 0.02


def test_labels_enter_even_past_the_size_asked_for() -> None:
    head = torch.randn(100, 4)
    made = sample_vocabulary(head, torch.arange(10), torch.arange(20, 40), 5, torch.Generator())
    assert len(made.weight) == 30
    assert (made.correction == 0).all()
