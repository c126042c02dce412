"""Equal classes, the plain way: lists and counting, one window at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np


def balanced_pass(labels: Sequence[int], random: np.random.Generator) -> list[int]:
    """Windows of an epoch: each class is gone through again and again until it has its share of the pass."""
    members: dict[int, list[int]] = {}
    for window, label in sorted(enumerate(labels), key=lambda pair: pair[1]):
        members.setdefault(label, []).append(window)
    share = {place: len(labels) // len(members) for place in range(len(members))}
    for lucky in random.permutation(len(members)).tolist():
        if sum(share.values()) < len(labels):
            share[lucky] += 1
    drawn: list[int] = []
    for place, windows in enumerate(members.values()):
        waiting: list[int] = []
        for _ in range(share[place]):
            if not waiting:
                waiting = random.permutation(windows).tolist()
            drawn.append(waiting.pop(0))
    return random.permutation(drawn).tolist()


def repeated(labels: Sequence[int]) -> list[int]:
    """Windows, each so many times that all classes come to the same number: weights without weighting."""
    counts = Counter(labels)
    whole = math.lcm(*counts.values())
    return [window for window, label in enumerate(labels) for _ in range(whole // counts[label])]
