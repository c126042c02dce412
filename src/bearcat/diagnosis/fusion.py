"""Several witnesses → one probability for each state: an additive model whose few coefficients are fitted.

The score of a fault is what its lines say plus what a network says, each a weighted sum; that of "healthy" is zero, and
the probabilities are the softmax of the scores. Some faults show no line (LINELESS), so that what lines say against a
fault is bounded: log((1 − LINELESS) · exp(sum) + LINELESS). All faults share the coefficients, so that a fault of one
kind teaches the others. Each set of witnesses has coefficients of its own: where one is missing, the answer is the
fitted model of those that are there. `benchmarks/fusion.py` makes fusion.json; recordings of a public test bench are
judged by coefficients that were made without it (docs/trust.md).

>>> fuse(Witnesses(physics=physics, general=general))
{'healthy': 0.01, 'inner race': 0.0, 'outer race': 0.98, 'ball': 0.01}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bearcat.data.recording import HEALTHY_NAMES
from bearcat.diagnosis.comparison import BaselineEvidence
from bearcat.diagnosis.decision import HEALTHY, REFUSE
from bearcat.diagnosis.general import GeneralEvidence
from bearcat.diagnosis.physics import DECIBELS, FAULTS, ONE, PhysicsEvidence, score, shipped, state_of
from bearcat.diagnosis.physics import FEATURES as OF_LINES
from bearcat.findings import PRIOR

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


@dataclass(frozen=True, eq=False)
class NetworkEvidence:
    """What a trained model says of one recording, and what to do with that model by its own decision."""

    probabilities: Mapping[str, float]  # of its classes, pooled over windows
    agreement: float  # share of windows with the likeliest class
    windows: int
    action: str  # use, check, do not use
    expected: float | None = None  # accuracy to expect of the model on this target
    unfamiliar: float | None = None  # share of unfamiliar windows
    familiar: bool | None = None  # None: the model cannot say
    shift: str | None = None  # from its source to its target: condition, specimen, machine, …; None: not known

    @property
    def nearest(self) -> str:
        """The likeliest class."""
        return max(self.probabilities, key=lambda name: self.probabilities[name])

    @cached_property
    def states(self) -> dict[str, float]:
        """Its probabilities by state; a class that stands for no known state is a state of its own."""
        found: dict[str, float] = {}
        for name, share in self.probabilities.items():
            state = state_of_class(name)
            found[state] = found.get(state, 0.0) + share
        return found


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
    def fused(self) -> Witnesses:
        """Those that count: a model that is not to be used does not, where others can speak."""
        refused = self.network is not None and self.network.action == REFUSE and self.physics is not None
        return replace(self, network=None) if refused else self

    @property
    def of_signal(self) -> Witnesses:
        """Those that need no trained model."""
        return replace(self, network=None)

    @property
    def states(self) -> list[str]:
        """What the recording may be: healthy, unless the only model knows no such class, each fault, other classes."""
        if self.network is None:
            return [HEALTHY, *FAULTS]
        own = self.network.states
        known = (
            [HEALTHY, *FAULTS] if self.physics is not None else [state for state in (HEALTHY, *FAULTS) if state in own]
        )
        others = [state for state in own if state not in (HEALTHY, *FAULTS)]
        return [state for state in [*known, *others] if state != HEALTHY or HEALTHY in own]

    def features(self, state: str) -> list[float]:
        """What the witnesses say for a fault against healthy, in the order of `names_of`."""
        found: list[float] = []
        if (physics := self.physics) is not None:
            found += physics.features(state)
        if self.general is not None:
            found += _log_odds(self.general.probabilities, state)
        if self.baseline is not None and self.physics is not None:
            found += [self.baseline.change.get(state, 0.0) / DECIBELS, self.baseline.impulsive]
        found += [1.0] if found else []
        if self.network is not None:
            odds = _log_odds(self.network.states, state)
            found += [0.0, 0.0, *odds] if self.network.shift == FAR else [*odds, 0.0, 0.0]
        return found


def _log_odds(shares: Mapping[str, float], state: str) -> list[float]:
    """Of any fault against healthy, and of this fault against the likeliest one, both bounded.

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
    chosen, (lines, others) = (coefficients or shipped(witnesses.without))["+".join(present)], names_of(present)
    weights, states = np.array([chosen[name] for name in lines + others]), witnesses.states
    faults = [state for state in states if state != HEALTHY]
    found = score(np.array([witnesses.features(state) for state in faults]), weights, len(lines))
    found = found + math.log(prior / (1 - prior))
    scores = dict(zip(faults, found.tolist(), strict=True)) | ({HEALTHY: 0.0} if HEALTHY in states else {})
    total = np.logaddexp.reduce(list(scores.values()))
    return {state: math.exp(scores[state] - total) for state in states}
