"""The store as one table, for pandas, R or a spreadsheet.

>>> with Store.open("plant.db") as store:
...     write_table(store, Path("plant.parquet"))
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bearcat.data.signals import library
from bearcat.errors import InputError
from bearcat.names import csv_cell
from bearcat.storage import drafted
from bearcat.watch.snapshot import MEASUREMENTS
from bearcat.watch.status import written_time
from bearcat.watch.store import Store

TEXTS = ("machine", "point", "time", "recording", "status", "state", "operating_state")
NUMBERS = ("confidence", "p_value", "evidence", "threshold")
COLUMNS = [*TEXTS[:5], *NUMBERS, *TEXTS[5:], "late", *MEASUREMENTS]
ALL = 10**9  # rows of a trend
Rows = list[dict[str, Any]]


def write_table(store: Store, path: Path) -> int:
    """Writes a file whose name ends in .parquet or .csv; how many rows. An earlier file stays until all is written."""
    writers, number = {".parquet": _parquet, ".csv": _csv}, 0
    if path.suffix.lower() not in writers:
        raise InputError(f"--out: {path}: the name must end in .parquet or .csv")
    with drafted(path) as draft, writers[path.suffix.lower()](draft) as write:
        for status in sorted(store.fleet(), key=lambda status: (status.machine, status.point)):
            trend = store.trend(status.machine, status.point, most=ALL)
            named = {"machine": status.machine, "point": status.point}
            rows = [vars(row) | dict(row.values) | named | {"time": written_time(row.time)} for row in trend]
            write([{name: row.get(name) for name in COLUMNS} for row in rows])
            number += len(trend)
    return number


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Rows], None]]:
    pyarrow, parquet = library("pyarrow", "formats", str(path)), library("pyarrow.parquet", "formats", str(path))
    kinds = dict.fromkeys(TEXTS, pyarrow.string()) | {"late": pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in COLUMNS])
    with parquet.ParquetWriter(path, schema) as writer:
        yield lambda rows: writer.write_table(pyarrow.Table.from_pylist(rows, schema))


@contextmanager
def _csv(path: Path) -> Iterator[Callable[[Rows], None]]:
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        yield lambda rows: writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
