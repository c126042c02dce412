"""One page of what a path holds: `report`. That is the store of `bearcat watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from bearcat.cli.options import print_lines


def report(
    store: Annotated[str, Argument(metavar="STORE", help="A store of `bearcat watch`: a file, or postgresql://…")],
    out: Annotated[Path, Option(help="The page to write.")] = Path("report.html"),
    machine: Annotated[str | None, Option(help="This machine alone, with details of all of its points.")] = None,
    pdf: Annotated[Path | None, Option(help="Print the page into this file too; needs Chromium or Chrome.")] = None,
) -> None:
    """Write a page of watched machines: the worst first, trends, and what to do next (docs/watch-page.md)."""
    from bearcat.report.fleet import write_fleet_page
    from bearcat.report.typeset import find_browser, print_page
    from bearcat.watch.store import Store

    browser = None if pdf is None else find_browser()
    with Store.open(store) as opened:
        points = write_fleet_page(opened, out, machine)
    print_lines(points.summary)
    print(f"All of it on one page: {out}")
    if pdf is not None and browser is not None:
        print_page(out, pdf, browser)
        print(f"Printed: {pdf}")
