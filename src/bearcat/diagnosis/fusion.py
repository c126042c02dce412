"""Several witnesses → one probability for each state: an additive model whose few coefficients are fitted.

The score of a fault is what its lines say plus what a network says, each a weighted sum; that of "healthy" is zero, and
the probabilities are the softmax of the scores. Some faults show no line (LINELESS), so that what lines say against a
fault is bounded: log((1 − LINELESS) · exp(sum) + LINELESS). All faults share the coefficients, so that a fault of one
kind teaches the others. Each set of witnesses has coefficients of its own: where one is missing, the answer is the
fitted model of those that are there. `benchmarks/fusion.py` makes fusion.json; recordings of a public test bench are
judged by coefficients that were made without it (docs/trust.md).

Beside physics and a network there is the general model: a small linear model of many machines, in numpy, so that a
diagnosis starts at once. It reads the envelopes of two bands at the bearing's own orders (the input `bearing-orders`,
docs/inputs.md), and was trained on test benches and simulated machines (benchmarks/general_model.py).

>>> fuse(Witnesses(physics=physics, general=general))
{'healthy': 0.01, 'inner race': 0.0, 'outer race': 0.98, 'ball': 0.01}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.inputs import find_input
from bearcat.data.recording import HEALTHY_NAMES, Floats, change_rate, cut_samples, rate_ratio
from bearcat.diagnosis.decision import HEALTHY, REFUSE
from bearcat.diagnosis.lines import DECIBELS, FAULTS, Doubles
from bearcat.diagnosis.physics import FEATURES as OF_LINES
from bearcat.diagnosis.physics import ONE, BaselineEvidence, PhysicsEvidence, score, shipped, state_of
from bearcat.diagnosis.pooling import pool, tally
from bearcat.errors import InputError
from bearcat.settings import PRIOR

SUREST = 8.0  # log-odds: a network is often sure of its mistakes, so that more of it says no more
# What each witness says for a fault. Numbers are natural logarithms of power or of odds.
FEATURES = {
    "physics": OF_LINES,
    "general": ("general fault", "general type"),
    "network": ("near fault", "near type", "far fault", "far type"),  # far: trained on another machine
    "baseline": ("change", "impulsive change"),
}
LINES = ("physics", "general", "baseline")  # the witnesses that read lines; the others are added to them
UNKNOWN_TYPE = -2.0  # log-odds of a fault that a model lacks against the one it names
FAR = "machine"  # the shift across which a network is hardly worth hearing
# The general model.
FOLDER = Path(__file__).parents[1] / "general"
LEFT_OUT = FOLDER / "left-out.safetensors"  # weights made without a bench, by its name
SECONDS = 60.0  # of a recording that the general model reads: more says no more, and the memory stays bounded


@dataclass(frozen=True, eq=False)
class GeneralEvidence:
    """What the general model says of one recording."""

    probabilities: Mapping[str, float]  # of its classes, pooled over windows

    @property
    def nearest(self) -> str:
        """The likeliest class."""
        return max(self.probabilities, key=lambda name: self.probabilities[name])

    @property
    def confidence(self) -> float:
        return self.probabilities[self.nearest]


@dataclass(frozen=True, eq=False)
class NetworkEvidence(GeneralEvidence):
    """What a trained model says of one recording, and what to do with that model by its own decision."""

    agreement: float  # share of windows with the likeliest class
    windows: int
    action: str  # use, check, do not use
    unfamiliar: float | None = None  # share of unfamiliar windows
    familiar: bool | None = None  # None: the model cannot say
    shift: str | None = None  # from its source to its target: condition, specimen, machine, …; None: not known

    @cached_property
    def states(self) -> dict[str, float]:
        """Its probabilities by state; a class that stands for no known state is a state of its own."""
        states: dict[str, float] = {}
        for name, share in self.probabilities.items():
            state = state_of_class(name)
            states[state] = states.get(state, 0.0) + share
        return states


def state_of_class(name: str) -> str:
    """The state that a model's class stands for, or the class itself."""
    return HEALTHY if name.lower() in HEALTHY_NAMES else state_of(name) or name


@dataclass(frozen=True, eq=False)
class Witnesses:
    """The evidence of each witness about one recording; None where a witness is missing."""

    physics: PhysicsEvidence | None = None
    general: GeneralEvidence | None = None
    network: NetworkEvidence | None = None
    baseline: BaselineEvidence | None = None
    without: str | None = None  # the dataset that is tested: what was learnt from its bench does not count

    @property
    def present(self) -> tuple[str, ...]:
        """Those that are there, in the order of FEATURES; a baseline says nothing where no line could be read."""
        there = [name for name in FEATURES if getattr(self, name) is not None]
        return tuple(name for name in there if name != "baseline" or self.physics is not None)

    @property
    def usable_network(self) -> NetworkEvidence | None:
        """What the model says, unless it is not to be used."""
        return None if self.network is None or self.network.action == REFUSE else self.network

    @property
    def fused(self) -> Witnesses:
        """Those that count: a model that is not to be used does not, where others can speak."""
        return self if self.physics is None else replace(self, network=self.usable_network)

    @property
    def states(self) -> list[str]:
        """What the recording may be: healthy, unless the only model knows no such class, each fault, other classes."""
        if self.network is None:
            return [HEALTHY, *FAULTS]
        of_model = self.network.states
        faults = [fault for fault in FAULTS if self.physics is not None or fault in of_model]
        others = [state for state in of_model if state not in (HEALTHY, *FAULTS)]
        return [*[HEALTHY] * (HEALTHY in of_model), *faults, *others]

    def features(self, state: str) -> list[float]:
        """What the witnesses say for a fault against healthy, in the order of `names_of`."""
        features: list[float] = []
        if (physics := self.physics) is not None:
            features += physics.features(state)
        if self.general is not None:
            features += _log_odds(self.general.probabilities, state)
        if self.baseline is not None and self.physics is not None:
            features += [self.baseline.change.get(state, 0.0) / DECIBELS, self.baseline.impulsive]
        features += [1.0] if features else []
        if self.network is not None:
            odds = _log_odds(self.network.states, state)
            features += [0.0, 0.0, *odds] if self.network.shift == FAR else [*odds, 0.0, 0.0]
        return features


def _log_odds(shares: Mapping[str, float], state: str) -> list[float]:
    """Log-odds of any fault against healthy, and of this fault against the likeliest one, both bounded.

    On other bearings networks know a fault from health far better than they know its type, so the two count apart. A
    model without a healthy class says nothing of the first, and of a fault that it lacks nothing of the second.
    """
    tiny = np.finfo(np.float64).tiny
    healthy, faults = shares.get(HEALTHY), {name: share for name, share in shares.items() if name != HEALTHY}
    fault = 0.0 if healthy is None else math.log(max(1 - healthy, tiny) / max(healthy, tiny))
    likeliest = max(faults.values(), default=0.0)
    kind = math.log(max(faults[state], tiny) / max(likeliest, tiny)) if state in faults else UNKNOWN_TYPE
    return [min(max(fault, -SUREST), SUREST), max(kind, -SUREST)]


def names_of(witnesses: Sequence[str]) -> tuple[list[str], list[str]]:
    """The features of these witnesses: those of lines, with a constant, and the others."""
    lines = [name for witness in LINES if witness in witnesses for name in FEATURES[witness]]
    others = [name for witness in witnesses if witness not in LINES for name in FEATURES[witness]]
    return [*lines, ONE] if lines else [], others


def fuse(
    witnesses: Witnesses, coefficients: Mapping[str, Mapping[str, float]] | None = None, prior: float = PRIOR
) -> dict[str, float]:
    """The probability of each state, where so large a share of recordings is faulty; nothing without a witness."""
    present = witnesses.present
    if not present:
        return {}
    fitted, (lines, others) = (coefficients or shipped(witnesses.without))["+".join(present)], names_of(present)
    weights, states = np.array([fitted[name] for name in lines + others]), witnesses.states
    faults = [state for state in states if state != HEALTHY]
    against = score(np.array([witnesses.features(state) for state in faults]), weights, len(lines))
    against = against + math.log(prior / (1 - prior))
    scores = dict(zip(faults, against.tolist(), strict=True)) | ({HEALTHY: 0.0} if HEALTHY in states else {})
    total = np.logaddexp.reduce(list(scores.values()))
    return {state: math.exp(scores[state] - total) for state in states}


@cache
def general_model(without: str | None = None) -> tuple[dict[str, Any], dict[str, Doubles]]:
    """Its metadata, and its arrays by name; `without` names a dataset whose bench shall not be in it."""
    from safetensors.numpy import load_file

    metadata = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
    tensors = load_file(FOLDER / "weights.safetensors")
    if without is not None:
        bench = f"{without}/"
        left_out = {name: value for name, value in load_file(LEFT_OUT).items() if name.startswith(bench)}
        tensors = {name.removeprefix(bench): value for name, value in left_out.items()} or tensors
    return metadata, {name: value[0].astype(np.float64) for name, value in tensors.items()}


def general_evidence(
    signal: Floats, rate: float, rpm: float, bearing: Bearing, without: str | None = None
) -> GeneralEvidence | None:
    """What the general model says of a recording (time,); None where it does not read this rate, speed and bearing, and
    where the recording is shorter than a window or does not change.
    """
    metadata, arrays = general_model(without)
    preparation, model_rate = metadata["preparation"], metadata["rate"]
    signal = signal[: int(SECONDS * rate)]
    if rate < model_rate:
        return None
    if rate != model_rate:
        ratio = rate_ratio("recording", rate, model_rate)
        signal = change_rate(signal, ratio.numerator, ratio.denominator)
    if signal.size < preparation["length"]:
        return None
    windows = cut_samples(signal, preparation["length"], preparation["stride"])
    windows = windows[windows.min(axis=1) < windows.max(axis=1)]
    if not len(windows):
        return None
    try:
        prepared = find_input(preparation["input"]).transform(windows[:, None], model_rate, rpm, bearing)[:, 0]
    except InputError:
        return None
    scale = arrays["calibration.scale"]
    slope = arrays["network.head.weight"] * scale[:, None]
    offset = arrays["network.head.bias"] * scale + arrays["calibration.bias"]
    scores = ((prepared - arrays["network.scaling.mean"][0]) * arrays["network.scaling.factor"][0]) @ slope.T + offset
    pooled = pool(tally(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)), metadata["pooled_temperature"])
    return GeneralEvidence(dict(zip(metadata["classes"], pooled.probabilities.tolist(), strict=True)))
