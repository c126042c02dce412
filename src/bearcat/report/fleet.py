"""The page of watched machines: all points, the worst first, then each that wants attention, with its trends.

Drawings are SVG of the page's own: paths hold numbers alone, and names go through the template's escaping. The size of
a page is bounded whatever the fleet's is; the page says how many points it leaves out (docs/watch-page.md).

>>> with Store.open("plant.sqlite") as store:
...     write_fleet_page(store, "plant.sqlite", Path("fleet.html"))
"""

from __future__ import annotations

import base64
import math
import shlex
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.physics import FAULTS, MULTIPLES
from bearcat.errors import InputError, suggest
from bearcat.report.typeset import NOTHING, count, templates
from bearcat.storage import write_atomically
from bearcat.trust.decision import ALARM, CHECK, NO_SIGNAL, OK
from bearcat.watch.snapshot import LEARNING, MEASUREMENTS, STATUSES, Event, PointStatus
from bearcat.watch.store import Store, TrendRow

ROWS, NAMED = 500, 10_000  # points in the table, and named in a list below it
DETAILED, SMALL = 60, 24  # points drawn at most; a fleet that is drawn completely
POINTS, SPARK_POINTS, SPARKS = 400, 60, 100  # rows read of a trend and of a small one; rows of the table that have one
SPECTRA, EVENTS = 200, 12  # spectra in a waterfall; events listed
FRESH = 5.0  # seconds for which a served page is not made anew
DAY = 86_400.0
SILENT = 2 * DAY  # behind the newest recording of the fleet, from which on the page says so
BINS, QUARTERS = 20, 4  # of a kept envelope spectrum: bins in an order, units of a byte in one dB
WIDTH, HEIGHT, TALL = 340.0, 116.0, 190.0  # of a drawing
LEFT, RIGHT, TOP, BOTTOM = 38.0, 332.0, 8.0, 20.0  # where its axes begin and end; margins above and below them
HIGHEST = 3.0  # times the threshold, at which the drawn evidence is cut off
GAP = 8.0  # times the usual time between recordings, from which on a curve is interrupted
SIGNS = {ALARM: "▲", CHECK: "◆", NO_SIGNAL: "⊘", LEARNING: "…", OK: "✓"}  # so that colour is not the only sign
LINES = {fault: fault.replace(" ", "_") for fault in FAULTS}  # the measurement of each fault's lines
PRINTED = ("rms", "velocity", "envelope_kurtosis", "rpm")  # also the lines of the point's fault
DRAWN = [name for name in MEASUREMENTS if name != "reference" and not name.startswith("band_")]
# White to dark blue; a dark page inverts it.
COLOURS = np.array([(255, 255, 255), (205, 224, 240), (110, 168, 212), (24, 92, 150), (6, 26, 64)], dtype=float)
STEPS = [hours * 3600.0 for hours in (1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 504)]  # between ticks of time

Scale = Callable[[float], float]
Ticks = tuple[tuple[float, str], ...]
Spectrum = tuple[float, float | None, bytes]


@dataclass(frozen=True)
class Plot:
    """A drawing; `label` says in words what it shows, for those who do not see it."""

    title: str
    label: str
    value: str = ""  # the latest, and what is usual
    minor: bool = False  # left out in print
    height: float = HEIGHT
    curves: tuple[tuple[str, str], ...] = ()  # class and path
    across: Ticks = ()
    up: Ticks = ()
    rules: tuple[tuple[str, float, str], ...] = ()  # class, place on x, and a word
    levels: tuple[tuple[str, float, str], ...] = ()  # class, place on y, and a word
    boxes: tuple[tuple[str, float, float, str], ...] = ()  # class, place on x, width, letter
    legend: tuple[tuple[str, str], ...] = ()  # class and words
    image: str = ""  # a data: address


@dataclass(frozen=True)
class PointDetails:
    """A point with all that is drawn of it."""

    point: PointStatus
    steps: tuple[tuple[str, str], ...]  # a sentence, and the command that goes with it
    trends: tuple[Plot, ...]
    spectra: tuple[Plot, ...]
    numbers: tuple[tuple[str, str, str, str], ...]  # measurement, latest, usual, and its range in this trend
    events: tuple[Event, ...]


def write_fleet_page(store: Store, address: str, path: Path, machine: str | None = None) -> Path:
    """Writes the page of the fleet, or of one machine, whole or not at all."""
    text = fleet_page(store, address, machine)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another --out") from error
    return path


def fleet_page(store: Store, address: str, machine: str | None = None, served: bool = False) -> str:
    """The page as HTML. A served page of the fleet links to pages of machines; one in a file holds details as well."""
    environment = templates()
    points = store.fleet(machine=machine)
    if machine is not None and not points:
        known = dict.fromkeys(point.machine for point in store.fleet())
        raise InputError(f"the store has no machine '{visible(machine)}'{suggest(machine, known)}", "machine")
    urgent = sum(point.status in (ALARM, CHECK, NO_SIGNAL) for point in points)
    detailed = 0 if served and machine is None else len(points) if machine or len(points) <= SMALL else urgent
    drawn = points[: min(detailed, DETAILED)]
    environment.globals |= {"signs": SIGNS, "statuses": STATUSES, "count": count}
    environment.globals |= {"width": WIDTH, "left": LEFT, "right": RIGHT, "top": TOP, "below": BOTTOM, "silent": SILENT}
    environment.filters |= {"time": time_text, "visible": visible}
    files = resources.files("bearcat.report")
    names = ("fleet.html", "page.css", "fleet.css", "page.js", "fleet.js")
    html, *texts = ((files / name).read_text(encoding="utf-8") for name in names)
    text = environment.from_string(html).render(
        points=points, shown=points[:ROWS], others=points[ROWS : ROWS + NAMED],
        left_out=max(len(points) - ROWS - NAMED, 0), not_drawn=detailed - len(drawn),
        sparks=[_spark(store, point) for point in points[:SPARKS]],
        details=[point_details(store, point, address) for point in drawn],
        counts=Counter(point.status for point in points), machines=len({point.machine for point in points}),
        newest=max((point.time for point in points if point.time is not None), default=None), made=time.time(),
        machine=machine, served=served, style="\n".join(texts[:2]), script="\n".join(texts[2:]),
    )  # fmt: skip
    return str(text)


class FleetPages:
    """Pages of a store as a server gives them: made one at a time, and anew only after a few seconds."""

    def __init__(self, address: str) -> None:
        self.address, self._lock = address, Lock()
        self._made: dict[str | None, tuple[float, str]] = {}

    def __call__(self, machine: str | None = None) -> str:
        with self._lock:
            now = time.monotonic()
            self._made = {name: page for name, page in self._made.items() if now - page[0] < FRESH}
            if machine not in self._made:
                with Store.open(self.address) as store:
                    self._made[machine] = now, fleet_page(store, self.address, machine, served=True)
            return self._made[machine][1]


def point_details(store: Store, point: PointStatus, address: str) -> PointDetails:
    """All that is shown of one point."""
    rows = store.trend(point.machine, point.point, most=POINTS)
    events = store.events(machine=point.machine, point=point.point)
    spectra = [each for each in store.envelopes(point.machine, point.point, most=SPECTRA) if each[2]]
    memory = store.memory(point.machine, point.point)
    orders = None if memory is None else memory.orders
    units = {name: unit for name, (_, unit) in MEASUREMENTS.items() if unit}
    return PointDetails(
        point, next_steps(point, address), tuple(_trends(rows, events, point, units)),
        tuple(_spectra(spectra, rows, point, orders)), tuple(_numbers(rows, units)),
        tuple(sorted(events, key=lambda event: -event.time)[:EVENTS]),
    )  # fmt: skip


def next_steps(point: PointStatus, address: str) -> tuple[tuple[str, str], ...]:
    """What a person does next, in sentences, each with its command where there is one."""
    place = " ".join(shlex.quote(visible(text)) for text in (point.machine, point.point))
    store = "STORE" if "://" in address else shlex.quote(visible(address))  # an address may hold a password
    after_repair = ("After a repair or with another sensor, learn anew what is usual.",
                    f"bearcat watch baseline {place} --store {store}")  # fmt: skip
    if point.status == NO_SIGNAL:
        sentence = "See whether the machine runs; if it does, check the sensor, its cable and its supply."
        return (sentence, ""), after_repair
    if point.status == LEARNING:
        return ((f"Nothing yet: {point.learnt} of {point.wanted} recordings of the baseline are there.", ""),)
    if point.status == OK:
        return (("Nothing: the point is as it usually is.", ""),)
    if point.fault is None:
        first = "No bearing fault explains the change: check load, mounting, fastening, alignment and lubrication."
    elif point.status == ALARM:
        first = f"Inspect the bearing ({point.fault}) at the next stop, and check its lubrication before that."
    else:
        first = f"Watch for {point.fault} damage: inspect the bearing when the machine stands anyway."
    steps = [(first, ""), ("Take a longer recording at steady speed and usual load, and compare.", "")]
    if point.acknowledged is not None:
        steps.append((f"Acknowledged {time_text(point.acknowledged)}; it is reported again if it grows.", ""))
    elif point.status == ALARM:
        command = f"bearcat watch acknowledge {place} --store {store}"
        steps.append(("Acknowledge the alarm once someone deals with it.", command))
    return (*steps, after_repair)


def _spark(store: Store, point: PointStatus) -> Plot | None:
    """The trend of what matters most, without axes: the lines of the fault that is named, else the RMS."""
    rows = store.trend(point.machine, point.point, most=SPARK_POINTS)
    name = LINES.get(point.fault or "", "rms")
    known = [row for row in rows if name in row.values]
    if len(known) < 2:
        return None
    values = [row.values[name] for row in known]
    times = [row.time for row in known]
    across, up = _scale((times[0], times[-1]), 1, 97), _scale(_span(values), 20, 2)
    title, unit = MEASUREMENTS[name]
    label = f"{title} from {number_text(values[0])} to {number_text(values[-1])} {unit or ''}".strip()
    end = f"M{across(times[-1]):.1f} {up(values[-1]):.1f}h0"
    return Plot(title, label, curves=(("curve", _path(times, values, across, up)), ("dot", end)))


def _trends(
    rows: Sequence[TrendRow], events: Sequence[Event], point: PointStatus, units: Mapping[str, str]
) -> Iterable[Plot]:
    """Evidence, operating states, and each measurement with what is usual of it."""
    if not rows:
        return
    times = [row.time for row in rows]
    across = _scale((times[0], max(times[-1], times[0] + 3600)), LEFT, RIGHT)
    ticks = _time_ticks(times[0], max(times[-1], times[0] + 3600), across)
    marks = {"alarm": "alarm", "grown": "alarm", "baseline": "renewed", "sensor": "renewed"}
    rules = tuple(
        (marks[event.kind], across(event.time), event.kind)
        for event in events
        if event.kind in marks and times[0] <= event.time <= times[-1]
    )
    shares = [min(max(row.evidence / row.threshold, 0.0), HIGHEST) if row.threshold else 0.0 for row in rows]
    up = _scale((0.0, 1.12 * max(1.0, *shares)), HEIGHT - BOTTOM, TOP)
    text = f"{100 * shares[-1]:.0f} % of the alarm threshold"
    yield Plot(
        "Evidence of a change", f"Evidence of a change, latest {text}", text + (" or more" * (shares[-1] == HIGHEST)),
        curves=(("area", _path(times, shares, across, up, base=up(0.0))), ("curve", _path(times, shares, across, up))),
        across=ticks, up=((up(0.0), "0"), (up(1.0), "100 %")), rules=rules, levels=(("limit", up(1.0), "alarm"),),
    )  # fmt: skip
    own = LINES.get(point.fault or "", "")
    for name in sorted(DRAWN, key=lambda name: (name != own, name not in PRINTED)):
        known = [row for row in rows if name in row.values]
        if not known:
            continue
        values, moments = [row.values[name] for row in known], [row.time for row in known]
        bands = [(row.time, *row.band[name]) for row in known if name in row.band]
        up = _scale(_span([*values, *(edge for band in bands for edge in band[1:])]), HEIGHT - BOTTOM, TOP)
        usual = f", usual {number_text(bands[-1][1])} to {number_text(bands[-1][2])}" if bands else ""
        text = f"{number_text(values[-1])} {units.get(name, '')}".strip() + usual
        title = MEASUREMENTS[name][0]
        yield Plot(
            title[:1].upper() + title[1:], f"{title}: latest {text}", text, name != own and name not in PRINTED,
            curves=(("usual", _band_path(bands, across, up)), ("curve", _path(moments, values, across, up))),
            across=ticks, up=_ticks(_span([*values]), up), rules=rules,
        )  # fmt: skip
    states = list(dict.fromkeys(row.operating_state for row in rows))
    if len(states) > 1:
        yield _state_strip(rows, states, across, ticks)


def _state_strip(rows: Sequence[TrendRow], states: Sequence[str], across: Scale, ticks: Ticks) -> Plot:
    """When the machine ran how: a box for each stretch of one operating state, with its letter where there is room."""
    named = {state: (f"c{min(place, 7)}", chr(ord("A") + place) if place < 7 else "+") for place, state in enumerate(states)}
    stretches = [list(stretch) for _, stretch in groupby(rows, key=lambda row: row.operating_state)]
    ends = [stretch[0].time for stretch in stretches[1:]] + [rows[-1].time]
    boxes = []
    for stretch, end in zip(stretches, ends, strict=True):
        kind, letter = named[stretch[0].operating_state]
        start, width = across(stretch[0].time), max(across(end) - across(stretch[0].time), 0.6)
        boxes.append((kind, start, width, letter if width > 9 else ""))
    legend = [(kind, f"{letter} {visible(state) or 'unknown'}") for state, (kind, letter) in list(named.items())[:7]]
    legend += [("c7", f"+ {count(len(states) - 7, 'other')}")] if len(states) > 7 else []
    label = f"Operating states over time: {', '.join(words for _, words in legend)}"
    latest = visible(rows[-1].operating_state)
    return Plot("Operating state", label, latest, height=52.0, across=ticks, boxes=tuple(boxes), legend=tuple(legend))


def _spectra(
    spectra: Sequence[Spectrum], rows: Sequence[TrendRow], point: PointStatus, orders: Mapping[str, float] | None
) -> Iterable[Plot]:
    """The envelope spectrum of the latest recording over that of a healthy day, and of all recordings over time."""
    if not spectra:
        return
    lines = _fault_lines(orders)
    reach = max(len(each[2]) for each in spectra) / BINS
    last = min(reach, 1.08 * max((order for _, order, _ in lines), default=reach))
    levels = [np.frombuffer(each[2][: int(last * BINS) + 1], np.uint8) / QUARTERS for each in spectra]
    healthy = _healthy_day(spectra, rows)
    highest = max(12.0, *(float(levels[place].max(initial=0.0)) for place in (healthy, -1)))
    across, up = _scale((0.0, last), LEFT, RIGHT), _scale((0.0, highest), TALL - BOTTOM, 30.0)
    paths = [
        _path(np.arange(values.size) / BINS, values, across, up, base)
        for values, base in ((levels[healthy], up(0.0)), (levels[-1], None))
    ]
    dates = [time_text(spectra[place][0]) for place in (healthy, -1)]
    yield Plot(
        "Envelope spectrum", f"Envelope spectrum by shaft order: {dates[1]} over {dates[0]}, when the point was healthy",
        "dB, by multiples of the shaft's speed", height=TALL, curves=(("healthy", paths[0]), ("curve", paths[1])),
        across=_ticks((0.0, last), across, 6), up=_ticks((0.0, highest), up),
        rules=tuple((kind, across(order), word) for kind, order, word in lines),
        legend=(("latest", f"latest, {dates[1]}"), ("healthy", f"healthy, {dates[0]}")),
    )  # fmt: skip
    if len(spectra) > 2:
        yield _waterfall([each[0] for each in spectra], levels, last, lines)


def _waterfall(
    times: Sequence[float], levels: Sequence[NDArray[np.float64]], last: float, lines: Sequence[tuple[str, float, str]]
) -> Plot:
    """Envelope spectra over time as an image: time to the right, shaft orders upwards, darker is higher."""
    across, up = _scale((times[0], times[-1]), LEFT, RIGHT), _scale((0.0, last), TALL - BOTTOM, TOP)
    size = max(map(len, levels))
    padded = np.stack([np.pad(each, (0, size - len(each))) for each in levels])
    step = math.ceil(size / 240)  # the highest of neighbours, so that no line is lost
    joined = np.pad(padded, ((0, 0), (0, -size % step))).reshape(len(levels), -1, step).max(axis=2)
    columns = np.linspace(times[0], times[-1], min(2 * len(times), 300))
    place = np.clip(np.searchsorted(times, columns, side="right") - 1, 0, len(times) - 1)
    image = joined[place] / max(float(np.quantile(joined, 0.998)), 6.0)
    image[columns - np.asarray(times)[place] > GAP * float(np.median(np.diff(times)))] = 0.0  # nothing was recorded
    content = base64.b64encode(_png(np.clip(image.T[::-1] * 255, 0, 255).astype(np.uint8))).decode("ascii")
    return Plot(
        "Envelope spectra over time", f"Envelope spectra from {time_text(times[0])} to {time_text(times[-1])}, by order",
        "shaft orders upwards; darker is higher", height=TALL, across=_time_ticks(times[0], times[-1], across),
        up=_ticks((0.0, last), up, 5), levels=tuple((kind, up(order), word) for kind, order, word in lines if word),
        image=f"data:image/png;base64,{content}",
    )  # fmt: skip


def _fault_lines(orders: Mapping[str, float] | None) -> list[tuple[str, float, str]]:
    """Class, order and word of the lines of each fault; multiples have none."""
    if orders is None:
        return []
    named = [(f"c{place}", times * orders[name], f"{times}×{name}" if times > 1 else name)
             for place, (name, times, _) in enumerate(FAULTS.values(), start=1) if name in orders]  # fmt: skip
    return [
        (kind, multiple * order, word if multiple == 1 else "") for kind, order, word in named for multiple in MULTIPLES
    ]


def _healthy_day(spectra: Sequence[Spectrum], rows: Sequence[TrendRow]) -> int:
    """The first spectrum at about the latest speed of a time when the point was ok, else of when it was learning."""
    times = [row.time for row in rows]
    for status in (OK, LEARNING):
        for place, (moment, rpm, _) in enumerate(spectra):
            row = rows[max(int(np.searchsorted(times, moment, side="right")) - 1, 0)] if rows else None
            alike = rpm is None or spectra[-1][1] is None or abs(rpm / spectra[-1][1] - 1) < 0.1
            if alike and row is not None and row.status == status:
                return place
    return 0


def _numbers(rows: Sequence[TrendRow], units: Mapping[str, str]) -> Iterable[tuple[str, str, str, str]]:
    """The trends as a table."""
    for name, (title, _) in MEASUREMENTS.items():
        known = [row for row in rows if name in row.values]
        if known:
            values, band = [row.values[name] for row in known], known[-1].band.get(name)
            usual, whole = (
                NOTHING if pair is None else f"{number_text(pair[0])} to {number_text(pair[1])}"
                for pair in (band, (min(values), max(values)))
            )
            yield title, f"{number_text(values[-1])} {units.get(name, '')}".strip(), usual, whole


def _scale(span: tuple[float, float], start: float, end: float) -> Scale:
    low, high = span
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest, with some room."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (max(low - room, 0.0) if low >= 0 else low - room), high + room


def _path(
    places: Sequence[float] | NDArray[np.float64], values: Sequence[float] | NDArray[np.float64], across: Scale,
    up: Scale, base: float | None = None,
) -> str:  # fmt: skip
    """A curve as the path of an SVG, interrupted where nothing was recorded for long; an area where a base is given."""
    usual = GAP * float(np.median(np.diff(places))) if len(places) > 1 else 0.0
    parts: list[str] = []
    before = -math.inf
    for place, value in zip(places, values, strict=True):
        parts.append(f"{'M' if base is None and place - before > usual or not parts else 'L'}{across(place):.1f} {up(value):.1f}")
        before = place
    if len(parts) == 1 and base is None:
        return parts[0] + "h0"  # a dot
    return "".join(parts) + ("" if base is None else f"V{base:.1f}H{across(places[0]):.1f}Z")


def _band_path(bands: Sequence[tuple[float, float, float]], across: Scale, up: Scale) -> str:
    """What is usual as an area; stretches with one band are joined."""
    parts = []
    for edges, stretch in groupby(bands, key=lambda band: band[1:]):
        times = [band[0] for band in stretch]
        low, high = map(up, edges)
        parts.append(f"M{across(times[0]):.1f} {low:.1f}V{high:.1f}H{max(across(times[-1]), across(times[0]) + 0.8):.1f}V{low:.1f}Z")
    return "".join(parts)


def _ticks(span: tuple[float, float], scale: Scale, most: int = 4) -> Ticks:
    """Round numbers inside the span."""
    size = (span[1] - span[0]) / most
    power = 10.0 ** math.floor(math.log10(size))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size)
    first, last = math.ceil(span[0] / step), math.floor(span[1] / step)
    return tuple((scale(step * place), number_text(step * place)) for place in range(first, last + 1))


def _time_ticks(first: float, last: float, across: Scale, most: int = 5) -> Ticks:
    """Hours, days, or beginnings of months."""
    step = next((step for step in STEPS if (last - first) / step <= most), None)
    if step is not None:
        form = "%H:%M" if step < DAY else "%-d %b"
        found = [step * place for place in range(math.ceil(first / step), math.floor(last / step) + 1)]
    else:
        start, end = (datetime.fromtimestamp(moment, UTC) for moment in (first, last))
        months = range(12 * start.year + start.month, 12 * end.year + end.month)
        kept = [month for month in months if month % math.ceil(max(len(months), 1) / most) == 0]
        found = [datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp() for month in kept]
        form = "%b %Y" if last - first > 300 * DAY else "%b"
    return tuple((across(moment), datetime.fromtimestamp(moment, UTC).strftime(form)) for moment in found)


def _png(image: NDArray[np.uint8]) -> bytes:
    """Values 0 to 255 as a PNG in our colours."""
    palette = np.stack([np.interp(np.linspace(0, 4, 256), range(5), channel) for channel in COLOURS.T], axis=1)
    height, width = image.shape
    lines = np.pad(image, ((0, 0), (1, 0))).tobytes()  # a 0 before each line: it is not filtered

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
    colours = chunk(b"PLTE", palette.round().astype(np.uint8).tobytes())
    return b"\x89PNG\r\n\x1a\n" + head + colours + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def number_text(value: float) -> str:
    """Three digits that count, with a true minus."""
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def time_text(moment: float | None) -> str:
    return NOTHING if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")


def visible(text: str) -> str:
    """A name with a sign in place of each character that would not show, or would change how others show."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
