"""Errors that a user is meant to read; ranges of numbers; escapes of texts.

Ranges are wider than any machine, and narrow enough that nothing computed from them overflows. Names of files,
machines, labels and classes come from strangers: a terminal acts on control characters, a spreadsheet on formulas.

>>> check_range("rpm", 1e-300, "monday.wav")
bearcat.errors.InputError: monday.wav: the speed of the shaft must be between 0.01 and 1e+06 rpm, not 1e-300
>>> raise InputError(f"unknown domain 'laod1'{suggest('laod1', ['load0', 'load1'])}")
>>> shown("pump\\x1b[2J.wav")
'pump\\\\x1b[2J.wav'
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

LISTED = 50  # names at most, where none is near
COMPARED, LONGEST = 1000, 160  # names with a wrong one, and characters of each: they may come from a file
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes
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


def error_sentence(error: BaseException) -> str:
    """An error in one line."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def suggest(name: str, names: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the nearest one, or the whole list."""
    name, names = name[:LONGEST], [name[:LONGEST] for name in islice(names, COMPARED)]
    lowered = {name.lower(): name for name in names}
    if nearest := difflib.get_close_matches(name.lower(), lowered, n=1):
        return f"; did you mean '{lowered[nearest[0]]}'?"
    listed = names[:LISTED] + ["…"] * (len(names) > LISTED)
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


def csv_bytes(rows: Iterable[Iterable[Any]]) -> bytes:
    """The content of a csv file with these rows, whose texts are written as they are."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def from_csv_cell(text: str) -> str:
    """The text that `csv_cell` wrote."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(FORMULA) else text


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes, in ASCII, on which no terminal acts: null for NaN and infinities."""
    return json.dumps(without_nan(value), indent=indent, allow_nan=False)


def without_nan(value: Any) -> Any:
    """Plain values with None for NaN and infinities, which JSON does not have."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)
