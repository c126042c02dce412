"""Figures of runs (reliability, confusion, curves over epochs) and of recordings (two domains, evidence of physics).

Each function returns a figure, or None if the runs have no data for it.

>>> confusion(results).save("confusion.pdf")
>>> draw_shift(rows, ("load0", "load3")).save("shift.png")
"""

from __future__ import annotations

import base64
import io
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.data.datasets import grouped
from bearcat.data.recording import Recording
from bearcat.diagnosis.recording import Diagnosis
from bearcat.diagnosis.signal import draw
from bearcat.errors import InputError, library
from bearcat.record import RecordedBins
from bearcat.report import Floats, Result, ordered_names
from bearcat.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, NARROW = 7.0, 3.5  # inches: a page and a column in print
RESOLUTION = 200  # dots an inch of the PNG

# Okabe and Ito's colours; black as a grey on which hatches show, yellow darkened for white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
_STYLING = threading.RLock()  # matplotlib's settings are those of the whole process
FORMATS = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # no date: equal figures, equal bytes
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

    def render(self, kind: str) -> bytes:
        """The figure as one of FORMATS; the same results give the same bytes of "png" and "svg"."""
        content = io.BytesIO()
        with house_style():
            self.drawing.savefig(content, format=kind, dpi=RESOLUTION, metadata=FORMATS[kind])
            self.drawing.set_layout_engine("none")  # the layout is final, and takes longer than drawing
        return content.getvalue()

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


def shortened(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@house_style()
def reliability(results: Sequence[Result]) -> ReportFigure | None:
    """One method: source and target, before and after calibration, all its runs together."""
    panels, recorded = list[tuple[str, RecordedBins]](), [result.record.reliability for result in results]
    for domain in ("source", "target"):
        diagrams = [diagram for record in recorded if (diagram := record[domain])]
        for when, title in (("uncalibrated", "before calibration"), ("calibrated", "after calibration")):
            bins = [filled for diagram in diagrams if (filled := diagram[when]) and sum(filled.mass)]
            if bins:
                panels.append((f"{domain}, {title}", merge_bins(bins)))
    if not panels:
        return None
    method, number = results[0].cell.method, len(panels[0][1].mass)
    caption = f"Bars below the diagonal mean too much confidence. ECE of {number} bins, all runs pooled."
    return ReportFigure(f"reliability-{method}", f"Reliability of {method}", caption, _draw_reliability(panels))


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
    drawing = empty_figure(1.75 * len(panels) + (0.3 if len(panels) < 4 else 0), 2.3)
    axes = drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    box = {"facecolor": "white", "edgecolor": "grey", "boxstyle": "round,pad=0.25", "linewidth": 0.6}
    for axis, (title, bins) in zip(axes, panels, strict=True):
        edges, mass, confidence, accuracy = map(np.array, (bins.edges, bins.mass, bins.confidence, bins.accuracy))
        apart, filled = confidence - accuracy, mass > 0
        bars_at: dict[str, Any] = {"x": edges[:-1][filled], "width": np.diff(edges)[filled], "align": "edge"}
        bars = axis.bar(height=accuracy[filled], color=PALETTE[0], edgecolor="black", linewidth=0.6, **bars_at)
        gap = bars_at | {"height": apart[filled], "bottom": accuracy[filled]}
        gaps = axis.bar(**gap, facecolor="none", edgecolor=PALETTE[1], hatch="////", linewidth=0.6)
        axis.plot([0, 1], [0, 1], linestyle="--", color="grey", linewidth=1)
        text = f"ECE {100 * float((mass * abs(apart))[filled].sum() / mass.sum()):.1f} %"
        axis.text(0.05, 0.94, text, transform=axis.transAxes, va="top", fontsize=7, bbox=box)
        axis.set_title(title, fontsize=7.5)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", xticks=[0, 0.5, 1])
    drawing.supylabel("accuracy", fontsize=8)
    drawing.legend([bars, gaps], ["accuracy", "gap to confidence"], loc="outside lower center", ncols=2)
    return drawing


@house_style()
def confusion(results: Sequence[Result]) -> ReportFigure | None:
    """The confusion matrix of one method, its runs added up, in shares of the true class."""
    from sklearn.metrics import ConfusionMatrixDisplay

    tables = [result.predictions for result in results]
    pairs = [pair for table in tables for pair in zip(table.label, table.predicted, strict=True) if pair[0]]
    if not pairs:
        return None
    labels, predicted = zip(*pairs, strict=True)
    classes = [name for result in results for name in result.record.data.classes]
    names = list(dict.fromkeys([*classes, *sorted(labels)]))
    drawing = empty_figure(NARROW, NARROW)
    ConfusionMatrixDisplay.from_predictions(
        labels, predicted, labels=names, display_labels=[shortened(name, 14) for name in names], normalize="true",
        values_format=".0%", cmap="Blues", colorbar=False, xticks_rotation="vertical", ax=drawing.subplots(),
        text_kw={"fontsize": 7},
    )  # fmt: skip
    method = results[0].cell.method
    caption = "Where the target windows of each true class (row) went, in percent of the row, over all runs."
    return ReportFigure(f"confusion-{method}", f"Confusion matrix of {method} on the target", caption, drawing)


@house_style()
def curves(results: Sequence[Result]) -> ReportFigure | None:
    """Target accuracy and ECE, and pseudo-labels, over epochs: mean lines by method."""
    methods, results = ordered_names(run.cell.method for run in results), complete_cells(results)
    panels = {label: by_method(results, *columns) for label, columns in PANELS.items()}
    panels = {label: lines for label, lines in panels.items() if lines}
    if not panels:
        return None
    figure = empty_figure(WIDE, 1.8 * len(panels) + 0.5)
    axes = figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0]
    for axis, (label, of_methods) in zip(axes, panels.items(), strict=True):
        for method, mean in of_methods.items():
            index = methods.index(method)
            axis.plot(
                np.arange(1, mean.size + 1), mean, label=shortened(method), color=PALETTE[index % len(PALETTE)],
                marker=MARKERS[index % len(MARKERS)], markersize=3, markevery=0.1,
            )  # fmt: skip
        axis.grid(axis="y")
        axis.set_axisbelow(True)
        axis.set(ylabel=label, xlim=(0, None))
        axis.set_ylim(top=min(101.5, axis.get_ylim()[1]))
    axes[-1].set_xlabel("epochs trained")
    lines = {line.get_label(): line for axis in axes for line in axis.lines}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=min(3, len(lines)))
    caption = (
        "Means over the runs of tasks and seeds that all methods finished, or over all runs if there are none. The"
        " teacher's curve from its first epoch, the student's before."
    )
    return ReportFigure("curves", "Target accuracy, ECE and pseudo-labels over epochs", caption, figure)


def complete_cells(results: Sequence[Result]) -> list[Result]:
    """The runs of those tasks and seeds that every method finished; all runs if there are none."""
    methods = {result.cell.method for result in results}
    cells = grouped(results, lambda result: (result.cell.task, result.cell.seed)).values()
    complete = [runs for runs in cells if {run.cell.method for run in runs} == methods]
    return [run for runs in complete for run in runs] or list(results)


def by_method(results: Sequence[Result], *columns: str) -> dict[str, Floats]:
    """For each method the mean of its runs' curves in percent; nan where no run has a number.

    Of several columns of curves.csv the first is used where it is a number, otherwise the last.
    """
    means: dict[str, Floats] = {}
    for method in ordered_names(run.cell.method for run in results):
        runs = [run.curves for run in results if run.cell.method == method]
        columns_of = [[curves[name] for name in columns if name in curves] for curves in runs]
        curves = [100 * np.where(np.isfinite(of_run[0]), of_run[0], of_run[-1]) for of_run in columns_of if of_run]
        stack = np.ma.masked_invalid(list(zip_longest(*curves, fillvalue=np.nan)))  # (epoch, run); one may end early
        if stack.count():
            means[method] = stack.mean(axis=-1).filled(np.nan)
    return means


@house_style()
def draw_shift(rows: Rows, domains: tuple[str, str]) -> ReportFigure:
    """Per class a row: waveform, spectrum and envelope spectrum of both domains, each in its colour."""
    from matplotlib.patches import Patch

    drawing = empty_figure(10, 1.2 + 1.5 * len(rows))
    axes = drawing.subplots(len(rows), 3, sharex="col", squeeze=False)
    titles = {"waveform": "ms", "spectrum, dB": "kHz", "envelope spectrum": "Hz"}
    for top, bottom, (title, unit) in zip(axes[0], axes[-1], titles.items(), strict=True):
        top.set_title(title)
        bottom.set_xlabel(unit)
    for row, (label, *pair) in zip(axes, rows, strict=True):
        row[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for recording, colour in zip(pair, PALETTE, strict=False):
            if recording is not None:
                _draw_recording(row, recording, colour)
    patches = [Patch(color=colour, label=domain) for domain, colour in zip(domains, PALETTE, strict=False)]
    drawing.legend(handles=patches, loc="outside lower center", ncols=2)
    return ReportFigure("shift", " and ".join(domains), "a row for each class", drawing)


def _draw_recording(axes: Sequence[Axes], recording: Recording, colour: str) -> None:
    """The three views of one recording."""
    from scipy.signal import hilbert, welch

    signal, rate = recording.signal, recording.rate
    if rate is None:
        raise InputError(f"{recording.origin}: does not state its sampling rate; give it", "rate")
    axes[0].plot(np.arange(signal.size)[:WAVEFORM] * 1000 / rate, signal[:WAVEFORM], color=colour, linewidth=0.5)
    hertz, power = welch(signal, rate / 1000, nperseg=min(WINDOW, signal.size))
    axes[1].plot(hertz[1:], 10 * np.log10(np.maximum(power[1:], 1e-30)), color=colour, linewidth=0.8)
    envelope = np.abs(hilbert(signal - signal.mean())) ** 2
    hertz, power = welch(envelope, rate, nperseg=signal.size)
    lines = np.sqrt(power[hertz <= ENVELOPE_TO])
    axes[2].plot(hertz[hertz <= ENVELOPE_TO], lines / max(lines.max(), 1e-30), color=colour, linewidth=0.7)
    if recording.rpm and recording.bearing:
        frequencies = recording.bearing.frequencies(recording.rpm)
        for fault in ("BPFO", "BPFI"):
            axes[2].axvline(frequencies[fault], color=colour, linestyle="--", linewidth=0.6, zorder=0)
            axes[2].text(frequencies[fault], 1.0, fault, color=colour, fontsize=6.5, rotation=90, ha="right", va="top")


@house_style()
def draw_evidence(diagnosis: Diagnosis) -> ReportFigure:
    """The envelope spectrum with its fault lines; the caption is the reason in words."""
    if diagnosis.drawing is None or diagnosis.physics is None:
        raise InputError(f"{diagnosis.recording}: there is nothing to draw; no fault lines could be read")
    drawing = empty_figure(NARROW, 0.45 * NARROW)
    draw(drawing, diagnosis.drawing, diagnosis.physics)
    title = f"{diagnosis.recording}: {diagnosis.decision.action}, {diagnosis.cells()['diagnosis']}"
    return ReportFigure("evidence", title, diagnosis.sentence, drawing)
