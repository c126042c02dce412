"""Makes the coefficients of `bearcat diagnose` and reports them on test benches they were not made from.

    python benchmarks/diagnose.py ../shared/data            # the tables of docs/results.md; the folder holds cwru and hit-sm
    python benchmarks/diagnose.py ../shared/data --write    # and writes src/bearcat/diagnosis/coefficients.json

Each bench is left out in turn: the coefficients come from the other benches and from simulated machines, and every figure
printed is of the bench left out. What is written comes from all of them. Simulated machines are never reported on. Three
minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bearcat.cat import ece
from bearcat.data.bearing import BEARINGS
from bearcat.data.datasets.benches import BENCHES
from bearcat.data.recording import Recording
from bearcat.data.vibration import CONDITIONS, Defect, MachinePhysics, contact_frequency, simulate
from bearcat.diagnosis.decision import CANNOT_TELL
from bearcat.diagnosis.physics import (
    COEFFICIENTS,
    FEATURES,
    STATES,
    Classifier,
    LineEvidence,
    find_evidence,
    last_order,
    state_of,
)
from bearcat.diagnosis.spectra import TURNS, Plan, Spectra, window_length

RATES = (12_000, 16_000, 20_000, 25_600, 48_000, 51_200, 64_000)
SPEEDS = (300.0, 3600.0)  # rpm
DRAWN = 25  # bearings, the first of the table: so many it had when the coefficients were made
MACHINES = 320  # simulated ones
WINDOWS = 8  # of a simulated recording that are used one by one
PENALTY = 1e-3  # on squared coefficients
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A recording's evidence, and that of its windows alone."""

    bench: str
    name: str
    state: str
    rate: float
    rpm: float
    bearing: str
    whole: LineEvidence
    windows: tuple[LineEvidence, ...]


def between(drawn: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(drawn.uniform(np.log(low), np.log(high))))


def simulated(seed: int) -> Recording:
    """One machine nobody has built: bearing, speed, rate, resonances, noise and the defect's length are drawn.

    Its stated speed is off by up to 2 %, its bearing slips by up to 1 %, and the whole of it is modulated by the shaft and by
    something else that turns at an order of its own, as neighbours and gears do.
    The simulator has two speeds; others come from running its clock faster or slower.
    """
    drawn = np.random.default_rng([17, seed])
    state = STATES[seed % len(STATES)]
    for _ in range(1000):
        rate, rpm, turns = float(drawn.choice(RATES)), between(drawn, *SPEEDS), drawn.uniform(30, 150)
        condition, bearing = str(drawn.choice(list(CONDITIONS))), BEARINGS[str(drawn.choice(list(BEARINGS)[:DRAWN]))]
        speed = CONDITIONS[condition].speed
        own_rate, seconds = rate * speed / rpm, turns * 60 / speed
        if not (6_000 < own_rate < 80_000 and own_rate * seconds < 1.5e6):
            continue
        modes = sorted(between(drawn, 500, min(0.42 * own_rate, 12_000)) for _ in range(4))
        severity, position = between(drawn, 0.2, 3), drawn.uniform(-40, 40)
        fluctuation, slip, jitter = drawn.uniform(0.0005, 0.004), drawn.uniform(0, 0.01), drawn.uniform(0.003, 0.03)
        dampings, noise = tuple(drawn.uniform(0.01, 0.06, 3).tolist()), between(drawn, 0.03, 0.5)
        physics = MachinePhysics(
            outer_position=position, resonances=tuple(modes[:3]), contact_resonance=modes[3], dampings=dampings,
            noise_colour=drawn.uniform(0, 1.5), roughness=between(drawn, 0.01, 0.1),
            inner_cutoff=min(drawn.uniform(2000, 8000), 0.45 * own_rate), balls=bearing.balls,
            ball_diameter=bearing.ball_diameter, pitch_diameter=bearing.pitch_diameter,
            contact_angle=bearing.contact_angle, speed_fluctuation=fluctuation, slip=slip, slip_jitter=jitter,
            noise=noise,
        )  # fmt: skip
        contacts = [contact_frequency(each, CONDITIONS[condition].force) for each in (physics, MachinePhysics())]
        if max(contacts) >= own_rate / 2 or severity >= physics.spacing:  # the defect is longer than balls are apart
            continue
        part = state.removesuffix(" race")
        label = state if state == "healthy" else f"{part}-1"
        origin = f"simulated/{condition}/{label}/1"
        defects = () if state == "healthy" else (Defect(part, severity),)
        signal = simulate(physics, CONDITIONS[condition], defects, own_rate, seconds, seed, origin)
        angle = 2 * np.pi * np.arange(signal.size) / own_rate * speed / 60
        modulation = np.ones_like(angle)
        for order, depth in ((1, 0.3), (2, 0.2), (drawn.uniform(0.3, 15), 0.3), (drawn.uniform(0.3, 15), 0.3)):
            if drawn.random() < 0.5:
                strength, phase = drawn.uniform(0, depth), drawn.uniform(0, 2 * np.pi)
                modulation += sum(strength / number * np.cos(number * order * angle + phase) for number in (1, 2, 3))
        return Recording(
            signal=(signal.astype(np.float32) * modulation).astype(np.float32), rate=rate, bearing=bearing,
            label=state, rpm=rpm * (1 + drawn.uniform(-0.02, 0.02)), domain="simulated", origin=f"simulated {seed}",
        )  # fmt: skip
    raise AssertionError("no machine could be drawn")


def recordings(folder: Path) -> Iterator[Recording]:
    """The recordings of the benches in this folder, whose domains are the benches and whose labels are states."""
    for bench, (kind, name, prefix) in BENCHES.items():
        if (folder / name).is_dir():
            for entry in kind(root=folder / name).catalogue().entries:
                state = state_of(str(entry.label))
                if entry.domain.startswith(prefix) and state is not None:
                    yield replace(entry.read(), domain=bench, label=state, origin=f"{entry.domain} {entry.label}")


def example(recording: Recording, most: int | None = None) -> Example:
    rate, rpm, bearing = recording.rate, recording.rpm, recording.bearing
    assert rate and rpm and bearing and recording.label, "benches say all of it"  # noqa: PT018
    orders, length = bearing.orders(), window_length(TURNS, rate, rpm)
    plan = Plan(min(length, recording.signal.size), rate, rpm, last_order(orders))
    starts = range(0, recording.signal.size - plan.length + 1, plan.length // 2)
    found = [plan.measure(recording.signal[start : start + plan.length]) for start in starts]
    windows = [spectra for spectra in found if spectra is not None]
    mean = Spectra(
        np.mean([window.power for window in windows], axis=0), plan.turns, len(windows),
        np.mean([window.kurtosis for window in windows], axis=0),
    )  # fmt: skip
    alone = tuple(find_evidence(window, orders) for window in windows[:most])
    return Example(
        recording.domain, recording.origin, recording.label, rate, rpm, str(bearing), find_evidence(mean, orders), alone
    )


def fit(features: Doubles, states: NDArray[np.int64], weights: Doubles, penalty: float = PENALTY) -> Doubles:
    """Coefficients of largest likelihood: features (example, state, feature), states and weights (example,)."""
    from scipy.optimize import minimize

    weights = weights / weights.sum()
    truth = np.eye(features.shape[1])[states]

    def loss(coefficients: Doubles) -> tuple[float, Doubles]:
        scores = features @ coefficients
        scores = scores - scores.max(axis=1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        value = -(weights[:, None] * truth * logs).sum() + penalty / 2 * (coefficients**2).sum()
        slope = np.einsum("e,es,esf->f", weights, np.exp(logs) - truth, features) + penalty * coefficients
        return float(value), slope

    found: Doubles = minimize(loss, np.zeros(features.shape[2]), jac=True, method="L-BFGS-B").x
    return found


def fitted(examples: Sequence[Example]) -> Doubles:
    """Coefficients in which benches count alike, and a recording as much as all its windows alone.

    Balls of CWRU are left out: most of them make no line (docs/diagnose.md), and would teach that nothing is a ball.
    """
    rows, states, weights = [], [], []
    used = [found for found in examples if found.bench == "simulated" or found.state != "ball"]
    share = {bench: sum(found.bench == bench for found in used) for bench in {found.bench for found in used}}
    for found in used:
        for evidence, weight in [(found.whole, 1.0)] + [(alone, 1 / len(found.windows)) for alone in found.windows]:
            rows.append(evidence.features())
            states.append(STATES.index(found.state))
            weights.append(weight / share[found.bench])
    return fit(np.array(rows), np.array(states), np.array(weights))


def report(title: str, examples: Sequence[Example], classifier: Classifier, units: Sequence[str]) -> None:
    """Rows of the table: recordings and windows, right, ECE, answered, right of those, and of the surest."""
    for unit in units:
        pairs = [(found.state, found.whole) for found in examples]
        if unit == "windows":
            pairs = [(found.state, alone) for found in examples for alone in found.windows]
        truth = np.array([STATES.index(state) for state, _ in pairs])
        found = np.array([classifier.probabilities(evidence) for _, evidence in pairs])
        answered = np.array([classifier.state(evidence) != CANNOT_TELL for _, evidence in pairs])
        right, confidence = found.argmax(axis=1) == truth, found.max(axis=1)
        surest = np.argsort(-confidence, kind="stable")
        curve = [100 * right[surest[: round(share * len(right))]].mean() for share in (0.9, 0.8, 0.7)]
        print(
            f"| {title} | {unit} | {right.sum()} of {len(right)} | {100 * float(ece(found, truth, bins=15)):.1f} |"
            f" {answered.sum()} | {right[answered].sum()} of {answered.sum()} | {' / '.join(f'{share:.0f}' for share in curve)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data"), help="holds cwru and hit-sm")
    parser.add_argument("--write", action="store_true", help="write the coefficients of all benches to the package")
    arguments = parser.parse_args()
    real = [example(recording) for recording in recordings(arguments.folder)]
    made = [example(simulated(seed), WINDOWS) for seed in range(MACHINES)]
    print("| left out | of | right | ECE | answered | right of these | right of the surest 90 / 80 / 70 % |")
    print("|---|---|---|---|---|---|---|")
    classifiers = {}
    for bench in sorted({found.bench for found in real}):
        classifiers[bench] = Classifier(fitted(made + [found for found in real if found.bench != bench]))
        own = [found for found in real if found.bench == bench]
        report(bench, [found for found in own if found.state != "ball"], classifiers[bench], ("recordings", "windows"))
        if any(found.state == "ball" for found in own):
            report(f"{bench} and balls", own, classifiers[bench], ("recordings", "windows"))
    coefficients = fitted(made + real)
    print("\n" + ", ".join(f"{name} {value:.3f}" for name, value in zip(FEATURES, coefficients, strict=True)))
    if arguments.write:
        everything = made + real
        content = {
            "made_by": "python benchmarks/diagnose.py DATA --write",
            "coefficients": {name: round(float(value), 4) for name, value in zip(FEATURES, coefficients, strict=True)},
            "made_from": {
                bench: sum(found.bench == bench for found in everything)
                for bench in sorted({found.bench for found in everything})
            },
            "ranges": {
                "rate": [min(found.rate for found in everything), max(found.rate for found in everything)],
                "rpm": [min(SPEEDS), max(SPEEDS)],
            },
        }
        COEFFICIENTS.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
