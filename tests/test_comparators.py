"""benchmarks/specimen.py: features by hand, scores of recordings, and a table of every kind of method, small."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bearcat.data import load
from bearcat.data.datasets.simulate import Simulated
from bearcat.data.recording import Recording, resample


@pytest.fixture
def bench(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("specimen")


def test_features_of_a_sine_are_known(bench):
    time = np.arange(1200) / 12_000
    found = bench.hand_made(np.stack([2 * np.sin(2 * np.pi * 1010 * time), np.sign(np.sin(900 * time))]), 12_000)
    rms, peak, skewness, kurtosis, crest, shape, impulse, _, centre = found[0, :9]
    assert rms == pytest.approx(np.log(2**0.5), abs=1e-3)
    assert peak == pytest.approx(np.log(2), abs=1e-2)
    assert (skewness, kurtosis) == pytest.approx((0, 1.5), abs=1e-2)
    assert (crest, shape, impulse) == pytest.approx((2**0.5, np.pi / 8**0.5, np.pi / 2), rel=1e-2)
    assert centre == pytest.approx(1010, rel=1e-2)
    assert found.shape == (2, 28)


def fold_of(bench: Any, recordings: list[Recording]) -> Any:
    domains = list(dict.fromkeys(each.domain for each in recordings))
    source = tuple(each for each in recordings if each.domain != domains[-1])
    return bench.Fold("small", domains[-1], source, tuple(each for each in recordings if each.domain == domains[-1]))


def test_a_recording_is_what_its_windows_say_together_and_missed_faults_are_counted(bench):
    labels = ["healthy", "inner", "outer"]
    recordings = [
        Recording(signal=np.ones(8), domain=domain, label=label, origin="x") for domain in "ab" for label in labels
    ]
    fold = fold_of(bench, recordings)
    scores = np.log([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0.05, 0.9, 0.05], [0.7, 0.2, 0.1], [0.6, 0.2, 0.2]])
    recording = np.array([0, 1, 1, 2, 2])
    assert bench.recordings_right(scores, recording, fold) == (2, 1)
    assert bench.balanced_accuracy(scores, recording, fold) == pytest.approx((1 + 0.5 + 0) / 3)


def test_each_kind_of_method_has_its_row_and_learns_another_condition(bench):
    settings = Simulated(seconds=1.5, severities=(4.0,), faults=("inner", "outer"))
    made = [resample(each, 12_000) for each in load(settings.catalogue(), ["N15_M07_F10", "N15_M01_F10"])]
    names = {"healthy": "healthy", "inner-1": "inner", "outer-1": "outer"}
    fold = fold_of(bench, [replace(each, label=names[str(each.label)]) for each in made])
    methods = {
        "forest": bench.forest("hand-made"),
        "logistic": bench.logistic("envelope-orders", "log-spectrum", by="domain"),
        "recipe": bench.recipe("linear-source-only", None, {"schedule.batch": "8", "schedule.epochs": "30"}),
    }
    heading, _, *rows = bench.rows("small", [fold], methods, 1024, 1)
    assert "(of 3)" in heading
    for name, row in zip(methods, rows, strict=True):
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[1] == name
        assert float(cells[2]) >= 2
