"""Group DRO, IRM, matching of specimens and SHOT's pseudo-labels the plain way: numpy, loops, one run, every window
present.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.special import log_softmax, softmax

from tests.reference.alignments import kernel_discrepancy, squared


def group_losses(logits: np.ndarray, labels: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    surprise = [-log_softmax(row)[label] for row, label in zip(logits, labels, strict=True)]
    own = [[each for each, group in zip(surprise, groups, strict=True) if group == number] for number in range(count)]
    return np.array([np.mean(each) if each else 0.0 for each in own])


def group_dro(batches: list[tuple[np.ndarray, np.ndarray, np.ndarray]], count: int, step: float) -> list[float]:
    """Algorithm 1 of Sagawa et al. 2020: the loss of each batch (logits, labels, groups), q uniform at first."""
    q, found = np.full(count, 1 / count), []
    for logits, labels, groups in batches:
        losses = group_losses(logits, labels, groups, count)
        q = q * np.exp(step * losses)
        q = q / q.sum()
        found.append(float((q * losses).sum()))
    return found


def invariance_penalty(logits: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    """The derivative by central difference."""

    def risk(own: np.ndarray, w: float) -> float:
        return float(np.mean([-log_softmax(w * logits[place])[labels[place]] for place in own]))

    slopes = []
    for group in set(groups.tolist()):
        own = np.flatnonzero(groups == group)
        slopes.append((risk(own, 1 + 1e-5) - risk(own, 1 - 1e-5)) / 2e-5)
    return float(np.mean(np.square(slopes)))


def cells(features: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features of the same class in two groups, for each class and pair of groups that have it."""
    return [
        (features[(labels == label) & (groups == first)], features[(labels == label) & (groups == second)])
        for label in set(labels.tolist())
        for first, second in combinations(sorted(set(groups[labels == label].tolist())), 2)
    ]


def moments_apart(features: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    """DomainBed's CORAL, the mean over classes and pairs of groups; a single window has no covariance."""

    def covariance(values: np.ndarray) -> np.ndarray:
        return np.cov(values.T) if len(values) > 1 else np.zeros((features.shape[1], features.shape[1]))

    found = []
    for one, other in cells(features, labels, groups):
        means = ((one.mean(axis=0) - other.mean(axis=0)) ** 2).mean()
        found.append(means + ((covariance(one) - covariance(other)) ** 2).mean())
    return float(np.mean(found)) if found else 0.0


def kernels_apart(features: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    """MMD, the mean over classes and pairs of groups, with the widths of the whole batch."""
    places = range(len(features))
    mean = np.mean([squared(features[i], features[j]) for i in places for j in places if i != j])
    widths = [[float(mean) * 2.0**power for power in (-2, -1, 0, 1, 2)]]
    found = [kernel_discrepancy([one], [other], widths) for one, other in cells(features, labels, groups)]
    return float(np.mean(found)) if found else 0.0


def information(logits: np.ndarray) -> float:
    def entropy(p: np.ndarray) -> float:
        return float(-(p * np.log(p)).sum())

    probabilities = softmax(logits, axis=1)
    return float(np.mean([entropy(row) for row in probabilities])) - entropy(probabilities.mean(axis=0))


def centroid_labels(features: np.ndarray, probabilities: np.ndarray, rounds: int = 2) -> list[int]:
    """Equations 4 and 5 of Liang et al. 2020; classes that no window is predicted as are left out, as in its code."""

    def cosine_distance(first: np.ndarray, second: np.ndarray) -> float:
        return 1 - float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))

    units = [row / np.linalg.norm(row) for row in features]
    known = sorted({int(row.argmax()) for row in probabilities})
    counts, labels = {label: [float(row[label]) for row in probabilities] for label in known}, []
    for _ in range(rounds):
        centres = {
            label: np.sum([share * unit for share, unit in zip(counts[label], units, strict=True)], axis=0)
            for label in known
            if sum(counts[label]) > 0
        }
        labels = [min(centres, key=lambda label: cosine_distance(unit, centres[label])) for unit in units]
        counts = {label: [float(own == label) for own in labels] for label in known}
    return labels
