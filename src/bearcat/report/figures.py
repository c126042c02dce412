"""Figures of final scores: critical differences, reliability, confusion.

Each function takes results and returns a figure, or None where the runs have nothing for it to draw.

>>> confusions(results).write(Path("figures"))
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.record import RecordedBins, Reliability
from bearcat.report.results import Floats, Result, ordered_methods, ordered_names, ordered_tasks
from bearcat.report.stats import ALPHA, Comparison, target_scores
from bearcat.report.typeset import (
    NARROW,
    PALETTE,
    WIDE,
    ReportFigure,
    count,
    empty_figure,
    house_style,
    legend_columns,
    shortened,
    styles,
)
from bearcat.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = {"ECE": "ECE of 10 bins"}  # in captions
GAP = PALETTE[1] + "40"  # see-through, so that a gap below the bar's top shows as well as one above


@house_style()
def critical_difference(comparison: Comparison, score: str) -> ReportFigure:
    """Average ranks on a line, best on the left; bars join the methods that the tests cannot separate."""
    rank = comparison.ranks
    order = sorted(rank, key=lambda name: (rank[name], name))
    levels: list[list[tuple[str, ...]]] = []  # bars that do not meet share a level
    for clique in comparison.cliques:
        free = [level for level in levels if rank[level[-1][-1]] + 0.1 < rank[clique[0]]]
        if free:
            free[0].append(clique)
        else:
            levels.append([clique])
    half, last = math.ceil(len(order) / 2), max(len(order), 2)
    step, bar = 0.19, 0.13  # inches: between labels, between bars
    first = 0.24 + bar * len(levels)  # from the axis to the first label
    height = first + step * half + 0.42
    left, right, top = 2.0, WIDE - 2.0, height - 0.42
    drawing = empty_figure(WIDE, height)
    drawing.set_layout_engine("none")
    axis = drawing.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, WIDE), ylim=(0, height))
    axis.set_axis_off()

    def place(value: float) -> float:
        return left + (value - 1) / (last - 1) * (right - left)

    axis.plot([left, right], [top, top], color="black", linewidth=0.9)
    for tick in range(1, last + 1):
        axis.plot([place(tick)] * 2, [top, top + 0.07], color="black", linewidth=0.9)
        axis.text(place(tick), top + 0.1, str(tick), ha="center", va="bottom", fontsize=7.5)
    axis.text((left + right) / 2, height - 0.02, "average rank (1 is best)", ha="center", va="top", fontsize=7.5)
    style_of = styles(ordered_names(rank))
    for sign, names in ((-1, order[:half]), (1, order[: half - 1 : -1])):
        near, far = ("right", "left") if sign < 0 else ("left", "right")
        for row, name in enumerate(names):
            y, end = top - first - step * row, left - 0.3 if sign < 0 else right + 0.3
            style, at = style_of[name], place(rank[name])
            axis.plot([at, at, end], [top, y, y], color=style["color"], linewidth=0.9)
            axis.plot([at], [top], color=style["color"], marker=style["marker"], markersize=4.5)
            axis.text(end + sign * 0.05, y, shortened(name), ha=near, va="center", fontsize=8)
            shown = f"{rank[name]:.2f}"
            axis.text(end - sign * 0.03, y + 0.02, shown, ha=far, va="bottom", fontsize=7, color="#444444")
    for number, level in enumerate(levels):
        for clique in level:
            y = top - 0.14 - bar * number
            ends = [place(rank[clique[0]]) - 0.05, place(rank[clique[-1]]) + 0.05]
            axis.plot(ends, [y, y], color="black", linewidth=3, solid_capstyle="butt")
    caption = (
        f"Average ranks of {BINS.get(score, score)} over {count(comparison.blocks_used, 'task × seed cell')}. A thick"
        f" bar joins neighbours of which no two differ significantly (Wilcoxon signed-rank, Holm, level {ALPHA:g}),"
        " which does not prove them equal. "
    )
    caption += comparison.warning or "Bold in the tables marks methods that do not differ from the best alone."
    return ReportFigure(f"ranks-{score}", f"Critical differences: {score}", caption, drawing)


@house_style()
def task_bars(results: Sequence[Result], comparison: Comparison, score: str) -> ReportFigure | None:
    """A bar for each method in each task, mean and standard deviation over seeds, as the paper draws its tables."""
    tasks, methods = ordered_tasks(results), ordered_names(comparison.methods)
    if len(methods) < 2:
        return None
    drawing, style_of = empty_figure(WIDE, 2.5), styles(methods)
    axis, width = drawing.subplots(), 0.85 / len(methods)
    for number, method in enumerate(methods):
        found = [(place, comparison.cells.get((method, task))) for place, task in enumerate(tasks)]
        bars = [(place, spread) for place, spread in found if spread is not None]
        axis.bar(
            [place + (number - (len(methods) - 1) / 2) * width for place, _ in bars],
            [100 * spread.mean for _, spread in bars], width, label=shortened(method), color=style_of[method]["color"],
            yerr=[100 * np.nan_to_num(spread.sd) for _, spread in bars], error_kw={"linewidth": 0.5},
            edgecolor="black", linewidth=0.3, hatch="" if number < len(PALETTE) else "////",
        )  # fmt: skip
    turned = max(map(len, tasks), default=0) * len(tasks) > 90
    axis.set_xticks(range(len(tasks)), list(tasks), rotation=45 if turned else 0, ha="right" if turned else "center")
    axis.set_ylabel(f"target {score}, %")
    drawing.legend(loc="outside lower center", ncols=legend_columns([shortened(name) for name in methods], WIDE))
    spread = any(cell.sd == cell.sd for cell in comparison.cells.values())  # not with one seed
    lines = "; thin lines are one standard deviation over seeds" if spread else ""
    caption = f"Target {BINS.get(score, score)} of each method on each task{lines}."
    return ReportFigure(f"bars-{score}", f"Target {score}, task by task", caption, drawing)


@house_style()
def calibration_gain(results: Sequence[Result]) -> ReportFigure | None:
    """How much lower a calibrated method's ECE is than its own without calibration, against the latter: AT* for CAT*-…

    The paper names as its limitation that calibration helps most where the baseline is badly calibrated.
    """
    scores = target_scores(results, "ece")
    points: dict[str, list[tuple[float, float]]] = {}
    for (method, task, seed), value in scores.items():
        baseline = scores.get((re.sub(r"^CAT([^-]*)-.*", r"AT\1", method), task, seed))
        if method.startswith("CAT") and baseline is not None:
            points.setdefault(method, []).append((100 * baseline, 100 * (baseline - value)))
    if not points:
        return None
    drawing, style_of = empty_figure(NARROW + 1, 2.6), styles(ordered_names([run.cell.method for run in results]))
    axis, sentences = drawing.subplots(), []
    for method in ordered_names(points):
        before, gain = np.array(points[method]).T
        style = style_of[method]
        axis.scatter(before, gain, s=9, color=style["color"], marker=style["marker"], label=shortened(method))
        better = (
            f"{method} lowers it in {(gain > 0).sum()} of {len(gain)} cells, by {gain.mean():.1f} points on average"
        )
        varied = len(gain) > 2 and np.ptp(before) > 0 and np.ptp(gain) > 0
        sentences.append(better + (f" (correlation {np.corrcoef(before, gain)[0, 1]:+.2f})" if varied else ""))
    axis.axhline(0, color="grey", linewidth=0.8, linestyle="--")
    axis.set(xlabel="ECE without calibration, %", ylabel="gain of calibration, points")
    drawing.legend(loc="outside lower center", ncols=legend_columns([shortened(name) for name in points], NARROW + 1))
    said = "; ".join(sentences)
    caption = f"Target {BINS['ECE']} of a method without calibration against how much calibrating lowers it: {said}."
    return ReportFigure("calibration-gain", "Gain of calibration against the ECE without it", caption, drawing)


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
        for when, title in (("uncalibrated", "before calibration"), ("calibrated", "after calibration")):
            of_domain = [getattr(record, domain) for record in recorded]
            merged = merge_bins([bins for found in of_domain if found and (bins := getattr(found, when))])
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
    """Of each true class, where its windows went: a panel for each method, its runs added up, rows in percent."""
    classes = list(dict.fromkeys(name for result in results for name in result.record.data.classes))
    unknown = {label for result in results for label in result.predictions.label if label} - set(classes)
    rows = [*classes, *sorted(unknown)]
    matrices: dict[str, Floats] = {}
    for method in ordered_methods(results):
        mine = [result.predictions for result in results if result.cell.method == method]
        pairs = Counter(pair for found in mine for pair in zip(found.label, found.predicted, strict=True))
        counts = np.array([[pairs[label, predicted] for predicted in classes] for label in rows], dtype=np.float64)
        if counts.sum():
            matrices[method] = counts
    if not matrices:
        return None
    present = [row for row in range(len(rows)) if any(counts[row].sum() for counts in matrices.values())]
    columns = min(2 if len(classes) > 6 else 3, len(matrices))
    lines = math.ceil(len(matrices) / columns)
    width = WIDE if columns > 1 else NARROW + 0.5
    height = width / columns * 0.92 * max(0.45, len(present) / len(classes)) + 0.15
    drawing = empty_figure(width, lines * height + 0.2)
    axes = drawing.subplots(lines, columns, squeeze=False)
    for spare in axes.flat[len(matrices) :]:
        spare.set_visible(False)
    weakest = []
    for axis, (method, counts) in zip(axes.flat, matrices.items(), strict=False):
        share = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        _draw_matrix(axis, share[present], [rows[row] for row in present], classes)
        axis.set_title(shortened(method, 24))
        worst = min((row for row in present if row < len(classes)), key=lambda row: share[row, row], default=None)
        if worst is not None:
            weakest.append(f"{method}: {rows[worst]} ({share[worst, worst]:.0f} %)")
    for axis in axes[:, 0]:
        axis.set_ylabel("true class")
    drawing.supxlabel("predicted class", fontsize=8)
    caption = (
        "Where the target windows of each true class (row) went, in percent of the row"
        f"{', all runs of a method added up' if len(results) > len(matrices) else ''}; numbers below 1 % are left out."
        f" Least recognised: {'; '.join(weakest)}."
    )
    return ReportFigure("confusion", "Confusion matrices on the target", caption, drawing)


def _draw_matrix(axis: Axes, share: Floats, rows: Sequence[str], columns: Sequence[str]) -> None:
    """A matrix of percentages as a picture with numbers, the class names shortened where they are long."""
    axis.imshow(share, cmap="Blues", vmin=0, vmax=125, aspect="auto")  # the darkest blue would swallow the numbers
    for (row, column), value in np.ndenumerate(share):
        if value >= 1:
            colour = "white" if value > 70 else "black"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(columns)), [shortened(name, 14) for name in columns], rotation=90)
    axis.set_yticks(range(len(rows)), [shortened(name, 14) for name in rows])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(True)
