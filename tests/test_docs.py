"""The documents: every page has a place on the site, links lead somewhere, every command shown is run or excused."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import typer

from bearcat import cli
from bearcat.cli import application
from bearcat.deploy.serve import QUERY
from bearcat.diagnosis.recording import STATUS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAST = ("LOG.md", "upgrade.md")  # which speak of what was
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command of the command line, by its words."""
    for name, command in group.commands.items():
        words = before if command.hidden else (*before, name)  # what its group does without a name of a command
        yield from commands(command, words) if hasattr(command, "commands") else [(words, command)]


KNOWN = dict(commands(typer.main.get_command(application())))
ROUND = str.maketrans("[]", "()")  # which are no links


# Commands of pages that no test runs, by how they begin or what they hold, and what they need; options are checked.
NOT_RUN = {
    r"make (demo|test|acceptance)": "an installation",
    r"pip install ": "the network",
    r"curl ": "a server that runs; tests/test_serve.py sends such requests",
    r"bearcat data fetch ": "a download",
    r"bearcat .*--root (data/|/shared/|PADERBORN)": "recordings that are downloaded",
    r"bearcat (report|serve --store) ": "a store of watched machines; tests/test_fleet_page.py shows one",
    r"bearcat watch (?!.*--once)plant( |$)": "somebody who stops it",
}
FOLLOWED = ("first-hour-researchers.md", "extend.md")  # tests/test_examples.py runs their bash blocks
PROGRAMS = r"(?:make|pip|curl|bearcat|python) "


def shown(page: Path) -> Iterator[tuple[str, str]]:
    """Each command in a page's blocks with the block's language, lines that go on joined; optional parts left out."""
    for language, block in re.findall(
        r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+", " ", line.removeprefix("$ ").strip().split("  #")[0].split(" | ")[0].split(" > ")[0])
            if re.match(PROGRAMS, f"{line} "):
                yield language, re.sub(r" (\[.*?\]|…)", "", line.partition(" #")[0]).removesuffix('"""')


COMMANDS = [(page.name, *found) for page in PAGES if page.name not in PAST for found in shown(page)]


def is_run(page: str, language: str, command: str) -> bool:
    """Whether this file runs the command."""
    elsewhere = (language == "bash" and page in FOLLOWED) or command.startswith("python examples/")
    return not elsewhere and not any(re.match(pattern, command) for pattern in NOT_RUN)


def parsed(words: list[str]) -> tuple[str, ...]:
    """The words of a call of bearcat, read as the command line reads them: the command's name. Nothing is run."""
    name = tuple(words[:2]) if tuple(words[:2]) in KNOWN else tuple(words[:1])
    assert name in KNOWN, words
    KNOWN[name].make_context(" ".join(name), words[len(name) :], resilient_parsing=False)
    return name


def test_every_command_of_a_page_and_of_the_makefile_can_be_read():
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for *_, command in COMMANDS)] == []
    for command in re.findall(r"^\t\$\(BIN\)/bearcat ([^|\n]+)", MAKEFILE, re.MULTILINE):
        parsed(shlex.split(command))
    for page, _, command in COMMANDS:
        program, *words = shlex.split(command)
        if program == "bearcat":
            parsed(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", MAKEFILE, re.MULTILINE), command
        elif program == "python" and words[1:2] and words[1] in ("adapt", "data", "methods", "predict"):
            parsed(words[1:])  # a script that adds something and hands over to the command line
        elif program == "curl":
            fields = set(re.findall(r"[?&](\w+)=", command))
            assert fields <= set(QUERY), (page, fields)


def test_commands_named_in_sentences_exist_with_their_options():
    for page in PAGES:
        if page.name in PAST:
            continue
        for span in re.findall(r"`bearcat ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
            words = span.split()
            name = next((name for name in KNOWN if name in (tuple(words[:1]), tuple(words[:2]))), ())
            assert name or words[0] in ("bench", "data"), (page.name, span)
            parameters = KNOWN[name].params if name else []
            known = {option for each in parameters for option in (*each.opts, *each.secondary_opts)} | {"--help"}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, (page.name, span)


def page_of_commands() -> str:
    """docs/commands.md below its first table, made from the commands: options of several stand once."""
    records = dict[tuple[str, ...], list[tuple[str, str]]]()  # of the options of each command
    for name, command in KNOWN.items():
        context = command.make_context("", [], resilient_parsing=True)
        options = [option for option in command.params if option.opts[0].startswith("--") and option.name != "help"]
        records[name] = [option.get_help_record(context) for option in options]
    counts = Counter(record for options in records.values() for record in options)

    def listed(options: Iterable[tuple[str, str]]) -> str:
        return "".join(f"- `{words}`: {' '.join(text.split())}\n" for words, text in options).translate(ROUND)

    page = f"## Options that several commands share\n{listed(record for record in counts if counts[record] > 1)}"
    for name, command in KNOWN.items():
        arguments = [argument.metavar for argument in command.params if not argument.opts[0].startswith("--")]
        text = " ".join(inspect.cleandoc(command.help).split("\n\n")[0].split())
        alone = listed(record for record in records[name] if counts[record] == 1)
        shared = ", ".join(f"`{words.split()[0]}`" for words, text in records[name] if counts[words, text] > 1)
        page += f"\n## {' '.join(('bearcat', *name, *arguments))}\n{text}\n{alone and chr(10)}{alone}"
        page += f"\n{fill(f'Shared: {shared}.', 120)}\n" if shared else ""
    return page


def test_the_page_of_commands_is_made_from_them_and_has_every_exit_status():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert text.endswith(page_of_commands()), "write it anew: python -m tests.test_docs"
    table = re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)
    assert set(map(int, table)) == {2, cli.BUG, cli.INTERRUPTED, cli.CLOSED_PIPE, *STATUS.values()}


READERS = r"\bfor (?:\w+ )?(?:everyone|people|readers|users|engineers|researchers|developers)\b"


def test_pages_stand_on_the_site_and_say_whom_they_are_for_and_their_links_lead_somewhere():
    nav = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted(page.name for page in PAGES[1:])
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        title, *lines = filter(None, text.splitlines())
        assert title.startswith("# "), page.name
        assert re.search(READERS, " ".join(lines[:2]), re.IGNORECASE), f"{page.name}: whom is it for?"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            assert target.startswith(("http", "mailto")) or (page.parent / target).exists(), (page.name, target)


def test_the_picture_is_drawn_from_the_results():
    """The files in docs/ hold what they were drawn from."""
    from benchmarks import draw_result
    from PIL import Image

    found = draw_result.rows(json.loads((ROOT / "docs" / "results.json").read_text(encoding="utf-8"))["tables"])
    assert {bench.partition(",")[0] for bench, _ in found} == {"HIT-SM", "CWRU", "UNIMORE", "all"}
    for name in ("result.png", "result-dark.png"):
        with Image.open(ROOT / "docs" / name) as image:
            drawn = [(bench, scores) for bench, scores in json.loads(image.text["Description"])]
            assert drawn == found, "draw it anew: python benchmarks/draw_result.py"


def test_what_is_added_takes_25_lines():
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    files = re.findall(r"^```python\n# (?:file: |examples/)(\S+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(files) == 6
    assert {name: lines for name, code in files if (lines := code.count("\n")) > 25} == {}


def test_every_extra_that_a_sentence_names_is_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"bearcat\[(\w+)\]", text)) | set(re.findall(r'library\((?:"\w+"|name), "(\w+)"', text))
    assert {"formats", "serve", "watch"} <= named <= set(extras)


if __name__ == "__main__":
    page = ROOT / "docs" / "commands.md"
    head = page.read_text(encoding="utf-8").partition("## Options that several")[0]
    page.write_text(head + page_of_commands(), encoding="utf-8")
