"""What the signals of a point say by themselves, without a trained model: quality, fault lines, the general model; and
the picture of it.

What cannot be done is a problem in words, never an exception: the other witnesses go on. A picture's spectrum is kept
in some hundred numbers, so that results and records hold their pictures without the recordings.

>>> channel = Channel("monday.wav", signal, rate=51_200)
>>> observe([channel], SpeedEvidence(rpm=900), BEARINGS["6205"]).physics.state
'outer race'
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats
from bearcat.diagnosis.combs import resample_in_angle
from bearcat.diagnosis.fusion import GeneralEvidence, Witnesses, general_evidence
from bearcat.diagnosis.lines import (
    DECIBELS,
    FAULTS,
    MULTIPLES,
    Doubles,
    Spectra,
    check_turns,
    envelope_spectra,
    find_family,
    last_family_order,
    last_order,
    levels_over_background,
    stacked,
)
from bearcat.diagnosis.physics import PhysicsEvidence, physics_evidence, required
from bearcat.diagnosis.quality import Channel, check_quality, clipped_share, level_values, vibration_severity
from bearcat.diagnosis.recording import EvidenceDrawing, Measured, Observation
from bearcat.diagnosis.speed import SpeedEvidence, beginning_of
from bearcat.errors import InputError
from bearcat.findings import CLIPPED_MUCH, Finding, unique

UNKNOWN_RPM, UNKNOWN_LAST = 1500.0, 20.0  # by which spectra are cut where the speed, and the bearing, are not known
POINTS = 480  # of a drawn spectrum, so that records stay small
COLOURS = dict(zip(FAULTS, ("#CC79A7", "#D55E00", "#0072B2"), strict=True))
Turning = list[tuple[Channel, Floats]]  # channels, and their signals where the shaft turns evenly


def observe(
    channels: Sequence[Channel], speed: SpeedEvidence, bearing: Bearing | None = None, track: Doubles | None = None,
    without: str | None = None, measured: bool = False, search: bool = False,
) -> Observation:  # fmt: skip
    """What the channels of one point say together.

    `without` names a dataset whose bench must not be known; `measured` keeps levels and spectra for a trend; `search`
    looks for lines of a bearing that nobody names. Where the speed varies, as `track` says, lines are read in the
    beginning of the recording, resampled in angle.
    """
    rpm, qualities = speed.rpm, [check_quality(channel) for channel in channels]
    checked = list(zip(channels, qualities, strict=True))
    alive = [channel for channel, quality in checked if quality.no_signal is None]
    first = alive[0] if alive else channels[0]
    severities = [vibration_severity(channel.beginning, channel.rate, channel.declared, rpm) for channel in channels]
    observation = Observation(
        first.name, Witnesses(without=without), rms=median(quality.rms for quality in qualities), speed=speed,
        vibration=max(severities, key=lambda severity: severity.velocity or 0.0),  # as ISO 20816 requires
    )  # fmt: skip
    if not alive:
        return replace(observation, no_signal=qualities[0].no_signal)
    findings = [finding for quality in qualities for finding in quality.findings]
    for channel, quality in checked:
        if (cause := quality.no_signal) is not None:
            findings.append(Finding("dead axis", "check", {**cause.values, "axis": channel.axis, "cause": cause.kind}))
    turning = [(channel, channel.signal) for channel in alive]
    if track is not None:
        turning = [(channel, resample_in_angle(beginning_of(channel.signal, channel.rate), track)) for channel in alive]
    joined = [signal for channel, signal in turning if channel.rate == first.rate]
    lines: Spectra | None = None
    try:
        if clipped_share(findings) > CLIPPED_MUCH:
            much = f"{100 * clipped_share(findings):.1f} % of its samples lie at the limits"
            raise InputError(f"is clipped, {much}; record it with less gain")
        if search and bearing is None and first.rate is not None and rpm is not None:
            last = last_family_order(first.rate, rpm)
            check_turns(joined[0], first.rate, rpm)
            families = [find_family(envelope_spectra(signal, first.rate, rpm, last), rpm) for signal in joined]
            observation = replace(observation, family=max(families, key=lambda family: family.level))
        else:
            rate, rpm, bearing = required(first.rate, rpm, bearing)
            last = last_order(bearing.orders())
            lines = stacked([envelope_spectra(signal, rate, rpm, last) for signal in joined])
            apart = [channel.axis for channel in alive if channel.rate != rate]
            findings += [Finding("axis apart", "check", {"axis": axis, "first": first.axis}) for axis in apart]
            check_turns(joined[0], rate, rpm)
            general = [general_evidence(signal, rate, rpm, bearing, without) for signal in joined]
            observation = _with_lines(observation, lines, rate, rpm, bearing, _mean(general))
    except InputError as error:
        observation = replace(observation, no_lines=error.with_traceback(None))
    if measured:
        kept = _measured(turning, speed.rpm, bearing, lines)
        observation = replace(observation, measured=kept, drawing=None)
    return replace(observation, observed=unique(findings))


def _with_lines(
    observation: Observation, lines: Spectra, rate: float, rpm: float, bearing: Bearing, general: GeneralEvidence | None
) -> Observation:
    """The observation with what physics reads in the spectra of all channels."""
    levels = levels_over_background(lines)
    physics = physics_evidence(lines, levels, rate, rpm, bearing.orders())
    if bearing.estimated:
        doubt = Finding("estimated geometry", "check", {"bearing": str(bearing)})
        physics = replace(physics, findings=(doubt, *physics.findings))
    row = DECIBELS * levels[physics.faults[physics.likeliest_fault].row]
    edges = np.linspace(0, len(row), min(POINTS, len(row)), endpoint=False).astype(np.int64)
    highest = np.maximum.reduceat(row, edges)  # of neighbours: no line is lost
    drawing = EvidenceDrawing(tuple(np.round(highest, 1).tolist()), (len(row) - 1) / lines.turns)
    witnesses = replace(observation.witnesses, physics=physics, general=general)
    return replace(observation, witnesses=witnesses, drawing=drawing)


def _measured(turning: Turning, rpm: float | None, bearing: Bearing | None, lines: Spectra | None) -> Measured:
    """Levels, of several channels the median, and spectra."""
    (first, signal), *_ = turning
    by_channel = [
        level_values(channel.beginning.astype(np.float64), channel.rate, channel.unit) for channel, _ in turning
    ]
    levels = {name: float(np.median([row[name] for row in by_channel if name in row])) for name in by_channel[0]}
    spectra, turns = lines, None
    if first.rate is not None:
        turns = None if rpm is None else signal.size / first.rate * rpm / 60
        with suppress(InputError):  # no vibration, which the quality says
            spectra = lines or envelope_spectra(signal, first.rate, rpm or UNKNOWN_RPM, UNKNOWN_LAST)
    if spectra is not None:
        levels["envelope_kurtosis"] = float(spectra.kurtosis.max())
        spectra = spectra if rpm is not None else replace(spectra, turns=0.0)
    return Measured(levels, spectra, first.rate, None if bearing is None else bearing.orders(), turns)


def _mean(evidence: Sequence[GeneralEvidence | None]) -> GeneralEvidence | None:
    """The general model's word on a point by that on its channels."""
    channels = [channel for channel in evidence if channel is not None]
    if not channels:
        return None
    return GeneralEvidence({
        state: float(np.mean([channel.probabilities[state] for channel in channels]))
        for state in channels[0].probabilities
    })  # fmt: skip


# The picture.


def draw(figure: Any, drawing: EvidenceDrawing, physics: PhysicsEvidence) -> None:
    """The envelope spectrum over its background by order, with the multiples of each fault's order dashed; those of the
    likeliest are named.
    """
    axis, levels, shaft, likeliest = figure.subplots(), drawing.levels, physics.rpm / 60, physics.likeliest_fault
    axis.plot(np.linspace(0, drawing.last, len(levels)), levels, color="#444444", linewidth=0.6)
    highest = max(12.0, 1.45 * max(levels))
    for fault, lines in physics.faults.items():
        (name, times, _), strong, colour = FAULTS[fault], fault == likeliest, COLOURS[fault]
        for number, line in zip(MULTIPLES, lines.lines, strict=True):
            order = number * lines.hertz / shaft
            axis.axvline(order, linestyle=(0, (4, 2)), linewidth=0.9 if strong else 0.5, color=colour, zorder=0)
            if strong:
                text = f"{number * times if number * times > 1 else ''}{name}\n{line:.0f} dB"
                axis.text(order, highest, text, color=colour, ha="center", va="top", fontsize=5.5, backgroundcolor="w")
    low, high = physics.faults[likeliest].band
    band = f"envelope of {low / 1000:.3g}–{high / 1000:.3g} kHz"
    axis.set(xlim=(0, drawing.last), ylim=(min(-6.0, float(np.quantile(levels, 0.01))), highest))
    axis.set_xlabel(f"order (1 is the shaft's {shaft:.2f} Hz); {band}", fontsize=6, labelpad=1)
    axis.set_ylabel("dB", fontsize=6, labelpad=1)
    axis.tick_params(labelsize=5.5, pad=1.5)
