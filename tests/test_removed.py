"""What version 0.3 had: every command, option and method of it works, or docs/upgrade.md says what to use instead."""

import re

import pytest

from bearcat.cat.recipes import RECIPES
from tests.test_docs import KNOWN, ROOT

NAMES = (line.partition(":") for line in (ROOT / "tests/names_of_v03.txt").read_text().splitlines()[1:])
OLD = {name: names.split() for name, _, names in NAMES}
METHODS = OLD.pop("methods")
PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8").replace("\\", "")


def test_what_is_gone_stands_in_the_page_for_those_who_upgrade():
    today = {" ".join(name): {flag for each in command.params for flag in each.opts} for name, command in KNOWN.items()}
    gone = {name for path, names in OLD.items() for name in names if name not in today.get(path, ())}
    gone |= {path for path in OLD if path not in today} | {name for name in METHODS if name not in RECIPES}
    assert len(gone) > 50
    assert [name for name in sorted(gone) if not re.search(rf"{re.escape(name)}(?![\w-])", PAGE)] == []


@pytest.mark.parametrize("line", ["recipes", "data bearings", "adapt --recipe DANN", "predict a b --fail-on alarm"])
def test_an_old_command_line_is_refused_with_the_name_of_the_page(command, line):
    status, _, sentence = command(*line.split())
    assert (status, sentence.count("\n")) == (2, 1), sentence
    assert "docs/upgrade.md" in sentence
