"""Alignments, selection by share, views and TransCal the plain way: numpy, loops, one run, every window present."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog
from scipy.spatial.distance import cdist, pdist, squareform
from scipy.special import log_softmax, softmax
from torch import Tensor

from tests.reference.loop import density_ratio, published_temperature


def kernel_discrepancy(source: list[np.ndarray], target: list[np.ndarray], widths: list[list[float] | None]) -> float:
    """mean k(s, s') + mean k(t, t') − 2 mean k(s, t), k the product over layers of sums of Gaussians. Widths of None are
    the mean squared distance of pairs times ¼, ½, 1, 2, 4.
    """
    kernel, count = 1.0, len(source[0])
    for one, other, given in zip(source, target, widths, strict=True):
        pairs = pdist(np.concatenate([one, other]), "sqeuclidean")
        chosen = given or [pairs.mean() * 2.0**power for power in (-2, -1, 0, 1, 2)]
        kernel = kernel * sum(np.exp(-squareform(pairs) / width) for width in chosen)
    return float(kernel[:count, :count].mean() + kernel[count:, count:].mean() - 2 * kernel[:count, count:].mean())


def coral(source: np.ndarray, target: np.ndarray) -> float:
    gap = np.cov(source.T) - np.cov(target.T)
    return float((gap**2).sum() / (4 * source.shape[1] ** 2))


def least_transport(
    source: np.ndarray, labels: np.ndarray, target: np.ndarray, logits: np.ndarray, features: float, of_labels: float
) -> float:
    """The least mean cost of moving equal weights of source windows to equal weights of target ones, by linear
    programming.
    """
    cost = features * cdist(source, target, "sqeuclidean") - of_labels * log_softmax(logits, axis=1).T[labels]
    rows, columns = cost.shape
    sums = [np.kron(np.eye(rows), np.ones(columns)), np.kron(np.ones(rows), np.eye(columns))]
    totals = np.concatenate([np.full(rows, 1 / rows), np.full(columns, 1 / columns)])
    return float(linprog(cost.ravel(), A_eq=np.concatenate(sums), b_eq=totals).fun)


def triplet(features: np.ndarray, labels: list[int], counts: list[bool], margin: float) -> float:
    found, distance = [], cdist(features, features)
    places = [place for place, count in enumerate(counts) if count]
    for anchor in places:
        away = {other: distance[anchor, other] for other in places if other != anchor}
        same = [length for other, length in away.items() if labels[other] == labels[anchor]]
        different = [length for other, length in away.items() if labels[other] != labels[anchor]]
        if same and different:
            found.append(max(0.0, max(same) - min(different) + margin))
    return float(np.mean(found)) if found else 0.0


def uniformity(logits: np.ndarray) -> float:
    mean = softmax(logits, axis=1).mean(axis=0)
    share = 1 / len(mean)
    return float(np.mean([-share * np.log(p) - (1 - share) * np.log(1 - p) for p in mean]))


def transcal_accuracy(right: np.ndarray, weights: np.ndarray, source_confidence: float, power: float) -> float:
    """The estimated target accuracy: right (window,) of 1 and 0, importance weights (window,)."""
    weight, error = weights**power, 1 - right
    weighted = weight * error
    first = -np.cov(weighted, weight)[0, 1] / np.var(weight, ddof=1)
    controlled = weighted + first * (weight - 1)
    second = -np.cov(controlled, right)[0, 1] / np.var(right, ddof=1)
    return float(1 - (weighted.mean() + first * (weight.mean() - 1) + second * (right.mean() - source_confidence)))


def transcal_gap(
    source_logits: Tensor, source_labels: Tensor, source_features: Tensor,
    source_train_features: Tensor, target_features: Tensor, target_logits: Tensor,
) -> Callable[[float, float], float]:  # fmt: skip
    """What TransCal makes small by temperature and power, for domains of as many training windows."""
    weights = density_ratio(source_train_features, target_features, source_features).numpy()
    alone = published_temperature(source_logits, source_labels)
    right = (source_logits.argmax(dim=1) == source_labels).double().numpy()

    def confidence(logits: Tensor, temperature: float) -> float:
        return float((logits / temperature).softmax(dim=1).amax(dim=1).mean())

    def gap(temperature: float, power: float) -> float:
        expected = transcal_accuracy(right, weights, confidence(source_logits, alone), power)
        return abs(confidence(target_logits, temperature) - expected)

    return gap


def band_stopped(window: np.ndarray, first: int, width: int) -> np.ndarray:
    """The window less its projection on the sines and cosines of these lines."""
    angles = 2 * np.pi * np.outer(np.arange(len(window)), np.arange(first, first + width)) / len(window)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return window - waves @ np.linalg.lstsq(waves, window)[0]
