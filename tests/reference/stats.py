"""Statistics the plain way: count all the signs, all the runs, one block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product


def rank(values: Sequence[float], one: int) -> float:
    """1 for the lowest; ties share the mean of their places."""
    lower = sum(value < values[one] for value in values)
    equal = sum(value == values[one] for value in values)
    return lower + (equal + 1) / 2


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p by trying every assignment of signs to the non-zero ranks (Pratt)."""
    sizes = [abs(one) for one in differences]
    ranks = [rank(sizes, one) for one, size in enumerate(sizes) if size > 0]
    signs = [one > 0 for one in differences if one != 0]
    middle = sum(ranks) / 2
    seen = abs(sum(one for one, sign in zip(ranks, signs, strict=True) if sign) - middle)
    extreme = 0
    for tried in product((False, True), repeat=len(ranks)):
        extreme += abs(sum(one for one, sign in zip(ranks, tried, strict=True) if sign) - middle) >= seen
    return extreme / 2 ** len(ranks)


def holm_rejects(p: Sequence[float], level: float) -> list[bool]:
    """The procedure as Holm tells it: from the smallest p on, reject until one is not small enough."""
    rejected = [False] * len(p)
    left = len(p)
    for one in sorted(range(len(p)), key=lambda one: p[one]):
        if Fraction(p[one]) * left > Fraction(level):
            break
        rejected[one] = True
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
