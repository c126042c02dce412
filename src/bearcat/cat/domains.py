"""Which rows of one array are source and which are target.

>>> source_rows(None, np.array(["load0", "load3"]), "load3", rows=2)      # by name
>>> source_rows(np.array([1, -2]), None, None, rows=2)                    # by number, as skada has it
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, suggest

MASKED = ("-1", "-1.0", "nan")  # skada's labels of windows that have none, as text


def source_rows(sample_domain: Any, domain: Any, target: Any, rows: int) -> NDArray[np.bool_] | None:
    """(row,) whether the domain is another than the target, or its number not negative; None where none is given."""
    if (domain is None) != (target is None):
        raise InputError("domain, a name for each row of X, and target, one of these names, go together; give both")
    if sample_domain is None and domain is None:
        return None
    name = "sample_domain" if domain is None else "domain"
    domains = np.asarray(sample_domain if domain is None else domain)
    if domains.ndim > 1:
        given = f"the third argument is sample_domain, a number for each row, and not windows of shape {domains.shape}"
        raise InputError(f"{given}; give the target's windows by name: fit(Xs, ys, X_target=Xt)")
    if domains.shape != (rows,):
        raise InputError(f"{name} must hold one value for each of {rows} rows, not {domains.shape}")
    if domain is not None:
        names = domains.astype(str)
        if str(target) not in names:
            raise InputError(f"target: no row's domain is '{target}'{suggest(str(target), sorted(set(names)))}")
        return np.asarray(names != str(target))
    if not np.issubdtype(domains.dtype, np.number) or (domains != np.round(domains)).any():
        raise InputError("sample_domain must hold whole numbers, source ≥ 0 > target; names go into domain and target")
    return np.asarray(domains >= 0)


def source_labels(labels: NDArray[Any], is_source: NDArray[np.bool_]) -> NDArray[Any]:
    """Labels (row,) of the source; the target's are replaced by one of the source's before anybody looks at them."""
    if not is_source.any():
        raise InputError("there is no source, because every row's domain is a target; target domains are below 0")
    of_source = labels[is_source]
    masked = np.array([str(label) in MASKED for label in of_source])
    if masked.any():
        row = int(np.flatnonzero(is_source)[masked.argmax()])
        raise InputError(f"row {row} of X is source but its label is masked ({labels[row]}); label it or leave it out")
    return np.asarray(np.where(is_source, labels, of_source[0]))
