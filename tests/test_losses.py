"""Losses and thresholds against their slow twins, run by run."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from bearcat.cat import View, loss_of, losses, teacher
from bearcat.cat.losses import reverse_gradient
from bearcat.cat.sam import climb
from bearcat.fast import Randomness
from tests.reference import loop as reference

LOGITS = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_class_confusion_is_the_twins_and_so_is_its_gradient(temperature):
    logits = LOGITS.clone().requires_grad_()
    result = losses.class_confusion(logits, temperature)
    result.sum().backward()
    for run in range(3):
        alone = LOGITS[run].clone().requires_grad_()
        expected = reference.mcc_loss(alone, temperature)
        expected.backward()
        torch.testing.assert_close(result[run].detach(), expected.detach())
        torch.testing.assert_close(logits.grad[run], alone.grad)


@pytest.mark.parametrize("sure", [100.0, 300.0, 1000.0])
def test_class_confusion_is_a_number_where_a_class_is_given_nothing_at_all(sure):
    """The last class has no window; in float32 the quotient is 0/0 from a difference of logits of about 210 on."""
    wide = sure * functional.one_hot(torch.arange(12) % 4, 5).double() + LOGITS[0, :12, :5].double()
    assert torch.isfinite(reference.mcc_loss(wide.float())) == (sure < 200)
    expected, result = wide.clone().requires_grad_(), wide.float()[None].requires_grad_()
    reference.mcc_loss(expected).backward()
    found = losses.class_confusion(result, 2.0)
    found.sum().backward()
    torch.testing.assert_close(found[0].detach().double(), reference.mcc_loss(wide), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.grad[0].double(), expected.grad, rtol=1e-3, atol=1e-6)


def test_a_label_is_selected_by_its_own_classs_threshold():
    probabilities = torch.tensor([[[0.6, 0.4], [0.4, 0.6]]])
    label, selected = teacher.select(probabilities, torch.tensor([[0.5, 0.7]]))
    assert label.tolist() == [[0, 1]]
    assert selected.tolist() == [[True, False]]
    assert teacher.select(probabilities, torch.tensor([[0.6, 0.0]]))[1].tolist() == [[True, True]]  # at least


def test_the_gradient_is_reversed_and_scaled_for_each_run():
    values = torch.ones(2, 3, 4, requires_grad=True)
    result = reverse_gradient(values, torch.tensor([0.5, 0.0]))
    assert torch.equal(result, values)
    result.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad[0], torch.full((3, 4), -0.5))
    assert torch.equal(values.grad[1], torch.zeros(3, 4))


def test_a_climb_goes_as_far_as_the_radius_in_every_run():
    parameters = [torch.randn(2, 3, 4), torch.randn(2, 5)]
    gradients = [torch.randn(2, 3, 4), torch.randn(2, 5)]
    start = [parameter.clone() for parameter in parameters]
    before = climb(parameters, gradients, 0.05)
    moves = [(now - then).flatten(1) for now, then in zip(parameters, start, strict=True)]
    moved = torch.linalg.vector_norm(torch.cat(moves, dim=1), dim=1)
    torch.testing.assert_close(moved, torch.full((2,), 0.05), rtol=1e-4, atol=1e-7)
    assert all(torch.equal(kept, then) for kept, then in zip(before, start, strict=True))


def squared_gap(view: View) -> torch.Tensor:
    return view.ramp * (view.source_features.mean(0) - view.target_features.mean(0)).square().sum()


def test_a_loss_of_one_run_is_taken_of_each():
    random = torch.Generator().manual_seed(0)
    features = torch.randn(3, 14, 5, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(2, (3, 8), generator=random)
    randomness, ramp = Randomness(torch.zeros(3).long()), torch.tensor([0.5], dtype=torch.float64)
    view = View(8, features, features, labels, None, None, None, torch.nn.Identity(), randomness, ramp)
    found = loss_of(squared_gap, weight=2.0).loss(view)
    for run in range(3):
        expected = (features[run, :8].mean(0) - features[run, 8:].mean(0)).square().sum()
        torch.testing.assert_close(found[run], expected)
    (gradient,) = torch.autograd.grad(found[0], features)
    assert gradient[0].any()
    assert not gradient[1:].any()
