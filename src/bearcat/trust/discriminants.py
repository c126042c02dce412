"""Linear discriminants: axes along which labelled classes differ most against their spread; numpy only.

>>> axes = discriminant_axes(scaled, places, centres)    # (window, point), (window,), (class, point)
>>> nearest_centre((scaled - centres.mean(axis=0)) @ axes, (centres - centres.mean(axis=0)) @ axes)
"""

from __future__ import annotations

import numpy as np

from bearcat.trust.accuracy import Floats, Integers


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
    """Axes (point, axis), one fewer than classes, in whose units classes have unit spread.

    points (window, point), places (window,) of their classes in centres (class, point). The covariance within classes
    is shrunk as its data ask for (Ledoit and Wolf).
    """
    from sklearn.covariance import ledoit_wolf

    spread, axes = np.linalg.eigh(ledoit_wolf(points - centres[places], assume_centered=True)[0])
    whiten = axes / np.sqrt(np.maximum(spread, 1e-8))
    whitened = centres @ whiten
    return np.asarray(whiten @ principal(whitened - whitened.mean(axis=0))[1][: len(centres) - 1].T)


def nearest_centre(points: Floats, centres: Floats) -> Integers:
    """The place of the nearest of the centres, (window,)."""
    return np.asarray(((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1))
