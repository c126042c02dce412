"""Recordings → the windows a network is given.

>>> windows = prepare(recordings, Preparation(input="frequency"))
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from bearcat.data.inputs import INPUTS, find_input
from bearcat.data.recording import Floats, Recording, RecordingInfo, Windows, cut, cut_samples, resample, spectral_shape
from bearcat.errors import InputError
from bearcat.settings import spell_out

# Windows worked on at once: about a recording of the paper; smaller chunks make the threads wait for each other. And
# samples, which bound the memory where windows are long.
CHUNK, CHUNK_SAMPLES = 256, 1 << 20


@dataclass(frozen=True)
class Preparation:
    """How windows are made of recordings. The defaults are the paper's (docs/protocol.md)."""

    input: str = "time"  # a row of INPUTS, as NAME or NAME:SETTING=VALUE; kept with every setting spelt out
    length: int = 1024  # samples a window
    stride: int | None = None  # samples from one window to the next; None: the length, no overlap
    rate: float | None = None  # resample everything to this rate; None: as recorded

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", spell_out(self.input, INPUTS, "input"))
        if self.length < 2 or (self.stride is not None and self.stride < 1):
            raise InputError(f"length must be at least 2 and stride at least 1, not {self.length} and {self.stride}")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise InputError(f"rate must be a positive number of hertz, not {self.rate:g}")

    @property
    def step(self) -> int:
        return self.length if self.stride is None else self.stride

    @property
    def points(self) -> int:
        """The length of a prepared window."""
        return find_input(self.input).points(self.length)


def prepare(recordings: Sequence[Recording], preparation: Preparation) -> Windows:
    """Cut, transform and standardise all windows of these recordings, in order, into one float32 array."""
    if preparation.rate is not None:
        recordings = [resample(recording, preparation.rate) for recording in recordings]
    if sentence := different_rates({recording.rate: recording.origin for recording in reversed(recordings)}):
        raise InputError(sentence)
    chosen, length = find_input(preparation.input), preparation.length
    for recording in recordings:
        try:
            chosen.check(length, recording.rate, recording.rpm, recording.bearing)
        except InputError as error:
            raise InputError(f"{recording.origin}: {error}", error.field) from error
    parts = [cut(recording, length, preparation.step) for recording in recordings]
    counts = [len(part) for part in parts]
    values = np.empty((sum(counts), 1, preparation.points), dtype=np.float32)
    bands = spectral_shape(np.zeros((1, 1, length), dtype=np.float32)).shape[1]
    shapes = np.empty((sum(counts), bands), dtype=np.float32)
    ends, workers = np.cumsum(counts), min(8, os.cpu_count() or 1)
    size = max(1, min(CHUNK, CHUNK_SAMPLES // length))

    def work(first: int) -> None:  # numpy lets go of the interpreter, so threads help
        for number in range(first, len(parts), workers):
            recording, part, place = recordings[number], parts[number], ends[number] - counts[number]
            speeds = None if recording.speed is None else cut_samples(recording.speed, length, preparation.step)
            for start in range(0, len(part), size):
                chunk = part[start : start + size]
                rpm = recording.rpm if speeds is None else speeds[start : start + size]
                rows = slice(place + start, place + start + len(chunk))
                values[rows] = chosen.transform(chunk, recording.rate, rpm, recording.bearing)
                shapes[rows] = spectral_shape(chunk)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return assemble(values, shapes, counts, preparation, [recording.info() for recording in recordings])


def assemble(
    values: Floats, shapes: Floats, counts: Sequence[int], preparation: Preparation, recordings: Sequence[RecordingInfo]
) -> Windows:
    """Windows out of prepared values that stand in the order of their recordings, so many of each."""
    counted = np.asarray(counts, dtype=np.int64)
    first = np.repeat(np.cumsum(counted) - counted, counted)
    return Windows(
        values=values,
        recording=np.repeat(np.arange(len(counted), dtype=np.int64), counted),
        start=(np.arange(len(values), dtype=np.int64) - first) * preparation.step,
        span=preparation.length,
        recordings=tuple(recordings),
        shapes=shapes,
    )


def different_rates(rates: Mapping[float | None, str]) -> str | None:
    """The sentence for several rates, each with an example of who has it; None where there is but one."""
    if len(rates) < 2:
        return None
    listed = ", ".join(f"{who}: {'unknown' if rate is None else f'{rate:g} Hz'}" for rate, who in rates.items())
    lowest = min(rate for rate in rates if rate is not None)
    return f"the recordings have different sampling rates ({listed}); bring them to one with --rate {lowest:g}"
