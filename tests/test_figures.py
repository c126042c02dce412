"""What the figures show is what the runs say; and a person can read it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bearcat.bench.report import critical_difference
from bearcat.bench.stats import Pair, compare
from bearcat.record import RecordedBins
from bearcat.report import Cell, figures
from tests.made_records import made_result


def made(folder: Path, *methods: str, **changes):
    """Runs of these methods on two tasks."""
    cells = [Cell("rig", "time", task, method, 0) for method in methods for task in ("a→b", "b→a")]
    return [made_result(folder / str(n), cell, 0.5 + 0.1 * n, **changes) for n, cell in enumerate(cells)]


def recorded_bins(confidence: np.ndarray, right: np.ndarray) -> RecordedBins:
    """Ten bins by hand, counting windows, as a record has them."""
    place = np.clip(np.ceil(confidence * 10).astype(int) - 1, 0, 9)

    def means(values: np.ndarray) -> list[float | None]:
        return [float(values[place == bin].mean()) if (place == bin).any() else None for bin in range(10)]

    mass = [int((place == bin).sum()) for bin in range(10)]
    return RecordedBins(np.linspace(0, 1, 11).tolist(), mass, means(confidence), means(right))


def test_merged_reliability_bins_are_those_of_all_windows_together():
    random = np.random.default_rng(0)
    parts = [(random.uniform(0.3, 1, n), random.integers(0, 2, n).astype(float)) for n in (7, 40, 200)]
    merged = figures.merge_bins([recorded_bins(*part) for part in parts])
    whole = [np.concatenate(values) for values in zip(*parts, strict=True)]
    expected = recorded_bins(*whole)
    for name in ("mass", "confidence", "accuracy"):
        np.testing.assert_allclose(getattr(merged, name), np.array(getattr(expected, name), dtype=float))


def test_the_curve_is_the_teachers_once_there_is_one_and_the_students_before(tmp_path: Path):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0))
    (tmp_path / "run" / "curves.csv").write_text(
        "epoch,target_accuracy_student,target_accuracy_teacher,target_ece_student,target_ece_teacher\n"
        "0,0.1,,0.5,\n1,0.2,,0.4,\n2,0.3,0.8,0.3,0.1\n"
    )
    picture = figures.curves([result])
    accuracy, ece, *_ = (
        next(line for line in axis.lines if line.get_label() == "CAT*-Temperature") for axis in picture.drawing.axes
    )
    assert accuracy.get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(accuracy.get_ydata(), [10, 20, 80])
    np.testing.assert_allclose(ece.get_ydata(), [50, 40, 10])


def test_every_figure_is_written_in_three_formats_of_the_same_bytes_every_time(tmp_path: Path):
    results = made(tmp_path / "runs", "source-only", "CAT*-Temperature")
    for draw in (figures.reliability, figures.confusion, figures.curves):
        figure, other = draw(results), draw(results)
        for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
            content = figure.save(tmp_path / f"figure.{suffix}").read_bytes()
            assert content.startswith(start)
            assert content == other.render(suffix), figure.name


def test_dots_on_a_bar_of_a_critical_difference_diagram_are_methods_that_do_not_differ():
    ranks, equal = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, ("ab", "bd")
    pairs = tuple(Pair(*pair, 0.1, 0.01, 0.9 if "".join(pair) in equal else 0.01) for pair in combinations(ranks, 2))
    comparison = replace(compare([], "accuracy"), ranks=ranks, pairs=pairs, tasks=("x→y",) * 9)
    picture = critical_difference(comparison)
    bars = [line for line in picture.drawing.axes[0].lines if line.get_marker() == "o"]
    assert sorted(sorted(bar.get_xdata()) for bar in bars) == [[1, 2], [2, 4]], "no dot where c is"
    assert bars[0].get_ydata()[0] != bars[1].get_ydata()[0], "bars that share a method are drawn apart"
    texts = [text.get_text() for text in picture.drawing.axes[0].texts]
    assert texts == ["a (1.00)", "b (2.00)", "(4.00) d", "(3.00) c"]


def test_a_confusion_matrix_counts_every_labelled_window_of_all_runs(tmp_path: Path):
    results = made(tmp_path, "DANN", classes=("x", "y"))
    picture = figures.confusion(results)
    labels = [pair for run in results for pair in zip(run.predictions.label, run.predictions.predicted, strict=True)]
    shown = picture.drawing.axes[0].images[0].get_array()
    for row, true in enumerate(("x", "y")):
        total = sum(label == true for label, _ in labels)
        for column, guess in enumerate(("x", "y")):
            assert shown[row, column] == pytest.approx(labels.count((true, guess)) / total)
