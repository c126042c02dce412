"""Which channels of a file are vibrations, by names and samples; which of them belong to one point; which are clipped.

x, y and z of one bearing are diagnosed together, bearings 1 to 4 apart. Names say which: those that differ by an axis
alone are one point.

>>> points_of(["DE x", "DE y", "NDE x"])
{'DE': ('DE x', 'DE y'), 'NDE x': ('NDE x',)}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, suggest

TOGETHER, APART = "together", "apart"
WORD = re.compile(r"[A-Z]?[a-zµ°²]+|[A-Z]+(?![a-z])|\d+")  # accX has two, 2H has two
AXIS = re.compile(r"(a|acc|accel|vib)?[xyz]|[hvar]|hor(iz(ontal)?)?|vert(ical)?|ax(ial)?|rad(ial)?|tan(gential)?")
# Words and units of vibrations, which count before all others; of the shaft's speed, but a shaft may be called "high
# speed"; and of what else is measured. Volts say nothing: they may be an accelerometer's.
VIBRATION = re.compile(r"acc([xyz]|el.*)?|vib.*|velocity|displacement|prox.*")
VIBRATION_UNIT = re.compile(r"[mµu]?g|[mµuc]?m(/s(\^?2|²)?)?|in(/s)?|ips", re.IGNORECASE)
SPEED = re.compile(
    r"(?<!high )(?<!low )(?<!intermediate )\b(rpm|tach(o|ometer)?|keyphas[eo]r|speed|drehzahl|encoder)\b"
)
SPEED_UNIT = re.compile(r"rpm|1/min|min-1|u/min", re.IGNORECASE)
OTHER = re.compile(
    r".*\b(temp(eratures?)?|temperatur|currents?|strom|torque|drehmoment|force|kraft|pressure|druck|humidity)\b.*"
    r"|time|zeit|timestamp|index|sample|load|power"
)
# m/s² in one unit of a signal, and mm/s.
ACCELERATION = {"g": 9.80665, "mg": 9.80665e-3, "m/s²": 1.0, "m/s^2": 1.0, "m/s2": 1.0, "mm/s²": 1e-3, "mm/s2": 1e-3}
SPEEDS = {"mm/s": 1.0, "m/s": 1000.0, "in/s": 25.4}
OTHER_UNIT = re.compile(r"°?[cfk]|degc|[mk]?a|[mk]?nm|[mk]?n|bar|[kmh]?pa|%|k?w|s|ms", re.IGNORECASE)


def unit_of(name: str) -> str | None:
    """The unit in brackets at the end of a name: `DE [g]`; None where there is none."""
    match = re.search(r"[\[(]([^\[\]()]+)[\])]\s*$", name)
    return match[1].strip() if match else None


def words_of(name: str) -> list[str]:
    """In lower case, without the unit."""
    return [word.lower() for word in WORD.findall(re.sub(r"[\[(][^\[\]()]+[\])]\s*$", "", name))]


def _says_vibration(name: str) -> bool:
    return any(map(VIBRATION.fullmatch, words_of(name))) or bool(VIBRATION_UNIT.fullmatch(unit_of(name) or ""))


def is_speed(name: str) -> bool:
    """Whether a channel holds the speed of the shaft, or pulses of it, by its name or unit."""
    named = SPEED.search(" ".join(words_of(name))) or SPEED_UNIT.fullmatch(unit_of(name) or "")
    return bool(named) and not _says_vibration(name)


def is_vibration(name: str) -> bool:
    """Whether a channel may be a vibration, by its name and unit."""
    other = OTHER.fullmatch(" ".join(words_of(name))) or OTHER_UNIT.fullmatch(unit_of(name) or "")
    return _says_vibration(name) or not (other or is_speed(name))


def vibrations(names: Iterable[str]) -> list[str]:
    """The channels that may be vibrations; all, where none may: a recording of currents alone is what it is."""
    every = list(names)
    return [name for name in every if is_vibration(name)] or every


def unlike_vibration(samples: NDArray[Any], power: NDArray[np.float64]) -> str | None:
    """Why samples (time,) of this `power_density` cannot be a vibration: constant, slow or pulses, or None."""
    places = (np.array([0.001, 0.5, 0.999]) * (len(samples) - 1)).astype(int)
    low, middle, high = np.sort(samples)[places]  # a sort takes less time than np.quantile
    if power.sum() == 0 or high == low:
        return "constant"
    if power[: max(1, (power.size - 1) // 128) + 1].sum() > 0.999 * power.sum():
        return "slow"
    if not 0.15 < (middle - low) / (high - low) < 0.85:
        return "pulses"
    return None


def points_of(names: Sequence[str], channels: str | None = None) -> dict[str, tuple[str, ...]]:
    """The channels of each point, by its name; `channels` is TOGETHER, APART, or None where names decide."""
    if channels is not None:
        return {"": tuple(names)} if channels == TOGETHER else {name: (name,) for name in names}
    stems: dict[tuple[str, ...], list[str]] = {}
    axes: dict[str, str] = {}
    for name in names:
        words = words_of(name)
        position = next((position for position in reversed(range(len(words))) if AXIS.fullmatch(words[position])), None)
        if position is None:
            continue
        axes[name] = words[position]
        stems.setdefault((*words[:position], *words[position + 1 :]), []).append(name)
    points: dict[str, tuple[str, ...]] = {}
    for name in names:
        same = next((group for group in stems.values() if name in group), [name])
        if len({axes.get(other) for other in same}) < len(same) or len(same) == 1:  # an axis twice: no axes
            points[name] = (name,)
        else:
            points[_shared(same) if len(same) < len(names) else ""] = tuple(same)
    return points


def _shared(names: Sequence[str]) -> str:
    """What names have in common: their first, without its axis."""
    common = [word for word in WORD.findall(names[0]) if all(word in WORD.findall(other) for other in names)]
    return " ".join(common) or "+".join(names)


def check_unit(unit: str | None) -> str:
    """The unit of an acceleration or a velocity, as the tables have it; InputError where it is neither."""
    text, units = (unit or "").strip().lower(), (*ACCELERATION, *SPEEDS)
    if text not in units:
        wrong = f"'{unit}' is none of acceleration or velocity{suggest(text, units)}" if text else "is not declared"
        raise InputError(f"the unit {wrong}", "unit")
    return text


@dataclass(frozen=True)
class Declared:
    """What a user says of a measurement, by which its velocity is judged."""

    unit: str | None = None  # of the signal
    group: int | None = None  # of machines, of ISO 20816-3: 1 or 2
    mounting: str | None = None  # "rigid" or "flexible"

    def __post_init__(self) -> None:
        if self.unit is not None:
            check_unit(self.unit)

    def completed(self, other: Declared, channel: str = "") -> Declared:
        """What is not declared is filled in, the unit at last by the name of the channel."""
        named = (unit_of(channel) or "").strip().lower()
        unit = self.unit or other.unit or (named if named in {**ACCELERATION, **SPEEDS} else None)
        return Declared(unit, self.group or other.group, self.mounting or other.mounting)


# Samples at the limits of a converter. A clipped signal stands at its highest or lowest value far more often than just
# short of it.
MEASURED = 1 << 17  # samples from the beginning of a recording, where not all of it is looked at
NEAR = 0.01  # of the range: what lies so close to a limit is just short of it
TIMES, LEAST = 3, 4  # at a limit: so many times as many samples as just short of it, and at least so many
COARSE = 16  # values; a converter that gives no more repeats them without being clipped
MOST_VALUES = 256  # that are counted; a signal with more is not coarse
PROBED = 1024  # samples that show whether there are more


def few_values(samples: NDArray[Any]) -> NDArray[Any] | None:
    """The different values of a signal (time,), sorted; None where there are more than MOST_VALUES.

    >>> few_values(np.array([0.0, 1.0, 0.0, 1.0]))
    array([0., 1.])
    """
    if np.unique(samples[:PROBED]).size > MOST_VALUES:  # as in any vibration
        return None
    values = np.unique(samples)
    return None if values.size > MOST_VALUES else values


def share_at_limits(samples: NDArray[Any]) -> float:
    """The share of samples (time,) at the highest and the lowest value; 0 where no more stand there than chance
    explains.

    >>> share_at_limits(np.clip(np.sin(np.arange(1000.0)), -0.5, 0.5)) > 0.5
    True
    """
    values = few_values(samples)
    if values is not None and values.size <= COARSE:
        return 0.0
    low, high = float(samples.min()), float(samples.max())
    near, clipped = NEAR * (high - low), 0
    for limit, close in ((low, samples < low + near), (high, samples > high - near)):
        at = int(np.count_nonzero(samples == limit))
        clipped += at if at >= LEAST and at > TIMES * (int(np.count_nonzero(close)) - at) else 0
    return clipped / samples.size
