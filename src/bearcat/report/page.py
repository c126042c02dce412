"""What a report is as one HTML file: sections of sentences, tables and figures.

The file needs nothing else: style, script and figures are inside, and it can be read without its script. Whatever comes
from users' data (names of classes, domains, methods) goes through the template's escaping. What
stands on a page is said by run_page and bench_page.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from bearcat.errors import InputError
from bearcat.report.caveats import (
    Caveat,
)
from bearcat.report.drawing import Picture
from bearcat.report.tables import Table

DRAWN_AS_VECTORS = 60_000  # bytes of SVG; a larger figure goes into the page as a PNG of few colours, which is smaller
COLOURS_KEPT = 96


@dataclass(frozen=True)
class Shown:
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
    figures: tuple[Shown, ...] = ()
    folded: tuple[Table, ...] = ()  # tables behind a click
    level: int = 2
    verdict: str = ""  # stands first, in larger letters

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    numbers: tuple[tuple[str, str, str], ...]  # what, how much, and a remark
    sections: tuple[Section, ...] = field(default=())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes a disk's trouble one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error}); choose another folder") from error


def in_page(picture: Picture, folder: Path | None = None) -> Shown:
    """A figure for the page; its files too, where a folder is given."""
    if folder is None:
        png, svg = picture.render()
    else:
        png, svg = (path.read_bytes() for path in picture.write(folder))
    kind, content = ("svg+xml", svg) if len(svg) <= DRAWN_AS_VECTORS else ("png", _fewer_colours(png))
    address = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return Shown(picture.title, picture.caption, address, round(picture.drawing.get_figwidth() * 118))


def _fewer_colours(png: bytes) -> bytes:
    """A third of the size; matplotlib brings Pillow along."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(COLOURS_KEPT, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    few.save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def templates() -> Any:
    """The templates' machinery, with escaping on; a sentence where it is missing, before anything is drawn."""
    try:
        import jinja2
    except ImportError as error:
        raise InputError("reports need an extra; pip install 'bearcat[report]'") from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    environment.filters["tied"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with a sign
    return environment


def write_page(path: Path, page: Page, environment: Any) -> Path:
    """Whole or not at all."""
    files = resources.files("bearcat.report")
    parts = {name: (files / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    text = environment.from_string(parts["html"]).render(page=page, style=parts["css"], script=parts["js"])
    draft = path.with_name(f".{path.name}.draft")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, path)  # noqa: PTH105
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    return path
