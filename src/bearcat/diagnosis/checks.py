"""Check models: cheap classifiers that share neither training nor representation with the network they check.

Where unlike models agree with the network, it is probably right; shared errors go undetected. Some never adapt, and
cannot follow a change that the network has followed; others move the source's classes to the target's recordings, and
fail where the target lacks classes. They are linear discriminants and nearest neighbours.

>>> check_predictions(source, labels, target, recording, asked)["linear"]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.inputs import Physics, Spectrum, Waveform, find_input
from bearcat.data.recording import spectrum
from bearcat.diagnosis.pooling import Floats, Integers

# Two that do not adapt; discriminants with the target's mean put where the source's is, or every point of the target
# standardised by the target; and moved to the target's recordings, all classes together or each apart, from where they
# are or from the target's mean.
MODELS = (
    "linear", "neighbours", "centred", "standardised", "moved together", "moved together from the mean", "moved apart",
    "moved apart from the mean",
)  # fmt: skip
NEIGHBOURS = 5
MOST_WINDOWS = 2000  # of the source
MOST_POINTS = 256  # of a representation: a check model is a simple one, and its space costs the cube of them
ROUNDS = 30  # of EM at most
LEAST_SHARE = 1e-6  # of a class in EM


def check_predictions(
    source: NDArray[Any], labels: Integers, target: NDArray[Any], recording: Integers, asked: NDArray[Any]
) -> dict[str, Integers]:
    """What every one of MODELS says of the windows asked about; nothing where the source's windows are all alike.

    Windows (window, …) in one representation: the labelled source, the target with its recordings, those asked about.
    """
    from sklearn.neighbors import KNeighborsClassifier

    step = -(-len(labels) // MOST_WINDOWS)
    fitted = _fewer(source[::step])
    classes, places = np.unique(labels[::step], return_inverse=True)
    mean, deviation = fitted.mean(axis=0), fitted.std(axis=0)
    varies = deviation > 1e-6 * np.abs(mean)
    if not varies.any() or len(classes) < 2:
        return {}

    def scale(points: Floats) -> Floats:
        return np.asarray((points[:, varies] - mean[varies]) / deviation[varies])

    scaled, unlabelled, judged = scale(fitted), scale(_fewer(target)), scale(_fewer(asked))
    of_class = np.array([scaled[places == place].mean(axis=0) for place in range(len(classes))])
    axes, middle = discriminant_axes(scaled, places, of_class), of_class.mean(axis=0)
    own = (judged - unlabelled.mean(axis=0)) / np.maximum(unlabelled.std(axis=0), 1e-6)
    centres, points, target_points, own = ((each - middle) @ axes for each in (of_class, judged, unlabelled, own))
    offset = target_points.mean(axis=0) - centres.mean(axis=0)
    nearest = KNeighborsClassifier(min(NEIGHBOURS, len(scaled))).fit(scaled, places)
    moved = [
        nearest_centre(points, moved_centres(target_points, recording, centres, start, apart))
        for apart in (False, True)
        for start in (np.zeros_like(offset), offset)
    ]
    found = (
        nearest_centre(points, centres), nearest.predict(judged), nearest_centre(points, centres + offset),
        nearest_centre(own, centres), *moved,
    )  # fmt: skip
    return {name: classes[place] for name, place in zip(MODELS, found, strict=True)}


def moved_centres(points: Floats, recording: Integers, centres: Floats, start: Floats, own: bool) -> Floats:
    """The classes' centres (class, axis) where the target's recordings, points (window, axis), have them, by EM.

    A recording is of one class; its centre scatters around the class's centre plus an offset as its windows do around
    their own. The offset, first `start`, is one for all classes and, with `own`, another for each, shrunk by one
    recording that has none.
    """
    _, number = np.unique(recording, return_inverse=True)
    means = np.array([points[number == each].mean(axis=0) for each in range(number.max() + 1)])
    variance = max(float(((points - means[number]) ** 2).mean()), 1e-6)
    classes = len(centres)
    offset, apart, shares = start, np.zeros_like(centres), np.full(classes, 1 / classes)
    for _ in range(ROUNDS):
        distance = ((means[:, None] - centres - offset - apart) ** 2).sum(axis=2)
        likely = np.log(np.maximum(shares, LEAST_SHARE)) - distance / (2 * variance)
        likely = np.exp(likely - likely.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)  # (recording, class)
        counts = likely.sum(axis=0)
        shares = (counts + 0.1) / (counts + 0.1).sum()
        earlier, offset = offset, (means.sum(axis=0) - counts @ (centres + apart)) / len(means)
        if own:
            apart = (likely.T @ (means - offset) - counts[:, None] * centres) / (counts + 1)[:, None]
        if not own and np.allclose(earlier, offset):
            break
    return np.asarray(centres + offset + apart)


def representations(values: NDArray[Any], shapes: NDArray[Any], kind: str, span: int) -> dict[str, NDArray[Any]]:
    """The representations check models use, from a network's inputs (window, channel, point) of this kind.

    `shapes` are the windows' spectral shapes; a window covers `span` samples.
    """
    chosen, found = find_input(kind), {"spectral shape": shapes}
    if isinstance(chosen, Waveform | Spectrum):
        plain = spectrum(values) if isinstance(chosen, Waveform) else values - values.min(axis=-1, keepdims=True)
        level = plain.mean(axis=-1, keepdims=True)
        return found | {"spectrum": plain, "log-spectrum": np.log(plain + 0.01 * level + 1e-12)}
    found["input"] = values
    if isinstance(chosen, Physics):
        ends = np.cumsum([member.points(span) for member in chosen.members])
        parts = np.split(values, ends[:-1], axis=2)
        names = [type(member).__name__ for member in chosen.members]
        found |= {name: part for name, part in zip(names, parts, strict=True) if name != "OctaveSpectrum"}
    return found


def _fewer(values: NDArray[Any]) -> Floats:
    """At most MOST_POINTS points of each window, sums of neighbours where there are more."""
    flat = values.reshape(len(values), -1)
    starts = np.arange(0, flat.shape[1], -(-flat.shape[1] // MOST_POINTS))
    return np.add.reduceat(flat.astype(np.float64), starts, axis=1)


def principal(rows: Floats) -> tuple[Floats, Floats]:
    """The variances (axis,) of rows (row, point) with mean 0, times their number, and the axes (axis, point); largest
    first. By eigenvalues of the smaller product: LAPACK's singular values fail to converge on some recordings.
    """
    wide = rows.shape[0] < rows.shape[1]
    values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = np.flatnonzero(values >= 1e-12 * values.max())[::-1]
    values, axes = values[kept], vectors[:, kept].T
    return values, axes @ rows / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny))[:, None] if wide else axes


def discriminant_axes(points: Floats, places: Integers, centres: Floats) -> Floats:
    """Axes (point, axis), one fewer than classes, in whose units classes have unit spread (Ledoit and Wolf's estimate):
    of points (window, point) with the places (window,) of their classes in centres (class, point).
    """
    from sklearn.covariance import ledoit_wolf

    spread, axes = np.linalg.eigh(ledoit_wolf(points - centres[places], assume_centered=True)[0])
    whiten = axes / np.sqrt(np.maximum(spread, 1e-8))
    whitened = centres @ whiten
    return np.asarray(whiten @ principal(whitened - whitened.mean(axis=0))[1][: len(centres) - 1].T)


def nearest_centre(points: Floats, centres: Floats) -> Integers:
    """The place of the nearest of the centres, (window,)."""
    return np.asarray(((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1))
