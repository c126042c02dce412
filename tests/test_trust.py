"""Windows into recordings, and estimates without target labels: slow twins, promised coverage, no use of target labels."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bearcat.adaptation.evaluation import evaluate, run_checks
from bearcat.cat.algorithm import Run, train
from bearcat.cat.recipes import RECIPES, Schedule
from bearcat.cat.state import watcher
from bearcat.data import Preparation, Task, load, open_dataset, prepare, split_task
from bearcat.data.recording import BANDS, LEAST_SHARE, spectral_shape
from bearcat.diagnosis import pooling
from bearcat.diagnosis.pooling import pool, pooled_temperature, tally
from bearcat.errors import InputError
from tests.reference import trust as reference

CPU = torch.device("cpu")
quick = settings(max_examples=60, deadline=None)
RECIPE = replace(
    RECIPES["CAT*-Temperature"],
    schedule=Schedule(epochs=4, batch=16, align_from=0, label_from=1, calibrate_from=2, drops=(3,)),
)


@st.composite
def recordings(draw):
    """Log-probabilities (window, class) of a recording."""
    shape = (draw(st.integers(1, 12)), draw(st.integers(2, 5)))
    logits = draw(arrays(np.float64, shape, elements=st.floats(-20, 20, width=32)))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@quick
@given(recordings(), st.floats(0.1, 10))
def test_pooling_is_a_geometric_mean_and_a_recording_may_come_in_parts(values, temperature):
    found = pool(tally(values[:3]) + tally(values[3:]), temperature)
    raised = np.exp(values.mean(axis=0) / temperature)
    assert found.probabilities == pytest.approx(raised / raised.sum(), abs=1e-9)
    if np.ptp(np.sort(found.probabilities)[-2:]) > 1e-9:
        assert found.agreement == pytest.approx(np.mean(values.argmax(axis=1) == raised.argmax()))
    assert found.windows == len(values)


@pytest.mark.parametrize(("seed", "accuracy"), [(0, 0.6), (1, 0.5), (2, 0.99)])
def test_at_the_pooled_temperature_recordings_expect_so_many_right_windows(seed, accuracy):
    """Of recordings whose windows share most of their error, in no order."""
    drawn = np.random.default_rng(seed)
    shared = 2.0 * np.eye(4)[drawn.integers(4, size=12)] + 1.3 * drawn.standard_normal((12, 4))
    logits = shared[:, None] + 0.6 * drawn.standard_normal((12, 5, 4))
    windows = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    order = drawn.permutation(60)
    found = pooled_temperature(windows.reshape(60, 4)[order], np.repeat(np.arange(12), 5)[order], accuracy)

    def expected(temperature: float) -> float:
        counted = [tally(recording) for recording in windows]
        return sum(pool(each, temperature).probabilities @ each.votes for each in counted) / 60

    assert expected(found) == pytest.approx(accuracy) or (found == pytest.approx(1) and expected(1) < accuracy)


def test_without_windows_that_say_anything_or_an_estimate_the_pooled_temperature_is_one():
    uniform, none = np.log(np.full((3, 4), 0.25)), np.zeros((0, 3))
    for windows, expected in ((none, 0.9), (uniform, 0.9), (np.log([[0.9, 0.1]]), np.nan)):
        assert pooled_temperature(windows, np.zeros(len(windows), dtype=np.int64), expected) == 1.0


def test_bad_input_is_one_sentence():
    with pytest.raises(InputError, match="NaN"):
        tally(np.array([[0.0, np.nan]]))
    with pytest.raises(InputError, match="without a window"):
        pool(tally(np.zeros((0, 2))))


def made_windows(seed: int, windows: int, shift: float = 0.0, tone: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and signals of three classes; tone: a line at this frequency that is not in the features."""
    random = np.random.default_rng(seed)
    centre = random.integers(3, size=windows)
    features = np.eye(16)[centre] * 4 + 0.5 * random.standard_normal((windows, 16))
    features[:, 8:] += shift
    magnitudes = np.abs(random.standard_normal((windows, 1, 128))) * (
        1 + 4 * (np.arange(128) // 43 == centre[:, None, None])
    )
    magnitudes[..., tone] += 60 * (tone > 0)
    phases = np.exp(2j * np.pi * random.random(magnitudes.shape))
    return np.abs(features).astype(np.float32), np.fft.irfft(magnitudes * phases, 256).astype(np.float32)


def made_evidence(*words, **settings) -> tuple[np.ndarray, np.ndarray]:
    """Features and spectral shapes, as a familiarity takes them."""
    features, signals = made_windows(*words, **settings)
    return features, spectral_shape(signals)


def made_familiarity(seed: int) -> pooling.Familiarity:
    train, held_out = made_evidence(seed, 300), made_evidence(seed + 10_000, 200)
    return pooling.fit_familiarity(*train, np.arange(300) // 50, *held_out, np.arange(200) // 10)


def test_scores_of_strangeness_are_their_twins():
    fitted, (features, signals) = made_familiarity(0), made_windows(5, 6, 1.0)
    shapes = spectral_shape(signals)
    distance, odd = fitted.scores(features, shapes)
    for number in range(6):
        assert distance[number] == pytest.approx(reference.distance(fitted.features, features[number], 10), abs=1e-3)
        shape = reference.shape(np.abs(np.fft.rfft(signals[number, 0]))[:128], BANDS, LEAST_SHARE)
        assert shapes[number] == pytest.approx(shape, abs=1e-3)
        assert odd[number] == pytest.approx(reference.oddness(fitted.shapes, shape / fitted.scale, 10), rel=1e-3)


def test_windows_of_the_target_raise_no_more_alarms_than_allowed_and_others_do():
    shares = []
    for seed in range(40):
        windows = (
            made_evidence(500 + seed, 400), made_evidence(700 + seed, 50, shift=2.0),
            made_evidence(900 + seed, 50, tone=100),
        )  # fmt: skip
        familiarity = made_familiarity(seed)
        shares.append([familiarity.unfamiliar(*evidence).mean() for evidence in windows])
    same, shifted, with_tone = np.mean(shares, axis=0)
    assert same <= pooling.FALSE_ALARMS + 0.01  # a run has a spread of 0.018 here
    assert same > pooling.FALSE_ALARMS / 4, "the rate is shared by two scores, not wasted"
    assert shifted > 0.95
    assert with_tone > 0.95, "a line that the network overlooks is noticed all the same"


def relabelled(split, *labels):
    """The same task with other target labels, of one recording after the other."""
    pairs = zip(split.target.recordings, itertools.cycle(labels), strict=False)
    recordings = tuple(replace(recording, label=label) for recording, label in pairs)
    return replace(split, target=replace(split.target, recordings=recordings))


def test_no_estimate_depends_on_a_target_label():
    catalogue = open_dataset(
        "simulated", None, {"severities": "4", "faults": "inner,outer", "seconds": "1"}
    ).catalogue()
    task = Task("N15_M07_F10", "N09_M07_F10")
    source, target = (
        prepare(load(catalogue, [domain]), Preparation(input="frequency", length=256))
        for domain in ("N15_M07_F10", "N09_M07_F10")
    )
    splits = [split_task(task, source, target, "window", seed) for seed in (0, 1)]
    runs = [Run(RECIPE, split.training, seed) for seed, split in enumerate(splits)]
    outcome = train(runs, CPU, watcher([split.held_back for split in splits], CPU))

    def estimated(splits):
        return evaluate(outcome, splits, [run_checks(split, "time")[0] for split in splits])

    found, without = estimated(splits), estimated([relabelled(split, None) for split in splits])
    changed = estimated([relabelled(split, "unheard of", *split.classes[::-1]) for split in splits])
    assert [not each.evidence.calibrated for each in found] == outcome.calibration.at_bound.tolist()
    for each, *others in zip(found, changed, without, strict=True):
        for other in others:
            assert (each.estimates, each.evidence) == (other.estimates, other.evidence)
