"""Which class does each recording of the target show? A comparison of hypotheses, before any training.

Windows are brought to the space in which the source's classes are farthest apart for their spread (regularised linear
discriminants). There, a change of speed, load or machine moves all classes by about the same offset. Recordings of the
target that lie together form a group. Groups are matched with classes, each to one, under the offset that fits best;
the fit says how much of the classes' arrangement the groups repeat, the margin how much worse the next matching is. A
few groups do not tell an offset from a fault, and no hypothesis is then preferred to the unadapted one (docs/plant.md
has the measurements, with the alternatives that were dropped).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.tasks import UNKNOWN, TrainingData
from bearcat.trust.discriminants import principal

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHRINKAGE = 0.1  # of the spread within classes towards equal spread in all directions
MOST_WINDOWS = 4000  # of the source, to find the space
MOST_STARTS = 12  # groups whose distances from the classes are tried as offsets
# Groups of several recordings may be two of one class. Then what the matching leaves over may be this many times what
# is left where classes may be missing (docs/plant.md).
MORE_LEFT = 1.5
FEWEST_CLASSES = 3  # two groups are matched with two classes by their order alone, which an offset hides
# Where the target has fewer groups than the source classes, or one more, more is asked of a matching.
FEWEST_GROUPS = 0.6  # of the number of classes
CLEAR_FIT, CLEAR_MARGIN = 2 / 3, 1.05
STRANGE = 2.0  # distance of a group that is left over from the nearest class, in those of matched groups: it is unknown


def move_classes(data: TrainingData, apart: float, fit: float, fewest_windows: int) -> TrainingData:
    """The data with the source's windows moved, and what was found; the settings are those of moving.MoveClasses."""
    source, target, classes = data.source_train, data.target_train, len(data.classes)
    flat, values = source.values.reshape(len(source), -1), target.values.reshape(len(target), -1)
    known = target.reference if len(target.reference) else np.full(len(target), UNKNOWN)
    space = discriminant_space(flat, source.labels, classes)
    group, centres = grouped(space.project(values), target.recording, classes, apart)
    count, fewest = len(centres), int(np.bincount(group).min())
    enough = max(FEWEST_CLASSES, FEWEST_GROUPS * classes) <= count <= classes + 1
    found: dict[str, Any] = {"groups": count, "fewest": fewest, "wanted": fewest_windows}
    found |= {"adapted": False, "enough": enough}
    of_group = np.array([_known_class(known[group == number]) for number in range(count)])
    named = of_group[of_group != UNKNOWN]
    distinct = len(np.unique(named)) == len(named)  # two groups known to be healthy leave a class without one
    codes = None  # (window,) the classes that the source's are moved to, by the matching or by the references alone
    if distinct and enough and classes >= FEWEST_CLASSES and fewest >= fewest_windows:
        matching = match(centres, space.centres, of_group)
        free = free_left(centres, space.centres)
        scatter = float(((space.centres - space.centres.mean(axis=0)) ** 2).sum())
        found |= {"fit": matching.fit, "margin": matching.margin, "free": 1 - free / scatter}
        single = len(np.unique(target.recording)) == classes == count  # no class can be taken for two
        clear = matching.fit > CLEAR_FIT and matching.margin > CLEAR_MARGIN
        clear = matching.fit > fit if count == classes else clear
        if clear and (single or matching.left <= MORE_LEFT * free):
            codes = matching.classes[group]
            counts = np.bincount(codes[codes != UNKNOWN], minlength=classes)
            shares = dict(zip(data.classes, (counts / counts.sum()).tolist(), strict=True))
            found |= {"adapted": True, "shares": shares}
            strange = np.isin(group, _strange(centres, space.centres, matching))
            if len(target.recording) and strange.any():
                found["unknown"] = np.unique(target.recording[strange]).tolist()
    if codes is None and (known != UNKNOWN).any():
        codes = known
        found |= {"adapted": True, "reference": True}
    if codes is not None:
        present = [int(code) for code in np.unique(codes) if code != UNKNOWN]
        offsets = {
            code: values[codes == code].mean(axis=0) - flat[source.labels == code].mean(axis=0) for code in present
        }
        common = np.mean(list(offsets.values()), axis=0)
        if "reference" in found:
            projected = space.project(np.stack([values.mean(axis=0), values.mean(axis=0) - common]))
            common = common * _common_share(centres[of_group == UNKNOWN], space.centres, projected[0] - projected[1])
        offsets |= {code: common for code in range(classes) if code not in offsets}
        data = _moved(data, offsets)
    return replace(data, findings={**data.findings, "moving": found})


def _moved(data: TrainingData, offsets: dict[int, NDArray[Any]]) -> TrainingData:
    parts = {}
    for name in ("source_train", "source_test"):
        part = getattr(data, name)
        values = part.values.copy()
        for code, offset in offsets.items():
            values[part.labels == code] += offset.reshape(values.shape[1:]).astype(values.dtype)
        parts[name] = replace(part, values=values)
    return replace(data, **parts)


def _known_class(codes: Integers) -> int:
    """The class that most of a group's windows are known to be of; UNKNOWN where none is."""
    known = codes[codes != UNKNOWN]
    return int(np.bincount(known).argmax()) if len(known) else UNKNOWN


def _strange(groups: Floats, centres: Floats, matching: Matching) -> Integers:
    """The groups that are left over and far from every class: their recordings show a fault the source lacks."""
    left_over = np.flatnonzero(matching.classes == UNKNOWN)
    distance = _squares(groups[left_over], centres, matching.offset).min(axis=1)
    usual = matching.left / (matching.classes != UNKNOWN).sum()
    return np.asarray(left_over[distance > STRANGE**2 * usual])


def _common_share(groups: Floats, centres: Floats, offset: Floats) -> float:
    """How much of the reference's offset the other classes share: all or nothing, by which the other groups lie nearer
    to classes; half where there are no other groups.
    """
    if not len(groups):
        return 0.5
    moved, unmoved = (_squares(groups, centres, each).min(axis=1).sum() for each in (offset, 0.0 * offset))
    return 1.0 if moved < unmoved else 0.0


def _squares(groups: Floats, centres: Floats, offset: Floats) -> Floats:
    """Squared distances (group, class) of groups from classes that are moved by the offset."""
    return np.asarray(((groups[:, None] - centres - offset) ** 2).sum(axis=2))


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
    variances, axes = principal(within)
    floor = SHRINKAGE * variances.sum() / scaled.shape[1]
    along = 1 / np.sqrt((1 - SHRINKAGE) * variances + floor) if floor > 0 else np.ones_like(variances)
    across = 1 / np.sqrt(floor) if floor > 0 else 1.0

    def whiten(points: Floats) -> Floats:
        return np.asarray(points * across + (points @ axes.T * (along - across)) @ axes)

    whitened = whiten(centres)
    middle = whitened.mean(axis=0)
    directions = principal(whitened - middle)[1][: classes - 1]

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
    group = _numbered(recording)
    centres = centres_of(points, group)
    if len(centres) > 1:
        spread = np.sqrt(((points - centres[group]) ** 2).sum(axis=1).mean())
        group = _numbered(fcluster(linkage(centres, "single"), apart * spread, "distance")[group])
    return group, centres_of(points, group)


def _numbered(names: NDArray[Any]) -> Integers:
    """The same groups, numbered from 0 on."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def centres_of(points: Floats, group: Integers) -> Floats:
    """The mean of each group's points, (group, axis)."""
    return np.array([points[group == number].mean(axis=0) for number in range(group.max() + 1)])


@dataclass(frozen=True, eq=False)
class Matching:
    """Groups and classes, each at most once: as many pairs as there are of the fewer."""

    classes: Integers  # (group,) of each; UNKNOWN for groups that are left over
    offset: Floats  # (axis,) from classes to their groups
    left: float  # Σ squared distances from groups to their classes, moved by the offset
    fit: float  # the share of the scatter of the matched classes that is repeated
    margin: float  # what the next matching leaves, as a multiple of what this leaves


def match(groups: Floats, centres: Floats, known: Integers) -> Matching:
    """The best matching of groups (group, axis) with classes (class, axis).

    known (group,) holds the classes that groups are known to be of, UNKNOWN elsewhere.
    """
    from scipy.optimize import linear_sum_assignment

    given = known[:, None] == np.arange(len(centres))
    forbidden = (known[:, None] != UNKNOWN) & ~given

    def one_to_one(distance: Floats) -> Integers:
        found, far = np.full(len(groups), UNKNOWN), distance.max() * len(groups) + 1
        rows, columns = linear_sum_assignment(np.where(forbidden, far, np.where(given, -2 * far, distance)))
        found[rows] = columns
        return found

    classes, left = _best_fit(groups, centres, one_to_one)
    paired = classes != UNKNOWN
    matched = centres[classes[paired]]
    scatter = ((matched - matched.mean(axis=0)) ** 2).sum()
    given_to = known != UNKNOWN
    others = [other for other in _changed(classes, len(centres)) if np.array_equal(other[given_to], known[given_to])]
    next_left = min((_left(groups, centres, other) for other in others), default=np.inf)
    margin = next_left / left if left > 0 else np.inf
    return Matching(classes, (groups[paired] - matched).mean(axis=0), left, float(1 - left / scatter), margin)


def _changed(classes: Integers, count: int) -> Iterator[Integers]:
    """The matchings that differ by one change: two groups change places, or a group takes a class nobody has."""
    for first in range(len(classes)):
        for second in range(first):
            if classes[first] != classes[second]:
                other = classes.copy()
                other[[first, second]] = classes[[second, first]]
                yield other
        if classes[first] != UNKNOWN:
            for unused in np.setdiff1d(np.arange(count), classes):
                other = classes.copy()
                other[first] = unused
                yield other


def _left(groups: Floats, centres: Floats, classes: Integers) -> float:
    """What these classes leave of the groups that have one, under the offset that is best for them."""
    paired = classes != UNKNOWN
    apart = groups[paired] - centres[classes[paired]]
    return float(((apart - apart.mean(axis=0)) ** 2).sum())


def free_left(groups: Floats, centres: Floats) -> float:
    """What is left where each group takes its nearest class: classes may be missing, and others have several."""
    return _best_fit(groups, centres, lambda distance: distance.argmin(axis=1))[1]


def _best_fit(groups: Floats, centres: Floats, assign: Callable[[Floats], Integers]) -> tuple[Integers, float]:
    """The classes that `assign` gives by squared distances (group, class), under the best offset, and what is left.

    The offset is found by turns with the assignment, from several starts.
    """
    starts = [groups.mean(axis=0) - centres.mean(axis=0), np.zeros(centres.shape[1])]
    starts += [group - centre for group in groups[:MOST_STARTS] for centre in centres]
    best, least = np.arange(len(groups)), np.inf
    for offset in starts:
        for _ in range(20):
            assigned = assign(_squares(groups, centres, offset))
            paired = assigned != UNKNOWN
            earlier, offset = offset, (groups[paired] - centres[assigned[paired]]).mean(axis=0)
            if np.allclose(earlier, offset):
                break
        left = _left(groups, centres, assigned)
        if left < least:
            best, least = assigned, left
    return best, least
