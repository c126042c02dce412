"""Tables of signals, a column a channel: text, read by lines, and parquet, read by rows.

A column of times gives the rate; a column of sample numbers is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import date
from itertools import islice
from typing import Any, BinaryIO

import numpy as np

from bearcat.data.signals import BLOCK, Part, Samples, SignalFile, TooLargeError, check_count, rate_of, some_of
from bearcat.errors import InputError

TEXT_BLOCK = 2**18  # bytes of text read at once
LONGEST_LINE = 2**16  # bytes; a row of text with more columns than that is no recording
LONGEST_HEADER = 500  # rows above the numbers; asking each takes as long as reading a hundred of numbers
PROBED = 2**12  # rows of a parquet file that show which of its columns are times or sample numbers
TIME_NAMES = {"time", "t", "zeit", "seconds", "sec", "timestamp", "times"}
TIME_UNITS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
UNIT = re.compile(  # of a row of units below the header, brackets taken off
    r"|-|%|[mµμunk]?s|sec|min|h|[mµμk]?g|([mµμkc]?m|in)(/s(\^?2|²)?)?|[mk]?[vawn]|n\.?m|[k]?hz|rpm|1/min|min-1|u/min|°?[cfk]|bar|[kmh]?pa|db"
    r"|hh:mm:ss.*|dd.*|yyyy.*", re.IGNORECASE
)  # fmt: skip
FIRST_DAY = date(2000, 1, 1).toordinal()  # of seconds that are counted with dates, which keeps their digits
CLOCK = r"(?:(\d{1,4})[-./](\d{1,2})[-./](\d{1,4})[ T])?(\d{1,2}):(\d{2}):(\d{2}(?:[SIGNS]\d+)?)"  # a time of day
INDEX_NAMES = {"", "index", "sample", "samples", "n", "no", "unnamed: 0"}


def _from_table(origin: str, head: Part, parts: Callable[[Sequence[str]], Iterator[Part]], size: int = 0) -> SignalFile:
    """Channels of a table's columns. `head`: all columns of the first rows, empty where they hold no numbers."""
    check_count(origin, len(head))
    clock, unit, rate = "", 1.0, None
    left_out: set[str] = set()
    for name, values in head.items():
        if len(head) - len(left_out) == 1 or values.size < 3 or values.dtype.kind not in "fiu":
            continue
        plain, _, unit_name = re.sub(r"[\[\]()/,;]|_(?=[mµμu]?s(ec)?$)", " ", name.lower()).strip().partition(" ")
        steps = np.diff(values.astype(np.float64))
        even = bool(steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-3, atol=0))
        if plain in INDEX_NAMES | {"1"} and even and steps[0] == 1:
            left_out.add(name)
        elif plain in TIME_NAMES or (plain == "1" and even):
            clock, unit = name, TIME_UNITS.get(unit_name.strip(), 1.0)
            rate = rate_of(origin, name, values.astype(np.float64) * unit)
            left_out.add(name)
    numeric = {name for name, values in head.items() if values.dtype.kind in "fiu" and values.size > 1} - left_out
    if not numeric:
        raise InputError(f"{origin}: holds no numeric signal; it has {some_of(head)}")

    def read(names: Sequence[str]) -> Iterator[Part]:
        before = np.empty(0)
        for part in parts([*names, clock] if rate else names):
            if rate:
                times = np.concatenate([before, part[clock] * unit])
                found = rate_of(origin, clock, times)
                if times.size > 100 and abs(found / rate - 1) > 0.01:
                    raise InputError(f"{origin}: its rate changes from {rate:g} to {found:g} Hz; cut the file there")
                before = times[-1:]
            yield {name: part[name] for name in names}

    return SignalFile(origin, {name: size for name in head if name in numeric}, rate, read)


def open_text(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    """Columns of numbers: any of , ; tab or blanks between them, decimal point or comma, an optional header.

    Below the header may be a row of units, behind each row a separator, and in a column the time of day.
    """
    blocks = _line_blocks(file, origin)
    lines = next(blocks, None)
    if lines is None:
        raise InputError(f"{origin}: holds no rows; record or export it again")
    probe = lines[min(len(lines) - 1, 50)]  # far enough below any header
    delimiter = next((sign for sign in ("\t", ";", ",") if sign in probe), None)
    clock = re.compile(CLOCK.replace("SIGNS", "." if delimiter == "," else ".,"))
    decimal_comma = delimiter in ("\t", ";") and "," in probe and "." not in clock.sub("", probe)
    trailing = delimiter is not None and probe.rstrip(" ").endswith(delimiter)
    clocks = clock.search(probe) is not None

    def trimmed(row: str) -> str:
        return row.rstrip(" ").removesuffix(delimiter or "") if trailing else row

    def fields(row: str) -> list[str]:
        return [text.strip().strip('"') for text in trimmed(row).split(delimiter)]

    def parse(rows: list[str]) -> Samples:
        rows = [clock.sub(_seconds, row) for row in rows] if clocks else rows
        rows = [trimmed(row) for row in rows] if trailing else rows
        rows = [row.replace(",", ".") for row in rows] if decimal_comma else rows
        return np.loadtxt(rows, delimiter=delimiter, ndmin=2, comments=None)

    def is_numeric(row: str) -> bool:
        with suppress(ValueError):
            return parse([row]).size > 0
        return False

    start = next((number for number, row in enumerate(lines[:LONGEST_HEADER]) if is_numeric(row)), None)
    if start is None:
        raise InputError(f"{origin}: no row holds numbers only; export the signal as plain columns of numbers")
    values = parse(lines[start:])
    head = dict(zip(_header(lines[:start], fields, values.shape[1]), values.T, strict=True))
    named = [name for name in head if clocks and name.lower().split(" ")[0] in TIME_NAMES | {"date", "datetime"}]
    coarse = [name for name in named if (np.diff(head[name]) == 0).any()]  # repeats itself: tells no rate

    def parts(_: Sequence[str]) -> Iterator[Part]:
        yield head
        for rows in blocks:
            yield dict(zip(head, parse(rows).T, strict=True))

    return _from_table(origin, head | dict.fromkeys(coarse, np.empty(0)), parts)


def _header(above: Sequence[str], fields: Callable[[str], list[str]], columns: int) -> list[str]:
    """The names of the columns: the row above the numbers, or the one above that where it is a row of units."""
    rows = [fields(row) for row in above[-2:]]
    rows = [row[:columns] if len(row) == columns + 1 and not row[-1] else row for row in rows]
    names, units = rows[-1] if rows else [], [""] * columns
    if len(rows) == 2 and [len(row) for row in rows] == [columns] * 2 and any(names):
        bare = [text.strip("[]() ") for text in names]
        if all(UNIT.fullmatch(text) for text in bare) and not any(UNIT.fullmatch(text) for text in rows[0] if text):
            names, units = rows[0], bare
    if len(names) != columns or len(set(names)) != len(names):
        return [str(number) for number in range(1, columns + 1)]
    return [f"{name} [{unit}]" if name.lower() in TIME_NAMES and unit.lower() in TIME_UNITS else name
            for name, unit in zip(names, units, strict=True)]  # fmt: skip


def _seconds(clock: re.Match[str]) -> str:
    """A time of day, with or without its date, in seconds."""
    first, month, last, hours, minutes, seconds = clock.groups()
    day = 0
    if first is not None:
        year, number = (first, last) if len(first) == 4 else (last, first)
        months, days = sorted((int(month), int(number))) if int(month) > 12 else (int(month), int(number))
        day = date(int(year), months, days).toordinal() - FIRST_DAY
    return f"{86400 * day + 3600 * int(hours) + 60 * int(minutes) + float(seconds.replace(',', '.')):.9f}"


def _line_blocks(file: BinaryIO, origin: str) -> Iterator[list[str]]:
    """Some lines at a time, without empty ones and comments, as UTF-8 or, as Windows writes them, cp1252."""
    rest, encoding = b"", "utf-8-sig"
    while rest or file.peek(1):  # type: ignore[attr-defined]
        chunk = file.read(TEXT_BLOCK)
        lines = (rest + chunk).splitlines(keepends=True)
        rest = lines.pop() if chunk and not lines[-1].endswith(b"\n") else b""
        if max(map(len, [*lines, rest])) > LONGEST_LINE:
            raise TooLargeError(f"{origin}: has a line of more than {LONGEST_LINE} bytes; write a row for each sample")
        content = b"".join(lines)
        try:
            text = content.decode(encoding)
            encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        except UnicodeDecodeError:
            if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content:  # UTF-16
                raise
            encoding = "cp1252"
            text = content.decode(encoding)
        if rows := [line for line in text.splitlines() if line.strip() and line[0] not in "#%"]:
            yield rows


def load_pyarrow(origin: str) -> Any:
    """The module, which reads parquet, or the command that installs it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{origin}: parquet needs an extra; pip install 'bearcat[formats]'") from error
    return pyarrow


def open_parquet(file: BinaryIO, origin: str, _: ExitStack) -> SignalFile:
    pyarrow = load_pyarrow(origin)
    types = pyarrow.types

    def is_numeric(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_integer(kind) or types.is_floating(kind))

    opened = pyarrow.parquet.ParquetFile(file, buffer_size=2**16, pre_buffer=False)  # pages are read as they are needed
    schema = opened.schema_arrow
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two of its columns have the same name")

    def batches(names: Sequence[str], rows: int) -> Iterator[Any]:
        """At most so many rows at a time; a batch ends where a group of rows does."""
        return opened.iter_batches(rows, columns=list(names), use_threads=False) if names else iter(())

    def columns(rows: Sequence[Any]) -> Part:
        table = pyarrow.Table.from_batches(rows)
        return {name: table[name].to_numpy() for name in table.column_names}

    first = list(islice(batches([field.name for field in schema if is_numeric(field.type)], PROBED), 4))
    head = dict.fromkeys(schema.names, np.empty(0)) | (columns(first) if first else {})
    size = 8 * opened.metadata.num_rows
    return _from_table(origin, head, lambda names: (columns([rows]) for rows in batches(names, BLOCK // 4)), size)
