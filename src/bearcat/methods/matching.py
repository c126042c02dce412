"""Matching clusters of the target's recordings with the source's classes, and shifting each class to its cluster.

Shares of classes do not matter to it, as classes are shifted one by one. Windows are brought to the space in which the
source's classes are farthest apart for their spread (regularised linear discriminants). There, a change of speed, load
or machine shifts all classes by about the same offset. Recordings of the target that lie together form a cluster.
Clusters are matched with classes, each to one, under the best offset; the fit is the share of the classes' arrangement
that the clusters repeat, the margin how much worse the next matching is. A few clusters cannot distinguish an offset
from a fault: then nothing is shifted and the model is the unadapted one (docs/protocol.md has the measurements).

Where a class is a type of fault with several unlike recordings, its recordings are states of their own: clusters are
matched with states, a class may own several of them, and the margin is to the next matching of clusters with *classes*.
Recordings that physics is certain of, or that the user names, are matched with states of their class alone. Such a
matching is used only if the states explain the target better where they are shifted (`likelihood_gain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.cat.ingredient import BeforeTraining, Prepared, TargetFinding
from bearcat.data.recording import Integers
from bearcat.data.tasks import UNKNOWN, TrainingData
from bearcat.diagnosis.accuracy import principal
from bearcat.findings import count
from bearcat.methods.transforms import Floats, States, source_states

SHRINKAGE = 0.1  # of the spread within classes towards equal spread in all directions
MOST_WINDOWS = 4000  # of the source, to find the space
APART = 0.6  # recordings nearer than this, in windows' distances from their centre, are one cluster
FEWEST_WINDOWS = 10  # of a cluster: the centre of fewer is not known well enough to shift a class there
MOST_STARTS = 12  # clusters whose distances from the classes are tried as offsets
FIT = 1 / 3  # of as many clusters as classes, from which on they are matched
# Where the target has fewer clusters than the source classes, or one more, more is asked of a matching.
CLEAR_FIT, CLEAR_MARGIN = 2 / 3, 1.05
# Clusters of several recordings may be two of one class. Then what the matching leaves over may be this many times what
# is left where classes may be missing.
MORE_LEFT = 1.5
FEWEST_CLASSES = 3  # two clusters are matched with two classes by their order alone, which an offset hides
FEWEST_CLUSTERS = 0.6  # of the number of classes
ROUNDS = 50  # of EM
LEAST_SHARE = 1e-6  # of a state in EM
STRANGE = 2.0  # distance of an unmatched cluster from the nearest class, in those of matched ones: it is unknown


@dataclass(frozen=True)
class MatchClusters(BeforeTraining):
    """Matches clusters of the target's recordings with the source's classes, and shifts each class to its cluster."""

    name = "matching"

    def prepare(self, data: TrainingData) -> Prepared:
        """The data with the source's windows shifted where the matching is clear, and what was found."""
        source, target, classes = data.source_train, data.target_train, len(data.classes)
        flat, values = source.values.reshape(len(source), -1), target.values.reshape(len(target), -1)
        states, unknown = source_states(data), np.full(len(target), UNKNOWN)
        project, states_at = discriminant_space(flat, states)
        cluster, centres = clustered(project(values), target.recording)
        reference = target.reference if len(target.reference) else unknown
        anchor = target.anchor if states.several and len(target.anchor) else unknown
        of_reference, certain = (
            np.array([_only_class(codes[cluster == number]) for number in range(len(centres))])
            for codes in (reference, anchor)
        )
        known, windows = np.where(of_reference == UNKNOWN, certain, of_reference), np.bincount(cluster)
        found, fit = count(len(centres), "target cluster"), None
        codes = None  # (window,) the states that the source's are shifted to, by the matching or by the references
        # No state is left for one of several clusters that are known to be of one class, such as two that are healthy.
        enough = all((known == code).sum() <= (states.owner == code).sum() for code in range(classes))
        if enough and comparable(len(centres), states, anchored=bool((certain != UNKNOWN).any())):
            matching = match(centres, states_at, known, states.owner)
            nearest = _best_fit(centres, states_at, lambda distance: distance.argmin(axis=1))[1]
            single = len(np.unique(target.recording)) == classes == len(centres)  # no class can be taken for two
            # Clusters of a few windows, or of types with several states, are matched where both are clear.
            plain = windows.min() >= FEWEST_WINDOWS and not states.several
            clear = matching.fit > CLEAR_FIT and matching.margin > CLEAR_MARGIN
            clear = matching.fit > FIT if len(centres) == classes and plain else clear
            clear = clear and (single or matching.left <= MORE_LEFT * nearest)
            fit = matching.fit
            possible = (known[:, None] == UNKNOWN) | (known[:, None] == states.owner)
            if clear and (plain or likelihood_gain(centres, states_at, matching.offset, 1 / windows, possible) > 0):
                codes = matching.states[cluster]
                strange = np.isin(cluster, _strange(centres, states_at, matching))
                strangers = tuple(np.unique(target.recording[strange]).tolist())
                of = f"{len(states.owner)} source recordings of " if states.several else "the "
                sentence = f"Adapted: {found} match {of}{classes} source classes (fit {fit:.2f})."
                sentence += f" Recordings that match no class: {len(strangers)}." if strangers else ""
                finding = TargetFinding(True, sentence, strangers)
        by_reference = codes is None and bool((reference != UNKNOWN).any())
        if by_reference:
            states, codes = States.of_classes(data), reference
            sentence = "Adapted: the source classes were shifted by the offset of the reference recordings."
            finding = TargetFinding(True, sentence)
        if codes is None:
            reason = f"{found} and {classes} source classes cannot distinguish a machine change from a fault."
            if fit is not None:
                reason = f"{found} do not clearly match the {classes} source classes (fit {fit:.2f})."
            name = "Name healthy target recordings (--reference)."
            sentence = f"Not adapted, so the model is that of the source alone: {reason} {name}"
            return Prepared(data, finding=TargetFinding(False, sentence))

        offsets = {
            code: values[codes == code].mean(axis=0) - flat[states.train == code].mean(axis=0)
            for code in np.unique(codes[codes != UNKNOWN]).tolist()
        }
        common = np.mean(list(offsets.values()), axis=0)
        if by_reference:
            before, after = project(np.stack([values.mean(axis=0), values.mean(axis=0) - common]))
            common = common * _common_share(centres[of_reference == UNKNOWN], states_at, before - after)
        else:  # a few windows say of which class they are, but not how far it has shifted
            offsets = {code: offset for code, offset in offsets.items() if (codes == code).sum() >= FEWEST_WINDOWS}
        return Prepared(_shifted(data, states, offsets, common), finding=finding)


def comparable(clusters: int, states: States, anchored: bool) -> bool:
    """Whether there are enough clusters, and not too many, to be matched with the classes or their states."""
    count = len(states.owner)
    if states.several:  # one that physics is certain of says which way the others have shifted
        return FEWEST_CLASSES - anchored <= clusters <= count + 1
    return count >= FEWEST_CLASSES and max(FEWEST_CLASSES, FEWEST_CLUSTERS * count) <= clusters <= count + 1


def _shifted(
    data: TrainingData, states: States, offsets: Mapping[int, NDArray[Any]], common: NDArray[Any]
) -> TrainingData:
    """With an offset (point,) added to each state of the source; by default that of its class on average, or of all."""
    parts = []
    for part, state in ((data.source_train, states.train), (data.source_test, states.test)):
        parts.append(replace(part, values=part.values.copy()))
        for code in range(len(data.classes)):
            of_class = [offset for number, offset in offsets.items() if states.owner[number] == code]
            usual = np.mean(of_class, axis=0) if of_class else common
            for number in np.unique(state[part.labels == code]).tolist():
                offset = offsets.get(number, usual).reshape(part.values.shape[1:]).astype(part.values.dtype)
                parts[-1].values[(part.labels == code) & (state == number)] += offset
    return replace(data, source_train=parts[0], source_test=parts[1])


def _only_class(codes: Integers) -> int:
    """The one class that a cluster's windows are known to be of; UNKNOWN where there is none, or several."""
    classes = np.unique(codes[codes != UNKNOWN])
    return int(classes[0]) if len(classes) == 1 else UNKNOWN


def likelihood_gain(
    clusters: Floats, centres: Floats, offset: Floats, noise: Floats, possible: NDArray[np.bool_]
) -> float:
    """How much better shifted states explain the clusters (cluster, axis) than unshifted ones: the difference of their
    log-likelihoods less half the logarithm of the number of clusters for each axis of the offset (BIC).

    A cluster belongs to one of the states (state, axis) with free shares and scatters around it alike in all axes, at
    least by the noise (cluster,) of a mean of windows; `possible` (cluster, state) leaves out what a cluster is known
    not to be. Shares, scatter and the offset, from this one on, are by EM.
    """
    floor, axes = float(np.mean(noise)), clusters.shape[1]

    def likelihood(shift: Floats, free: bool) -> float:
        distance = np.where(possible, _squares(clusters, centres, shift), np.inf)
        variance = max(float(distance.min(axis=1).mean()) / axes, floor)
        shares = np.full(len(centres), 1 / len(centres))
        for _ in range(ROUNDS):
            joint = np.log(shares) - distance / (2 * variance) - axes / 2 * np.log(2 * np.pi * variance)
            total = np.logaddexp.reduce(joint, axis=1)
            likely = np.exp(joint - total[:, None])  # (cluster, state)
            shares = np.maximum(likely.mean(axis=0), LEAST_SHARE)
            shares = shares / shares.sum()
            if free:
                shift = (clusters - likely @ centres).mean(axis=0)
            squares = _squares(clusters, centres, shift)
            distance = np.where(possible, squares, np.inf)
            variance = max(float((likely * squares).sum()) / clusters.size, floor)
        return float(total.sum())

    penalty = axes / 2 * np.log(len(clusters))
    return likelihood(offset, True) - likelihood(np.zeros(axes), False) - float(penalty)


def _strange(clusters: Floats, centres: Floats, matching: Matching) -> Integers:
    """The clusters that are left over and far from every class: their recordings show a fault the source lacks."""
    left_over = np.flatnonzero(matching.states == UNKNOWN)
    distance = _squares(clusters[left_over], centres, matching.offset).min(axis=1)
    usual = matching.left / (matching.states != UNKNOWN).sum()
    return np.asarray(left_over[distance > STRANGE**2 * usual])


def _common_share(clusters: Floats, centres: Floats, offset: Floats) -> float:
    """How much of the reference's offset other classes share: 1 or 0, what suits the other clusters; ½ without any."""
    if not len(clusters):
        return 0.5
    shifted, unshifted = (_squares(clusters, centres, by).min(axis=1).sum() for by in (offset, 0.0 * offset))
    return 1.0 if shifted < unshifted else 0.0


def _squares(clusters: Floats, centres: Floats, offset: Floats) -> Floats:
    """Squared distances (cluster, class) of clusters from classes that are shifted by the offset."""
    return np.asarray(((clusters[:, None] - centres - offset) ** 2).sum(axis=2))


def discriminant_space(values: NDArray[Any], states: States) -> tuple[Callable[[NDArray[Any]], Floats], Floats]:
    """The space in which the source's windows (window, point) differ most by state: how windows are brought there,
    (window, axis), and the states' centres there, (state, axis).
    """
    count = len(states.owner)
    members = [np.flatnonzero(states.train == code) for code in range(count)]
    sizes = [min(len(rows), MOST_WINDOWS // count) for rows in members]
    used = np.concatenate(
        [rows[np.linspace(0, len(rows) - 1, size).astype(int)] for rows, size in zip(members, sizes, strict=True)]
    )
    values, labels = values[used].astype(np.float64), states.train[used]
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation = np.where(deviation > 1e-6 * np.abs(mean), deviation, 1.0)
    scaled = (values - mean) / deviation
    centres = np.array([scaled[labels == code].mean(axis=0) for code in range(count)])
    within = (scaled - centres[labels]) / np.sqrt(max(1, len(scaled) - count))
    variances, axes = principal(within)
    floor = SHRINKAGE * variances.sum() / scaled.shape[1]
    along = 1 / np.sqrt((1 - SHRINKAGE) * variances + floor) if floor > 0 else np.ones_like(variances)
    across = 1 / np.sqrt(floor) if floor > 0 else 1.0

    def whiten(points: Floats) -> Floats:
        return np.asarray(points * across + (points @ axes.T * (along - across)) @ axes)

    whitened = whiten(centres)
    middle = whitened.mean(axis=0)
    directions = principal(whitened - middle)[1][: count - 1]

    def project(points: NDArray[Any]) -> Floats:
        return np.asarray((whiten((points - mean) / deviation) - middle) @ directions.T)

    return project, (whitened - middle) @ directions.T


def clustered(points: Floats, recording: Integers) -> tuple[Integers, Floats]:
    """Clusters of recordings, (window,), and their centres; all are one cluster where recordings are not known.

    Two recordings are of one cluster if their centres are nearer than APART times the windows' distance from their
    own centre (root mean square), or by way of others.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    cluster, centres = _numbered(recording if len(recording) else np.zeros(len(points)), points)
    if len(centres) == 1:
        return cluster, centres
    spread = np.sqrt(((points - centres[cluster]) ** 2).sum(axis=1).mean())
    return _numbered(fcluster(linkage(centres, "single"), APART * spread, "distance")[cluster], points)


def _numbered(names: NDArray[Any], points: Floats) -> tuple[Integers, Floats]:
    """The same clusters, numbered from 0 on, and the mean of each one's points, (cluster, axis)."""
    cluster = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return cluster, np.array([points[cluster == number].mean(axis=0) for number in range(cluster.max() + 1)])


@dataclass(frozen=True, eq=False)
class Matching:
    """Clusters and states, each at most once: as many pairs as there are of the fewer."""

    states: Integers  # (cluster,) of each; UNKNOWN for clusters that are left over
    offset: Floats  # (axis,) from states to their clusters
    left: float  # Σ squared distances from clusters to their states, shifted by the offset
    fit: float  # the share of the scatter of the matched states that is repeated
    margin: float  # what the next matching leaves, as a multiple of what this leaves


def match(clusters: Floats, centres: Floats, known: Integers, owner: Integers) -> Matching:
    """The best matching of clusters (cluster, axis) with states (state, axis) of the classes `owner` (state,). The next
    matching is the best that gives a cluster to another class.

    known (cluster,) holds the classes that clusters are known to be of, UNKNOWN elsewhere.
    """
    from scipy.optimize import linear_sum_assignment

    required = known[:, None] == owner
    forbidden = (known[:, None] != UNKNOWN) & ~required

    def one_to_one(distance: Floats) -> Integers:
        matched, far = np.full(len(clusters), UNKNOWN), distance.max() * len(clusters) + 1
        rows, columns = linear_sum_assignment(np.where(forbidden, far, distance - 2 * far * required))
        matched[rows] = columns
        return matched

    def owners(states: Integers) -> Integers:
        return np.where(states == UNKNOWN, UNKNOWN, owner[states])

    states, left = _best_fit(clusters, centres, one_to_one)
    paired = states != UNKNOWN
    matched = centres[states[paired]]
    scatter = ((matched - matched.mean(axis=0)) ** 2).sum()
    certain, next_left = known != UNKNOWN, np.inf
    for other in _changed(states, len(centres)):
        classes = owners(other)
        if np.array_equal(classes[certain], known[certain]) and not np.array_equal(classes, owners(states)):
            next_left = min(next_left, _left(clusters, centres, other))
    margin = next_left / left if left > 0 else np.inf
    fit = float(1 - left / scatter) if scatter > 0 else 0.0
    return Matching(states, (clusters[paired] - matched).mean(axis=0), left, fit, margin)


def _changed(states: Integers, count: int) -> Iterator[Integers]:
    """The matchings that differ by one change: two clusters change places, or a cluster takes a state nobody has."""
    for first in range(len(states)):
        for second in range(first):
            if states[first] != states[second]:
                other = states.copy()
                other[[first, second]] = states[[second, first]]
                yield other
        if states[first] != UNKNOWN:
            for unused in np.setdiff1d(np.arange(count), states):
                other = states.copy()
                other[first] = unused
                yield other


def _left(clusters: Floats, centres: Floats, classes: Integers) -> float:
    """What these classes leave of the clusters that have one, under the offset that is best for them."""
    paired = classes != UNKNOWN
    apart = clusters[paired] - centres[classes[paired]]
    return float(((apart - apart.mean(axis=0)) ** 2).sum())


def _best_fit(clusters: Floats, centres: Floats, assign: Callable[[Floats], Integers]) -> tuple[Integers, float]:
    """The classes that `assign` gives by squared distances (cluster, class), under the best offset, and what is left.

    The offset is found by turns with the assignment, from several starts.
    """
    starts = [clusters.mean(axis=0) - centres.mean(axis=0), np.zeros(centres.shape[1])]
    starts += [cluster - centre for cluster in clusters[:MOST_STARTS] for centre in centres]
    best, least = np.arange(len(clusters)), np.inf
    for offset in starts:
        for _ in range(20):
            assigned = assign(_squares(clusters, centres, offset))
            paired = assigned != UNKNOWN
            earlier, offset = offset, (clusters[paired] - centres[assigned[paired]]).mean(axis=0)
            if np.allclose(earlier, offset):
                break
        left = _left(clusters, centres, assigned)
        if left < least:
            best, least = assigned, left
    return best, least
