"""Statistics the plain way: count all the signs, all the runs, one block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product


def rank(values: Sequence[float], place: int) -> float:
    """1 for the lowest; ties share the mean of their places."""
    lower = sum(value < values[place] for value in values)
    equal = sum(value == values[place] for value in values)
    return lower + (equal + 1) / 2


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p by trying every assignment of signs to the non-zero ranks (Pratt)."""
    sizes = [abs(difference) for difference in differences]
    ranks = [rank(sizes, place) for place, size in enumerate(sizes) if size > 0]
    signs = [difference > 0 for difference in differences if difference != 0]
    middle = sum(ranks) / 2
    observed = abs(sum(value for value, sign in zip(ranks, signs, strict=True) if sign) - middle)
    extreme = 0
    for tried in product((False, True), repeat=len(ranks)):
        extreme += abs(sum(value for value, sign in zip(ranks, tried, strict=True) if sign) - middle) >= observed
    return extreme / 2 ** len(ranks)
