"""The highest sample of each part of a waveform, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def highest_of_parts(samples: Sequence[float], parts: int) -> list[float]:
    """Part k runs from sample ⌊k n / parts⌋ to ⌊(k + 1) n / parts⌋."""
    edges = [len(samples) * part // parts for part in range(parts + 1)]
    return [max(float(samples[place]) for place in range(*pair)) for pair in pairwise(edges)]
