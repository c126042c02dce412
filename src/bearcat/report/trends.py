"""Drawings of a watched point as SVG: its trends and its envelope spectrum.

A `Plot` holds places and paths; the template of the page (fleet.html) draws it and escapes its words.

>>> draw_trends(store.trend("pump 3", "drive end"), store.events("pump 3", "drive end"), fault=None)[0].label
'Evidence of a change: 12 % of the alarm threshold'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.decision import OK
from bearcat.diagnosis.physics import FAULTS, MULTIPLES
from bearcat.diagnosis.spectra import TURNS
from bearcat.report.typeset import NOTHING
from bearcat.watch.snapshot import LEARNING, MEASUREMENTS, Event
from bearcat.watch.status import written_time
from bearcat.watch.store import TrendRow

DAY = 86_400.0
WIDTH, HEIGHT = 340.0, 116.0  # of a trend
WIDE, TALL = 420.0, 190.0  # of a spectrum
LEFT, RIGHT, TOP, BOTTOM = 38.0, 8.0, 8.0, 20.0  # margins around the axes
ROW = 13.0  # height of a line of words in a drawing
QUARTERS = 4  # units of a byte of a kept envelope spectrum in one dB
HIGHEST = 3.0  # times the threshold, at which the drawn evidence is cut off
GAP = 8.0  # times the usual time between recordings, from which on a curve is interrupted
LINES = {fault: fault.replace(" ", "_") for fault in FAULTS}  # the measurement of each fault's lines
PRINTED = ("rms", "velocity", "envelope_kurtosis", "rpm")  # also the lines of the point's fault
DRAWN = [name for name in MEASUREMENTS if name != "reference" and not name.startswith("band_")]
MARKED = {"alarm": "alarm", "grown": "alarm", "baseline": "renewed", "sensor": "renewed"}  # events, and their class
STEPS = [hours * 3600.0 for hours in (1, 2, 3, 6, 12)]  # between ticks of time
STEPS += [days * DAY for days in (1, 2, 4, 7, 14, 28, 91, 182, 365, 1826, 18_262)]

Doubles = NDArray[np.float64]
Scale = Callable[[float], float]
Ticks = tuple[tuple[float, str], ...]
Spectrum = tuple[float, float | None, bytes]  # time, rpm, and the envelope spectrum as it is kept


@dataclass(frozen=True)
class Plot:
    """A drawing; `label` says in words what it shows, for those who do not see it."""

    title: str
    label: str
    value: str = ""  # the latest, and what is usual
    minor: bool = False  # left out in print
    size: tuple[float, float] = (WIDTH, HEIGHT)
    curves: tuple[tuple[str, str], ...] = ()  # class and path
    across: Ticks = ()
    up: Ticks = ()
    rules: tuple[tuple[str, float, float, str], ...] = ()  # class, place on x, top, and a word above
    levels: tuple[tuple[str, float, float, str], ...] = ()  # class, place on y, and of a word, and the word
    legend: tuple[tuple[str, str], ...] = ()  # class and words


def draw_spark(rows: Sequence[TrendRow], fault: str | None) -> Plot | None:
    """The trend of what matters most, without axes: the lines of the fault that is named, else the RMS."""
    name = LINES.get(fault or "", "rms")
    known = [(row.time, row.values[name]) for row in rows if name in row.values]
    if len(known) < 2:
        return None
    times, values = zip(*known, strict=True)
    across, up = _scale((times[0], times[-1]), 1, 97), _scale(_span(values), 20, 2)
    label = f"{MEASUREMENTS[name][0]} from {measured_text(name, values[0])} to {measured_text(name, values[-1])}"
    end = f"M{across(times[-1]):.1f} {up(values[-1]):.1f}h0"
    return Plot("", label, curves=(("curve", _path(times, values, across, up)), ("dot", end)))


def draw_trends(rows: Sequence[TrendRow], events: Sequence[Event], fault: str | None) -> list[Plot]:
    """The evidence of a change, and each measurement with what is usual of it."""
    if not rows:
        return []
    first, last = rows[0].time, max(rows[-1].time, rows[0].time + 3600)
    across = _scale((first, last), LEFT, WIDTH - RIGHT)
    ticks = _time_ticks(first, last, across)
    rules = tuple(
        (MARKED[event.kind], across(event.time), TOP, "")
        for event in events
        if event.kind in MARKED and first <= event.time <= last
    )
    plots = [_draw_evidence(rows, across, ticks, rules)]
    own = LINES.get(fault or "", "")
    for name in sorted(DRAWN, key=lambda name: (name != own, name not in PRINTED)):
        known = [row for row in rows if name in row.values]
        if not known:
            continue
        values, bands = [row.values[name] for row in known], [row.band.get(name) for row in known]
        span = _span([*values, *(edge for band in bands if band for edge in band)])
        up = _scale(span, HEIGHT - BOTTOM, TOP)
        text = measured_text(name, values[-1]) + (
            ", usual {} to {}".format(*map(number_text, bands[-1])) if bands[-1] else ""
        )
        title, times = MEASUREMENTS[name][0], [row.time for row in known]
        plots.append(Plot(
            title[0].upper() + title[1:], f"{title}: {text}", text, name != own and name not in PRINTED,
            curves=(("usual", _band_path(times, bands, across, up)), ("curve", _path(times, values, across, up))),
            across=ticks, up=_ticks(span, up), rules=rules,
        ))  # fmt: skip
    return plots


def _draw_evidence(
    rows: Sequence[TrendRow], across: Scale, ticks: Ticks, rules: tuple[tuple[str, float, float, str], ...]
) -> Plot:
    """The evidence as a share of the threshold at which there is an alarm."""
    shares = [
        (row.time, min(max(row.evidence / row.threshold, 0.0), HIGHEST))
        for row in rows
        if row.evidence is not None and row.threshold
    ] or [(rows[0].time, 0.0)]
    times, values = zip(*shares, strict=True)
    up = _scale((0.0, 1.12 * max(1.0, *values)), HEIGHT - BOTTOM, TOP)
    text = f"{'over ' if values[-1] == HIGHEST else ''}{100 * values[-1]:.0f} % of the alarm threshold"
    curve, area = (_path(times, values, across, up, base) for base in (None, up(0.0)))
    return Plot(
        "Evidence of a change", f"Evidence of a change: {text}", text, curves=(("area", area), ("curve", curve)),
        across=ticks, up=((up(0.0), "0"), (up(1.0), "100")), rules=rules,
        levels=(("limit", up(1.0), up(1.0) - 4, "alarm"),),
    )  # fmt: skip


def draw_spectra(
    spectra: Sequence[Spectrum], rows: Sequence[TrendRow], orders: Mapping[str, float] | None, fault: str | None
) -> list[Plot]:
    """The envelope spectrum of the latest recording over that of a healthy day."""
    if not spectra:
        return []
    lines = _fault_lines(orders or {}, fault)
    reach = max(len(content) for _, _, content in spectra) / TURNS
    last = min(reach, 1.08 * max((order for _, order, _ in lines), default=reach))
    levels = [np.frombuffer(content[: int(last * TURNS) + 1], np.uint8) / QUARTERS for _, _, content in spectra]
    healthy = _healthy_day(spectra, rows)
    highest = max(12.0, *(float(levels[place].max()) for place in (healthy, -1)))
    across = _scale((0.0, last), LEFT, WIDE - RIGHT)
    up = _scale((0.0, highest), TALL - BOTTOM, TOP + 3 * ROW)
    before, latest = (
        _path(np.arange(levels[place].size) / TURNS, levels[place], across, up, base)
        for place, base in ((healthy, up(0.0)), (-1, None))
    )
    dates = [time_text(spectra[place][0]) for place in (healthy, -1)]
    return [Plot(
        "Envelope spectrum", f"Envelope spectrum by shaft order, of {dates[1]} over that of {dates[0]}, a healthy day",
        f"dB, by multiples of the shaft's speed{'' if lines else '; the bearing is not known'}",
        size=(WIDE, TALL),
        curves=(("healthy", before), ("curve", latest)), across=_ticks((0.0, last), across, 6),
        up=_ticks((0.0, highest), up), legend=(("latest", f"latest, {dates[1]}"), ("healthy", f"healthy, {dates[0]}")),
        rules=tuple((kind, across(order), TOP + ROW * (int(kind[1]) + 0.6), word) for kind, order, word in lines),
    )]  # fmt: skip


def _fault_lines(orders: Mapping[str, float], named: str | None) -> list[tuple[str, float, str]]:
    """Class, order and word of the lines of each fault; those of faults that are not the named one are faint."""
    found = []
    for place, (fault, (name, times, _)) in enumerate(FAULTS.items()):
        for multiple in MULTIPLES if name in orders else ():
            number = multiple * times
            word = f"{f'{number}×' if number > 1 else ''}{name if multiple == 1 else ''}"
            found.append((f"c{place}{'' if named in (None, fault) else ' faint'}", number * orders[name], word))
    return found


def _healthy_day(spectra: Sequence[Spectrum], rows: Sequence[TrendRow]) -> int:
    """The first spectrum at about the latest speed of a time when the point was ok, else of when it was learning."""
    statuses = {row.time: row.status for row in rows}
    times, latest = sorted(statuses), spectra[-1][1]
    for status in (OK, LEARNING):
        for place, (moment, rpm, _) in enumerate(spectra):
            before = times[max(int(np.searchsorted(times, moment, side="right")) - 1, 0)] if times else moment
            alike = rpm is None or latest is None or abs(rpm - latest) < 0.1 * latest
            if alike and statuses.get(before) == status:
                return place
    return 0


def _scale(span: tuple[float, float], start: float, end: float) -> Scale:
    low, high = span
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest, with some room."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (max(low - room, 0.0) if low >= 0 else low - room), high + room


def _path(
    places: Sequence[float] | Doubles, values: Sequence[float] | Doubles, across: Scale, up: Scale,
    base: float | None = None,
) -> str:  # fmt: skip
    """A curve, interrupted where nothing was recorded for long; an area down to the base where there is one."""
    longest = GAP * float(np.median(np.diff(places))) if len(places) > 1 else math.inf
    parts, before = list[str](), math.inf
    for place, value in zip(places, values, strict=True):
        begins = not parts or (base is None and place - before > longest)
        parts.append(f"{'M' if begins else 'L'}{across(place):.1f} {up(value):.1f}")
        before = place
    if base is not None:
        return f"{''.join(parts)}V{base:.1f}H{across(places[0]):.1f}Z"
    return "".join(parts) + ("h0" if len(parts) == 1 else "")  # a dot


def _band_path(times: Sequence[float], bands: Sequence[tuple[float, float] | None], across: Scale, up: Scale) -> str:
    """What is usual as an area: a box for each stretch of time with one band."""
    parts = []
    for band, stretch in groupby(zip(times, bands, strict=True), key=lambda each: each[1]):
        moments = [moment for moment, _ in stretch]
        if band is not None:
            start, end = across(moments[0]), max(across(moments[-1]), across(moments[0]) + 0.8)
            parts.append(f"M{start:.1f} {up(band[0]):.1f}V{up(band[1]):.1f}H{end:.1f}V{up(band[0]):.1f}Z")
    return "".join(parts)


def _ticks(span: tuple[float, float], scale: Scale, most: int = 4) -> Ticks:
    """Round numbers inside the span."""
    size = (span[1] - span[0]) / most
    power = 10.0 ** math.floor(math.log10(size))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * size)
    first, last = math.ceil(span[0] / step), math.floor(span[1] / step)
    return tuple((scale(step * place), number_text(step * place)) for place in range(first, last + 1))


def _time_ticks(first: float, last: float, across: Scale, most: int = 5) -> Ticks:
    """Hours, days or months."""
    step = next((step for step in STEPS if (last - first) / step <= most), STEPS[-1])
    form = "%H:%M" if step < DAY else "%d %b" if step < 90 * DAY else "%b %Y"
    moments = [step * place for place in range(math.ceil(first / step), math.floor(last / step) + 1)]
    return tuple((across(moment), datetime.fromtimestamp(moment, UTC).strftime(form)) for moment in moments)


def number_text(value: float) -> str:
    """Three digits that count, with a true minus."""
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def measured_text(name: str, value: float) -> str:
    """A measurement with its unit, where it has one of its own."""
    return f"{number_text(value)} {MEASUREMENTS[name][1] or ''}".strip()


def time_text(moment: float | None) -> str:
    """To the minute."""
    return written_time(moment)[:16].replace("T", " ") or NOTHING
