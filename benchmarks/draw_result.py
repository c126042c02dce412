"""Draws docs/result.png from the table of README.md: what adapting reaches on three public sets.

python benchmarks/draw_result.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from bearcat.report.typeset import PALETTE, empty_figure, house_style

ROOT = Path(__file__).parent.parent


def rows() -> list[tuple[str, float, float]]:
    """Of each line of the table: the set, balanced accuracy without adapting and with it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| ([^|]+?) \| ([\d.]+) / [\d.]+ \| ([\d.]+) / ", text, re.MULTILINE)
    return [(name, float(before), float(after)) for name, before, after in found]


@house_style()
def draw(path: Path) -> None:
    drawing = empty_figure(7.0, 1.9)
    axis, table = drawing.subplots(), rows()
    for place, (_, before, after) in enumerate(table):
        axis.plot([before, after], [place, place], color="#bbbbbb", linewidth=2, zorder=1)
        for side, value in enumerate((before, after)):
            axis.scatter(
                value,
                place,
                s=34,
                color=PALETTE[side],
                zorder=2,
                label=("not adapted", "adapted")[side] if not place else None,
            )
        axis.annotate(
            f"{before:.1f} → {after:.1f} %",
            (max(before, after), place),
            (8, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_yticks(range(len(table)), [name for name, *_ in table])
    axis.invert_yaxis()
    axis.set_xlim(40, 112)
    axis.set_xticks(range(40, 101, 10))
    axis.set_ylim(len(table) - 0.5, -0.5)
    axis.set_xlabel("balanced accuracy on the target, %, mean over all tasks and five seeds")
    axis.legend(loc="lower left", frameon=False, ncols=2, bbox_to_anchor=(0, 1.0))
    drawing.savefig(path, dpi=160, metadata={"Description": json.dumps(table)})  # what a test compares with README.md


if __name__ == "__main__":
    draw(ROOT / "docs" / "result.png")
