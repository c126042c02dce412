"""Shows the examples of docstrings as code on the site; mkdocs.yml names this file."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


class FencedExamples(griffe.Extension):
    """Puts fences around each example, from its first >>> to the next empty line."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        waiting: list[griffe.Object | griffe.Alias] = [pkg]
        while waiting:
            each = waiting.pop()
            if not each.is_alias:
                waiting += each.members.values()
                if each.docstring is not None:
                    each.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", each.docstring.value)
