"""Cuts a recording into windows, block by block, and classifies them: a day takes no more memory than a minute.

>>> stream, findings = at_rate_of(model, open_stream(Path("monday.wav")))
>>> pooled = pool(tally_stream(model, stream), model.pooled_temperature, model.familiarity)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats, change_rate, cut_samples, rate_ratio, spectral_shape
from bearcat.data.signals import BLOCK
from bearcat.data.stream import Stream
from bearcat.deploy.find import FoundRecording, Given
from bearcat.deploy.opened import Predictor
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.fusion import NetworkEvidence
from bearcat.diagnosis.pooling import Pooled, Tally, pool, tally
from bearcat.diagnosis.speed import SpeedEvidence, reading_speed
from bearcat.errors import InputError
from bearcat.findings import Finding

BATCH = 256  # windows handed to the model at once


def ask(
    model: Predictor, channels: Iterable[tuple[FoundRecording, Stream]], measured: SpeedEvidence, given: Given
) -> tuple[NetworkEvidence, list[Finding]]:
    """Classifies the windows of all axes of a point at the measured or stated speed; also returns remarks."""
    tallies, noticed = list[Tally](), list[Finding]()
    for recording, stream in channels:
        rpm, _ = given.rpm_of(recording, stream)
        unknown = "rpm" in model.needs and rpm is None and model.rpm is None
        rpm = measured.rpm if unknown else reading_speed(measured, rpm)
        if unknown and rpm is not None:
            noticed.append(Finding("measured speed", "remark", {"rpm": rpm}))
        elif "rpm" in model.needs and rpm is None:
            noticed.append(Finding("usual speed", "remark", {"rpm": model.rpm}))
        stream, about_rate = at_rate_of(model, stream, given.rate)
        tallies.append(tally_stream(model, stream, rpm, given.bearing_of(recording)))
        noticed += about_rate
    pooled = pool(reduce(add, tallies), model.pooled_temperature, model.familiarity)
    return network_evidence(pooled, model.classes, model.decision, model.shift), noticed


def network_evidence(pooled: Pooled, classes: Sequence[str], decision: Decision, shift: str | None) -> NetworkEvidence:
    """A model's pooled windows as evidence; `decision` is its recommendation, `shift` leads to its target."""
    shares = dict(zip(classes, pooled.probabilities.tolist(), strict=True))
    return NetworkEvidence(
        shares, pooled.agreement, pooled.windows, decision.action, decision.expected, pooled.unfamiliar,
        pooled.familiar, shift,
    )  # fmt: skip


def at_rate_of(model: Predictor, stream: Stream, rate: float | None = None) -> tuple[Stream, list[Finding]]:
    """The stream at the model's rate, and remarks; `rate` is that of files which state none."""
    origin, model_rate, rate_of_stream = stream.origin, model.sampling_rate, stream.rate or rate
    findings, blocks = list[Finding](), stream.blocks
    if model_rate is None and rate_of_stream is not None:
        findings.append(Finding("model without rate", "remark", {"rate": rate_of_stream}))
    elif model_rate is not None and rate_of_stream is None:
        if model.preparation.rate is None:
            raise InputError(
                f"{origin}: does not state its sampling rate; give it (the model's is {model_rate:g} Hz)", "rate"
            )
        findings.append(Finding("rate assumed", "remark", {"rate": model_rate}))  # as in training
    elif model_rate is not None and rate_of_stream is not None and rate_of_stream != model_rate:
        ratio = rate_ratio(origin, rate_of_stream, model_rate)
        blocks = resampled(blocks, ratio.numerator, ratio.denominator)
        findings.append(Finding("resampled", "remark", {"rate": rate_of_stream, "to": model_rate}))
        if rate_of_stream < model_rate:
            findings.append(Finding("missing frequencies", "remark", {"hertz": rate_of_stream / 2}))
    return Stream(origin, model_rate or rate_of_stream, blocks), findings


def tally_stream(model: Predictor, stream: Stream, rpm: float | None = None, bearing: Bearing | None = None) -> Tally:
    """Sums and counts over the windows of a recording of any length, at the model's rate."""
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
    # base: the sample at which `buffer` begins, which is the start of the next window or before it
    buffer, base = np.empty(0, dtype=np.float32), 0
    skip = 0  # samples still to come that are in no window, because the step is longer than a window
    for block in blocks:
        dropped = min(skip, block.size)
        skip -= dropped
        buffer = np.concatenate([buffer, block[dropped:]])
        while buffer.size >= length:
            count = min((buffer.size - length) // step + 1, batch)
            yield base, cut_samples(buffer, length, step)[:count]
            base += count * step
            skip = max(count * step - buffer.size, 0)
            buffer = buffer[count * step :]


def resampled(blocks: Iterable[Floats], up: int, down: int) -> Iterator[Floats]:
    """Blocks at up/down times the rate, as scipy's resample_poly would make them of the whole signal."""
    if up == down:
        yield from blocks
        return
    most = max(up, down)
    # The filter reaches this many samples to both sides, so a piece is computed with these neighbours. Pieces begin at
    # multiples of `down`, where a sample of the input falls on one of the output.
    reach, step = math.ceil(10 * most / up) + 1, max(BLOCK * down // up, 1)
    buffer, base, done = np.empty(0, dtype=np.float32), 0, 0  # base: sample of the input; done: of the output

    def piece_until(until: int) -> Floats:
        first = base // down * up
        return change_rate(buffer, up, down)[done - first : until - first]

    for piece in (block[start : start + step] for block in blocks for start in range(0, block.size, step)):
        buffer = np.concatenate([buffer, piece])
        until = (base + buffer.size - reach) * up // down
        if until > done:
            yield piece_until(until)
            done = until
            start = max(done * down // up - reach, 0) // down * down
            buffer, base = buffer[max(start - base, 0) :], max(start, base)
    if buffer.size:
        yield piece_until(math.ceil((base + buffer.size) * up / down))
