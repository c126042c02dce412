"""What the figures show is what the runs say; and a person can read it."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bearcat.errors import InputError
from bearcat.methods.recipe import DEFAULT_RECIPE, RECIPES
from bearcat.record import RecordedBins
from bearcat.report import figures
from bearcat.report.figures import complete_cells, mean_and_spread, sensitivities, styles, swept
from bearcat.report.results import Cell, ordered_tasks
from bearcat.report.stats import compare
from bearcat.report.typeset import chosen_formats, file_name
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
        figures.task_bars(results, comparison, "accuracy"), figures.calibration_gain(results),
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


def test_averages_use_only_cells_that_every_method_finished(tmp_path: Path):
    results = made(tmp_path)
    lacking = [run for run in results if run.cell != Cell("rig", "time", "b→a", "DANN", 1)]
    kept = complete_cells(lacking)
    assert {(run.cell.task, run.cell.seed) for run in kept} == {("a→b", 0), ("a→b", 1), ("b→a", 0)}


def test_lines_that_do_not_compare_are_called_so(tmp_path: Path):
    results = made(tmp_path)
    disjoint = [run for run in results if (run.cell.method == "DANN") == (run.cell.task == "a→b")]
    assert "do not compare" in figures.score_curves(disjoint).caption
    assert "do not compare" not in figures.score_curves(results).caption


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


def test_every_figure_is_a_png_and_an_svg_of_the_same_bytes_every_time(tmp_path: Path):
    results = made(tmp_path / "runs", methods=("source-only", "CAT*-Temperature"))
    first, second = every_picture(results), every_picture(results)
    assert len(first) == 6
    assert first[0].render("png") == second[0].render("png")
    for figure, other in zip(first, second, strict=True):
        png, svg = figure.write(tmp_path)
        assert png.startswith(b"\x89PNG")
        assert b"<svg" in svg[:1000]
        assert svg == other.render("svg"), figure.name
        for suffix, content in (("png", png), ("svg", svg)):
            assert (tmp_path / f"{file_name(figure.name)}.{suffix}").read_bytes() == content


def test_a_swept_setting_has_a_figure_with_a_line_for_each_method_and_the_means_of_its_values(tmp_path: Path):
    methods = ("source-only", *(f"DANN, alignment.weight={weight}, schedule.rate={rate}"
                                for weight in ("0.1", "1.0") for rate in ("0.001",)))  # fmt: skip
    comparison = compare(made(tmp_path, methods), "accuracy")
    (picture,) = sensitivities(comparison)  # the rate has one value
    assert picture.name == "sensitivity-alignment.weight-accuracy"
    (axis,) = picture.drawing.axes
    ((line, *_),) = (container.lines for container in axis.containers)
    expected = [100 * comparison.averages[method].mean for method in methods[1:]]
    assert line.get_xdata().tolist() == [0.1, 1.0]
    assert line.get_ydata().tolist() == pytest.approx(expected)
    assert axis.get_xscale() == "log"
    assert swept("AT, τ=0.95") == ("AT", {"τ": "0.95"})
    assert swept("ours, with care") == ("ours, with care", {})
    assert swept("ours, with care, a.b=1, c=d") == ("ours, with care", {"a.b": "1", "c": "d"})


def test_figures_can_be_written_as_pdf_and_eps(tmp_path: Path, monkeypatch):
    results = made(tmp_path / "runs", METHODS[:2])
    for figure in every_picture(results):
        png, pdf, eps = figure.write(tmp_path, ("png", "pdf", "eps"))
        # The others have the same fonts as the first, and matplotlib measures every letter of a font, in seconds.
        monkeypatch.setattr("matplotlib.backends.backend_ps._bounds", lambda _: (0, 0, 1, 1))
        assert pdf.startswith(b"%PDF")
        assert eps.startswith(b"%!PS-Adobe-3.0 EPSF")
        assert png.startswith(b"\x89PNG")
    assert chosen_formats("PDF, eps") == ("pdf", "eps")
    for text in ("tiff", ""):
        with pytest.raises(InputError, match="--figures"):
            chosen_formats(text)


@pytest.mark.parametrize("methods", [METHODS, [f"{number}-a-recipe-with-a-very-long-name" for number in range(8)]])
def test_letters_are_at_least_seven_points_high_and_inside_the_figure(tmp_path: Path, methods):
    fewer = {} if methods is METHODS else {"tasks": ("a→b",), "seeds": (0,)}
    for picture in filter(None, every_picture(made(tmp_path, methods, **fewer))):
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


def compared(ranks, *cliques):
    """A comparison of nine cells, of which the diagram shows ranks and cliques."""
    made = compare([], "accuracy")
    return replace(made, ranks=ranks, cliques=tuple(map(tuple, cliques)), blocks_used=9)


def test_twelve_methods_in_a_critical_difference_diagram_do_not_overlap():
    methods = [f"CAT*-Method-{number}" for number in range(12)]
    places = [1.0, 1.01, 1.02, 1.03, 6, 6, 6, 6.01, 11.8, 11.9, 11.95, 12]
    ranks = dict(zip(methods, places, strict=True))
    picture = figures.critical_difference(compared(ranks, methods[:4], methods[2:8], methods[8:]), "accuracy")
    picture.drawing.draw_without_rendering()
    texts = [text for text in picture.drawing.axes[0].texts if text.get_text()]
    shown = [text.get_text() for text in texts]
    assert set(methods) <= set(shown)
    boxes = [text.get_window_extent() for text in texts]
    for (first, a), (other, b) in itertools.combinations(zip(shown, boxes, strict=True), 2):
        assert not (a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1), (first, other)


def test_a_critical_difference_diagram_has_one_bar_for_each_clique_from_its_best_to_its_worst():
    ranks = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    picture = figures.critical_difference(compared(ranks, "ab", "bc"), "ECE")
    bars = [line for line in picture.drawing.axes[0].lines if line.get_linewidth() == 3]
    assert len(bars) == 2
    (first, second) = sorted(tuple(line.get_xdata()) for line in bars)
    step = (7 - 4) / 3
    np.testing.assert_allclose(first, [2 - 0.05, 2 + step + 0.05])
    np.testing.assert_allclose(second, [2 + step - 0.05, 2 + 2 * step + 0.05])
    assert bars[0].get_ydata()[0] != bars[1].get_ydata()[0], "cliques that share a method are drawn apart"
    assert "9 task × seed cells" in picture.caption


def test_tasks_are_in_the_order_of_their_numbers(tmp_path: Path):
    results = made(tmp_path, methods=("DANN",), tasks=("1200rpm→600rpm", "900rpm→600rpm", "600rpm→1200rpm"), seeds=(0,))
    assert ordered_tasks(results) == ("600rpm→1200rpm", "900rpm→600rpm", "1200rpm→600rpm")


def test_styles_of_twelve_methods_differ_without_their_colours():
    lines = styles([str(number) for number in range(12)])
    assert len({(str(style["linestyle"]), style["marker"]) for style in lines.values()}) == 12


def test_a_confusion_matrix_counts_every_labelled_window_of_all_runs(tmp_path: Path):
    results = made(tmp_path, methods=("DANN",), classes=("x", "y"))
    picture = figures.confusions(results)
    labels = [pair for run in results for pair in zip(run.predictions.label, run.predictions.predicted, strict=True)]
    shown = picture.drawing.axes[0].images[0].get_array()
    for row, true in enumerate(("x", "y")):
        total = sum(label == true for label, _ in labels)
        for column, guess in enumerate(("x", "y")):
            assert shown[row, column] == pytest.approx(100 * labels.count((true, guess)) / total)


def test_bars_and_gains_are_the_numbers_of_the_runs(tmp_path: Path):
    results = made(tmp_path, ("AT*", "CAT*-Temperature", "CAT-CPCS"))
    for number, run in enumerate(results):
        ece = 0.2 if run.cell.method == "AT*" else 0.05 + 0.01 * number
        scores = replace(run.record.scores, target=replace(run.record.scores.target, ece=ece))
        results[number] = replace(run, record=replace(run.record, scores=scores))
    gain = figures.calibration_gain(results)
    assert gain is not None
    (points,) = gain.drawing.axes[0].collections  # CAT-CPCS has no AT beside it
    errors = [run.score("target", "ece") for run in results if run.cell.method == "CAT*-Temperature"]
    assert points.get_offsets()[:, 0].tolist() == pytest.approx([20.0] * 4)
    assert sorted(points.get_offsets()[:, 1]) == pytest.approx(sorted(20 - 100 * error for error in errors))
    assert figures.calibration_gain([run for run in results if run.cell.method != "AT*"]) is None
    comparison = compare(results, "ece")
    bars = figures.task_bars(results, comparison, "ECE")
    assert bars is not None
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
    for picture in every_picture(results):
        picture.write(tmp_path / "figures")
    shown = [text.get_text() for text in figures.confusions(results).drawing.axes[0].get_yticklabels()]
    assert shown == list(names)


def test_a_file_is_named_so_that_every_system_takes_it():
    assert file_name("reliability-CAT*/x: <y>") == "reliability-CATstar-x-y"
    assert re.fullmatch(r"[\w.+=-]+", file_name("../../etc"))
    assert not file_name("../../etc").startswith(".")


def test_reliability_names_the_calibrator_that_made_the_probabilities(tmp_path: Path):
    (result,) = made(tmp_path, methods=("CAT*-Temperature",))[:1]
    recipe = dict(result.record.settings.values["recipe"]) | {"calibration": "temperature", "final": "vector"}
    settings = replace(result.record.settings, values=dict(result.record.settings.values) | {"recipe": recipe})
    other = replace(result, record=replace(result.record, settings=settings))
    assert "(vector)" in figures.reliability([other]).caption
    assert settings.phases["cal"] == result.record.settings.phases["cal"], "in training it is the first"


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = made(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[report\]'"):
        figures.score_curves(results)


def test_the_gap_is_hatched_in_a_colour_of_its_own_in_the_svg_too(tmp_path: Path):
    picture = figures.reliability(made(tmp_path, methods=("CAT*-Temperature",)))
    (face, line) = re.search(rb'<pattern.*?fill="([^"]+)".*?stroke: (#\w+)', picture.render("svg"), re.DOTALL).groups()
    assert line == b"#d55e00"
    assert face != line, "a hatch in its face's colour cannot be seen"
