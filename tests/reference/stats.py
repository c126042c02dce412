"""Statistics the plain way: count all the signs, all the runs, one block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product


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


def holm_rejects(p: Sequence[float], level: float) -> list[bool]:
    """The procedure as Holm tells it: from the smallest p on, reject until one is not small enough."""
    rejected = [False] * len(p)
    left = len(p)
    for place in sorted(range(len(p)), key=lambda place: p[place]):
        if Fraction(p[place]) * left > Fraction(level):
            break
        rejected[place] = True
        left -= 1
    return rejected


def cliques(ordered: Sequence[str], different: set[frozenset[str]]) -> set[tuple[str, ...]]:
    """All runs of at least two neighbours without a differing pair, less those inside another."""
    runs = [
        tuple(ordered[start:end])
        for start in range(len(ordered))
        for end in range(start + 2, len(ordered) + 1)
        if not any(frozenset(pair) in different for pair in combinations(ordered[start:end], 2))
    ]
    return {run for run in runs if not any(set(run) < set(other) for other in runs)}
