"""The slow twin of the training loop does what it says, before anything is compared with it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from tests.reference import loop
from tests.reference.loop import Data, Settings, Twin

CLASSES, LENGTH = 3, 128
EVERYTHING = Settings(
    epochs=8, batch=32, drops=(6,), align_from=2, label_from=3, calibrate_from=5, alignment=True, mcc=True, radius=0.05,
    teacher=True, momentum=0.9, calibration="temperature",
)  # fmt: skip
FROM_THE_START = replace(EVERYTHING, align_from=0, label_from=0, calibrate_from=0)


def waves(per_class: int, seed: int, noise: float, stretch: float = 1.0):
    """One tone per class in noise; the domains differ in noise and, slightly, in pitch."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    phases = 2 * math.pi * torch.rand(len(labels), 1, generator=generator)
    pitch = stretch * torch.tensor([4.0, 9.0, 20.0])[labels, None]
    values = torch.sin(2 * math.pi * pitch * torch.arange(LENGTH) / LENGTH + phases)
    values = values + noise * torch.randn(values.shape, generator=generator)
    values = (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)
    return values, labels


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(waves(24, 0, 0.3), waves(8, 1, 0.3), waves(20, 2, 0.5, 1.1)[0], waves(8, 3, 0.5, 1.1))


def make(settings: Settings, data: Data, seed: int = 0) -> Twin:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Twin(settings, data)


def steps(twin: Twin, count: int = 2, epoch: int = 0) -> Twin:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        twin.start_epoch(epoch)
        for number in range(count):
            twin.step(torch.arange(number, 72, 6), torch.arange(number, 60, 5))
    return twin


def norm(network: torch.nn.Module) -> torch.nn.BatchNorm1d:
    """The encoder's first."""
    return network.get_submodule("encoder.norms.0")  # type: ignore[return-value]


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    first, second = left.state_dict(), right.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_networks_have_the_papers_shapes():
    student = loop.make_student(13)
    features = student["encoder"](torch.randn(5, 1, 1024))
    assert features.shape == (5, 256)
    assert student["head"](features).shape == (5, 13)
    assert loop.DomainClassifier()(features).shape == (5,)
    names = dict(student.named_parameters()).keys() | dict(student.named_buffers()).keys()
    assert {
        "encoder.convolutions.0.weight",
        "encoder.norms.3.running_mean",
        "encoder.dense.1.bias",
        "head.weight",
    } <= names
    assert "dense.2.weight" in dict(loop.DomainClassifier().named_parameters())


def test_mcc_is_the_triple_loop():
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    count, classes = logits.shape
    chances = [[math.exp(value / 2) for value in row] for row in logits.tolist()]
    chances = [[value / sum(row) for value in row] for row in chances]
    weights = [1 + math.exp(sum(value * math.log(value) for value in row)) for row in chances]
    weights = [weight * count / sum(weights) for weight in weights]
    confusion = [[0.0] * classes for _ in range(classes)]
    for row_class in range(classes):
        for other in range(classes):
            for row in range(count):
                confusion[row_class][other] += weights[row] * chances[row][row_class] * chances[row][other]
    mass = 0.0
    for row_class in range(classes):
        for other in range(classes):
            mass += confusion[row_class][other] / sum(confusion[row_class]) if row_class != other else 0.0
    assert loop.mcc_loss(logits).item() == pytest.approx(mass / classes, rel=1e-12)


def test_mcc_does_not_differentiate_its_weights():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def weighted(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        chances = functional.softmax(values / 2, 1)
        confusion = (chances * weights[:, None]).T @ chances
        confusion = confusion / confusion.sum(1, keepdim=True)
        return (confusion.sum() - confusion.trace()) / 3

    chances = functional.softmax(logits / 2, 1)
    weights = 1 + torch.exp((chances * chances.log()).sum(1))
    first, second = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loop.mcc_loss(first).backward()
    weighted(second, weights).backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_class_thresholds_by_hand():
    confident, unsure = [0.95, 0.03, 0.02, 0.0], [0.5, 0.3, 0.1, 0.1]
    rows = [confident] * 4 + [confident[-1:] + confident[:-1]] * 2 + [unsure[::-1]] * 9  # counts 4, 2, 0, 0
    found = loop.class_thresholds(torch.tensor(rows, dtype=torch.float64), 0.9)
    assert found.tolist() == pytest.approx([0.9, 0.9 * 0.5 / 1.5, 0.0, 0.0])
    assert loop.class_thresholds(torch.tensor([unsure]), 0.9).tolist() == [0.0] * 4


def test_pseudo_label_loss_divides_by_the_batch_or_by_the_selected():
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0], [5.0, 1.0]])
    labels = torch.zeros(4, dtype=torch.long)
    selected = torch.tensor([True, True, False, False])
    assert loop.pseudo_label_loss(logits, labels, selected, "batch").item() == pytest.approx(2 * math.log(2) / 4)
    assert loop.pseudo_label_loss(logits, labels, selected, "selected").item() == pytest.approx(math.log(2))
    assert loop.pseudo_label_loss(logits, labels, ~selected & selected, "selected").item() == 0


def test_sam_climbs_a_parabola_by_hand():
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    bystander = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loop.textbook_sam_step(
        [weight],
        lambda: (weight**2).sum() / 2,  # gradient (3, 4), norm 5: climbs by a tenth of (3, 4)
        lambda: (weight**2).sum() / 2 + bystander**2,
        [torch.optim.SGD([weight], lr=0.5), torch.optim.SGD([bystander], lr=0.5)],
        radius=0.5,
    )
    assert weight.tolist() == pytest.approx([3 - 0.5 * 3.3, 4 - 0.5 * 4.4])
    assert bystander.item() == 0


def test_reversal_turns_and_scales_the_encoders_gradient_only():
    domain = loop.DomainClassifier(dropout=0.0)
    is_source = torch.tensor([1.0, 1.0, 0.0])
    gradients: dict[float, list[torch.Tensor]] = {}
    for coefficient in (-1.0, 0.3):
        features = torch.randn(3, 256, generator=torch.Generator().manual_seed(0)).requires_grad_()
        domain.zero_grad()
        loop.domain_loss(domain, features, is_source, coefficient).backward()
        found = (features.grad, domain.get_parameter("dense.0.weight").grad)
        gradients[coefficient] = [gradient.clone() for gradient in found if gradient is not None]
    torch.testing.assert_close(gradients[0.3][0], -0.3 * gradients[-1.0][0])
    torch.testing.assert_close(gradients[0.3][1], gradients[-1.0][1])


def test_the_reversal_ramp_counts_iterations_from_zero(data):
    twin = make(replace(EVERYTHING, teacher=False, mcc=False, radius=None), data)  # 3 iterations in each of 8 epochs
    steps(twin, 3, epoch=1)
    assert twin.progress == 0
    assert loop.reversal_coefficient(twin.progress) == 0
    steps(twin, 3, epoch=2)
    assert twin.progress == pytest.approx(1 / 6)
    assert loop.reversal_coefficient(1.0) == pytest.approx(math.tanh(5))


def test_radius_zero_is_no_sam(data):
    plain = steps(make(replace(FROM_THE_START, radius=0.0), data))
    other = steps(make(replace(FROM_THE_START, radius=None), data))
    climbed = steps(make(FROM_THE_START, data))
    assert same(plain.student, other.student)
    assert same(plain.domain, other.domain)
    assert not same(plain.student, climbed.student)


def test_the_textbook_step_of_radius_zero_is_adam():
    def layer_and_adam() -> tuple[torch.nn.Linear, torch.optim.Adam]:
        layer = copy.deepcopy(start)
        return layer, torch.optim.Adam(layer.parameters())

    start, inputs = torch.nn.Linear(4, 2), torch.randn(5, 4)
    plain, plain_adam = layer_and_adam()
    torch.mean(plain(inputs) ** 2).backward()
    plain_adam.step()
    sam, sam_adam = layer_and_adam()

    def loss() -> torch.Tensor:
        return torch.mean(sam(inputs) ** 2)

    loop.textbook_sam_step(sam.parameters(), loss, loss, [sam_adam], 0.0)
    assert same(plain, sam)


def test_momentum_one_keeps_the_teacher_and_zero_copies_the_student(data):
    fixed = make(replace(FROM_THE_START, momentum=1.0, teacher_statistics="averaged"), data)
    before = copy.deepcopy(fixed.student)
    steps(fixed)
    assert fixed.teacher is not None
    assert same(fixed.teacher, before)
    assert not same(fixed.teacher, fixed.student)

    copied = steps(make(replace(FROM_THE_START, momentum=0.0), data))
    assert copied.teacher is not None
    copied.move_teacher()
    for mine, theirs in zip(copied.teacher.parameters(), copied.student.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_teachers_statistics_are_the_targets_or_the_students_average(data):
    def statistics(settings: Settings):
        twin = make(settings, data)
        before = copy.deepcopy(norm(twin.student)).running_mean
        steps(twin, 1)
        assert twin.teacher is not None
        convolved = twin.teacher.get_submodule("encoder.convolutions.0")(data.target_train[::5])
        return before, norm(twin.teacher).running_mean, convolved.mean((0, 2))

    before, own, batch = statistics(FROM_THE_START)
    torch.testing.assert_close(own, 0.9 * before + 0.1 * batch)  # 0.1 is the norm's own momentum
    before, own, _ = statistics(replace(FROM_THE_START, teacher_statistics="averaged"))
    torch.testing.assert_close(own, before)  # the first average is of equals


@pytest.mark.parametrize(
    ("passes", "changes", "norm_updates"),
    [
        ("shared", {}, 4),  # two passes of source and target
        ("separate", {}, 5),  # the joint batch in the second pass only
        ("shared", {"radius": None}, 2),
        ("separate", {"radius": None}, 3),
        ("separate", {"radius": None, "mcc": False, "teacher": False}, 2),
        ("shared", {"alignment": False, "mcc": False, "teacher": False}, 2),  # source alone, twice
    ],
)
def test_each_kind_of_pass_forwards_as_often_as_it_says(data, passes, changes, norm_updates):
    twin = steps(make(replace(FROM_THE_START, passes=passes, **changes), data), 1)
    assert norm(twin.student).num_batches_tracked == norm_updates


def test_the_domain_classifier_rests_until_alignment_and_rates_drop_for_all(data):
    twin = make(EVERYTHING, data)
    before = copy.deepcopy(twin.domain)
    steps(twin, 1, epoch=1)
    assert same(twin.domain, before)
    assert twin.teacher is None
    steps(twin, 1, epoch=2)
    assert not same(twin.domain, before)
    twin.start_epoch(6)
    rates = [adam.param_groups[0]["lr"] for adam in (twin.student_optimiser, twin.domain_optimiser)]
    assert rates == pytest.approx([1e-4, 1e-4])


def test_temperature_undoes_a_known_scale():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 4, generator=generator)
    labels = torch.multinomial(functional.softmax(logits, 1), 1, generator=generator)[:, 0]
    plain = loop.best_temperature(logits, labels, bounds=(0.1, 100.0))
    assert plain == pytest.approx(1, abs=0.1)
    assert loop.best_temperature(5 * logits, labels) == pytest.approx(5 * plain, rel=1e-5)
    assert loop.best_temperature(100 * torch.eye(4), torch.arange(4)) == 1.0


def test_calibration_error_by_hand():
    probabilities = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.75, 0.25], [0.375, 0.625]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 0])
    assert loop.expected_calibration_error(probabilities, labels) == pytest.approx(0 + 0.5 * 0.25 + 0.25 * 0.625)
    assert loop.accuracy(probabilities, labels) == 0.5


def test_batches_pass_over_the_source_once_and_cycle_the_target():
    epochs = [list(epoch) for epoch in loop.random_batches(10, 6, 4, epochs=3, seed=0)]
    assert [[len(source) for source, _ in epoch] for epoch in epochs] == [[4, 4, 2]] * 3
    assert all(sorted(torch.cat([source for source, _ in epoch]).tolist()) == list(range(10)) for epoch in epochs)
    target = [index for epoch in epochs for _, index in epoch]
    passes = [torch.cat(target[start : start + 2]).tolist() for start in range(0, 8, 2)]
    assert all(sorted(indices) == list(range(6)) for indices in passes)
    assert passes[0] != passes[1]


@pytest.mark.parametrize("passes", ["shared", "separate"])
def test_everything_together_learns_the_waves(data, passes):
    history, thresholds = [], []

    def note(epoch: int, twin: Twin, losses: dict[str, float]) -> None:
        history.append(losses)
        thresholds.append(twin.thresholds)

    state = torch.get_rng_state()
    scores = loop.train(replace(EVERYTHING, passes=passes), data, seed=0, after_epoch=note)
    assert torch.equal(torch.get_rng_state(), state)
    assert history[-1]["supervised"] < history[0]["supervised"] / 2
    assert [losses["domain"] > 0 for losses in history] == [False] * 2 + [True] * 6
    assert [losses["mcc"] > 0 for losses in history] == [False] * 2 + [True] * 6
    assert [losses["share"] > 0 for losses in history] == [False] * 3 + [True] * 5
    assert thresholds[2].tolist() == pytest.approx([0.9] * 3)
    assert thresholds[-1].min() < 0.9
    assert scores["source"]["accuracy"] > 0.8
    assert set(scores["target"]) == {"accuracy", "ece", "calibrated accuracy", "calibrated ece"}


def test_training_repeats_itself_and_ignores_target_labels(data):
    values, labels = data.target_test
    settings = replace(FROM_THE_START, epochs=2)
    states = []

    def note(epoch: int, twin: Twin, losses: dict[str, float]) -> None:
        states.append(copy.deepcopy(twin.student))

    for guess in (labels, labels.flip(0)):
        loop.train(settings, replace(data, target_test=(values, guess)), seed=3, after_epoch=note)
    assert same(states[1], states[3])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_everything_together_learns_the_waves_on_a_gpu(data):
    scores = loop.train(EVERYTHING, data, seed=0, device="cuda")
    assert scores["source"]["accuracy"] > 0.8
