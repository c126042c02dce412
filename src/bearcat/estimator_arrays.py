"""What the classifiers are given: windows X, labels y and skada's sample_domain, checked and coded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bearcat.data.recording import Integers
from bearcat.errors import InputError

try:
    from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
except ImportError as error:
    raise InputError("the classifiers need an extra; pip install 'bearcat[estimator]'") from error

MASK = -1  # skada's label of a window that has none


def flattened(X: Any) -> tuple[Any, tuple[int, int] | None]:  # noqa: N803
    """Windows with a channel axis as (window, channel × samples) and their shape; anything else as it is."""
    try:
        axes = np.ndim(X) if isinstance(X, Sequence) else getattr(X, "ndim", 2)
    except ValueError as error:
        raise InputError("the rows of X have different lengths; to cut recordings into windows set window") from error
    if axes != 3:
        return X, None
    values = np.asarray(X)
    rows, channels, samples = values.shape
    if channels > samples:
        raise InputError(
            f"X has the shape {values.shape}, which is {channels} channels of {samples} samples; the axes are (window,"
            " channel, sample), so give X.transpose(0, 2, 1)"
        )
    return values.reshape(rows, channels * samples), (channels, samples)


def source_rows(sample_domain: Any, rows: int) -> np.ndarray:
    """(row,) bool: source where the domain's number is not negative, as skada has it."""
    domain = np.asarray(sample_domain)
    if domain.ndim > 1:
        raise InputError(
            f"the third argument is sample_domain, a number for each row, and not windows of shape {domain.shape};"
            " give the target's windows by name: fit(Xs, ys, X_target=Xt)"
        )
    if domain.shape != (rows,):
        raise InputError(f"sample_domain must hold one whole number for each of {rows} rows, not {domain.shape}")
    if not np.issubdtype(domain.dtype, np.number) or (domain != np.round(domain)).any():
        raise InputError("sample_domain must hold whole numbers: source domains from 0 on, target domains below 0")
    return np.asarray(domain >= 0)


def source_labels(y: Any, is_source: np.ndarray) -> np.ndarray:
    """Labels (row,) of the source; the target's are replaced by one of the source's before anybody looks at them."""
    labels = column_or_1d(y, warn=True)
    check_consistent_length(labels, is_source)
    if not is_source.any():
        raise InputError("sample_domain names no source; source domains are numbered from 0 on, target domains below 0")
    of_source = labels[is_source]
    masked = np.array([str(label) in (str(MASK), str(float(MASK)), "nan") for label in of_source])
    if masked.any():
        row = int(np.flatnonzero(is_source)[masked.argmax()])
        raise InputError(f"row {row} of X is source but its label is masked ({labels[row]}); label it or leave it out")
    hidden: np.ndarray = np.where(is_source, labels, of_source[0])
    return hidden


def coded(labels: np.ndarray) -> tuple[np.ndarray, Integers]:
    """The classes, sorted, and the code of each label."""
    check_classification_targets(labels)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"the source has one class only, '{classes[0]}'; a classifier needs at least two")
    return classes, codes.astype(np.int64)


def held_out(codes: Integers, row: Integers, share: float, random: np.random.Generator) -> np.ndarray:
    """(window,) bool: a share of every class, to calibrate on; `codes` (row of X,), `row` (window,).

    Whole recordings where every class has two or more, since windows of one recording are much alike; else windows.
    """
    there = np.unique(row)
    alone = np.bincount(codes[there])[np.unique(codes[there])].min() < 2
    units = np.arange(len(row)) if alone else row
    of_unit = dict(zip(units.tolist(), codes[row].tolist(), strict=True))
    members = np.array(list(of_unit))
    kinds = np.array(list(of_unit.values()))
    chosen: list[int] = []
    for code in np.unique(kinds):
        mine = random.permutation(members[kinds == code])
        chosen += mine[: min(max(1, round(share * len(mine))), len(mine) - 1)].tolist()
    if not chosen:
        raise InputError(f"{len(members)} samples, one of each class, leave none to calibrate on; give more windows")
    return np.isin(units, chosen)


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """A whole number is the seed itself, so that it means the same as elsewhere in bearcat."""
    if isinstance(random_state, int | np.integer):
        if random_state < 0:
            raise InputError(f"random_state is a whole number from 0 on, not {random_state}")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
