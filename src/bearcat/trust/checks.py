"""Check models: cheap classifiers that share neither training nor adaptation with the network they check.

Each is fitted to the source in a second and predicts the target's windows. Where unlike models agree with the network,
it is probably right; where they do not, somebody is wrong. Agreement on the same mistake cannot be noticed.

>>> predictions = check_predictions(source, labels, target)
>>> (predictions["input, linear"] == predicted).mean()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
NEIGHBOURS = 5
MOST_WINDOWS = 2000  # of the source
MOST_POINTS = 256  # of an input: a check model is a simple one, and linear discriminants cost the cube of them


def linear(source: NDArray[Any], labels: Integers, target: NDArray[Any]) -> Integers:
    """Linear discriminants with a covariance shrunk as its data ask for (Ledoit and Wolf)."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=_equal(labels))
    return np.asarray(model.fit(source, labels).predict(target))


def neighbours(source: NDArray[Any], labels: Integers, target: NDArray[Any]) -> Integers:
    """The class of most of the nearest source windows."""
    from sklearn.neighbors import KNeighborsClassifier

    return np.asarray(KNeighborsClassifier(min(NEIGHBOURS, len(source))).fit(source, labels).predict(target))


MODELS: dict[str, Callable[[NDArray[Any], Integers, NDArray[Any]], Integers]] = {
    "linear": linear,
    "neighbours": neighbours,
}


def check_predictions(
    source: Mapping[str, NDArray[Any]], labels: Integers, target: Mapping[str, NDArray[Any]]
) -> dict[str, Integers]:
    """What every model says of the target's windows, for each representation (window, …) of source and target."""
    step = -(-len(labels) // MOST_WINDOWS)
    found: dict[str, Integers] = {}
    for name, values in source.items():
        fitted, asked = (_fewer(part.reshape(len(part), -1)) for part in (values[::step], target[name]))
        mean, deviation = fitted.mean(axis=0), fitted.std(axis=0)
        varies = deviation > 1e-6 * np.abs(mean)
        fitted, asked = ((part[:, varies] - mean[varies]) / deviation[varies] for part in (fitted, asked))
        if not varies.any():
            continue
        found |= {f"{name}, {kind}": model(fitted, labels[::step], asked) for kind, model in MODELS.items()}
    return found


def _fewer(values: NDArray[Any]) -> NDArray[np.float64]:
    """At most MOST_POINTS points of each window, sums of neighbours where there are more."""
    points = values.shape[1]
    starts = np.arange(0, points, -(-points // MOST_POINTS))
    return np.add.reduceat(values.astype(np.float64), starts, axis=1)


def _equal(labels: Integers) -> NDArray[np.float64]:
    classes = len(np.unique(labels))
    return np.full(classes, 1 / classes)
