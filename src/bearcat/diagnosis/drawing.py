"""The picture of a recording's evidence: its envelope spectrum with the fault lines, and its waveform.

What is drawn is kept in some hundred numbers, so that results and records hold their pictures without the recordings.

>>> draw(matplotlib.figure.Figure(), diagnosis.drawing, diagnosis.physics)
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats, Integers
from bearcat.diagnosis.lines import DECIBELS, FAULTS, MULTIPLES
from bearcat.diagnosis.physics import PhysicsEvidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Doubles = NDArray[np.float64]

POINTS = 480  # of a spectrum; a waveform has as many parts, each with its lowest and its highest sample
SHOWN_SECONDS, SHOWN_SAMPLES = 1.0, 1 << 15  # of a waveform; samples where the rate is not known
LOWEST, STEP = -20.0, 0.5  # dB: a level is kept as a whole number of steps above the lowest
MOST_TEXT = 4 * POINTS  # characters of a curve
COLOURS = dict(zip(FAULTS, ("#CC79A7", "#D55E00", "#0072B2"), strict=True))


@dataclass(frozen=True)
class EvidenceDrawing:
    """Curves of a recording; each is a text, a byte for each number, so that a record stays small."""

    waveform: str  # the lowest sample of each part, then the highest, from −peak to peak
    peak: float
    seconds: float | None  # that the waveform lasts; None: the rate is not known
    levels: str = ""  # of the envelope spectrum over its background
    last: float = 0.0  # order, of the levels
    cage: float = 0.0  # its order

    def __post_init__(self) -> None:
        for text in (self.waveform, self.levels):
            if len(text) > MOST_TEXT:
                raise ValueError("the drawing is longer than those of bearcat")
            _bytes(text)

    @staticmethod
    def of(samples: Floats, rate: float | None) -> EvidenceDrawing:
        """Of the beginning (time,) of a recording."""
        beginning = samples[: SHOWN_SAMPLES if rate is None else max(2, int(SHOWN_SECONDS * rate))]
        edges = _edges(len(beginning))
        low, high = np.minimum.reduceat(beginning, edges), np.maximum.reduceat(beginning, edges)
        peak = float(max(high.max(), -low.min())) or 1.0
        waveform = _text(127.5 + 127.5 * np.concatenate([low, high], dtype=np.float64) / peak)
        return EvidenceDrawing(waveform, peak, None if rate is None else len(beginning) / rate)

    def with_spectrum(self, levels: Doubles, turns: float, cage: float) -> EvidenceDrawing:
        """The same with an envelope spectrum's levels (bin,) over background, so many bins an order apart."""
        highest = DECIBELS * np.maximum.reduceat(levels, _edges(len(levels)))  # of neighbours: no line is lost
        last = (len(levels) - 1) / turns
        return replace(self, levels=_text((highest - LOWEST) / STEP), last=last, cage=cage)

    @property
    def extremes(self) -> tuple[Doubles, Doubles]:
        """(part,) the lowest and the highest sample of each part of the waveform."""
        low, high = np.split(self.peak * (_bytes(self.waveform) / 127.5 - 1), 2)
        return low, high

    @property
    def decibels(self) -> Doubles:
        """(point,) of the envelope spectrum over its background, from order 0 to `last`."""
        return LOWEST + STEP * _bytes(self.levels)


@lru_cache(maxsize=8)
def _edges(size: int) -> Integers:
    """Where POINTS parts of so many numbers begin, or fewer."""
    return np.linspace(0, size, min(POINTS, size), endpoint=False).astype(np.int64)


def _text(values: Doubles) -> str:
    return base64.b64encode(np.clip(np.rint(values), 0, 255).astype(np.uint8).tobytes()).decode("ascii")


def _bytes(text: str) -> Doubles:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8).astype(np.float64)


def draw(figure: Any, drawing: EvidenceDrawing, physics: PhysicsEvidence | None, small: bool = False) -> None:
    """The envelope spectrum with its fault lines where physics could read them, and the waveform below.

    A `small` one names the lines of the likeliest fault alone.
    """
    spectral = physics is not None and bool(drawing.levels)
    axes = figure.subplots(1 + spectral, height_ratios=[4, 1] if spectral else [1], squeeze=False)[:, 0]
    if physics is not None and spectral:
        _draw_spectrum(axes[0], drawing, physics, small)
    low, high = drawing.extremes
    times = np.linspace(0, 1 if drawing.seconds is None else drawing.seconds, len(low))
    axes[-1].fill_between(times, low, high, color="#444444", linewidth=0.3)
    axes[-1].set(xlim=(0, times[-1]), ylim=(-1.05 * drawing.peak, 1.05 * drawing.peak))
    axes[-1].set_xlabel("share of the waveform" if drawing.seconds is None else "waveform, seconds")
    axes[-1].set_yticks([-drawing.peak, drawing.peak], [f"−{drawing.peak:.2g}", f"{drawing.peak:.2g}"])
    for axis in axes if small else ():
        axis.tick_params(labelsize=5.5, pad=1.5)
        axis.xaxis.label.set_size(6)
        axis.yaxis.label.set_size(6)
        axis.xaxis.labelpad = axis.yaxis.labelpad = 1


def _draw_spectrum(axis: Axes, drawing: EvidenceDrawing, physics: PhysicsEvidence, small: bool) -> None:
    """Level over background by order; multiples of each fault's order dashed, sidebands of the likeliest dotted."""
    levels, shaft = drawing.decibels, physics.rpm / 60
    axis.plot(np.linspace(0, drawing.last, len(levels)), levels, color="#444444", linewidth=0.6)
    highest = max(12.0, 1.45 * float(levels.max()))
    for fault, lines in physics.faults.items():
        (name, times, modulator), strong = FAULTS[fault], fault == physics.likeliest_fault
        style: dict[str, Any] = {"color": COLOURS[fault], "zorder": 0}
        for number, line in zip(MULTIPLES, lines.lines, strict=True):
            order = number * lines.hertz / shaft
            axis.axvline(order, linestyle=(0, (4, 2)), linewidth=0.9 if strong else 0.5, **style)
            text = f"{number * times if number * times > 1 else ''}{name}"
            text += f"\n{line:.0f} dB" if strong else ""
            if strong or not small:
                axis.text(
                    order, highest, text, color=COLOURS[fault], ha="center", va="top" if strong else "bottom",
                    fontsize=5.5 if small else 6.5, backgroundcolor="#ffffffcc" if strong else "none",
                )  # fmt: skip
            side = {"shaft": 1.0, None: 0.0}.get(modulator, drawing.cage) if strong else 0.0
            for at in (order - side, order + side) if side else ():
                axis.axvline(at, linestyle=(0, (1, 1.5)), linewidth=0.7, **style)
    low, high = physics.faults[physics.likeliest_fault].band
    band = f"envelope of {low / 1000:.3g}–{high / 1000:.3g} kHz"
    axis.set(xlim=(0, drawing.last), ylim=(min(-6.0, float(np.quantile(levels, 0.01))), highest))
    axis.set_xlabel(f"order (1 is the shaft's {shaft:.2f} Hz){f'; {band}' if small else ''}")
    axis.set_ylabel("dB" if small else f"{band}, dB")
