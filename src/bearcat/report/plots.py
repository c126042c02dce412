"""Recordings of two domains side by side, to see the shift between them (`bearcat data show`).

>>> draw_shift(rows, ("load0", "load3"), Path("shift.png"))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bearcat.data.recording import Recording, cut, envelope_spectrum, spectrum
from bearcat.errors import InputError
from bearcat.report.drawing import PALETTE, empty_figure, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAVEFORM = 2048  # samples shown of a waveform
WINDOW = 1024  # samples of the windows whose spectra are averaged
ENVELOPE_TO = 500.0  # Hz; fault frequencies of most machines and their first multiples lie below


@house_style()
def draw_shift(
    rows: Sequence[tuple[str, Recording | None, Recording | None]], domains: tuple[str, str], path: Path
) -> None:
    """Per class a row: waveform, spectrum and envelope spectrum of two domains side by side, on the same scales."""
    drawing = empty_figure(16, 1.5 + 1.25 * len(rows))
    axes = drawing.subplots(len(rows), 6, squeeze=False)
    for line, (label, *pair) in zip(axes, rows, strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for side, recording in enumerate(pair):
            if recording is not None:
                _draw_recording(line[side::2], recording, PALETTE[side])
                continue
            for axis in line[side::2]:
                axis.text(0.5, 0.5, "no recording", ha="center", va="center", transform=axis.transAxes, color="grey")
        for left in (0, 2, 4):
            _same_scale(line[left], line[left + 1])
    for axis in axes[:-1].flat:
        axis.tick_params(labelbottom=False)
    known = any(recording is not None and recording.rate is not None for _, *pair in rows for recording in pair)
    titles = ("waveform", "spectrum, dB", "envelope spectrum")
    units = ("ms", "kHz", "Hz") if known else ("sample", "cycles per sample", "cycles per sample")
    for column in range(6):
        axes[0][column].set_title(f"{titles[column // 2]}\n{domains[column % 2]}", color=PALETTE[column % 2])
        axes[-1][column].set_xlabel(units[column // 2])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=110)
    except (OSError, ValueError) as error:  # ValueError: a suffix matplotlib does not know
        raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]}); choose another --out") from error


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
    axes[1].plot(frequencies / milli, 20 * np.log10(np.maximum(mean, 1e-12)), color=colour, linewidth=0.8)
    envelope = envelope_spectrum(signal)
    frequencies = np.arange(envelope.size) * rate / signal.size
    drawn = (frequencies > 0) & (frequencies <= (ENVELOPE_TO if recording.rate else 0.05))
    highest = max(float(envelope[drawn].max(initial=0.0)), 1e-30)
    axes[2].plot(frequencies[drawn], envelope[drawn] / highest, color=colour, linewidth=0.6)
    if recording.rate and recording.rpm and recording.bearing:
        marks = recording.bearing.frequencies(recording.rpm)
        for name in ("BPFO", "BPFI"):
            axes[2].axvline(marks[name], color="grey", linewidth=0.5, linestyle=":")
            axes[2].text(marks[name], 1, name, fontsize=7, color="grey", ha="center", va="bottom")


def _same_scale(left: Axes, right: Axes) -> None:
    """Both axes to the wider of the two ranges, the right one without tick labels."""
    if not (left.lines and right.lines):
        return
    low, high = zip(left.get_ylim(), right.get_ylim(), strict=True)
    for axis in (left, right):
        axis.set_ylim(min(low), max(high))
    right.tick_params(labelleft=False)
