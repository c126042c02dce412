"""Figures of lines: scores, pseudo-labels, temperature and thresholds over epochs, accuracy against coverage.

Each function takes results and returns a figure, or None where the runs have nothing for it to draw. Averages over
tasks take the task × seed cells that every method finished, so that no method is shown on easier tasks than another;
bands are one standard deviation over seeds.

>>> score_curves(results).write(Path("figures"))
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.report.results import Floats, Result, ordered_methods, ordered_tasks
from bearcat.report.typeset import (
    NARROW,
    WIDE,
    ReportFigure,
    empty_figure,
    house_style,
    legend_columns,
    shortened,
    styles,
)

SCORES = {"accuracy": "accuracy", "ece": "ECE"}
PHASES = " Dotted lines: where alignment (T_DA), pseudo-labels (T_PL) and calibration (T_cal) begin."


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel of a figure: lines by name, of these runs, whose phases are marked."""

    curves: Mapping[str, MeanCurve]
    runs: Sequence[Result]
    label: str  # of the vertical axis
    title: str = ""


def score_curves(results: Sequence[Result]) -> ReportFigure | None:
    """Target accuracy and ECE over epochs, averaged over tasks; the paper's figure for one task."""
    kept = complete_cells(results)
    accuracy, ece = (by_method(kept, _reported(score)) for score in SCORES)
    caption = (
        f"Target accuracy (left) and ECE of 10 bins (right) after each epoch: {averaged_over(kept)}; the teacher's once"
        f" there is one, the student's before. At the end: accuracy {_ends(accuracy)}; ECE {_ends(ece)}.{PHASES}"
    )
    panels = [Panel(accuracy, kept, "target accuracy, %"), Panel(ece, kept, "target ECE, %")]
    return _line_figure("curves", "Target accuracy and ECE over epochs", caption, panels, ordered_methods(results))


def task_curves(results: Sequence[Result], score: str) -> ReportFigure | None:
    """A panel for each task: target "accuracy" or "ece" over epochs; None where there is but one task."""
    tasks, name = ordered_tasks(results), SCORES[score]
    if len(tasks) < 2:
        return None
    panels = []
    for place, task in enumerate(tasks):
        runs, label = [run for run in results if run.cell.task == task], "" if place % 3 else f"target {name}, %"
        panels.append(Panel(by_method(runs, _reported(score)), runs, label, task))
    title, bins = f"Target {name} over epochs, task by task", "ECE of 10 bins. " if score == "ece" else ""
    caption = f"{bins}Bands are one standard deviation over seeds."
    return _line_figure(f"curves-{score}-tasks", title, caption, panels, ordered_methods(results))


def pseudo_label_curves(results: Sequence[Result]) -> ReportFigure | None:
    """How many of the pseudo-labels are right, and how many target windows get one, over epochs."""
    kept = complete_cells([result for result in results if "pseudo_label_share" in result.curves])
    right, share = (by_method(kept, _column(f"pseudo_label_{name}", 100)) for name in ("accuracy", "share"))
    judged = f"right at the end: {_ends(right)}" if right else "no labels to judge them by"
    caption = "Pseudo-labels the student learns from"
    caption += f": {averaged_over(kept)}; {judged}; windows with one: {_ends(share)}.{PHASES}" if kept else ""
    panels = [Panel(right, kept, "right among pseudo-labels, %")] if right else []
    panels.append(Panel(share, kept, "target windows labelled, %"))
    return _line_figure("pseudo-labels", "Pseudo-labels over epochs", caption, panels, ordered_methods(results))


def temperature_curves(results: Sequence[Result]) -> ReportFigure | None:
    """The fitted temperature over epochs, methods that have one."""
    kept = complete_cells([run for run in results if np.isfinite(run.curves.get("temperature", np.nan)).any()])
    if not kept:
        return None
    found, bounded = by_method(kept, _column("temperature")), sum(run.record.at_bound for run in kept)
    caption = (
        f"Temperature that divides the teacher's logits: {averaged_over(kept)}. At the end: {_ends(found, '{:.2f}')};"
        f" at a bound in {bounded} of {len(kept)}. Above 1 the confidence is lowered.{PHASES}"
    )
    panels = [Panel(found, kept, "temperature")]
    return _line_figure("temperature", "Temperature over epochs", caption, panels, ordered_methods(results))


def threshold_curves(results: Sequence[Result]) -> ReportFigure | None:
    """Per-class thresholds over epochs, a panel for each method that has them."""
    adaptive = [run for run in results if run.record.settings.adaptive_thresholds]
    kept = complete_cells([run for run in adaptive if any(name.startswith("threshold:") for name in run.curves)])
    columns = [name for run in kept for name in run.curves if name.startswith("threshold:")]
    classes = list(dict.fromkeys(name.removeprefix("threshold:") for name in columns))
    panels: list[Panel] = []
    for method in ordered_methods(kept):
        runs = [run for run in kept if run.cell.method == method]
        values = {name: [run.curves.get(f"threshold:{name}", np.array([])) for run in runs] for name in classes}
        curves = {name: mean_and_spread(several) for name, several in values.items()}
        panels.append(Panel(curves, runs, "" if panels else "threshold", method))
    caption = (
        "How confident the teacher must be for its label to count, class by class,"
        f" {f'mean over {len(kept)} runs' if len(kept) > 1 else 'of one run'}. A class that is seldom predicted with"
        " confidence gets a low threshold."
    )
    return _line_figure("thresholds", "Per-class thresholds over epochs", caption, panels, classes)


def coverage_curves(results: Sequence[Result]) -> ReportFigure | None:
    """Accuracy on the windows that are kept when the least confident ones are left to a person."""
    kept = complete_cells(results)
    share = np.linspace(0.05, 1, 96)
    found = by_method(kept, lambda result: _accuracy_at(result, share))
    half = int(np.argmin(np.abs(share - 0.5)))
    gains = "; ".join(f"{method} {curve.last:.1f} → {curve.mean[half]:.1f} %" for method, curve in found.items())
    caption = (
        f"What abstaining gains: accuracy on the most confident windows of the target against how many are kept,"
        f" {averaged_over(kept)}. All windows → the surer half: {gains}. A flat curve means the confidence does not"
        " separate right from wrong."
    )
    panels, methods = [Panel(found, (), "accuracy on them, %")], ordered_methods(results)
    figure = _line_figure("coverage", "Accuracy against coverage", caption, panels, methods, 100 * share)
    if figure is not None:
        figure.drawing.axes[0].set(xlabel="windows kept (most confident first), %", xlim=(0, 100))
    return figure


@house_style()
def _line_figure(
    name: str, title: str, caption: str, panels: Sequence[Panel], lines: Sequence[str], x: Floats | None = None
) -> ReportFigure | None:
    """The panels, three in a row at most, and a legend; `lines` are all names that may occur, in their order."""
    from matplotlib.lines import Line2D

    style_of = styles(lines)
    drawn = [line for line in style_of if any(line in panel.curves for panel in panels)]
    if not drawn:
        return None
    rows, columns = math.ceil(len(panels) / 3), min(3, len(panels))
    width, height = NARROW + 1 if columns == 1 else WIDE, 2.4 if columns < 3 else 1.75
    names = [shortened(line, 40) for line in drawn]
    fitting = legend_columns(names, width)
    figure = empty_figure(width, rows * height + 0.25 + 0.14 * math.ceil(len(drawn) / fitting))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=bool(panels[0].title)).flat
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, style_of, x)
    handles = [Line2D([], [], **style_of[line]) for line in drawn]
    figure.legend(handles, names, loc="outside lower center", ncols=fitting)
    return ReportFigure(name, title, caption, figure)


def _draw_panel(axis: Any, panel: Panel, style_of: Mapping[str, Any], x: Floats | None) -> None:
    """Mean lines with bands of one standard deviation; markers now and then, shifted so that they do not hide.

    Vertical lines say where phases begin if all runs agree.
    """
    for number, (name, curve) in enumerate(panel.curves.items()):
        at = np.arange(1, curve.mean.size + 1) if x is None else x
        every = max(1, curve.mean.size // 8)
        marked = (number * every // len(panel.curves), every)
        axis.plot(at, curve.mean, **style_of[name], markevery=marked, label=name)
        low, high = curve.mean - curve.spread, curve.mean + curve.spread
        axis.fill_between(at, low, high, color=style_of[name]["color"], alpha=0.15, linewidth=0)
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    axis.set_xlim(left=0)
    axis.set_xlabel("epochs trained")
    starts: dict[int, list[str]] = {}
    for sign in ("DA", "PL", "cal"):
        found = {phases[sign] for run in panel.runs if sign in (phases := run.record.settings.phases)}
        if len(found) == 1:
            starts.setdefault(found.pop(), []).append(f"$T_{{\\rm {sign}}}$")
    for start, signs in starts.items():
        axis.axvline(start, color="#777777", linestyle=(0, (2, 2)), linewidth=0.8, zorder=0)
        if not panel.title:
            place, text = axis.get_xaxis_transform(), ", ".join(signs)
            axis.text(start, 1.01, text, transform=place, ha="center", va="bottom", color="#444444", parse_math=True)
    axis.set_title(panel.title, fontsize=7.5)
    axis.set_ylabel(panel.label)
    if panel.label.endswith("%"):
        axis.set_ylim(top=min(101.5, axis.get_ylim()[1]))
    elif panel.label == "temperature" and axis.get_ylim()[1] > 20:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """Mean over tasks and seeds, and the standard deviation over seeds (nan for one)."""

    mean: Floats
    spread: Floats

    @property
    def last(self) -> float:
        """The last finite value of the mean."""
        return float(self.mean[np.isfinite(self.mean)][-1])


def complete_cells(results: Sequence[Result]) -> list[Result]:
    """The runs of those task × seed cells that every method finished; all runs where there is no such cell."""
    methods = {result.cell.method for result in results}
    finished: dict[tuple[str, int], set[str]] = {}
    for result in results:
        finished.setdefault((result.cell.task, result.cell.seed), set()).add(result.cell.method)
    return [result for result in results if finished[result.cell.task, result.cell.seed] == methods] or list(results)


def by_method(results: Sequence[Result], values_of: Callable[[Result], Floats | None]) -> dict[str, MeanCurve]:
    """For each method the curve of its runs: the mean over tasks for each seed, then mean and spread over seeds."""
    found: dict[str, MeanCurve] = {}
    for method in ordered_methods(results):
        seeds: dict[int, list[Floats]] = {}
        for result in results:
            values = values_of(result) if result.cell.method == method else None
            if values is not None and np.isfinite(values).any():
                seeds.setdefault(result.cell.seed, []).append(values)
        if seeds:
            found[method] = mean_and_spread([mean_and_spread(tasks).mean for tasks in seeds.values()])
    return found


def mean_and_spread(curves: Sequence[Floats]) -> MeanCurve:
    """Mean and standard deviation (n − 1) of curves, which may end early or have holes."""
    stack = np.full((len(curves), max((curve.size for curve in curves), default=0)), np.nan)
    for row, curve in zip(stack, curves, strict=True):
        row[: curve.size] = np.where(np.isfinite(curve), curve, np.nan)
    with warnings.catch_warnings():  # of columns with no or one number, which are nan
        warnings.simplefilter("ignore", RuntimeWarning)
        return MeanCurve(np.nanmean(stack, axis=0), np.nanstd(stack, axis=0, ddof=1))


def averaged_over(results: Sequence[Result]) -> str:
    """What a mean curve is a mean of."""
    tasks, seeds = ordered_tasks(results), {result.cell.seed for result in results}
    over = f"average of {len(tasks)} tasks" if len(tasks) > 1 else f"task {tasks[0]}"
    spread = f"mean ± standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    cells = {(result.cell.task, result.cell.seed) for result in results}
    uneven = len({result.cell for result in results}) < len(ordered_methods(results)) * len(cells)
    remark = "; methods differ in the tasks and seeds they finished, so lines do not compare" if uneven else ""
    return f"{over}, {spread}{remark}"


def accuracy_at_coverage(confidence: Floats, right: NDArray[np.bool_], share: Floats) -> Floats:
    """Accuracy on the most confident `share` of the windows; among equals, what a random order gives on average.

    The order of the file must not decide between equals: it is sorted by recording, so by class.
    """
    order = np.argsort(-confidence, kind="stable")
    hits = np.concatenate([[0.0], np.cumsum(right[order], dtype=np.float64)])
    ends = np.concatenate([[0], np.flatnonzero(np.diff(-confidence[order])) + 1, [confidence.size]])
    taken = np.maximum(share * confidence.size, 1)
    return np.asarray(np.interp(taken, ends, hits[ends]) / taken)


def _accuracy_at(result: Result, share: Floats) -> Floats | None:
    labels, predicted = np.array(result.predictions.label), np.array(result.predictions.predicted)
    known = labels != ""
    right = (labels == predicted)[known]
    return 100 * accuracy_at_coverage(result.predictions.confidence[known], right, share) if known.any() else None


def _column(name: str, scale: float = 1) -> Callable[[Result], Floats | None]:
    return lambda result: scale * result.curves[name] if name in result.curves else None


def _reported(score: str) -> Callable[[Result], Floats | None]:
    """The curve of what bearcat would report: the teacher's once there is one, the student's before."""

    def values(result: Result) -> Floats | None:
        student, teacher = (_column(f"target_{score}_{network}", 100)(result) for network in ("student", "teacher"))
        if student is None or teacher is None:
            return teacher if student is None else student
        return np.where(np.isfinite(teacher), teacher, student)

    return values


def _ends(curves: Mapping[str, MeanCurve], form: str = "{:.1f} %") -> str:
    """Where every curve ends, for a caption."""
    return ", ".join(f"{name} {form.format(curve.last)}" for name, curve in curves.items())
