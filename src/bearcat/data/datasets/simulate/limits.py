"""The permitted values of the settings. A value that cannot work is refused by the name of its field."""

from __future__ import annotations

import math
import sys
from dataclasses import fields

from bearcat.data.datasets.simulate.settings import CONDITIONS, FAULTS, Settings
from bearcat.errors import InputError, suggest

LEAST, MOST = math.ulp(0.0), sys.float_info.max
# The lowest and the highest value of each number, alone or in a list. Numbers that are not named are zero or above.
LIMITS = (
    (LEAST, MOST, "measurements rate seconds severities balls ball_diameter pitch_diameter contact_constant"),
    (LEAST, MOST, "speed_bandwidth entry_width resonances contact_resonance inner_cutoff motor_orders gear_teeth"),
    (LEAST, MOST, "noise_corner"),
    (-MOST, MOST, "contact_angle outer_position size_exponent speed_exponent load_exponent contact_exponent"),
    (-MOST, MOST, "tone_exponent noise_colour noise_speed_exponent noise_force_exponent"),
    (0.0, 0.1, "speed_fluctuation speed_spread"),
    (0.0, 0.2, "slip slip_jitter"),
    (0.0, 0.5, "impact_spread"),
    (0.0, 1.0, "unloaded idle"),
    (1e-4, 0.9, "dampings contact_damping"),
)
BOUNDS = {name: (lowest, highest) for lowest, highest, names in LIMITS for name in names.split()}
NAMES = {"conditions": tuple(CONDITIONS), "faults": tuple(FAULTS)}
# Lists that have a value for each one of another list.
PER_MODE = dict.fromkeys(("dampings", "resonance_gains", "inner_participation"), "resonances")
SAME_LENGTH = {**PER_MODE, "motor_amplitudes": "motor_orders"}


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, naming the field."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        for element in value if isinstance(value, tuple) else (value,):
            if field.name not in NAMES:
                _check_number(field.name, element, whole=isinstance(field.default, int))
            elif element not in NAMES[field.name]:
                hint = suggest(str(element), NAMES[field.name])
                raise InputError(f"{field.name}: unknown name '{element}'{hint}")
            elif value.count(element) > 1:
                raise InputError(f"{field.name}: '{element}' is there twice; name each once")
    for name, other in SAME_LENGTH.items():
        found, wanted = len(getattr(settings, name)), len(getattr(settings, other))
        if found != wanted:
            raise InputError(f"{name}: has {found} values where {other} has {wanted}; give one for each")
    if not settings.conditions:
        raise InputError(f"conditions: name at least one of {', '.join(CONDITIONS)}")
    if settings.faults and not settings.severities:
        raise InputError("severities: give at least one defect length in mm, or leave faults empty")
    if settings.samples < 2:
        raise InputError(f"seconds: {settings.seconds:g} s at {settings.rate:g} Hz is less than two samples")
    bearing, longest = (
        settings.bearing,
        max(settings.severities, default=0.0),
    )  # a bearing refuses balls that do not fit
    spacing = math.pi * (bearing.pitch_diameter - bearing.ball_diameter) / bearing.balls
    if longest >= spacing:
        raise InputError(f"severities: {longest:g} mm is not shorter than the balls are apart, {spacing:.3g} mm")
    contact = max(settings.contact_frequency(CONDITIONS[name].force) for name in settings.conditions)
    for name, frequency in (("resonances", max(settings.resonances, default=0.0)), ("contact_resonance", contact)):
        if frequency >= settings.rate / 2:
            raise InputError(f"{name}: {frequency:g} Hz is not below half the rate; lower it or raise rate")


def _check_number(name: str, value: object, whole: bool) -> None:
    lowest, highest = BOUNDS.get(name, (0.0, MOST))
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InputError(f"{name}: must be a {'whole ' if whole else ''}number, not {value!r}")
    if not lowest <= value <= highest:  # as NaN is not
        open_end = {LEAST: "above zero", 0.0: "zero or above"}.get(lowest, "finite")
        words = open_end if highest == MOST else f"between {lowest:g} and {highest:g}"
        raise InputError(f"{name}: must be {words}, not {value!r}")
