"""From the windows of a recording to one diagnosis of it; numpy only.

Windows of one recording come from one bearing in one state, so their calibrated log-probabilities are averaged, and the
softmax of the average is the recording's. The product of the windows' probabilities (the sum instead of the mean)
would be right if windows were independent. They are not: what misleads one window misleads the next, and a hundred
windows at 60 % would become certainty. The mean is the careful end; `fit_pooled_temperature` finds the place between
the two from labelled recordings (temperature 1 is the mean, 1/n the product of n windows).

>>> diagnosis = diagnose(tally(log_probabilities), temperature=1.0)      # (window, class)
>>> diagnosis.index, diagnosis.confidence, diagnosis.agreement, diagnosis.windows

Where the model has a Familiarity, unfamiliar windows are counted too, and too many make the recording unfamiliar.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError
from bearcat.trust.accuracy import Booleans, Floats, Integers
from bearcat.trust.familiarity import Familiarity

TEMPERATURES = (0.01, 100.0)  # between which a pooled temperature is searched for


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model computes from windows, a row each."""

    log_probabilities: NDArray[Any]  # (window, class) calibrated
    logits: NDArray[Any]  # (window, class) before calibration
    features: NDArray[Any]  # (window, feature)


@dataclass(frozen=True, eq=False)
class Tally:
    """What is kept of the windows so far: two tallies of parts of a recording add up to that of the whole."""

    sums: Floats  # (class,) of log-probabilities
    votes: Integers  # (class,) windows whose most likely class this is
    unfamiliar: int | None = None  # unfamiliar windows; None where the model cannot tell

    @property
    def windows(self) -> int:
        return int(self.votes.sum())

    def __add__(self, other: Tally) -> Tally:
        known = self.unfamiliar is not None and other.unfamiliar is not None
        unfamiliar = (self.unfamiliar or 0) + (other.unfamiliar or 0) if known else None
        return Tally(self.sums + other.sums, self.votes + other.votes, unfamiliar)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Of one recording. `probabilities` (class,) sum to 1; `agreement`: the share of windows of the same class."""

    probabilities: Floats
    agreement: float
    windows: int
    unfamiliar: float | None = None  # the share of unfamiliar windows
    familiar: bool | None = None  # False: so many that the recording is unfamiliar; None: the model cannot tell

    @property
    def index(self) -> int:
        """The class, by its place."""
        return int(self.probabilities.argmax())

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())

    def is_alarm(
        self,
        classes: Sequence[str],
        alarms: Collection[str],
        min_confidence: float = 0.0,
        unfamiliar_alarm: bool = True,
    ) -> bool:
        """The one rule for alarms: an unfamiliar recording, or a class among `alarms` with enough confidence."""
        if unfamiliar_alarm and self.familiar is False:
            return True
        return classes[self.index] in alarms and self.confidence >= min_confidence


def tally(log_probabilities: NDArray[Any], unfamiliar: Booleans | None = None) -> Tally:
    """Counts some windows of one recording: calibrated log-probabilities (window, class), unfamiliar (window,)."""
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
    """The recording's diagnosis, softmax(mean log-probability / temperature), and whether it is familiar."""
    if counted.windows == 0:
        raise InputError("a recording without a window has no diagnosis; it must be as long as one window at least")
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature must be a positive number, not {temperature:g}")
    probabilities = _softmax(counted.sums / counted.windows / temperature)
    agreement = float(counted.votes[probabilities.argmax()] / counted.windows)
    if familiarity is None or counted.unfamiliar is None:
        return Diagnosis(probabilities, agreement, counted.windows)
    share = counted.unfamiliar / counted.windows
    familiar = not familiarity.recording_is_unfamiliar(counted.unfamiliar, counted.windows)
    return Diagnosis(probabilities, agreement, counted.windows, share, familiar)


def fit_pooled_temperature(log_probabilities_by_recording: Sequence[NDArray[Any]], labels: Sequence[int]) -> float:
    """The temperature at which labelled recordings are as sure, on average, as they are right; 1 where there are none.

    Recordings are few and often all diagnosed rightly, which would send the temperature to 0. So k right ones of n
    count as (k + 1)/(n + 2), Laplace's rule of succession: confidence claims no more than n recordings can show. Each
    recording counts once, however long it is.
    """
    if len(log_probabilities_by_recording) != len(labels):
        raise InputError(f"{len(log_probabilities_by_recording)} recordings need as many labels, not {len(labels)}")
    if not len(labels):
        return 1.0
    tallies = [tally(values) for values in log_probabilities_by_recording]
    means = np.stack([each.sums / max(each.windows, 1) for each in tallies])  # (recording, class)
    count, classes = means.shape
    places = np.asarray(labels, dtype=np.int64)
    if places.min() < 0 or places.max() >= classes:
        raise InputError(f"labels must be whole numbers from 0 to {classes - 1}, the places of the classes")
    if classes == 1 or np.ptp(means, axis=1).max() == 0:
        return 1.0  # all classes alike: no temperature changes anything
    wanted = (int((means.argmax(axis=1) == places).sum()) + 1) / (count + 2)
    low, high = np.log(TEMPERATURES)
    for _ in range(60):  # confidence falls as the temperature rises
        middle = (low + high) / 2
        confidence = _softmax(means / np.exp(middle)).max(axis=1).mean()
        low, high = (middle, high) if confidence > wanted else (low, middle)
    return float(np.exp((low + high) / 2))


def pooled_temperature(log_probabilities: NDArray[Any], labels: Integers, recording: Integers) -> float:
    """What a model is given: fitted on labelled source windows (window, class) by recording (window,), at least 1.

    Source recordings may show that pooled diagnoses are less right than their windows are sure. They cannot show that
    a recording may be surer than its windows: on the target all windows of a recording can be misled together.
    """
    places = [np.flatnonzero(recording == number) for number in np.unique(recording)]
    values = [log_probabilities[windows] for windows in places]
    return max(1.0, fit_pooled_temperature(values, [int(labels[windows[0]]) for windows in places]))


def _softmax(values: Floats) -> Floats:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
