"""Figures of recordings: two domains side by side, to see the shift between them (`bearcat data show`), and the
evidence of a physical diagnosis (`bearcat diagnose`).

>>> draw_evidence(diagnosis).render("png")
>>> draw_shift(rows, ("load0", "load3"), Path("shift.png"))
>>> draw_input(rows, ("load0", "load3"), Preparation("physics", 4096), Path("physics.png"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bearcat.data.bearing import FAULT_LINES
from bearcat.data.inputs import INPUTS, FaultOrders, Input, Physics, find_input
from bearcat.data.prepare import Preparation, prepare
from bearcat.data.recording import Recording, Windows, cut, envelope_spectrum, spectrum
from bearcat.diagnosis.physics import DECIBELS, FAULTS, MULTIPLES
from bearcat.diagnosis.recording import Diagnosis
from bearcat.errors import InputError
from bearcat.report.typeset import PALETTE, WIDE, ReportFigure, empty_figure, house_style, shortened
from bearcat.settings import to_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAVEFORM = 2048  # samples shown of a waveform
WINDOW = 1024  # samples of the windows whose spectra are averaged
ENVELOPE_TO = 500.0  # Hz; fault frequencies of most machines and their first multiples lie below
Rows = Sequence[tuple[str, Recording | None, Recording | None]]  # class, and a recording of it in each domain
COLOURS = dict(zip(FAULTS, (PALETTE[3], PALETTE[1], PALETTE[0]), strict=True))


@house_style()
def draw_shift(rows: Rows, domains: tuple[str, str], path: Path) -> None:
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
    _save(drawing, path)


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


@house_style()
def draw_input(rows: Rows, domains: tuple[str, str], preparation: Preparation, path: Path) -> None:
    """Per class a row, per part of the input a column: mean and spread over the windows of two domains in one plot."""
    from matplotlib.lines import Line2D

    recordings = [recording for _, *pair in rows for recording in pair if recording is not None]
    chosen, _ = find_input(preparation.input).suited(recordings)
    parts: dict[str, Input] = {preparation.input.split(":")[0]: chosen}
    if isinstance(chosen, Physics):
        parts = dict(zip(chosen.use, chosen.members, strict=True))
    drawing = empty_figure(max(6, 4.2 * len(parts)), 1.2 + 1.4 * len(rows))
    axes = drawing.subplots(len(rows), len(parts), squeeze=False)
    for line, (label, *pair) in zip(axes, rows, strict=True):
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
        for side, recording in enumerate(pair):
            for axis, part in zip(line, parts.values(), strict=True):
                if recording is not None:
                    own = replace(preparation, input=to_text(part, INPUTS))
                    _draw_part(axis, part, prepare([recording], own), side)
    for column, (name, part) in enumerate(parts.items()):
        axes[0][column].set_title(name)
        _tidy(axes[:, column], part.axis(preparation.length, recordings[0].rate)[1])
        if isinstance(part, FaultOrders):
            axes[-1][column].set_xticks(range(len(FAULT_LINES)), FAULT_LINES, rotation=90, fontsize=6)
    drawing.legend(
        [Line2D([], [], color=PALETTE[side]) for side in (0, 1)], domains, loc="outside upper right", frameon=False,
        ncols=2 if sum(map(len, domains)) < 80 else 1,
    )  # fmt: skip
    _save(drawing, path)


def _draw_part(axis: Axes, part: Input, windows: Windows, side: int) -> None:
    """Mean, and from the tenth to the ninetieth percentile of windows; fault orders are marked where they are known."""
    recording, colour = windows.recordings[0], PALETTE[side]
    places, unit = part.axis(windows.span, recording.rate)
    at, place = np.unique(places, return_inverse=True)
    values = np.stack([windows.values[:, 0][:, place == number].mean(axis=1) for number in range(len(at))], axis=1)
    mean, (low, high) = values.mean(axis=0), np.percentile(values, [10, 90], axis=0)
    if unit == "line":
        shifted = at + 0.4 * side - 0.2
        axis.bar(shifted, mean, 0.4, color=colour, yerr=(np.maximum(mean - low, 0), np.maximum(high - mean, 0)),
                 error_kw={"elinewidth": 0.5})  # fmt: skip
        return
    axis.plot(at, mean, color=colour, linewidth=0.8)
    axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    if unit == "shaft order" and recording.bearing:
        for name, side_of_line in (("BPFO", "right"), ("BPFI", "left")):
            for multiple in (1, 2, 3):
                axis.axvline(multiple * recording.bearing.orders()[name], color="grey", linewidth=0.4, linestyle=":")
            axis.text(recording.bearing.orders()[name], 0.99, name, fontsize=6, color="grey", ha=side_of_line, va="top",
                      transform=axis.get_xaxis_transform())  # fmt: skip


def _save(drawing: Figure, path: Path) -> None:
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
        marks["2×BSF"] = 2 * marks["BSF"]
        for place, name in enumerate(sorted(("BPFO", "BPFI", "2×BSF"), key=marks.__getitem__)):
            axes[2].axvline(marks[name], color="grey", linewidth=0.5, linestyle=":")
            axes[2].text(marks[name], 1.38 - 0.16 * place, f" {name}", fontsize=6, color="grey", ha="left", va="center")
        axes[2].set_ylim(0, 1.48)
        axes[2].set_yticks([0, 0.5, 1])


@house_style()
def draw_evidence(diagnosis: Diagnosis) -> ReportFigure:
    """Level over background by order; multiples of each fault's order dashed, sidebands of the likeliest dotted."""
    physics = diagnosis.physics
    if physics is None or physics.evidence is None or physics.levels is None:
        raise InputError(f"{diagnosis.recording}: there is no evidence of physics to draw; diagnose the file again")
    evidence, drawing = physics.evidence, empty_figure(WIDE, 2.9)
    axis = drawing.subplots()
    levels = DECIBELS * physics.levels[evidence.faults[physics.likeliest_fault].row]
    orders = np.arange(levels.size) / physics.turns
    axis.plot(orders, levels, color="#444444", linewidth=0.7)
    highest = max(12.0, 1.35 * float(levels.max()))
    for fault, found in evidence.faults.items():
        name, times, modulator = FAULTS[fault]
        strong = fault == physics.likeliest_fault
        for number, line in zip(MULTIPLES, found.lines, strict=True):
            place = number * found.order * found.scale
            axis.axvline(place, color=COLOURS[fault], linestyle=(0, (4, 2)), linewidth=0.9 if strong else 0.5, zorder=0)
            text = f"{number * times if number * times > 1 else ''}{name}"
            text += f"\n{DECIBELS * line:.0f} dB" if strong else ""
            axis.text(
                place, highest, text, color=COLOURS[fault], ha="center", va="top" if strong else "bottom", fontsize=6.5,
                backgroundcolor="#ffffffcc" if strong else "none",
            )  # fmt: skip
            if strong and modulator is not None:
                side = 1.0 if modulator == "shaft" else evidence.cage
                for sign in (-1, 1):
                    at = (number * found.order + sign * side) * found.scale
                    axis.axvline(at, color=COLOURS[fault], linestyle=(0, (1, 1.5)), linewidth=0.7, zorder=0)
    axis.set(
        xlim=(0, orders[-1]), ylim=(min(-6.0, float(np.quantile(levels, 0.01))), highest),
        xlabel=f"order (multiples of the shaft's {physics.rpm / 60:.2f} Hz)", ylabel="level above background, dB",
    )  # fmt: skip
    low, high = physics.band
    title = f"{shortened(diagnosis.recording, 60)}: {physics.state}, {100 * physics.confidence:.0f} %"
    axis.set_title(f"{title}; envelope spectrum of {low / 1000:.3g}–{high / 1000:.3g} kHz", pad=12)
    probabilities = ", ".join(f"{state} {100 * share:.0f} %" for state, share in physics.probabilities.items())
    return ReportFigure("evidence", title, f"{physics.reason} ({probabilities})", drawing)
