"""Sentences with numbers, in singular and plural.

>>> count(1, "run"), count(3, "class", "classes"), listed(["a", "b", "c"])
('1 run', '3 classes', 'a, b and c')
"""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, what: str, several: str | None = None) -> str:
    """ "1 run", "2 runs"."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
