"""What the metadata of a model must be, in its folder's model.json and in an ONNX file alike.

A model may come from anywhere. Values of a wrong type would fail later, in the middle of a diagnosis.

>>> check_metadata(metadata, "out/model", FOLDER)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bearcat.data.bearing import Bearing
from bearcat.errors import InputError

MOST_CLASSES, MOST_CHANNELS, LONGEST_WINDOW, LONGEST_TEXT = 10_000, 1024, 2**24, 10_000


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _names(value: Any) -> bool:
    return (
        isinstance(value, list) and 0 < len(value) <= MOST_CLASSES
        and all(_text(name) and name.strip() for name in value) and len(set(value)) == len(value)
    )  # fmt: skip


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _needs(value: Any) -> bool:
    return isinstance(value, list) and set(map(str, value)) <= {"rate", "rpm", "bearing"}


def _bearing(value: Any) -> bool:
    try:
        Bearing(**value)
    except (TypeError, InputError):
        return False
    return True


def _sentences(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "classes": (_names, "a list of different names"),
    "channels": (_whole(1, MOST_CHANNELS), f"a whole number from 1 to {MOST_CHANNELS}"),
    "preparation": (_table, "a table"),
    "preparation.input": (_text, "a row of INPUTS"),
    "preparation.length": (_whole(2, LONGEST_WINDOW), f"a whole number from 2 to {LONGEST_WINDOW}"),
    "preparation.stride": (_or_none(_whole(1, LONGEST_WINDOW)), f"a whole number from 1 to {LONGEST_WINDOW}, or null"),
    "preparation.rate": (_or_none(_positive), "a positive number of hertz, or null"),
    "rate": (_or_none(_positive), "a positive number of hertz, or null"),
    "rpm": (_or_none(_positive), "a positive number of rpm, or null"),
    "channel": (_or_none(_text), "the name of a channel, or null"),
    "bearing": (_or_none(_bearing), "the geometry of a bearing, or null"),
    "needs": (_needs, "a list of rate, rpm and bearing"),
    "encoder": (_text, "a row of ENCODERS"),
    "calibrator": (_or_none(_text), "a row of CALIBRATORS, or null"),
    "calibrated": (_flag, "true or false"),
    "calibration_at_bound": (_flag, "true or false"),
    "pooled_temperature": (_positive, "a positive number"),
    "refusal": (_or_none(_text), "a sentence, or null"),
    "cautions": (_sentences, "a list of sentences"),
    "familiarity": (_or_none(_table), "a table, or null"),
    "made_by": (_table, "a table"),
    "sha256": (_text, "a checksum"),
}
ONNX = tuple(name for name in FIELDS if name not in ("encoder", "calibrator", "calibration_at_bound", "sha256"))
FOLDER = tuple(name for name in FIELDS if name not in ("made_by", "needs"))


def check_metadata(metadata: Any, place: str, names: Iterable[str]) -> None:
    """InputError names the first of these fields that is missing or of a wrong type."""
    for name in names:
        value = metadata
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                raise InputError(f"{place}: has damaged metadata ('{name}' is missing); copy the model again")
            value = value[key]
        check, expected = FIELDS[name]
        if not check(value):
            raise InputError(f"{place}: has damaged metadata ('{name}' must be {expected}); copy the model again")
