"""Simulated bearings: a dataset computed by the model in vibration.py, for demos and tests.

It is no evidence about real machines. With `specimens`, no two bearings are alike: a specimen has physics drawn around
the usual ones. A draw depends on the seed and on the name of the specimen or of the machine, on nothing else.

>>> recording = Simulated(seconds=2.0).recording("N15_M07_F10", "outer-3")
>>> recording.bearing.frequencies(recording.rpm)["BPFO"]
76.31578947368422
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, ClassVar

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.datasets import Catalogue, Dataset, Entry, find_domain
from bearcat.data.recording import Recording
from bearcat.data.vibration import CONDITIONS, Defect, MachinePhysics, random_stream, simulate
from bearcat.errors import InputError, suggest

RESULT_VERSION = 1  # raise it whenever the same settings give other samples; it is part of every entry's identity
HEALTHY, MACHINE = "healthy", "simulated"
FAULTS = {"inner": ("inner",), "outer": ("outer",), "both": ("inner", "outer"), "ball": ("ball",)}
NAMES = {"conditions": tuple(CONDITIONS), "faults": tuple(FAULTS)}
BOUNDS = {  # the lowest and the highest value of each number; those that are not named are zero or above
    "rate": (10_500.0, math.inf),  # above twice the contact's resonance
    "seconds": (0.01, math.inf),
    "measurements": (1, math.inf),
    "severities": (0.001, 8.5),  # below the distance between two balls
}

# Standard deviations of the logarithm of a value at a spread of 1. Of the machine: structure, path, sensor, tones,
# background. Resonances differ by a fifth, gains by 4 dB, tones by a grade of balance (2.5 times).
MACHINE_SPREADS = {
    "resonances": 0.2, "dampings": 0.4, "resonance_gains": 0.5, "contact_resonance": 0.15, "contact_damping": 0.4,
    "contact_gain": 0.5, "inner_participation": 0.4, "inner_gain": 0.3, "inner_cutoff": 0.4, "unbalance": 0.9,
    "misalignment": 0.9, "motor_amplitudes": 0.7, "gear_teeth": 0.3, "gear_amplitudes": 0.7, "gear_sideband": 0.5,
    "noise": 0.7, "noise_corner": 0.5, "sensor_noise": 0.5,
}  # fmt: skip
# Of the bearing: geometry (makers fit other balls), clearance (classes C2 to C3), motion, surfaces, edges of the spall.
BEARING_SPREADS = {
    "ball_diameter": 0.01, "pitch_diameter": 0.005, "clearance": 0.5, "slip_jitter": 0.3, "impact": 0.4,
    "impact_spread": 0.3, "entry": 0.3, "entry_width": 0.3, "roughness": 0.5,
}  # fmt: skip
SENSOR_GAIN = 0.3  # likewise, of all that the sensor hears: its sensitivity and its place
HEARD = ("impact", "roughness", "noise", "unbalance", "misalignment", "motor_amplitudes", "gear_amplitudes")
COLOUR = 0.5  # the noise's colour is drawn so far to either side
SLIP = 0.02  # the cage's lag is drawn up to this: real bearings have 0.01 to 0.02
SWELL = 0.2  # the swell is drawn up to this: about 12 dB at BPFO, as healthy bearings on rigs have
ANGLE = 8.0  # degrees, standard deviation of the contact angle: axial load
PLACE = 30.0  # degrees, standard deviation of an outer defect's place: spalls start under the load, housings are turned
SECOND_SPOT = 0.25  # share of spalls with a second one beside them
HIGHEST = 0.45  # of the rate: no mode is drawn above
RANGES = {
    "dampings": (0.005, 0.2), "contact_damping": (0.005, 0.2), "slip_jitter": (0.0, 0.2), "impact_spread": (0.0, 0.5)
}  # fmt: skip


@dataclass(frozen=True)
class Specimen:
    """A bearing in its machine: the physics of both, and its defects."""

    name: str
    label: str
    machine: str
    physics: MachinePhysics
    defects: tuple[Defect, ...]


@dataclass(frozen=True)
class Simulated(Dataset):
    """The settings of the simulated dataset.

    >>> Simulated(seconds=1.0).recording("N15_M07_F10", "inner-1").signal.shape
    (16000,)
    """

    seed: int = 0
    rate: float = 16000.0  # Hz; a quarter of the Paderborn rate, wide enough for the modes of the structure
    seconds: float = 4.0  # s, as the Paderborn recordings
    measurements: int = 1  # recordings per class and condition
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    faults: tuple[str, ...] = ("inner", "outer", "both")  # also "ball"; "both" is an inner and an outer defect
    severities: tuple[float, ...] = (0.5, 1.5, 4.0)  # mm, length of the defect in rolling direction; chosen
    specimens: int = 0  # bearings of each type, labelled by type; 0: one for each severity
    specimen_spread: float = 1.0  # how much they differ, over the usual spread
    machines: int = 0  # on which the specimens are mounted in turn; 0: each on its own
    groups: int = 0  # domains that take the specimens in turn; 0: a domain is a condition

    title: ClassVar[str] = "Simulated 6203 bearings (for demos and tests; no evidence about real machines)"
    licence: ClassVar[str] = "MIT"
    bearing: ClassVar[Bearing] = MachinePhysics().bearing  # the nominal one: in a plant nobody measures the balls

    def __post_init__(self) -> None:
        """Refuses settings that cannot work, naming the field."""
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            values = value if isinstance(value, tuple) else (value,)
            for element in values:
                lowest, highest = BOUNDS.get(name, (0.0, math.inf))
                if name in NAMES and element not in NAMES[name]:
                    raise InputError(f"{name}: unknown name '{element}'{suggest(str(element), NAMES[name])}")
                if name not in NAMES and not (lowest <= element <= highest and element < math.inf):  # as NaN is not
                    raise InputError(f"{name}: must lie between {lowest:g} and {highest:g}, not {element!r}")
            if isinstance(value, tuple) and (len(set(values)) < len(values) or (not values and name != "faults")):
                raise InputError(f"{name}: name at least one, and each once")
        if self.groups > self.specimens:
            raise InputError(f"groups: {self.groups} need as many specimens of each type; set specimens too")

    def classes(self) -> dict[str, tuple[Defect, ...]]:
        """Each label in order, and the defects it stands for, which of types differ from specimen to specimen."""
        if self.specimens:
            return dict.fromkeys((HEALTHY, *self.faults), ())
        table: dict[str, tuple[Defect, ...]] = {HEALTHY: ()}
        for fault in self.faults:
            for number, length in enumerate(self.severities, start=1):
                table[f"{fault}-{number}"] = tuple(Defect(race, length) for race in FAULTS[fault])
        return table

    def bearings(self) -> dict[str, Specimen]:
        """The bearings by name: a label, or a type and the specimen's number as in inner-s03."""
        if self.specimens:
            numbers = range(1, self.specimens + 1)
            made = [make_specimen(self, label, number) for label in self.classes() for number in numbers]
            return {specimen.name: specimen for specimen in made}
        usual = MachinePhysics()
        return {label: Specimen(label, label, MACHINE, usual, spots) for label, spots in self.classes().items()}

    def recording(self, condition: str, bearing: str, measurement: int = 1) -> Recording:
        """One recording; it depends on the settings and these three names, never on what else is generated."""
        bearings = self.bearings()
        if bearing not in bearings:
            raise InputError(f"unknown class '{bearing}'{suggest(bearing, bearings)}")
        return self._entry(find_domain(condition, self.conditions), bearings[bearing], measurement).read()

    def catalogue(self) -> Catalogue:
        every = product(self.conditions, self.bearings().values(), range(1, self.measurements + 1))
        note = "simulated: for demos and tests, no evidence about real machines"
        domains = tuple(f"group {number + 1}" for number in range(self.groups)) or self.conditions
        entries = tuple(self._entry(*names) for names in every)
        return Catalogue(domains, tuple(self.classes()), entries, notes=(note,))

    def _entry(self, condition: str, specimen: Specimen, measurement: int) -> Entry:
        origin, domain = f"simulated/{condition}/{specimen.name}/{measurement}", condition
        if self.groups:
            domain = f"group {(int(specimen.name.rpartition('-s')[2]) - 1) % self.groups + 1}"
        metadata: dict[str, Any] = {
            "rate": float(self.rate), "label": specimen.label, "domain": domain, "origin": origin,
            "machine": specimen.machine, "specimen": f"{MACHINE} {specimen.name}", "channel": "acceleration",
            "rpm": CONDITIONS[condition].speed, "bearing": self.bearing,
        }  # fmt: skip
        made = specimen.physics, CONDITIONS[condition], specimen.defects, self.rate, self.seconds, self.seed, origin

        def read() -> Recording:
            return Recording(signal=simulate(*made).astype(np.float32), **metadata)

        return Entry(domain, specimen.label, origin, None, f"{RESULT_VERSION} {made!r} {metadata!r}", read)


def make_specimen(settings: Simulated, label: str, number: int) -> Specimen:
    """The specimen of this type and number; machines take the numbers in turn, or each specimen has its own."""
    name, spread, usual = f"{label}-s{number:02d}", settings.specimen_spread, MachinePhysics()
    machine = f"{MACHINE} {(number - 1) % settings.machines + 1}" if settings.machines else f"{MACHINE} {name}"
    drawn: dict[str, Any] = {}
    for owner, spreads in ((machine, MACHINE_SPREADS), (name, BEARING_SPREADS)):
        for field, deviation in spreads.items():
            random = random_stream(settings.seed, owner, field)
            drawn[field] = _drawn(field, getattr(usual, field), settings.rate, spread * deviation, random)
    sensor = random_stream(settings.seed, machine, "sensor")
    gain = math.exp(spread * SENSOR_GAIN * sensor.standard_normal())
    for field in HEARD:
        value = drawn[field]
        drawn[field] = tuple(gain * part for part in value) if isinstance(value, tuple) else gain * value
    drawn["noise_colour"] = usual.noise_colour + spread * COLOUR * sensor.uniform(-1, 1)
    random = random_stream(settings.seed, name, "bearing")
    drawn["contact_angle"] = min(abs(spread * ANGLE * random.standard_normal()), 40.0)
    drawn["slip"] = min(spread * SLIP * random.uniform(), 0.2)
    drawn["swell"] = min(spread * SWELL * random.uniform(), 1.0)
    drawn["outer_position"] = spread * PLACE * random.standard_normal()
    physics = MachinePhysics(**drawn)
    defects = tuple(spot for part in FAULTS.get(label, ()) for spot in _spots(settings, physics, part, random))
    return Specimen(name, label, machine, physics, defects)


def _drawn(field: str, value: Any, rate: float, deviation: float, random: np.random.Generator) -> Any:
    """A value, or each value of a list, times a log-normal factor, within what the model can do."""
    lowest, highest = RANGES.get(field, (0.0, math.inf))
    if field in ("resonances", "contact_resonance"):
        highest = HIGHEST * rate
    factors = np.exp(deviation * random.standard_normal(len(value) if isinstance(value, tuple) else 1))
    values = np.clip(np.multiply(value, factors), lowest, highest).tolist()
    if isinstance(value, tuple):
        return tuple(values)
    return max(1, round(values[0])) if isinstance(value, int) else values[0]


def _spots(settings: Simulated, physics: MachinePhysics, part: str, random: np.random.Generator) -> list[Defect]:
    """A spall, and now and then a smaller one beside it; lengths are log-uniform over the range of `severities`."""
    spread, ends = settings.specimen_spread, np.log([min(settings.severities), max(settings.severities)])
    length = math.exp(ends.mean() + spread * (ends[1] - ends[0]) / 2 * random.uniform(-1, 1))
    first = Defect(part, min(length, 0.9 * physics.spacing))
    second = Defect(part, first.length * random.uniform(0.3, 0.8), lag=random.uniform(0.1, 0.9))
    return [first, second] if random.uniform() < SECOND_SPOT * min(spread, 1.0) else [first]
