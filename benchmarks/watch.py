"""What watching machines over time finds, how early, and how often it cries wolf.

`fleet` simulates a fleet, measures every recording and keeps the measurements, a file for each machine (resumed where
it was stopped); `judge` replays these with a rule and prints false alarms a year, failures found, and lead times;
`real` replays runs to failure (ims, femto) and compares with simpler rules; `rate` checks the stated rate of false
alarms on random scores.

    python benchmarks/watch.py fleet --out fleet --jobs 2
    python benchmarks/watch.py judge fleet
    python benchmarks/watch.py real data/ims --store ims.db --alone
    python benchmarks/watch.py rate
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time as clock
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fleet import FleetMachine, SimulatedFleet
from numpy.typing import NDArray

from bearcat.data.stream import Stream
from bearcat.deploy.find import FoundMeasurement, FoundPoint, FoundRecording
from bearcat.deploy.predict import Given
from bearcat.diagnosis.physics import FAULTS
from bearcat.trust.accuracy import binomial_interval
from bearcat.watch.memory import PointMemory
from bearcat.watch.snapshot import Snapshot, measure
from bearcat.watch.usual import Tail, WatchRule, add_evidence, threshold

EXCEEDS = 6.0  # dB of a defect's lines above reference lines, from which on it can be found
SMOOTHED = 7  # recordings whose median is taken for that


def snapshots_of(machine: FleetMachine, day: int) -> list[Snapshot]:
    """What is measured of a simulated machine on a day."""
    rate, points = machine.fleet.rate, []
    for name, signal in zip(machine.points, machine.signals(day), strict=True):

        def stream(signal: NDArray[np.float32] = signal, name: str = name) -> Stream:
            return Stream(f"{machine.name}#{name}", rate, iter([signal]))

        bearing = replace(machine.settings(0).bearing, ball_diameter=6.75, pitch_diameter=28.5, contact_angle=0.0)
        found = FoundRecording(
            stream, f"{machine.name}#{name}", float(machine.speeds[day]), bearing, machine.name, name
        )
        points.append(FoundPoint(found.name, (found,)))
    load = round(float(machine.load[day]), 2) if machine.load_known else None
    measurement = FoundMeasurement(machine.name, tuple(points))
    return measure(measurement, Given(trust_speed=True), machine.time(day), machine.name, load=load)


def simulate_machine(task: tuple[SimulatedFleet, int, Path]) -> float:
    """Measures all recordings of one machine and writes them; seconds."""
    fleet, number, folder = task
    path, start = folder / f"{number:04d}.json", clock.perf_counter()
    if path.exists():
        return 0.0
    machine, rows = fleet.machine(number), []
    memories = {name: PointMemory(machine.name, name, WatchRule()) for name in machine.points}
    named: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for day in machine.recorded:
        found = snapshots_of(machine, day)
        for each in found if any(machine.failures) else ():
            memories[each.point].observe(each)
        for each in found if any(machine.failures) else ():
            own = memories[each.point]
            status = own.assess([other for other in memories.values() if other is not own]).status
            if status.fault is not None:
                named[each.point].append((day, status.fault))
        rows.append([day, [each.values for each in found]])
    content = {
        "machine": machine.name, "points": machine.points, "rows": rows, "named": named,
        "failures": [None if each is None else [each.part, each.begin, each.end] for each in machine.failures],
        "swaps": [machine.swapped(place) for place in range(len(machine.points))], "rate": fleet.rate,
        "load_known": machine.load_known,
    }  # fmt: skip
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(content, default=float))
    draft.replace(path)
    return clock.perf_counter() - start


def run_fleet(fleet: SimulatedFleet, folder: Path, jobs: int, limit: float, first: int, last: int | None) -> None:
    """Measures machines until all are done, or no more can be finished within the limit of seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    start, longest = clock.perf_counter(), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [(fleet, number, folder) for number in range(first, last or fleet.machines)]
        running: list[Any] = []
        while waiting or running:
            running = [each for each in running if not each.done() or (longest := max(longest, each.result())) < 0]
            left = limit - (clock.perf_counter() - start)
            while waiting and len(running) < jobs and left > 1.3 * longest:
                running.append(pool.submit(simulate_machine, waiting.pop(0)))
            if waiting and left <= 1.3 * longest and not running:
                print(f"{len(waiting)} machines are left; run it again")
                return
            clock.sleep(0.2)


@dataclass(frozen=True)
class Verdicts:
    """Of a replayed fleet."""

    alarms: list[tuple[str, str, int]]  # machine, point, day
    days: float  # of points that are healthy, or before their defect begins
    false: int
    found: int
    failures: int
    leads: list[float]  # lead over the time since the lines exceed
    early: list[float]  # days


def judge(folder: Path, rule: WatchRule, sisters: bool = True) -> Verdicts:
    """Replays the measurements of a fleet, day by day."""
    machines = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    memories = {
        (each["machine"], point): PointMemory(each["machine"], point, rule)
        for each in machines
        for point in each["points"]
    }
    by_day = [dict(each["rows"]) for each in machines]
    alarms: dict[tuple[str, str], list[int]] = defaultdict(list)
    repaired: set[tuple[str, str]] = set()
    for day in range(1 + max(max(rows) for rows in by_day)):
        for each, rows in zip(machines, by_day, strict=True):
            name = each["machine"]
            for point, values, failure in zip(each["points"], rows.get(day, ()), each["failures"], strict=False):
                own = memories[name, point]
                if failure is not None and day > failure[2] and (name, point) not in repaired:
                    own.relearn(86400.0 * day)
                    repaired.add((name, point))
                own.observe(
                    Snapshot(
                        name, point, 86400.0 * day, "", "", each["rate"], None, values, None, values["rpm"], turns=100.0
                    )
                )
            for place, point in enumerate(each["points"]):
                own = memories[name, point]
                if day not in rows:
                    continue
                beside = [memories[name, other] for other in each["points"] if other != point]
                alike = (
                    [memories[other["machine"], point] for other in machines if other is not each] if sisters else []
                )
                failure = each["failures"][place]
                sound = failure is None or not failure[1] <= day <= failure[2]
                for event in own.assess(beside, alike).events:
                    if event.kind in ("alarm", "grown"):
                        alarms[name, point].append(day)
                    if event.kind == "sensor" or (event.kind in ("alarm", "grown") and sound):
                        own.relearn(event.time)  # a person looks, finds nothing, and sets a new baseline
                    elif event.kind in ("alarm", "grown"):
                        own.acknowledge(event.time)
    return _count(machines, alarms)


def _count(machines: Sequence[dict[str, Any]], alarms: dict[tuple[str, str], list[int]]) -> Verdicts:
    healthy, false, found, failures = 0.0, 0, 0, 0
    leads, early = list[float](), list[float]()
    listed = [(*key, day) for key, days in alarms.items() for day in days]
    for each in machines:
        last = each["rows"][-1][0]
        for place, point in enumerate(each["points"]):
            failure, own = each["failures"][place], alarms.get((each["machine"], point), [])
            if failure is None:
                healthy += last
                false += len(own)
                continue
            part, begin, end = failure
            failures += 1
            healthy += begin + max(last - end, 0)
            false += sum(day < begin or day > end for day in own)
            hits = [day for day in own if begin <= day <= end]
            fault = {"inner": "inner_race", "outer": "outer_race", "ball": "ball"}[part]
            exceeds = _exceeds(each, place, fault, begin, end)
            found += bool(hits)
            if hits:
                early.append(end - hits[0])
            if exceeds is not None:
                leads.append((end - hits[0]) / (end - exceeds) if hits else 0.0)
    return Verdicts(listed, healthy, false, found, failures, leads, early)


def _exceeds(machine: dict[str, Any], place: int, fault: str, begin: float, end: float) -> float | None:
    """The day from which on the lines of a defect exceed reference lines by EXCEEDS, smoothed; None: never."""
    days = [day for day, _ in machine["rows"] if begin <= day <= end]
    levels = [
        values[place][fault] - values[place]["reference"]
        for day, values in machine["rows"]
        if begin <= day <= end and fault in values[place]
    ]
    for number in range(len(levels) - SMOOTHED + 1):
        if np.median(levels[number : number + SMOOTHED]) >= EXCEEDS:
            return float(days[number + SMOOTHED // 2])
    return None


def print_verdicts(found: Verdicts, rule: WatchRule) -> None:
    years = found.days / 365.25
    low, high = poisson_interval(found.false)
    print(
        f"false alarms: {found.false} in {years:.0f} point-years: {found.false / years:.3f} a year ({low / years:.3f}–{high / years:.3f}), stated {rule.false_alarms:g}"
    )
    interval = binomial_interval(found.found, found.failures)
    print(f"failures found: {found.found} of {found.failures} ({100 * interval[0]:.0f}–{100 * interval[1]:.0f} %)")
    if found.leads:
        print(
            f"median lead {np.median(found.early):.0f} days; {100 * np.median(found.leads):.0f} % of the time since the lines exceed {EXCEEDS:g} dB (of {len(found.leads)} whose lines do)"
        )


def poisson_interval(count: int) -> tuple[float, float]:
    """95 % of a Poisson mean."""
    from scipy.stats import chi2

    return float(chi2.ppf(0.025, 2 * count) / 2) if count else 0.0, float(chi2.ppf(0.975, 2 * count + 2) / 2)


def rate(repeats: int) -> None:
    """False alarms a year of random scores that do not change, against the stated rate."""
    from scipy.signal import lfilter

    random = np.random.default_rng(0)
    draws: dict[str, Callable[[int], NDArray[np.float64]]] = {
        "normal": random.standard_normal, "t, 5 degrees": lambda n: random.standard_t(5, n),
        "exponential": lambda n: random.exponential(size=n),
        "correlated 0.5": lambda n: np.asarray(lfilter([0.75**0.5], [1, -0.5], random.standard_normal(n))),
    }  # fmt: skip
    for name, draw in draws.items():
        for size in (20, 30, 60):
            alarms, limit, count = 0, threshold(86400.0, 1.0), 2 * 365
            for _ in range(repeats):
                scores = draw(size + count)
                tail, evidence = Tail.of(scores[:size].tolist()), 0.0
                for score in scores[size:]:
                    evidence = add_evidence(evidence, tail.p_value(float(score)), limit)
                    if evidence >= limit:
                        alarms, evidence = alarms + 1, 0.0
            low, high = poisson_interval(alarms)
            years = 2 * repeats
            print(
                f"{name:16} baseline {size}: {alarms / years:.3f} a year ({low / years:.3f}–{high / years:.3f}), stated 1"
            )


def real(folder: Path, store: str, channels: str | None, memoryless: bool) -> None:
    """Watches a run to failure and prints, for each point, hours before the end at which each rule holds an alarm."""
    import bearcat
    from bearcat.watch.store import Store

    bearcat.watch(folder, store, channels=channels, jobs=2)
    with Store.open(store) as opened:
        points = sorted(opened.fleet(), key=lambda point: point.point)
        trends = {each.point: opened.trend(each.machine, each.point, most=10**6) for each in points}
        events = [event for event in opened.events(most=10**6) if event.kind in ("alarm", "grown", "over")]
    end = max(rows[-1].time for rows in trends.values())
    begin = min(rows[0].time for rows in trends.values())
    print(f"{folder.name}: {(end - begin) / 3600:.1f} h; hours before the end")
    single = _memoryless(folder, channels) if memoryless else {}
    for name, rows in trends.items():
        levels, first = np.array([row.values["rms"] for row in rows]), max(3, round(0.15 * len(rows)))
        usual = float(np.median(levels[:first]))
        spread = 1.4826 * float(np.median(np.abs(levels[:first] - usual)))
        marked = [row.status == "check" for row in rows]
        rules = {
            "watch": [row.status == "alarm" for row in rows],
            "named": [row.status == "alarm" and row.state in FAULTS for row in rows],
            "RMS z > 6": (levels > usual + 6 * spread).tolist(),
            "RMS twice": (levels > 2 * usual).tolist(),
            "ISO-like, 2.5 times": (levels > 2.5 * usual).tolist(),
            "diagnose alone": [(row.time, name) in single for row in rows],
        }
        times = [row.time for row in rows]
        cells = [f"{label} {_hours(times, flags, end)}" for label, flags in rules.items()]
        print(f"  {name}: {'; '.join(cells)}; first check {_hours(times, marked, end, 1)}; last {rows[-1].status}")
    for event in events:
        print(
            f"  {(end - event.time) / 3600:.1f} h, {(event.time - begin) / (end - begin):.0%} of life: {event.sentence}"
        )


def _hours(times: Sequence[float], flags: Sequence[bool], end: float, held: int = 3) -> str:
    """When flags are first set for so many recordings in a row, in hours before the end."""
    for number in range(len(flags) - held + 1):
        if all(flags[number : number + held]):
            return f"{(end - times[number]) / 3600:.1f}"
    return "never"


def _memoryless(folder: Path, channels: str | None) -> set[tuple[float, str]]:
    """Time and point of recordings that `diagnose` alone calls faulty."""
    import bearcat
    from bearcat.watch.folder import WatchedFolder

    found = set()
    for arrival in WatchedFolder(folder).scan():
        for each in bearcat.diagnose(arrival.path, channels=channels):
            if each.state in FAULTS:
                found.add((arrival.time, each.recording.rpartition("#")[2]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fleet = commands.add_parser("fleet")
    fleet.add_argument("--out", type=Path, required=True)
    fleet.add_argument("--jobs", type=int, default=2)
    fleet.add_argument("--machines", type=int, default=50)
    fleet.add_argument("--days", type=int, default=730)
    fleet.add_argument("--every", type=int, default=1, help="days between recordings")
    fleet.add_argument("--failing", type=float, default=0.05)
    fleet.add_argument("--seed", type=int, default=0)
    fleet.add_argument("--first", type=int, default=0)
    fleet.add_argument("--last", type=int)
    fleet.add_argument("--limit", type=float, default=math.inf, help="seconds")
    judged = commands.add_parser("judge")
    judged.add_argument("folder", type=Path)
    judged.add_argument("--false-alarms", type=float, default=1.0)
    judged.add_argument("--alone", action="store_true", help="without sister machines")
    run = commands.add_parser("real")
    run.add_argument("folder", type=Path, help="recordings with a manifest")
    run.add_argument("--store", required=True)
    run.add_argument("--channels")
    run.add_argument("--alone", action="store_true", help="compare with diagnose, which has no memory")
    random = commands.add_parser("rate")
    random.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.command == "fleet":
        made = SimulatedFleet(
            arguments.machines,
            days=arguments.days,
            failing=arguments.failing,
            every=arguments.every,
            seed=arguments.seed,
        )
        run_fleet(made, arguments.out, arguments.jobs, arguments.limit, arguments.first, arguments.last)
    elif arguments.command == "judge":
        rule = WatchRule(false_alarms=arguments.false_alarms)
        print_verdicts(judge(arguments.folder, rule, not arguments.alone), rule)
    elif arguments.command == "real":
        real(arguments.folder, arguments.store, arguments.channels, arguments.alone)
    else:
        rate(arguments.repeats)


if __name__ == "__main__":
    main()
