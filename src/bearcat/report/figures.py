"""Figures of final scores: bars per task, critical differences, reliability, confusion.

Each function takes results and gives a picture, or None where the runs have nothing for it to draw.

>>> task_bars(results, "accuracy").write(Path("figures"))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.report.drawing import (
    NARROW,
    WIDE,
    Floats,
    Picture,
    Style,
    band_told,
    extremes,
    look,
    ordered_methods,
    ordered_names,
    shortened,
    styles,
    tasks_of,
)
from bearcat.report.plots import Bins, figure, reliability_panel
from bearcat.report.results import Result
from bearcat.report.stats import ALPHA, Spread, common_tasks, spreads, target_scores
from bearcat.report.wording import count, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@look()
def task_bars(results: Sequence[Result], score: str) -> Picture | None:
    """Target "accuracy" or "ece" task by task, methods side by side, and their average over tasks that all have."""
    from matplotlib.patches import Patch

    cells = spreads(target_scores(results, score))
    methods = tuple(name for name in ordered_methods(results) if any(name == method for method, _ in cells))
    tasks = tasks_of([one for one in results if one.cell.method in methods])
    if not methods:
        return None
    averaged = common_tasks(cells, methods)
    means = {one: float(np.mean([cells[one, task].mean for task in averaged])) for one in methods if averaged}
    groups = [(task, {one: cells[one, task] for one in methods if (one, task) in cells}) for task in tasks]
    if len(averaged) > 1:
        groups.append(("average", {one: Spread(mean, math.nan, len(averaged)) for one, mean in means.items()}))
    rows = math.ceil(len(groups) / max(2, min(7, 56 // len(methods))))
    each = math.ceil(len(groups) / rows)
    style_of = styles(ordered_methods(results))
    drawing = figure(WIDE if each > 2 else NARROW + 1, 0.5 + 1.75 * rows)
    axes = drawing.subplots(rows, 1, squeeze=False, sharey=True)[:, 0]
    for row, axis in enumerate(axes):
        _draw_bars(axis, groups[row * each : (row + 1) * each], methods, style_of)
        axis.set_xlim(-0.5, each - 0.5)
    top = max(one.mean + np.nan_to_num(one.sd) for _, group in groups for one in group.values())
    axes[0].set_ylim(0, 100 if score == "accuracy" else min(100, 108 * max(float(top), 0.01)))
    name = "accuracy" if score == "accuracy" else "ECE"
    drawing.supylabel(f"target {name}, %", fontsize=8)
    patches = [
        Patch(facecolor=style_of[m].colour, hatch=style_of[m].hatch, edgecolor="#222222", linewidth=0.4)
        for m in methods
    ]
    drawing.legend(patches, methods, loc="outside lower center", ncols=min(len(methods), 4))
    caption = (
        f"Target {name} at the last epoch, {band_told(results)}, {count(len(tasks), 'task')} and"
        f" {count(len(methods), 'method')}."
    )
    if means:
        over = f" on average over {len(averaged)} tasks" if len(averaged) > 1 else f" on {averaged[0]}"
        caption += f" Here {extremes(means, score == 'accuracy', name)}{over}."
    if any(len(group) < len(methods) for _, group in groups):
        caption += " A missing bar is a method without a score on that task."
    return Picture(f"bars-{score}", f"Target {name} on each task", caption, drawing)


@look()
def critical_difference(
    methods: Sequence[str], ranks: Sequence[float], cliques: Sequence[Sequence[str]], what: str, cells: int,
    alike: Sequence[str] = (), warning: str = "",
) -> Picture:  # fmt: skip
    """Average ranks on a line, best on the left; bars join the methods that the tests cannot tell apart.

    `what`: the score ranked, for the caption; `cells`: how many task × seed cells the ranks are averages of; `alike`:
    the first method and those it does not differ from, which tables have in bold; `warning`: why tests say nothing.
    """
    rank = dict(zip(methods, map(float, ranks), strict=True))
    order = sorted(rank, key=lambda name: (rank[name], name))
    joined = sorted(
        {tuple(name for name in order if name in one) for one in cliques if len(one) > 1}, key=_place_in(order)
    )
    levels: list[list[tuple[str, ...]]] = []
    for clique in joined:
        low = rank[clique[0]]
        for level in levels:
            if rank[level[-1][-1]] + 0.1 < low:
                level.append(clique)
                break
        else:
            levels.append([clique])
    half = math.ceil(len(order) / 2)
    last = max(len(order), 2)
    step, bar = 0.19, 0.13  # inches: between labels, between bars
    first = 0.14 + bar * len(levels) + 0.1  # from the axis to the first label
    below = first + step * half
    drawing = figure(WIDE, below + 0.42)
    drawing.set_layout_engine("none")
    height = drawing.get_figheight()
    axis = drawing.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set_axis_off()
    axis.set(xlim=(0, WIDE), ylim=(0, height))
    left, right, top = 2.0, WIDE - 2.0, height - 0.42

    def place(value: float) -> float:
        return left + (value - 1) / (last - 1) * (right - left)

    axis.plot([left, right], [top, top], color="black", linewidth=0.9)
    for tick in range(1, last + 1):
        axis.plot([place(tick)] * 2, [top, top + 0.07], color="black", linewidth=0.9)
        axis.text(place(tick), top + 0.1, str(tick), ha="center", va="bottom", fontsize=7.5)
    axis.text((left + right) / 2, height - 0.02, "average rank (1 is best)", ha="center", va="top", fontsize=7.5)
    style_of = styles(ordered_names(methods))
    for sign, names in ((-1, order[:half]), (1, order[: half - 1 : -1])):
        for row, name in enumerate(names):
            y, end = top - first - step * row, left - 0.3 if sign < 0 else right + 0.3
            colour = style_of[name].colour
            axis.plot([place(rank[name])] * 2 + [end], [top, y, y], color=colour, linewidth=0.9)
            axis.plot([place(rank[name])], [top], marker=style_of[name].marker, color=colour, markersize=4.5)
            side = "right" if sign < 0 else "left"
            axis.text(end + sign * 0.05, y, shortened(name), ha=side, va="center", fontsize=8)
            axis.text(end - sign * 0.03, y + 0.02, f"{rank[name]:.2f}", ha="left" if sign < 0 else "right",
                      va="bottom", fontsize=7, color="#444444")  # fmt: skip
    for number, level in enumerate(levels):
        for clique in level:
            y = top - 0.14 - bar * number
            ends = [place(rank[clique[0]]) - 0.05, place(rank[clique[-1]]) + 0.05]
            axis.plot(ends, [y, y], color="black", linewidth=3, solid_capstyle="butt")

    places: dict[str, list[str]] = {}
    for name in order:
        places.setdefault(f"{rank[name]:.2f}", []).append(name)
    (best, first_names), (worst, last_names) = next(iter(places.items())), list(places.items())[-1]
    told = f"Average ranks of {what} over {count(cells, 'task × seed cell')}: "
    told += (
        f"{listed(first_names)} {'is' if len(first_names) == 1 else 'are'} first ({best}), {listed(last_names)} last"
        f" ({worst})."
        if best != worst
        else f"all at {best}."
    )
    if len(order) > 1:
        test = f"(Wilcoxon signed-rank, Holm, level {ALPHA:g})"
        told += (
            f" A thick bar joins neighbours of which no two differ significantly {test};"
            " that is no proof that they are equal."
            if joined
            else f" Each differs significantly from its neighbours {test}."
        )
        told += f" {warning}" if warning else _bold_told(alike, joined)
    return Picture(f"ranks-{what.replace(' ', '-')}", f"Critical differences: {what}", told, drawing)


def _bold_told(alike: Sequence[str], joined: Sequence[Sequence[str]]) -> str:
    """How bars and the tables' bold go together, which ask different questions; named where they seem to disagree."""
    if not alike:
        return ""
    told = " Bold in the tables asks another question: which methods do not differ significantly from the first alone."
    apart = [name for name in alike[1:] if not any({alike[0], name} <= set(one) for one in joined)]
    if apart:
        told += (
            f" So {listed(apart)} {'is' if len(apart) == 1 else 'are'} bold beside {alike[0]} though no bar joins them:"
            " a method that stands between differs from one of its neighbours."
        )
    return told


@look()
def reliability(results: Sequence[Result]) -> Picture | None:
    """One method: source and target, before and after calibration, all its runs together."""
    panels: list[tuple[str, Bins]] = []
    for where in ("source", "target"):
        for when, title in (("uncalibrated", "before calibration"), ("calibrated", "after calibration")):
            merged = merge_bins([b for one in results if (b := _recorded_bins(one, where, when)) is not None])
            if merged is not None:
                panels.append((f"{where}, {title}", merged))
    if not panels:
        return None
    if not any("after" in title for title, _ in panels):
        panels = [(title.partition(",")[0] + ", no calibration", bins) for title, bins in panels]
    method = results[0].cell.method
    drawing = figure(1.75 * len(panels) + (0.3 if len(panels) < 4 else 0), 2.3)
    axes = drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    legend: dict[str, Any] = {}
    for axis, (title, bins) in zip(axes, panels, strict=True):
        legend = reliability_panel(axis, bins)
        axis.set_title(title, fontsize=7.5)
        axis.set_xlabel("confidence")
        axis.set_xticks([0, 0.5, 1])
        for text in axis.texts:
            text.set_fontsize(7)
    axes[0].set_ylabel("accuracy")
    drawing.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=2)

    told = ", ".join(f"{title} {100 * bins.ece:.1f} %" for title, bins in panels)
    calibrator = (results[0].record["settings"]["recipe"]["calibration"] or {}).get("kind")
    caption = (
        f"{method}{f' ({calibrator})' if calibrator else ''}: bars below the diagonal mean too much confidence."
        f" ECE{f' of {len(results)} runs pooled' if len(results) > 1 else ''}: {told}. A bar says nothing of how many"
        f" windows it stands for: {_fullest_told(panels)}."
    )
    return Picture(f"reliability-{method}", f"Reliability of {method}", caption, drawing)


def _fullest_told(panels: Sequence[tuple[str, Bins]]) -> str:
    """How unequally windows lie in bins, in the last panel of source and of target."""
    shares = {title.partition(",")[0]: bins.mass.max() / bins.mass.sum() for title, bins in panels}
    return f"the fullest bin holds {listed([f'{100 * s:.0f} % of the {where}' for where, s in shares.items()])}"


def merge_bins(several: Sequence[Bins]) -> Bins | None:
    """Reliability bins of several runs as if their windows were one set; the ECE is that of the set."""
    several = [one for one in several if one.mass.sum() > 0 and np.allclose(one.edges, several[0].edges)]
    if not several:
        return None
    mass = sum((one.mass for one in several), np.zeros_like(several[0].mass))
    empty = mass == 0

    def mean(values: Sequence[Floats]) -> Floats:
        total = sum((one.mass * np.nan_to_num(v) for one, v in zip(several, values, strict=True)), np.zeros(mass.size))
        return np.where(empty, np.nan, total / np.where(empty, 1, mass))

    confidence, accuracy = mean([one.confidence for one in several]), mean([one.accuracy for one in several])
    ece = float(np.nansum(mass * np.abs(confidence - accuracy)) / mass.sum())
    return Bins(several[0].edges, mass, confidence, accuracy, ece)


@look()
def confusions(results: Sequence[Result]) -> Picture | None:
    """Of each true class, where its windows went: a panel for each method, its runs added up, rows in percent."""
    matrices: dict[str, Floats] = {}
    classes = tuple(dict.fromkeys(name for one in results for name in one.record["data"]["classes"]))
    extra = {label for one in results for label in one.predictions.label if label} - set(classes)
    rows = (*classes, *sorted(extra))
    place = {name: number for number, name in enumerate(rows)}
    for method in ordered_methods(results):
        counts = np.zeros((len(rows), len(classes)))
        for one in results:
            if one.cell.method == method:
                known = [(t, p) for t, p in zip(one.predictions.label, one.predictions.predicted, strict=True) if t]
                if known:
                    np.add.at(counts, ([place[t] for t, _ in known], [place[p] for _, p in known]), 1)
        if counts.sum():
            matrices[method] = counts
    if not matrices:
        return None
    seen = [row for row in range(len(rows)) if any(one[row].sum() for one in matrices.values())]
    columns = min(2 if len(classes) > 6 else 3, len(matrices))
    lines = math.ceil(len(matrices) / columns)
    width = WIDE if columns > 1 else NARROW + 0.5
    side = width / columns
    weakest: list[str] = []
    drawing = figure(width, lines * (side * 0.92 * max(0.45, len(seen) / len(classes)) + 0.15) + 0.2)
    axes = drawing.subplots(lines, columns, squeeze=False)
    for number, axis in enumerate(axes.flat):
        axis.set_visible(number < len(matrices))
    for axis, (method, counts) in zip(axes.flat, matrices.items(), strict=False):
        total = counts.sum(axis=1, keepdims=True)
        share = 100 * counts / np.maximum(total, 1)
        _draw_matrix(axis, share[seen], [rows[row] for row in seen], classes)
        axis.set_title(method)
        right = {rows[row]: share[row, row] for row in range(len(classes)) if total[row, 0]}
        worst = min(right.items(), key=lambda one: one[1])
        weakest.append(f"{method}: {worst[0]} ({worst[1]:.0f} %)")
    for axis in axes[:, 0]:
        axis.set_ylabel("true class")
    drawing.supxlabel("predicted class", fontsize=8)

    caption = (
        "Where the target windows of each true class (row) went, in percent of the row"
        f"{', all runs of a method added up' if len(results) > len(matrices) else ''}; numbers below 1 % are left out."
        f" Least recognised: {'; '.join(weakest)}."
    )
    return Picture("confusion", "Confusion matrices on the target", caption, drawing)


def _recorded_bins(one: Result, where: str, when: str) -> Bins | None:
    """Bins as the record has them; None where it has none."""
    recorded = ((one.record.get("reliability") or {}).get(where) or {}).get(when)
    if recorded is None:
        return None
    edges, mass, confidence, accuracy = (
        np.array([math.nan if value is None else value for value in recorded[name]], dtype=np.float64)
        for name in ("edges", "mass", "confidence", "accuracy")
    )
    ece = float(np.nansum(mass * np.abs(confidence - accuracy)) / max(mass.sum(), 1e-300))
    return Bins(edges, mass, confidence, accuracy, ece)


def _draw_bars(
    axis: Axes,
    groups: Sequence[tuple[str, Mapping[str, Spread]]],
    methods: Sequence[str],
    style_of: Mapping[str, Style],
) -> None:
    """Bars of methods side by side for each group, with whiskers of one standard deviation."""
    width = 0.82 / len(methods)
    for place, (_, group) in enumerate(groups):
        for number, method in enumerate(methods):
            if method in group:
                style, spread = style_of[method], group[method]
                axis.bar(
                    place - 0.41 + (number + 0.5) * width, 100 * spread.mean, width, color=style.colour,
                    hatch=style.hatch, edgecolor="#222222", linewidth=0.4,
                    yerr=None if math.isnan(spread.sd) else 100 * spread.sd,
                    error_kw={"linewidth": 0.7, "ecolor": "black", "capsize": min(2.0, 18 * width)},
                )  # fmt: skip
    axis.set_xticks(range(len(groups)), [task.replace("→", "\n→ ") for task, _ in groups])
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="y")
    axis.set_axisbelow(True)


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


def _place_in(order: Sequence[str]) -> Callable[[Sequence[str]], tuple[int, int]]:
    """A sorting key of cliques: by their best method, then their worst."""
    return lambda clique: (order.index(clique[0]), order.index(clique[-1]))
