"""What the figures of finished runs share: one style, averages over tasks and seeds, and words for captions.

Colours are Okabe and Ito's; dashes and markers repeat them for grey print. Text is at least seven points at
the sizes of a journal's column (3.5 inches) or page (7).

Averages over tasks take the task × seed cells that every method finished, so that no method is shown on easier tasks
than another; bands are one standard deviation over seeds.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.errors import InputError
from bearcat.report.results import Floats, Result, ordered_methods, ordered_tasks
from bearcat.storage import write_atomically

WIDE, NARROW = 7.0, 3.5  # inches: a page and a column in print
RESOLUTION = 200  # dots an inch of the PNG

# Okabe and Ito's colours; black as a grey on which hatches show, yellow darkened for white paper. Seven dashes against
# eight colours repeat after 56 names.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (8, 2)), (0, (3, 2)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
# Fonts that know Chinese, Japanese and Korean signs: people name classes in their own language.
WIDER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Microsoft YaHei", "SimHei", "PingFang SC",
    "Hiragino Sans GB", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Arial Unicode MS",
)  # fmt: skip
SETTINGS: dict[Any, Any] = {
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


@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A drawing and its caption."""

    name: str  # of its files
    title: str
    caption: str
    drawing: Any

    @cached_property
    def _laid_out(self) -> Any:
        """The drawing with its layout settled, so that each format need not find it again."""
        self.drawing.get_layout_engine().execute(self.drawing)
        self.drawing.set_layout_engine("none")
        self.drawing.set_dpi(RESOLUTION)
        return self.drawing

    def render(self, kind: str) -> bytes:
        """The figure as "png" or "svg"; the same results give the same bytes."""
        content = io.BytesIO()
        with house_style():
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.backends.backend_svg import FigureCanvasSVG

            # Figure.savefig would draw everything once more for each format before it draws.
            canvas: Any = (FigureCanvasAgg if kind == "png" else FigureCanvasSVG)(self._laid_out)
            if kind == "png":
                canvas.print_png(content, metadata={"Software": None})
            else:
                canvas.print_svg(content, metadata={"Date": None, "Creator": None})
        return content.getvalue()

    def write(self, folder: Path) -> tuple[bytes, bytes]:
        """Writes NAME.png and NAME.svg and returns their contents."""
        png, svg = self.render("png"), self.render("svg")
        write_atomically(folder / f"{file_name(self.name)}.png", png)
        write_atomically(folder / f"{file_name(self.name)}.svg", svg)
        return png, svg


def file_name(text: str) -> str:
    """Letters, digits and a few signs that every file system takes; an asterisk is spelt out."""
    return re.sub(r"[^\w.+=-]+", "-", text.replace("*", "star")).strip("-.") or "unnamed"


@contextmanager
def house_style() -> Iterator[None]:
    """The style of all our figures, whatever the user's own settings of matplotlib are."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need an extra; pip install 'bearcat[report]'") from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS | {"font.family": ["DejaVu Sans", *_wider_fonts()]})
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box is drawn; no reason to stop
        yield


@cache
def _wider_fonts() -> tuple[str, ...]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return tuple(name for name in WIDER_FONTS if name in installed)


def empty_figure(width: float, height: float) -> Any:
    """A figure that can be drawn without a screen; inside `house_style`, which says what to install."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How the lines of each name are drawn in every figure of a report, by its place among the names."""
    keys = {"color": PALETTE, "linestyle": DASHES, "marker": MARKERS}
    return {
        name: {key: values[place % len(values)] for key, values in keys.items()} | {"markersize": 3}
        for place, name in enumerate(names)
    }


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """Mean over tasks and seeds, and the standard deviation over seeds (nan for one)."""

    mean: Floats
    spread: Floats

    @property
    def last(self) -> float:
        """The last finite value of the mean."""
        return float(self.mean[np.isfinite(self.mean)][-1])


def complete_cells(results: Sequence[Result]) -> list[Result]:
    """The runs of those task × seed cells that every method finished; all runs where there is no such cell."""
    methods = {result.cell.method for result in results}
    finished: dict[tuple[str, int], set[str]] = {}
    for result in results:
        finished.setdefault((result.cell.task, result.cell.seed), set()).add(result.cell.method)
    return [result for result in results if finished[result.cell.task, result.cell.seed] == methods] or list(results)


def by_method(results: Sequence[Result], values_of: Callable[[Result], Floats | None]) -> dict[str, MeanCurve]:
    """For each method the curve of its runs: the mean over tasks for each seed, then mean and spread over seeds."""
    found: dict[str, MeanCurve] = {}
    for method in ordered_methods(results):
        seeds: dict[int, list[Floats]] = {}
        for result in results:
            values = values_of(result) if result.cell.method == method else None
            if values is not None and np.isfinite(values).any():
                seeds.setdefault(result.cell.seed, []).append(values)
        if seeds:
            found[method] = mean_and_spread([mean_and_spread(tasks).mean for tasks in seeds.values()])
    return found


def mean_and_spread(curves: Sequence[Floats]) -> MeanCurve:
    """Mean and standard deviation (n − 1) of curves, which may end early or have holes."""
    stack = np.full((len(curves), max((curve.size for curve in curves), default=0)), np.nan)
    for row, curve in zip(stack, curves, strict=True):
        row[: curve.size] = np.where(np.isfinite(curve), curve, np.nan)
    with warnings.catch_warnings():  # of columns with no or one number, which are nan
        warnings.simplefilter("ignore", RuntimeWarning)
        return MeanCurve(np.nanmean(stack, axis=0), np.nanstd(stack, axis=0, ddof=1))


def shortened(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def legend_columns(names: Sequence[str], width: float) -> int:
    """How many columns of a legend fit below a figure of so many inches; a letter takes some four points."""
    return max(1, min(len(names), int(72 * width / (4.4 * max(map(len, names)) + 34))))


def averaged_over(results: Sequence[Result]) -> str:
    """What a mean curve is a mean of."""
    tasks, seeds = ordered_tasks(results), {result.cell.seed for result in results}
    over = f"average of {len(tasks)} tasks" if len(tasks) > 1 else f"task {tasks[0]}"
    spread = f"mean ± standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    cells = {(result.cell.task, result.cell.seed) for result in results}
    uneven = len({result.cell for result in results}) < len(ordered_methods(results)) * len(cells)
    remark = "; methods differ in the tasks and seeds they finished, so lines do not compare" if uneven else ""
    return f"{over}, {spread}{remark}"
