"""What is done to the windows before training: standardising them, and shifting classes to the target's clusters.

Levels of a physical input differ between speeds, loads and machines by an offset and a factor in each point. Where the
target holds the source's classes in the source's shares, standardising each domain by itself removes both; where it
does not (a target that is all healthy), it shifts healthy windows to the source's faults, and `by="source"`, which
adapts nothing, is the safe choice.

Matching clusters shifts the classes one by one, so the shares do not matter. Windows are brought to the space in which
the source's classes are farthest apart for their spread (regularised linear discriminants). There, a change of speed,
load or machine shifts all classes by about the same offset. Recordings of the target that lie together form a cluster.
Clusters are matched with classes, each to one, under the best offset; the fit is the share of the classes' arrangement
that the clusters repeat, the margin how much worse the next matching is. A few clusters cannot distinguish an offset
from a fault: then nothing is shifted and the model is the unadapted one (docs/plant.md has the measurements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError
from bearcat.methods.ingredient import BeforeTraining, Deferred, Finding, Prepared, choice

if TYPE_CHECKING:
    import torch

    from bearcat.data import tasks
    from bearcat.models import networks
    from bearcat.trust import checks
else:
    torch, networks = Deferred("torch"), Deferred("bearcat.models.networks")
    tasks, checks = Deferred("bearcat.data.tasks"), Deferred("bearcat.trust.checks")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHRINKAGE = 0.1  # of the spread within classes towards equal spread in all directions
MOST_WINDOWS = 4000  # of the source, to find the space
MOST_STARTS = 12  # clusters whose distances from the classes are tried as offsets
# Clusters of several recordings may be two of one class. Then what the matching leaves over may be this many times what
# is left where classes may be missing (docs/plant.md).
MORE_LEFT = 1.5
FEWEST_CLASSES = 3  # two clusters are matched with two classes by their order alone, which an offset hides
# Where the target has fewer clusters than the source classes, or one more, more is asked of a matching.
FEWEST_CLUSTERS = 0.6  # of the number of classes
CLEAR_FIT, CLEAR_MARGIN = 2 / 3, 1.05
STRANGE = 2.0  # distance of an unmatched cluster from the nearest class, in those of matched ones: it is unknown


@dataclass(frozen=True)
class Standardise(BeforeTraining):
    """Shifts and scales the points of prepared windows; the model keeps how."""

    name = "standardise"
    by: str = choice("source", "domain", default="domain")

    @property
    def adapts(self) -> bool:
        return self.by == "domain"

    def prepare(self, data: tasks.TrainingData) -> Prepared:
        """The model scales by the target's statistics; the source is shifted so that this scales it by its own."""
        parts = data.source_train, data.source_test
        mean, deviation = _statistics(parts[0].values if self.by == "source" else data.target_train.values)
        if self.by == "domain":
            shifted = [part.values.copy() for part in parts]
            domains = [part.domain if len(part.domain) else np.zeros(len(part)) for part in parts]
            for domain in np.unique(domains[0]):
                own_mean, own_deviation = _statistics(parts[0].values[domains[0] == domain])
                for values, of_window in zip(shifted, domains, strict=True):
                    members = of_window == domain
                    values[members] = (values[members] - own_mean) / own_deviation * deviation + mean
            train, test = (replace(part, values=values) for part, values in zip(parts, shifted, strict=True))
            data = replace(data, source_train=train, source_test=test)
        scaling = networks.InputScaling(torch.from_numpy(mean)[None], torch.from_numpy(1 / deviation)[None])
        return Prepared(data, scaling)


def _statistics(values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and deviation of each point, (channel, point); a point that never changes keeps its scale."""
    mean, deviation = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
    constant = deviation <= 1e-6 * np.abs(mean)
    return mean.astype(np.float32), np.where(constant, 1, deviation).astype(np.float32)


@dataclass(frozen=True)
class MatchClusters(BeforeTraining):
    """Matches clusters of the target's recordings with the source's classes, and shifts each class to its cluster."""

    name = "matching"
    apart: float = 0.6  # recordings nearer than this, in windows' distances from their centre, are one cluster
    fit: float = 1 / 3  # of the clusters to the classes, from which on they are matched
    windows: int = 10  # of each cluster at least: the centre of fewer is not known well enough to shift a class there

    def __post_init__(self) -> None:
        if self.apart < 0 or not 0 <= self.fit <= 1 or self.windows < 1:
            raise InputError(
                "matching.apart must not be negative, matching.fit between 0 and 1, matching.windows positive"
            )

    def prepare(self, data: tasks.TrainingData) -> Prepared:
        """The data with the source's windows shifted where the matching is clear, and what was found."""
        source, target, classes = data.source_train, data.target_train, len(data.classes)
        flat, values = source.values.reshape(len(source), -1), target.values.reshape(len(target), -1)
        known = target.reference if len(target.reference) else np.full(len(target), tasks.UNKNOWN)
        space = discriminant_space(flat, source.labels, classes)
        cluster, centres = clustered(space.project(values), target.recording, classes, self.apart)
        count, fewest = len(centres), int(np.bincount(cluster).min())
        finding = ClusterMatch(
            adapted=False, clusters=count, classes=classes, fewest_windows=fewest, wanted_windows=self.windows
        )
        of_cluster = np.array([_known_class(known[cluster == number]) for number in range(count)])
        named = of_cluster[of_cluster != tasks.UNKNOWN]
        distinct = len(np.unique(named)) == len(named)  # two clusters known to be healthy leave a class without one
        codes = None  # (window,) the classes that the source's are shifted to, by the matching or by the references
        if distinct and finding.comparable and fewest >= self.windows:
            matching = match(centres, space.centres, of_cluster)
            free = _best_fit(centres, space.centres, lambda distance: distance.argmin(axis=1))[1]  # the nearest class
            scatter = float(((space.centres - space.centres.mean(axis=0)) ** 2).sum())
            finding = replace(finding, fit=matching.fit, margin=matching.margin, free=1 - free / scatter)
            single = len(np.unique(target.recording)) == classes == count  # no class can be taken for two
            clear = matching.fit > CLEAR_FIT and matching.margin > CLEAR_MARGIN
            clear = matching.fit > self.fit if count == classes else clear
            if clear and (single or matching.left <= MORE_LEFT * free):
                codes = matching.classes[cluster]
                counts = np.bincount(codes[codes != tasks.UNKNOWN], minlength=classes)
                shares = dict(zip(data.classes, (counts / counts.sum()).tolist(), strict=True))
                strange = np.isin(cluster, _strange(centres, space.centres, matching))
                unknown = np.unique(target.recording[strange]).tolist() if len(target.recording) else []
                finding = replace(finding, adapted=True, shares=shares, unknown=tuple(unknown))
        if codes is None and (known != tasks.UNKNOWN).any():
            codes = known
            finding = replace(finding, adapted=True, reference=True)
        if codes is not None:
            present = [int(code) for code in np.unique(codes) if code != tasks.UNKNOWN]
            offsets = {
                code: values[codes == code].mean(axis=0) - flat[source.labels == code].mean(axis=0) for code in present
            }
            common = np.mean(list(offsets.values()), axis=0)
            if finding.reference:
                projected = space.project(np.stack([values.mean(axis=0), values.mean(axis=0) - common]))
                others = centres[of_cluster == tasks.UNKNOWN]
                common = common * _common_share(others, space.centres, projected[0] - projected[1])
            offsets |= {code: common for code in range(classes) if code not in offsets}
            data = _shifted(data, offsets)
        return Prepared(data, finding=finding)


@dataclass(frozen=True, kw_only=True)
class ClusterMatch(Finding):
    """What matching the target's clusters of recordings with the source's classes found."""

    clusters: int
    classes: int
    fewest_windows: int  # of a cluster
    wanted_windows: int
    reference: bool = False  # adapted by recordings of known class, not by the matching
    fit: float | None = None  # share of the classes' arrangement that the clusters repeat; None: not matched
    free: float | None = None  # the fit where classes may be missing and others have several clusters
    margin: float | None = None  # what the next matching leaves, as a multiple of what this one leaves
    shares: Mapping[str, float] | None = None  # of the target's windows, by the classes they are matched with

    @property
    def comparable(self) -> bool:
        """Whether there are enough clusters, and not too many, to be matched with the classes."""
        fewest = max(FEWEST_CLASSES, FEWEST_CLUSTERS * self.classes)
        return self.classes >= FEWEST_CLASSES and fewest <= self.clusters <= self.classes + 1

    @property
    def sentence(self) -> str:
        clusters = f"{self.clusters} target cluster{'s' if self.clusters > 1 else ''}"
        if self.reference:
            return "Adapted: the source classes were shifted by the offset of the reference recordings."
        if self.adapted:
            matched, others = f"the {self.classes} source classes", ""
            if self.clusters < self.classes:
                matched, others = f"{self.clusters} of {self.classes} source classes", "; the others shift with them"
            elif self.clusters > self.classes:
                clusters = f"{self.classes} of {clusters}"
            unknown = f" Recordings that match no class: {len(self.unknown)}." if self.unknown else ""
            return f"Adapted: {clusters} match {matched} (fit {self.fit:.2f}){others}.{unknown}"
        reason = (
            f"{clusters} and {self.classes} source classes cannot distinguish a machine change from a fault. Name"
            " healthy target recordings (--reference)."
        )
        if self.fit is not None:
            reason = f"{clusters} do not clearly match the {self.classes} source classes (fit {self.fit:.2f})."
        elif self.comparable and self.fewest_windows < self.wanted_windows:
            needed = f"and {self.wanted_windows} are needed"
            reason = f"the smallest target cluster has {self.fewest_windows} windows, {needed}."
        return f"Not adapted: {reason}"


def _shifted(data: tasks.TrainingData, offsets: dict[int, NDArray[Any]]) -> tasks.TrainingData:
    """With an offset (point,) added to the source's windows of each class."""
    parts = []
    for part in (data.source_train, data.source_test):
        parts.append(replace(part, values=part.values.copy()))
        for code, offset in offsets.items():
            parts[-1].values[part.labels == code] += offset.reshape(part.values.shape[1:]).astype(part.values.dtype)
    return replace(data, source_train=parts[0], source_test=parts[1])


def _known_class(codes: Integers) -> int:
    """The class that most of a cluster's windows are known to be of; UNKNOWN where none is."""
    known = codes[codes != tasks.UNKNOWN]
    return int(np.bincount(known).argmax()) if len(known) else tasks.UNKNOWN


def _strange(clusters: Floats, centres: Floats, matching: Matching) -> Integers:
    """The clusters that are left over and far from every class: their recordings show a fault the source lacks."""
    left_over = np.flatnonzero(matching.classes == tasks.UNKNOWN)
    distance = _squares(clusters[left_over], centres, matching.offset).min(axis=1)
    usual = matching.left / (matching.classes != tasks.UNKNOWN).sum()
    return np.asarray(left_over[distance > STRANGE**2 * usual])


def _common_share(clusters: Floats, centres: Floats, offset: Floats) -> float:
    """How much of the reference's offset the other classes share: all or nothing, whichever brings the other clusters
    nearer to classes; half where there are none.
    """
    if not len(clusters):
        return 0.5
    shifted, unshifted = (_squares(clusters, centres, each).min(axis=1).sum() for each in (offset, 0.0 * offset))
    return 1.0 if shifted < unshifted else 0.0


def _squares(clusters: Floats, centres: Floats, offset: Floats) -> Floats:
    """Squared distances (cluster, class) of clusters from classes that are shifted by the offset."""
    return np.asarray(((clusters[:, None] - centres - offset) ** 2).sum(axis=2))


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
    variances, axes = checks.principal(within)
    floor = SHRINKAGE * variances.sum() / scaled.shape[1]
    along = 1 / np.sqrt((1 - SHRINKAGE) * variances + floor) if floor > 0 else np.ones_like(variances)
    across = 1 / np.sqrt(floor) if floor > 0 else 1.0

    def whiten(points: Floats) -> Floats:
        return np.asarray(points * across + (points @ axes.T * (along - across)) @ axes)

    whitened = whiten(centres)
    middle = whitened.mean(axis=0)
    directions = checks.principal(whitened - middle)[1][: classes - 1]

    def project(points: NDArray[Any]) -> Floats:
        return np.asarray((whiten((points - mean) / deviation) - middle) @ directions.T)

    return Space(project, (whitened - middle) @ directions.T)


def clustered(points: Floats, recording: Integers, classes: int, apart: float) -> tuple[Integers, Floats]:
    """Clusters of recordings, (window,), and their centres; without recordings, as many of windows as classes.

    Two recordings are of one cluster if their centres are nearer than `apart` times the windows' distance from their
    own centre (root mean square), or by way of others.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.cluster.vq import kmeans2

    if not len(recording):
        return _numbered(kmeans2(points, classes, minit="++", seed=0, missing="warn")[1], points)
    cluster, centres = _numbered(recording, points)
    if len(centres) == 1:
        return cluster, centres
    spread = np.sqrt(((points - centres[cluster]) ** 2).sum(axis=1).mean())
    return _numbered(fcluster(linkage(centres, "single"), apart * spread, "distance")[cluster], points)


def _numbered(names: NDArray[Any], points: Floats) -> tuple[Integers, Floats]:
    """The same clusters, numbered from 0 on, and the mean of each one's points, (cluster, axis)."""
    cluster = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return cluster, np.array([points[cluster == number].mean(axis=0) for number in range(cluster.max() + 1)])


@dataclass(frozen=True, eq=False)
class Matching:
    """Clusters and classes, each at most once: as many pairs as there are of the fewer."""

    classes: Integers  # (cluster,) of each; UNKNOWN for clusters that are left over
    offset: Floats  # (axis,) from classes to their clusters
    left: float  # Σ squared distances from clusters to their classes, shifted by the offset
    fit: float  # the share of the scatter of the matched classes that is repeated
    margin: float  # what the next matching leaves, as a multiple of what this leaves


def match(clusters: Floats, centres: Floats, known: Integers) -> Matching:
    """The best matching of clusters (cluster, axis) with classes (class, axis).

    known (cluster,) holds the classes that clusters are known to be of, UNKNOWN elsewhere.
    """
    from scipy.optimize import linear_sum_assignment

    given = known[:, None] == np.arange(len(centres))
    forbidden = (known[:, None] != tasks.UNKNOWN) & ~given

    def one_to_one(distance: Floats) -> Integers:
        found, far = np.full(len(clusters), tasks.UNKNOWN), distance.max() * len(clusters) + 1
        rows, columns = linear_sum_assignment(np.where(forbidden, far, np.where(given, -2 * far, distance)))
        found[rows] = columns
        return found

    classes, left = _best_fit(clusters, centres, one_to_one)
    paired = classes != tasks.UNKNOWN
    matched = centres[classes[paired]]
    scatter = ((matched - matched.mean(axis=0)) ** 2).sum()
    given_to = known != tasks.UNKNOWN
    others = [other for other in _changed(classes, len(centres)) if np.array_equal(other[given_to], known[given_to])]
    next_left = min((_left(clusters, centres, other) for other in others), default=np.inf)
    margin = next_left / left if left > 0 else np.inf
    return Matching(classes, (clusters[paired] - matched).mean(axis=0), left, float(1 - left / scatter), margin)


def _changed(classes: Integers, count: int) -> Iterator[Integers]:
    """The matchings that differ by one change: two clusters change places, or a cluster takes a class nobody has."""
    for first in range(len(classes)):
        for second in range(first):
            if classes[first] != classes[second]:
                other = classes.copy()
                other[[first, second]] = classes[[second, first]]
                yield other
        if classes[first] != tasks.UNKNOWN:
            for unused in np.setdiff1d(np.arange(count), classes):
                other = classes.copy()
                other[first] = unused
                yield other


def _left(clusters: Floats, centres: Floats, classes: Integers) -> float:
    """What these classes leave of the clusters that have one, under the offset that is best for them."""
    paired = classes != tasks.UNKNOWN
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
            paired = assigned != tasks.UNKNOWN
            earlier, offset = offset, (clusters[paired] - centres[assigned[paired]]).mean(axis=0)
            if np.allclose(earlier, offset):
                break
        left = _left(clusters, centres, assigned)
        if left < least:
            best, least = assigned, left
    return best, least
