"""A dataset as the project bearing-datasets builds it: 69 public sets in one layout.

    ROOT/metadata.parquet     a row for each signal: fault_type, speed_rpm, load, channel, fs …
    ROOT/signals/*.parquet    the samples; a row of the table says in which file, group and row they are

https://github.com/VictorBauler/BearingDatasets (doi:10.5281/zenodo.23062167) has the sets and their licences.

>>> Collection(root=Path("bearing_datasets/jnu"), domain="speed_rpm").catalogue().domains
('600', '800', '1000')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bearcat.data.bearing import Bearing, find_bearing
from bearcat.data.catalogue import About, Catalogue, Dataset, Entry, Problem, checked_root, inside
from bearcat.data.isolated import read_arrays
from bearcat.data.recording import Recording
from bearcat.data.signals import Samples, chosen_channel, library, reading
from bearcat.errors import InputError, suggest

TABLE, SIGNALS = "metadata.parquet", "signals"
PLACE = ("signal_file", "signal_row_group", "signal_row")
NEEDED = ("signal_id", "channel", "fs", "fault_type", *PLACE)
# Columns that can tell domains apart, of which the first with two values or more is taken.
DOMAINS = ("operating_condition", "speed_rpm", "load", "rig", "bearing_model", "sensor_location")
MOST_DOMAINS = 50
VIBRATION = {"acceleration", "velocity", "displacement", "unknown"}  # values of the column quantity
UNSAID = {"", "unknown", "nan"}  # of a label; "none" is one, of bearings without a fault


@dataclass(frozen=True)
class Collection(Dataset):
    """The settings of the dataset; `domain` and `label` are columns of its table, several of them joined by +.

    >>> Collection(Path("bearing_datasets/jnu"), bearing="6205").label
    'fault_type'
    """

    root: Path
    domain: str | None = None  # None: the first of DOMAINS that has several values
    label: str = "fault_type"
    channel: str | None = None
    bearing: str | None = None  # of recordings whose table does not name a known one

    about: ClassVar[About] = About(
        "a set that the project bearing-datasets has built: ROOT/metadata.parquet and ROOT/signals", "the set's own"
    )

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root)
        metadata, _ = read_arrays(table_values, root / TABLE, TABLE)
        rows: list[dict[str, Any]] = metadata["rows"]
        columns = list(rows[0]) if rows else []
        for name in NEEDED:
            if name not in columns:
                raise InputError(f"{TABLE}: the column '{name}' is missing; build the set again with bearing-datasets")
        vibrations = [row for row in rows if str(row.get("quantity", "unknown")) in VIBRATION]
        others = sorted({str(row["channel"]) for row in rows} - {str(row["channel"]) for row in vibrations})
        notes = [f"channels that are no vibration are left out: {', '.join(others)}"] if others else []
        channel = chosen_channel(TABLE, {str(row["channel"]): row for row in vibrations}, self.channel)
        rows = [row for row in vibrations if str(row["channel"]) == channel]
        usual = (name for name in DOMAINS if 2 <= len({row.get(name) for row in rows}) <= MOST_DOMAINS)
        domain = self.domain or next(usual, None)
        if domain is None:
            raise InputError(f"{TABLE}: no column tells domains apart; name one of {', '.join(columns)}", "domain")
        for setting, text in (("domain", domain), ("label", self.label)):
            for column in text.split("+"):
                if column not in columns:
                    raise InputError(f"{TABLE}: has no column '{column}'{suggest(column, columns)}", setting)
        entries, problems = [], []
        for row in rows:
            place = root / SIGNALS / str(row["signal_file"])
            name, label = _value(row, domain), _value(row, self.label)
            if inside(root / SIGNALS, place) and place.is_file():
                entries.append(self._entry(row, name, None if label.lower() in UNSAID else label, place))
            else:
                sentence = f"{row['signal_id']}: {place.name} is not in {SIGNALS}"
                problems.append(Problem(row["signal_id"], sentence, name))
        domains, labels = (_counted(rows, text) for text in (domain, self.label))
        for setting, text, counts in (("domain", domain, domains), ("label", self.label, labels)):
            found = ", ".join(f"{value} ({count})" for value, count in counts.items())
            notes.append(f"{setting} = the column {text}: {found}; --set {setting}=COLUMN takes another")
        classes = tuple(value for value in labels if value.lower() not in UNSAID)
        return Catalogue(tuple(domains), classes, tuple(entries), tuple(problems), tuple(notes))

    def _entry(self, row: Mapping[str, Any], domain: str, label: str | None, path: Path) -> Entry:
        origin = str(row["signal_id"])
        rpm = _number(row.get("speed_rpm"))

        def read() -> Recording:
            with reading(origin, "a signal"):
                changed = path.stat().st_mtime_ns
            group, number = int(row["signal_row_group"]), int(row["signal_row"])
            samples = _group(path, changed, group)
            if not 0 <= number < len(samples):
                raise InputError(f"{origin}: is not where {TABLE} says; build the set again with bearing-datasets")
            return Recording(
                signal=samples[number], rate=_number(row["fs"]), label=label, domain=domain, origin=origin, rpm=rpm,
                channel=str(row["channel"]), bearing=self._bearing(row), machine=str(row.get("dataset", "")) or None,
                sensor=str(row.get("sensor_location", "")) or None,
            )  # fmt: skip

        identity = f"collection-1 {[row[name] for name in PLACE]} {rpm} {self._bearing(row)}"
        return Entry(domain, label, origin, path, identity, read)

    def _bearing(self, row: Mapping[str, Any]) -> Bearing | None:
        try:
            return find_bearing(str(row.get("bearing_model", "")))
        except InputError:  # one that bearcat does not know
            return None if self.bearing is None else find_bearing(self.bearing)


def _value(row: Mapping[str, Any], columns: str) -> str:
    """What the columns say of a row: numbers without needless zeros, several of them joined by +."""
    values = [row[column] for column in columns.split("+")]
    return "+".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _counted(rows: Sequence[Mapping[str, Any]], columns: str) -> Counter[str]:
    """How many signals each value has; numbers in their order, others as they come."""
    numbers = [_number(row[columns]) if columns in row else None for row in rows]
    if all(number is not None for number in numbers):
        rows = sorted(rows, key=lambda row: float(row[columns]))
    return Counter(_value(row, columns) for row in rows)


def _number(value: Any) -> float | None:
    with suppress(TypeError, ValueError):
        return float(value) if 0 < float(value) < np.inf else None
    return None


@lru_cache(maxsize=2)
def _group(path: Path, changed: int, group: int) -> list[Samples]:  # noqa: ARG001 (part of the cache's key)
    """The signals of a group of rows."""
    _, arrays = read_arrays(group_values, path, path.name, str(group))
    return np.split(arrays["values"], arrays["ends"][:-1])


def table_values(path: str, origin: str) -> tuple[dict[str, Any], dict[str, Samples]]:
    """The rows of a table as plain values (the form that bearcat.data.isolated.read_arrays wants)."""
    rows = library("pyarrow.parquet", "formats", origin).read_table(path).to_pylist()
    plain = (str, int, float, bool)
    return {"rows": [{k: v if isinstance(v, plain) else str(v) for k, v in row.items()} for row in rows]}, {}


def group_values(path: str, origin: str, group: str) -> tuple[dict[str, Any], dict[str, Samples]]:
    """All samples of a group of rows one after the other, and where each signal ends."""
    file = library("pyarrow.parquet", "formats", origin).ParquetFile(path)
    column = file.read_row_group(int(group), columns=["signal"]).column(0)
    signals = [np.asarray(part.values.to_numpy(zero_copy_only=False)) for part in column]
    return {}, {"values": np.concatenate(signals), "ends": np.cumsum([signal.size for signal in signals])}
