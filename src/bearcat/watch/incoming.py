"""Recordings and measurements that arrive as messages become files of the watched folder, where the loop reads them.

    FOLDER/MACHINE/POINT/20240501T103239.000000Z-3af1b2c45d6e.wav
    FOLDER/MACHINE/POINT/20240501T103239.000000Z-3af1b2c45d6e.measurement.json

So there is one way in, and whatever was written survives a restart. A message that arrives twice has the same name.

>>> receive(Path("plant"), "pump 3", "drive end", b'{"time": "2024-05-01T10:32:39Z", "rms": 0.31}', stated=True)
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.catalogue import inside
from bearcat.errors import InputError, suggest
from bearcat.storage import digest, read_regular, write_atomically
from bearcat.watch.snapshot import MEASUREMENTS, Snapshot

MEASUREMENT = ".measurement.json"  # how the file of a sensor that measures by itself ends
MOST_BYTES = 2**26  # of a recording
MOST_JSON = 2**24  # numbers as text become Python objects before they are an array
MOST_STATED = 2**14  # bytes of a measurement
LONGEST_NAME = 100  # bytes of a machine or point
EARLIEST, AHEAD = 631152000.0, 86400.0  # 1990; seconds that a clock may be fast: others would all be late after that
SPARE = 2**28  # bytes of disk that are left free
# Which format a message has, by how it begins.
FORMATS = {
    b"RIFF": ".wav", b"RF64": ".wav", b"fLaC": ".flac", b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz",
    b"MATLAB 5": ".mat", b"MATLAB 7.3": ".mat", b"\x89HDF": ".h5", b"PAR1": ".parquet", b"TDSm": ".tdms",
}  # fmt: skip


class FullDiskError(OSError):
    """There is no room; the message is to be taken later."""


def receive(folder: Path, machine: str, point: str, content: bytes, stated: bool = False) -> Path:
    """Writes a message as a file, durably, and returns its path; InputError, in one sentence, where it is refused.

    `content`: a file, or JSON {"time", "rate", "rpm", "unit", "signal"}; with `stated`, JSON of measurements by name.
    """
    for name, text in (("machine", machine), ("point", point)):
        _check_name(name, text)
    if len(content) > MOST_BYTES:
        raise InputError(f"the message has more than {MOST_BYTES} bytes; send shorter recordings")
    arrived = time.time()
    if stated:
        when, made, suffix = *_stated_content(content, arrived), MEASUREMENT
    elif content.lstrip()[:1] == b"{":
        when, made, suffix = *_signal_content(content, arrived), ".npz"
    else:
        suffixes = [suffix for start, suffix in FORMATS.items() if content.startswith(start)]
        if not suffixes:
            known = ", ".join(sorted({suffix[1:] for suffix in FORMATS.values()}))
            raise InputError(f"the message is neither JSON nor a file of these formats: {known}")
        when, made, suffix = arrived, content, suffixes[0]
    key = digest(made)[:12]
    place = folder / machine / point
    if not inside(folder, place):
        raise InputError("the folder of this machine and point is a link to elsewhere")
    path = place / f"{datetime.fromtimestamp(when, UTC):%Y%m%dT%H%M%S.%f}Z-{key}{suffix}"
    if (same := next(place.glob(f"*-{key}{suffix}"), None)) is not None:  # it was sent again
        return same
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < SPARE + len(made):
        raise FullDiskError(f"the disk of {folder} is nearly full")
    write_atomically(path, made)
    for changed in (place, place.parent, folder):  # a power cut does not undo the names
        descriptor = os.open(changed, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


def _check_name(what: str, text: str) -> None:
    """Refuses what is no plain name of a folder."""
    plain = text.isprintable() and not set(text) & set('/\\:*?"<>|') and text == text.strip(". ")
    if not text or not plain or len(os.fsencode(text)) > LONGEST_NAME:
        raise InputError(
            f"the name of the {what} must be short and plain text, without / and without a dot at its ends"
        )


def _object(content: bytes, most: int, known: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object with known fields only."""
    if len(content) > most:
        raise InputError(f"the message has more than {most} bytes of JSON; send less at once")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError("the message is no JSON; send one object in UTF-8") from error
    if not isinstance(found, dict):
        raise InputError("the message must be one JSON object")
    for name in found:
        if name not in known:
            raise InputError(f"unknown field '{name[:40]}'{suggest(name, known)}")
    return found


def _time(found: Mapping[str, Any], arrived: float) -> float:
    """When it was recorded: seconds since 1970, or text as 2024-05-01T10:32:39Z (UTC without a zone)."""
    value = found.get("time", arrived)
    if isinstance(value, str):
        try:
            clock = datetime.fromisoformat(value)
        except ValueError as error:
            raise InputError("'time' must be written as 2024-05-01T10:32:39Z, or be seconds since 1970") from error
        value = (clock if clock.tzinfo else clock.replace(tzinfo=UTC)).timestamp()
    seconds = _number("time", value)
    if not EARLIEST <= seconds <= arrived + AHEAD:
        raise InputError("'time' lies before 1990 or in the future; set the sensor's clock")
    return seconds


def _number(name: str, value: Any) -> float:
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise InputError(f"'{name}' must be a finite number")


def _unit(found: Mapping[str, Any]) -> str | None:
    unit = found.get("unit")
    if unit is not None and not (isinstance(unit, str) and re.fullmatch(r"[\w/^²µ%° -]{0,20}", unit)):
        raise InputError("'unit' must be short plain text, such as g or m/s^2")
    return unit or None


def _signal_content(content: bytes, arrived: float) -> tuple[float, bytes]:
    """A signal in JSON: its time, and the content of an npz file with rate, unit and speed."""
    found = _object(content, MOST_JSON, ("time", "rate", "rpm", "unit", "signal"))
    for name in ("rate", "signal"):
        if name not in found:
            raise InputError(f"the field '{name}' is missing")
    try:
        signal = np.asarray(found["signal"])
    except ValueError as error:
        raise InputError("'signal' must be a list of numbers") from error
    if signal.ndim != 1 or signal.size < 2 or signal.dtype.kind not in "fiu" or not np.isfinite(signal).all():
        raise InputError("'signal' must be a list of two or more finite numbers")
    with np.errstate(over="ignore"):
        samples = signal.astype(np.float32)
    unit = _unit(found)
    arrays: dict[str, Any] = {"fs": np.float64(_positive("rate", found["rate"]))}
    arrays[f"signal [{unit}]" if unit else "signal"] = samples
    if found.get("rpm") is not None:
        arrays["rpm"] = np.full(samples.size, _positive("rpm", found["rpm"]), np.float32)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    return _time(found, arrived), packed.getvalue()


def _positive(name: str, value: Any) -> float:
    if _number(name, value) <= 0:
        raise InputError(f"'{name}' must be above 0")
    return float(value)


def _stated_content(content: bytes, arrived: float) -> tuple[float, bytes]:
    """Measurements in JSON: their time, and the same in a fixed order."""
    found = _object(content, MOST_STATED, ("time", "unit", *MEASUREMENTS))
    when, unit = _time(found, arrived), _unit(found)
    values = {name: _number(name, found[name]) for name in MEASUREMENTS if found.get(name) is not None}
    if not values:
        raise InputError(f"the message has no measurement; give some of {', '.join(MEASUREMENTS)}")
    return when, json.dumps({"time": when, "unit": unit, **values}).encode()


def stated_snapshot(path: Path, machine: str, point: str, when: float, digest: str) -> Snapshot:
    """What a sensor measured by itself, from its file."""
    content = read_regular(path) if path.stat().st_size <= MOST_STATED else bytes(MOST_STATED + 1)
    try:
        _, made = _stated_content(content, time.time())
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    found = json.loads(made)
    values = {name: found[name] for name in MEASUREMENTS if name in found}
    rpm = values.get("rpm")
    return Snapshot(machine, point, when, str(path), digest, None, found["unit"], values, orders=None, rpm=rpm)
