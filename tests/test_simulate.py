"""The simulated bearings behave as the textbook says, and are reproducible one recording at a time."""

from __future__ import annotations

import hashlib
import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import signal as processing

from bearcat.data.catalogue import load
from bearcat.data.datasets import simulate as vibration
from bearcat.data.datasets.simulate import CONDITIONS, REFERENCE, Condition, Defect, Simulated, signals
from bearcat.data.datasets.simulate.signals import random_stream
from bearcat.data.recording import Recording, envelope_spectrum
from bearcat.data.tasks import Task
from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES
from bearcat.runs.spec import RunSpec
from tests.reference import simulate as twin

USUAL, SLOW, IDLE, LIGHT = CONDITIONS
ORDERS = Simulated().bearing.orders()
ALL_FAULTS = Simulated(faults=("inner", "outer", "both", "ball"))
STEADY = Simulated(speed_fluctuation=0.0, speed_spread=0.0, slip_jitter=0.0, impact_spread=0.0, gain_spread=0.0)
SILENT = replace(
    STEADY,
    noise=0.0,
    roughness=0.0,
    sensor_noise=0.0,
    unbalance=0.0,
    misalignment=(),
    motor_orders=(),
    motor_amplitudes=(),
    gear_amplitudes=(),
)


def envelope(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies in Hz and the envelope spectrum above 2 kHz, where defects ring and tones do not reach."""
    assert recording.rate is not None
    high = processing.butter(4, 2000, "highpass", fs=recording.rate, output="sos")
    lines = envelope_spectrum(processing.sosfiltfilt(high, recording.signal).astype(np.float32))
    return np.arange(lines.size) * recording.rate / recording.signal.size, lines


def strongest(recording: Recording, above: float, below: float = 1000.0) -> float:
    """The frequency of the highest line of the envelope spectrum in a range."""
    frequencies, lines = envelope(recording)
    chosen = (frequencies > above) & (frequencies < below)
    return float(frequencies[chosen][lines[chosen].argmax()])


def prominence(recording: Recording, frequency: float) -> float:
    """How far a line of the envelope spectrum stands above the median of its neighbourhood."""
    frequencies, lines = envelope(recording)
    near = np.abs(frequencies - frequency)
    return float(lines[near < 0.6].max() / np.median(lines[near < 4]))


def amplitude(recording: Recording, frequency: float) -> float:
    """The amplitude of a line that falls on a bin of the whole recording."""
    assert recording.rate is not None
    number = round(frequency * recording.signal.size / recording.rate)
    return float(2 * np.abs(np.fft.rfft(recording.signal)[number]) / recording.signal.size)


def level(recording: Recording) -> float:
    return float(np.sqrt(np.mean(np.square(recording.signal, dtype=np.float64))))


# What the envelope spectrum shows.


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("severity", [1, 3])
def test_the_envelope_of_an_outer_race_fault_peaks_at_bpfo(condition: str, severity: int) -> None:
    recording = ALL_FAULTS.recording(condition, f"outer-{severity}")
    shaft = CONDITIONS[condition].shaft
    outer = ORDERS["BPFO"] * shaft
    # Looking up to the second harmonic, which of a small defect may be as high as the first.
    assert strongest(recording, above=5, below=1.8 * outer) == pytest.approx(outer, abs=0.5)
    # It stays where it is in the load zone, hence no sidebands at the speed of the shaft.
    assert prominence(recording, outer + shaft) < prominence(recording, outer) / 3


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("severity", [2, 3])
def test_the_envelope_of_an_inner_race_fault_peaks_at_bpfi_with_sidebands_a_turn_away(
    condition: str, severity: int
) -> None:
    recording = ALL_FAULTS.recording(condition, f"inner-{severity}")
    shaft = CONDITIONS[condition].shaft
    inner = ORDERS["BPFI"] * shaft
    # Looking from above the shaft's own line, which the load zone makes, up to the second harmonic.
    assert strongest(recording, above=1.5 * shaft, below=1.8 * inner) == pytest.approx(inner, abs=0.5)
    for line in (shaft, inner - shaft, inner + shaft):
        assert prominence(recording, line) > 5
    assert prominence(recording, ORDERS["BPFO"] * shaft) < prominence(recording, inner) / 2


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_envelope_of_a_ball_fault_peaks_at_twice_bsf_with_sidebands_a_turn_of_the_cage_away(condition: str) -> None:
    # Twice: the defect strikes the outer race and the inner one during each spin.
    recording = ALL_FAULTS.recording(condition, "ball-3")
    shaft = CONDITIONS[condition].shaft
    spin, cage = ORDERS["BSF"] * shaft, ORDERS["FTF"] * shaft
    assert strongest(recording, above=1.5 * cage) == pytest.approx(2 * spin, abs=0.5)
    for line in (2 * spin - cage, 2 * spin + cage):
        assert prominence(recording, line) > 8


@pytest.mark.parametrize("condition", CONDITIONS)
def test_two_defects_show_both_lines(condition: str) -> None:
    recording = ALL_FAULTS.recording(condition, "both-3")
    shaft = CONDITIONS[condition].shaft
    assert prominence(recording, ORDERS["BPFO"] * shaft) > 8
    assert prominence(recording, ORDERS["BPFI"] * shaft) > 4


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_healthy_bearing_shows_none_of_them(condition: str) -> None:
    recording = ALL_FAULTS.recording(condition, "healthy")
    shaft = CONDITIONS[condition].shaft
    for line in (ORDERS["BPFO"] * shaft, ORDERS["BPFI"] * shaft, 2 * ORDERS["BSF"] * shaft):
        assert prominence(recording, line) < 4


def test_a_cage_that_lags_lowers_bpfo_and_raises_bpfi() -> None:
    lagging = Simulated(slip=0.02)
    found = Simulated().bearing.frequencies(REFERENCE.speed)
    outer = strongest(lagging.recording(USUAL, "outer-3"), above=50, below=140)
    inner = strongest(lagging.recording(USUAL, "inner-3"), above=110, below=140)
    assert outer == pytest.approx(0.98 * found["BPFO"], abs=0.5)
    assert inner == pytest.approx(found["BPFI"] + 0.02 * found["BPFO"], abs=0.5)


# Amplitudes.


@pytest.mark.parametrize("fault", ["inner", "outer", "both", "ball"])
def test_a_longer_defect_is_louder(fault: str) -> None:
    for condition in CONDITIONS:
        levels = [level(ALL_FAULTS.recording(condition, f"{fault}-{severity}")) for severity in (1, 2, 3)]
        assert level(ALL_FAULTS.recording(condition, "healthy")) < levels[0] < levels[1] < levels[2]


def test_a_slower_shaft_and_a_lighter_force_weaken_the_strikes() -> None:
    usual, slow, idle, light = (level(SILENT.recording(condition, "outer-2")) for condition in CONDITIONS)
    assert slow < 0.7 * usual
    assert light < 0.8 * usual
    assert idle == pytest.approx(usual, rel=0.02)  # the torque is not carried by this bearing


def test_the_contact_resonance_follows_the_sixth_root_of_the_force_and_the_others_stay() -> None:
    def peak(condition: str, low: float, high: float) -> float:
        signal = Simulated(noise=0.0).recording(condition, "healthy").signal
        frequencies, power = processing.welch(signal, 16000, nperseg=1024)
        chosen = (frequencies > low) & (frequencies < high)
        return float(frequencies[chosen][power[chosen].argmax()])

    assert peak(USUAL, 4100, 6000) == pytest.approx(5200, abs=150)
    assert peak(LIGHT, 4100, 6000) == pytest.approx(5200 * 0.4 ** (1 / 6), abs=150)
    assert peak(USUAL, 1700, 3000) == pytest.approx(2250, abs=80)
    assert peak(LIGHT, 1700, 3000) == pytest.approx(2250, abs=80)


@pytest.mark.parametrize("order", [8, 24, 31, 48, 62])
def test_torque_raises_motor_and_gear_tones(order: int) -> None:
    quiet = replace(STEADY, noise=0.0, roughness=0.0, sensor_noise=0.0)
    loaded, idle = (amplitude(quiet.recording(condition, "healthy"), 25.0 * order) for condition in (USUAL, IDLE))
    assert idle / loaded == pytest.approx(0.2 + 0.8 / 7, rel=1e-3)


def test_tones_have_the_amplitudes_that_are_set_and_move_with_the_speed() -> None:
    quiet = replace(STEADY, noise=0.0, roughness=0.0, sensor_noise=0.0)
    assert amplitude(quiet.recording(USUAL, "healthy"), 24 * 25.0) == pytest.approx(0.06, rel=1e-3)
    assert amplitude(quiet.recording(SLOW, "healthy"), 24 * 15.0) == pytest.approx(0.6 * 0.06, rel=1e-3)
    assert amplitude(quiet.recording(SLOW, "healthy"), 24 * 25.0) < 1e-4


def test_unbalance_grows_as_the_square_of_the_speed() -> None:
    only = replace(SILENT, unbalance=0.08)
    assert amplitude(only.recording(USUAL, "healthy"), 25.0) == pytest.approx(0.08, rel=1e-3)
    assert amplitude(only.recording(SLOW, "healthy"), 15.0) == pytest.approx(0.08 * 0.6**2, rel=1e-3)


def test_tones_beyond_half_the_rate_are_left_out_and_not_folded_back() -> None:
    only = replace(SILENT, motor_orders=(400.0,), motor_amplitudes=(1.0,))  # 10 kHz, and 6 kHz at the slow condition
    assert level(only.recording(USUAL, "healthy")) == 0
    assert level(only.recording(SLOW, "healthy")) > 0.1


def test_strikes_at_the_inner_race_arrive_weaker_and_duller() -> None:
    plain = Simulated(inner_participation=(1.0, 1.0, 1.0))
    near, far = vibration.outer_path(plain, 1000.0), vibration.inner_path(plain, 1000.0)
    ratio = np.abs(np.fft.rfft(far, 4096)) / np.abs(np.fft.rfft(near, 4096))
    at = [round(frequency * 4096 / 16000) for frequency in (100, 1000, 3000, 6000)]
    assert (np.diff(ratio[at]) < 0).all()
    assert ratio[at[0]] == pytest.approx(plain.inner_gain, rel=0.01)


def test_strikes_at_the_inner_race_drive_the_modes_in_the_proportions_set() -> None:
    def heights(participation: tuple[float, ...]) -> np.ndarray:
        response = vibration.inner_path(Simulated(inner_participation=participation), 1000.0)
        return np.abs(np.fft.rfft(response, 16000))[[870, 2250, 3600]]

    ratio = heights((2.0, 0.5, 1.0)) / heights((1.0, 1.0, 1.0))
    assert ratio == pytest.approx([2.0, 0.5, 1.0], rel=0.15)  # modes overlap a little


def test_a_ball_strikes_the_two_races_in_turn() -> None:
    turns = np.arange(16000) * REFERENCE.shaft / 16000
    forces = vibration.strikes(STEADY, REFERENCE, Defect("ball", 1.0), turns, np.random.default_rng(0))
    outer, inner = (processing.find_peaks(force, height=0.3, distance=50)[0] for force in forces)
    assert np.diff(outer).mean() == pytest.approx(16000 / (ORDERS["BSF"] * 25), rel=0.02)
    assert abs(outer.size - inner.size) <= 1
    assert (np.diff(np.searchsorted(outer, inner)) == 1).all()


def test_recordings_begin_in_the_middle_of_things() -> None:
    rough = replace(SILENT, roughness=0.1, seconds=0.1)
    signals = np.stack([rough.recording(USUAL, "healthy", number).signal for number in range(1, 201)])
    power = (signals**2).mean(axis=0)
    assert power[:8].mean() == pytest.approx(power.mean(), rel=0.25)


def test_mountings_differ_by_the_spread_that_is_set() -> None:
    mounted = replace(SILENT, unbalance=1.0, seconds=0.04, gain_spread=0.2)
    levels = [level(mounted.recording(USUAL, "healthy", number)) for number in range(1, 301)]
    assert np.log(levels).std() == pytest.approx(0.2, rel=0.15)


# The load zone.


def test_the_load_is_greatest_under_the_force_and_nothing_outside_the_zone() -> None:
    extent = vibration.zone_extent(Simulated(), 1000.0)
    half = math.acos(1 - 2 * extent)  # half the zone's angle
    angles = np.linspace(-math.pi, math.pi, 721)
    loads = signals.load_zone(angles, extent)
    np.testing.assert_allclose(loads, [twin.load(angle, extent) for angle in angles], atol=1e-12)
    assert angles[loads.argmax()] == pytest.approx(0)
    assert loads.max() == pytest.approx(1)
    assert (loads[np.abs(angles) > half + 1e-9] == 0).all()
    assert (loads[np.abs(angles) < half - 0.01] > 0).all()


def test_the_zone_is_half_the_bearing_without_clearance_and_shrinks_as_the_force_does() -> None:
    assert vibration.zone_extent(Simulated(clearance=0.0), 400.0) == pytest.approx(0.5)
    assert vibration.zone_extent(Simulated(), 400.0) < vibration.zone_extent(Simulated(), 1000.0) < 0.5


def exits(settings: Simulated, defect: Defect) -> np.ndarray:
    """Heights of the strikes of a second, in order of time."""
    turns = np.arange(16000) * REFERENCE.shaft / 16000
    forces = vibration.strikes(
        replace(settings, entry=0.0), REFERENCE, defect, turns, random_stream(0, "test", "strikes")
    )
    total = forces[0] + forces[1]
    found, _ = processing.find_peaks(total, height=0.3 * settings.impact * 0.15**0.5, distance=50)
    return total[found]


def test_strikes_on_the_outer_race_are_alike_and_those_on_the_inner_race_go_through_the_zone() -> None:
    outer, inner = exits(STEADY, Defect("outer", 1.0)), exits(STEADY, Defect("inner", 1.0))
    assert outer.size == pytest.approx(76, abs=1)
    assert inner.size == pytest.approx(124, abs=1)
    assert outer.min() > 0.6 * outer.max()  # a sample may miss the top of an impulse by half a sample
    assert inner.min() < 0.45 * inner.max()
    assert inner.max() == pytest.approx(outer.max(), rel=0.1)


def test_an_outer_defect_away_from_the_force_is_struck_more_softly() -> None:
    levels = [level(replace(SILENT, outer_position=angle).recording(USUAL, "outer-2")) for angle in (0.0, 40.0, 60.0)]
    assert levels[0] > levels[1] > levels[2]


# Strikes in time.


def test_without_jitter_strikes_are_exactly_periodic() -> None:
    spacings = np.diff(signals.passages(3.05, 200.0, 0.0, np.random.default_rng(0)))
    np.testing.assert_allclose(spacings, 1 / 3.05, rtol=1e-9)


def test_slip_accumulates_as_a_random_walk() -> None:
    angles = signals.passages(1.0, 40000.0, 0.02, np.random.default_rng(0))
    drift = [np.std(angles[lag:] - angles[:-lag] - lag) for lag in (1, 4, 16)]
    assert drift == pytest.approx([0.02, 0.04, 0.08], rel=0.06)


def test_strikes_fill_the_whole_recording_whatever_the_slip() -> None:
    for seed in range(20):
        angles = signals.passages(3.05, 100.0, 0.2, np.random.default_rng(seed))
        assert angles[0] < 1 / 3.05
        assert angles[-1] > 99
        assert (np.diff(angles) > 0).all()


def test_slip_smears_high_harmonics_and_spares_the_first() -> None:
    def line(settings: Simulated, harmonic: int) -> float:
        frequencies, lines = envelope(settings.recording(USUAL, "outer-3"))
        near = np.abs(frequencies - harmonic * ORDERS["BPFO"] * 25) < 1
        return float(lines[near].max())

    exact, slipping = STEADY, replace(STEADY, slip_jitter=0.02)
    first, tenth = (line(slipping, number) / line(exact, number) for number in (1, 10))
    assert first > 0.6
    assert tenth < 0.5 * first


@pytest.mark.parametrize("condition", [USUAL, SLOW])
def test_a_ball_leaves_the_defect_one_crossing_after_it_enters(condition: str) -> None:
    shaft = CONDITIONS[condition].shaft
    turns = np.arange(4000) * shaft / 16000
    with_entry, without = (
        vibration.strikes(
            replace(STEADY, entry=entry), CONDITIONS[condition], Defect("outer", 4.0), turns, np.random.default_rng(0)
        )[0]
        for entry in (1.0, 0.0)
    )
    bump = without - with_entry
    entered = 1000 + bump[1000:2000].argmax()
    left = entered + without[entered : entered + 150].argmax()
    contact_speed = math.pi * (28.5 + 6.75) * ORDERS["FTF"] * shaft  # mm/s along the outer race
    assert left - entered == pytest.approx(4.0 / contact_speed * 16000, abs=1.5)
    assert bump.max() < 0.2 * without.max()  # soft against sharp
    assert bump.sum() == pytest.approx(without.sum(), rel=0.1)  # with the same momentum, as set here


# Twins.


def test_strikes_are_placed_as_a_plain_loop_places_them() -> None:
    generator = np.random.default_rng(3)
    positions = np.concatenate([generator.uniform(0, 299, 40), [0.0, 17.0, 17.0, 299.0]])
    strengths = generator.standard_normal(positions.size)
    found = signals.place(positions, strengths, 300)
    np.testing.assert_allclose(found, twin.place(positions.tolist(), strengths.tolist(), 300, 8), atol=1e-12)


def test_placed_strikes_ring_as_the_formula_says_between_samples_too() -> None:
    settings = Simulated()
    positions, strengths = np.array([40.0, 180.37, 300.71]), np.array([1.0, 2.0, -1.5])
    response = vibration.outer_path(settings, 1000.0)
    placed = signals.place(positions, strengths, 400)
    found = processing.fftconvolve(placed, response)[:400]
    np.testing.assert_allclose(found, twin.convolve(placed.tolist(), response.tolist()), atol=1e-9)
    table = vibration.modes(settings, 1000.0).tolist()
    exact = np.array(twin.ring((positions / 16000).tolist(), strengths.tolist(), table, 16000.0, 400))
    # A band-limited strike differs from a sharp one while it lasts, eight samples to either side, and not afterwards.
    after = np.abs(np.arange(400) - positions[:, None]).min(axis=0) > 8
    np.testing.assert_allclose(found[after], exact[after], atol=0.002 * np.abs(exact).max())


def test_the_shaft_turns_as_a_plain_loop_turns_it() -> None:
    settings = Simulated(speed_fluctuation=0.02, speed_spread=0.01, speed_bandwidth=50.0)
    found = vibration.shaft_turns(settings, REFERENCE, 500, np.random.default_rng(5))
    draws = np.random.default_rng(5).standard_normal(501)
    kept = math.exp(-2 * math.pi * 50 / 16000)
    wanted = twin.angle_in_turns(25.0, 0.01 * draws[0], draws[1:].tolist(), 0.02, kept, 16000.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_speed_wanders_as_much_as_set() -> None:
    settings = Simulated(speed_fluctuation=0.02, speed_spread=0.0, speed_bandwidth=20.0)
    turns = vibration.shaft_turns(settings, Condition(1500, 0.7, 1000), 320000, np.random.default_rng(0))
    speeds = np.diff(turns) * 16000 / 25
    assert speeds.std() == pytest.approx(0.02, rel=0.1)
    assert speeds.mean() == pytest.approx(1, abs=0.002)


def test_two_defects_are_the_sum_of_each_alone() -> None:
    inner, outer = Defect("inner", 1.5), Defect("outer", 1.5)
    alone = {
        defects: vibration.simulate(Simulated(seconds=0.5), REFERENCE, defects, "test")
        for defects in ((), (inner,), (outer,), (inner, outer))
    }
    np.testing.assert_allclose(alone[inner, outer] + alone[()], alone[inner,] + alone[outer,], atol=1e-9)
    assert np.abs(alone[inner, outer] - alone[outer,]).max() > 0.1


# Noise.


@pytest.mark.parametrize("colour", [0.0, 1.0, 2.0])
def test_the_noise_has_the_slope_and_the_level_that_are_set(colour: float) -> None:
    noise = signals.coloured_noise(200001, 16000.0, colour, 20.0, np.random.default_rng(1))
    frequencies, power = processing.welch(noise, 16000, nperseg=4096)
    chosen = (frequencies > 60) & (frequencies < 7000)
    slope = np.polyfit(np.log(frequencies[chosen]), np.log(power[chosen]), 1)[0]
    assert slope == pytest.approx(-colour, abs=0.05)
    assert noise.size == 200001
    assert noise.std() == pytest.approx(1, rel=0.1)


def test_noise_grows_with_speed_and_force_as_set() -> None:
    noisy = replace(SILENT, noise=0.1, noise_corner=200.0)
    usual, slow, idle, light = (level(noisy.recording(condition, "healthy")) for condition in CONDITIONS)
    assert usual == pytest.approx(0.1, rel=0.05)
    assert slow == pytest.approx(0.06, rel=0.05)
    assert idle == pytest.approx(0.1, rel=0.05)
    assert light == pytest.approx(0.1 * 0.4**0.3, rel=0.05)


def test_quantised_samples_are_multiples_of_the_step() -> None:
    fine, coarse = (Simulated(seconds=0.5, quantum=step).recording(USUAL, "outer-2").signal for step in (0.0, 0.25))
    assert (coarse % 0.25 == 0).all()
    assert np.abs(coarse - fine).max() <= 0.125 + 1e-6
    assert not (fine % 0.25 == 0).any()


# Reproducibility.

SHORT = Simulated(seconds=0.25)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    for label in ("healthy", "both-2"):
        first = SHORT.recording(USUAL, label).signal
        assert (first == replace(SHORT).recording(USUAL, label).signal).all()
        other = replace(SHORT, seed=1).recording(USUAL, label).signal
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.9
        assert (first != other).mean() > 0.99


def test_recordings_do_not_depend_on_what_else_is_generated() -> None:
    few = {entry.origin: entry for entry in replace(SHORT, conditions=(LIGHT,), faults=("outer",)).catalogue().entries}
    many = {entry.origin: entry for entry in replace(SHORT, measurements=3).catalogue().entries}
    assert len(few) == 4
    for origin, entry in few.items():
        assert (entry.read().signal == many[origin].read().signal).all()
        assert entry.identity == many[origin].identity


def test_recordings_do_not_depend_on_the_order_of_reading() -> None:
    entries = replace(SHORT, conditions=(USUAL, SLOW), measurements=2).catalogue().entries
    forwards = [entry.read().signal for entry in entries]
    backwards = [entry.read().signal for entry in reversed(entries)][::-1]
    assert all((first == second).all() for first, second in zip(forwards, backwards, strict=True))
    assert len({signal.tobytes() for signal in forwards}) == len(entries)  # and no two are the same


def test_generating_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    SHORT.recording(USUAL, "inner-1")
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002


def test_the_identity_changes_with_every_setting_that_changes_the_samples() -> None:
    def first(settings: Simulated) -> str:
        return settings.catalogue().entries[0].identity

    changed = [replace(SHORT, seed=1), replace(SHORT, noise=0.2), replace(SHORT, severities=(0.5, 1.0, 2.0))]
    assert len({first(settings) for settings in [SHORT, *changed]}) == 4
    identities = [entry.identity for entry in replace(SHORT, measurements=2).catalogue().entries]
    assert len(set(identities)) == len(identities) == 80


# The dataset.


def test_the_catalogue_has_four_conditions_of_ten_classes_in_order() -> None:
    catalogue = SHORT.catalogue()
    assert catalogue.domains == ("N15_M07_F10", "N09_M07_F10", "N15_M01_F10", "N15_M07_F04")
    assert catalogue.classes == (
        *("healthy", "inner-1", "inner-2", "inner-3"),
        *("outer-1", "outer-2", "outer-3", "both-1", "both-2", "both-3"),
    )
    wanted = [(domain, label) for domain in catalogue.domains for label in catalogue.classes]
    assert [(entry.domain, entry.label) for entry in catalogue.entries] == wanted
    assert catalogue.entries[5].origin == "simulated/N15_M07_F10/outer-2/1"
    assert not catalogue.problems
    for entry, recording in zip(catalogue.entries, load(catalogue), strict=True):
        assert entry.file is None
        assert (recording.domain, recording.label, recording.origin) == (entry.domain, entry.label, entry.origin)
        assert (recording.rate, recording.signal.shape) == (16000.0, (4000,))


def test_a_label_stands_for_the_defects_it_names() -> None:
    classes = Simulated(faults=("both", "ball"), severities=(0.7, 2.0)).classes()
    assert classes == {
        "healthy": (),
        "both-1": (Defect("inner", 0.7), Defect("outer", 0.7)),
        "both-2": (Defect("inner", 2.0), Defect("outer", 2.0)),
        "ball-1": (Defect("ball", 0.7),),
        "ball-2": (Defect("ball", 2.0),),
    }


# Specimens.

SEVERAL = Simulated(seconds=0.25, specimens=3, faults=("inner", "outer", "ball"), conditions=(USUAL, SLOW))


def test_without_specimens_identities_are_those_of_before() -> None:
    # Identities name cached windows and runs; the digest was taken before there were specimens.
    identities = [entry.identity for entry in Simulated().catalogue().entries]
    assert hashlib.sha256("\n".join(identities).encode()).hexdigest().startswith("1b6328dc58842017")
    assert "specimen" not in identities[0]
    spec = partial(RunSpec, "simulated", task=Task(USUAL, SLOW), recipe_name="DANN", recipe=RECIPES["DANN"])
    assert "specimens" not in spec(dataset=Simulated()).data_dict()
    assert spec(dataset=SEVERAL).data_dict()["specimens"] == 3


def test_without_specimens_a_class_is_one_bearing_in_all_conditions() -> None:
    assert {SHORT.recording(condition, "inner-1").specimen for condition in CONDITIONS} == {"simulated inner-1"}


def test_specimens_are_bearings_of_a_type_each_in_every_condition() -> None:
    catalogue = replace(SEVERAL, measurements=2).catalogue()
    assert catalogue.classes == ("healthy", "inner", "outer", "ball")
    assert len(catalogue.entries) == 2 * 4 * 3 * 2
    recordings = load(replace(SEVERAL, seconds=0.05).catalogue())
    where = {(recording.label, recording.specimen, recording.domain) for recording in recordings}
    names = [(label, f"simulated {label}-s{number:02d}") for label in catalogue.classes for number in (1, 2, 3)]
    assert where == {(*name, condition) for name in names for condition in (USUAL, SLOW)}


def test_a_specimen_does_not_depend_on_which_others_exist() -> None:
    alone = replace(SEVERAL, specimens=2, faults=("inner",), conditions=(SLOW,)).catalogue().entries
    others = {entry.origin: entry for entry in replace(SEVERAL, specimens=5, measurements=2).catalogue().entries}
    for entry in alone:
        assert entry.identity == others[entry.origin].identity
        assert (entry.read().signal == others[entry.origin].read().signal).all()


@pytest.mark.parametrize("machines", [0, 2])
def test_what_differs_is_the_bearing_and_its_machine(machines: int) -> None:
    settings = replace(SEVERAL, machines=machines)
    made = [settings.specimen(name) for name in ("inner-s01", "inner-s02", "inner-s03")]
    for name in ("slip", "ball_diameter", "contact_angle", "clearance", "roughness", "impact", "outer_position"):
        assert len({getattr(specimen.settings, name) for specimen in made}) == 3
    for name in ("resonances", "dampings", "inner_cutoff", "noise", "noise_colour", "unbalance", "gear_amplitudes"):
        assert len({getattr(specimen.settings, name) for specimen in made}) == (machines or 3)
    assert len({specimen.defects[0].length for specimen in made}) == 3
    assert len({specimen.machine for specimen in made}) == (machines or 3)
    assert settings.recording(USUAL, "inner-s01").bearing == settings.bearing  # what is stated is the nominal one


def test_specimens_without_spread_are_all_as_set() -> None:
    settings = replace(SEVERAL, specimen_spread=0.0, severities=(0.5, 2.0))
    first, other = settings.specimen("outer-s01"), settings.specimen("outer-s02")
    assert first.settings == other.settings == replace(settings, specimens=0)
    assert first.defects == (Defect("outer", pytest.approx(1.0)),)


def test_defects_of_specimens_cover_the_range_of_severities() -> None:
    settings = Simulated(specimens=1, severities=(0.2, 2.5))
    defects = [settings.specimen(f"outer-s{number:02d}").defects for number in range(1, 201)]
    lengths = np.log([spots[0].length for spots in defects])
    assert math.log(0.2) <= lengths.min() < math.log(0.25) < math.log(2.0) < lengths.max() <= math.log(2.5)
    assert lengths.mean() == pytest.approx(math.log(0.5) / 2, abs=0.15)
    assert sum(len(spots) == 2 for spots in defects) == pytest.approx(50, abs=20)


def test_a_second_spall_is_struck_by_the_same_balls_a_little_later() -> None:
    turns = np.arange(16000) * REFERENCE.shaft / 16000
    settings = replace(STEADY, entry=0.0, slip_jitter=0.01)
    first, second = (
        vibration.strikes(settings, REFERENCE, Defect("outer", 1.0, lag), turns, np.random.default_rng(0))[0]
        for lag in (0.0, 0.5)
    )
    places = [processing.find_peaks(force, height=0.3 * force.max(), distance=50)[0] for force in (first, second)]
    count = min(map(len, places))
    delay = places[1][:count] - places[0][:count]
    assert delay == pytest.approx(np.full(count, 0.5 * 16000 / (ORDERS["BPFO"] * 25)), abs=2)


def test_races_that_swell_with_each_ball_put_a_line_at_bpfo_into_a_healthy_envelope() -> None:
    plain, swelling = (Simulated(swell=swell).recording(USUAL, "healthy") for swell in (0.0, 0.3))
    assert strongest(swelling, above=50, below=140) == pytest.approx(ORDERS["BPFO"] * 25, abs=0.5)
    assert prominence(swelling, ORDERS["BPFO"] * 25) > 2 * prominence(plain, ORDERS["BPFO"] * 25)
    identities = {replace(SHORT, swell=swell).catalogue().entries[0].identity for swell in (0.0, 0.1, 0.2)}
    assert len(identities) == 3


def test_groups_are_domains_that_share_no_bearing() -> None:
    catalogue = replace(SEVERAL, specimens=4, groups=2, machines=2).catalogue()
    assert catalogue.domains == ("group 1", "group 2")
    sides = [{entry.read().specimen for entry in catalogue.only([name]).entries} for name in catalogue.domains]
    assert not sides[0] & sides[1]
    assert {len(side) for side in sides} == {8}
    machines = [{entry.read().machine for entry in catalogue.only([name]).entries} for name in catalogue.domains]
    assert machines == [{"simulated 1"}, {"simulated 2"}]


def test_the_order_of_a_specimens_fault_is_near_the_stated_one_but_not_on_it() -> None:
    settings = Simulated(specimens=8)
    shares = [
        settings.specimen(f"outer-s{number:02d}").settings.bearing.orders()["BPFO"] / ORDERS["BPFO"]
        for number in range(1, 101)
    ]
    assert 0.002 < np.std(shares) < 0.02
    assert max(abs(share - 1) for share in shares) < 0.05


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("specimens", -1),
        ("specimen_spread", -0.5),
        ("swell", 1.5),
        ("groups", 2),
        ("seconds", -1.0),
        ("seconds", 1e-5),
        ("seconds", math.nan),
        ("rate", 0.0),
        ("rate", "fast"),
        ("seed", -1),
        ("seed", 0.5),
        ("measurements", 0),
        ("balls", 3.5),
        ("faults", ("inner", "outre")),
        ("faults", ("inner", "inner")),
        ("conditions", ("N15_M07_F11",)),
        ("conditions", ()),
        ("severities", ()),
        ("severities", (0.5, -1.0)),
        ("severities", (0.5, 9.0)),
        ("ball_diameter", 12.0),
        ("contact_angle", 90.0),
        ("slip", -0.1),
        ("slip_jitter", 0.5),
        ("unloaded", 1.5),
        ("noise", -0.1),
        ("noise_colour", math.inf),
        ("dampings", (0.04, 0.03)),
        ("dampings", (0.04, 0.03, 1.0)),
        ("resonance_gains", (1.0,)),
        ("inner_participation", (1.0,)),
        ("motor_amplitudes", (0.05,)),
        ("resonances", (870.0, 2250.0, 8000.0)),
        ("contact_resonance", 8100.0),
        ("gear_teeth", 0),
    ],
)
def test_a_bad_setting_is_refused_in_one_sentence_that_names_it(field: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        replace(Simulated(), **{field: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{field}: ")
    assert "\n" not in str(error.value)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'outer'"):
        Simulated(faults=("outre",))
    with pytest.raises(InputError, match="did you mean 'outer-1'"):
        SHORT.recording(USUAL, "outer_1")
    for wrong in ("outer", "outer-3", "outer-s00", "outer-sx", "outre-s01"):
        with pytest.raises(InputError, match="unknown class"):
            SEVERAL.recording(USUAL, wrong)
    with pytest.raises(InputError, match="unknown domain"):
        SHORT.recording("600rpm", "healthy")


@pytest.mark.parametrize("bad", [math.nan, math.inf, "many", True])
def test_every_number_among_the_settings_is_checked(bad: object) -> None:
    for field in fields(Simulated):
        if field.name not in ("conditions", "faults"):
            value = (bad,) if isinstance(field.default, tuple) else bad
            with pytest.raises(InputError, match=f"^{field.name}: "):
                replace(Simulated(), **{field.name: value})  # type: ignore[arg-type]


def test_a_recording_knows_its_speed_and_bearing() -> None:
    recording = Simulated(seconds=0.1, balls=9, ball_diameter=7.94, pitch_diameter=39.04).recording(SLOW, "healthy")
    assert recording.rpm == 900
    assert recording.bearing is not None
    assert recording.bearing.orders()["BPFO"] == pytest.approx(3.5848, abs=1e-4)


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parent.parent / "docs" / "simulator.md").read_text(encoding="utf-8")

    def text(value: object) -> str:
        if isinstance(value, tuple):
            return ", ".join(text(element) for element in value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    for field in fields(Simulated):
        assert f"| `{field.name}` | {text(field.default)} |" in page
    assert "no evidence about real machines" in " ".join(page.splitlines()[2:5])
