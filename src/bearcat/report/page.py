"""A report as one HTML file: sections of sentences, tables and figures.

The file needs nothing else: style, script and figures are inside, and it can be read without its script. Whatever comes
from users' data (names of classes, domains, methods) goes through the template's escaping. run_page and bench_page
decide what a page says.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from bearcat.errors import InputError
from bearcat.report.caveats import Caveat
from bearcat.report.drawing import ReportFigure
from bearcat.report.typeset import Table
from bearcat.storage import write_atomically

DRAWN_AS_VECTORS = 60_000  # bytes of SVG; a larger figure goes into the page as a PNG of few colours, which is smaller
COLOURS_KEPT = 96


@dataclass(frozen=True)
class PageFigure:
    """A figure in the page."""

    title: str
    caption: str
    source: str  # a data: address
    width: int  # CSS pixels


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, in this order."""

    title: str
    sentences: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[PageFigure, ...] = ()
    folded: tuple[Table, ...] = ()  # tables behind a click
    verdict: str = ""  # stands first, in larger letters

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"


@dataclass(frozen=True)
class ReportPage:
    title: str
    subtitle: str
    numbers: tuple[tuple[str, str, str], ...]  # what, how much, and a remark
    sections: tuple[Section, ...] = ()


def in_page(figure: ReportFigure, folder: Path | None = None) -> PageFigure:
    """A figure for the page; its files too, where a folder is given."""
    png, svg = (None, figure.render("svg")) if folder is None else figure.write(folder)
    if len(svg) <= DRAWN_AS_VECTORS:
        kind, content = "svg+xml", svg
    else:
        kind, content = "png", _fewer_colours(png or figure.render("png"))
    address = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return PageFigure(figure.title, figure.caption, address, round(figure.drawing.get_figwidth() * 118))


def _fewer_colours(png: bytes) -> bytes:
    """A third of the size; matplotlib brings Pillow along."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(COLOURS_KEPT, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    few.save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def templates() -> Any:
    """The template engine, with escaping on; an error that says what to install, before anything is drawn."""
    try:
        import jinja2
    except ImportError as error:
        raise InputError("reports need an extra; pip install 'bearcat[report]'") from error
    strict = jinja2.StrictUndefined
    environment = jinja2.Environment(autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tied"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with a sign
    return environment


def write_page(path: Path, page: ReportPage, environment: Any) -> Path:
    """Writes the page, whole or not at all."""
    files = resources.files("bearcat.report")
    parts = {name: (files / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    text = environment.from_string(parts["html"]).render(page=page, style=parts["css"], script=parts["js"])
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another folder") from error
    return path
