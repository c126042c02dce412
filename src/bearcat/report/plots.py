"""Figures of recordings: two domains beside each other (`bearcat data show`), evidence of physics (`bearcat diagnose`).

>>> draw_evidence(diagnosis).render("png")
>>> draw_shift(rows, ("load0", "load3")).save("shift.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bearcat.data.recording import Recording
from bearcat.diagnosis.drawing import draw
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from bearcat.report.typeset import PALETTE, WIDE, ReportFigure, empty_figure, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAVEFORM = 2048  # samples shown of a waveform
WINDOW = 1024  # samples of the windows whose spectra are averaged
ENVELOPE_TO = 500.0  # Hz; fault frequencies of most machines and their first multiples lie below
Rows = Sequence[tuple[str, Recording | None, Recording | None]]  # class, and a recording of it in each domain


@house_style()
def draw_shift(rows: Rows, domains: tuple[str, str]) -> ReportFigure:
    """Per class a row: waveform, spectrum and envelope spectrum of two domains side by side, on the same scales."""
    drawing = empty_figure(16, 1.5 + 1.25 * len(rows))
    axes = drawing.subplots(len(rows), 6, squeeze=False)
    for line, (label, *pair) in zip(axes, rows, strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for side, recording in enumerate(pair):
            if recording is not None:
                _draw_recording(line[side::2], recording, PALETTE[side])
        for left, right in zip(line[::2], line[1::2], strict=True):
            if left.lines and right.lines:  # both to the wider of the two ranges
                low, high = zip(left.get_ylim(), right.get_ylim(), strict=True)
                left.set_ylim(min(low), max(high))
                right.set_ylim(min(low), max(high))
                right.tick_params(labelleft=False)
    titles = ("waveform", "spectrum, dB", "envelope spectrum")
    for column in range(6):
        recordings = [pair[column % 2] for _, *pair in rows]
        known = any(recording is not None and recording.rate is not None for recording in recordings)
        units = ("ms", "kHz", "Hz") if known else ("sample", "cycles per sample", "cycles per sample")
        axes[0][column].set_title(f"{titles[column // 2]}\n{domains[column % 2]}", color=PALETTE[column % 2])
        _tidy(axes[:, column], units[column // 2])
    return ReportFigure("shift", " and ".join(domains), "a row for each class", drawing)


def _tidy(column: Sequence[Axes], unit: str) -> None:
    """One axis of x below a column of plots: below the last that shows anything. The others have no numbers."""
    filled = [axis for axis in column if axis.has_data()]
    for axis in column:
        if axis not in filled:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
            axis.text(0.5, 0.5, "no recording", ha="center", va="center", transform=axis.transAxes, color="grey")
        elif axis is not filled[-1]:
            axis.tick_params(labelbottom=False)
        else:
            axis.set_xlabel(unit)
        if filled:
            axis.set_xlim(min(other.get_xlim()[0] for other in filled), max(other.get_xlim()[1] for other in filled))


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
def draw_evidence(diagnosis: Diagnosis, width: float = WIDE) -> ReportFigure:
    """The envelope spectrum with its fault lines, the waveform below; the caption is the reason in words."""
    if diagnosis.drawing is None:
        raise InputError(f"{diagnosis.recording}: there is nothing to draw; its signal could not be read")
    small = width < WIDE
    height = 0.25 if not diagnosis.drawing.levels else 0.44 if small else 0.55
    drawing = empty_figure(width, height * width)
    draw(drawing, diagnosis.drawing, diagnosis.physics, small)
    return ReportFigure("evidence", diagnosis.title, diagnosis.sentence, drawing)
