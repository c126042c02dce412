"""Pictures of one recording that engineers know: `bearcat data show FILE --view …`, `bearcat.view` and the served page.

Lines of the shaft and of faults are marked where speed and bearing are known. A long recording is shown by its
beginning. docs/diagnose.md says what each picture is good for.

>>> draw_view(recording, "kurtogram").save("kurtogram.png")
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing, Mark, marks_of
from bearcat.data.channels import unit_of
from bearcat.data.datasets.folder import MANIFEST
from bearcat.data.recording import Floats, Recording, resample, stated_speed
from bearcat.deploy.find import find_measurements
from bearcat.diagnosis.kurtogram import KurtogramBand, kurtogram, squared_envelope
from bearcat.diagnosis.levels import power_spectrum
from bearcat.diagnosis.signal import speed_course, speed_of_channel
from bearcat.diagnosis.speed import SpeedEvidence
from bearcat.errors import InputError, suggest
from bearcat.findings import Finding
from bearcat.ranges import check_range
from bearcat.report.typeset import PALETTE, WIDE, ReportFigure, empty_figure, house_style, shortened
from bearcat.sentences import sentences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 1 << 21  # samples drawn: 41 s at 51.2 kHz
SECONDS = 2.0  # a segment of the averaged spectra of envelopes: lines half a hertz wide
POINTS = 2000  # of a waveform; beyond, the lowest and highest sample of each part are drawn
CLOSE = 10  # turns in the close look at a waveform, or CLOSE_SECONDS where the speed is not known
CLOSE_SECONDS = 0.2
ENVELOPE_TO = 500.0  # Hz; fault frequencies of most machines and their first multiples lie below
STYLES = {"shaft": ("#444444", ":"), "FTF": (PALETTE[4], ":"), "BSF": (PALETTE[0], "-."), "BPFO": (PALETTE[1], "--"),
          "BPFI": (PALETTE[3], "--")}  # fmt: skip

REMOVED = {  # views of earlier versions
    "orders": "draw envelope, whose upper axis has orders",
    "cepstrum": "draw spectrum, or take scipy.fft.irfft of its logarithm",
    "spectrogram": "draw waveform, or take scipy.signal.ShortTimeFFT",
}

Doubles = NDArray[np.float64]


def read_viewed(
    path: Path, channel: str | None = None, rate: float | None = None, rpm: float | None = None,
    bearing: Bearing | None = None,
) -> tuple[Recording, SpeedEvidence]:  # fmt: skip
    """The beginning of a file; `rpm` and `bearing` fill what its manifest leaves open."""
    if path.is_dir() or path.name == MANIFEST:
        raise InputError(f"{path}: a view is of one recording; name its file")
    check_range("rate", rate, field="rate")
    check_range("rpm", rpm, field="rpm")
    for measurement in find_measurements([path], None, channel):  # which is open inside
        found, *others = [recording for point in measurement.points for recording in point.recordings]
        if others:
            names = ", ".join(each.channel or each.name for each in (found, *others))
            raise InputError(f"{found.name.partition('#')[0]}: has several channels ({names}); name one", "channel")
        stream, known = found.open(), found.bearing or bearing
        stated, otherwise = stated_speed(stream.origin, stream.rpm, found.rpm, rpm)
        findings = [] if otherwise is None else [otherwise]
        counts = {"overridden": False, "can_override": False}
        if found.rpm and rpm not in (None, stated):
            about = {"about": "rpm", "stated": stated, "given": rpm}
            findings.append(Finding("statements differ", "remark", about | counts))
        if bearing is not None and known != bearing:
            about = {"about": "bearing", "stated": str(known)}
            findings.append(Finding("statements differ", "remark", about | counts))
        blocks, tacho, own = list(_beginning(stream.blocks)), None, stream.rate or rate
        speed = measurement.speed if rpm is None else None
        if speed is not None and own is not None:
            samples = np.concatenate(list(_beginning(speed.open().blocks)))
            tacho = speed_of_channel(samples, own, stated, unit_of(speed.channel or ""))
        name = path.name if channel is None else f"{path.name}#{channel}"
        recording, evidence = viewed_recording(name, blocks, stream.rate, stated, known, found.channel, tacho, rate)
        return recording, replace(evidence, findings=(*evidence.findings, *findings))
    raise InputError(f"{path}: holds no recording")


def _beginning(blocks: Iterable[Floats]) -> Iterator[Floats]:
    """At most MOST samples."""
    left = MOST
    for block in blocks:
        yield block[:left]
        left -= min(block.size, left)
        if not left:
            return


def viewed_recording(
    origin: str, blocks: Iterable[Floats], rate: float | None, rpm: float | None = None, bearing: Bearing | None = None,
    channel: str | None = None, tacho: Doubles | None = None, wanted: float | None = None,
) -> tuple[Recording, SpeedEvidence]:  # fmt: skip
    """The beginning of a recording, at the `wanted` rate if there is one; its speed is checked, or measured."""
    held = list(_beginning(blocks))
    signal = np.concatenate(held) if held else np.empty(0, dtype=np.float32)
    recording = Recording(signal=signal, rate=rate, domain="", origin=origin, bearing=bearing, channel=channel)
    recording = recording if wanted is None else resample(recording, wanted)
    if recording.rate is None:
        raise InputError(f"{origin}: does not say its sampling rate; give it", "rate")
    orders = None if bearing is None else bearing.orders()
    course = speed_course(recording.signal, recording.rate, orders, rpm, tacho=tacho)
    return replace(recording, rpm=course.evidence.rpm), course.evidence


def check_view(view: str) -> None:
    if view in REMOVED:
        raise InputError(f"view: {view} was removed; {REMOVED[view]}", "view")
    if view not in VIEWS:
        raise InputError(f"view: unknown choice '{view}'{suggest(view, VIEWS)}", "view")


@house_style()
def draw_view(recording: Recording, view: str, speed: SpeedEvidence | None = None) -> ReportFigure:
    """One of VIEWS of a recording whose rate is known; `speed` says where its speed is from."""
    check_view(view)
    if recording.rate is None:
        raise InputError(f"{recording.origin}: does not say its sampling rate; give it", "rate")
    if recording.signal.size < 64 or not np.ptp(recording.signal) > 0:
        raise InputError(f"{recording.origin}: holds no vibration to draw; check the sensor and the channel")
    panels, draw = VIEWS[view]
    drawing = empty_figure(WIDE, 1.0 + 2.1 * panels)
    try:
        caption = draw(drawing, drawing.subplots(panels, squeeze=False)[:, 0], recording)
    except InputError as error:
        raise InputError(f"{recording.origin}: {error}", error.field) from error
    known = "speed not known" if recording.rpm is None else f"{recording.rpm:.0f} rpm"
    if recording.rpm is not None and speed is not None and speed.by not in (None, "stated"):
        known += f" measured ({speed.by})"
    parts = (known, *([f"bearing {recording.bearing}"] if recording.bearing else ()))
    title = f"{shortened(recording.origin, 60)}: {view}, {', '.join(parts)}"
    drawing.suptitle(title, fontsize=9, x=0.01, ha="left")
    seconds = f"{recording.signal.size / recording.rate:.3g} s at {recording.rate:g} Hz"
    begun = "the first " if recording.signal.size >= MOST else ""
    notes = () if speed is None else sentences(speed.findings)
    return ReportFigure(view, title, "; ".join([f"{begun}{seconds}", caption, *notes]), drawing)


def draw_waveform(axis: Axes, signal: Floats, rate: float, colour: str) -> None:
    """A signal over time in units of 1 / rate; long ones by the lowest and highest sample of each part."""
    each = max(1, signal.size // POINTS)
    parts = signal[: signal.size // each * each].reshape(-1, each)
    places = np.repeat(np.arange(len(parts)) * each / rate, 2 if each > 1 else 1)
    values = np.stack([parts.min(axis=1), parts.max(axis=1)], axis=1).ravel() if each > 1 else parts.ravel()
    axis.plot(places, values, color=colour, linewidth=0.5)


def draw_spectrum(axis: Axes, signal: Floats, rate: float, length: int, colour: str) -> None:
    """The mean spectrum of windows of so many samples, in dB of the signal's unit."""
    hertz, decibels = spectrum_levels(signal, rate, length)
    axis.plot(hertz, decibels, color=colour, linewidth=0.8)


def spectrum_levels(signal: NDArray[np.floating[Any]], rate: float, length: int) -> tuple[Doubles, Doubles]:
    """Frequencies without zero, and the mean square at each in dB."""
    power, hertz = power_spectrum(signal.astype(np.float64), rate, length)
    return hertz[1:], _decibels(power[1:])


def draw_envelope(axis: Axes, envelope: Doubles, rate: float, last: float, colour: str, length: int) -> Doubles:
    """The spectrum of a squared envelope up to `last`, relative to its highest line: (frequency and share, bin)."""
    power, hertz = power_spectrum(envelope, rate, length)
    shown = _inside(hertz, last)
    values = np.sqrt(power[shown])
    values = values / max(float(values.max(initial=0.0)), 1e-30)
    axis.plot(hertz[shown], values, color=colour, linewidth=0.7)
    return np.stack([hertz[shown], values])


def draw_marks(
    axis: Axes, marks: Iterable[tuple[float, Mark, str]], span: tuple[float, float], height: tuple[float, float],
    inches: float = 6.0,
) -> None:  # fmt: skip
    """Lines at places inside `span` of an axis so many `inches` wide, with their words in rows above its `height`, so
    that none touches another.
    """
    rows, (first, last), (low, high) = list[list[tuple[float, float]]](), span, height
    step, width = 0.1 * (high - low), 0.058 * (last - first) / inches  # of a row of words, and of a letter
    every = [mark for mark in marks if first < mark[0] <= last]
    for place, mark, words in sorted(every, key=lambda each: (each[1].multiple, each[0])):
        colour, style = STYLES[mark.name]
        axis.axvline(place, color=colour, linestyle=style, linewidth=0.9 if mark.multiple == 1 else 0.5, zorder=0)
        if not words:
            continue
        half = (len(words) + 1) * width / 2
        middle = min(max(place, first + half), last - half)
        row = next((row for row in rows if all(middle + half <= a or middle - half >= b for a, b in row)), None)
        if row is None:
            rows.append(row := [])
        row.append((middle - half, middle + half))
        at = high + step * (rows.index(row) + 0.6)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axis.text(middle, at, words, fontsize=6.5, color="#222222", ha="center", va="center", bbox=box)
    axis.set(xlim=span, ylim=(low, high + step * (len(rows) + 0.2)))


def _waveform(_: Figure, axes: Sequence[Axes], recording: Recording) -> str:
    signal, rate = recording.signal, _rate(recording)
    seconds = CLOSE_SECONDS if recording.rpm is None else CLOSE * 60 / recording.rpm
    close = signal[: max(int(seconds * rate), 16)]
    draw_waveform(axes[0], signal, rate, PALETTE[0])
    draw_waveform(axes[1], close, rate / 1000, PALETTE[0])
    for axis, unit in zip(axes, ("s", "ms"), strict=True):
        axis.set(xlabel=f"time, {unit}", ylabel=unit_of(recording.channel or "") or "amplitude")
        axis.margins(x=0)
    length = "" if recording.rpm is None else f", {CLOSE} turns of the shaft"
    axes[1].set_title(f"the first {1000 * close.size / rate:.0f} ms{length}")
    centred = signal - signal.mean(dtype=np.float64)
    rms, peak = float(np.sqrt(np.mean(centred**2))), float(np.abs(centred).max())
    return f"root mean square {rms:.3g}, peak {peak:.3g}, crest factor {peak / rms:.1f}"


def _spectrum(_: Figure, axes: Sequence[Axes], recording: Recording) -> str:
    rate = _rate(recording)
    draw_spectrum(axes[0], recording.signal, rate / 1000, _segment(recording), PALETTE[0])
    hertz, decibels = spectrum_levels(recording.signal, rate, _segment(recording))
    axes[0].set(xlabel="frequency, kHz", ylabel=f"dB re 1 {unit_of(recording.channel or '') or 'unit'}²")
    axes[0].set_xlim(0, rate / 2000)
    draw_spectrum(axes[1], recording.signal, rate, _segment(recording), PALETTE[0])
    marks = _marks(recording)
    last = min(_last(marks), rate / 2)
    near = decibels[_inside(hertz, last)]
    low, high = near.min(), near.max()
    draw_marks(axes[1], [(mark.hertz, mark, _words(mark)) for mark in marks], (0, last), (low, high + 3))
    axes[1].set(xlabel="frequency, Hz", ylabel="dB")
    _orders_above(axes[1], recording)
    strongest = int(decibels.argmax())
    return f"the highest line is at {hertz[strongest]:.1f} Hz"


def _envelope(_: Figure, axes: Sequence[Axes], recording: Recording) -> str:
    return _draw_band(axes[0], recording, best_band(recording))


def _draw_band(axis: Axes, recording: Recording, band: KurtogramBand) -> str:
    """The envelope spectrum of a band with its marks."""
    rate, marks = _rate(recording), _marks(recording)
    last = min(_last(marks), band.high - band.low, rate / 2)
    envelope = squared_envelope(recording.signal, rate, (band.low, band.high))
    hertz, values = draw_envelope(axis, envelope, rate, last, PALETTE[0], _segment(recording))
    draw_marks(axis, [(mark.hertz, mark, _words(mark)) for mark in marks], (0, last), (0, 1.05))
    axis.set(xlabel="frequency, Hz", ylabel="relative to the highest line", yticks=[0, 0.5, 1])
    axis.set_title(f"envelope spectrum of {_kilohertz(band)}")
    _orders_above(axis, recording)
    highest = hertz[values.argmax()]
    return f"band of the kurtogram's maximum, {_kilohertz(band)}; the highest line is at {highest:.1f} Hz"


def _kurtogram(drawing: Figure, axes: Sequence[Axes], recording: Recording) -> str:
    from matplotlib.patches import Rectangle

    bands = _bands(recording)
    best = max(bands, key=lambda band: band.kurtosis)
    levels = sorted({band.level for band in bands})
    highest = max(best.kurtosis, 0.1)
    axis = axes[0]
    width = max(len([band for band in bands if band.level == level]) for level in levels)
    edges = np.linspace(0, _rate(recording) / 2000, 6 * width + 1)  # halves and thirds meet on these
    middles = (edges[1:] + edges[:-1]) / 2 * 1000
    rows = np.empty((len(levels), middles.size))
    for row, level in zip(rows, levels, strict=True):
        own = [band for band in bands if band.level == level]
        row[:] = [own[min(int(at / own[0].high), len(own) - 1)].kurtosis for at in middles]
    low, places = min(0.0, float(rows.min())), np.arange(len(levels) + 1)
    image = axis.pcolormesh(edges, places, rows, cmap="cividis", vmin=low, vmax=highest, rasterized=True)
    drawing.colorbar(image, ax=axis, label="kurtosis", pad=0.01)
    corner = (best.low / 1000, levels.index(best.level))
    for colour, thick in (("white", 3.0), ("#D55E00", 1.4)):
        box = Rectangle(corner, (best.high - best.low) / 1000, 1, fill=False, edgecolor=colour, linewidth=thick)
        box.set_clip_on(False)
        axis.add_patch(box)
    axis.set_yticks(np.arange(len(levels)) + 0.5, [f"{level:g}" for level in levels])
    axis.invert_yaxis()
    axis.set(xlabel="frequency, kHz", ylabel="level")
    axis.set_title(f"kurtosis {best.kurtosis:.2f} at level {best.level:g}, {_kilohertz(best)}")
    _draw_band(axes[1], recording, best)
    return f"kurtosis {best.kurtosis:.2f} at level {best.level:g}, {_kilohertz(best)}; noise has 0"


VIEWS: dict[str, tuple[int, Callable[[Figure, Sequence[Axes], Recording], str]]] = {  # panels, and what draws them
    "waveform": (2, _waveform),
    "spectrum": (2, _spectrum),
    "envelope": (1, _envelope),
    "kurtogram": (2, _kurtogram),
}


def best_band(recording: Recording) -> KurtogramBand:
    """The band of the highest kurtosis."""
    return max(_bands(recording), key=lambda band: band.kurtosis)


def _bands(recording: Recording) -> list[KurtogramBand]:
    """Wide enough for the lines that are marked."""
    marks, rate = _marks(recording), _rate(recording)
    return kurtogram(recording.signal, rate, min(_last(marks), rate / 4) if len(marks) > 1 else None)


def _rate(recording: Recording) -> float:
    return float(recording.rate or 1.0)


def _marks(recording: Recording) -> list[Mark]:
    return [] if recording.rpm is None else marks_of(recording.bearing, recording.rpm)


def _last(marks: Sequence[Mark]) -> float:
    """Up to where lines are drawn: a little past the last mark; further where the shaft's alone is marked."""
    return max(1.1 * mark.hertz for mark in marks) if len(marks) > 1 else ENVELOPE_TO


def _words(mark: Mark) -> str:
    return f"{mark.label} {mark.hertz:.1f} Hz" if mark.multiple == 1 else mark.label


def _segment(recording: Recording) -> int:
    return min(recording.signal.size, _power_of_two(SECONDS * _rate(recording)))


def _decibels(power: Doubles) -> Doubles:
    """Of powers, down to 150 below the highest."""
    return 10 * np.log10(np.maximum(power, max(1e-15 * float(power.max()), 1e-300)))


def _power_of_two(samples: float) -> int:
    """So many samples or a little more, 64 at least."""
    return 1 << math.ceil(math.log2(max(samples, 64)))


def _inside(places: Doubles, last: float, first: float = 0.0) -> NDArray[np.bool_]:
    """Which places are drawn; InputError where there are too few for a line."""
    found = (places > first) & (places <= last)
    if found.sum() < 3:
        raise InputError("is too short, or its rate too low, for lines at this speed; record longer, or check speed")
    return found


def _kilohertz(band: KurtogramBand) -> str:
    return f"{band.low / 1000:.3g}–{band.high / 1000:.3g} kHz"


def _orders_above(axis: Axes, recording: Recording) -> None:
    """A second axis of shaft orders above one of Hz."""
    if recording.rpm is not None:
        there, back = partial(operator.mul, 60 / recording.rpm), partial(operator.mul, recording.rpm / 60)
        axis.secondary_xaxis("top", functions=(there, back)).set_xlabel("order")
