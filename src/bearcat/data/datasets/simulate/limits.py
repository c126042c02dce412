"""What the settings may be. Those that cannot work are refused, by the name of the field."""

from __future__ import annotations

import math

from bearcat.data.datasets.simulate.bearing import CONDITIONS
from bearcat.data.datasets.simulate.settings import FAULTS, Settings
from bearcat.data.datasets.simulate.vibration import modes
from bearcat.errors import InputError, suggest

# Settings by what they may be; checked in this order.
COUNTS = ("measurements", "balls")
POSITIVE = (
    *("rate", "seconds", "severities", "ball_diameter", "pitch_diameter", "contact_constant", "entry_width"),
    *("resonances", "contact_resonance", "inner_cutoff", "motor_orders", "gear_teeth", "noise_corner"),
    *("speed_bandwidth",),
)
NOT_NEGATIVE = (
    *("seed", "clearance", "impact", "entry", "resonance_gains", "contact_gain", "inner_participation", "inner_gain"),
    *(
        "unbalance",
        "misalignment",
        "motor_amplitudes",
        "gear_amplitudes",
        "gear_sideband",
        "noise",
        "roughness",
        "sensor_noise",
    ),
    *("quantum", "gain_spread"),
)
FINITE = (
    *("contact_angle", "outer_position", "size_exponent", "speed_exponent", "load_exponent", "contact_exponent"),
    *("tone_exponent",),
    *("noise_colour", "noise_speed_exponent", "noise_force_exponent"),
)
BETWEEN = {  # lowest and highest, both allowed
    "slip": (0.0, 0.2),
    "slip_jitter": (0.0, 0.2),
    "speed_fluctuation": (0.0, 0.1),
    "speed_spread": (0.0, 0.1),
    "impact_spread": (0.0, 0.5),
    "unloaded": (0.0, 1.0),
    "idle": (0.0, 1.0),
    "dampings": (1e-4, 0.9),
    "contact_damping": (1e-4, 0.9),
}
SAME_LENGTH = (
    ("resonances", "dampings"),
    ("resonances", "resonance_gains"),
    ("resonances", "inner_participation"),
    ("motor_orders", "motor_amplitudes"),
)


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, naming the field."""
    for name in (*COUNTS, *POSITIVE, *NOT_NEGATIVE, *FINITE, *BETWEEN):
        for value in _values(settings, name):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{name}: every value must be a finite number, not {value!r}")
    for name in (*COUNTS, "seed", "gear_teeth"):
        (value,) = _values(settings, name)
        if not isinstance(value, int):
            raise InputError(f"{name}: must be a whole number, not {value!r}")
    for name in (*COUNTS, *POSITIVE):
        for value in _values(settings, name):
            if value <= 0:
                raise InputError(f"{name}: must be above zero, not {value!r}")
    for name in NOT_NEGATIVE:
        for value in _values(settings, name):
            if value < 0:
                raise InputError(f"{name}: must be zero or above, not {value!r}")
    for name, (lowest, highest) in BETWEEN.items():
        for value in _values(settings, name):
            if not lowest <= value <= highest:
                raise InputError(f"{name}: must lie between {lowest:g} and {highest:g}, not at {value!r}")
    for name, other in SAME_LENGTH:
        wanted, found = len(_values(settings, name)), len(_values(settings, other))
        if wanted != found:
            raise InputError(f"{other}: has {found} values where {name} has {wanted}; give one for each")
    _check_names("conditions", settings.conditions, tuple(CONDITIONS))
    _check_names("faults", settings.faults, tuple(FAULTS))
    if not settings.conditions:
        raise InputError(f"conditions: name at least one of {', '.join(CONDITIONS)}")
    if settings.faults and not settings.severities:
        raise InputError("severities: give at least one defect length in mm, or leave faults empty")
    if settings.samples < 2:
        raise InputError(
            f"seconds: {settings.seconds:g} s at {settings.rate:g} Hz is less than two samples; make it longer"
        )
    _check_geometry(settings)
    _check_band(settings)


def _values(settings: Settings, name: str) -> tuple[float, ...]:
    value = getattr(settings, name)
    return value if isinstance(value, tuple) else (value,)


def _check_names(field: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{field}: unknown name '{name}'{suggest(name, known)}")
    if len(set(given)) < len(given):
        raise InputError(f"{field}: names one twice in {', '.join(given)}; name each once")


def _check_geometry(settings: Settings) -> None:
    if settings.balls * settings.ball_diameter >= math.pi * settings.pitch_diameter:
        raise InputError(
            f"ball_diameter: {settings.balls} balls of {settings.ball_diameter:g} mm do not fit on a pitch diameter of"
            f" {settings.pitch_diameter:g} mm; use fewer or smaller ones"
        )
    if abs(settings.contact_angle) >= 90:
        raise InputError(f"contact_angle: must lie between -90 and 90 degrees, not at {settings.contact_angle:g}")
    spacing = math.pi * (settings.pitch_diameter - settings.ball_diameter) / settings.balls
    for length in settings.severities:
        if length >= spacing:
            raise InputError(
                f"severities: a defect of {length:g} mm is as long as the balls are apart ({spacing:.3g} mm);"
                " the model holds for shorter ones"
            )


def _check_band(settings: Settings) -> None:
    half = settings.rate / 2
    for frequency in settings.resonances:
        if frequency >= half:
            raise InputError(
                f"resonances: {frequency:g} Hz is not below half the sampling rate, {half:g} Hz; lower it or raise rate"
            )
    for name in settings.conditions:
        frequency = modes(settings, CONDITIONS[name].force)[-1, 0]
        if frequency >= half:
            raise InputError(
                f"contact_resonance: {frequency:g} Hz in {name} is not below half the sampling rate, {half:g} Hz;"
                " lower it or raise rate"
            )
