"""Figures of runs (reliability, confusion, curves over epochs) and of recordings (two domains, evidence of physics).

Each function returns a figure, or None if the runs have no data for it. Curves averaged over tasks use the task × seed
cells that every method finished, so that no method is shown on easier tasks than another.

>>> confusions(results).save("confusion.pdf")
>>> draw_shift(rows, ("load0", "load3")).save("shift.png")
"""

from __future__ import annotations

import base64
import io
import logging
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.data.datasets import grouped
from bearcat.data.recording import Recording
from bearcat.diagnosis.recording import Diagnosis
from bearcat.diagnosis.signal import draw
from bearcat.errors import InputError, library
from bearcat.record import RecordedBins, Reliability
from bearcat.report import Floats, Result, ordered_methods, ordered_tasks
from bearcat.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, NARROW = 7.0, 3.5  # inches: a page and a column in print
LEGEND_COLUMNS = 3
RESOLUTION = 200  # dots an inch of the PNG

# Okabe and Ito's colours; black as a grey on which hatches show, yellow darkened for white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
_STYLING = threading.RLock()  # matplotlib's settings are those of the whole process
# Formats of figures, and their metadata on program and date, which are left out.
FORMATS: dict[str, tuple[str, ...]] = {
    "png": ("Software",), "svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer"),
}  # fmt: skip
GAP = PALETTE[1] + "40"  # see-through, so that a gap below the bar's top shows as well as one above
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")  # repeat the colours for grey print
# Of the figure of curves: a panel's label, and the columns of curves.csv for it; the first counts where it is a number.
PANELS = {
    "target accuracy, %": ("target_accuracy_teacher", "target_accuracy_student"),
    "target ECE, %": ("target_ece_teacher", "target_ece_student"),
    "right among pseudo-labels, %": ("pseudo_label_accuracy",),
    "target windows labelled, %": ("pseudo_label_share",),
}
WAVEFORM = 2048  # samples shown of a waveform
WINDOW = 1024  # samples of the windows whose spectra are averaged
ENVELOPE_TO = 500.0  # Hz; fault frequencies of most machines and their first multiples lie below
Rows = Sequence[tuple[str, Recording | None, Recording | None]]  # class, and a recording of it in each domain


@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A drawing and its caption."""

    name: str  # of its files
    title: str
    caption: str
    drawing: Any

    @cached_property
    def _rendered(self) -> dict[str, bytes]:
        return {}

    def render(self, kind: str) -> bytes:
        """The figure as one of FORMATS; the same results give the same bytes of "png" and "svg"."""
        if kind not in self._rendered:  # a page and a file use the same bytes
            content = io.BytesIO()
            with house_style():
                metadata = dict.fromkeys(FORMATS[kind])
                self.drawing.savefig(content, format=kind, dpi=RESOLUTION, metadata=metadata)
                self.drawing.set_layout_engine("none")  # the layout is final, and takes longer than drawing
            self._rendered[kind] = content.getvalue()
        return self._rendered[kind]

    def save(self, path: str | Path) -> Path:
        """Writes the figure in the format of the file's ending, one of FORMATS."""
        path = Path(path)
        if (kind := path.suffix.lower().removeprefix(".")) not in FORMATS:
            raise InputError(f"{path}: cannot be written; a picture's name ends in .{', .'.join(FORMATS)}", "out")
        write_atomically(path, self.render(kind))
        return path

    @property
    def source(self) -> str:
        """The figure as a data: address for a page."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.render('svg')).decode('ascii')}"

    @property
    def width(self) -> int:
        """The width in a page, in pixels."""
        return int(self.drawing.get_figwidth() * 118)


@contextmanager
def house_style() -> Iterator[None]:
    """The style of all figures (figures.mplstyle), independent of the user's matplotlib settings."""
    library("matplotlib", "report")
    from matplotlib import style

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # fonts that this machine lacks
    with _STYLING, style.context("bearcat.report.figures", after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box is drawn instead
        yield


def empty_figure(width: float, height: float) -> Any:
    """A figure that can be drawn without a screen; inside `house_style`, which says what to install."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _axes(drawing: Any, number: int, columns: int, sharey: bool = False) -> list[Axes]:
    """So many panels, row by row."""
    axes = drawing.subplots(math.ceil(number / columns), columns, squeeze=False, sharey=sharey).flat
    for axis in axes[number:]:
        axis.set_visible(False)
    return list(axes[:number])


def shortened(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@house_style()
def reliability(results: Sequence[Result]) -> ReportFigure | None:
    """One method: source and target, before and after calibration, all its runs together."""
    panels = _panels([result.record.reliability for result in results])
    if not panels:
        return None
    method, calibrator = results[0].cell.method, results[0].record.settings.calibrator
    caption = (
        f"{method}{f' ({calibrator})' if calibrator else ''}: bars below the diagonal mean too much confidence."
        f" ECE of {len(panels[0][1].mass)} bins{f', {len(results)} runs pooled' if len(results) > 1 else ''}."
        " The height of a bar does not depend on the number of windows."
    )
    return ReportFigure(f"reliability-{method}", f"Reliability of {method}", caption, _draw_reliability(panels))


def _panels(recorded: Sequence[Reliability]) -> list[tuple[str, RecordedBins]]:
    """Title and bins of each panel that the records have numbers for."""
    panels = []
    for domain in ("source", "target"):
        diagrams = [diagram for record in recorded if (diagram := record[domain])]
        for when, title in (("uncalibrated", "before calibration"), ("calibrated", "after calibration")):
            bins = [filled for diagram in diagrams if (filled := diagram[when]) and sum(filled.mass)]
            if bins:
                panels.append((f"{domain}, {title}", merge_bins(bins)))
    return panels


def merge_bins(recorded: Sequence[RecordedBins]) -> RecordedBins:
    """Recorded reliability bins of several runs as if their windows were one set."""
    mass = np.array([bins.mass for bins in recorded], dtype=np.float64)
    total = mass.sum(axis=0)
    confidence, accuracy = (
        np.nansum(mass * np.array(values, dtype=np.float64), axis=0) / np.where(total > 0, total, np.nan)
        for values in ([bins.confidence for bins in recorded], [bins.accuracy for bins in recorded])
    )
    return RecordedBins(recorded[0].edges, *map(tuple, (total, confidence, accuracy)))


def _draw_reliability(panels: Sequence[tuple[str, RecordedBins]]) -> Any:
    """Reliability diagrams in a row, as the paper draws them: accuracy as bars, gap to confidence, diagonal, ECE."""
    lines = 1 if len(panels) <= 4 else 2
    columns = math.ceil(len(panels) / lines)
    drawing = empty_figure(1.75 * columns + (0.3 if columns < 4 else 0), 2.2 * lines + 0.1)
    axes = _axes(drawing, len(panels), columns, sharey=True)
    box = {"facecolor": "white", "edgecolor": "grey", "boxstyle": "round,pad=0.25", "linewidth": 0.6}
    for axis, (title, bins) in zip(axes, panels, strict=True):
        edges, mass, confidence, accuracy = map(np.array, (bins.edges, bins.mass, bins.confidence, bins.accuracy))
        apart, filled = confidence - accuracy, mass > 0
        bars_at: dict[str, Any] = {"x": edges[:-1][filled], "width": np.diff(edges)[filled], "align": "edge"}
        bars = axis.bar(height=accuracy[filled], color=PALETTE[0], edgecolor="black", linewidth=0.6, **bars_at)
        gap = bars_at | {"height": apart[filled], "bottom": accuracy[filled]}
        # Two layers, because matplotlib's SVG paints a hatch over a see-through face in the face's colour.
        tint = axis.bar(**gap, facecolor=GAP, edgecolor="none")
        hatch = axis.bar(**gap, facecolor="none", edgecolor=PALETTE[1], hatch="////", linewidth=0.6)
        axis.plot([0, 1], [0, 1], linestyle="--", color="grey", linewidth=1)
        text = f"ECE {100 * float((mass * abs(apart))[filled].sum() / mass.sum()):.1f} %"
        axis.text(0.05, 0.94, text, transform=axis.transAxes, va="top", fontsize=7, bbox=box)
        axis.set_title(title, fontsize=7.5)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", xticks=[0, 0.5, 1])
    drawing.supylabel("accuracy", fontsize=8)
    drawing.legend([bars, (tint, hatch)], ["accuracy", "gap to confidence"], loc="outside lower center", ncols=2)
    return drawing


@house_style()
def confusions(results: Sequence[Result]) -> ReportFigure | None:
    """Confusion matrices: a panel for each method, its runs added up, in shares of the true class."""
    from sklearn.metrics import ConfusionMatrixDisplay

    pairs: dict[str, list[tuple[str, str]]] = {}
    for result in sorted(results, key=lambda result: ordered_methods(results).index(result.cell.method)):
        windows = zip(result.predictions.label, result.predictions.predicted, strict=True)
        pairs.setdefault(result.cell.method, []).extend(pair for pair in windows if pair[0])
    pairs = {method: windows_of for method, windows_of in pairs.items() if windows_of}
    if not pairs:
        return None
    classes = list(dict.fromkeys(name for result in results for name in result.record.data.classes))
    names = [*classes, *sorted({label for windows_of in pairs.values() for label, _ in windows_of} - set(classes))]
    columns = min(2 if len(names) > 6 else 3, len(pairs))
    lines, width = math.ceil(len(pairs) / columns), WIDE if columns > 1 else NARROW + 0.5
    drawing = empty_figure(width, lines * (width / columns * 0.92 + 0.35) + 0.25)
    axes = _axes(drawing, len(pairs), columns)
    for axis, (method, windows_of) in zip(axes, pairs.items(), strict=True):
        labels, predicted = zip(*windows_of, strict=True)
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


@house_style()
def curves(results: Sequence[Result]) -> ReportFigure | None:
    """Target accuracy and ECE, and pseudo-labels, over epochs: mean lines by method."""
    runs, methods = complete_cells(results), ordered_methods(results)
    panels = {label: by_method(runs, *columns) for label, columns in PANELS.items()}
    panels = {label: lines for label, lines in panels.items() if lines}
    if not panels:
        return None
    rows, legend_rows = math.ceil(len(panels) / 2), math.ceil(len(methods) / LEGEND_COLUMNS)
    figure = empty_figure(WIDE, 2.4 * rows + 0.25 + 0.14 * legend_rows)
    axes = _axes(figure, len(panels), min(2, len(panels)))
    for axis, (label, of_methods) in zip(axes, panels.items(), strict=True):
        for method, mean in of_methods.items():
            index, every = methods.index(method), max(1, mean.size // 8)
            axis.plot(
                np.arange(1, mean.size + 1), mean, label=shortened(method), color=PALETTE[index % len(PALETTE)],
                marker=MARKERS[index % len(MARKERS)], markersize=3, markevery=(index * every // len(methods), every),
            )  # fmt: skip
        axis.grid(axis="y")
        axis.set_axisbelow(True)
        axis.set_xlim(left=0)
        axis.set(xlabel="epochs trained", ylabel=label)
        axis.set_ylim(top=min(101.5, axis.get_ylim()[1]))
    lines = {line.get_label(): line for axis in figure.axes for line in axis.lines}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=min(LEGEND_COLUMNS, len(lines)))
    tasks, seeds = len(ordered_tasks(runs)), len({run.cell.seed for run in runs})
    caption = (
        f"Means over the tasks ({tasks}) and seeds ({seeds}) that all methods finished, or over all if there are none."
        " The teacher's curve from its first epoch, the student's before."
    )
    return ReportFigure("curves", "Target accuracy, ECE and pseudo-labels over epochs", caption, figure)


def complete_cells(results: Sequence[Result]) -> list[Result]:
    """The runs of those task × seed cells that every method finished; all runs if there is no such cell."""
    methods = {result.cell.method for result in results}
    cells = grouped(results, lambda result: (result.cell.task, result.cell.seed)).values()
    complete = [runs for runs in cells if {run.cell.method for run in runs} == methods]
    return [run for runs in complete for run in runs] or list(results)


def by_method(results: Sequence[Result], *columns: str) -> dict[str, Floats]:
    """For each method the mean of its runs' curves in percent; nan where no run has a number.

    Of several columns of curves.csv the first is used where it is a number, otherwise the last.
    """
    means: dict[str, Floats] = {}
    for method in ordered_methods(results):
        runs = [run.curves for run in results if run.cell.method == method]
        columns_of = [[curves[name] for name in columns if name in curves] for curves in runs]
        curves = [100 * np.where(np.isfinite(of_run[0]), of_run[0], of_run[-1]) for of_run in columns_of if of_run]
        stack = np.ma.masked_invalid(list(zip_longest(*curves, fillvalue=np.nan)))  # (epoch, run); one may end early
        if stack.count():
            means[method] = stack.mean(axis=-1).filled(np.nan)
    return means


@house_style()
def draw_shift(rows: Rows, domains: tuple[str, str]) -> ReportFigure:
    """Per class a row: waveform, spectrum and envelope spectrum of two domains side by side, on the same scales."""
    drawing = empty_figure(16, 1.5 + 1.25 * len(rows))
    views = [view.subplots(len(rows), 2, sharex=True, sharey="row", squeeze=False) for view in drawing.subfigures(1, 3)]
    rates = {recording.rate for _, *pair in rows for recording in pair if recording is not None}
    units = ("sample", "cycles per sample", "cycles per sample") if rates == {None} else ("ms", "kHz", "Hz")
    for title, unit, axes in zip(("waveform", "spectrum, dB", "envelope spectrum"), units, views, strict=True):
        for side, domain in enumerate(domains):
            axes[0, side].set_title(f"{title}\n{domain}", color=PALETTE[side])
            axes[-1, side].set_xlabel(unit)
    for row, (label, *pair) in enumerate(rows):
        views[0][row, 0].set_ylabel(label, rotation=0, ha="right", va="center")
        for side, recording in enumerate(pair):
            axes = [view[row, side] for view in views]
            if recording is not None:
                _draw_recording(axes, recording, PALETTE[side])
            for axis in axes if recording is None else ():
                axis.text(0.5, 0.5, "no recording", ha="center", va="center", transform=axis.transAxes, color="grey")
    return ReportFigure("shift", " and ".join(domains), "a row for each class", drawing)


def _draw_recording(axes: Sequence[Axes], recording: Recording, colour: str) -> None:
    """The three views of one recording. Without a known rate, axes count samples."""
    from scipy.signal import hilbert, welch

    signal, rate, milli = recording.signal, recording.rate or 1.0, 1000.0 if recording.rate else 1.0
    axes[0].plot(np.arange(signal.size)[:WAVEFORM] * milli / rate, signal[:WAVEFORM], color=colour, linewidth=0.5)
    hertz, power = welch(signal, rate / milli, nperseg=min(WINDOW, signal.size))
    axes[1].plot(hertz[1:], 10 * np.log10(np.maximum(power[1:], 1e-30)), color=colour, linewidth=0.8)
    envelope = np.abs(hilbert(signal - signal.mean())) ** 2
    hertz, power = welch(envelope, rate, nperseg=signal.size)
    last = ENVELOPE_TO if recording.rate else 0.05
    lines = np.sqrt(power[hertz <= last])
    axes[2].plot(hertz[hertz <= last], lines / max(lines.max(), 1e-30), color=colour, linewidth=0.7)
    axes[2].set_yticks([0, 0.5, 1])
    if recording.rate and recording.rpm and recording.bearing:
        frequencies = recording.bearing.frequencies(recording.rpm)
        for fault, side in (("BPFO", "right"), ("BPFI", "left")):
            axes[2].axvline(frequencies[fault], color="#444444", linestyle="--", linewidth=0.6, zorder=0)
            axes[2].text(frequencies[fault], 1.0, fault, fontsize=6.5, ha=side, va="bottom")


@house_style()
def draw_evidence(diagnosis: Diagnosis) -> ReportFigure:
    """The envelope spectrum with its fault lines; the caption is the reason in words."""
    if diagnosis.drawing is None or diagnosis.physics is None:
        raise InputError(f"{diagnosis.recording}: there is nothing to draw; no fault lines could be read")
    drawing = empty_figure(NARROW, 0.45 * NARROW)
    draw(drawing, diagnosis.drawing, diagnosis.physics)
    title = f"{diagnosis.recording}: {diagnosis.decision.action}, {diagnosis.cells()['diagnosis']}"
    return ReportFigure("evidence", title, diagnosis.sentence, drawing)
