"""Measures `bearcat watch`: failures found, lead times and false alarms.

`fleet` simulates machines over years, with some failing bearings, and stores the measurements of every recording, one
file per machine (it can be resumed). `judge` replays them with a rule and prints false alarms a year, failures found and
lead times. `real` replays runs to failure from a folder with a manifest (IMS: docs/own-data.md) and compares simpler rules.

The points of a simulated machine share cross-talk. Load, speed, temperature, background and sensors vary without harm;
a failing point gets a spall after day 100 that grows exponentially from 0.02 to 3 mm within 45 to 240 days.

    python benchmarks/watch.py fleet --out fleet --every 3 --seed 0
    python benchmarks/watch.py judge fleet
    python benchmarks/watch.py real data/ims --store ims.db --alone
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import chi2

import bearcat
from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated, make_specimen
from bearcat.data.vibration import REFERENCE, Condition, Defect, MachinePhysics, random_stream, simulate
from bearcat.deploy.find import FoundMeasurement, FoundRecording, Given, found_recording
from bearcat.diagnosis.decision import binomial_interval
from bearcat.diagnosis.lines import FAULTS
from bearcat.diagnosis.recording import Measured, Observation
from bearcat.settings import WatchRequest, from_plain, to_plain
from bearcat.watch.alarm import assess
from bearcat.watch.folder import WatchedFolder
from bearcat.watch.memory import PointState, acknowledge, observe, relearn
from bearcat.watch.snapshot import PointStatus, Snapshot, measure
from bearcat.watch.store import Store

DAYS, POINTS, RATE = 730, 4, 16_000.0  # of a fleet, of a machine, and Hz of a recording of one second
DAY = 86400.0
START = 1_704_088_800.0  # 1 January 2024, 6:00
PARTS = ("inner", "outer", "ball")
NEIGHBOUR = 0.15  # of a point's signal that the next one on the shaft hears
LOAD_WEEKEND, LOAD_WANDER = 0.6, 0.12  # load at the weekend over that of a weekday, and how far it wanders (log)
WARMTH, SEASON = 0.06, 12.0  # dB a kelvin by which background and roughness fall, and amplitude of the year in K
LEVEL_DRIFT, LEVEL_DAYS = 0.07, 20.0  # of log levels of background and roughness, around their means: 0.6 dB
MODE_DRIFT, MODE_DAYS = 0.05, 60.0  # of log gains of the modes, likewise
GAIN_WALK = 0.03  # of the log gain of the sensor in a year
RUN_IN, RUN_IN_DAYS, NEW = 0.4, 5.0, 0.2  # log roughness of a new bearing, days until it falls by e, share of such
SWAPS, SWAP_GAIN, SWAP_MODE = 0.1, 0.2, 0.3  # a year of each point; log of gain and of the contact's mode
KNOCKS = 0.005  # share of recordings beside a knock
MISSING = 0.03  # share of days without a recording
STOPS, STOPPED = 4.0, (1.0, 30.0)  # a year of a machine; days they last, log-uniform
RESTART, RESTART_DAYS, SEATING = 0.2, 2.0, 0.05  # log roughness after a stop, days until it falls by e; log of modes
GROWTH = (45.0, 240.0)  # days from the first sign to the end, log-uniform
FIRST, LAST = 0.02, 3.0  # mm of a spall at its first sign and at the end
SPEEDS = (900.0, 1500.0)
VISIBLE, SMOOTHED = 6.0, 7  # dB of a defect's lines above reference lines that can be seen; recordings of that median
SOUND = 100.0  # days in which no spall begins: a bearing that is damaged at the start is no matter of change


@dataclass(frozen=True)
class Failure:
    """Of a point: what, from which day on, and when it ends."""

    part: str
    begin: float
    end: float

    def length(self, day: float) -> float:
        """mm of the spall; 0 before it begins."""
        if day < self.begin:
            return 0.0
        share = min((day - self.begin) / (self.end - self.begin), 1.0)
        return float(FIRST * (LAST / FIRST) ** share)


class FleetMachine:
    """One machine, recorded `every` so many days; `failing` is the share of points that fail."""

    def __init__(self, number: int, failing: float = 0.05, every: int = 1, seed: int = 0) -> None:
        self.seed, self.failing, self.number, self.name = seed, failing, number, f"machine-{number + 1:03d}"
        random = self._random("machine")
        self.speed = float(random.choice(SPEEDS))
        self.two_speeds = bool(random.uniform() < 0.1)
        self.load_known = bool(random.uniform() < 0.5)
        days = np.arange(DAYS)
        wander = _wandering(DAYS, LOAD_WANDER, 10.0, random)
        self.load = np.where(days % 7 >= 5, LOAD_WEEKEND, 1.0) * np.exp(wander)
        season = SEASON * np.sin(2 * math.pi * (days - 100) / 365.25)
        self.temperature = 20.0 + season + 3.0 * random.standard_normal(DAYS)
        self.speeds = np.where(self.two_speeds & (random.uniform(size=DAYS) < 0.3), 1200.0, self.speed)
        self.stops = self._stops()
        still = {day for begin, end in self.stops for day in range(begin, end)}
        self.recorded = [int(day) for day in days[::every] if random.uniform() >= MISSING and day not in still]
        self.points = [f"bearing-{place + 1}" for place in range(POINTS)]
        self._histories = [self._history(place) for place in range(POINTS)]

    def _random(self, part: str) -> np.random.Generator:
        return random_stream(self.seed, f"fleet/{self.number}", part)

    def _stops(self) -> list[tuple[int, int]]:
        """First days of stops, and the days on which the machine runs again."""
        random = self._random("stops")
        begins = random.uniform(0, DAYS, size=random.poisson(STOPS * DAYS / 365.25))
        low, high = np.log(STOPPED)
        lengths = np.exp(random.uniform(low, high, size=begins.size))
        return [(int(begin), int(begin + length) + 1) for begin, length in zip(begins, lengths, strict=True)]

    def _history(self, place: int) -> dict[str, NDArray[np.float64]]:
        """How a point's levels, modes and gain go over the days, as factors (day,)."""
        days, random = DAYS, self._random(f"history {place}")
        walk = np.cumsum(GAIN_WALK / math.sqrt(365.25) * random.standard_normal(days))
        swaps = random.uniform(size=days) < SWAPS / 365.25
        new = RUN_IN * np.exp(-np.arange(days) / RUN_IN_DAYS) * (random.uniform() < NEW)
        modes = [_wandering(days, MODE_DRIFT, MODE_DAYS, random) for _ in range(4)]
        restarted = [np.maximum(np.arange(days) - end, -1) for _, end in self.stops]
        for since in restarted:
            new = new + np.where(since >= 0, RESTART * np.exp(-since / RESTART_DAYS), 0.0)
            modes = [mode + (since >= 0) * SEATING * random.standard_normal() for mode in modes]
        return {
            "noise": np.exp(_wandering(days, LEVEL_DRIFT, LEVEL_DAYS, random)),
            "roughness": np.exp(_wandering(days, LEVEL_DRIFT, LEVEL_DAYS, random) + new),
            "gain": np.exp(walk + np.cumsum(swaps * SWAP_GAIN * random.standard_normal(days))),
            "contact": np.exp(np.cumsum(swaps * SWAP_MODE * random.standard_normal(days)) + modes[3]),
            **{f"mode {number}": np.exp(modes[number]) for number in range(3)},
            "knock": (random.uniform(size=days) < KNOCKS) * random.uniform(0.5, 3.0, size=days),
        }

    @cached_property
    def failures(self) -> list[Failure | None]:
        """Of each point."""
        found: list[Failure | None] = []
        for place in range(POINTS):
            random = self._random(f"failure {place}")
            fails, part = random.uniform() < self.failing, str(random.choice(PARTS))
            length = math.exp(random.uniform(*np.log(GROWTH)))
            begin = float(random.uniform(SOUND, max(DAYS - length, SOUND + 1)))
            found.append(Failure(part, begin, begin + length) if fails else None)
        return found

    @cached_property
    def own(self) -> list[MachinePhysics]:
        base = Simulated(rate=RATE, specimens=4, seed=self.seed)
        first = 1 + POINTS * self.number
        return [make_specimen(base, "healthy", first + place).physics for place in range(POINTS)]

    def varied(self, place: int, day: int) -> MachinePhysics:
        """The physics of a point on a day, with what varies."""
        own, varied = self.own[place], self._histories[place]
        warm = 10 ** (-WARMTH * (float(self.temperature[day]) - 20.0) / 20)
        gain = varied["gain"][day]
        modes = tuple(value * varied[f"mode {number}"][day] for number, value in enumerate(own.resonance_gains))
        return replace(
            own, impact=own.impact * gain, noise=own.noise * warm * varied["noise"][day] * gain,
            roughness=own.roughness * warm * varied["roughness"][day] * gain, unbalance=own.unbalance * gain,
            resonance_gains=modes, contact_gain=own.contact_gain * varied["contact"][day],
            misalignment=tuple(gain * size for size in own.misalignment),
            gear_amplitudes=tuple(gain * size for size in own.gear_amplitudes),
            motor_amplitudes=tuple(gain * size for size in own.motor_amplitudes),
        )  # fmt: skip

    def signals(self, day: int) -> list[NDArray[np.float32]]:
        """What each point's sensor hears on a day, (time,)."""
        load, own = float(self.load[day]), []
        condition = Condition(float(self.speeds[day]), REFERENCE.torque * load, REFERENCE.force * load)
        for place, failure in enumerate(self.failures):
            length = failure.length(day) if failure is not None and day <= failure.end else 0.0
            defects = (Defect(failure.part, length),) if failure is not None and length else ()
            origin = f"fleet/{self.number}/{place}/{day}"
            signal = simulate(self.varied(place, day), condition, defects, RATE, 1.0, self.seed, origin)
            if knock := self._histories[place]["knock"][day]:
                random = random_stream(self.seed, origin, "knock")
                at = random.integers(0, signal.size, size=3)
                signal[at] += knock * 20 * signal.std()
            own.append(signal)
        heard = [own[place] + NEIGHBOUR * sum(own[other] for other in (place - 1, place + 1) if 0 <= other < len(own))
                 for place in range(len(own))]  # fmt: skip
        return [signal.astype(np.float32) for signal in heard]


def _wandering(days: int, deviation: float, correlation: float, random: np.random.Generator) -> NDArray[np.float64]:
    """An Ornstein-Uhlenbeck process (day,) with this standard deviation and time of correlation in days."""
    kept = math.exp(-1 / correlation)
    steps = random.standard_normal(days) * deviation
    steps[1:] *= math.sqrt(1 - kept**2)
    return np.asarray(lfilter([1.0], [1.0, -kept], steps))


def snapshots_of(machine: FleetMachine, day: int) -> list[Snapshot]:
    """What is measured of a simulated machine on a day."""
    points = dict[str, list[FoundRecording]]()
    for name, signal in zip(machine.points, machine.signals(day), strict=True):
        recording = Recording(
            signal=signal, rate=RATE, domain="", origin=f"{machine.name}#{name}", rpm=float(machine.speeds[day]),
            bearing=Simulated.bearing, machine=machine.name,
        )  # fmt: skip
        load = round(float(machine.load[day]), 2) if machine.load_known else None
        points[recording.origin] = [replace(found_recording(recording), point=name, load=load)]
    return measure(FoundMeasurement(points), Given(trust_speed=True), START + DAY * day, machine.name)


def _kept(snapshot: Snapshot) -> dict[str, Any]:
    """What a snapshot is judged by, without what only a drawing needs."""
    observation = replace(snapshot.observation, problem=None, no_lines=None, speed=None, measured=None)
    return {"values": snapshot.values, "observation": to_plain(observation)}


def simulate_machine(number: int, asked: argparse.Namespace) -> None:
    """Measures all recordings of one machine and writes them."""
    path = asked.out / f"{number:04d}.json"
    if path.exists():
        return
    machine = FleetMachine(number, asked.failing, asked.every, asked.seed)
    content = {
        "machine": machine.name, "points": machine.points, "rate": RATE,
        "rows": [[day, [_kept(each) for each in snapshots_of(machine, day)]] for day in machine.recorded],
        "failures": [None if each is None else [each.part, each.begin, each.end] for each in machine.failures],
    }  # fmt: skip
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(content, default=float))
    draft.replace(path)


def judge(folder: Path) -> None:
    """Replays the measurements of a fleet, day by day, and prints what came of it."""
    machines = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    names = [(each["machine"], point) for each in machines for point in each["points"]]
    request, states = WatchRequest(), {name: PointState(PointStatus(*name)) for name in names}
    by_day = [dict(each["rows"]) for each in machines]
    alarms: dict[tuple[str, str], list[int]] = defaultdict(list)
    repaired: set[tuple[str, str]] = set()
    for day in range(1 + max(max(rows) for rows in by_day)):
        for each, rows in zip(machines, by_day, strict=True):
            points = [(each["machine"], point) for point in each["points"]]
            readings = {}
            for point, kept, failure in zip(points, rows.get(day, ()), each["failures"], strict=False):
                if failure is not None and day > failure[2] and point not in repaired:
                    states[point], _ = relearn(states[point], DAY * day)
                    repaired.add(point)
                measured = Measured({}, None, each["rate"], None, turns=100.0)
                observation = replace(from_plain(Observation, kept["observation"]), measured=measured)
                snapshot = Snapshot(*point, DAY * day, observation, kept["values"])
                states[point], readings[point] = observe(states[point], snapshot)
            for point, reading in readings.items():
                beside = [states[other] for other in points if other != point]
                states[point], event = assess(states[point], reading, request, beside)
                failure = each["failures"][points.index(point)]
                sound = failure is None or not failure[1] <= day <= failure[2]
                if event is not None and event.kind in ("alarm", "grown"):
                    alarms[point].append(day)
                    look = relearn if sound else acknowledge  # a person looks, and finds nothing or the damage
                    states[point], _ = look(states[point], event.time)
    print_verdicts(machines, alarms)


def print_verdicts(machines: Sequence[dict[str, Any]], alarms: dict[tuple[str, str], list[int]]) -> None:
    """Prints false alarms in a year of a point that is healthy, failures found, and days from the first alarm to the end,
    also as a share of the days since the lines of the defect can be seen.
    """
    healthy, false, failures, leads, shares = 0.0, 0, 0, list[float](), list[float]()
    for each in machines:
        last = each["rows"][-1][0]
        for place, (point, failure) in enumerate(zip(each["points"], each["failures"], strict=True)):
            begin, end = (last + 1, last + 1) if failure is None else failure[1:]
            days = alarms.get((each["machine"], point), [])
            healthy += last if failure is None else begin + max(last - end, 0)
            false += sum(day < begin or day > end for day in days)
            failures += failure is not None
            found = [end - day for day in days if begin <= day <= end][:1]
            leads += found
            if failure is not None and (seen := visible(each["rows"], place, failure)) is not None:
                shares.append(min(found[0] / (end - seen), 1.0) if found else 0.0)
    years, interval = healthy / 365.25, poisson_interval(false)
    low, high = (count / years for count in interval)
    print(f"false alarms: {false} in {years:.0f} point-years: {false / years:.3f} a year ({low:.3f}–{high:.3f})")
    if failures:
        low, high = (100 * share for share in binomial_interval(len(leads), failures))
        lead = f"median lead {np.median(leads):.0f} days, {100 * np.median(shares):.0f} % of those since lines are seen"
        print(f"failures found: {len(leads)} of {failures} ({low:.0f}–{high:.0f} %), {lead}")


def visible(rows: Sequence[Any], place: int, failure: Sequence[Any]) -> float | None:
    """The day from which on the lines of a defect exceed reference lines by VISIBLE, by the median of SMOOTHED recordings;
    None: never.
    """
    part, begin, end = failure
    name = part if part == "ball" else f"{part}_race"
    known = [(day, kept[place]["values"]) for day, kept in rows if begin <= day <= end]
    levels = [values[name] - values["reference"] for _, values in known]
    for number in range(len(levels) - SMOOTHED + 1):
        if np.median(levels[number : number + SMOOTHED]) >= VISIBLE:
            return float(known[number + SMOOTHED // 2][0])
    return None


def poisson_interval(count: int) -> tuple[float, float]:
    """95 % of a Poisson mean."""
    return float(chi2.ppf(0.025, 2 * count) / 2) if count else 0.0, float(chi2.ppf(0.975, 2 * count + 2) / 2)


def real(folder: Path, store: str, channels: str | None, memoryless: bool) -> None:
    """Watches a run to failure and prints, for each point, hours before the end at which each rule holds an alarm."""
    bearcat.watch(folder, store, channels=channels, jobs=2)
    with Store.open(store) as opened:
        points = sorted(opened.fleet(), key=lambda point: point.point)
        trends = {each.point: opened.trend(each.machine, each.point, most=10**6) for each in points}
    end = max(rows[-1].time for rows in trends.values())
    print(f"{folder.name}: hours before the end")
    single = {
        (arrival.time, each.recording.rpartition("#")[2])
        for arrival in (WatchedFolder(folder).scan() if memoryless else ())
        for each in bearcat.diagnose(arrival.path, channels=channels)
        if each.state in FAULTS
    }
    for name, rows in trends.items():
        levels, first = np.array([row.values["rms"] for row in rows]), max(3, round(0.15 * len(rows)))
        usual = float(np.median(levels[:first]))
        spread = 1.4826 * float(np.median(np.abs(levels[:first] - usual)))
        marked = [row.status is not None and row.status.status == "check" for row in rows]
        rules = {
            "watch": [row.status is not None and row.status.status == "alarm" for row in rows],
            "named": [
                row.status is not None and row.status.status == "alarm" and row.status.fault in FAULTS for row in rows
            ],
            "RMS z > 6": (levels > usual + 6 * spread).tolist(),
            "RMS twice": (levels > 2 * usual).tolist(),
            "ISO-like, 2.5 times": (levels > 2.5 * usual).tolist(),
            "diagnose alone": [(row.time, name) in single for row in rows],
        }
        times = [row.time for row in rows]
        cells = [f"{label} {_hours(times, flags, end)}" for label, flags in rules.items()]
        print(
            f"  {name}: {'; '.join(cells)}; first check {_hours(times, marked, end, 1)}; last {rows[-1].status and rows[-1].status.status}"
        )


def _hours(times: Sequence[float], flags: Sequence[bool], end: float, held: int = 3) -> str:
    """When flags are first set for so many recordings in a row, in hours before the end."""
    for number in range(len(flags) - held + 1):
        if all(flags[number : number + held]):
            return f"{(end - times[number]) / 3600:.1f}"
    return "never"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fleet, judged, run = (commands.add_parser(name) for name in ("fleet", "judge", "real"))
    fleet.add_argument("--out", type=Path, required=True)
    for name, default, help in (
        ("jobs", 2, "processes"), ("machines", 50, "of four points each"), ("every", 1, "days between recordings"),
        ("failing", 0.05, "share of points"), ("seed", 0, "of what is drawn"),
    ):  # fmt: skip
        fleet.add_argument(f"--{name}", type=type(default), default=default, help=help)
    judged.add_argument("folder", type=Path)
    run.add_argument("folder", type=Path, help="recordings with a manifest")
    run.add_argument("--store", required=True)
    run.add_argument("--channels")
    run.add_argument("--alone", action="store_true", help="compare with diagnose, which has no memory")
    asked = parser.parse_args()
    if asked.command == "fleet":
        asked.out.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(asked.jobs) as pool:
            list(pool.map(simulate_machine, range(asked.machines), repeat(asked)))
    elif asked.command == "judge":
        judge(asked.folder)
    else:
        real(asked.folder, asked.store, asked.channels, asked.alone)


if __name__ == "__main__":
    main()
