"""The operating conditions and the parameters of the model: units, sources of their values, permitted values."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields

from bearcat.data.bearing import Bearing
from bearcat.errors import InputError, suggest


@dataclass(frozen=True)
class Condition:
    """An operating condition: shaft speed in rpm, load torque in N m, radial force on the bearing in N."""

    speed: float
    torque: float
    force: float

    @property
    def shaft(self) -> float:
        return self.speed / 60  # Hz


# The four conditions of the Paderborn measurements (Lessmeier et al. 2016), in their order.
CONDITIONS = {
    "N15_M07_F10": Condition(1500, 0.7, 1000),
    "N09_M07_F10": Condition(900, 0.7, 1000),
    "N15_M01_F10": Condition(1500, 0.1, 1000),
    "N15_M07_F04": Condition(1500, 0.7, 400),
}
REFERENCE = CONDITIONS["N15_M07_F10"]  # every amplitude and the contact resonance are given at this condition
FAULTS = {"inner": ("inner",), "outer": ("outer",), "both": ("inner", "outer"), "ball": ("ball",)}


@dataclass(frozen=True)
class Settings:
    """Each field is one parameter of the model; `Simulated` is these, checked, and makes recordings of them.

    Values marked "chosen" come from no machine and are only of a plausible size. Recordings are known by these
    fields in this order (they are in each entry's identity), so that moving one has everything computed anew.
    """

    # What is generated.
    seed: int = 0
    rate: float = 16000.0  # Hz; a quarter of the Paderborn rate, wide enough for the modes below
    seconds: float = 4.0  # s, as the Paderborn recordings
    measurements: int = 1  # recordings per class and condition
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    faults: tuple[str, ...] = ("inner", "outer", "both")  # also "ball"; "both" is an inner and an outer defect
    severities: tuple[float, ...] = (0.5, 1.5, 4.0)  # mm, length of the defect in rolling direction; chosen

    # The bearing: a 6203.
    balls: int = 8
    ball_diameter: float = 6.75  # mm
    pitch_diameter: float = 28.5  # mm
    contact_angle: float = 0.0  # degrees
    clearance: float = 0.008  # mm, diametral; the middle of the normal (CN) class for a 17 mm bore
    contact_constant: float = 3.2e5  # N/mm^1.5, ball between both races; usual size for balls of 7 mm (Harris)

    # Motion.
    speed_fluctuation: float = 0.002  # standard deviation of the speed over its mean; chosen: a controlled drive
    speed_bandwidth: float = 1.0  # Hz, below which the speed wanders; chosen
    speed_spread: float = 0.001  # standard deviation of a recording's mean speed over the nominal one; chosen
    slip: float = 0.0  # share by which the cage lags on average; real ones 0.01 to 0.02, here lines are as computed
    slip_jitter: float = 0.01  # standard deviation of the spacing of strikes over its mean; usually 0.01 to 0.02

    # Strikes on the defect.
    impact: float = 3.0  # m/s², an exit over 1 mm at full load, before the modes' gains; chosen
    impact_spread: float = 0.1  # standard deviation of single strikes over their mean; chosen
    size_exponent: float = 1.0  # the ball turns by about length / diameter at the edge: so does its velocity
    speed_exponent: float = 1.0  # momentum is proportional to the rolling speed
    load_exponent: float = 0.5  # of the load at the contact; below 1, for the ball's own inertia does not grow; chosen
    entry: float = 0.4  # momentum of the entry over that of the exit; weaker, as Sawalhi and Randall observed
    entry_width: float = 0.6  # duration of the entry over the time to cross the defect; chosen
    outer_position: float = 0.0  # degrees from the direction of the force; 0: where spalls usually start
    unloaded: float = 0.15  # least load at a contact over the greatest: axial preload, centrifugal force; chosen

    # Structure and transfer path.
    resonances: tuple[float, ...] = (870.0, 2250.0, 3600.0)  # Hz, modes of ring, housing and plate; chosen
    dampings: tuple[float, ...] = (0.04, 0.03, 0.025)  # of critical; bolted steel has 0.01 to 0.05
    resonance_gains: tuple[float, ...] = (0.4, 0.9, 0.7)  # chosen
    contact_resonance: float = 5200.0  # Hz at 1000 N, the housing on its loaded contacts; chosen
    contact_exponent: float = 1 / 6  # of the force: Hertzian stiffness grows as force^(1/3), a frequency as its root
    contact_damping: float = 0.03  # of critical; chosen
    contact_gain: float = 0.7  # chosen
    inner_participation: tuple[float, ...] = (1.2, 0.6, 1.3)  # gain for inner-race strikes over outer ones; chosen
    inner_gain: float = 0.9  # inner-race strikes cross one more contact on their way; chosen
    inner_cutoff: float = 3500.0  # Hz, first-order low-pass on that way; chosen
    gain_spread: float = 0.05  # standard deviation of a recording's log gain: mounting of the sensor; chosen

    # Shaft, motor and gear; m/s² at the reference condition.
    unbalance: float = 0.08  # at once per turn, grows as speed²; chosen
    misalignment: tuple[float, ...] = (0.03, 0.06, 0.03)  # at 1, 2, 3… per turn, as torque and speed²; chosen
    motor_orders: tuple[float, ...] = (8.0, 24.0, 48.0)  # per turn: twice 4 pole pairs, 24 slots and twice that
    motor_amplitudes: tuple[float, ...] = (0.05, 0.06, 0.03)  # chosen
    gear_teeth: int = 31  # mesh order; chosen
    gear_amplitudes: tuple[float, ...] = (0.06, 0.03)  # at the mesh order and its multiples; chosen
    gear_sideband: float = 0.25  # of the mesh line, at one turn to either side: run-out; chosen
    tone_exponent: float = 1.0  # of speed, for motor and gear: 2 if stiffness resists the force, 0 if mass does; chosen
    idle: float = 0.2  # share of motor, gear and misalignment lines left without torque: cogging, preload; chosen

    # Noise; m/s² at the reference condition.
    noise: float = 0.1  # root mean square of the background; chosen
    noise_colour: float = 1.0  # power falls as frequency^-colour: 0 white, 1 pink, 2 brown
    noise_corner: float = 20.0  # Hz, below which the background is flat
    roughness: float = 0.03  # root mean square force of rough races on the modes: the hiss of a healthy bearing; chosen
    noise_speed_exponent: float = 1.0  # of speed, for background and roughness; chosen
    noise_force_exponent: float = 0.3  # of force, likewise; chosen
    sensor_noise: float = 0.01  # root mean square, white, whatever the condition; chosen
    quantum: float = 0.0  # m/s², step of the converter; 0: none

    @property
    def bearing(self) -> Bearing:
        return Bearing(self.balls, self.ball_diameter, self.pitch_diameter, self.contact_angle)

    @property
    def samples(self) -> int:
        return round(self.rate * self.seconds)

    def contact_frequency(self, force: float) -> float:
        """Of the contact's mode, in Hz, which is stiffer under force."""
        return float(self.contact_resonance * (force / REFERENCE.force) ** self.contact_exponent)


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
SAME_LENGTH = {
    "dampings": "resonances", "resonance_gains": "resonances", "inner_participation": "resonances",
    "motor_amplitudes": "motor_orders",
}  # fmt: skip


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, naming the field."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        for element in value if isinstance(value, tuple) else (value,):
            if field.name not in NAMES:
                _check_number(field.name, element, whole=isinstance(field.default, int))
            elif element not in NAMES[field.name]:
                raise InputError(f"{field.name}: unknown name '{element}'{suggest(str(element), NAMES[field.name])}")
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
    bearing = settings.bearing  # which refuses balls that do not fit
    longest = max(settings.severities, default=0.0)
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
