"""The simulated bearings behave as the textbook says, and are reproducible one recording at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import signal as processing

from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated
from bearcat.data.vibration import CONDITIONS
from bearcat.errors import InputError

USUAL, SLOW, IDLE, LIGHT = CONDITIONS
ORDERS = Simulated().bearing.orders()
ALL_FAULTS = Simulated(seconds=3.0, faults=("inner", "outer", "both", "ball"))


def envelope(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies in Hz and the envelope spectrum above 2 kHz, where defects ring and tones do not reach."""
    assert recording.rate is not None
    high = processing.butter(4, 2000, "highpass", fs=recording.rate, output="sos")
    squared = np.abs(processing.hilbert(processing.sosfiltfilt(high, recording.signal))) ** 2
    lines = np.abs(np.fft.rfft(squared - squared.mean()))[: squared.size // 2]
    return np.arange(lines.size) * recording.rate / recording.signal.size, lines


def prominence(recording: Recording, frequency: float) -> float:
    """How far a line of the envelope spectrum stands above the median of its neighbourhood."""
    frequencies, lines = envelope(recording)
    near = np.abs(frequencies - frequency)
    return float(lines[near < 0.6].max() / np.median(lines[near < 4]))


def level(signal: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(signal, dtype=np.float64))))


# What the envelope spectrum shows.


@pytest.mark.parametrize("condition", CONDITIONS)
def test_faults_show_at_their_kinematic_frequencies_and_a_healthy_bearing_at_none(condition: str) -> None:
    shaft = CONDITIONS[condition].shaft
    outer, inner, ball = (times * ORDERS[name] * shaft for name, times in (("BPFO", 1), ("BPFI", 1), ("BSF", 2)))
    cage = ORDERS["FTF"] * shaft
    healthy = ALL_FAULTS.recording(condition, "healthy")
    for line in (outer, inner, ball):
        assert prominence(healthy, line) < 4
    # An outer defect stays in the load zone, an inner one passes it once a turn, a ball with the cage.
    for label, lines in {
        "outer-3": (outer,), "inner-3": (inner, inner - shaft, inner + shaft), "ball-3": (ball, ball - cage, ball + cage),
        "both-3": (outer, inner),
    }.items():  # fmt: skip
        recording = ALL_FAULTS.recording(condition, label)
        for line in lines:
            assert prominence(recording, line) > 4, (label, line)


@pytest.mark.parametrize("fault", ["inner", "outer", "both", "ball"])
def test_a_longer_defect_is_louder(fault: str) -> None:
    for condition in (USUAL, SLOW):
        healthy, *levels = (
            level(ALL_FAULTS.recording(condition, label).signal)
            for label in ("healthy", *(f"{fault}-{number}" for number in (1, 2, 3)))
        )
        assert healthy < levels[0] < levels[1] < levels[2]


# Reproducibility.

SHORT = Simulated(seconds=0.25)
SEVERAL = Simulated(seconds=0.25, specimens=3, faults=("inner", "outer", "ball"), conditions=(USUAL, SLOW))


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (replace(SHORT, conditions=(LIGHT,), faults=("outer",)), replace(SHORT, measurements=3)),
        (
            replace(SEVERAL, specimens=2, faults=("inner",), conditions=(SLOW,)),
            replace(SEVERAL, specimens=5, measurements=2),
        ),
    ],
)
def test_recordings_do_not_depend_on_what_else_is_generated(few: Simulated, many: Simulated) -> None:
    others = {entry.origin: entry for entry in many.catalogue().entries}
    for entry in few.catalogue().entries:
        assert entry.identity == others[entry.origin].identity
        assert (entry.read().signal == others[entry.origin].read().signal).all()


def test_the_identity_changes_with_every_setting_that_changes_the_samples() -> None:
    changed = [SHORT, replace(SHORT, seed=1), replace(SHORT, seconds=0.3), replace(SHORT, rate=20_000.0)]
    assert len({settings.catalogue().entries[0].identity for settings in changed}) == 4
    identities = [entry.identity for entry in replace(SHORT, measurements=2).catalogue().entries]
    assert len(set(identities)) == len(identities) == 80


@pytest.mark.parametrize("machines", [0, 2])
def test_what_differs_between_specimens_is_the_bearing_and_its_machine(machines: int) -> None:
    settings = replace(SEVERAL, machines=machines)
    made = [settings.bearings()[name] for name in ("inner-s01", "inner-s02", "inner-s03")]
    for name in ("slip", "swell", "ball_diameter", "contact_angle", "clearance", "roughness", "outer_position"):
        assert len({getattr(specimen.physics, name) for specimen in made}) == 3
    for name in ("resonances", "dampings", "inner_cutoff", "noise", "noise_colour", "unbalance", "gear_amplitudes"):
        assert len({getattr(specimen.physics, name) for specimen in made}) == (machines or 3)
    assert len({specimen.defects[0].length for specimen in made}) == 3
    assert len({specimen.machine for specimen in made}) == (machines or 3)
    assert settings.recording(USUAL, "inner-s01").bearing == settings.bearing  # what is stated is the nominal one


def test_groups_are_domains_that_share_no_bearing() -> None:
    catalogue = replace(SEVERAL, specimens=4, groups=2, machines=2).catalogue()
    assert catalogue.domains == ("group 1", "group 2")
    sides = [[entry.read() for entry in catalogue.only([name]).entries] for name in catalogue.domains]
    bearings = [{recording.specimen for recording in side} for side in sides]
    assert not bearings[0] & bearings[1]
    assert [len(side) for side in bearings] == [8, 8]
    assert [{recording.machine for recording in side} for side in sides] == [{"simulated 1"}, {"simulated 2"}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("specimens", -1), ("specimen_spread", -0.5), ("groups", 2), ("seconds", -1.0), ("seconds", math.nan),
        ("rate", 10_000.0), ("seed", -1), ("measurements", 0), ("faults", ("inner", "outre")),
        ("faults", ("inner", "inner")), ("conditions", ("N15_M07_F11",)), ("conditions", ()), ("severities", ()),
        ("severities", (0.5, -1.0)), ("severities", (0.5, 9.0)),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_in_one_sentence_that_names_it(field: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        replace(Simulated(), **{field: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{field}: ")
