"""Table 1, alignments and views: their formulas by plain twins, and what must hold of each method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from bearcat.cat import Evidence
from bearcat.cat.algorithm import Run, train
from bearcat.cat.ingredient import View
from bearcat.cat.recipes import RECIPES
from bearcat.cat.teacher import SelfTraining
from bearcat.errors import InputError
from bearcat.fast.stacked import uniform
from bearcat.methods import StrongView, TransCal, transforms
from bearcat.methods import alignments as losses
from tests.reference import alignments as reference
from tests.test_train import CPU, live, same_weights, still, toy

pytestmark = pytest.mark.usefixtures("narrow_classifier")
SIZES = 6, 5  # windows of a batch, of the source and of the target


@pytest.fixture(scope="module")
def view() -> View:
    """A source batch and a smaller target batch."""
    random, shapes = np.random.default_rng(0), ((sum(SIZES), 4), (sum(SIZES), 3), (3, 4), (3,))
    features, logits, head, bias = (torch.from_numpy(random.standard_normal(shape)) for shape in shapes)
    labels, pseudo = (torch.from_numpy(random.integers(0, 3, size)) for size in SIZES)
    selected, likely = torch.tensor([True, False, True, False, True]), logits[SIZES[0] :].softmax(-1)
    draw, ramp = torch.tensor(7), torch.tensor(0.5, dtype=torch.float64)
    return View(SIZES[0], 2 * logits, features, labels, pseudo, selected, likely, head, bias, draw, ramp)


def parts(values: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Source and target windows."""
    array = values.detach().numpy()
    return array[: SIZES[0]], array[SIZES[0] :]


def test_losses_are_their_twins(view):
    (source, target), logits = parts(view.features), parts(view.logits)
    likely, labels = [softmax(part, axis=1) for part in logits], view.labels.numpy()
    unit = view.features.numpy() / np.linalg.norm(view.features, axis=1, keepdims=True)
    every, selected = [*labels, *view.pseudo_labels.tolist()], view.selected.numpy()
    kernels = [source], [target], [None]
    joint = [source, likely[0]], [target, likely[1]], [None, [1.68]]
    triplet = reference.triplet(unit, every, [True] * SIZES[0] + selected.tolist(), 0.4)
    uniform_loss, other = reference.uniformity(logits[1]), likely[0][: SIZES[1]]
    taught, agreed = (replace(view, probabilities=torch.from_numpy(part)) for part in (other, likely[1]))
    squares = ((likely[1] - other) ** 2).mean(axis=1)[selected]
    # At half of the ramp, so that a weight of 2 is one of 1; triplets, uniformity and the teacher have no ramp.
    for loss, given, expected in (
        (losses.KernelMatching(weight=2.0), view, reference.kernel_discrepancy(*kernels)),
        (losses.JointMatching(weight=2.0), view, reference.kernel_discrepancy(*joint)),
        (losses.CovarianceMatching(weight=2.0), view, reference.coral(*logits)),
        (losses.Triplet(2.0, 0.4), view, 2 * triplet),
        (losses.Uniformity(1.0), view, uniform_loss),
        (losses.Uniformity(1.0, scaled=True), view, selected.mean() * uniform_loss),
        (losses.Uniformity(1.0, scaled=True), replace(view, selected=None), 0),
        (SelfTraining(3.0, objective="squared"), taught, 3 * squares.sum() / SIZES[1]),
        (SelfTraining(3.0, objective="squared"), agreed, 0),
    ):
        assert float(loss.loss(given)) == pytest.approx(expected, rel=1e-6), loss
    least = reference.least_transport(source, labels, target, logits[1], 0.1, 0.7)
    smooth = losses.Transport(weight=2.0, features=0.1, labels=0.7)
    for loss, near in ((smooth, 0.2), (replace(smooth, smoothing=0.002, rounds=2000), 0.01)):
        assert float(loss.loss(view)) == pytest.approx(least, rel=near)


def test_cdan_reads_the_outer_product_and_entropy_weights_sure_windows(view):
    reads = []
    asked = replace(view, module=lambda joint: reads.append(joint) or joint.sum(dim=-1))
    plain, weighted = (losses.ConditionalAdversarial(entropy=entropy).loss(asked) for entropy in (False, True))
    likely, truth = view.logits.softmax(dim=1), torch.arange(sum(SIZES)) < SIZES[0]
    joint = torch.stack([torch.outer(*window).flatten() for window in zip(likely, view.features, strict=True)])
    torch.testing.assert_close(reads[0], joint)
    errors = binary_cross_entropy_with_logits(joint.sum(dim=1), truth.double(), reduction="none")
    assert plain.item() == pytest.approx(errors.mean().item())
    sure = 1 + torch.exp((likely * likely.log()).sum(dim=1))
    means = [np.average(part, weights=of_part) for part, of_part in zip(parts(errors), parts(sure), strict=True)]
    assert weighted.item() == pytest.approx(np.mean(means))


def test_heads_part_on_the_target_and_the_encoder_joins_them(view):
    second, features = torch.nn.Linear(4, 3).double(), view.features.clone().requires_grad_()
    loss = losses.ClassifierDiscrepancy().loss(replace(view, features=features, module=second))
    target = features.detach()[SIZES[0] :].requires_grad_()
    gap = (view.head(target).softmax(-1) - second(target).softmax(-1)).abs().mean()
    learnt = cross_entropy(second(features[: SIZES[0]]), view.labels)
    assert loss.item() == pytest.approx((learnt - gap).item())
    (of_features,), (towards,) = torch.autograd.grad(loss, features), torch.autograd.grad(gap, target)
    torch.testing.assert_close(of_features[SIZES[0] :], 0.5 * towards)  # the ramp's half; downhill in the gap


def test_the_critic_is_scored_by_means_and_its_slope(view):
    class Critic(torch.nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return super().forward(features)[:, 0]

        def gradient(self, features: torch.Tensor) -> torch.Tensor:
            return self.weight.expand(len(features), -1)

    critic = Critic(4, 1).double()
    found = losses.Wasserstein(penalty=10.0).loss(replace(view, module=critic))
    source, target = (critic(torch.from_numpy(part)).mean().item() for part in parts(view.features))
    slope = ((critic.weight.norm() - 1) ** 2).item()  # of a linear critic, everywhere
    assert found.item() == pytest.approx(target - source + 10 * slope, rel=1e-5)


def test_adabn_is_source_only_with_the_targets_statistics():
    data = toy(target=32, dtype=np.float64)
    adapted, source = (train([Run(live(RECIPES[name]), data, 0)], CPU) for name in ("AdaBN", "source-only"))
    before, after, found = (network.state_dict() for network in (source.student, adapted.student, adapted.network))
    for name, value in before.items():
        assert torch.equal(after[name], value), name
        assert torch.equal(found[name], value) == ("running" not in name), name


def test_views_without_any_change_are_at():
    """With the dropout that their draws make, so without dropout."""
    nothing = {"resample": 0.0, "shift": 0.0, "stop": 0.0, "scale": 0.0, "snr": 0.0, "mask": 0.0}
    recipe = RECIPES["AT-views"].change("strong", **nothing).change("weak", snr=300.0)
    same_weights(*(train([Run(still(each), toy(), 0)], CPU) for each in (recipe, RECIPES["AT"])))
    with pytest.raises(InputError, match=r"strong\.mask"):
        StrongView(mask=2.0)


def test_perturbations_are_the_twins():
    windows, draw = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 1, 40))), torch.tensor(11)
    drawn = {layer: uniform(draw, layer, 3).numpy() for layer in range(7)}
    moved = transforms.resampled(windows, draw, 0.02, 1.0)
    stopped = transforms.band_stopped(windows, draw, 0.2)  # 4 of 21 lines
    scaled = transforms.scaled(windows, draw, 0.2)
    masked = transforms.masked(windows, draw, 0.25)
    for place, window in enumerate(windows[:, 0].numpy()):
        times = int(drawn[0][place] * 40) + (1 + 0.02 * (2 * drawn[1][place] - 1)) * np.arange(40)
        np.testing.assert_allclose(moved[place, 0], np.interp(times, np.arange(40), window, period=40))
        expected = reference.band_stopped(window, int(drawn[2][place] * 18), 4)
        np.testing.assert_allclose(stopped[place, 0], expected, atol=1e-9)
        np.testing.assert_allclose(scaled[place, 0], window * (0.8 + 0.4 * drawn[3][place]))
        first = int(drawn[6][place] * 31)
        expected = np.where((np.arange(40) >= first) & (np.arange(40) < first + 10), 0, window)
        np.testing.assert_allclose(masked[place, 0], expected)


def test_transcal_is_as_sure_of_the_target_as_the_weighted_source_suggests():
    """As many windows of each domain as of the other, so that none is drawn; the original's search ends elsewhere."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (1, 90), generator=generator)
    logits = torch.randn(1, 90, 4, generator=generator).double() + 4 * torch.nn.functional.one_hot(labels, 4)
    labels = torch.where(torch.rand(1, 90, generator=generator) < 0.1, (labels + 1) % 4, labels)
    features = logits[..., :3] @ torch.ones(3, 5).double()
    given = {
        "source_logits": logits, "source_labels": labels, "source_features": features,
        "source_train_features": features + 0.1,
        "target_features": 0.7 * torch.randn(1, 90, 5, generator=generator).double() + 0.4,
        "target_logits": 3 * torch.randn(1, 90, 4, generator=generator).double(),
    }  # fmt: skip
    found = float(TransCal().fit(Evidence(**given)).temperature)
    gap = reference.transcal_gap(**{name: value[0] for name, value in given.items()})
    gaps = [gap(found, power) for power in np.linspace(0.025, 1, 40)]
    assert 1 < found < 100
    assert min(gaps) < 1e-3
