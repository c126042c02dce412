"""Errors that a user is meant to read, or that come from a user's own code; ranges of numbers; escapes of texts.

Ranges are wider than any machine, and narrow enough that nothing computed from them overflows. Names of files,
machines, labels and classes come from strangers: a terminal acts on control characters, a spreadsheet on formulas.

>>> check_range("rpm", 1e-300, "monday.wav")
bearcat.errors.InputError: monday.wav: the speed of the shaft must be between 0.01 and 1e+06 rpm, not 1e-300
>>> raise InputError(f"unknown domain 'laod1'{suggest('laod1', ['load0', 'load1'])}")
>>> shown("pump\\x1b[2J.wav")
'pump\\\\x1b[2J.wav'
>>> raised_in(error)  # "my_loss.py, line 12", if it came from a user's file
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

MOST_NAMES, LISTED, LONGEST_NAME = 1000, 50, 80  # compared with a wrong one, listed instead; characters shown of one
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes
UNSEEN = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]")  # that JSON would let through
PACKAGE, INSTALLED = Path(__file__).parent, {"site-packages", "dist-packages"}
STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
SPACES = "\u00a0\u202f\u2009"  # which are not printable for Python, but stand in texts


class InputError(ValueError):
    """What the user gave cannot work; one sentence names the file or field, and says what to do.

    `field` is the setting at fault, if there is one. `readable`: the recording itself could be read, but what is stated
    about it is wrong or missing.

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
        """The sentence without the name that it may begin with."""
        return str(self).removeprefix(f"{name}: ")


def bug(name: str, error: Exception) -> InputError:
    """Prints the traceback of an unexpected error; the recording of this name cannot be used, and the others go on."""
    traceback.print_exception(error)
    return InputError(f"{name}: {type(error).__name__}; please report this bug with the lines above", readable=True)


@contextmanager
def naming_place(place: object) -> Iterator[None]:
    """Puts the place in front of an error's sentence."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}", error.field, error.readable) from error


def is_own_file(path: Path) -> bool:
    """Whether a file is a user's: neither of this package, nor of Python, nor of an installed package."""
    foreign = INSTALLED & {*path.parts} or any(path.is_relative_to(folder) for folder in (PACKAGE, *STANDARD))
    return path.exists() and not foreign


def raised_in(error: BaseException) -> str | None:
    """The last line of a user's own file on the way from this package to an error: "my_loss.py, line 12"."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if Path(frame.filename).is_relative_to(PACKAGE)]
    of_user = [frame for frame in frames[min(ours, default=0) :] if is_own_file(Path(frame.filename))]
    return f"{os.path.relpath(of_user[-1].filename)}, line {of_user[-1].lineno}" if of_user else None


def error_sentence(error: BaseException) -> str:
    """An error in one line; of one that came from a user's own file, where."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, InputError):
        return text
    line = raised_in(error)
    return f"{'' if line is None else f'{line}: '}{type(error).__name__}: {text}"


def traceback_text(error: BaseException) -> str:
    """The traceback, as Python prints it."""
    return "".join(traceback.format_exception(error))


def suggest(name: str, names: Iterable[str]) -> str:
    """The tail of an error about an unknown name: those that begin with it, the nearest one, or the whole list."""
    names = list(islice(names, MOST_NAMES))  # they may come from a file, and comparing them takes time
    lowered = {name.lower(): name for name in names if len(name) <= LONGEST_NAME}
    longer = [full for short, full in lowered.items() if len(name) > 1 and short.startswith(name.lower())]
    if len(longer) > 2:
        return f"; did you mean {', '.join(longer[:LISTED])}?"
    if nearest := difflib.get_close_matches(name[: 2 * LONGEST_NAME].lower(), lowered, n=1, cutoff=0.6):
        return f"; did you mean '{lowered[nearest[0]]}'?"
    listed = [name[:LONGEST_NAME] for name in names[:LISTED]] + ["…"] * (len(names) > LISTED)
    return f"; choose from {', '.join(listed)}" if names else ""


def library(name: str, extra: str, origin: str = "") -> Any:
    """An optional module; InputError says how to install it, for the file `origin` that needs it."""
    try:
        return import_module(name)
    except ImportError as error:
        needed = f"{origin}: reading it needs an extra" if origin else f"{name} is not installed"
        raise InputError(f"{needed}; pip install 'bearcat[{extra}]'") from error


@dataclass(frozen=True)
class Range:
    """What a number is, and from where to where it may go."""

    title: str
    lowest: float
    highest: float
    unit: str = ""

    def holds(self, value: Any) -> bool:
        """Whether a value is a number in the range; NaN, True and False are not."""
        return bool(type(value) in (int, float) and self.lowest <= value <= self.highest)

    @property
    def words(self) -> str:
        return f"between {self.lowest:g} and {self.highest:g}{f' {self.unit}' if self.unit else ''}"


RANGES = {
    "rate": Range("the sampling rate", 1e-3, 1e9, "Hz"),
    "rpm": Range("the speed of the shaft", 1e-2, 1e6, "rpm"),
    "load": Range("the load", -1e12, 1e12),
    "group": Range("the group of machines of ISO 20816-3", 1, 2),
    "sensitivity": Range("the sensitivity", 1e-3, 1e6, "mV/g"),
    "temperature": Range("the temperature", -1e4, 1e4),
    "balls": Range("the number of balls", 1, 500),
    "ball_diameter": Range("the diameter of a ball", 1e-3, 1e5, "mm"),
    "pitch_diameter": Range("the pitch diameter", 1e-3, 1e5, "mm"),
    "contact_angle": Range("the contact angle", -89.9, 89.9, "degrees"),
    "order": Range("an order", 1e-3, 500, "times the speed of the shaft"),
    "window": Range("the length of a window", 2, 2**24, "samples"),
    "length": Range("the length of a window", 2, 2**24, "samples"),
    "stride": Range("the step between windows", 1, 2**24, "samples"),
    "start": Range("the first sample", 0, 2**48),
    "stop": Range("the last sample", 0, 2**48),
    "count": Range("a number of bands, orders or layers", 1, 1000),
    "width": Range("the width of a layer", 1, 2**14),
    "seconds": Range("a time", 1e-6, 1e9, "s"),
    "epochs": Range("the number of epochs", 1, 10**5),
    "seed": Range("a seed", 0, 10**9),
    "jobs": Range("the number of processes", 0, 1000),
    "port": Range("the port", 0, 65_535),
    "max_bytes": Range("the longest body of a request", 1024, 2**40, "bytes"),
    "timeout": Range("the time for a request", 1e-3, 86_400, "s"),
    "concurrency": Range("the number of requests at once", 1, 10**6),
    "false_alarms": Range("the rate of false alarms", 1e-6, 366, "a year"),
    "prior": Range("the share of recordings that are faulty", 1e-4, 0.99),
    "baseline": Range("the length of a baseline", 8, 200, "recordings"),
    "baseline_days": Range("the length of a baseline", 0, 3650, "days"),
}


def check_range(name: str, value: float | None, place: str = "", field: str | None = None) -> None:
    """InputError where a number is outside its range; None is no number and passes.

    `place` is the file or the row that holds the number, `field` the option or query field that gives it.
    """
    allowed = RANGES[name]
    if value is not None and not allowed.holds(float(value)):
        where = f"{place}: " if place else ""
        raise InputError(f"{where}{allowed.title} must be {allowed.words}, not {value:g}", field)


def shown(text: str) -> str:
    """The text with every character that is not printed as its escape: controls, line ends, bytes that are no UTF-8."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in SPACES else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else char.encode("unicode_escape").decode()


def csv_cell(value: Any) -> Any:
    """A value for a table: truth in lower case, texts as they are shown, and an apostrophe before a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    return shown(f"'{value}" if value.lstrip("'").startswith(FORMULA) else value)


def from_csv_cell(text: str) -> str:
    """The text that `csv_cell` wrote."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(FORMULA) else text


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: null for NaN and infinities, escapes for what a terminal obeys."""
    text = json.dumps(without_nan(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return UNSEEN.sub(lambda character: json.dumps(character[0])[1:-1], text)


def without_nan(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: without_nan(item) for name, item in value.items()}
    return [without_nan(item) for item in value] if isinstance(value, list | tuple) else value
