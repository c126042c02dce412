"""What the figures of finished runs share: their looks, averages over tasks and seeds, and words for captions.

Colours are Okabe and Ito's; dashes, markers and hatches repeat them for grey print. Text is at least seven points at
the sizes of a journal's column (3.5 inches) or page (7). Captions are computed from the numbers that are drawn.

Averages over tasks take the task × seed cells that every method finished, so that no method is shown on easier tasks
than another; bands are one standard deviation over seeds.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError
from bearcat.methods.recipe import RECIPES
from bearcat.report.plots import figure
from bearcat.report.results import Result
from bearcat.report.wording import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

WIDE, NARROW = 7.0, 3.5  # inches: a page and a column in print
RESOLUTION = 200  # dots an inch of the PNG

# Okabe and Ito's colours; black as a grey on which hatches show, yellow darkened for white paper. Seven dashes against
# eight colours repeat after 56 names.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (8, 2)), (0, (3, 2)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++", "||||", "oo")
# Fonts that know Chinese, Japanese and Korean signs: people name classes in their own language.
WIDER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Microsoft YaHei", "SimHei", "PingFang SC",
    "Hiragino Sans GB", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Arial Unicode MS",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawing and what to see in it."""

    name: str  # of its files
    title: str
    caption: str
    drawing: Any

    def render(self) -> tuple[bytes, bytes]:
        """PNG and SVG; the same results give the same bytes."""
        png, svg = io.BytesIO(), io.BytesIO()
        with look():
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.backends.backend_svg import FigureCanvasSVG

            self.drawing.draw_without_rendering()
            self.drawing.set_layout_engine("none")  # settled; each format need not find it again
            self.drawing.set_dpi(RESOLUTION)
            # Figure.savefig would draw everything once more for each format before it draws.
            raster: Any = FigureCanvasAgg(self.drawing)
            raster.print_png(png, metadata={"Software": None})
            vector: Any = FigureCanvasSVG(self.drawing)
            vector.print_svg(svg, metadata={"Date": None, "Creator": None})
        return png.getvalue(), svg.getvalue()

    def write(self, folder: Path) -> tuple[Path, Path]:
        """NAME.png and NAME.svg."""
        stem = file_name(self.name)
        files = (folder / f"{stem}.png", folder / f"{stem}.svg")
        contents = self.render()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, content in zip(files, contents, strict=True):
                path.write_bytes(content)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error}); choose another folder") from error
        return files


def file_name(text: str) -> str:
    """Letters, digits and a few signs that every file system takes; an asterisk is spelt out."""
    return re.sub(r"[^\w.+=-]+", "-", text.replace("*", "star")).strip("-.") or "unnamed"


@dataclass(frozen=True)
class Style:
    """How a method looks in every figure of a report."""

    colour: str
    dash: Any
    marker: str
    hatch: str


def ordered_methods(results: Sequence[Result]) -> tuple[str, ...]:
    """As RECIPES lists them, others after by the alphabet."""
    return ordered_names([one.cell.method for one in results])


def ordered_names(methods: Sequence[str]) -> tuple[str, ...]:
    """As RECIPES lists them, others after by the alphabet."""
    known = list(RECIPES)
    return tuple(sorted(set(methods), key=lambda name: (known.index(name) if name in RECIPES else len(known), name)))


def styles(names: Sequence[str]) -> dict[str, Style]:
    """One look for each name, by its place."""
    return {
        name: Style(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)], HATCHES[i % 9])
        for i, name in enumerate(names)
    }


@contextmanager
def look() -> Iterator[None]:
    """Our figures' looks, whatever the user's own settings of matplotlib are."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need an extra; pip install 'bearcat[report]'") from error
    settings: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", *_wider_fonts()],
        "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
        "legend.fontsize": 7, "legend.frameon": False, "legend.handlelength": 2.8, "axes.titlelocation": "left",
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.edgecolor": "#444444",
        "xtick.color": "#444444", "ytick.color": "#444444", "xtick.labelcolor": "black", "ytick.labelcolor": "black",
        "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
        "grid.color": "#dddddd", "grid.linewidth": 0.5, "lines.linewidth": 1.3, "hatch.linewidth": 0.45,
        "lines.markersize": 4, "svg.hashsalt": "bearcat", "svg.fonttype": "path",
        "text.parse_math": False,  # a class may be called $x
        "text.usetex": False,
    }  # fmt: skip
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box is drawn; no reason to stop
        yield


@cache
def _wider_fonts() -> tuple[str, ...]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return tuple(name for name in WIDER_FONTS if name in installed)


def complete_cells(results: Sequence[Result]) -> list[Result]:
    """The runs of those task × seed cells that every method finished; all runs where there is no such cell."""
    methods = {one.cell.method for one in results}
    there: dict[tuple[str, int], set[str]] = {}
    for one in results:
        there.setdefault((one.cell.task, one.cell.seed), set()).add(one.cell.method)
    kept = [one for one in results if there[one.cell.task, one.cell.seed] == methods]
    return kept or list(results)


Curve = tuple[Floats, Floats, int]  # mean, standard deviation over seeds (nan for one), how many seeds


def by_method(results: Sequence[Result], of: Any) -> dict[str, Curve]:
    """For each method the curve `of` its runs: mean over tasks for each seed, then mean and spread over seeds."""
    found: dict[str, Curve] = {}
    for method in ordered_methods(results):
        seeds: dict[int, list[Floats]] = {}
        for one in results:
            values = of(one) if one.cell.method == method else None
            if values is not None and np.isfinite(values).any():
                seeds.setdefault(one.cell.seed, []).append(values)
        if seeds:
            found[method] = mean_and_spread([mean_and_spread(tasks)[0] for tasks in seeds.values()])
    return found


def mean_and_spread(curves: Sequence[Floats]) -> Curve:
    """Mean and standard deviation (n − 1) of curves, which may end early or have holes."""
    stack = np.full((len(curves), max((one.size for one in curves), default=0)), np.nan)
    for row, one in zip(stack, curves, strict=True):
        row[: one.size] = one
    there = np.isfinite(stack)
    count = there.sum(axis=0)
    mean = np.where(count > 0, np.where(there, stack, 0).sum(axis=0) / np.maximum(count, 1), np.nan)
    squares = np.where(there, (stack - mean) ** 2, 0).sum(axis=0)
    return mean, np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan), len(curves)


def tasks_of(results: Sequence[Result]) -> tuple[str, ...]:
    """Each task once, numbers in names by size: 600rpm before 1200rpm."""
    return tuple(sorted({one.cell.task for one in results}, key=_numbers_by_size))


def _numbers_by_size(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", text)]


def panels_of(
    number: int,
    legend: int,
    columns: int | None = None,
    width: float = WIDE,
    height: float = 2.4,
    same: bool = False,
) -> tuple[Any, list[Axes]]:
    """A figure of so many panels, with room below for a legend of so many names; `same`: one vertical scale."""
    columns = columns or number
    rows = math.ceil(number / columns)
    drawing = figure(width, rows * height + 0.25 + 0.14 * math.ceil(legend / 4))
    axes = list(drawing.subplots(rows, columns, squeeze=False, sharey=same).flat)
    for spare in axes[number:]:
        spare.set_visible(False)
    return drawing, axes[:number]


def draw_bands(
    axis: Axes, curves: Mapping[str, Curve], style_of: Mapping[str, Style], scale: float, x: Floats | None = None,
    bands: bool = True, fine: bool = False,
) -> None:  # fmt: skip
    """Mean lines with bands of one standard deviation; markers here and there, shifted so that they do not hide."""
    for number, (name, (mean, spread, _)) in enumerate(curves.items()):
        style = style_of[name]
        at = np.arange(1, mean.size + 1) if x is None else x
        every = max(1, mean.size // 8)
        axis.plot(
            at, scale * mean, color=style.colour, linestyle=style.dash, marker=style.marker,
            markersize=2.2 if fine else 3.2, linewidth=0.9 if fine else 1.3,
            markevery=(number * every // max(len(curves), 1), every), label=name,
        )  # fmt: skip
        if bands and np.isfinite(spread).any():
            axis.fill_between(
                at, scale * (mean - spread), scale * (mean + spread), color=style.colour, alpha=0.15, linewidth=0
            )
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    if x is None:
        axis.set_xlim(left=0)
        axis.set_xlabel("epochs trained")


PHASES = {"align_from": "DA", "label_from": "PL", "calibrate_from": "cal"}


def phase_start(results: Sequence[Result], method: str | None, name: str) -> int | None:
    """When the phase starts in the runs that have it; None where none has, or they disagree."""
    found = set()
    for one in results:
        recipe = one.record["settings"]["recipe"]
        has = {
            "align_from": recipe["alignment"] or recipe["confusion"],
            "label_from": recipe["labels"],
            "calibrate_from": recipe["calibration"],
        }
        if has[name] and method in (None, one.cell.method):
            found.add(int(recipe["schedule"][name]))
    return found.pop() if len(found) == 1 else None


def mark_phases(axis: Axes, results: Sequence[Result], named: bool = True) -> None:
    """Vertical lines where alignment (T_DA), pseudo-labels (T_PL) and calibration (T_cal) begin."""
    starts: dict[int, list[str]] = {}
    for name, sign in PHASES.items():
        start = phase_start(results, None, name)
        if start is not None:
            starts.setdefault(start, []).append(f"$T_{{\\rm {sign}}}$")
    for start, signs in starts.items():
        axis.axvline(start, color="#777777", linestyle=(0, (2, 2)), linewidth=0.8, zorder=0)
        if named:
            axis.text(
                start, 1.01, ", ".join(signs), transform=axis.get_xaxis_transform(), ha="center", va="bottom",
                fontsize=7.5, color="#444444", parse_math=True,
            )  # fmt: skip


def phases_told(results: Sequence[Result]) -> str:
    words = {"align_from": "alignment", "label_from": "pseudo-labels", "calibrate_from": "calibration"}
    told = [f"{words[n]} begin{'' if n == 'label_from' else 's'} after epoch {start}"
            for n in PHASES if (start := phase_start(results, None, n)) is not None]  # fmt: skip
    return f" Dotted lines: {', '.join(told)}." if told else ""


def draw_legend(drawing: Any, style_of: Mapping[str, Style], names: Sequence[str]) -> None:
    """Lines and names below the panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=one.colour, linestyle=one.dash, marker=one.marker, markersize=3.2)
        for one in (style_of[name] for name in names)
    ]
    names = [name.removeprefix("threshold:") for name in names]
    columns = 3 if max(map(len, names)) > 24 or drawing.get_figwidth() < 5 else 4
    drawing.legend(handles, names, loc="outside lower center", ncols=min(len(names), columns))


def shortened(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def last_values(curves: Mapping[str, Curve]) -> dict[str, float]:
    """The last finite value of each mean curve."""
    return {
        name: float(mean[np.isfinite(mean)][-1]) for name, (mean, _, _) in curves.items() if np.isfinite(mean).any()
    }


def best_of(values: Mapping[str, float], largest: bool) -> list[str]:
    """Those with the best value, equal as far as is printed."""
    most = f"{100 * (max if largest else min)(values.values()):.1f}"
    return [name for name, value in values.items() if f"{100 * value:.1f}" == most]


def extremes(values: Mapping[str, float], largest: bool, what: str) -> str:
    """ "CAT has the highest accuracy (91.3 %)", or the number alone for one method."""
    if len(values) == 1:
        return f"{what} is {100 * next(iter(values.values())):.1f} %"
    best = best_of(values, largest)
    most = f"{100 * values[best[0]]:.1f}"
    if len(best) == len(values):
        return f"all methods have the same {what} ({most} %)"
    verb, end = "has" if len(best) == 1 else "have", "highest" if largest else "lowest"
    return f"{listed(best)} {verb} the {end} {what} ({most} %)"


def band_told(results: Sequence[Result]) -> str:
    """What a bar or a line with a band is."""
    return "mean ± standard deviation over seeds" if len({one.cell.seed for one in results}) > 1 else "one seed"


def averaged(results: Sequence[Result]) -> str:
    """What a mean curve is a mean of."""
    tasks, seeds = len(tasks_of(results)), len({one.cell.seed for one in results})
    over = f"average of {tasks} tasks" if tasks > 1 else f"task {results[0].cell.task}"
    told = f"{over}, mean ± standard deviation over {seeds} seeds" if seeds > 1 else f"{over}, one seed"
    cells: dict[str, set[tuple[str, int]]] = {}
    for one in results:
        cells.setdefault(one.cell.method, set()).add((one.cell.task, one.cell.seed))
    same = all(one == next(iter(cells.values())) for one in cells.values())
    return told if same else f"{told}; methods differ in the tasks and seeds they finished, so lines do not compare"
