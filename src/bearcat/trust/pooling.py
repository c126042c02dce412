"""From the windows of a recording to one diagnosis of it; numpy only (docs/trust.md, "Confidence of recordings").

Windows of one recording come from one bearing in one state, so their calibrated log-probabilities are averaged, and the
softmax of the average is the recording's. Their sum would be right if windows were independent; but what misleads one
window misleads the next, and a hundred windows at 60 % would become certainty. `pooled_temperature` finds a place
between the two from how far windows contradict each other.

>>> pooled = pool(tally(log_probabilities), temperature=1.0)      # (window, class)
>>> pooled.index, pooled.confidence, pooled.agreement, pooled.windows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError
from bearcat.trust.accuracy import Booleans, Floats, Integers
from bearcat.trust.familiarity import Familiarity

# Between which a pooled temperature is searched for. Below 1 recordings would be surer than a typical window; on
# simulated bearings that was too sure, estimates of accuracy being what they are (docs/trust.md).
LEAST, MOST = 1.0, 100.0


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
class Pooled:
    """A recording by its windows. `probabilities` (class,) sum to 1; `agreement`: the share of windows of its class."""

    probabilities: Floats
    agreement: float
    windows: int
    unfamiliar: float | None = None  # the share of unfamiliar windows
    familiar: bool | None = None  # False: so many that the recording is unfamiliar; None: the model cannot tell

    @property
    def index(self) -> int:
        """The class it is most like, by its place."""
        return int(self.probabilities.argmax())

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())


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


def pool(counted: Tally, temperature: float = 1.0, familiarity: Familiarity | None = None) -> Pooled:
    """The recording by its windows, softmax(mean log-probability / temperature), and whether it is familiar."""
    if counted.windows == 0:
        raise InputError("a recording without a window has no diagnosis; it must be as long as one window at least")
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature must be a positive number, not {temperature:g}")
    probabilities = _softmax(counted.sums / counted.windows / temperature)
    agreement = float(counted.votes[probabilities.argmax()] / counted.windows)
    if familiarity is None or counted.unfamiliar is None:
        return Pooled(probabilities, agreement, counted.windows)
    familiar = not familiarity.recording_is_unfamiliar(counted.unfamiliar, counted.windows)
    return Pooled(probabilities, agreement, counted.windows, counted.unfamiliar / counted.windows, familiar)


def pooled_temperature(log_probabilities: NDArray[Any], recording: Integers, accuracy: float) -> float:
    """The temperature from 1 on at which recordings expect as many windows to be right as are thought to be.

    All windows of a recording have its class. So if q are its pooled probabilities and v the shares of windows that
    were given each class, Σ q·v of its windows should be right; over all recordings that should be `accuracy`, the
    share of right windows, which is known or estimated. 1 where there is nothing to go by.
    """
    numbers, place = np.unique(recording, return_inverse=True)
    if not len(numbers) or not np.isfinite(accuracy) or not np.isfinite(log_probabilities.max(axis=1)).all():
        return 1.0
    tallies = [tally(log_probabilities[place == number]) for number in range(len(numbers))]
    means = np.stack([each.sums / each.windows for each in tallies])  # (recording, class)
    votes = np.stack([each.votes for each in tallies]) / len(recording)
    if np.ptp(means, axis=1).max() == 0:
        return 1.0  # all classes alike: no temperature changes anything
    low, high = np.log(LEAST), np.log(MOST)
    for _ in range(60):  # what recordings expect falls as the temperature rises, but for windows that outvote the mean
        middle = (low + high) / 2
        expected = (_softmax(means / np.exp(middle)) * votes).sum()
        low, high = (middle, high) if expected > accuracy else (low, middle)
    return float(np.exp((low + high) / 2))


def _softmax(values: Floats) -> Floats:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
