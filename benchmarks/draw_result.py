"""Draws docs/result.png and docs/result-dark.png from docs/results.json: the paper's methods on real benches.

    python benchmarks/draw_result.py

Accuracy and ECE on the target for METHODS, from the tables `replication` and `paper`. The default of `adapt` has another
protocol, and so separate rows (`conditions`). UNIMORE with time input, where every run collapses, is left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bearcat.report.figures import PALETTE, empty_figure, house_style

ROOT = Path(__file__).parent.parent
METHODS = ("source-only", "DANN*", "AT*", "CAT*-Temperature", "CAT*-recordings", "default of adapt")
MARKERS = ("o", "s", "^", "D", "v", "*")
NAMES = {"not adapted": "source-only", "**match-clusters** (default)": "default of adapt"}
BENCHES = {"HIT-SM, six tasks between speeds": "HIT-SM, physical", "CWRU, twelve tasks between loads": "CWRU, physical",
           "UNIMORE motor currents, no speed": "UNIMORE, physical"}  # fmt: skip
LEFT_OUT = ("UNIMORE, time",)
Rows = list[tuple[str, dict[str, list[float]]]]  # bench and input; method → accuracy and ECE


def rows(tables: dict[str, Any]) -> Rows:
    """Of each bench and input the methods that its table has."""
    found: Rows = []
    for name in ("replication", "paper", "conditions"):
        header = tables[name]["header"]
        for line in tables[name]["rows"]:
            bench = line[0] if name != "conditions" else BENCHES.get(line[0])
            cells = {NAMES.get(method, method): text for method, text in zip(header, line, strict=True)}
            pairs = {method: cells[method] for method in METHODS if re.match(r"[\d.]+ / ", cells.get(method, ""))}
            if bench and bench not in LEFT_OUT:
                found.append(
                    (bench, {method: [float(part) for part in text.split(" / ")] for method, text in pairs.items()})
                )
    return found


@house_style()
def draw(path: Path, found: Rows, ink: str, paper: str) -> None:
    drawing = empty_figure(7.0, 0.9 + 0.26 * len(found))
    drawing.set_facecolor(paper)
    for score, (axis, title) in enumerate(zip(drawing.subplots(1, 2, sharey=True), ("accuracy", "ECE"), strict=True)):
        for place, (_, scores) in enumerate(found):
            values = [pair[score] for pair in scores.values()]
            axis.plot([min(values), max(values)], [place, place], color="#999999", linewidth=1, zorder=1)
        for number, method in enumerate(METHODS):
            known = [(scores[method][score], place) for place, (_, scores) in enumerate(found) if method in scores]
            if known:
                size = 60 if MARKERS[number] == "*" else 26
                axis.scatter(*zip(*known, strict=True), s=size, color=PALETTE[number], marker=MARKERS[number],
                             zorder=2, label=method)  # fmt: skip
        axis.set_yticks(range(len(found)), [name for name, _ in found])
        axis.set_facecolor(paper)
        axis.tick_params(colors=ink, labelcolor=ink)
        axis.spines[:].set_color(ink)
        axis.set_xlabel(f"{title} on the target, %", color=ink)
        axis.grid(axis="x", alpha=0.3)
    axis.invert_yaxis()
    legend = {
        label: handle for each in drawing.axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    drawing.legend([*legend.values()], [*legend], loc="outside upper center", ncols=len(legend), labelcolor=ink)
    drawing.savefig(path, dpi=200, metadata={"Description": json.dumps(found)})  # what a test compares with the tables


def main() -> None:
    found = rows(json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))["tables"])
    draw(ROOT / "docs" / "result.png", found, "black", "white")
    draw(ROOT / "docs" / "result-dark.png", found, "#dfe3e6", "#0d1117")


if __name__ == "__main__":
    main()
