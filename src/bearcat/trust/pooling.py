"""From the windows of a recording to one diagnosis of it; numpy only.

Windows of one recording come from one bearing in one state, so their calibrated log-probabilities are averaged, and the
softmax of the average is the recording's. The product of the windows' probabilities (the sum instead of the mean)
would be right if the windows were independent witnesses. They are not: what misleads one misleads the next, and a
hundred windows at 60 % would become certainty. The mean treats them as one witness heard many times, which is the
careful end; where labelled recordings of the same kind are at hand, `fit_pooled_temperature` finds the place between
the two (temperature 1 is the mean, 1/n the product of n windows).

>>> diagnosis = diagnose(tally(log_probabilities), temperature=1.0)      # (window, class)
>>> diagnosis.index, diagnosis.confidence, diagnosis.agreement, diagnosis.windows

Where the model knows what is familiar (bearcat.trust), unfamiliar windows are counted along, and too many
of them make the recording unfamiliar: whatever class it was given, it looks like nothing the model was adapted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError
from bearcat.trust.estimates import Familiarity

Doubles = NDArray[np.float64]

TEMPERATURES = (0.01, 100.0)  # where a pooled temperature is looked for


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model says of windows, a row each."""

    log_probabilities: NDArray[Any]  # (window, class) calibrated
    logits: NDArray[Any]  # (window, class) before calibration
    features: NDArray[Any]  # (window, feature)


@dataclass(frozen=True, eq=False)
class Tally:
    """What is kept of the windows seen so far: two tallies of parts of a recording add up to that of the whole."""

    sums: Doubles  # (class,) of log-probabilities
    votes: NDArray[np.int64]  # (class,) windows whose most likely class this is
    unfamiliar: int | None = None  # windows that look like nothing known; None where nobody can tell

    @property
    def windows(self) -> int:
        return int(self.votes.sum())

    def __add__(self, other: Tally) -> Tally:
        known = self.unfamiliar is not None and other.unfamiliar is not None
        strange = (self.unfamiliar or 0) + (other.unfamiliar or 0) if known else None
        return Tally(self.sums + other.sums, self.votes + other.votes, strange)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Of one recording. `probabilities` (class,) sum to 1; `agreement` is the share of windows of the same opinion."""

    probabilities: Doubles
    agreement: float
    windows: int
    unfamiliar: float | None = None  # the share of windows that look like nothing the model was adapted to
    familiar: bool | None = None  # False: so many that the recording is no such one; None where the model cannot tell

    @property
    def index(self) -> int:
        """The class, by its place."""
        return int(self.probabilities.argmax())

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())


def tally(log_probabilities: NDArray[Any], unfamiliar: NDArray[np.bool_] | None = None) -> Tally:
    """Counts windows in: (window, class) calibrated log-probabilities of some windows of one recording.

    unfamiliar (window,): which of them are, where that is known.
    """
    values = np.asarray(log_probabilities, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(f"log-probabilities have the axes (window, class), not the shape {values.shape}")
    if np.isnan(values).any() or (values == np.inf).any():
        raise InputError("log-probabilities must be numbers below infinity; look for NaN in the windows")
    # A probability that float32 has rounded to 0 would rule a class out for good, whatever the other windows say.
    values = np.maximum(values, np.log(np.finfo(np.float64).tiny))
    votes = np.bincount(values.argmax(axis=1), minlength=values.shape[1])
    return Tally(values.sum(axis=0), votes.astype(np.int64), None if unfamiliar is None else int(unfamiliar.sum()))


def diagnose(counted: Tally, temperature: float = 1.0, familiarity: Familiarity | None = None) -> Diagnosis:
    """The recording's diagnosis: softmax(mean log-probability / temperature); and whether it is a familiar one."""
    if counted.windows == 0:
        raise InputError("a recording without a window has no diagnosis; it must be as long as one window at least")
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature must be a positive number, not {temperature:g}")
    probabilities = _softmax(counted.sums / counted.windows / temperature)
    share = counted.votes[probabilities.argmax()] / counted.windows
    strange, familiar = None, None
    if familiarity is not None and counted.unfamiliar is not None:
        strange = counted.unfamiliar / counted.windows
        familiar = not familiarity.alarm(counted.unfamiliar, counted.windows)
    return Diagnosis(probabilities, float(share), counted.windows, strange, familiar)


def fit_pooled_temperature(log_probabilities_by_recording: Sequence[NDArray[Any]], labels: Sequence[int]) -> float:
    """The temperature at which labelled recordings are as sure, on average, as they are right; 1 where there are none.

    Recordings are few and are often all diagnosed rightly, which would send the temperature to 0 and the confidence to
    certainty; so k right ones of n count as (k + 1)/(n + 2), Laplace's rule of succession: confidence says no more than
    n recordings can show. Each counts once, however long it is.
    """
    if len(log_probabilities_by_recording) != len(labels):
        raise InputError(f"{len(log_probabilities_by_recording)} recordings need as many labels, not {len(labels)}")
    if not len(labels):
        return 1.0
    pooled = [tally(one) for one in log_probabilities_by_recording]
    means = np.stack([one.sums / max(one.windows, 1) for one in pooled])  # (recording, class)
    count, classes = means.shape
    places = np.asarray(labels, dtype=np.int64)
    if places.min() < 0 or places.max() >= classes:
        raise InputError(f"labels must be whole numbers from 0 to {classes - 1}, the places of the classes")
    if classes == 1 or np.ptp(means, axis=1).max() == 0:
        return 1.0  # all classes alike: no temperature changes anything
    wanted = (int((means.argmax(axis=1) == places).sum()) + 1) / (count + 2)
    low, high = (float(np.log(one)) for one in TEMPERATURES)
    for _ in range(60):  # confidence falls as the temperature rises
        middle = (low + high) / 2
        sure = _softmax(means / np.exp(middle)).max(axis=1).mean()
        low, high = (middle, high) if sure > wanted else (low, middle)
    return float(np.exp((low + high) / 2))


def pooled_temperature(
    log_probabilities: NDArray[Any], labels: NDArray[np.int64], recording: NDArray[np.int64]
) -> float:
    """What a model is given: fitted on labelled source windows (window, class) by recording (window,), 1 at least.

    Source recordings may show that pooling makes recordings less right than their windows are sure. That it makes them
    surer is not for the source to say: what the target does to a network misleads all windows of a recording alike.
    """
    places = [np.flatnonzero(recording == one) for one in np.unique(recording)]
    fitted = fit_pooled_temperature([log_probabilities[one] for one in places], [int(labels[one[0]]) for one in places])
    return max(1.0, fitted)


def _softmax(values: Doubles) -> Doubles:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    result: Doubles = raised / raised.sum(axis=-1, keepdims=True)
    return result
