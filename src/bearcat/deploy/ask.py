"""Cuts a recording into windows, block by block, and classifies them: a day needs no more memory than a minute.

>>> stream, findings = at_rate_of(model, open_stream(Path("monday.wav")))
>>> pooled = pool(tally_stream(model, stream), model.pooled_temperature, model.familiarity)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import add

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats, change_rate, cut_samples, rate_ratio, spectral_shape
from bearcat.data.signals import BLOCK
from bearcat.data.stream import Stream
from bearcat.deploy.find import FoundRecording, Given
from bearcat.deploy.opened import Predictor
from bearcat.diagnosis.pooling import Tally, tally
from bearcat.diagnosis.speed import SpeedEvidence, reading_speed
from bearcat.errors import InputError
from bearcat.findings import Finding

BATCH = 256  # windows handed to the model at once


def ask(
    model: Predictor, found: FoundRecording, stream: Stream, measured: SpeedEvidence, given: Given
) -> tuple[Tally, list[Finding]]:
    """The model's answer for the windows of a channel, at the measured or stated speed; and remarks."""
    (rpm, _), noticed = given.rpm_of(found, stream), list[Finding]()
    unknown = "rpm" in model.needs and rpm is None and model.rpm is None
    rpm = measured.rpm if unknown else reading_speed(measured, rpm)
    if unknown and rpm is not None:
        noticed.append(Finding("measured speed", "remark", {"rpm": rpm}))
    elif "rpm" in model.needs and rpm is None:
        noticed.append(Finding("usual speed", "remark", {"rpm": model.rpm}))
    stream, about_rate = at_rate_of(model, stream, given.rate)
    return tally_stream(model, stream, rpm, given.bearing_of(found)), noticed + about_rate


def at_rate_of(model: Predictor, stream: Stream, rate: float | None = None) -> tuple[Stream, list[Finding]]:
    """The stream at the model's rate, and remarks; `rate` is of files without one."""
    origin, wanted, own = stream.origin, model.sampling_rate, stream.rate or rate
    findings, blocks = list[Finding](), stream.blocks
    if wanted is None and own is not None:
        findings.append(Finding("model without rate", "remark", {"rate": own}))
    elif wanted is not None and own is None:
        if model.preparation.rate is None:
            raise InputError(
                f"{origin}: does not say its sampling rate; give it (the model's is {wanted:g} Hz)", "rate"
            )
        findings.append(Finding("rate assumed", "remark", {"rate": wanted}))  # as in training
    elif wanted is not None and own is not None and own != wanted:
        ratio = rate_ratio(origin, own, wanted)
        blocks = resampled(blocks, ratio.numerator, ratio.denominator)
        findings.append(Finding("resampled", "remark", {"rate": own, "to": wanted}))
        if own < wanted:
            findings.append(Finding("missing frequencies", "remark", {"hertz": own / 2}))
    return Stream(origin, wanted or own, blocks), findings


def tally_stream(model: Predictor, stream: Stream, rpm: float | None = None, bearing: Bearing | None = None) -> Tally:
    """Sums and counts of the windows of a recording of any length, at the model's rate."""
    if model.channels != 1:
        several = f"the model takes {model.channels} channels at once, and a file is read one channel at a time"
        raise InputError(f"{stream.origin}: {several}; call the model in Python", readable=True)
    length, tallies = model.preparation.length, list[Tally]()
    for _, windows in cut_stream(stream.blocks, length, model.preparation.step, BATCH):
        outputs, unfamiliar = model.outputs(windows[:, None], rpm or model.rpm, bearing or model.bearing), None
        if model.familiarity is not None:
            unfamiliar = model.familiarity.unfamiliar(outputs.features, spectral_shape(windows[:, None]))
        tallies.append(tally(outputs.log_probabilities, unfamiliar))
    if not tallies:
        short = f"is shorter than one window of {length} samples"
        raise InputError(f"{stream.origin}: {short}; record for longer", readable=True)
    return reduce(add, tallies)


def cut_stream(blocks: Iterable[Floats], length: int, step: int, batch: int) -> Iterator[tuple[int, Floats]]:
    """Blocks (time,) → (first window's start, windows (≤ batch, length)), as cutting the whole signal would give."""
    held, base = np.empty(0, dtype=np.float32), 0  # base: the sample at which `held` begins; a window's start, or ahead
    skip = 0  # samples still to come that no window wants, where the step is longer than a window
    for block in blocks:
        dropped = min(skip, block.size)
        skip -= dropped
        held = np.concatenate([held, block[dropped:]])
        while held.size >= length:
            count = min((held.size - length) // step + 1, batch)
            yield base, cut_samples(held, length, step)[:count]
            base += count * step
            skip = max(count * step - held.size, 0)
            held = held[count * step :]


def resampled(blocks: Iterable[Floats], up: int, down: int) -> Iterator[Floats]:
    """Blocks at up/down times the rate, as scipy's resample_poly would make them of the whole signal."""
    if up == down:
        yield from blocks
        return
    most = max(up, down)
    # The filter reaches so many samples to both sides; each piece is computed with these neighbours, and pieces begin
    # at multiples of `down`, where a sample before falls on one after.
    reach, step = math.ceil(10 * most / up) + 1, max(BLOCK * down // up, 1)
    held, base, done = np.empty(0, dtype=np.float32), 0, 0  # base: of the input; done: of the output

    def made(until: int) -> Floats:
        first = base // down * up
        return change_rate(held, up, down)[done - first : until - first]

    for piece in (block[start : start + step] for block in blocks for start in range(0, block.size, step)):
        held = np.concatenate([held, piece])
        until = (base + held.size - reach) * up // down
        if until > done:
            yield made(until)
            done = until
            start = max(done * down // up - reach, 0) // down * down
            held, base = held[max(start - base, 0) :], max(start, base)
    if held.size:
        yield made(math.ceil((base + held.size) * up / down))
