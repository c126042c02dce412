"""How often the speed of the shaft is found, and how often a stated one is rightly or wrongly replaced.

    python benchmarks/speed_found.py ../shared/data                     # the folder holds cwru, hit-sm and ims
    python benchmarks/speed_found.py ../shared/data --simulated 200     # so many simulated machines

Truth is what the bench states: CWRU's file, HIT-SM's file name (the rig runs up to 1 % faster), IMS's 2000 rpm, and the
mean speed of a simulated shaft. "Right" is within 1 %. A recording is then given with its true speed, with wrong ones,
and played so that its speed varies by 10 %. Five minutes on one core.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import soundfile
from diagnose import DRAWN

from bearcat.data.bearing import BEARINGS
from bearcat.data.datasets.benches import BENCHES
from bearcat.data.datasets.simulate import CONDITIONS, Simulated, outer_path, shaft_turns, simulate
from bearcat.data.datasets.simulate.signals import random_stream
from bearcat.data.datasets.simulate.specimens import Physics
from bearcat.data.recording import Floats
from bearcat.diagnosis.physics import PhysicsAnalysis
from bearcat.diagnosis.speed import follow_speed, measure_speed, resample_in_angle
from bearcat.errors import InputError

WRONG = (0.5, 0.8, 1.5, 2.0)  # stated speeds over the true one


@dataclass(frozen=True, eq=False)
class Case:
    bench: str
    signal: Floats
    rate: float
    rpm: float
    orders: Mapping[str, float]


def benches(folder: Path) -> Iterator[Case]:
    for bench, (kind, name, prefix) in BENCHES.items():
        if (folder / name).is_dir():
            for entry in kind(root=folder / name).catalogue().entries:
                recording = entry.read()
                if entry.domain.startswith(prefix) and recording.rate and recording.rpm and recording.bearing:
                    yield Case(bench, recording.signal, recording.rate, recording.rpm, recording.bearing.orders())
    for path in sorted((folder / "ims").glob("*.flac"))[:-2]:  # in the last two the machine has stopped
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        for channel in samples.T:
            yield Case("ims", np.ascontiguousarray(channel), float(rate), 2000.0, BEARINGS["ZA2115"].orders())


def simulated(count: int) -> Iterator[Case]:
    """Machines with a shaft that is out of balance by more or less; the clock runs at any speed."""
    for seed in range(count):
        drawn = np.random.default_rng([29, seed])
        bearing, clock = (
            BEARINGS[str(drawn.choice(list(BEARINGS)[:DRAWN]))],
            float(np.exp(drawn.uniform(np.log(0.4), np.log(2)))),
        )
        label = str(drawn.choice(["healthy", "inner-1", "outer-1", "ball-1"]))
        out_of_balance = float(np.exp(drawn.uniform(np.log(0.1), np.log(2))))
        settings = Simulated(
            seed=seed, seconds=drawn.uniform(2, 8), faults=("inner", "outer", "ball"), severities=(drawn.uniform(0.3, 2),),
            balls=bearing.balls, ball_diameter=bearing.ball_diameter, pitch_diameter=bearing.pitch_diameter,
            contact_angle=bearing.contact_angle, slip=drawn.uniform(0, 0.015),
        )  # fmt: skip
        misalignment = tuple((out_of_balance * drawn.uniform(0.1, 1, 5)).tolist())
        physics = Physics(unbalance=out_of_balance, misalignment=misalignment, noise_colour=drawn.uniform(0, 1))
        condition, origin = CONDITIONS["N15_M07_F10"], f"simulated/N15_M07_F10/{label}/1"
        try:
            signal = simulate(settings, condition, settings.classes()[label], origin, physics).astype(np.float32)
        except InputError:  # a defect longer than the balls are apart
            continue
        stream = partial(random_stream, settings.seed, origin)
        lead = outer_path(physics, settings.rate, condition.force).size
        turns = shaft_turns(settings, condition, lead + settings.samples, stream("speed"))[lead:]
        rpm = 60 * clock * settings.rate * (turns[-1] - turns[0]) / (turns.size - 1)
        yield Case("simulated", signal, settings.rate * clock, float(rpm), bearing.orders())


def varied(case: Case, depth: float = 0.1) -> tuple[Floats, np.ndarray]:
    """The recording played faster and slower, once up and down every four seconds, and its speed."""
    seconds = np.arange(case.signal.size) / case.rate
    ratio = 1 + depth * np.sin(2 * np.pi * seconds / 4)
    places = np.cumsum(ratio)
    inside = places < case.signal.size - 1
    played = np.interp(places[inside], np.arange(case.signal.size), case.signal)
    return played.astype(np.float32), case.rpm * ratio[inside]


def state(signal: Floats, case: Case, rpm: float) -> str:
    analysis = PhysicsAnalysis("recording", case.rate, rpm, case.orders)
    for _ in analysis.observe([signal]):
        pass
    return analysis.finish().state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data"), help="holds cwru, hit-sm and ims")
    parser.add_argument("--simulated", type=int, default=200, help="simulated machines")
    arguments = parser.parse_args()
    found: dict[tuple[str, str], Counter[str]] = {}
    stated: dict[tuple[str, str], Counter[str]] = {}
    followed: dict[str, Counter[str]] = {}
    for case in chain(benches(arguments.folder), simulated(arguments.simulated)):
        for bearing, orders in (("not known", None), ("known", case.orders)):
            evidence, row = (
                measure_speed(case.signal, case.rate, orders),
                found.setdefault((case.bench, bearing), Counter()),
            )
            row["recordings"] += 1
            if evidence.rpm is None or evidence.low is None or evidence.high is None:
                row["not found"] += 1
                continue
            right = abs(evidence.rpm / case.rpm - 1) < 0.01
            row["within 1 %" if right else "wrong"] += 1
            row["interval holds truth"] += evidence.low <= case.rpm <= evidence.high
        for factor in (1.0, *WRONG):
            row = stated.setdefault((case.bench, f"{factor:g}"), Counter())
            evidence = measure_speed(case.signal, case.rate, case.orders, case.rpm * factor)
            right = evidence.rpm is not None and abs(evidence.rpm / case.rpm - 1) < 0.02
            row["recordings"] += 1
            row["corrected rightly" if right else "corrected wrongly"] += evidence.corrected
            row["said to vary"] += evidence.varies > 0
            row["confirmed"] += evidence.by == "shaft line" and not evidence.corrected
        if case.bench != "ims":  # a second is too short for a speed to vary in
            follow_row = followed.setdefault(case.bench, Counter())
            played, speed = varied(case)
            truth = state(case.signal, case, case.rpm)
            follow_row["recordings"] += 1
            follow_row["same diagnosis, not resampled"] += state(played, case, float(speed.mean())) == truth
            even, _ = resample_in_angle(played, case.rate, speed)
            follow_row["resampled by the known speed"] += state(even, case, float(speed.mean())) == truth
            if (track := follow_speed(played, case.rate, case.rpm, case.orders)) is None:
                follow_row["not followed"] += 1
            else:
                even, _ = resample_in_angle(played, case.rate, track)
                follow_row["track within 2 % (median)"] += bool(np.median(abs(track / speed - 1)) < 0.02)
                follow_row["resampled by the track"] += state(even, case, float(track.mean())) == truth
    columns = ["recordings", "within 1 %", "wrong", "not found", "interval holds truth"]
    print(f"| bench | bearing | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for (bench, bearing), row in found.items():
        print(f"| {bench} | {bearing} | {' | '.join(str(row[name]) for name in columns)} |")
    columns = ["recordings", "confirmed", "corrected rightly", "corrected wrongly", "said to vary"]
    print(f"\n| bench | stated over true | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for (bench, over), row in stated.items():
        print(f"| {bench} | {over} | {' | '.join(str(row[name]) for name in columns)} |")
    columns = ["recordings", "same diagnosis, not resampled", "resampled by the known speed", "resampled by the track"]
    columns += ["track within 2 % (median)", "not followed"]
    print(f"\n| played with ± 10 % | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for bench, row in followed.items():
        print(f"| {bench} | {' | '.join(str(row[name]) for name in columns)} |")


if __name__ == "__main__":
    main()
