"""Table 1, alignments and views: their formulas by plain twins, and what must hold of each method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from bearcat.cat import Evidence
from bearcat.cat.algorithm import Run, train
from bearcat.cat.ingredient import View
from bearcat.cat.recipes import RECIPES
from bearcat.cat.teacher import SelfTraining
from bearcat.errors import InputError
from bearcat.fast.stacked import Randomness, StackedDense
from bearcat.methods import StrongView, TransCal, views
from bearcat.methods.alignments import (
    ClassifierDiscrepancy,
    ConditionalAdversarial,
    CovarianceMatching,
    JointMatching,
    KernelMatching,
    Transport,
    Triplet,
    Uniformity,
    Wasserstein,
)
from tests.reference import alignments as reference
from tests.test_train import CPU, live, same_weights, still, toy

pytestmark = pytest.mark.usefixtures("narrow_classifier")
RANDOM = np.random.default_rng(0)
SIZES = 6, 5  # windows of a batch, of the source and of the target


def draws(runs: int = 2) -> Randomness:
    randomness = Randomness(torch.arange(runs))
    randomness.next()
    return randomness


@pytest.fixture(scope="module")
def view() -> View:
    """Two runs of a source batch and a smaller target batch."""
    features = torch.from_numpy(RANDOM.standard_normal((2, sum(SIZES), 4)))
    logits = torch.from_numpy(2 * RANDOM.standard_normal((2, sum(SIZES), 3)))
    labels, pseudo = (torch.from_numpy(RANDOM.integers(0, 3, (2, size))) for size in SIZES)
    selected = torch.tensor([True, False, True, False, True]).expand(2, -1)
    head = StackedDense(2, 4, 3).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.from_numpy(RANDOM.standard_normal(tuple(parameter.shape))))
    ramp, likely = torch.tensor([0.5], dtype=torch.float64), logits[:, SIZES[0] :].softmax(-1)
    return View(SIZES[0], logits, features, labels, pseudo, selected, likely, head, draws(), ramp)


def parts(values: torch.Tensor, run: int) -> tuple[np.ndarray, np.ndarray]:
    """A run's source and target windows."""
    array = values[run].detach().numpy()
    return array[: SIZES[0]], array[SIZES[0] :]


def test_moment_matching_is_the_twins(view):
    for run in range(2):
        (source, target), logits = parts(view.features, run), parts(view.logits, run)
        likely = [softmax(part, axis=1) for part in logits]
        for kind, expected in (
            (KernelMatching, reference.kernel_discrepancy([source], [target], [None])),
            (JointMatching, reference.kernel_discrepancy([source, likely[0]], [target, likely[1]], [None, [1.68]])),
            (CovarianceMatching, reference.coral(*logits)),
        ):
            found = kind(weight=3.0).loss(view)
            assert float(found[run]) == pytest.approx(1.5 * expected, rel=1e-6), kind


def test_transport_costs_what_linear_programming_says(view):
    sharp = Transport(features=0.1, labels=0.7, smoothing=0.002, rounds=2000)
    smooth = Transport(features=0.1, labels=0.7)
    full = replace(view, ramp=torch.ones_like(view.ramp))
    for run in range(2):
        (source, target), (_, logits) = parts(view.features, run), parts(view.logits, run)
        labels = view.labels[run].numpy()
        least = reference.least_transport(reference.joint_cost(source, labels, target, logits, 0.1, 0.7))
        assert float(sharp.loss(full)[run]) == pytest.approx(least, rel=0.01)
        assert float(smooth.loss(full)[run]) == pytest.approx(least, rel=0.2)


def test_triplets_are_the_twins(view):
    found = Triplet(2.0, 0.4).loss(view)
    for run in range(2):
        labels = [*view.labels[run].tolist(), *view.pseudo_labels[run].tolist()]
        counts = [True] * SIZES[0] + view.selected[run].tolist()
        features = view.features[run].numpy()
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
        expected = reference.triplet(features, labels, counts, 0.4)
        assert float(found[run]) == pytest.approx(2 * expected)


def test_uniformity_is_the_twins_and_least_for_equal_shares(view):
    for run in range(2):
        expected = reference.uniformity(parts(view.logits, run)[1])
        assert float(Uniformity(1.0).loss(view)[run]) == pytest.approx(expected)
        share = view.selected[run].double().mean().item()
        assert float(Uniformity(1.0, scaled=True).loss(view)[run]) == pytest.approx(share * expected)
    nothing = Uniformity(1.0, scaled=True).loss(replace(view, selected=None))
    assert torch.equal(nothing, torch.zeros_like(nothing))
    even = Uniformity(1.0).loss(replace(view, logits=torch.zeros_like(view.logits)))
    assert (even < Uniformity(1.0).loss(view)).all()


def test_cdan_reads_the_outer_product_and_entropy_weights_sure_windows(view):
    reads = []
    asked = replace(view, module=lambda joint, _: reads.append(joint) or joint.sum(dim=-1))
    plain, weighted = (ConditionalAdversarial(entropy=entropy).loss(asked) for entropy in (False, True))
    for run in range(2):
        means, entropies = [], []
        for truth, features, logits in zip((1, 0), parts(view.features, run), parts(view.logits, run), strict=True):
            likely = softmax(logits, axis=1)
            joint = np.array([np.outer(p, f).ravel() for p, f in zip(likely, features, strict=True)])
            place = slice(0, SIZES[0]) if truth else slice(SIZES[0], None)
            np.testing.assert_allclose(reads[0][run, place].detach().numpy(), joint)
            chance = 1 / (1 + np.exp(-joint.sum(axis=1)))
            means.append(-np.log(chance if truth else 1 - chance))
            entropies.append(1 + np.exp((likely * np.log(likely)).sum(axis=1)))
        assert plain[run].item() == pytest.approx(np.concatenate(means).mean())
        expected = np.mean([np.average(each, weights=sure) for each, sure in zip(means, entropies, strict=True)])
        assert weighted[run].item() == pytest.approx(expected)


def test_heads_part_on_the_target_and_the_encoder_joins_them(view):
    second = StackedDense(2, 4, 3).double()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    features = view.features.clone().requires_grad_()
    loss = ClassifierDiscrepancy().loss(replace(view, features=features, module=second))
    for run in range(2):
        outputs = [head(view.features)[run].softmax(-1).detach().numpy() for head in (view.head, second)]
        gap = np.abs(outputs[0] - outputs[1])[SIZES[0] :].mean()
        right = outputs[1][np.arange(SIZES[0]), view.labels[run]]
        assert loss[run].item() == pytest.approx(-np.log(right).mean() - gap)
    (of_features,) = torch.autograd.grad(loss.sum(), features, retain_graph=True)
    plain = features.detach()[:, SIZES[0] :].requires_grad_()
    gap = (view.head(plain).softmax(-1) - second(plain).softmax(-1)).abs().mean((1, 2))
    (towards,) = torch.autograd.grad(gap.sum(), plain)
    torch.testing.assert_close(of_features[:, SIZES[0] :], 0.5 * towards)  # the ramp's half; downhill in the gap


def test_the_critic_is_scored_by_means_and_its_slope(view):
    critic = torch.nn.Linear(4, 1).double()
    asked = replace(view, module=lambda features, _: critic(features)[..., 0])
    found = Wasserstein(penalty=10.0).loss(asked)
    slope = ((critic.weight.norm() - 1) ** 2).item()  # of a linear critic, everywhere
    for run in range(2):
        source, target = (critic(torch.from_numpy(part)).detach().numpy().mean() for part in parts(view.features, run))
        assert found[run].item() == pytest.approx(target - source + 10 * slope, rel=1e-5)


def test_adabn_is_source_only_with_the_targets_statistics():
    data = toy(target=32, dtype=np.float64)
    adapted, source = (train([Run(live(RECIPES[name]), data, 0)], CPU) for name in ("AdaBN", "source-only"))
    for (key, found), (_, expected) in zip(
        adapted.network.named_parameters(), source.student.named_parameters(), strict=True
    ):
        assert torch.equal(found, expected), key
    assert torch.equal(adapted.student.encoder.norms[0].running_mean, source.student.encoder.norms[0].running_mean)
    assert not torch.equal(adapted.network.encoder.norms[0].running_mean, source.student.encoder.norms[0].running_mean)


def test_the_consistency_loss_is_the_squared_difference_of_probabilities(view):
    chosen = SelfTraining(3.0, objective="squared")
    asked = replace(view, probabilities=view.source_logits[:, : SIZES[1]].softmax(-1))
    for run in range(2):
        source, target = (softmax(part, axis=1) for part in parts(view.logits, run))
        each = ((target - source[: SIZES[1]]) ** 2).mean(axis=1)[view.selected[run].numpy()]
        assert float(chosen.loss(asked)[run]) == pytest.approx(3 * each.sum() / SIZES[1])
    own = replace(view, probabilities=view.target_logits.softmax(-1))
    assert torch.equal(chosen.loss(own), torch.zeros(2, dtype=torch.float64))


def test_views_without_any_change_are_at():
    """With the dropout that their draws make, so without dropout."""
    nothing = {"resample": 0.0, "shift": 0.0, "stop": 0.0, "scale": 0.0, "snr": 0.0, "mask": 0.0}
    recipe = RECIPES["AT-views"].change("strong", **nothing).change("weak", **nothing)
    same_weights(*(train([Run(still(each), toy(), 0)], CPU) for each in (recipe, RECIPES["AT"])))
    with pytest.raises(InputError, match=r"strong\.mask"):
        StrongView(mask=2.0)


def test_perturbations_are_the_twins():
    windows = torch.from_numpy(RANDOM.standard_normal((2, 3, 1, 40)))
    randomness = draws()
    uniform = {layer: randomness.uniform(layer, 3).numpy() for layer in range(7)}
    assert all(0 <= value < 1 for values in uniform.values() for value in values.flat)
    moved = views.resampled(windows, randomness, 0.02, 1.0)
    stopped = views.band_stopped(windows, randomness, 0.2)  # 4 of 21 lines
    scaled = views.scaled(windows, randomness, 0.2)
    masked = views.masked(windows, randomness, 0.25)
    for run in range(2):
        for place in range(3):
            window = windows[run, place, 0].numpy()
            start, speed = int(uniform[0][run, place] * 40), 1 + 0.02 * (2 * uniform[1][run, place] - 1)
            np.testing.assert_allclose(moved[run, place, 0], reference.moved(window, start, speed))
            expected = reference.band_stopped(window, int(uniform[2][run, place] * 18), 4)
            np.testing.assert_allclose(stopped[run, place, 0], expected, atol=1e-9)
            np.testing.assert_allclose(scaled[run, place, 0], window * (0.8 + 0.4 * uniform[3][run, place]))
            first = int(uniform[6][run, place] * 31)
            expected = np.where((np.arange(40) >= first) & (np.arange(40) < first + 10), 0, window)
            np.testing.assert_allclose(masked[run, place, 0], expected)


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
    arrays = {name: value[0].numpy() for name, value in given.items()}
    found = float(TransCal().fit(Evidence(**given)).temperature)
    gaps = [reference.transcal_gap(**arrays)(found, power) for power in np.linspace(0.025, 1, 40)]
    assert 1 < found < 100
    assert min(gaps) < 1e-3
