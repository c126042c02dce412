"""Figures. Colours are Okabe and Ito's, told apart by colour-blind eyes and in grey print.

>>> draw_shift(rows, ("load0", "load3"), Path("shift.png"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Recording, cut, envelope_spectrum, spectrum
from bearcat.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Bins:
    """A reliability diagram's numbers: edges (bin + 1), mass, confidence and accuracy (bin)."""

    edges: NDArray[np.float64]
    mass: NDArray[np.float64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    ece: float


COLOURS = ("#0072B2", "#D55E00")
GAP = "#D55E0040"  # see-through, so that a gap below the bar's top shows as well as one above
WAVEFORM = 2048  # samples shown of a waveform
WINDOW = 1024  # samples of the windows whose spectra are averaged
ENVELOPE_TO = 500.0  # Hz; fault frequencies of most machines and their first multiples lie below


def figure(width: float, height: float) -> Any:
    """An empty figure that knows how to draw itself without a screen; a sentence where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("figures need an extra; pip install 'bearcat[report]'") from error
    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def draw_shift(
    rows: Sequence[tuple[str, Recording | None, Recording | None]], domains: tuple[str, str], path: Path
) -> None:
    """Per class a row: waveform, spectrum and envelope spectrum of two domains side by side, on the same scales."""
    drawing = figure(16, 1.5 + 1.25 * len(rows))
    axes = drawing.subplots(len(rows), 6, squeeze=False)
    for line, (label, *pair) in zip(axes, rows, strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for side, recording in enumerate(pair):
            if recording is None:
                for axis in line[side::2]:
                    axis.text(
                        0.5, 0.5, "no recording", ha="center", va="center", transform=axis.transAxes, color="grey"
                    )
            else:
                _draw_recording(line[side::2], recording, COLOURS[side])
        for left in (0, 2, 4):
            _same_scale(line[left], line[left + 1])
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:-1].flat:
        axis.tick_params(labelbottom=False)
    known = any(recording is not None and recording.rate is not None for _, *pair in rows for recording in pair)
    titles = ("waveform", "spectrum, dB", "envelope spectrum")
    units = ("ms", "kHz", "Hz") if known else ("sample", "cycles per sample", "cycles per sample")
    for column in range(6):
        axes[0][column].set_title(
            f"{titles[column // 2]}\n{domains[column % 2]}", fontsize=9, color=COLOURS[column % 2]
        )
        axes[-1][column].set_xlabel(units[column // 2], fontsize=8)
    _save(drawing, path)


def _draw_recording(axes: Sequence[Axes], recording: Recording, colour: str) -> None:
    """The three views of one recording. Without a known rate, axes count samples."""
    rate = recording.rate or 1.0
    signal = recording.signal
    milli = 1000.0 if recording.rate else 1.0
    shown = signal[:WAVEFORM]
    axes[0].plot(np.arange(shown.size) / rate * milli, shown, color=colour, linewidth=0.5)
    windows = spectrum(cut(recording, min(WINDOW, signal.size))[:, 0])
    mean = np.sqrt((windows[:, 1:] ** 2).mean(axis=0))  # without the mean of the signal
    frequencies = np.arange(1, mean.size + 1) * rate / min(WINDOW, signal.size)
    level = 20 * np.log10(np.maximum(mean, 1e-12))
    axes[1].plot(frequencies / milli, level, color=colour, linewidth=0.8)
    envelope = envelope_spectrum(signal)
    frequencies = np.arange(envelope.size) * rate / signal.size
    seen = (frequencies > 0) & (frequencies <= (ENVELOPE_TO if recording.rate else 0.05))
    axes[2].plot(
        frequencies[seen],
        envelope[seen] / max(float(envelope[seen].max(initial=0.0)), 1e-30),
        color=colour,
        linewidth=0.6,
    )
    if recording.rate and recording.rpm and recording.bearing:
        marks = recording.bearing.frequencies(recording.rpm)
        for name in ("BPFO", "BPFI"):
            axes[2].axvline(marks[name], color="grey", linewidth=0.5, linestyle=":")
            axes[2].text(marks[name], 1, name, fontsize=5, color="grey", ha="center", va="bottom")


def _same_scale(left: Axes, right: Axes) -> None:
    """Both axes to the wider of the two ranges, the right one without tick labels."""
    if not (left.lines and right.lines):
        return
    low, high = zip(left.get_ylim(), right.get_ylim(), strict=True)
    for axis in (left, right):
        axis.set_ylim(min(low), max(high))
    right.tick_params(labelleft=False)


def draw_reliability(panels: Sequence[tuple[str, Bins]], path: Path) -> None:
    """Reliability diagrams in a row, as the paper draws them: accuracy as bars, gap to confidence, diagonal, ECE."""
    drawing = figure(3.4 * len(panels), 3.8)
    axes = drawing.subplots(1, len(panels), squeeze=False)[0]
    legend: dict[str, Any] = {}
    for axis, (title, bins) in zip(axes, panels, strict=True):
        legend = reliability_panel(axis, bins)
        axis.set(title=title, xlabel="confidence")
    axes[0].set_ylabel("accuracy")
    drawing.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    _save(drawing, path)


def reliability_panel(axis: Axes, bins: Bins) -> dict[str, Any]:
    """One reliability diagram without its labels; empty bins stay empty. Returns what a legend shows, by name."""
    filled = bins.mass > 0
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    accuracy, confidence = bins.accuracy[filled], bins.confidence[filled]
    bars = axis.bar(left, accuracy, width, align="edge", color=COLOURS[0], edgecolor="black", linewidth=0.6)
    gap: dict[str, Any] = {
        "x": left,
        "height": confidence - accuracy,
        "width": width,
        "bottom": accuracy,
        "align": "edge",
    }
    # Two layers, because matplotlib's SVG paints a hatch over a see-through face in the face's colour.
    tint = axis.bar(**gap, facecolor=GAP, edgecolor="none")
    hatch = axis.bar(**gap, facecolor="none", edgecolor=COLOURS[1], hatch="////", linewidth=0.6)
    axis.plot([0, 1], [0, 1], linestyle="--", color="grey", linewidth=1)
    axis.text(
        0.05, 0.94, f"ECE {100 * bins.ece:.1f} %", transform=axis.transAxes, va="top",
        bbox={"facecolor": "white", "edgecolor": "grey", "boxstyle": "round,pad=0.25", "linewidth": 0.6},
    )  # fmt: skip
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return {"accuracy": bars, "gap to confidence": (tint, hatch)}


def _save(drawing: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=110)
    except (OSError, ValueError) as error:  # ValueError: a suffix matplotlib does not know
        raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]}); choose another --out") from error
