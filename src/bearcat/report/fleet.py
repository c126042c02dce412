"""The page of watched machines: all points, the worst first, then each that wants attention, with its trends.

The size of a page is bounded whatever the fleet's is, and the page says what it leaves out (docs/watch.md). A `Plot`
holds places and paths of a drawing; the template (fleet.html) draws it as SVG and escapes its words.

>>> with Store.open("plant.db") as store:
...     write_fleet_page(store, Path("fleet.html"))
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, OK
from bearcat.diagnosis.lines import FAULTS
from bearcat.errors import InputError, shown, suggest
from bearcat.findings import count
from bearcat.report.figures import shortened
from bearcat.report.pages import templates
from bearcat.storage import write_atomically
from bearcat.watch.memory import PointState
from bearcat.watch.snapshot import MEASUREMENTS, Event, Fleet, PointStatus, TrendRow, short_time
from bearcat.watch.store import Store
from bearcat.watch.usual import DAY

ROWS = 500  # points in the table
DETAILED, SMALL, OPENED = 60, 24, 6  # points drawn at most; a fleet drawn completely; points not behind a click
POINTS, EVENTS, MARKS = 400, 12, 40  # rows of a trend; events listed; events marked in a trend
LONGEST = 400  # characters shown of a name or a sentence
SILENT = 2 * DAY  # behind the newest recording of the fleet, from which on the page says so
WIDTH, HEIGHT = 340.0, 116.0  # of a trend
LEFT, RIGHT, TOP, BOTTOM = 38.0, 8.0, 8.0, 20.0  # margins around the axes
GAP = 8.0  # times the usual time between recordings, from which on a curve is interrupted
LINES = {fault: fault.replace(" ", "_") for fault in FAULTS}  # the measurement of each fault's lines
DRAWN = ("rms", "velocity", "kurtosis", "envelope_kurtosis", *LINES.values(), "rpm", "load", "temperature")
MARKED = {"alarm": "alarm", "grown": "alarm", "baseline": "renewed"}  # events, and their class
STEPS = [3600.0, 2 * 3600.0, 6 * 3600.0, *(days * DAY for days in (0.5, 1, 2, 7, 14, 28, 91, 182, 365, 1826, 18_262))]

Scale = Callable[[float], float]
Ticks = list[tuple[float, str]]


def write_fleet_page(store: Store, path: Path, machine: str | None = None) -> Fleet:
    """Writes the page of the fleet, or of one machine, whole or not at all; the points on it."""
    points, text = store.fleet(machine), fleet_page(store, machine)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another --out") from error
    return points


def fleet_page(store: Store, machine: str | None = None, served: bool = False) -> str:
    """The page as HTML. A served page of the fleet links to pages of machines; one in a file holds details as well."""
    template = _template()
    points = store.fleet(machine)
    if machine is not None and not points:
        machines = dict.fromkeys(point.machine for point in store.fleet())
        raise InputError(f"the store has no machine '{shown(machine)}'{suggest(machine, machines)}", "machine")
    urgent = sum(point.status in (ALARM, CHECK, NO_SIGNAL) for point in points)
    detailed = 0 if served and machine is None else len(points) if machine or len(points) <= SMALL else urgent
    drawn = points[: min(detailed, DETAILED)]
    states = {name: store.states(name) for name in {point.machine for point in drawn}}
    text = template.render(
        points=points, shown=points[:ROWS], left_out=max(len(points) - ROWS, 0), not_drawn=detailed - len(drawn),
        details=[point_details(store, point, states[point.machine][point.point]) for point in drawn],
        counts=points.counts, machines=len({point.machine for point in points}), machine=machine, served=served,
        made=time.time(), newest=max((point.time for point in points if point.time is not None), default=None),
    )  # fmt: skip
    return str(text)


@cache
def _template() -> Any:
    """The page with its style and script, compiled once."""
    environment = templates()
    environment.globals |= {"left": LEFT, "top": TOP, "width": WIDTH, "height": HEIGHT}
    environment.globals |= {"bottom": HEIGHT - BOTTOM, "right": WIDTH - RIGHT}
    environment.globals |= {"count": count, "silent": SILENT, "opened": OPENED}
    environment.filters |= {"time": short_time, "visible": _short, "sentence": _sentence}
    files = resources.files("bearcat.report")
    names = ("fleet.html", "page.css", "fleet.css", "page.js", "fleet.js")
    html, *texts = ((files / name).read_text(encoding="utf-8") for name in names)
    environment.globals |= {"style": "\n".join(texts[:2]), "script": "\n".join(texts[2:])}
    return environment.from_string(html)


def fleet_pages(address: str) -> Callable[[str | None], str]:
    """What makes pages of a store for a server."""
    with Store.open(address):  # what is wrong with it is said at once
        pass

    def make(machine: str | None = None) -> str:
        with Store.open(address) as store:
            return fleet_page(store, machine, served=True)

    return make


def point_details(store: Store, point: PointStatus, state: PointState) -> dict[str, Any]:
    """All that is drawn of one point; events with the latest first."""
    name = point.machine, point.point
    rows, events = store.trend(*name, most=POINTS), store.events(*name, most=MARKS)
    listed, steps = events[: -EVENTS - 1 : -1], next_steps(point, store.path)
    return {"point": point, "steps": steps, "events": listed, **draw_trends(rows, events, state)}


def next_steps(point: PointStatus, path: Path | None) -> tuple[tuple[str, str], ...]:
    """What a person does next, in sentences, each with its command where there is one; `path` is the store's."""
    if point.status == OK and point.alarm is None:
        return (("Nothing.", ""),)
    name = f"{point.machine}/{point.point}"
    words = shown(shlex.join([str(path or "STORE"), *(["--"] if name.startswith("-") else []), name]))
    alarmed = point.status == ALARM or point.alarm is not None
    steps = [("Take a longer recording at steady speed and usual load, and compare.", "")]
    if point.status == NO_SIGNAL:
        steps = [("See whether the machine runs; if it does, check the sensor, its cable and its supply.", "")]
    elif point.fault:
        when = "next stop" if alarmed else "next planned stop"
        steps.insert(0, (f"Check the lubrication; inspect the bearing ({point.fault}) at the {when}.", ""))
    elif alarmed:
        steps.insert(0, ("Check load, fastening, alignment and lubrication: no bearing fault explains the change.", ""))
    else:
        steps.insert(0, ("Follow the reason: it names the sensor, the recording or the neighbour to check.", ""))
    if alarmed and point.acknowledged is None:
        steps.append(("Acknowledge the alarm once someone deals with it.", f"bearcat watch acknowledge {words}"))
    again = "After a repair, or with another sensor, let it learn again what is usual."
    return (*steps, (again, f"bearcat watch baseline {words}"))


def _short(text: str) -> str:
    return shortened(shown(text), LONGEST)


def _sentence(reason: str) -> str:
    """A reason as a line of its own."""
    return _short(reason[:1].upper() + reason[1:])


@dataclass(frozen=True)
class Plot:
    """One measurement over time, with the paths of its curve and, where it is known, of a band of what is usual."""

    title: str
    value: str  # the latest, and what is usual
    curve: str
    usual: str
    up: Ticks


def draw_trends(rows: Sequence[TrendRow], events: Sequence[Event], state: PointState) -> dict[str, Any]:
    """Plots of the evidence of a change and of each measurement, that of the named fault first; ticks and rules (class,
    and place) of the axis of time that they share.
    """
    if not rows:
        return {"plots": []}
    first, last = rows[0].time, max(rows[-1].time, rows[0].time + 3600)
    across = _scale((first, last), LEFT, WIDTH - RIGHT)
    marked = [event for event in events if event.kind in MARKED and first <= event.time <= last]
    judged = [(row.time, 100 * row.status.change) for row in rows if row.status is not None]
    evidence = f"{judged[-1][1] if judged else 0:.0f} % of the alarm threshold"
    plots = [_plot("evidence of a change", evidence, judged or [(first, 0.0)], (0.0, 100.0), across)]
    usual = state.state.band if state.states else {}
    named = LINES.get(state.status.fault or "", "")
    for name in sorted(DRAWN, key=lambda name: name != named):
        if points := [(row.time, row.values[name]) for row in rows if name in row.values]:
            title, unit = MEASUREMENTS[name]
            text, band = f"{number_text(points[-1][1])} {unit or ''}".strip(), usual.get(name)
            text += "" if band is None else ", usual {} to {}".format(*map(number_text, band))
            plots.append(_plot(title, text, points, band, across))
    rules = [(MARKED[event.kind], across(event.time)) for event in marked]
    return {"plots": plots, "across": _time_ticks(first, last, across), "rules": rules}


def _plot(
    title: str, text: str, points: Sequence[tuple[float, float]], band: tuple[float, float] | None, across: Scale
) -> Plot:
    times, values = zip(*points, strict=True)
    low, high = min([*values, *(band or ())]), max([*values, *(band or ())])
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    span = max(low - room, 0.0) if low >= 0 else low - room, high + room
    up, usual = _scale(span, HEIGHT - BOTTOM, TOP), ""
    if band is not None:
        usual = f"M{LEFT} {up(band[0]):.1f}V{up(band[1]):.1f}H{WIDTH - RIGHT}V{up(band[0]):.1f}Z"
    return Plot(title, text, _path(times, values, across, up), usual, _ticks(span, up))


def _scale(span: tuple[float, float], start: float, end: float) -> Scale:
    low, high = span
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _path(times: Sequence[float], values: Sequence[float], across: Scale, up: Scale) -> str:
    """A curve, interrupted where nothing was recorded for long."""
    longest = GAP * float(np.median(np.diff(times))) if len(times) > 1 else math.inf
    parts, before = list[str](), -math.inf
    for moment, value in zip(times, values, strict=True):
        parts.append(f"{'M' if moment - before > longest else 'L'}{across(moment):.1f} {up(value):.1f}")
        before = moment
    return "".join(parts) + ("h0" if len(parts) == 1 else "")  # a dot


def _ticks(span: tuple[float, float], scale: Scale, most: int = 4) -> Ticks:
    """Round numbers inside the span."""
    size = (span[1] - span[0]) / most
    power = 10.0 ** math.floor(math.log10(size))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * size)
    first, last = math.ceil(span[0] / step), math.floor(span[1] / step)
    return [(scale(step * number), number_text(step * number)) for number in range(first, last + 1)]


def _time_ticks(first: float, last: float, across: Scale, most: int = 5) -> Ticks:
    """Hours, days or months."""
    step = next((step for step in STEPS if (last - first) / step <= most), STEPS[-1])
    form = "%H:%M" if step < DAY else "%d %b" if step < 90 * DAY else "%b %Y"
    moments = [step * number for number in range(math.ceil(first / step), math.floor(last / step) + 1)]
    return [(across(moment), datetime.fromtimestamp(moment, UTC).strftime(form)) for moment in moments]


def number_text(value: float) -> str:
    """Three digits that count, with a true minus."""
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", "−")
