"""The page of watched machines: all points, the worst first, then each with its trends.

The size of a page is bounded whatever the fleet's is, and the page says what it leaves out (docs/watch.md). A plot
holds paths of a drawing; the template (fleet.html) draws it as SVG and escapes its words.

>>> with Store.open("plant.db") as store:
...     write_fleet_page(store, Path("fleet.html"))
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.errors import shown
from bearcat.findings import count
from bearcat.report.figures import shortened
from bearcat.report.pages import templates
from bearcat.storage import write_atomically
from bearcat.watch.memory import PointState
from bearcat.watch.snapshot import MEASUREMENTS, Event, Fleet, PointStatus, short_time
from bearcat.watch.store import Store
from bearcat.watch.usual import DAY, KURTOSES, LINES

ROWS, DETAILED = 500, 60  # points in the table, and with trends, at most
POINTS, EVENTS = 400, 12  # rows of a trend; the latest events
LONGEST = 400  # characters shown of a name or a sentence
SILENT = 2 * DAY  # behind the newest recording of the fleet, from which on the page says so
WIDTH, HEIGHT = 340.0, 116.0  # of a trend
LEFT, RIGHT, TOP, BOTTOM = 50.0, WIDTH - 8.0, 8.0, HEIGHT - 20.0  # the axes
DRAWN = "rms", "velocity", *KURTOSES, *LINES, "rpm", "load", "temperature"
MARKED = {"alarm": "alarm", "grown": "alarm", "baseline": "renewed"}  # events, and their class


def write_fleet_page(store: Store, path: Path, machine: str | None = None) -> Fleet:
    """Writes the page of the fleet, or of one machine, whole or not at all; the points on it."""
    write_atomically(path, fleet_page(store, machine).encode())
    return store.fleet(machine, "machine")


def fleet_page(store: Store, machine: str | None = None, served: bool = False) -> str:
    """The page as HTML. A served page of the fleet links to pages of machines; one in a file holds details as well."""
    template, points = _template(), store.fleet(machine, "machine")
    drawn = [] if served and machine is None else points[:DETAILED]
    states = {name: store.states(name) for name in {point.machine for point in drawn}}
    text = template.render(
        points=points, shown=points[:ROWS], left_out=max(len(points) - ROWS, 0), served=served, machine=machine,
        details=[point_details(store, point, states[point.machine][point.point]) for point in drawn],
        counts=points.counts, machines=len({point.machine for point in points}),
        made=time.time(), newest=max((point.time for point in points if point.time is not None), default=None),
    )  # fmt: skip
    return str(text)


@cache
def _template() -> Any:
    """The page with its style and script, compiled once."""
    environment = templates()
    environment.globals |= {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM, "width": WIDTH}
    environment.globals |= {"height": HEIGHT, "count": count, "silent": SILENT}
    environment.filters |= {"time": short_time, "visible": _short}
    files = resources.files("bearcat.report")
    names = ("fleet.html", "page.css", "fleet.css", "page.js", "fleet.js")
    html, *texts = ((files / name).read_text(encoding="utf-8") for name in names)
    environment.globals |= {"style": "\n".join(texts[:2]), "script": "\n".join(texts[2:])}
    return environment.from_string(html)


def served_page(address: str, machine: str | None = None) -> str:
    """The page of the store at an address, for a server."""
    with Store.open(address) as store:
        return fleet_page(store, machine, served=True)


def point_details(store: Store, point: PointStatus, state: PointState) -> dict[str, Any]:
    """All that is drawn of one point; events with the latest first."""
    rows, events = store.trend(point.machine, point.point, POINTS), store.events(point.machine, point.point, EVENTS)
    name = f"{point.machine}/{point.point}"
    words = shown(shlex.join([str(store.path or "STORE"), *(["--"] if name.startswith("-") else []), name]))
    return {"point": point, "words": words, "events": events[::-1], **draw_trends(rows, events, state)}


def _short(text: str) -> str:
    return shortened(shown(text), LONGEST)


def draw_trends(rows: Sequence[Any], events: Sequence[Event], state: PointState) -> dict[str, Any]:
    """Plots of the evidence of a change and of each measurement; the ends of the axis of time that they share, and
    rules in it (class, and place).
    """
    if not rows:
        return {"plots": []}
    axis = first, last = rows[0].time, max(rows[-1].time, rows[0].time + 3600)
    evidence = [(row.time, 100 * row.status.change) for row in rows]
    text = f"{evidence[-1][1]:.0f} % of the alarm threshold"
    plots = [_plot("evidence of a change", text, evidence, (0.0, 100.0), axis)]
    usual = state.state.band if state.states else {}
    for name in DRAWN:
        if points := [(row.time, row.values[name]) for row in rows if name in row.values]:
            title, unit = MEASUREMENTS[name]
            text, band = f"{number_text(points[-1][1])} {unit or ''}".strip(), usual.get(name)
            text += "" if band is None else ", usual {} to {}".format(*map(number_text, band))
            plots.append(_plot(title, text, points, band, axis))
    marked = [event for event in events if event.kind in MARKED and first <= event.time <= last]
    rules = [(MARKED[event.kind], float(np.interp(event.time, axis, (LEFT, RIGHT)))) for event in marked]
    return {"plots": plots, "times": axis, "rules": rules}


def _plot(
    title: str, text: str, points: Sequence[tuple[float, float]], band: tuple[float, float] | None,
    axis: tuple[float, float],
) -> dict[str, Any]:  # fmt: skip
    """One measurement over time: its latest value, the paths of its curve and, where it is known, of a band of what is
    usual, and the ends of its axis (place, and number).
    """
    times, values = zip(*points, strict=True)
    low, high = min([*values, *(band or ())]), max([*values, *(band or ())])
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    span, up = (low - room, high + room), (BOTTOM, TOP)
    places = zip(np.interp(times, axis, (LEFT, RIGHT)), np.interp(values, span, up), strict=True)
    curve = f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in places)}h0"  # h0: a single point is a dot
    usual = "" if band is None else "M{0} {2:.1f}V{3:.1f}H{1}V{2:.1f}Z".format(LEFT, RIGHT, *np.interp(band, span, up))
    ends = {number_text(value): float(np.interp(value, span, up)) for value in (low, high)}
    return {"title": title, "value": text, "curve": curve, "usual": usual, "ends": ends}


def number_text(value: float) -> str:
    """Three digits that count, with a true minus."""
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", "−")
