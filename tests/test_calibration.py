"""Calibrators: identities they must satisfy, agreement with SciPy and scikit-learn, and behaviour at the extremes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from torch import Tensor

from bearcat.cat import CALIBRATORS, CPCS, Calibration, Evidence, Matrix, Temperature, Vector, find_calibrator
from bearcat.cat.calibration import read
from bearcat.cat.published import oversampled
from bearcat.cat.scaling import RIDGE, undersampled
from bearcat.errors import InputError
from bearcat.methods import PseudoCal, RecordingConfidence, TargetConfidence
from bearcat.methods.target_calibration import partners, updated_temperature
from tests.reference import calibration as reference

WIDE = (0.01, 100.0)
HEAD = 3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def draw_labels(logits: Tensor, seed: int = 0) -> Tensor:
    """Labels that the softmax of these logits would give."""
    flat = logits.softmax(-1).flatten(0, -2)
    return torch.multinomial(flat, 1, generator=torch.Generator().manual_seed(seed + 1000)).view(logits.shape[:-1])


def make(seed: int = 0, runs: int = 3, windows: int = 150, classes: int = 4, hotter: float = 2.0, shift: float = 0.0):
    """Evidence with overconfident logits (T ≈ `hotter`) and features; more source than target training windows."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits = 2 * normal(runs, windows, classes)
    return Evidence(
        source_logits=hotter * logits, source_labels=draw_labels(logits, seed),
        source_features=normal(runs, windows, 5), source_train_features=normal(runs, 90, 5),
        target_features=normal(runs, 60, 5) + shift, target_logits=hotter * 2 * normal(runs, 60, classes),
        target_recording=(torch.arange(60) % 7).repeat(runs, 1), head=lambda features: features @ HEAD[:, :classes].to(features), seeds=torch.arange(runs) + 7,
        target_accuracy=0.6 + 0.1 * torch.arange(runs),
    )  # fmt: skip


def pick(evidence: Evidence, run: int, alone: bool = False) -> Evidence:
    """One run of the evidence, with or without the run axis."""
    chosen = run if alone else slice(run, run + 1)
    fields = {name: value[chosen] for name, value in vars(evidence).items() if isinstance(value, Tensor)}
    return replace(evidence, **fields)


def only(calibration: Calibration, runs: list[int]) -> Calibration:
    """The calibration of some of the runs, in this order."""
    return calibration.changed(lambda tensor: tensor[runs])


def assert_same(first: Calibration, second: Calibration, tolerance: float = 1e-10) -> None:
    for name, tensor in first.state().items():
        torch.testing.assert_close(second.state()[name], tensor, rtol=tolerance, atol=tolerance)


every_calibrator = pytest.mark.parametrize("name", list(CALIBRATORS))


@every_calibrator
def test_a_stack_of_three_equals_three_alone(name):
    evidence, calibrator = make(shift=0.5), CALIBRATORS[name]()
    stacked = calibrator.fit(evidence)
    for run in range(3):
        assert_same(calibrator.fit(pick(evidence, run)), only(stacked, [run]))
        assert_same(calibrator.fit(pick(evidence, run, alone=True)), only(stacked, [run]))


def test_temperature_is_scipys():
    evidence = make(runs=2, windows=40, hotter=0.7)
    found = Temperature(WIDE).fit(evidence).temperature
    for run in range(2):
        rows, labels = evidence.source_logits[run], evidence.source_labels[run]
        best = optimize.minimize_scalar(
            lambda inverse: float(torch.nn.functional.cross_entropy(inverse * rows, labels)),  # noqa: B023
            bounds=(0.01, 100), method="bounded", options={"xatol": 1e-10},
        )  # fmt: skip
        assert found[run].item() == pytest.approx(1 / best.x, rel=1e-6)


@pytest.mark.parametrize("calibrator", [Temperature(), Temperature(WIDE), CPCS(), CPCS(WIDE)])
@pytest.mark.parametrize("margin", [1.0, 1e4])
def test_a_perfect_source_runs_to_the_lower_bound_and_says_so(calibrator, margin):
    evidence = make(shift=0.5)
    correct = margin * torch.nn.functional.one_hot(evidence.source_labels, 4).double()
    calibration = calibrator.fit(replace(evidence, source_logits=correct))
    lower = torch.full((3,), calibrator.bounds[0], dtype=torch.float64)
    torch.testing.assert_close(calibration.temperature, lower, rtol=1e-15, atol=0)
    assert calibration.at_bound.all()
    assert calibration.probabilities(correct).isfinite().all()


@pytest.mark.parametrize("calibrator", [Temperature(), CPCS(), Vector(), Matrix()])
def test_a_diverged_run_spoils_itself_alone(calibrator):
    evidence = make(shift=0.5)
    broken = evidence.source_logits.clone()
    broken[1, 4, 2] = torch.nan
    fitted, expected = calibrator.fit(replace(evidence, source_logits=broken)), calibrator.fit(evidence)
    assert_same(only(fitted, [0, 2]), only(expected, [0, 2]))
    assert not fitted.apply(broken)[1, 4].isfinite().all()


@pytest.mark.parametrize("spread", [1.0, 1e3])
@pytest.mark.parametrize("calibrator", [Vector(), Matrix()])
def test_vector_and_matrix_are_where_the_loss_is_level(calibrator, spread):
    """The loss is convex, so that is its minimum."""
    evidence = make(windows=60, classes=3, hotter=spread)
    fitted = calibrator.fit(evidence)
    parameters = fitted.scale if fitted.matrix is None else fitted.matrix, fitted.bias
    factor, offset = (parameter.clone().requires_grad_() for parameter in parameters)
    matrix = torch.diag_embed(factor) if fitted.matrix is None else factor
    scores = evidence.source_logits @ matrix.mT + offset[:, None]
    losses = torch.nn.functional.cross_entropy(scores.flatten(0, 1), evidence.source_labels.flatten(), reduction="none")
    ridge = RIDGE / 2 * ((matrix - torch.eye(3)).square().sum() + offset.square().sum())
    slopes = torch.autograd.grad(losses.sum() / 60 + ridge, (factor, offset))
    assert max(slope.abs().max() for slope in slopes) < 1e-10 * spread


@pytest.mark.parametrize(("solver", "shift"), [("newton", 0.7), ("newton", 6.0), ("scikit-learn", 0.0)])
def test_the_weights_of_cpcs_are_scikit_learns(solver, shift):
    """Of as many windows of both domains: some of the larger are left out, or some of the smaller are drawn again."""
    evidence, exact = make(shift=shift), solver == "newton"
    odds, windows = CPCS(solver=solver).log_weights(evidence), 60 if exact else 90
    places = (undersampled if exact else oversampled)((90, 60), evidence.seeds)
    assert [place.shape for place in places] == [(3, windows)] * 2
    assert [len(row.unique()) for row in places[0]] == [windows] * 3
    parts = list(zip((evidence.source_train_features, evidence.target_features), places, strict=True))
    for run in range(3):
        rows = torch.cat([part[run, place[run]] for part, place in parts])
        model = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(rows.numpy(), np.repeat([0, 1], windows))
        likely = model.predict_proba(evidence.source_features[run].numpy())
        np.testing.assert_allclose(odds[run].exp().numpy(), likely[:, 1] / likely[:, 0], rtol=1e-8 if exact else 1e-2)


@every_calibrator
def test_numpy_torch_float32_and_float64_agree(name):
    evidence, calibrator = make(shift=0.5), CALIBRATORS[name]()
    small = evidence.source_logits.float()  # numbers that both types hold
    double = replace(evidence, source_logits=small.double())
    arrays = {key: value.numpy() for key, value in vars(double).items() if isinstance(value, Tensor)}
    fitted = calibrator.fit(double)
    for fields in ({"source_logits": small}, arrays):
        assert_same(calibrator.fit(replace(double, **fields)), fitted, 1e-14)
    result = fitted.probabilities(small.numpy())
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, fitted.probabilities(small.double()).numpy(), atol=2e-6)
    assert fitted.apply(small.half()).dtype == torch.float32


def test_target_confidence_is_the_estimate_and_never_cooler_than_the_source():
    evidence = replace(make(), target_accuracy=torch.tensor([0.5, 0.55, 0.99]))
    fitted, source = TargetConfidence().fit(evidence), Temperature().fit(evidence)
    sure = fitted.probabilities(evidence.target_logits).amax(-1).mean(1)
    torch.testing.assert_close(sure[:2], torch.tensor([0.5, 0.55]).double(), atol=1e-7, rtol=0)
    assert fitted.temperature[2] == source.temperature[2]  # as sure as the source says, and no surer
    assert (fitted.temperature >= source.temperature).all()


def test_pseudocal_is_a_temperature_fitted_to_mixtures_of_unlike_windows():
    evidence = make(runs=1)
    other = partners(60, torch.tensor([7]))[0]
    assert sorted(other.tolist()) == list(range(60))
    assert (other != torch.arange(60)).all()
    features, labels = evidence.target_features[0], evidence.target_logits[0].argmax(-1)
    unlike = labels != labels[other]
    logits = (0.65 * features + 0.35 * features[other])[unlike] @ HEAD
    expected = Temperature().fit(Evidence(source_logits=logits, source_labels=labels[unlike]))
    assert_same(PseudoCal().fit(evidence), expected)


def test_recordings_say_how_many_windows_can_be_right_at_most():
    evidence = make(runs=2)
    predicted, recordings = evidence.target_logits.argmax(-1).tolist(), evidence.target_recording.tolist()
    agreement = [reference.window_agreement(*of_run) for of_run in zip(predicted, recordings, strict=True)]
    fitted = TargetConfidence().fit(replace(evidence, target_accuracy=agreement)).temperature
    other = torch.maximum(PseudoCal().fit(evidence).temperature, Temperature().fit(evidence).temperature)
    torch.testing.assert_close(RecordingConfidence().fit(evidence).temperature, (other * fitted).sqrt())


def test_labels_move_a_temperature_as_far_as_their_number_allows():
    evidence = make(runs=1, windows=40, hotter=3.0)
    weights = (1e-9, 1 / 40, 1.0, 1e6)  # of each label
    samples = (read(evidence.source_logits, evidence.source_labels, torch.full((1, 40), each)) for each in weights)
    path = [updated_temperature(sample, np.log(2)).item() for sample in samples]
    assert path == sorted(path)
    assert path[0] == pytest.approx(1.0, abs=1e-6)
    assert path[-1] == pytest.approx(Temperature(WIDE).fit(evidence).temperature.item(), rel=1e-6)


@dataclass(frozen=True)
class Astray:
    needs = ("target_logit",)


@pytest.mark.parametrize(
    ("calibrator", "word"),
    [
        ("Vektor", "'Vector'"), ("Vector:solver=adam", "solver"), ("CPCS:solver=sgd", "solver"),
        ("Temperature:bounds=2,1", "bounds"), (object(), "'object' must be a dataclass"),
        (Astray(), "'Astray' needs .*did you mean 'target_logits'"),
    ],
)  # fmt: skip
def test_what_is_no_calibrator_is_refused(calibrator, word):
    with pytest.raises(InputError, match=word):
        find_calibrator(calibrator)


@pytest.mark.parametrize(
    ("calibrator", "fields", "message"),
    [
        (CPCS(), {"source_features": None}, "source_features is missing"),
        (CPCS(), {"source_train_features": torch.zeros(3, 9, 2)}, "source_train_features"),
        (CPCS(), {"source_features": torch.zeros(3, 9, 5)}, "source_logits"),
        (CPCS(), {"seeds": torch.zeros(2)}, r"seeds.*\(3,\), not \(2,\)"),
        (PseudoCal(), {"head": None}, "head is missing"),
        (Temperature(), {"source_labels": torch.zeros(2, 2).long()}, "source_labels"),
        (Matrix(), {"source_labels": torch.full((3, 150), 4)}, "source_labels.* 0 … 3"),
        (Vector(), {"source_weight": -torch.ones(3, 150)}, "source_weight.* not negative"),
        (Temperature(), {"source_logits": torch.zeros(3)}, "source_logits.* axes"),
    ],
)
def test_missing_or_misshapen_evidence_is_named(calibrator, fields, message):
    with pytest.raises(InputError, match=message):
        calibrator.fit(replace(make(), **fields))


def test_a_calibration_refuses_logits_of_another_shape():
    with pytest.raises(InputError, match=r"\(3, window, 4\)"):
        Calibration.identity(3, 4).apply(torch.zeros(150, 4))
