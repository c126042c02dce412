"""Curves of a recording in a bounded number of points, computed block by block.

Waveform: the lowest and highest sample of so many parts. Spectra: root mean square over segments that overlap by half;
then the highest of neighbouring bins, so that no line is lost. Marks: shaft and fault frequencies, and how many dB the
envelope spectrum rises there above its background.

>>> picture = RecordingPicture(rate=12_000.0)
>>> pooled = pool_stream(model, replace(stream, blocks=picture.observe(stream.blocks)))
>>> picture.to_dict(marks_of(BEARINGS["6205"], rpm=1797))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Mark
from bearcat.data.recording import Floats, envelope_spectrum, spectrum
from bearcat.diagnosis.physics import DECIBELS, REACH

POINTS = 800  # of a curve, at most (twice as many parts of a waveform)
DETAIL = 1200  # samples drawn one by one
SECONDS = 2.0  # a segment of the spectra, or a little more: lines half a hertz wide
LONGEST = 2**18  # samples a segment
UNKNOWN = 2**15  # samples a segment where the rate is unknown
SEGMENTS = 64  # averaged at most: about a minute
ENVELOPE_RANGE = 500.0  # hertz shown of an envelope spectrum, where no fault frequencies are marked
NEAR = 0.02  # bearings slip: a line lies within this share of its frequency
FEWEST = 20  # bins on either side of a line that make its background

Doubles = NDArray[np.float64]


class Folded:
    """A growing number of rows, of which at most 2 · `most` are kept: when there are more, neighbours are joined.

    `join` is np.add or np.maximum; a kept row stands for `each` of those that were added.
    """

    def __init__(self, columns: int, join: np.ufunc, most: int = POINTS) -> None:
        self.columns, self.most, self.each = columns, most, 1
        self._join = partial(join.reduce, axis=1)  # (row, neighbour, column) → (row, column)
        self._rows = self._rest = np.empty((0, columns))

    def add(self, rows: NDArray[Any]) -> None:
        held = np.concatenate([self._rest, rows])
        while True:
            full = min(len(held) // self.each, 2 * self.most - len(self._rows))
            parts = held[: full * self.each].reshape(full, self.each, self.columns)
            self._rows = np.concatenate([self._rows, self._join(parts)])
            held = held[full * self.each :]
            if len(self._rows) < 2 * self.most:
                break
            self._rows = self._join(self._rows.reshape(self.most, 2, self.columns))
            self.each *= 2
        self._rest = held.copy()

    def rows(self) -> Doubles:
        """What is kept; the last row may stand for fewer than `each`."""
        return np.concatenate([self._rows, self._join(self._rest[None])]) if len(self._rest) else self._rows


class RecordingPicture:
    """Curves of one recording, as it was recorded. `rate` in Hz, or None where it is unknown."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        wanted = UNKNOWN if rate is None else 2 ** math.ceil(math.log2(max(SECONDS * rate, 64)))
        self.length = min(wanted, LONGEST)
        self.samples = 0
        self._waveform = Folded(2, np.maximum)  # of the lowest sample, negated, and the highest
        self._detail = self._held = np.empty(0, dtype=np.float32)
        self._squares: Doubles | None = None  # (spectrum and envelope, bin)
        self._segments = 0

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the curves are computed of what passes."""
        for block in blocks:
            self._add(block)
            yield block

    def to_dict(self, marks: Sequence[Mark] = ()) -> dict[str, Any]:
        """The curves in plain lists and numbers; the first mark is the shaft's."""
        if not self._segments and self._held.size >= 4:
            self._measure(self._held)
        power = (self._squares if self._squares is not None else np.zeros((2, 2))) / max(self._segments, 1)
        bins = power.shape[1]
        step = (1.0 if self.rate is None else self.rate) / (2 * bins)  # spectrum() keeps length // 2 bins
        # A little past the last mark; further where the shaft's alone is marked.
        last = max([1.15 * mark.hertz for mark in marks] + [100.0]) if len(marks) > 1 else ENVELOPE_RANGE
        reach = bins if self.rate is None else min(bins, math.ceil(last / step))
        low, high = self._waveform.rows().T if self.samples else np.zeros((2, 0))
        second = 1.0 if self.rate is None else 1 / self.rate
        averaged = min(self.length * (self._segments + 1) / 2, self.samples)
        return {
            "rate": self.rate,
            "samples": self.samples,
            "averaged_seconds": None if self.rate is None else averaged / self.rate,
            "waveform": {"step": self._waveform.each * second, "low": _short(-low), "high": _short(high)},
            "detail": {"step": second, "values": _short(self._detail)},
            "spectrum": _curve(np.sqrt(power[0]), step),
            "envelope": _curve(np.sqrt(power[1, :reach]), step),
            "marks": [
                vars(mark) | {"level": _level(power[1], step, mark.hertz, marks[0].hertz)}
                for mark in marks
                if self.rate is not None and mark.hertz < reach * step
            ],
        }

    def _add(self, block: Floats) -> None:
        self.samples += block.size
        self._waveform.add(np.stack([-block, block], axis=1))
        if self._detail.size < DETAIL:
            self._detail = np.concatenate([self._detail, block[: DETAIL - self._detail.size]])
        self._held = np.concatenate([self._held, block]) if self._segments < SEGMENTS else self._held[:0]
        while self._held.size >= self.length and self._segments < SEGMENTS:
            self._measure(self._held[: self.length])
            self._held = self._held[self.length // 2 :].copy()

    def _measure(self, segment: Floats) -> None:
        exact = segment.astype(np.float64)
        centred = exact - exact.mean()
        taper = np.hanning(centred.size)
        scale = np.abs(centred).max() or 1.0  # squares of squares leave float32 soon
        lines = spectrum((centred / scale * taper).astype(np.float32)) * (2 / taper.mean())  # a sine's amplitude
        envelope = envelope_spectrum((centred / scale).astype(np.float32))
        with np.errstate(over="ignore"):
            found = np.stack([lines.astype(np.float64) * scale, envelope.astype(np.float64) * scale**2]) ** 2
        self._squares = found if self._squares is None else self._squares + found
        self._segments += 1


def _curve(values: Doubles, step: float) -> dict[str, Any]:
    """At most POINTS values, the highest of `each` neighbours; `start` is the middle of the first of them."""
    each = max(math.ceil(len(values) / POINTS), 1)
    highest = np.pad(values, (0, -len(values) % each), mode="edge").reshape(-1, each).max(axis=1)
    return {"start": step * (each - 1) / 2, "step": step * each, "values": _short(highest)}


def _level(power: Doubles, step: float, hertz: float, shaft: float) -> float | None:
    """dB of the highest power near a frequency over the median within REACH orders of it, as in the physics check."""

    def within(reach: float) -> Doubles:
        return power[max(math.floor((hertz - reach) / step), 1) : math.ceil((hertz + reach) / step) + 1]

    near, around = within(NEAR * hertz + step), within(max(REACH * shaft, FEWEST * step))
    background = float(np.median(around)) if around.size else 0.0
    found = float(near.max()) if near.size else 0.0
    known = all(0 < value < math.inf for value in (found, background))
    return round(DECIBELS * math.log(found / background), 1) if known else None


def _short(values: NDArray[Any]) -> list[float]:
    """Four digits are enough to draw."""
    return [float(f"{value:.4g}") for value in np.nan_to_num(values).tolist()]


def timeline(folded: Folded, classes: int, step: float) -> dict[str, Any]:
    """Rows (windows of each class, sum of confidences, unfamiliar windows) → the timeline of windows."""
    rows = folded.rows()
    windows = rows[:, :classes]
    count = np.maximum(windows.sum(axis=1), 1)
    return {
        "step": step * folded.each,
        "windows": folded.each,
        "class": windows.argmax(axis=1).tolist(),
        "confidence": _short(rows[:, classes] / count),
        "unfamiliar": _short(rows[:, classes + 1] / count),
    }
