"""Figures of a comparison: critical differences, scores by task, reliability, confusion, curves over epochs.

Each function takes results and returns a figure, or None where the runs have nothing for it to draw. Curves averaged
over tasks take the task × seed cells that every method finished, so that no method is shown on easier tasks than
another; bands are one standard deviation over seeds.

>>> confusions(results).write(Path("figures"))
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.record import RecordedBins, Reliability
from bearcat.report.results import Floats, Result, ordered_methods, ordered_names, ordered_tasks
from bearcat.report.stats import ALPHA, METRICS, Comparison
from bearcat.report.typeset import (
    NARROW,
    PALETTE,
    WIDE,
    ReportFigure,
    bench_library,
    count,
    empty_figure,
    house_style,
    shortened,
)
from bearcat.storage import write_atomically

BINS = {"ECE": "ECE of 10 bins"}  # in captions
GAP = PALETTE[1] + "40"  # see-through, so that a gap below the bar's top shows as well as one above
PHASES = " Dotted lines: where alignment (T_DA), pseudo-labels (T_PL) and calibration (T_cal) begin."
# Dashes and markers repeat the colours for grey print; seven dashes against eight colours repeat after 56 names.
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (8, 2)), (0, (3, 2)), "-")
MeanCurve = tuple[Floats, Floats]  # mean over tasks and seeds, and the standard deviation over seeds (nan for one)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How the lines of each name are drawn in every figure of a report, by its place among the names."""
    keys = {"color": PALETTE, "linestyle": DASHES, "marker": MARKERS}
    return {
        name: {key: values[place % len(values)] for key, values in keys.items()} | {"markersize": 3}
        for place, name in enumerate(names)
    }


def legend_columns(names: Sequence[str], width: float) -> int:
    """How many columns of a legend fit below a figure of so many inches; a letter takes some four points."""
    return max(1, min(len(names), int(72 * width / (4.4 * max(map(len, names)) + 34))))


@house_style()
def critical_difference(comparison: Comparison, score: str) -> ReportFigure:
    """Average ranks on a line, best on the left; bars join the methods that the tests cannot separate."""
    posthocs, pandas = bench_library("scikit_posthocs"), bench_library("pandas")
    rank, style_of = comparison.ranks, styles(ordered_names(comparison.ranks))
    joined = pandas.DataFrame(np.eye(len(rank)), index=list(rank), columns=list(rank))  # 1: no difference
    for clique in comparison.cliques:
        joined.loc[list(clique), list(clique)] = 1.0
    drawing = empty_figure(WIDE, 0.6 + 0.13 * len(comparison.cliques) + 0.19 * math.ceil(len(rank) / 2))
    axis = drawing.subplots()
    drawn = posthocs.critical_difference_diagram(
        dict(rank), joined, ax=axis, alpha=ALPHA, label_fmt_left="{label:.26} ({rank:.2f})",
        label_fmt_right="({rank:.2f}) {label:.26}", label_props={"fontsize": 8},
        color_palette={name: style["color"] for name, style in style_of.items()}, marker_props={"s": 14},
        elbow_props={"linewidth": 0.9}, crossbar_props={"linewidth": 3}, text_h_margin=0.02 * len(rank),
    )  # fmt: skip
    for label in drawn["labels"]:
        label.set_color("black")
    axis.set_xlabel("average rank (1 is best)")
    axis.xaxis.set_label_position("top")
    axis.spines["top"].set_visible(True)
    caption = (
        f"Average ranks of {BINS.get(score, score)} over {count(comparison.blocks_used, 'task × seed cell')}. A thick"
        f" bar joins neighbours of which no two differ significantly (Wilcoxon signed-rank, Holm, level {ALPHA:g}),"
        " which does not prove them equal. "
    )
    caption += comparison.warning or "Bold in the tables marks methods that do not differ from the best alone."
    return ReportFigure(f"ranks-{score}", f"Critical differences: {score}", caption, drawing)


def axis_label(comparison: Comparison) -> str:
    metric = METRICS[comparison.metric]
    return f"target {metric.label}{', %' if metric.unit == 'Percent' else ' × 100'}"


@house_style()
def task_bars(results: Sequence[Result], comparison: Comparison, score: str) -> ReportFigure | None:
    """A bar for each method in each task, mean and standard deviation over seeds, as the paper draws its tables."""
    tasks, methods = ordered_tasks(results), ordered_names(comparison.methods)
    if len(methods) < 2:
        return None
    drawing, style_of = empty_figure(WIDE, 2.5), styles(methods)
    axis, width = drawing.subplots(), 0.85 / len(methods)
    for number, method in enumerate(methods):
        cells = [(place, comparison.cells.get((method, task))) for place, task in enumerate(tasks)]
        bars = [(place, spread) for place, spread in cells if spread is not None]
        axis.bar(
            [place + (number - (len(methods) - 1) / 2) * width for place, _ in bars],
            [100 * spread.mean for _, spread in bars], width, label=shortened(method), color=style_of[method]["color"],
            yerr=[100 * np.nan_to_num(spread.sd) for _, spread in bars], error_kw={"linewidth": 0.5},
            edgecolor="black", linewidth=0.3, hatch="" if number < len(PALETTE) else "////",
        )  # fmt: skip
    turned = max(map(len, tasks), default=0) * len(tasks) > 90
    axis.set_xticks(range(len(tasks)), list(tasks), rotation=45 if turned else 0, ha="right" if turned else "center")
    axis.set_ylabel(axis_label(comparison))
    drawing.legend(loc="outside lower center", ncols=legend_columns([shortened(name) for name in methods], WIDE))
    spread = any(cell.sd == cell.sd for cell in comparison.cells.values())  # not with one seed
    lines = "; thin lines are one standard deviation over seeds" if spread else ""
    caption = f"Target {BINS.get(score, score)} of each method on each task{lines}."
    return ReportFigure(f"bars-{score}", f"Target {score}, task by task", caption, drawing)


@dataclass(frozen=True)
class Bins:
    """A reliability diagram's numbers: edges (bin + 1); windows, mean confidence and accuracy (bin)."""

    edges: Floats
    mass: Floats
    confidence: Floats
    accuracy: Floats

    @property
    def ece(self) -> float:
        return float(np.nansum(self.mass * np.abs(self.confidence - self.accuracy)) / max(self.mass.sum(), 1e-300))


@house_style()
def reliability(results: Sequence[Result]) -> ReportFigure | None:
    """One method: source and target, before and after calibration, all its runs together."""
    panels = _reliability_panels([result.record.reliability for result in results])
    if not panels:
        return None
    method, calibrator = results[0].cell.method, results[0].record.settings.calibrator
    errors = ", ".join(f"{title} {100 * bins.ece:.1f} %" for title, bins in panels)
    caption = (
        f"{method}{f' ({calibrator})' if calibrator else ''}: bars below the diagonal mean too much confidence."
        f" ECE of {len(panels[0][1].mass)} bins{f', {len(results)} runs pooled' if len(results) > 1 else ''}: {errors}."
        " A bar says nothing of how many windows it stands for."
    )
    return ReportFigure(f"reliability-{method}", f"Reliability of {method}", caption, _draw_reliability(panels))


@house_style()
def write_reliability(recorded: Reliability, path: Path) -> None:
    """The same figure of one run as a PNG, from its record's `reliability`."""
    figure = ReportFigure("reliability", "", "", _draw_reliability(_reliability_panels([recorded])))
    write_atomically(path, figure.render("png"))


def _reliability_panels(recorded: Sequence[Reliability]) -> list[tuple[str, Bins]]:
    """Title and bins of each panel that the records have numbers for."""
    panels = []
    for domain in ("source", "target"):
        known = [found for record in recorded if (found := getattr(record, domain))]
        for when, title in (("uncalibrated", "before calibration"), ("calibrated", "after calibration")):
            merged = merge_bins([bins for found in known if (bins := getattr(found, when))])
            if merged is not None:
                panels.append((f"{domain}, {title}", merged))
    if any("after" in title for title, _ in panels):
        return panels
    return [(title.partition(",")[0] + ", no calibration", bins) for title, bins in panels]


def merge_bins(recorded: Sequence[RecordedBins]) -> Bins | None:
    """Recorded reliability bins of several runs as if their windows were one set."""
    if not recorded:
        return None
    edges, mass, confidence, accuracy = (
        np.array([getattr(bins, name) for bins in recorded], dtype=np.float64)
        for name in ("edges", "mass", "confidence", "accuracy")
    )
    total = mass.sum(axis=0)
    windows = np.where(total > 0, total, np.nan)
    means = [np.nansum(mass * values, axis=0) / windows for values in (confidence, accuracy)]
    return Bins(edges[0], total, *means) if total.sum() else None


def _draw_reliability(panels: Sequence[tuple[str, Bins]]) -> Any:
    """Reliability diagrams in a row, as the paper draws them: accuracy as bars, gap to confidence, diagonal, ECE."""
    drawing = empty_figure(1.75 * len(panels) + (0.3 if len(panels) < 4 else 0), 2.3)
    axes = drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    box = {"facecolor": "white", "edgecolor": "grey", "boxstyle": "round,pad=0.25", "linewidth": 0.6}
    for axis, (title, bins) in zip(axes, panels, strict=True):
        filled = bins.mass > 0
        place: dict[str, Any] = {"x": bins.edges[:-1][filled], "width": np.diff(bins.edges)[filled], "align": "edge"}
        bars = axis.bar(height=bins.accuracy[filled], color=PALETTE[0], edgecolor="black", linewidth=0.6, **place)
        gap = place | {"height": (bins.confidence - bins.accuracy)[filled], "bottom": bins.accuracy[filled]}
        # Two layers, because matplotlib's SVG paints a hatch over a see-through face in the face's colour.
        tint = axis.bar(**gap, facecolor=GAP, edgecolor="none")
        hatch = axis.bar(**gap, facecolor="none", edgecolor=PALETTE[1], hatch="////", linewidth=0.6)
        axis.plot([0, 1], [0, 1], linestyle="--", color="grey", linewidth=1)
        text = f"ECE {100 * bins.ece:.1f} %"
        axis.text(0.05, 0.94, text, transform=axis.transAxes, va="top", fontsize=7, bbox=box)
        axis.set_title(title, fontsize=7.5)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", xticks=[0, 0.5, 1])
    axes[0].set_ylabel("accuracy")
    drawing.legend([bars, (tint, hatch)], ["accuracy", "gap to confidence"], loc="outside lower center", ncols=2)
    return drawing


@house_style()
def confusions(results: Sequence[Result]) -> ReportFigure | None:
    """Of each true class, where its windows went: a panel for each method, its runs added up, shares of the row."""
    from sklearn.metrics import ConfusionMatrixDisplay

    pairs: dict[str, list[tuple[str, str]]] = {}
    for result in sorted(results, key=lambda result: ordered_methods(results).index(result.cell.method)):
        windows = zip(result.predictions.label, result.predictions.predicted, strict=True)
        pairs.setdefault(result.cell.method, []).extend(pair for pair in windows if pair[0])
    pairs = {method: found for method, found in pairs.items() if found}
    if not pairs:
        return None
    classes = list(dict.fromkeys(name for result in results for name in result.record.data.classes))
    names = [*classes, *sorted({label for found in pairs.values() for label, _ in found} - set(classes))]
    columns = min(2 if len(names) > 6 else 3, len(pairs))
    lines, width = math.ceil(len(pairs) / columns), WIDE if columns > 1 else NARROW + 0.5
    drawing = empty_figure(width, lines * (width / columns * 0.92 + 0.15) + 0.2)
    axes = drawing.subplots(lines, columns, squeeze=False).flat
    for axis in axes[len(pairs) :]:
        axis.set_visible(False)
    for axis, (method, found) in zip(axes, pairs.items(), strict=False):
        labels, predicted = zip(*found, strict=True)
        ConfusionMatrixDisplay.from_predictions(
            labels, predicted, labels=names, display_labels=[shortened(name, 14) for name in names], normalize="true",
            values_format=".0%", cmap="Blues", colorbar=False, xticks_rotation="vertical", ax=axis,
            text_kw={"fontsize": 7},
        )  # fmt: skip
        axis.set(xlabel="", ylabel="", title=shortened(method, 24))
    drawing.supxlabel("predicted class", fontsize=8)
    drawing.supylabel("true class", fontsize=8)
    added = ", all runs of a method added up" if len(results) > len(pairs) else ""
    caption = f"Where the target windows of each true class (row) went, in percent of the row{added}."
    return ReportFigure("confusion", "Confusion matrices on the target", caption, drawing)


def score_curves(results: Sequence[Result]) -> ReportFigure | None:
    """Target accuracy and ECE over epochs, averaged over tasks; the paper's figure for one task."""
    kept = complete_cells(results)
    accuracy, ece = (
        by_method(kept, f"target_{score}_teacher", f"target_{score}_student") for score in ("accuracy", "ece")
    )
    caption = (
        f"Target accuracy (left) and ECE of 10 bins (right) after each epoch: {averaged_over(kept)}; the teacher's once"
        f" there is one, the student's before. At the end: accuracy {_ends(accuracy)}; ECE {_ends(ece)}.{PHASES}"
    )
    panels = {"target accuracy, %": accuracy, "target ECE, %": ece}
    return _line_figure("curves", "Target accuracy and ECE over epochs", caption, panels, kept, results)


def pseudo_label_curves(results: Sequence[Result]) -> ReportFigure | None:
    """How many of the pseudo-labels are right, and how many target windows get one, over epochs."""
    kept = complete_cells([result for result in results if "pseudo_label_share" in result.curves])
    if not kept:
        return None
    right, share = (by_method(kept, f"pseudo_label_{name}") for name in ("accuracy", "share"))
    judged = f"right at the end: {_ends(right)}" if right else "no labels to judge them by"
    caption = f"Pseudo-labels the student learns from: {averaged_over(kept)}; {judged};"
    caption += f" windows with one: {_ends(share)}.{PHASES}"
    panels = {"right among pseudo-labels, %": right} if right else {}
    panels["target windows labelled, %"] = share
    return _line_figure("pseudo-labels", "Pseudo-labels over epochs", caption, panels, kept, results)


@house_style()
def _line_figure(
    name: str, title: str, caption: str, panels: Mapping[str, Mapping[str, MeanCurve]], runs: Sequence[Result],
    results: Sequence[Result],
) -> ReportFigure | None:  # fmt: skip
    """A panel for each label of the vertical axis with mean lines by method and bands of one standard deviation.

    Vertical lines say where phases begin if all `runs`, whose means these are, agree; colours are by all `results`.
    """
    from matplotlib.lines import Line2D

    style_of = styles(ordered_methods(results))
    drawn = [method for method in style_of if any(method in curves for curves in panels.values())]
    if not drawn:
        return None
    width = NARROW + 1 if len(panels) == 1 else WIDE
    names = [shortened(method, 40) for method in drawn]
    fitting = legend_columns(names, width)
    figure = empty_figure(width, 2.65 + 0.14 * math.ceil(len(drawn) / fitting))
    starts: dict[int, list[str]] = {}
    for sign in ("DA", "PL", "cal"):
        begins = {phases[sign] for run in runs if sign in (phases := run.record.settings.phases)}
        if len(begins) == 1:
            starts.setdefault(begins.pop(), []).append(f"$T_{{\\rm {sign}}}$")
    for axis, (label, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for number, (method, (mean, spread)) in enumerate(curves.items()):
            epochs, every = np.arange(1, mean.size + 1), max(1, mean.size // 8)
            marked = (number * every // len(curves), every)  # shifted, so that markers do not hide each other
            axis.plot(epochs, mean, **style_of[method], markevery=marked, label=method)
            band = {"color": style_of[method]["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(epochs, mean - spread, mean + spread, **band)
        axis.grid(axis="y")
        axis.set_axisbelow(True)
        axis.set_xlim(left=0)
        axis.set(xlabel="epochs trained", ylabel=label)
        for start, signs in starts.items():
            axis.axvline(start, color="#777777", linestyle=(0, (2, 2)), linewidth=0.8, zorder=0)
            place, text = axis.get_xaxis_transform(), ", ".join(signs)
            axis.text(start, 1.01, text, transform=place, ha="center", va="bottom", color="#444444", parse_math=True)
        axis.set_ylim(top=min(101.5, axis.get_ylim()[1]))
    handles = [Line2D([], [], **style_of[method]) for method in drawn]
    figure.legend(handles, names, loc="outside lower center", ncols=fitting)
    return ReportFigure(name, title, caption, figure)


def complete_cells(results: Sequence[Result]) -> list[Result]:
    """The runs of those task × seed cells that every method finished; all runs where there is no such cell."""
    methods = {result.cell.method for result in results}
    finished: dict[tuple[str, int], set[str]] = {}
    for result in results:
        finished.setdefault((result.cell.task, result.cell.seed), set()).add(result.cell.method)
    return [result for result in results if finished[result.cell.task, result.cell.seed] == methods] or list(results)


def by_method(results: Sequence[Result], *columns: str) -> dict[str, MeanCurve]:
    """For each method its runs' curve in percent: the mean over tasks for each seed, then mean and spread over seeds.

    Of several columns of curves.csv the first counts where it is a number, else the last.
    """
    found: dict[str, MeanCurve] = {}
    for method in ordered_methods(results):
        seeds: dict[int, list[Floats]] = {}
        for result in [result for result in results if result.cell.method == method]:
            curves = [100 * result.curves[name] for name in columns if name in result.curves]
            if np.isfinite(curves).any():
                values = np.where(np.isfinite(curves[0]), curves[0], curves[-1])
                seeds.setdefault(result.cell.seed, []).append(values)
        if seeds:
            found[method] = mean_and_spread([mean_and_spread(tasks)[0] for tasks in seeds.values()])
    return found


def mean_and_spread(curves: Sequence[Floats]) -> MeanCurve:
    """Mean and standard deviation (n − 1) of curves, which may end early or have holes."""
    stack = np.full((len(curves), max((curve.size for curve in curves), default=0)), np.nan)
    for row, curve in zip(stack, curves, strict=True):
        row[: curve.size] = np.where(np.isfinite(curve), curve, np.nan)
    with warnings.catch_warnings():  # of columns with no or one number, which are nan
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(stack, axis=0), np.nanstd(stack, axis=0, ddof=1)


def averaged_over(results: Sequence[Result]) -> str:
    """What a mean curve is a mean of."""
    tasks, seeds = ordered_tasks(results), {result.cell.seed for result in results}
    over = f"average of {len(tasks)} tasks" if len(tasks) > 1 else f"task {tasks[0]}"
    spread = f"mean ± standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    cells = {(result.cell.task, result.cell.seed) for result in results}
    uneven = len({result.cell for result in results}) < len(ordered_methods(results)) * len(cells)
    remark = "; methods differ in the tasks and seeds they finished, so lines do not compare" if uneven else ""
    return f"{over}, {spread}{remark}"


def _ends(curves: Mapping[str, MeanCurve]) -> str:
    """Where every mean ends, for a caption."""
    return ", ".join(f"{name} {mean[np.isfinite(mean)][-1]:.1f} %" for name, (mean, _) in curves.items())
