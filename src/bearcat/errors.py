"""The one exception a user is meant to read; the command line prints it and exits with status 2.

>>> raise InputError(f"unknown domain 'laod1'{suggest('laod1', ['load0', 'load1'])}")
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

MOST_NAMES, LISTED, LONGEST_NAME = 1000, 50, 80  # compared with a wrong one, listed instead; characters shown of one


class InputError(ValueError):
    """What the user gave cannot work; one sentence names the file or field, and says what to do.

    `field` is the setting it is about, where there is one; the command line and the server name it. `readable`: the
    recording itself could be read, and what is said of it is wrong or missing.

    >>> bearcat.diagnose("gone.wav", rpm=1480, bearing="6205")
    Traceback (most recent call last):
    bearcat.errors.InputError: gone.wav: …
    """

    def __init__(self, sentence: str = "", field: str | None = None, readable: bool = False) -> None:
        super().__init__(sentence)
        self.field = field
        self.readable = readable or field is not None

    @property
    def for_command_line(self) -> str:
        return str(self) if self.field is None else f"{self} (--{self.field.replace('_', '-')})"

    def beside(self, name: str) -> str:
        """The sentence beside a name with which it may begin."""
        return str(self).removeprefix(f"{name}: ")


def suggest(name: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the nearest known one, else the whole list."""
    known = list(islice(known, MOST_NAMES))  # names may come from a file, and comparing them takes time
    lowered = {name.lower(): name for name in known if len(name) <= LONGEST_NAME}
    begun = [full for short, full in lowered.items() if len(name) > 1 and short.startswith(name.lower())]
    if len(begun) > 2:
        return f"; did you mean {', '.join(begun[:LISTED])}?"
    close = difflib.get_close_matches(name[: 2 * LONGEST_NAME].lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{lowered[close[0]]}'?"
    if not known:
        return ""
    listed = [name[:LONGEST_NAME] for name in known[:LISTED]] + ["…"] * (len(known) > LISTED)
    return f"; choose from {', '.join(listed)}"
