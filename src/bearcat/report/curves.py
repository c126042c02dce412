"""Figures of lines: scores, pseudo-labels, temperature and thresholds over epochs, accuracy against coverage.

Each function takes results and gives a picture, or None where the runs have nothing for it to draw.

>>> score_curves(results).write(Path("figures"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bearcat.report.drawing import (
    NARROW,
    WIDE,
    Floats,
    Picture,
    averaged,
    band_told,
    best_of,
    by_method,
    complete_cells,
    draw_bands,
    draw_legend,
    extremes,
    last_values,
    look,
    mark_phases,
    mean_and_spread,
    ordered_methods,
    panels_of,
    phase_start,
    phases_told,
    styles,
    tasks_of,
)
from bearcat.report.results import Result
from bearcat.report.wording import count


@look()
def score_curves(results: Sequence[Result]) -> Picture | None:
    """Target accuracy and ECE over epochs, averaged over tasks; the paper's figure for one task."""
    kept = complete_cells(results)
    found = {score: by_method(kept, lambda one, score=score: _reported(one, score)) for score in ("accuracy", "ece")}
    if not found["accuracy"]:
        return None
    style_of = styles(ordered_methods(results))
    drawing, axes = panels_of(2, len(style_of))
    for axis, (score, label) in zip(axes, (("accuracy", "target accuracy, %"), ("ece", "target ECE, %")), strict=True):
        draw_bands(axis, found[score], style_of, 100)
        mark_phases(axis, kept)
        axis.set_ylabel(label)
    axes[0].set_ylim(top=min(100, axes[0].get_ylim()[1]))
    draw_legend(drawing, style_of, tuple(found["accuracy"]))
    last = {score: last_values(found[score]) for score in found}
    caption = (
        f"Target accuracy (left) and ECE (right) after each epoch: {averaged(kept)}; the teacher's once there is one,"
        f" the student's before. At the end {extremes(last['accuracy'], largest=True, what='accuracy')} and"
        f" {extremes(last['ece'], largest=False, what='ECE')}.{phases_told(kept)}"
    )
    return Picture("curves", "Target accuracy and ECE over epochs", caption, drawing)


@look()
def task_curves(results: Sequence[Result], score: str) -> Picture | None:
    """A panel for each task: target "accuracy" or "ece" over epochs; None where there is but one task."""
    tasks = tasks_of(results)
    found = {
        task: by_method([one for one in results if one.cell.task == task], lambda one: _reported(one, score))
        for task in tasks
    }
    if len(tasks) < 2 or not any(found.values()):
        return None
    methods = tuple(name for name in ordered_methods(results) if any(name in one for one in found.values()))
    style_of = styles(ordered_methods(results))
    drawing, axes = panels_of(len(tasks), len(methods), columns=3, height=1.65, same=True)
    for axis, task in zip(axes, tasks, strict=True):
        draw_bands(axis, found[task], style_of, 100, fine=True)
        mark_phases(axis, [one for one in results if one.cell.task == task], named=False)
        axis.set_title(task, fontsize=7.5)
    for axis in axes[:-3]:
        axis.set_xlabel("")
    name = "accuracy" if score == "accuracy" else "ECE"
    drawing.supylabel(f"target {name}, %", fontsize=8)
    draw_legend(drawing, style_of, methods)
    best = [best_of(last_values(curves), score == "accuracy") for curves in found.values() if curves]
    wins = Counter(method for several in best for method in several)
    leading = ", ".join(f"{method} on {times}" for method, times in wins.most_common())
    ties = ", ties counted for each" if any(len(several) > 1 for several in best) else ""
    caption = f"Target {name} over epochs on each task, {band_told(results)}."
    if len(methods) > 1:
        end = "Highest" if score == "accuracy" else "Lowest"
        caption += f" {end} at the end, of {count(len(best), 'task')}{ties}: {leading}."
    return Picture(f"curves-{score}-tasks", f"Target {name} over epochs, task by task", caption, drawing)


@look()
def pseudo_label_curves(results: Sequence[Result]) -> Picture | None:
    """How many of the pseudo-labels are right, and how many target windows get one, over epochs."""
    teaching = [one for one in results if "pseudo_label_share" in one.curves]
    kept = complete_cells(teaching)
    right = by_method(kept, lambda one: one.curves.get("pseudo_label_accuracy"))
    share = by_method(kept, lambda one: one.curves["pseudo_label_share"])
    if not share:
        return None
    panels = [(right, "right among pseudo-labels, %")] if right else []
    panels.append((share, "target windows labelled, %"))
    style_of = styles(ordered_methods(results))
    drawing, axes = panels_of(len(panels), len(share))
    for axis, (curves, label) in zip(axes, panels, strict=True):
        draw_bands(axis, curves, style_of, 100)
        mark_phases(axis, kept)
        axis.set_ylabel(label)
        axis.set_ylim(top=min(101.5, axis.get_ylim()[1]))
    draw_legend(drawing, style_of, tuple(share))
    changes = []
    for method, (mean, _, _) in right.items():
        started = phase_start(kept, method, "calibrate_from")
        if started is not None and 0 < started < mean.size and np.isfinite(mean[started - 1 : started + 1]).all():
            before, after = mean[started - 1], mean[started]
            changes.append(f"{method} {100 * before:.1f} → {100 * after:.1f} %")
    told = (
        extremes(last_values(right), largest=True, what="pseudo-label accuracy")
        if right
        else "no labels to judge them by"
    )
    caption = (
        f"Accuracy of the pseudo-labels the student learns from (left) and the share of target windows that get one"
        f" (right): {averaged(kept)}. At the end {told}."
        if right
        else f"The share of target windows that get a pseudo-label: {averaged(kept)}; {told}."
    )
    if changes:
        caption += f" From the last epoch before calibration to the first with it: {'; '.join(changes)}."
    return Picture("pseudo-labels", "Pseudo-labels over epochs", caption + phases_told(kept), drawing)


@look()
def temperature_curves(results: Sequence[Result]) -> Picture | None:
    """The fitted temperature over epochs, methods that have one."""
    kept = complete_cells([one for one in results if np.isfinite(one.curves.get("temperature", np.array([]))).any()])
    found = by_method(kept, lambda one: one.curves["temperature"])
    if not found:
        return None
    style_of = styles(ordered_methods(results))
    drawing, axes = panels_of(1, len(found), width=NARROW + 1, height=2.5)
    draw_bands(axes[0], found, style_of, 1)
    mark_phases(axes[0], kept)
    if axes[0].get_ylim()[1] > 20:
        from matplotlib.ticker import ScalarFormatter

        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter(ScalarFormatter())
    axes[0].set_ylabel("temperature")
    draw_legend(drawing, style_of, tuple(found))
    bound = sum(bool((one.record["calibration"] or {}).get("at_bound")) for one in kept)
    values = ", ".join(f"{method} {value:.2f}" for method, value in last_values(found).items())
    ended = "ended" if bound else "did not end"
    ended = f"{bound or 'none'} of {len(kept)} runs ended" if len(kept) > 1 else f"the run {ended}"
    caption = (
        f"Temperature that divides the teacher's logits: {averaged(kept)}. At the end: {values}; {ended} at a bound."
        f" Above 1 the confidence is lowered.{phases_told(kept)}"
    )
    return Picture("temperature", "Temperature over epochs", caption, drawing)


@look()
def threshold_curves(results: Sequence[Result]) -> Picture | None:
    """Per-class thresholds over epochs, a panel for each method that has them."""
    chosen = [one for one in results if (one.record["settings"]["recipe"]["labels"] or {}).get("threshold") != "fixed"]
    chosen = [one for one in chosen if any(name.startswith("threshold:") for name in one.curves)]
    kept = complete_cells(chosen)
    if not kept:
        return None
    classes = tuple(dict.fromkeys(n for one in kept for n in one.curves if n.startswith("threshold:")))
    methods = ordered_methods(kept)
    style_of = styles(classes)
    width = WIDE if len(methods) > 1 else NARROW + 1
    drawing, axes = panels_of(len(methods), len(classes), columns=min(3, len(methods)), width=width, height=2.0)
    lowest: dict[str, tuple[str, float]] = {}
    for axis, method in zip(axes, methods, strict=True):
        mine = [one for one in kept if one.cell.method == method]
        curves = {name: mean_and_spread([one.curves[name] for one in mine if name in one.curves]) for name in classes}
        curves = {name: curve for name, curve in curves.items() if np.isfinite(curve[0]).any()}
        draw_bands(axis, curves, style_of, 1, bands=len(classes) <= 4)
        mark_phases(axis, mine, named=False)
        axis.set_title(method)
        axis.set_ylim(-0.02, 1.02)
        last = last_values(curves)
        if last:
            lowest[method] = min(last.items(), key=lambda one: one[1])
    axes[0].set_ylabel("threshold")
    draw_legend(drawing, style_of, classes)
    told = "; ".join(
        f"{method}: {name.removeprefix('threshold:')} ({low:.2f})" for method, (name, low) in lowest.items()
    )
    caption = (
        "How sure the teacher must be for its label to count, class by class,"
        f" {f'mean over {len(kept)} runs' if len(kept) > 1 else 'of one run'}."
        f" A class that is seldom predicted with confidence gets a low threshold. Lowest at the end: {told}."
        f"{phases_told(kept)}"
    )
    return Picture("thresholds", "Per-class thresholds over epochs", caption, drawing)


@look()
def coverage_curves(results: Sequence[Result]) -> Picture | None:
    """Accuracy on the windows that are kept when the least confident ones are left to a person."""
    kept = complete_cells(results)
    share = np.linspace(0.05, 1, 96)
    found = by_method(kept, lambda one: _accuracy_at(one, share))
    if not found:
        return None
    style_of = styles(ordered_methods(results))
    drawing, axes = panels_of(1, len(found), width=NARROW + 1, height=2.7)
    axis = axes[0]
    draw_bands(axis, found, style_of, 100, x=100 * share)
    axis.set(xlabel="windows kept (most confident first), %", ylabel="accuracy on them, %", xlim=(0, 100))
    axis.set_ylim(top=min(101, axis.get_ylim()[1]))
    draw_legend(drawing, style_of, tuple(found))
    middle = int(np.argmin(np.abs(share - 0.5)))
    gains = "; ".join(f"{m} {100 * mean[-1]:.1f} → {100 * mean[middle]:.1f} %" for m, (mean, _, _) in found.items())
    caption = (
        f"What abstaining gains: accuracy on the most confident windows of the target against how many are kept,"
        f" {averaged(kept)}. All windows → the surer half: {gains}. A flat curve means the confidence does not tell"
        " right from wrong."
    )
    return Picture("coverage", "Accuracy against coverage", caption, drawing)


def accuracy_at_coverage(confidence: Floats, right: NDArray[np.bool_], share: Floats) -> Floats:
    """Accuracy on the most confident `share` of the windows; among equals, what a random order gives on average.

    The order of the file must not decide between equals: it is sorted by recording, so by class.
    """
    order = np.argsort(-confidence, kind="stable")
    hits = np.concatenate([[0.0], np.cumsum(right[order], dtype=np.float64)])
    ends = np.concatenate([[0], np.flatnonzero(np.diff(-confidence[order])) + 1, [confidence.size]])
    taken = np.maximum(share * confidence.size, 1)
    return np.asarray(np.interp(taken, ends, hits[ends]) / taken)


def _accuracy_at(one: Result, share: Floats) -> Floats | None:
    predictions = one.predictions
    known = np.array([bool(label) for label in predictions.label])
    if not known.any():
        return None
    right = np.array([a == b for a, b in zip(predictions.label, predictions.predicted, strict=True)])
    return accuracy_at_coverage(predictions.confidence[known], right[known], share)


def _reported(one: Result, score: str) -> Floats | None:
    """The curve of what bearcat would report: the teacher's once there is one, the student's before."""
    student, teacher = (one.curves.get(f"target_{score}_{network}") for network in ("student", "teacher"))
    if student is None or teacher is None:
        return teacher if student is None else student
    return np.where(np.isfinite(teacher), teacher, student)
