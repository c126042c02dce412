"""What the figures show is what the runs say; and a person can read it."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES
from bearcat.report import curves, figures
from bearcat.report.drawing import complete_cells, extremes, file_name, mean_and_spread, styles, tasks_of
from bearcat.report.plots import Bins
from bearcat.report.results import Cell
from bearcat.report.stats import compare
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
        curves.score_curves(results), curves.task_curves(results, "accuracy"), curves.task_curves(results, "ece"),
        curves.pseudo_label_curves(results), curves.temperature_curves(results), curves.threshold_curves(results),
        curves.coverage_curves(results), figures.task_bars(results, "accuracy"), figures.task_bars(results, "ece"),
        figures.confusions(results), figures.reliability([one for one in results if one.cell.method == results[-1].cell.method]),
        figures.critical_difference(
            comparison.methods, comparison.average_ranks, comparison.cliques, "accuracy", comparison.blocks_used
        ),
    ]  # fmt: skip
    return [one for one in found if one is not None]


def bins_of(confidence: np.ndarray, right: np.ndarray) -> Bins:
    """Ten bins by hand, counting windows."""
    edges = np.linspace(0, 1, 11)
    place = np.clip(np.ceil(confidence * 10).astype(int) - 1, 0, 9)
    mass = np.array([(place == bin).sum() for bin in range(10)], dtype=float)
    mean = [
        [values[place == bin].mean() if (place == bin).any() else np.nan for bin in range(10)]
        for values in (confidence, right)
    ]
    ece = sum(mass[b] * abs(mean[0][b] - mean[1][b]) for b in range(10) if mass[b]) / mass.sum()
    return Bins(edges, mass, np.array(mean[0]), np.array(mean[1]), ece)


def test_merged_reliability_bins_are_those_of_all_windows_together():
    random = np.random.default_rng(0)
    parts = [(random.uniform(0.3, 1, n), random.integers(0, 2, n).astype(float)) for n in (7, 40, 200)]
    merged = figures.merge_bins([bins_of(*part) for part in parts])
    whole = bins_of(*(np.concatenate(one) for one in zip(*parts, strict=True)))
    np.testing.assert_allclose(merged.mass, whole.mass)
    np.testing.assert_allclose(merged.confidence, whole.confidence)
    np.testing.assert_allclose(merged.accuracy, whole.accuracy)
    assert merged.ece == pytest.approx(whole.ece)


def test_accuracy_at_coverage_takes_equally_confident_windows_in_every_order():
    confidence = np.array([0.9, 0.7, 0.7, 0.7, 0.4])
    right = np.array([True, False, True, True, False])
    share = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
    twin = []
    for order in itertools.permutations(range(5)):
        order = sorted(order, key=lambda one: -confidence[one])  # stable: keeps the permutation among equals
        twin.append(np.cumsum(right[list(order)]) / np.arange(1, 6))
    np.testing.assert_allclose(curves.accuracy_at_coverage(confidence, right, share), np.mean(twin, axis=0))


def test_abstaining_from_wrong_answers_that_are_unsure_reaches_full_accuracy():
    confidence = np.array([0.9, 0.8, 0.3, 0.2])
    right = np.array([True, True, False, False])
    assert curves.accuracy_at_coverage(confidence, right, np.array([0.5, 1.0])).tolist() == [1.0, 0.5]


def test_curves_of_unequal_length_and_with_holes_average_what_is_there():
    mean, spread, seeds = mean_and_spread([np.array([1.0, np.nan, 3.0]), np.array([3.0, 5.0])])
    assert mean.tolist() == [2.0, 5.0, 3.0]
    assert spread[0] == pytest.approx(np.sqrt(2))
    assert np.isnan(spread[1:]).all()
    assert seeds == 2


def test_averages_use_only_cells_that_every_method_finished(tmp_path: Path):
    results = made(tmp_path)
    lacking = [one for one in results if one.cell != Cell("rig", "time", "b→a", "DANN", 1)]
    kept = complete_cells(lacking)
    assert {(one.cell.task, one.cell.seed) for one in kept} == {("a→b", 0), ("a→b", 1), ("b→a", 0)}


def test_lines_that_do_not_compare_are_called_so(tmp_path: Path):
    results = made(tmp_path)
    disjoint = [one for one in results if (one.cell.method == "DANN") == (one.cell.task == "a→b")]
    assert "do not compare" in curves.score_curves(disjoint).caption
    assert "do not compare" not in curves.score_curves(results).caption


def test_the_curve_is_the_teachers_once_there_is_one_and_the_students_before(tmp_path: Path):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0))
    (tmp_path / "run" / "curves.csv").write_text(
        "epoch,target_accuracy_student,target_accuracy_teacher,target_ece_student,target_ece_teacher\n"
        "0,0.1,,0.5,\n1,0.2,,0.4,\n2,0.3,0.8,0.3,0.1\n"
    )
    picture = curves.score_curves([result])
    accuracy, ece = (
        next(line for line in axis.lines if line.get_label() == "CAT*-Temperature") for axis in picture.drawing.axes
    )
    assert accuracy.get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(accuracy.get_ydata(), [10, 20, 80])
    np.testing.assert_allclose(ece.get_ydata(), [50, 40, 10])
    assert "accuracy is 80.0 %" in picture.caption


def test_phases_are_marked_where_the_schedule_has_them_and_only_for_ingredients_that_are_in(tmp_path: Path):
    schedule = RECIPES["CAT*-Temperature"].for_input("time").in_epochs(6).schedule
    results = made(tmp_path / "all", epochs=6)
    lines = {
        line.get_xdata()[0]
        for line in curves.score_curves(results).drawing.axes[0].lines
        if line.get_color() == "#777777"
    }
    assert lines == {schedule.align_from, schedule.label_from, schedule.calibrate_from}
    plain = made(tmp_path / "plain", methods=("source-only",))
    assert not [line for line in curves.score_curves(plain).drawing.axes[0].lines if line.get_color() == "#777777"]


def test_every_figure_is_a_png_and_an_svg_of_the_same_bytes_every_time(tmp_path: Path):
    results = made(tmp_path / "runs")
    first, second = every_picture(results), every_picture(results)
    assert len(first) == 12
    for one, other in zip(first, second, strict=True):
        png, svg = one.write(tmp_path / "a")
        again = other.write(tmp_path / "b")
        assert png.read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in svg.read_bytes()[:1000]
        assert svg.read_bytes() == again[1].read_bytes(), one.name
        assert png.read_bytes() == again[0].read_bytes(), one.name


def test_letters_are_at_least_seven_points_high_and_inside_the_figure(tmp_path: Path):
    for picture in every_picture(made(tmp_path)):
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
        for place, text in ((one.get_window_extent(), one.get_text()) for one in written if one.get_text()):
            assert place.x0 >= -1, (picture.name, text)
            assert place.y0 >= -1, (picture.name, text)
            assert place.x1 <= drawing.bbox.width + 1, (picture.name, text)
            assert place.y1 <= drawing.bbox.height + 1, (picture.name, text)


def test_twelve_methods_in_a_critical_difference_diagram_do_not_overlap():
    methods = [f"CAT*-Method-{number}" for number in range(12)]
    ranks = [1.0, 1.01, 1.02, 1.03, 6, 6, 6, 6.01, 11.8, 11.9, 11.95, 12]
    picture = figures.critical_difference(methods, ranks, [methods[:4], methods[2:8], methods[8:]], "accuracy", 60)
    picture.drawing.draw_without_rendering()
    texts = [one for one in picture.drawing.axes[0].texts if one.get_text()]
    shown = [one.get_text() for one in texts]
    assert set(methods) <= set(shown)
    boxes = [one.get_window_extent() for one in texts]
    for (one, a), (other, b) in itertools.combinations(zip(shown, boxes, strict=True), 2):
        assert not (a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1), (one, other)


def test_a_critical_difference_diagram_has_one_bar_for_each_clique_from_its_best_to_its_worst():
    picture = figures.critical_difference(
        ["a", "b", "c", "d"], [1.0, 2.0, 3.0, 4.0], [("a", "b"), ("b", "c"), ("d",)], "ECE", 9
    )
    bars = [line for line in picture.drawing.axes[0].lines if line.get_linewidth() == 3]
    assert len(bars) == 2
    (first, second) = sorted(tuple(line.get_xdata()) for line in bars)
    step = (7 - 4) / 3
    np.testing.assert_allclose(first, [2 - 0.05, 2 + step + 0.05])
    np.testing.assert_allclose(second, [2 + step - 0.05, 2 + 2 * step + 0.05])
    assert bars[0].get_ydata()[0] != bars[1].get_ydata()[0], "cliques that share a method are drawn apart"
    assert "no proof that they are equal" in picture.caption
    assert "9 task × seed cells" in picture.caption


def test_the_caption_says_how_bars_and_bold_go_together(tmp_path: Path):
    """a and c do not differ, but b between them differs from a: bold in the table, and no bar."""
    ranked = (["a", "b", "c"], [1.0, 2.0, 3.0], [("b", "c")], "ECE", 9)
    caption = figures.critical_difference(*ranked, alike=("a", "c")).caption
    assert "do not differ significantly from the first alone" in caption
    assert "c is bold beside a though no bar joins them" in caption
    caption = figures.critical_difference(*ranked[:2], [("a", "b"), ("b", "c")], "ECE", 9, alike=("a", "b")).caption
    assert "from the first alone" in caption
    assert "though no bar" not in caption
    caption = figures.critical_difference(*ranked, alike=("a",), warning="With 2 cells nothing can be.").caption
    assert caption.endswith("With 2 cells nothing can be.")
    assert "old" not in caption, "only the best rank is bold then, and the table says so"


def test_methods_that_tie_in_rank_are_not_called_first_and_last():
    picture = figures.critical_difference(["a", "b"], [1.5, 1.5], [("a", "b")], "ECE", 4)
    assert "all at 1.50" in picture.caption
    assert "first" not in picture.caption
    picture = figures.critical_difference(["a", "b", "c"], [1.5, 1.5, 3.0], [("a", "b")], "ECE", 4)
    assert "a and b are first (1.50), c last (3.00)" in picture.caption


def test_tasks_are_in_the_order_of_their_numbers(tmp_path: Path):
    results = made(tmp_path, methods=("DANN",), tasks=("1200rpm→600rpm", "900rpm→600rpm", "600rpm→1200rpm"), seeds=(0,))
    assert tasks_of(results) == ("600rpm→1200rpm", "900rpm→600rpm", "1200rpm→600rpm")


def test_styles_of_twelve_methods_differ_without_their_colours():
    looks = styles([str(number) for number in range(12)])
    assert len({(str(one.dash), one.marker) for one in looks.values()}) == 12
    assert len({(one.colour, one.hatch) for one in looks.values()}) == 12


def test_bars_average_as_the_tables_do(tmp_path: Path):
    results = [one for one in made(tmp_path) if one.cell != Cell("rig", "time", "b→a", "DANN", 1)]
    averages = compare(results, "accuracy").averages
    picture = figures.task_bars(results, "accuracy")
    last = [patch for patch in picture.drawing.axes[0].patches if patch.get_x() > 1.5]
    np.testing.assert_allclose([one.get_height() for one in last], [100 * averages[method].mean for method in METHODS])
    best = max(averages, key=lambda one: averages[one].mean)
    assert f"{best} has the highest accuracy ({100 * averages[best].mean:.1f} %)" in picture.caption


def test_a_confusion_matrix_counts_every_labelled_window_of_all_runs(tmp_path: Path):
    results = made(tmp_path, methods=("DANN",), classes=("x", "y"))
    picture = figures.confusions(results)
    labels = [pair for one in results for pair in zip(one.predictions.label, one.predictions.predicted, strict=True)]
    shown = picture.drawing.axes[0].images[0].get_array()
    for row, true in enumerate(("x", "y")):
        total = sum(label == true for label, _ in labels)
        for column, guess in enumerate(("x", "y")):
            assert shown[row, column] == pytest.approx(100 * labels.count((true, guess)) / total)


def test_without_target_labels_only_what_needs_none_is_drawn(tmp_path: Path):
    results = made(tmp_path, labelled=False)
    for one in results:  # the watcher has no numbers either
        path = one.folder / "curves.csv"
        lines = [line.split(",") for line in path.read_text().splitlines()]
        known = [
            i for i, name in enumerate(lines[0]) if not name.startswith("target_") and name != "pseudo_label_accuracy"
        ]
        path.write_text("\n".join(",".join(line[i] for i in known) for line in lines))
    assert figures.task_bars(results, "accuracy") is None
    assert figures.confusions(results) is None
    assert curves.score_curves(results) is None
    assert curves.coverage_curves(results) is None
    assert curves.task_curves(results, "ece") is None
    assert "no labels" in curves.pseudo_label_curves(results).caption
    assert len(figures.reliability([one for one in results if one.cell.method == "CAT*-Vector"]).drawing.axes) == 2


def test_names_with_signs_of_their_own_are_drawn_as_they_are(tmp_path: Path):
    names = ("$x^2", "_hidden", "内圈")
    results = made(tmp_path, methods=("CAT*-Temperature",), classes=names)
    for picture in every_picture(results):
        picture.write(tmp_path / "figures")
    legend = [text.get_text() for text in curves.threshold_curves(results).drawing.legends[0].get_texts()]
    assert legend == list(names)


def test_a_file_is_named_so_that_every_system_takes_it():
    assert file_name("reliability-CAT*/x: <y>") == "reliability-CATstar-x-y"
    assert re.fullmatch(r"[\w.+=-]+", file_name("../../etc"))
    assert not file_name("../../etc").startswith(".")


def test_of_tasks_that_methods_share_each_is_told_as_the_best(tmp_path: Path):
    results = made(tmp_path, ("source-only", "DANN", "AT*"))
    told = {one: curves.task_curves(results, one).caption for one in ("accuracy", "ece")}
    assert "Highest at the end, of 2 tasks: AT* on 2." in told["accuracy"]
    assert "of 2 tasks, ties counted for each: source-only on 2, DANN on 2, AT* on 2." in told["ece"]


def test_the_caption_of_a_reliability_diagram_says_how_full_its_fullest_bin_is(tmp_path: Path):
    results = made(tmp_path, ("source-only",))
    mass = sum(np.array(one.record["reliability"]["target"]["uncalibrated"]["mass"]) for one in results)
    assert f"{100 * mass.max() / mass.sum():.0f} % of the target" in figures.reliability(results).caption


def test_a_tie_is_told_as_a_tie():
    assert extremes({"a": 0.5, "b": 0.5, "c": 0.4}, True, "accuracy") == "a and b have the highest accuracy (50.0 %)"
    assert extremes({"a": 0.5, "b": 0.5}, True, "accuracy") == "all methods have the same accuracy (50.0 %)"
    assert extremes({"a": 0.5, "b": 0.4}, False, "ECE") == "b has the lowest ECE (40.0 %)"


def test_the_change_at_calibration_is_told_with_its_numbers(tmp_path: Path):
    result = made_result(tmp_path / "run", Cell("rig", "time", "a→b", "CAT*-Temperature", 0), epochs=6)
    start = result.record["settings"]["recipe"]["schedule"]["calibrate_from"]
    lines = ["epoch,pseudo_label_share,pseudo_label_accuracy"]
    lines += [f"{epoch},0.5,{0.6 if epoch < start else 0.7}" for epoch in range(6)]
    (tmp_path / "run" / "curves.csv").write_text("\n".join(lines))
    assert "CAT*-Temperature 60.0 → 70.0 %" in curves.pseudo_label_curves([result]).caption


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = made(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[report\]'"):
        curves.score_curves(results)


def test_the_gap_is_hatched_in_a_colour_of_its_own_in_the_svg_too(tmp_path: Path):
    picture = figures.reliability(made(tmp_path, methods=("CAT*-Temperature",)))
    (face, line) = re.search(rb'<pattern.*?fill="([^"]+)".*?stroke: (#\w+)', picture.render()[1], re.DOTALL).groups()
    assert line == b"#d55e00"
    assert face != line, "a hatch in its face's colour cannot be seen"
