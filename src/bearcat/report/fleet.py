"""The page of watched machines: all points, the worst first, then each that wants attention, with its trends.

The size of a page is bounded whatever the fleet's is, and the page says what it leaves out (docs/watch.md).

>>> with Store.open("plant.db") as store:
...     write_fleet_page(store, Path("fleet.html"))
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, OK
from bearcat.errors import InputError, suggest
from bearcat.names import shown
from bearcat.report.trends import (
    BOTTOM,
    DAY,
    LEFT,
    RIGHT,
    TOP,
    draw_spark,
    draw_spectra,
    draw_trends,
    time_text,
)
from bearcat.report.typeset import count, shortened, templates
from bearcat.storage import write_atomically
from bearcat.watch.snapshot import LEARNING, PointStatus
from bearcat.watch.status import Fleet
from bearcat.watch.store import Store

ROWS, NAMED = 500, 10_000  # points in the table, and named in a list below it
DETAILED, SMALL, OPENED = 60, 24, 6  # points drawn at most; a fleet drawn completely; points not behind a click
POINTS, SPARK_POINTS, SPARKS = 400, 60, 60  # rows read of a trend and of a small one; rows of the table that have one
SPECTRA, EVENTS = 200, 12  # spectra in a waterfall; events listed
MARKS = 40  # alarms and other events marked in a trend
LONGEST = 400  # characters shown of a name or a sentence
SILENT = 2 * DAY  # behind the newest recording of the fleet, from which on the page says so


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
        known = dict.fromkeys(point.machine for point in store.fleet())
        raise InputError(f"the store has no machine '{shown(machine)}'{suggest(machine, known)}", "machine")
    urgent = sum(point.status in (ALARM, CHECK, NO_SIGNAL) for point in points)
    detailed = 0 if served and machine is None else len(points) if machine or len(points) <= SMALL else urgent
    drawn = points[: min(detailed, DETAILED)]
    sparks = [
        draw_spark(store.trend(each.machine, each.point, most=SPARK_POINTS), each.fault) for each in points[:SPARKS]
    ]
    text = template.render(
        points=points, shown=points[:ROWS], others=points[ROWS : ROWS + NAMED], sparks=sparks,
        left_out=max(len(points) - ROWS - NAMED, 0), not_drawn=detailed - len(drawn),
        details=[point_details(store, point) for point in drawn], counts=points.counts,
        machines=len({point.machine for point in points}), machine=machine, served=served, made=time.time(),
        newest=max((point.time for point in points if point.time is not None), default=None),
    )  # fmt: skip
    return str(text)


@cache
def _template() -> Any:
    """The page with its style and script, compiled once."""
    environment = templates()
    environment.globals |= {"left": LEFT, "top": TOP, "below": BOTTOM, "margin": RIGHT}
    environment.globals |= {"count": count, "silent": SILENT, "opened": OPENED}
    environment.filters |= {"time": time_text, "visible": _short, "sentence": _sentence}
    files = resources.files("bearcat.report")
    names = ("fleet.html", "page.css", "fleet.css", "page.js", "fleet.js")
    html, *texts = ((files / name).read_text(encoding="utf-8") for name in names)
    environment.globals |= {"style": "\n".join(texts[:2]), "script": "\n".join(texts[2:])}
    return environment.from_string(html)


def fleet_pages(address: str) -> Callable[[str | None], str]:
    """What makes pages of a store for a server."""
    Store.open(address).close()  # what is wrong with it is said at once

    def make(machine: str | None = None) -> str:
        with Store.open(address) as store:
            return fleet_page(store, machine, served=True)

    return make


def point_details(store: Store, point: PointStatus) -> dict[str, Any]:
    """All that is drawn of one point; events with the latest first."""
    name = point.machine, point.point
    rows, events, state = store.trend(*name, most=POINTS), store.events(*name, most=MARKS), store.state(*name)
    orders, envelopes = None if state is None else state.orders, store.envelopes(*name, most=SPECTRA)
    return {
        "point": point, "steps": next_steps(point, store.path), "trends": draw_trends(rows, events, point.fault),
        "spectra": draw_spectra(envelopes, rows, orders, point.fault), "events": events[: -EVENTS - 1 : -1],
    }  # fmt: skip


def next_steps(point: PointStatus, path: Path | None) -> tuple[tuple[str, str], ...]:
    """What a person does next, in sentences, each with its command where there is one; `path` is the store's."""
    if point.status == LEARNING:
        return ((f"Nothing yet: {point.learnt} of {point.wanted} recordings of the baseline are there.", ""),)
    if point.status == OK and point.alarm is None:
        return (("Nothing: the point is as usual.", ""),)
    name = f"{point.machine}/{point.point}"
    words = shown(shlex.join([str(path or "STORE"), *(["--"] if name.startswith("-") else []), name]))
    steps = []
    if point.status == NO_SIGNAL:
        steps.append(("See whether the machine runs; if it does, check the sensor, its cable and its supply.", ""))
    if point.status == ALARM or point.alarm is not None:
        fault = f"Inspect the bearing ({point.fault}) at the next stop, and check its lubrication before that."
        other = "No bearing fault explains the change: check load, fastening, alignment and lubrication."
        steps.append((fault if point.fault else other, ""))
        if point.acknowledged is None:
            once = "Acknowledge the alarm once someone deals with it."
            steps.append((once, f"bearcat watch acknowledge {words}"))
    elif point.status == CHECK or point.fault:
        fault = f"Check the lubrication; inspect the bearing ({point.fault}) at the next planned stop."
        other = "Follow the reason: it names the sensor, the recording or the neighbour to check."
        steps.append((fault if point.fault else other, ""))
    if point.status != NO_SIGNAL:
        steps.insert(1, ("Take a longer recording at steady speed and usual load, and compare.", ""))
    if point.acknowledged is not None:
        steps.append((f"Acknowledged {time_text(point.acknowledged)}; it is reported again if it grows.", ""))
    again = "After a repair, or with another sensor, let it learn again what is usual."
    return (*steps, (again, f"bearcat watch baseline {words}"))


def _short(text: str) -> str:
    return shortened(shown(text), LONGEST)


def _sentence(reason: str) -> str:
    """A reason as a line of its own."""
    return _short(reason[:1].upper() + reason[1:])
