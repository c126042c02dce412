"""What the windows of a recording say together: its class, and whether it resembles what a model was adapted to.

Windows of one recording come from one bearing in one state, so their calibrated log-probabilities are averaged, and the
softmax of the average is the recording's. Their sum would be right if windows were independent; but what misleads one
window misleads the next, and a hundred windows at 60 % would become certainty. `pooled_temperature` finds a place
between the two. Familiarity looks at features and at the shape of spectra, since a network is trained to ignore what
does not separate its classes (docs/trust.md). Numpy and scipy.

>>> pooled = pool(tally(log_probabilities, familiarity.unfamiliar(features, shapes)), 1.0, familiarity)
>>> pooled.probabilities, pooled.agreement, pooled.familiar
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# Between which a pooled temperature is searched for. Below 1 recordings would be surer than a typical window; on
# simulated bearings that was too sure, estimates of accuracy being what they are (docs/trust.md).
LEAST, MOST = 1.0, 100.0
FALSE_ALARMS = 0.05
NEIGHBOURS = 10
LEAST_SHARE = 0.25  # of unfamiliar windows in an unfamiliar recording, whatever the target's recordings show
KEPT_WINDOWS = 1024  # windows that stand for the target in a Familiarity


@dataclass(frozen=True, eq=False)
class Familiarity:
    """What the adapted target looks like to the network and in its spectra, and the limits of windows of its kind.

    Two scores, higher is stranger, each with half of the false-alarm rate. Distance: to the NEIGHBOURS-th nearest
    feature vector of the target's training windows, all of length 1. Shape: the same between spectra, in bands, each in
    units of its spread within recordings, divided by the distance those neighbours have to their own neighbours.
    """

    features: NDArray[Any]  # (kept window, feature) of length 1; float32, rounded to float16 so that files stay small
    shapes: NDArray[Any]  # (kept window, channel · band) over `scale`: `bearcat.data.recording.spectral_shape`
    spreads: NDArray[Any]  # (kept window,) the distance of each shape to its own neighbours
    neighbours: int
    rate: float  # of false alarms among windows; more than FALSE_ALARMS where few windows were held out
    distance_limit: float
    shape_limit: float
    recording_limit: float  # the share of unfamiliar windows that recordings of the target stay within
    scale: NDArray[Any]  # (channel · band,) the spread of each band within the target's recordings

    def scores(self, features: NDArray[Any], shapes: NDArray[Any]) -> Floats:
        """Distance and shape (score, window), from features (window, feature) and spectral shapes (window, band)."""
        distance, _ = nearest(self.features, unit(features), self.neighbours)
        # The bands' numbers are few and large: float64 keeps small differences of large squares.
        shape, near = nearest(self.shapes.astype(np.float64), shapes / self.scale, self.neighbours)
        spread = near @ self.spreads / np.maximum(near.sum(axis=1), 1)
        usual = np.maximum(spread, 1e-3)  # windows that are all alike have no spread
        return np.stack([distance, shape / usual])

    def unfamiliar(self, features: NDArray[Any], shapes: NDArray[Any]) -> Booleans:
        """Which windows are beyond either limit, (window,)."""
        return self.beyond_limits(self.scores(features, shapes))

    def beyond_limits(self, scores: Floats) -> Booleans:
        """The same from scores (score, window) that were computed before."""
        limits = np.array([self.distance_limit, self.shape_limit])
        return np.asarray(np.any(scores > limits[:, None], axis=0))

    def recording_is_unfamiliar(self, unfamiliar: int, windows: int) -> bool:
        """Whether more windows of a recording are unfamiliar than recordings of the target have shown, and so many that
        it is improbable at the false-alarm rate: one strange window of two is not enough.
        """
        if unfamiliar == 0 or unfamiliar / windows <= self.recording_limit:
            return False
        from scipy.special import bdtrc  # which takes a quarter of a second to load

        return bool(bdtrc(unfamiliar - 1, windows, self.rate) <= self.rate)

    @property
    def usable(self) -> bool:
        """Whether the limits are numbers; those of a run whose training broke down are not."""
        return all(map(math.isfinite, self.limits.values()))

    @property
    def limits(self) -> dict[str, float]:
        """What a record keeps."""
        return {name: getattr(self, name) for name in ("rate", "distance_limit", "shape_limit", "recording_limit")}

    def state(self) -> dict[str, NDArray[Any]]:
        """Plain arrays by name, for saving: KEPT_WINDOWS rows of float16 at most, and numbers."""
        arrays = {name: np.asarray(getattr(self, name)) for name in Familiarity.__dataclass_fields__}
        return arrays | {name: arrays[name].astype(np.float16) for name in ("features", "shapes")}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Familiarity:
        """The familiarity that `state` was made of; KeyError or InputError where these arrays cannot be one."""
        arrays = ("features", "shapes", "spreads", "scale")
        values: dict[str, Any] = {name: np.asarray(state[name], dtype=np.float32) for name in arrays}
        values |= {f"{name}_limit": float(state[f"{name}_limit"]) for name in ("distance", "shape", "recording")}
        read = Familiarity(**values, neighbours=int(state["neighbours"]), rate=float(state["rate"]))
        rows, bands = read.features.shape[:1], read.scale.shape
        sound = read.features.ndim == 2 and len(bands) == 1 and (read.scale > 0).all() and read.spreads.shape == rows
        if not (sound and read.shapes.shape == rows + bands and 1 <= read.neighbours <= rows[0] and read.usable):
            raise InputError("a familiarity has rows of numbers, at least as many as neighbours, and finite limits")
        return read


def fit_familiarity(
    train_features: NDArray[Any], train_shapes: NDArray[Any], train_recording: Integers,
    features: NDArray[Any], shapes: NDArray[Any], recording: Integers,
) -> Familiarity:  # fmt: skip
    """Fits a familiarity to the target's training windows; held-out target windows set its limits."""
    # Training windows stand in random order, so the first are a sample. They are rounded as they will be read back.
    scale = band_spread(train_shapes[:KEPT_WINDOWS], train_recording[:KEPT_WINDOWS])
    both = (rows[:KEPT_WINDOWS] for rows in (unit(train_features), train_shapes / scale))
    kept_features, kept_shapes = (rows.astype(np.float16).astype(np.float32) for rows in both)
    neighbours = min(NEIGHBOURS, len(kept_features))
    # Each window is its own nearest, hence one neighbour more.
    spreads = nearest(kept_shapes, kept_shapes, min(neighbours + 1, len(kept_features)))[0].astype(np.float32)
    # Few windows cannot hold a small rate: the largest score of n is exceeded by one in n + 1, and the rate says so.
    rate = max(FALSE_ALARMS, 2 / (len(features) + 1))
    unlimited = Familiarity(kept_features, kept_shapes, spreads, neighbours, rate, math.nan, math.nan, math.nan, scale)
    scores = unlimited.scores(features, shapes)
    distance, shape = (min(conformal_limit(row, rate / len(scores)), float(row.max())) for row in scores)
    limited = replace(unlimited, distance_limit=distance, shape_limit=shape)
    held_out = limited.beyond_limits(scores)
    # Held-out windows are few of each recording and may not show how much the rest of it varies.
    every = np.concatenate([limited.unfamiliar(train_features, train_shapes), held_out])
    share = _usual_share(held_out, recording, rate)
    of_all = _usual_share(every, np.concatenate([train_recording, recording]), rate)
    return replace(limited, recording_limit=max(LEAST_SHARE, share, of_all))


def _usual_share(unfamiliar: Booleans, recording: Integers, rate: float) -> float:
    """The share of unfamiliar windows (window,) that recordings stay within; where so few of them are known that no
    limit holds at this rate, the largest share found.
    """
    group = np.unique(recording, return_inverse=True)[1]
    shares = np.bincount(group, unfamiliar) / np.bincount(group)
    return min(conformal_limit(shares, rate), float(shares.max()))


def band_spread(shapes: NDArray[Any], recording: Integers) -> NDArray[np.float32]:
    """The root mean square distance of each band (channel · band,) from its mean over the recording; at least a tenth
    of the median over bands, so that a band without noise does not decide; 1 where no band has any.
    """
    number = np.unique(recording, return_inverse=True)[1]
    means = np.array([shapes[number == index].mean(axis=0) for index in range(number.max() + 1)])
    spread = np.sqrt(((shapes - means[number]) ** 2).mean(axis=0))
    least = 0.1 * float(np.median(spread))
    return np.asarray(np.maximum(spread, least) if least > 0 else np.ones_like(spread), dtype=np.float32)


def unit(features: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of length 1; rows of zeros stay so."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(length > 0, length, 1), dtype=np.float32)


def nearest(rows: NDArray[Any], new: NDArray[Any], neighbours: int) -> tuple[Floats, Booleans]:
    """The distance (window,) of each new row (window, number) to the neighbours-th nearest of the rows, and which
    (window, row) are as near.
    """
    squared = new @ rows.T
    squared *= -2
    squared += np.vecdot(rows, rows)
    squared += np.vecdot(new, new)[:, None]
    farthest = np.partition(squared, neighbours - 1, axis=1)[:, neighbours - 1]
    return np.sqrt(np.maximum(farthest, 0)).astype(np.float64), squared <= farthest[:, None]


def conformal_limit(scores: Floats, rate: float) -> float:
    """The limit that a new score, exchangeable with these, exceeds with at most this probability; perhaps infinite."""
    rank = math.ceil((len(scores) + 1) * (1 - rate) - 1e-9)
    return math.inf if rank > len(scores) else float(np.sort(scores)[rank - 1])


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model computes from windows, a row each."""

    log_probabilities: NDArray[Any]  # (window, class) calibrated
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
        counted = self.unfamiliar is not None and other.unfamiliar is not None
        unfamiliar = (self.unfamiliar or 0) + (other.unfamiliar or 0) if counted else None
        return Tally(self.sums + other.sums, self.votes + other.votes, unfamiliar)


@dataclass(frozen=True, eq=False)
class Pooled:
    """A recording by its windows. `probabilities` (class,) sum to 1; `agreement`: the share of windows of its class."""

    probabilities: Floats
    agreement: float
    windows: int
    unfamiliar: float | None = None  # the share of unfamiliar windows
    familiar: bool | None = None  # False: so many that the recording is unfamiliar; None: the model cannot tell


def tally(log_probabilities: NDArray[Any], unfamiliar: Booleans | None = None) -> Tally:
    """Counts some windows of one recording: calibrated log-probabilities (window, class), unfamiliar (window,)."""
    values = np.asarray(log_probabilities, dtype=np.float64)
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
    probabilities = softmax(counted.sums / counted.windows / temperature)
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
    numbers, index = np.unique(recording, return_inverse=True)
    if not len(numbers) or not np.isfinite(accuracy) or not np.isfinite(log_probabilities.max(axis=1)).all():
        return 1.0
    tallies = [tally(log_probabilities[index == number]) for number in range(len(numbers))]
    means = np.stack([counted.sums / counted.windows for counted in tallies])  # (recording, class)
    votes = np.stack([counted.votes for counted in tallies]) / len(recording)
    if np.ptp(means, axis=1).max() == 0:
        return 1.0  # all classes alike: no temperature changes anything
    low, high = np.log(LEAST), np.log(MOST)
    for _ in range(60):  # what recordings expect falls as the temperature rises, but for windows that outvote the mean
        middle = (low + high) / 2
        expected = (softmax(means / np.exp(middle)) * votes).sum()
        low, high = (middle, high) if expected > accuracy else (low, middle)
    return float(np.exp((low + high) / 2))


def softmax(values: Floats) -> Floats:
    """The softmax over the last axis."""
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
