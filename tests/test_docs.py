"""The documents: every page has a place on the site, links lead somewhere, and commands exist as they are written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bearcat.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(command: Any = None, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command of the command line, by its words."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from commands(inner, (*before, name))
        else:
            yield (*before, name), inner


KNOWN = dict(commands())


def written(text: str) -> Iterator[list[str]]:
    """The words of each call of bearcat in a page's blocks, lines that go on joined."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            call = re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?bearcat\s+([a-z].*)", line)
            if call:
                yield shlex.split(call[1].partition("    #")[0].partition(" | ")[0].partition(" > ")[0], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_exist_with_their_options(page):
    for words in written(page.read_text(encoding="utf-8")):
        name = tuple(words[:2]) if tuple(words[:2]) in KNOWN else tuple(words[:1])
        assert name in KNOWN, words
        options = {
            option for parameter in KNOWN[name].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, words


def test_the_page_of_commands_has_every_command_and_every_option():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## bearcat (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    for name, command in KNOWN.items():
        (found,) = [part for title, part in parts.items() if re.match(rf"{' '.join(name)}( [A-Z]|$)", title)]
        for parameter in command.params:
            if parameter.opts[0].startswith("--"):
                assert f"`{parameter.opts[0]}`" in found, (name, parameter.opts[0])


def test_pages_stand_on_the_site_and_say_whom_they_are_for():
    nav = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted(page.name for page in PAGES[1:])


def test_links_between_files_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http", "mailto")):
                assert (page.parent / target).exists(), (page.name, target)


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, env=variables, timeout=120)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'data-md-component="search"' in page
    assert "slate" in page  # the dark palette
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk)[^"]*\.(?:js|css)', page)


def test_the_first_picture_is_drawn_from_the_table_below_it():
    from benchmarks.draw_result import rows

    table = {name.split(",")[0].split()[0]: (before, after) for name, before, after in rows()}
    assert list(table) == ["HIT-SM", "CWRU", "UNIMORE"]
    assert all(after > before for before, after in table.values())
