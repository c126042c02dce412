"""How a report looks: tables, the style of figures, and a page of HTML.

Other modules decide what is said. A page is one file: style, script and figures are inside, it can be read without its
script, and whatever comes from users' data (names of classes, domains, methods) goes through the template's escaping.
Text in figures is at least seven points at the sizes of a journal's column (3.5 inches) or page (7).

>>> row = (TableEntry("DANN"), number_entry(81.23, "{:.1f}"))
>>> print(latex(Table("scores", "Scores", "One run.", ("Method", "Score"), (row,))))
"""

from __future__ import annotations

import base64
import io
import math
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from bearcat.errors import InputError
from bearcat.storage import write_atomically

WIDE, NARROW = 7.0, 3.5  # inches: a page and a column in print
RESOLUTION = 200  # dots an inch of the PNG

# Okabe and Ito's colours; black as a grey on which hatches show, yellow darkened for white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
NOTHING = "–"
SIGNS = {"alarm": "▲", "check": "◆", "no signal": "⊘", "learning": "…", "ok": "✓"}  # beside the colour of a status
_STYLING = threading.RLock()  # matplotlib's settings are those of the whole process
# Of figures, and what each format would say of itself and the day.
FORMATS: dict[str, tuple[str, ...]] = {
    "png": ("Software",), "svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer"),
}  # fmt: skip


@dataclass(frozen=True)
class TableEntry:
    """One place in a table: the text, and the number behind it (percent where the text is)."""

    text: str
    value: float | None = None
    bold: bool = False
    status: bool = False  # the text is one of SIGNS, and is shown with its sign and colour


def number_entry(value: float | None, form: str = "{:.3f}", bold: bool = False) -> TableEntry:
    """A number in this form, with a true minus and no sign before zero; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return TableEntry(NOTHING)
    text = form.format(value)
    text = text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")
    return TableEntry(text, value, bold)


def percent_entry(fraction: float | None, form: str = "{:.1f}") -> TableEntry:
    return number_entry(None if fraction is None else 100 * fraction, form)


@dataclass(frozen=True)
class Table:
    """`name` is the file's; `note` says what is shown, over how many runs, and what bold means."""

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]


def latex(table: Table) -> str:
    """A tabular with booktabs' rules, to be read by \\input in a float of the author's; title and note are comments."""
    pandas, header = library("pandas", "bench"), list(table.header)
    numeric = [any(row[place].value is not None for row in table.rows) for place in range(len(header))]
    texts = pandas.DataFrame([[entry.text for entry in row] for row in table.rows], columns=header)
    bold = [["textbf: --rwrap;" if entry.bold else "" for entry in row] for row in table.rows]
    marks = pandas.DataFrame(bold, columns=header)
    styler = texts.style.hide(axis="index").apply(lambda _: marks, axis=None)
    # After the \\ of the line before, a star or a bracket would be taken for its argument.
    styler = styler.format(lambda text: "{}" + text if text[:1] in ("*", "[") else text, escape="latex")
    tabular = styler.format_index(escape="latex", axis=1).to_latex(
        hrules=True, column_format="".join("r" if number else "l" for number in numeric)
    )
    about = " ".join(f"{table.title}. {table.note}".split())
    return f"% \\usepackage{{booktabs}} \\usepackage[T1]{{fontenc}}\n% {about}\n{tabular}"


def library(name: str, extra: str) -> Any:
    """A library that not everyone has, or an error that says which extra of bearcat to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"{name} is not installed; pip install 'bearcat[{extra}]'") from error


@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A drawing and its caption."""

    name: str  # of its files
    title: str
    caption: str
    drawing: Any

    @cached_property
    def _rendered(self) -> dict[str, bytes]:
        return {}

    def render(self, kind: str) -> bytes:
        """The figure as one of FORMATS; the same results give the same bytes of "png" and "svg"."""
        if kind not in self._rendered:  # a page and a file want the same
            content = io.BytesIO()
            with house_style():
                metadata = dict.fromkeys(FORMATS[kind])
                self.drawing.savefig(content, format=kind, dpi=RESOLUTION, metadata=metadata)
                self.drawing.set_layout_engine("none")  # it is settled, and takes longer than drawing
            self._rendered[kind] = content.getvalue()
        return self._rendered[kind]

    def save(self, path: str | Path) -> Path:
        """Writes the figure as its name says: one of FORMATS."""
        path = Path(path)
        if (kind := path.suffix.lower().removeprefix(".")) not in FORMATS:
            raise InputError(f"{path}: cannot be written; a picture's name ends in .{', .'.join(FORMATS)}", "out")
        write_atomically(path, self.render(kind))
        return path

    def _repr_png_(self) -> bytes:
        return self.render("png")

    @property
    def source(self) -> str:
        """The figure as an address that a page can hold."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.render('svg')).decode('ascii')}"

    @property
    def width(self) -> int:
        """In a page, in its pixels."""
        return int(self.drawing.get_figwidth() * 118)


def count(number: int, what: str, several: str | None = None) -> str:
    """ "1 run", "2 runs"."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def file_name(text: str) -> str:
    """Letters, digits and a few signs that every file system takes; an asterisk is spelt out."""
    return re.sub(r"[^\w.+=-]+", "-", text.replace("*", "star")).strip("-.") or "unnamed"


@contextmanager
def house_style() -> Iterator[None]:
    """The style of all our figures, whatever the user's own settings of matplotlib are."""
    matplotlib = library("matplotlib", "report")
    with _STYLING, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        with resources.as_file(resources.files("bearcat.report") / "figures.mplstyle") as style:
            matplotlib.rcParams.update(matplotlib.rc_params_from_file(style, use_default_template=False))
        matplotlib.rcParams["font.family"] = _installed(*matplotlib.rcParams["font.family"])
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box is drawn; no reason to stop
        yield


@cache
def _installed(*fonts: str) -> list[str]:
    """Those of them that this machine has; matplotlib complains of others in every text."""
    from matplotlib import font_manager

    found = set(font_manager.get_font_names())
    return [name for name in fonts if name in found]


def empty_figure(width: float, height: float) -> Any:
    """A figure that can be drawn without a screen; inside `house_style`, which says what to install."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def shortened(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Caveat:
    """A sentence, and the runs, tasks or settings it is about."""

    kind: str  # a word or two, for the eye
    text: str
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[ReportFigure, ...] = ()
    decision: str = ""  # stands first, in larger letters
    cards: bool = False  # figures stand beside each other, and tables are never behind a click
    research: bool = False  # all of it is behind a click


def templates() -> Any:
    """The template engine, with escaping on; an error that says what to install, before anything is drawn."""
    jinja2 = library("jinja2", "report")
    strict = jinja2.StrictUndefined
    environment = jinja2.Environment(autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    environment.globals["signs"] = SIGNS
    environment.filters["tied"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with a sign
    return environment


def write_page(
    path: Path, environment: Any, title: str, subtitle: str, numbers: Sequence[tuple[str, str, str]],
    sections: Sequence[Section],
) -> Path:  # fmt: skip
    """Writes a page whole or not at all; `numbers` stand first: what, how much, and a remark."""
    files = resources.files("bearcat.report")
    html, style, script = ((files / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    shown = {"title": title, "subtitle": subtitle, "numbers": numbers, "sections": sections}
    text = environment.from_string(html).render(**shown, style=style, script=script)
    try:
        write_atomically(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another folder") from error
    return path
