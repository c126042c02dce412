"""Names and numbers of others, written so that whoever reads them sees them and is not acted upon.

Names of files, machines, channels, labels and classes come from strangers. A terminal acts on control characters, a
spreadsheet on formulas, and JSON has no NaN. HTML is escaped by its templates, SQL takes parameters.

>>> shown("pump\\x1b[2J.wav")
'pump\\\\x1b[2J.wav'
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes
UNSEEN = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]")  # that JSON would let through
SPACES = "\u00a0\u202f\u2009"  # which are not printable for Python, but stand in texts


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
    """JSON that every reader takes: null in the place of NaN and infinities, escapes of what a terminal obeys."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(without_nan(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def without_nan(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: without_nan(item) for name, item in value.items()}
    return [without_nan(item) for item in value] if isinstance(value, list | tuple) else value
