"""Where two results differ: names, states and statuses by equality, numbers within a tolerance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
CLOSE = 1e-6  # of numbers on any processor; bit for bit is `exact`
# What was trained in float32 moves with the processor: decisions must be equal, numbers nearly.
TRAINED = ("adapt", "predict", "check with labels", "bench", "classifier")
TRAINED_CLOSE = 0.02
# Four epochs of SAM in float32 leave windows near the border: between two processors, shares of windows moved by 0.12.
UNSETTLED = ("adapt by CAT*", "predict by CAT*")
UNSETTLED_CLOSE = 0.25
# What moved on purpose since v0.3: the beginning of a case's name, the end of a value's name, and why.
CLIPPED_FILE = (
    "agreement", "class", "confidence", "decision", "familiar", "machine", "probabilities.healthy",
    "probabilities.inner race", "probabilities.outer race", "rms", "state", "unfamiliar", "windows",
)  # fmt: skip
MOVED = (
    ("adapt", "bearing", "adapt diagnoses as predict does, and says whose lines were read"),
    ("adapt", "point", "a file of one channel has no point, as for predict"),
    ("check with labels", "bearing", "of the same record"),
    ("check with labels", "point", "of the same record"),
    *(("predict odd files", f"answer[1].{value}", "clipped beyond use: no model counts") for value in CLIPPED_FILE),
)


def stored(name: str) -> dict[str, Any]:
    """The results that were made."""
    values: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return values


def store(name: str, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=1, sort_keys=True)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def differences(wanted: dict[str, Any], given: dict[str, Any], exact: bool = False) -> list[str]:
    """A line for each value that differs; results of real recordings that are not here are left out."""
    lines = []
    for name in wanted:
        if name in given:
            trained = name.split()[0] in TRAINED or name in TRAINED
            allowed = UNSETTLED_CLOSE if name in UNSETTLED else TRAINED_CLOSE if trained else CLOSE
            close = 0.0 if exact else allowed
            moved = tuple(f".{value}" for case, value, _ in MOVED if name.startswith(case))
            found = [f"{name}{line}" for line in differing(wanted[name], given[name], close)]
            lines += [line for line in found if not line.partition(": ")[0].endswith(moved)]
    return lines + [f"{name}: not among the stored results" for name in given if name not in wanted]


def differing(wanted: Any, given: Any, close: float) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(given, dict):
        for name in sorted(wanted.keys() | given.keys()):
            yield from (f".{name}{line}" for line in differing(wanted.get(name), given.get(name), close))
    elif isinstance(wanted, list) and isinstance(given, list) and len(wanted) == len(given):
        for place, (one, other) in enumerate(zip(wanted, given, strict=True)):
            yield from (f"[{place}]{line}" for line in differing(one, other, close))
    elif not _same(wanted, given, close):
        yield f": {wanted!r} before, {given!r} now"


def _same(wanted: Any, given: Any, close: float) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (wanted, given))
    if not numbers or close == 0:
        return bool(wanted == given)
    return math.isclose(wanted, given, rel_tol=close, abs_tol=close)
