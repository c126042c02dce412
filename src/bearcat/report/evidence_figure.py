"""The picture of a physical diagnosis: the envelope spectrum in the best band, with the orders where faults show.

>>> draw_evidence(diagnosis).render("png")
"""

from __future__ import annotations

import numpy as np

from bearcat.diagnosis.evidence import FAULTS, MULTIPLES
from bearcat.diagnosis.physical import DECIBELS, WORDS, PhysicalDiagnosis
from bearcat.report.drawing import PALETTE, WIDE, ReportFigure, empty_figure, house_style, shortened

COLOURS = dict(zip(FAULTS, (PALETTE[3], PALETTE[1], PALETTE[0]), strict=True))


@house_style()
def draw_evidence(diagnosis: PhysicalDiagnosis) -> ReportFigure:
    """Level over background by order; multiples of each fault's order dashed, sidebands of the likeliest dotted."""
    drawing = empty_figure(WIDE, 2.9)
    axis = drawing.subplots()
    shown = diagnosis.evidence.faults[diagnosis.shown]
    levels = DECIBELS * diagnosis.levels[shown.row]
    orders = np.arange(levels.size) / diagnosis.turns
    axis.plot(orders, levels, color="#444444", linewidth=0.7)
    highest = max(12.0, 1.35 * float(levels.max()))
    for fault, found in diagnosis.evidence.faults.items():
        name, times, modulator = FAULTS[fault]
        strong = fault == diagnosis.shown
        for number, line in zip(MULTIPLES, found.lines, strict=True):
            place = number * found.order * found.scale
            axis.axvline(place, color=COLOURS[fault], linestyle=(0, (4, 2)), linewidth=0.9 if strong else 0.5, zorder=0)
            text = f"{number * times if number * times > 1 else ''}{name}" + (
                f"\n{DECIBELS * line:.0f} dB" if strong else ""
            )
            axis.text(
                place, highest, text, color=COLOURS[fault], ha="center", va="top" if strong else "bottom", fontsize=6.5,
                backgroundcolor="#ffffffcc" if strong else "none",
            )  # fmt: skip
            if strong and modulator is not None:
                side = 1.0 if modulator == "shaft" else diagnosis.evidence.cage
                for sign in (-1, 1):
                    at = (number * found.order + sign * side) * found.scale
                    axis.axvline(at, color=COLOURS[fault], linestyle=(0, (1, 1.5)), linewidth=0.7, zorder=0)
    axis.set(
        xlim=(0, orders[-1]), ylim=(min(-6.0, float(np.quantile(levels, 0.01))), highest),
        xlabel=f"order (multiples of the shaft's {diagnosis.rpm / 60:.2f} Hz)", ylabel="level over background, dB",
    )  # fmt: skip
    low, high = diagnosis.band
    title = f"{shortened(diagnosis.recording, 60)}: {diagnosis.answer}, {100 * diagnosis.confidence:.0f} %"
    axis.set_title(f"{title}; envelope spectrum of {low / 1000:.3g}–{high / 1000:.3g} kHz", pad=12)
    probabilities = ", ".join(f"{WORDS[state]} {100 * share:.0f} %" for state, share in diagnosis.probabilities.items())
    return ReportFigure("evidence", title, f"{diagnosis.reason} ({probabilities})", drawing)
