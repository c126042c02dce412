"""What the figures show is what the runs say; and a person can read it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from bearcat.bench.report import critical_difference
from bearcat.bench.stats import Pair, compare
from bearcat.record import RecordedBins
from bearcat.report import Cell, figures
from tests.made_records import made_result


def made(folder: Path, *methods: str, **changes):
    """Runs of these methods on two tasks."""
    cells = [Cell("rig", "time", task, method, 0) for method in methods for task in ("a→b", "b→a")]
    return [made_result(folder / str(n), cell, 0.5 + 0.1 * n, **changes) for n, cell in enumerate(cells)]


def test_merged_reliability_bins_are_those_of_all_windows_together():
    edges = (0.0, 0.5, 1.0)
    one = RecordedBins(edges, (0, 3), (None, 0.9), (None, 1.0))
    other = RecordedBins(edges, (2, 1), (0.4, 0.7), (0.5, 0.0))
    merged = figures.merge_bins([one, other])
    assert (merged.edges, merged.mass) == (edges, (2, 4))
    np.testing.assert_allclose(merged.confidence, [0.4, (3 * 0.9 + 0.7) / 4])
    np.testing.assert_allclose(merged.accuracy, [0.5, 3 / 4])


def test_the_curve_is_the_teachers_once_there_is_one_and_the_students_before(tmp_path: Path):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0))
    (tmp_path / "run" / "curves.csv").write_text(
        "epoch,target_accuracy_student,target_accuracy_teacher,target_ece_student,target_ece_teacher\n"
        "0,0.1,,0.5,\n1,0.2,,0.4,\n2,0.3,0.8,0.3,0.1\n"
    )
    accuracy, ece, *_ = (axis.lines[0] for axis in figures.curves([result]).drawing.axes)
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
    shown = figures.confusion(results).drawing.axes[0].images[0].get_array()
    labels = [pair for run in results for pair in zip(run.predictions.label, run.predictions.predicted, strict=True)]
    counts = np.array([[labels.count((true, guess)) for guess in "xy"] for true in "xy"])
    np.testing.assert_allclose(shown, counts / counts.sum(axis=1, keepdims=True))
