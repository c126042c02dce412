"""Which class does each recording of the target show? A comparison of hypotheses, before any training.

Windows are brought to the space in which the source's classes are farthest apart for their spread (regularised linear
discriminants). There, a change of speed, load or machine moves all classes by about the same offset. Recordings of the
target that lie together form a group. Where there are as many groups as classes, the groups are matched with the
classes, each to one, under the offset that fits best; the fit says how much of the classes' arrangement the groups
repeat. Where there are fewer groups, nothing tells an offset from a fault, and no hypothesis is preferred to the
unadapted one (docs/plant.md has the measurements, with the alternatives that were dropped).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.tasks import UNKNOWN

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHRINKAGE = 0.1  # of the spread within classes towards equal spread in all directions
MOST_WINDOWS = 4000  # of the source, to find the space
MOST_STARTS = 12  # groups whose distances from the classes are tried as offsets


@dataclass(frozen=True, eq=False)
class Space:
    """The discriminant space: windows (window, point) → (window, axis), and the source's class centres there."""

    project: Callable[[NDArray[Any]], Floats]
    centres: Floats  # (class, axis)


def discriminant_space(values: NDArray[Any], labels: Integers, classes: int) -> Space:
    """From the source's windows (window, point)."""
    most = MOST_WINDOWS // classes
    members = [np.flatnonzero(labels == code) for code in range(classes)]
    kept = np.concatenate([own[np.linspace(0, len(own) - 1, min(len(own), most)).astype(int)] for own in members])
    values, labels = values[kept].astype(np.float64), labels[kept]
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation = np.where(deviation > 1e-6 * np.abs(mean), deviation, 1.0)
    scaled = (values - mean) / deviation
    centres = np.array([scaled[labels == code].mean(axis=0) for code in range(classes)])
    within = (scaled - centres[labels]) / np.sqrt(max(1, len(scaled) - classes))
    _, singular, axes = np.linalg.svd(within, full_matrices=False)
    floor = SHRINKAGE * (singular**2).sum() / scaled.shape[1]
    along = 1 / np.sqrt((1 - SHRINKAGE) * singular**2 + floor) if floor > 0 else np.ones_like(singular)
    across = 1 / np.sqrt(floor) if floor > 0 else 1.0

    def whiten(points: Floats) -> Floats:
        return np.asarray(points * across + (points @ axes.T * (along - across)) @ axes)

    whitened = whiten(centres)
    middle = whitened.mean(axis=0)
    directions = np.linalg.svd(whitened - middle, full_matrices=False)[2][: classes - 1]

    def project(points: NDArray[Any]) -> Floats:
        return np.asarray((whiten((points - mean) / deviation) - middle) @ directions.T)

    return Space(project, (whitened - middle) @ directions.T)


def grouped(points: Floats, recording: Integers, classes: int, apart: float) -> tuple[Integers, Floats]:
    """Groups of recordings, (window,), and their centres.

    Two recordings are of one group if their centres are nearer than `apart` times the windows' distance from their own
    centre (root mean square), or by way of others. Without recordings, windows are clustered into as many groups as
    there are classes.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.cluster.vq import kmeans2

    if not len(recording):
        group = _numbered(kmeans2(points, classes, minit="++", seed=0, missing="warn")[1])
        return group, centres_of(points, group)
    number = _numbered(recording)
    centres = centres_of(points, number)
    if len(centres) == 1:
        return number, centres
    spread = np.sqrt(((points - centres[number]) ** 2).sum(axis=1).mean())
    group = _numbered(fcluster(linkage(centres, "single"), apart * spread, "distance")[number])
    return group, centres_of(points, group)


def _numbered(names: NDArray[Any]) -> Integers:
    """The same groups, numbered from 0 on."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def centres_of(points: Floats, group: Integers) -> Floats:
    """The mean of each group's points, (group, axis)."""
    return np.array([points[group == number].mean(axis=0) for number in range(group.max() + 1)])


def match(groups: Floats, centres: Floats, known: Integers) -> tuple[Integers, float]:
    """The class of each group, each class once, and the fit: the share of the classes' scatter that is repeated.

    groups (class, axis) are as many as classes; known (class,) holds the classes that groups are known to be of,
    UNKNOWN elsewhere.
    """
    from scipy.optimize import linear_sum_assignment

    forbidden = (known[:, None] != UNKNOWN) & (known[:, None] != np.arange(len(centres)))

    def one_to_one(distance: Floats) -> Integers:
        return np.asarray(linear_sum_assignment(np.where(forbidden, distance.max() * len(groups) + 1, distance))[1])

    return _best_fit(groups, centres, one_to_one)


def free_fit(groups: Floats, centres: Floats) -> float:
    """The fit where each group takes its nearest class, so that classes may be missing and others have several."""
    return _best_fit(groups, centres, lambda distance: distance.argmin(axis=1))[1]


def _best_fit(groups: Floats, centres: Floats, assign: Callable[[Floats], Integers]) -> tuple[Integers, float]:
    """The classes that `assign` gives by squared distances (group, class) and their fit, under the best offset.

    The offset is found by turns with the assignment, from several starts.
    """
    starts = [groups.mean(axis=0) - centres.mean(axis=0), np.zeros(centres.shape[1])]
    starts += [group - centre for group in groups[:MOST_STARTS] for centre in centres]
    best, least = np.arange(len(groups)), np.inf
    for offset in starts:
        for _ in range(20):
            assigned = assign(((groups[:, None] - centres - offset) ** 2).sum(axis=2))
            earlier, offset = offset, (groups - centres[assigned]).mean(axis=0)
            if np.allclose(earlier, offset):
                break
        left = ((groups - centres[assigned] - offset) ** 2).sum()
        if left < least:
            best, least = assigned, left
    return best, float(1 - least / ((centres - centres.mean(axis=0)) ** 2).sum())
