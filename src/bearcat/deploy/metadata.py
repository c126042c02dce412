"""What a model says of itself, in its folder's model.json and in an ONNX file alike.

A model may come from anywhere. Values of a wrong type would fail later, in the middle of a diagnosis.

>>> check_metadata(metadata, "out/model", FOLDER)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.errors import InputError
from bearcat.settings import from_plain
from bearcat.trust.decision import CHECK, REFUSE, USE, Decision

if TYPE_CHECKING:
    from bearcat.data.prepare import Preparation
    from bearcat.trust.pooling import Familiarity, Outputs

MOST_CLASSES, MOST_CHANNELS, LONGEST_WINDOW, LONGEST_TEXT = 10_000, 1024, 2**24, 10_000


class Predictor(Protocol):
    """What Model and OnnxModel have in common. Of `metadata`, rpm, channel and bearing are of the adapted target."""

    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    metadata: dict[str, Any]  # for people and the card: recipe, task, data, scores, estimates, limits, versions, …
    channels: int
    pooled_temperature: float  # of a recording's confidence (bearcat.trust.pooling)
    familiarity: Familiarity | None  # what windows of the adapted target look like, where that was fitted

    @property
    def input(self) -> str: ...  # a row of INPUTS
    @property
    def needs(self) -> tuple[str, ...]: ...  # what of "rate", "rpm" and "bearing" its input needs
    @property
    def calibrated(self) -> bool: ...  # a calibration that ended at its bound is none

    def outputs(self, windows: NDArray[Any], rpm: float | None = None, bearing: Bearing | None = None) -> Outputs:
        """(window, channel, sample) windows as recorded, at the model's rate → log-probabilities, logits, features.

        Speed and bearing are for inputs that use them.
        """

    def log_probabilities(
        self, windows: NDArray[Any], rpm: float | None = None, bearing: Bearing | None = None
    ) -> NDArray[Any]:
        """The same windows → (window, class), calibrated."""
        return self.outputs(windows, rpm, bearing).log_probabilities

    @property
    def rpm(self) -> float | None:
        """The speed, where they have one; recordings that say none have it."""
        return self.metadata.get("rpm")

    @property
    def channel(self) -> str | None:
        """The channel which files with several are read by."""
        return self.metadata.get("channel")

    @property
    def bearing(self) -> Bearing | None:
        geometry = self.metadata.get("bearing")
        return None if geometry is None else Bearing(**geometry)

    @property
    def decision(self) -> Decision:
        """What to do with it, by the run that made it."""
        found: Decision = from_plain(Decision, self.metadata["decision"])
        return found

    def to_dict(self) -> dict[str, Any]:
        """What both formats hold of it in the same way."""
        return {
            "classes": list(self.classes), "channels": self.channels, "preparation": asdict(self.preparation),
            "rate": self.rate, "rpm": self.rpm, "channel": self.channel, "bearing": self.metadata.get("bearing"),
            "pooled_temperature": self.pooled_temperature, "decision": self.metadata["decision"],
        }  # fmt: skip


Check = Callable[[Any], bool]


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _whole(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _names(value: Any) -> bool:
    filled = _texts(value) and 0 < len(value) <= MOST_CLASSES and all(map(str.strip, value))
    return filled and len(set(value)) == len(value)


def _decision(value: Any) -> bool:
    found = from_plain(Decision, value)
    low, high = found.interval or (0, 1)
    shares = 0 <= low <= high <= 1 and 0 <= (found.expected or 0) <= 1
    return shares and found.action in (USE, CHECK, REFUSE) and _texts(value["reasons"])


HERTZ, WHOLE = "a positive number of hertz", "a whole number from {} to {}"
# Whether a value will do, and what it must be; what ends in "or null" may be null.
FIELDS: Mapping[str, tuple[Check, str]] = {
    "classes": (_names, "a list of different names"),
    "channels": (_whole(1, MOST_CHANNELS), WHOLE.format(1, MOST_CHANNELS)),
    "preparation": (_is(dict), "a table"),
    "preparation.input": (_text, "a row of INPUTS"),
    "preparation.length": (_whole(2, LONGEST_WINDOW), WHOLE.format(2, LONGEST_WINDOW)),
    "preparation.stride": (_whole(1, LONGEST_WINDOW), f"{WHOLE.format(1, LONGEST_WINDOW)}, or null"),
    "preparation.rate": (_positive, f"{HERTZ}, or null"),
    "rate": (_positive, f"{HERTZ}, or null"),
    "rpm": (_positive, "a positive number of rpm, or null"),
    "channel": (_text, "the name of a channel, or null"),
    "bearing": (lambda value: bool(Bearing(**value)), "the geometry of a bearing, or null"),
    "needs": (lambda value: _texts(value) and set(value) <= {"rate", "rpm", "bearing"}, "a list of rate, rpm, bearing"),
    "encoder": (_text, "a row of ENCODERS"),
    "calibrator": (_text, "a row of CALIBRATORS, or null"),
    "calibrated": (_is(bool), "true or false"),
    "calibration_at_bound": (_is(bool), "true or false"),
    "pooled_temperature": (_positive, "a positive number"),
    "decision": (_decision, "action, expected, interval and reasons"),
    "familiarity": (_is(dict), "a table, or null"),
    "made_by": (_is(dict), "a table"),
    "sha256": (_text, "a checksum"),
}
ONNX = tuple(name for name in FIELDS if name not in ("encoder", "calibrator", "calibration_at_bound", "sha256"))
FOLDER = tuple(name for name in FIELDS if name not in ("made_by", "needs"))


def common_fields(metadata: dict[str, Any]) -> dict[str, Any]:
    """Fields of Model and OnnxModel that both formats hold in the same way, of checked metadata."""
    plain = {name: metadata[name] for name in ("rate", "channels", "pooled_temperature")}
    return plain | {"classes": tuple(metadata["classes"]), "metadata": metadata}


def check_metadata(metadata: Any, place: str, names: Iterable[str]) -> None:
    """InputError names the first of these fields that is missing or of a wrong type."""
    for name in names:
        value = metadata
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                raise InputError(f"{place}: has damaged metadata ('{name}' is missing); copy the model again")
            value = value[key]
        check, expected = FIELDS[name]
        try:
            good = expected.endswith("or null") if value is None else check(value)
        except Exception:  # values of a wrong type raise nearly every kind
            good = False
        if not good:
            raise InputError(f"{place}: has damaged metadata ('{name}' must be {expected}); copy the model again")
