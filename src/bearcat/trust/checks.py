"""Check models: cheap classifiers that share neither training nor representation with the network they check.

Where unlike models agree with the network, it is probably right; shared errors go undetected. Some never adapt, and
cannot follow a change that the network has followed; others move the source's classes to the target's recordings, and
fail where the target lacks classes. To add one, write a function of a `CheckSample` and a row of MODELS.

>>> samples = {name: sample_of(source, labels, target, recording, asked) for name, … in …}
>>> check_predictions(samples)["spectral shape, linear"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.inputs import Physics, Spectrum, Waveform, find_input
from bearcat.data.recording import spectrum
from bearcat.trust.accuracy import Floats, Integers
from bearcat.trust.discriminants import discriminant_axes, nearest_centre

NEIGHBOURS = 5
MOST_WINDOWS = 2000  # of the source
MOST_POINTS = 256  # of a representation: a check model is a simple one, and its space costs the cube of them
ROUNDS = 30  # of EM at most
LEAST_SHARE = 1e-6  # of a class in EM


@dataclass(frozen=True, eq=False)
class CheckSample:
    """A run's windows in one representation: labelled source, unlabelled target, and the windows asked about.

    `source`, `asked` (window, point) are standardised by the source. Names that end in `_axes` are windows in the
    source's discriminant space (window, axis), where classes have unit spread, and `centres` (class, axis) are the
    classes there. labels (source window,) are places in `classes`; recording (target window,).
    """

    classes: Integers
    labels: Integers
    recording: Integers
    source: Floats
    asked: Floats
    standardised_axes: Floats  # those asked about, standardised by the target instead
    target_axes: Floats
    asked_axes: Floats
    centres: Floats


def sample_of(
    source: NDArray[Any], labels: Integers, target: NDArray[Any], recording: Integers, asked: NDArray[Any]
) -> CheckSample | None:
    """From windows (window, …) in one representation; None where the source's are all alike."""
    step = -(-len(labels) // MOST_WINDOWS)
    fitted = _fewer(source[::step])
    classes, places = np.unique(labels[::step], return_inverse=True)
    mean, deviation = fitted.mean(axis=0), fitted.std(axis=0)
    varies = deviation > 1e-6 * np.abs(mean)
    if not varies.any() or len(classes) < 2:
        return None

    def scale(points: Floats) -> Floats:
        return np.asarray((points[:, varies] - mean[varies]) / deviation[varies])

    scaled = scale(fitted)
    centres = np.array([scaled[places == place].mean(axis=0) for place in range(len(classes))])
    axes, middle = discriminant_axes(scaled, places, centres), centres.mean(axis=0)

    def axes_of(points: Floats) -> Floats:
        return np.asarray((points - middle) @ axes)

    unlabelled, judged = (scale(_fewer(windows)) for windows in (target, asked))
    own = (judged - unlabelled.mean(axis=0)) / np.maximum(unlabelled.std(axis=0), 1e-6)
    return CheckSample(
        classes, places, recording, scaled, judged, axes_of(own), axes_of(unlabelled), axes_of(judged),
        axes_of(centres),
    )  # fmt: skip


def neighbours(sample: CheckSample) -> Integers:
    """The class of most of the nearest source windows."""
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(min(NEIGHBOURS, len(sample.source)))
    return np.asarray(model.fit(sample.source, sample.labels).predict(sample.asked))


def moved(sample: CheckSample, from_mean: bool, own: bool) -> Integers:
    """Linear discriminants moved to the target's recordings by self-training (`moved_centres`)."""
    start = _mean_offset(sample) if from_mean else np.zeros(sample.centres.shape[1])
    found = moved_centres(sample.target_axes, sample.recording, sample.centres, start, own)
    return nearest_centre(sample.asked_axes, found)


# All but the neighbours are linear discriminants with a covariance shrunk as its data ask for (Ledoit and Wolf): not
# adapted; the target's mean put where the source's is; every point of the target standardised by the target; moved.
MODELS: dict[str, Callable[[CheckSample], Integers]] = {
    "linear": lambda sample: nearest_centre(sample.asked_axes, sample.centres),
    "neighbours": neighbours,
    "centred": lambda sample: nearest_centre(sample.asked_axes, sample.centres + _mean_offset(sample)),
    "standardised": lambda sample: nearest_centre(sample.standardised_axes, sample.centres),
    "moved together": partial(moved, from_mean=False, own=False),
    "moved together from the mean": partial(moved, from_mean=True, own=False),
    "moved apart": partial(moved, from_mean=False, own=True),
    "moved apart from the mean": partial(moved, from_mean=True, own=True),
}


def check_predictions(samples: Mapping[str, CheckSample | None]) -> dict[str, Integers]:
    """What every model says of the windows asked about, for each representation."""
    return {
        f"{name}, {kind}": sample.classes[model(sample)]
        for name, sample in samples.items()
        if sample is not None
        for kind, model in MODELS.items()
    }


def moved_centres(points: Floats, recording: Integers, centres: Floats, start: Floats, own: bool) -> Floats:
    """The classes' centres (class, axis) where the target's recordings, points (window, axis), have them.

    EM: a recording is of one class; its centre scatters around the class's centre plus an offset as its windows do
    around their own; shares are free. The offset is one for all classes and, with `own`, in addition one for each,
    shrunk by one recording that has none. `start` is the first offset.
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


def _mean_offset(sample: CheckSample) -> Floats:
    return np.asarray(sample.target_axes.mean(axis=0) - sample.centres.mean(axis=0))


def _fewer(values: NDArray[Any]) -> Floats:
    """At most MOST_POINTS points of each window, sums of neighbours where there are more."""
    flat = values.reshape(len(values), -1)
    starts = np.arange(0, flat.shape[1], -(-flat.shape[1] // MOST_POINTS))
    return np.add.reduceat(flat.astype(np.float64), starts, axis=1)
