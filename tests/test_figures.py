"""What the figures show is what the runs say; and a person can read it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bearcat.cat.recipes import DEFAULT_RECIPE, RECIPES
from bearcat.errors import InputError
from bearcat.record import RecordedBins
from bearcat.report import figures
from bearcat.report.figures import mean_and_spread
from bearcat.report.results import Cell
from bearcat.report.stats import compare
from bearcat.report.typeset import file_name
from tests.made_records import made_result

METHODS = ("source-only", "DANN", "AT*", "CAT*-Temperature", "CAT*-Vector")


def made(folder: Path, methods=METHODS, tasks=("a→b", "b→a"), seeds=(0, 1), **changes):
    return [
        made_result(
            folder / f"{m}{t}{seed}", Cell("rig", "time", task, method, seed), 0.5 + 0.05 * m + 0.1 * t, **changes
        )
        for m, method in enumerate(methods)
        for t, task in enumerate(tasks)
        for seed in seeds
    ]


def every_picture(results):
    comparison = compare(results, "accuracy")
    found = [
        figures.score_curves(results), figures.pseudo_label_curves(results),
        figures.confusions(results),
        figures.reliability([run for run in results if run.cell.method == results[-1].cell.method]),
        figures.critical_difference(comparison, "accuracy"),
        figures.task_bars(results, comparison, "accuracy"),
    ]  # fmt: skip
    return [figure for figure in found if figure is not None]


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
    gaps = [m * abs(c - a) for m, c, a in zip(expected.mass, expected.confidence, expected.accuracy, strict=True) if m]
    assert merged.ece == pytest.approx(sum(gaps) / sum(expected.mass))
    assert figures.merge_bins([]) is None


def test_curves_of_unequal_length_and_with_holes_average_what_is_there():
    mean, spread = mean_and_spread([np.array([1.0, np.nan, 3.0]), np.array([3.0, 5.0])])
    assert mean.tolist() == [2.0, 5.0, 3.0]
    assert spread[0] == pytest.approx(np.sqrt(2))
    assert np.isnan(spread[1:]).all()


def test_the_curve_is_the_teachers_once_there_is_one_and_the_students_before(tmp_path: Path):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0))
    (tmp_path / "run" / "curves.csv").write_text(
        "epoch,target_accuracy_student,target_accuracy_teacher,target_ece_student,target_ece_teacher\n"
        "0,0.1,,0.5,\n1,0.2,,0.4,\n2,0.3,0.8,0.3,0.1\n"
    )
    picture = figures.score_curves([result])
    accuracy, ece = (
        next(line for line in axis.lines if line.get_label() == "CAT*-Temperature") for axis in picture.drawing.axes
    )
    assert accuracy.get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(accuracy.get_ydata(), [10, 20, 80])
    np.testing.assert_allclose(ece.get_ydata(), [50, 40, 10])
    assert "80.0 %" in picture.caption


def test_phases_are_marked_where_the_schedule_has_them_and_only_for_ingredients_that_are_in(tmp_path: Path):
    schedule = RECIPES["CAT*-Temperature"].for_input("time").in_epochs(6).schedule
    results = made(tmp_path / "all", epochs=6)
    lines = {
        line.get_xdata()[0]
        for line in figures.score_curves(results).drawing.axes[0].lines
        if line.get_color() == "#777777"
    }
    assert lines == {schedule.align_from, schedule.label_from, schedule.calibrate_from}
    for number, (method, phases) in enumerate({"source-only": 0, "dense-source-only": 0, DEFAULT_RECIPE: 1}.items()):
        alone = made(tmp_path / str(number), methods=(method,))  # the default calibrates, and has no other phase
        marked = [line for line in figures.score_curves(alone).drawing.axes[0].lines if line.get_color() == "#777777"]
        assert len(marked) == phases, method


def test_every_figure_is_written_in_three_formats_of_the_same_bytes_every_time(tmp_path: Path):
    results = made(tmp_path / "runs", methods=("source-only", "CAT*-Temperature"), seeds=(0,))
    assert len(every_picture(results)) == 6
    for figure, other in zip(every_picture(results)[2:4], every_picture(results)[2:4], strict=True):
        figure.write(tmp_path)
        for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
            content = (tmp_path / f"{file_name(figure.name)}.{suffix}").read_bytes()
            assert content.startswith(start)
            assert content == other.render(suffix), figure.name


def test_letters_are_at_least_seven_points_high_and_inside_the_figure(tmp_path: Path):
    methods = [f"{number}-a-recipe-with-a-very-long-name" for number in range(8)]
    for picture in every_picture(made(tmp_path, methods, tasks=("a→b",), seeds=(0,))):
        drawing = picture.drawing
        assert 3.5 <= drawing.get_figwidth() <= 7.0
        drawing.draw_without_rendering()
        axes = [axis for axis in drawing.axes if axis.get_visible()]
        written = [*drawing.texts, *(text for legend in drawing.legends for text in legend.get_texts())]
        written += [
            text for axis in axes for text in (*axis.texts, axis._left_title, axis.xaxis.label, axis.yaxis.label)
        ]
        ticks = [text for axis in axes for text in (*axis.get_xticklabels(), *axis.get_yticklabels())]
        assert min(text.get_fontsize() for text in (*written, *ticks) if text.get_text()) >= 7, picture.name
        for place, text in ((text.get_window_extent(), text.get_text()) for text in written if text.get_text()):
            assert place.x0 >= -1, (picture.name, text)
            assert place.y0 >= -1, (picture.name, text)
            assert place.x1 <= drawing.bbox.width + 1, (picture.name, text)
            assert place.y1 <= drawing.bbox.height + 1, (picture.name, text)


def test_a_critical_difference_diagram_has_one_bar_for_each_clique_from_its_best_to_its_worst():
    ranks = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    comparison = replace(compare([], "accuracy"), ranks=ranks, cliques=(("a", "b"), ("b", "c")), blocks_used=9)
    picture = figures.critical_difference(comparison, "ECE")
    bars = [line for line in picture.drawing.axes[0].lines if line.get_linewidth() == 3]
    assert sorted((min(bar.get_xdata()), max(bar.get_xdata())) for bar in bars) == [(1, 2), (2, 3)]
    assert bars[0].get_ydata()[0] != bars[1].get_ydata()[0], "cliques that share a method are drawn apart"
    assert [text.get_text() for text in picture.drawing.axes[0].texts] == [
        "a (1.00)",
        "b (2.00)",
        "(4.00) d",
        "(3.00) c",
    ]
    assert "9 task × seed cells" in picture.caption


def test_a_confusion_matrix_counts_every_labelled_window_of_all_runs(tmp_path: Path):
    results = made(tmp_path, methods=("DANN",), classes=("x", "y"))
    picture = figures.confusions(results)
    labels = [pair for run in results for pair in zip(run.predictions.label, run.predictions.predicted, strict=True)]
    shown = picture.drawing.axes[0].images[0].get_array()
    for row, true in enumerate(("x", "y")):
        total = sum(label == true for label, _ in labels)
        for column, guess in enumerate(("x", "y")):
            assert shown[row, column] == pytest.approx(labels.count((true, guess)) / total)


def test_bars_are_the_numbers_of_the_runs(tmp_path: Path):
    results = made(tmp_path, ("AT*", "CAT*-Temperature"))
    comparison = compare(results, "accuracy")
    bars = figures.task_bars(results, comparison, "accuracy")
    heights = sorted(bar.get_height() for bar in bars.drawing.axes[0].patches)
    assert heights == pytest.approx(sorted(100 * spread.mean for spread in comparison.cells.values()))


def test_without_target_labels_only_what_needs_none_is_drawn(tmp_path: Path):
    results = made(tmp_path, labelled=False)
    for run in results:  # the watcher has no numbers either
        path = run.folder / "curves.csv"
        lines = [line.split(",") for line in path.read_text().splitlines()]
        known = [
            i for i, name in enumerate(lines[0]) if not name.startswith("target_") and name != "pseudo_label_accuracy"
        ]
        path.write_text("\n".join(",".join(line[i] for i in known) for line in lines))
    assert figures.confusions(results) is None
    assert figures.score_curves(results) is None
    assert "no labels" in figures.pseudo_label_curves(results).caption
    assert len(figures.reliability([run for run in results if run.cell.method == "CAT*-Vector"]).drawing.axes) == 2


def test_names_with_signs_of_their_own_are_drawn_as_they_are(tmp_path: Path):
    names = ("$x^2", "_hidden", "内圈")
    results = made(tmp_path, methods=("CAT*-Temperature",), classes=names)
    for picture in every_picture(results)[2:4]:
        picture.render("svg")
    shown = [text.get_text() for text in figures.confusions(results).drawing.axes[0].get_yticklabels()]
    assert shown == list(names)


def test_a_file_is_named_so_that_every_system_takes_it():
    assert file_name("reliability-CAT*/x: <y>") == "reliability-CATstar-x-y"
    assert re.fullmatch(r"[\w.+=-]+", file_name("../../etc"))
    assert not file_name("../../etc").startswith(".")


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = made(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[report\]'"):
        figures.score_curves(results)
