"""Losses and thresholds against their slow twins, and how a loss of one run becomes one of a stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from bearcat.cat import View, loss_of, losses
from bearcat.fast.stacked import ModuleOfRun, Randomness
from tests.reference import loop as reference

LOGITS = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(0)) * 3


def view_of(features: torch.Tensor, labels: torch.Tensor) -> View:
    """What a stack (run, batch, feature) offers, or one run (batch, feature)."""
    nothing, ramp = features.new_zeros(len(features)), features.new_full(features.shape[:-2], 0.5)
    draw = torch.zeros_like(ramp, dtype=torch.int64)
    return View(labels.shape[-1], features, features, labels, None, None, None, nothing, nothing, draw, ramp)


@pytest.mark.parametrize(("sure", "temperature"), [(0, 1.0), (0, 2.0), (0, 5.0), (100, 2.0), (300, 2.0), (1000, 2.0)])
def test_class_confusion_and_its_gradient_are_the_twins_also_where_a_class_is_given_nothing_at_all(sure, temperature):
    """The last class has no window; in float32 the quotient is 0/0 from a difference of logits of about 210 on."""
    wide = sure * functional.one_hot(torch.arange(12) % 4, 5).double() + LOGITS[0].double()
    assert torch.isfinite(reference.mcc_loss(wide.float(), temperature)) == (sure < 200)
    theirs, ours = wide.clone().requires_grad_(), wide.float().requires_grad_()
    expected, found = reference.mcc_loss(theirs, temperature), losses.class_confusion(ours, temperature)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    gradients = (torch.autograd.grad(value, logits)[0] for value, logits in ((found, ours), (expected, theirs)))
    torch.testing.assert_close(*(gradient.double() for gradient in gradients), rtol=1e-3, atol=1e-6)


def squared_gap(view: View) -> torch.Tensor:
    gap = (view.source_features.mean(0) - view.target_features.mean(0)).square().sum()
    return view.ramp * gap if gap.item() > 0 else 0 * gap  # which asks for a number


class Scaled(nn.Module):
    """A number of each run's, times the sum of squares of each window's features."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

    def forward(self, values: torch.Tensor, randomness: Randomness) -> torch.Tensor:
        return self.weight[:, None] * values.square().sum(dim=2)


def test_a_loss_of_one_run_and_a_module_of_a_stack_are_taken_of_each_run():
    random = torch.Generator().manual_seed(0)
    features = torch.randn(3, 14, 5, generator=random, dtype=torch.float64, requires_grad=True)
    stack, scaled = view_of(features, torch.randint(2, (3, 8), generator=random)), Scaled()
    module, loss = ModuleOfRun(scaled, Randomness(torch.zeros(3).long())), loss_of(squared_gap, weight=2.0)

    def one_run(tensors):
        view = replace(stack, **tensors)
        return loss.loss(view), module(view.features).sum(), module.gradient(view.features).square().sum()

    tensors = {name: value for name, value in vars(stack).items() if isinstance(value, torch.Tensor)}
    gap, answers, slopes = torch.vmap(one_run)(tensors)
    for run in range(3):
        expected = (features[run, :8].mean(0) - features[run, 8:].mean(0)).square().sum()
        torch.testing.assert_close(gap[run], expected)
        torch.testing.assert_close(answers[run], (run + 1) * features[run].square().sum())
        torch.testing.assert_close(slopes[run], 4 * (run + 1) ** 2 * features[run].square().sum())
    for values in (gap, answers):
        (gradient,) = torch.autograd.grad(values[0], features, retain_graph=True)
        assert gradient[0].any()
        assert not gradient[1:].any()
    (twice,) = torch.autograd.grad(slopes.sum(), scaled.weight)
    torch.testing.assert_close(twice, 2 * slopes.detach() / scaled.weight.detach())
    with pytest.raises(RuntimeError, match="inside"):
        module(features)
