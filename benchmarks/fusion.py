"""Fits the coefficients that fuse witnesses into one diagnosis, on all benches and with benches left out.

    python benchmarks/fusion.py ../shared/data --evidence evidence.json --jobs 2      # reads the recordings, once
    BEARCAT_DATA=../shared/data bearcat bench run grids/fusion.toml --store STORE     # networks for the fit
    BEARCAT_DATA=../shared/data python benchmarks/fusion.py --evidence evidence.json --store STORE --write

The last writes src/bearcat/diagnosis/fusion.json. Witnesses without a network are fitted on recordings: cuts of 2.5 s
of CWRU and HIT-SM, IMS's healthy first half and the last day of its bearing 1, simulated machines, alone and in groups
of one machine. Those with a network are fitted on what networks said of target recordings in the runs of the store.
Benches count alike. The general model judges a bench by weights made without it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from diagnose import recordings as bench_recordings
from diagnose import simulated
from numpy.typing import NDArray

from bearcat.adaptation import Library
from bearcat.bench import open_store, results
from bearcat.bench.grid import plan, read_grid
from bearcat.data.bearing import find_bearing
from bearcat.data.benches import BENCHES
from bearcat.data.recording import Recording, parts_of
from bearcat.data.simulate import Simulated
from bearcat.deploy import in_processes
from bearcat.diagnosis.decision import HEALTHY, REFUSE
from bearcat.diagnosis.fusion import FEATURES, GeneralEvidence, Witnesses, names_of, state_of_class
from bearcat.diagnosis.physics import COEFFICIENTS, FEWEST, LINELESS, ONE, PhysicsEvidence, known_baseline, score
from bearcat.diagnosis.quality import Channel
from bearcat.diagnosis.signal import observe
from bearcat.diagnosis.speed import SpeedEvidence
from bearcat.settings import from_plain, to_plain
from bearcat.storage import write_atomically

GRID = Path(__file__).parents[1] / "grids" / "fusion.toml"
CUT = 2.5  # seconds
ALONE, FIRST = 600, 6000  # simulated machines with one recording each, and the seed of the first: none of others' seeds
GROUPS = 24  # simulated machines with many recordings each
PENALTY, NETWORK_PENALTY = 1e-3, 1e-2  # on squared coefficients, of lines alone and beside a network
LEFT_OUT = {"cwru": {"cwru"}, "hit-sm": {"hit-sm"}, "across-machines": {"cwru", "hit-sm"}}
LINES = ("physics", "physics+general", "physics+baseline", "physics+general+baseline")  # sets without a network
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A recording's witnesses, its true state, and the recordings it is seen beside: those of its group."""

    bench: str
    group: str  # a run, or a bench
    machine: str
    state: str
    witnesses: Witnesses


def evidence_of(recording: Recording, bench: str) -> list[dict[str, Any]]:
    """What physics and the general model say of a recording, as plain values; nothing where no line can be read."""
    assert recording.bearing is not None
    without = bench if bench in LEFT_OUT else None
    channel = Channel(recording.origin, recording.signal, recording.rate)
    observed = observe([channel], SpeedEvidence(recording.rpm), recording.bearing, without=without)
    if observed.physics is None:
        return []
    machine = recording.machine or f"{recording.domain} {recording.rpm}"
    return [{
        "bench": bench, "machine": machine, "state": state_of_class(str(recording.label)), "origin": recording.origin,
        "physics": observed.physics.to_dict(), "general": to_plain(observed.witnesses.general),
    }]  # fmt: skip


def ims(folder: Path) -> Iterator[Recording]:
    """Test 2: all bearings in the first half, and bearing 1 in the last day, whose outer race failed at the end."""
    import soundfile

    files = sorted(folder.glob("*.flac"))[:-2]  # the machine has stopped in the last two
    bearing = find_bearing("ZA2115")
    chosen = [(file, place, HEALTHY) for file in files[: len(files) // 2 : 2] for place in range(4)]
    chosen += [(file, 0, "outer race") for file in files[-36:]]
    for file, place, state in chosen:
        signal, rate = soundfile.read(file, dtype="float32")
        yield Recording(
            signal=signal[:, place], rate=float(rate), rpm=2000.0, bearing=bearing, label=state, domain="ims",
            origin=f"{file.stem} {place + 1}", machine=f"ims {place + 1}",
        )  # fmt: skip


def alone(seed: int) -> list[dict[str, Any]]:
    """Of one simulated machine with one recording."""
    made = simulated(seed)
    return evidence_of(replace(made, machine=made.origin), "simulated")


def group(number: int) -> list[dict[str, Any]]:
    """Of one simulated machine: six healthy bearings at a speed, and some with a fault."""
    drawn = np.random.default_rng([23, number])
    condition = ("N15_M07_F10", "N09_M07_F10")[number % 2]
    made = Simulated(
        seed=900 + number, specimens=6, machines=1, seconds=CUT, severities=(0.2, 2.5),
        faults=("inner", "outer", "ball"), conditions=(condition,), rate=float(drawn.choice([12_000, 25_600, 51_200])),
    )  # fmt: skip
    recordings = [replace(entry.read(), machine=f"group {number}") for entry in made.catalogue().entries]
    return [row for recording in recordings for row in evidence_of(recording, "simulated groups")]


def all_evidence(folder: Path, jobs: int) -> list[dict[str, Any]]:
    """The evidence of all recordings, as plain values."""
    names = {bench: name for bench, (_, name, _) in BENCHES.items()}
    work = [partial(alone, seed) for seed in range(FIRST, FIRST + ALONE)] + [partial(group, n) for n in range(GROUPS)]
    for recording in bench_recordings(folder):
        for number, part in enumerate(parts_of(recording, CUT)):
            cut = replace(part, origin=f"{recording.origin} {number}")
            work.append(partial(evidence_of, cut, names[recording.domain]))
    if (folder / "ims").is_dir():
        work += [partial(evidence_of, recording, "ims") for recording in ims(folder / "ims")]
    return [row for rows in in_processes(_called, work, jobs) for row in rows]


def _called(work: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return work()


def read_evidence(path: Path) -> list[Example]:
    """The recordings' evidence that was written before."""
    found = []
    for each in json.loads(path.read_text()):
        physics = from_plain(PhysicsEvidence | None, each["physics"])
        general = from_plain(GeneralEvidence | None, each["general"])
        bench = "simulated" if each["bench"] == "simulated groups" else each["bench"]
        witnesses = Witnesses(physics, general)
        found.append(Example(bench, each["bench"], each["machine"], each["state"], witnesses))
    return found


def read_runs(place: Path) -> list[Example]:
    """What networks said of target recordings in the runs of GRID that a store holds; each run is a group."""
    found, store = [], open_store(place)
    library = Library()
    runs, missing = results([library.identified(spec) for spec in plan(read_grid(GRID), None, library)], store)
    print(f"{len(runs)} runs of {GRID.name}, {len(missing)} missing")
    for result in runs:
        labels = dict(zip(result.predictions.recording, result.predictions.label, strict=True))
        name = result.cell.dataset.replace("across machines", result.cell.task.partition("→")[2])
        bench = next((bench for bench in ("cwru", "hit-sm") if name.startswith(bench)), "simulated")
        for each in result.record.recordings:
            label, network = labels.get(each.recording), each.witnesses.network
            if label and network is not None and network.familiar is not False:
                witnesses = replace(each.witnesses, baseline=None, without=None)
                found.append(Example(bench, result.folder.name, str(each.where), state_of_class(label), witnesses))
    return found


def fit(examples: Sequence[Example], witnesses: str, known: Mapping[str, float] | None = None) -> dict[str, float]:
    """Coefficients of largest likelihood. Benches count alike; evidence for a fault never lowers its probability.
    Those that are `known` stay.
    """
    from scipy.optimize import minimize

    lines, others = names_of(witnesses.split("+"))
    names = lines + others
    count = defaultdict[str, int](int)
    for each in examples:
        count[each.bench] += 1
    rows, truths, weights = [], [], []
    for each in examples:
        states = sorted(each.witnesses.states, key=lambda state: state != HEALTHY)  # healthy first, which all have
        if each.state in states and states[0] == HEALTHY:
            rows.append(np.array([each.witnesses.features(state) for state in states[1:]]))
            truths.append(states.index(each.state))
            weights.append(1 / count[each.bench])
    most = max(map(len, rows))
    features = np.zeros((len(rows), most, len(names)))
    closed = np.full((len(rows), most), -np.inf)  # states that a row does not have
    for number, row in enumerate(rows):
        features[number, : len(row)], closed[number, : len(row)] = row, 0.0
    truth, weight = np.eye(most + 1)[truths], np.array(weights) / sum(weights)
    penalty = NETWORK_PENALTY if "network" in witnesses else PENALTY

    def loss(coefficients: Doubles) -> tuple[float, Doubles]:
        faults = score(features, coefficients, len(lines)) + closed
        scores = np.concatenate([np.zeros((len(rows), 1)), faults], axis=1)
        logs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        value = -(weight * np.where(truth > 0, logs, 0.0).sum(axis=1)).sum() + penalty / 2 * (coefficients**2).sum()
        given = features.copy()  # what a coefficient moves a score by: of lines, as far as they are heard
        if lines:
            heard = features[..., : len(lines)] @ coefficients[: len(lines)] + np.log(1 - LINELESS)
            given[..., : len(lines)] *= np.exp(heard - np.logaddexp(heard, np.log(LINELESS)))[..., None]
        slope = np.einsum("e,es,esf->f", weight, (np.exp(logs) - truth)[:, 1:], given) + penalty * coefficients
        return float(value), slope

    bounds: list[tuple[float | None, float | None]] = [(None if name == ONE else 0.0, None) for name in names]
    if known is not None:
        bounds = [(known[name],) * 2 if name in known else bound for name, bound in zip(names, bounds, strict=True)]
    start = np.array([(known or {}).get(name, 0.0) for name in names])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return dict(zip(names, (round(float(value), 4) for value in found), strict=True))


def restricted(examples: Sequence[Example], witnesses: str) -> list[Example]:
    """The examples with these witnesses only; those that lack one are left out."""
    names = witnesses.split("+")
    kept = []
    for each in examples:
        own = replace(each.witnesses, **{name: None for name in FEATURES if name not in names})
        if own.present == tuple(name for name in FEATURES if name in names):
            kept.append(replace(each, witnesses=own))
    return kept


def beside(examples: Sequence[Example]) -> list[Example]:
    """The examples that have a baseline: healthy recordings of the same machine at the same speed in their group."""
    groups = defaultdict[tuple[str, str], list[Example]](list)
    for each in examples:
        groups[each.group, each.machine].append(each)
    found = []
    for members in groups.values():
        for each in members:
            healthy = [other.witnesses.physics for other in members if other.state == HEALTHY and other is not each]
            own, known = each.witnesses.physics, [physics for physics in healthy if physics is not None]
            if own is not None and len(known) >= FEWEST and (usual := known_baseline(known, own)) is not None:
                found.append(replace(each, witnesses=replace(each.witnesses, baseline=usual)))
    return found


def fitted(signals: Sequence[Example], runs: Sequence[Example]) -> dict[str, dict[str, float]]:
    """The coefficients of each set of witnesses. What lines say is fitted without networks, and stays beside one but for
    its constant: networks are heard where lines are silent.
    """
    found: dict[str, dict[str, float]] = {}
    # A model that is not to be used does not count where others can speak, so it teaches nothing.
    used = [each for each in runs if each.witnesses.network and each.witnesses.network.action != REFUSE]
    for name in LINES:
        examples = restricted(signals, name.removesuffix("+baseline"))
        found[name] = fit(beside(examples) if "baseline" in name else examples, name)
    if runs:
        found["network"] = fit(restricted(runs, "network"), "network")
    for lines in LINES if used else ():
        name = with_network(lines)
        examples = restricted(used, name.removesuffix("+baseline"))
        known = {feature: value for feature, value in found[lines].items() if feature != ONE}
        found[name] = fit(beside(examples) if "baseline" in name else examples, name, known)
    return found


def with_network(lines: str) -> str:
    """The name of a set of witnesses with a network added to it."""
    names = [*lines.split("+"), "network"]
    return "+".join(name for name in FEATURES if name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="holds cwru, hit-sm and ims; reads the recordings")
    parser.add_argument("--evidence", type=Path, default=Path("evidence.json"))
    parser.add_argument("--store", type=Path, nargs="*", default=[], help="of runs whose networks are witnesses")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the coefficients to the package")
    chosen = parser.parse_args()
    if chosen.folder is not None:
        write_atomically(chosen.evidence, json.dumps(all_evidence(chosen.folder, chosen.jobs)).encode())
        return
    signals = read_evidence(chosen.evidence)
    runs = [each for store in chosen.store for each in read_runs(store)]
    everything = fitted(signals, runs)
    left_out = {}
    for name, benches in LEFT_OUT.items():
        outside = partial(filter, lambda each, benches=benches: each.bench not in benches)
        left_out[name] = fitted(list(outside(signals)), list(outside(runs)))
    print(json.dumps(everything, indent=1))
    if chosen.write:
        content = {
            "made_by": "python benchmarks/fusion.py --evidence FILE --store STORE --write",
            "recordings": len(signals), "recordings_in_runs": len(runs),
            "coefficients": everything, "left_out": left_out,
        }  # fmt: skip
        COEFFICIENTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
