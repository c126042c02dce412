"""Where what is watched goes: senders of events, MQTT, numbers for Prometheus, and the store as one table.

>>> with Out("plant.db", Path("plant"), notify="logger --tag bearcat", metrics="9108") as out:
...     Watching(WatchedFolder(Path("plant")), store, out=out).once()
...     out.drain(30)
"""

from __future__ import annotations

import csv
import os
import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from bearcat.data.signals import library
from bearcat.errors import InputError
from bearcat.names import csv_cell
from bearcat.storage import drafted
from bearcat.watch.mqtt import MqttLink
from bearcat.watch.notify import (
    MAIL_PASSWORD,
    WEBHOOK_SECRET,
    CommandSender,
    MailSender,
    Note,
    Notifier,
    Sender,
    WebhookSender,
)
from bearcat.watch.snapshot import STATUSES, Assessment, PointStatus
from bearcat.watch.status import written_time
from bearcat.watch.store import Store

MOST_LABELS = 500  # points with numbers of their own: those with the most evidence
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
LOOPBACK = "127.0.0.1"
FLUSH_SECONDS = 5.0  # that statuses may take to reach a broker at the end; the next run publishes them again
BATCH = 10_000  # rows that are in memory at once
TEXTS = ("machine", "point", "time", "recording", "digest", "status", "state", "operating_state")
NUMBERS = ("confidence", "p_value", "evidence", "threshold")
Rows = list[dict[str, Any]]


class Out(AbstractContextManager["Out"]):
    """All of them, as far as they are asked for; InputError where an address, a command or an extra is wrong."""

    def __init__(
        self, store: str, folder: Path, *, notify: str | None = None, webhook: str | None = None,
        mail: str | None = None, mqtt: str | None = None, metrics: str | None = None, note: Note = print,
    ) -> None:  # fmt: skip
        senders: list[Sender] = [CommandSender(notify)] if notify else []
        senders += [WebhookSender(webhook, os.environ.get(WEBHOOK_SECRET))] if webhook else []
        senders += [MailSender(mail, os.environ.get(MAIL_PASSWORD))] if mail else []
        with ExitStack() as stack:
            self._metrics = None if metrics is None else stack.enter_context(WatchMetrics(metrics))
            self._mqtt = None if mqtt is None else stack.enter_context(MqttLink(mqtt, folder, note))
            senders += [] if self._mqtt is None else [self._mqtt]
            self._notifier = stack.enter_context(Notifier(store, senders, note)) if senders else None
            self._opened = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def sends(self) -> bool:
        """Whether events wait in the store for somebody."""
        return self._notifier is not None

    def begin(self, statuses: Sequence[PointStatus]) -> None:
        """What is known before anything new is read."""
        if self._mqtt is not None:
            self._mqtt.publish_statuses(statuses)
        if self._metrics is not None:
            self._metrics.set_statuses(statuses)
        self._wake()

    def observe(self, assessments: Sequence[Assessment], recordings: int, problems: int, seconds: float) -> None:
        """What came of some recordings, which took so long together."""
        if self._mqtt is not None:
            self._mqtt.publish_statuses([each.status for each in assessments])
        if self._metrics is not None:
            self._metrics.observe(assessments, recordings, problems, seconds)
        self._wake()

    def _wake(self) -> None:
        if self._notifier is not None:
            self._notifier.wake()

    def drain(self, seconds: float) -> bool:
        """Waits until all events are delivered, for so long at most; whether they are."""
        if self._mqtt is not None:
            self._mqtt.flush(min(seconds, FLUSH_SECONDS))
        return self._notifier is None or self._notifier.drain(seconds)


class WatchMetrics(AbstractContextManager["WatchMetrics"]):
    """Numbers for Prometheus at http://HOST:PORT/metrics; on this machine only, unless a host is given."""

    def __init__(self, place: str) -> None:
        try:
            from prometheus_client import (
                CollectorRegistry,
                Counter,
                Gauge,
                Histogram,
                disable_created_metrics,
                start_http_server,
            )
        except ImportError as error:
            raise InputError("--metrics: needs an extra; pip install 'bearcat[serve]'") from error
        host, _, port = place.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise InputError(
                f"--metrics: '{place[:80]}' is no port; write it as 9108, or 0.0.0.0:9108 for other machines"
            )
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._recordings = Counter("bearcat_watch_recordings", "Recordings that were read.", registry=registry)
        self._problems = Counter("bearcat_watch_problems", "Files that could not be used.", registry=registry)
        self._seconds = Histogram(
            "bearcat_watch_recording_seconds", "Seconds until a recording was measured, judged and stored.",
            buckets=BOUNDS, registry=registry,
        )  # fmt: skip
        self._last = Gauge("bearcat_watch_last_recording_seconds", "When the latest was recorded.", registry=registry)
        self._points: dict[tuple[str, str], tuple[str, float | None, float]] = {}  # status, evidence, threshold
        self._lock = threading.Lock()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]") or LOOPBACK, registry)
        except OSError as error:
            raise InputError(f"--metrics: port {port} cannot be used ({error.strerror}); choose another") from error
        self.port = int(self._server.server_port)

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def set_statuses(self, statuses: Iterable[PointStatus]) -> None:
        """All points there are."""
        with self._lock:
            for each in statuses:
                known = self._points.get((each.machine, each.point), ("", None, 0.0))
                self._points[each.machine, each.point] = (each.status, *known[1:])

    def observe(self, assessments: Iterable[Assessment], recordings: int, problems: int, seconds: float) -> None:
        self._recordings.inc(recordings)
        self._problems.inc(problems)
        for _ in range(recordings):
            self._seconds.observe(seconds / recordings)
        with self._lock:
            for each in assessments:
                status = each.status
                self._points[status.machine, status.point] = status.status, each.evidence, each.threshold
                self._last.set(max(status.time or 0.0, self._last._value.get()))

    def collect(self) -> Iterator[Any]:
        """Called for each answer: points by status, and the evidence of those that have most."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        with self._lock:
            points = dict(self._points)
        found = Counts(status for status, _, _ in points.values())
        counts = GaugeMetricFamily("bearcat_watch_points", "Points, by status.", labels=["status"])
        for status in STATUSES:
            counts.add_metric([status], found[status])
        known = [(key, evidence, limit) for key, (_, evidence, limit) in points.items() if evidence is not None]
        known.sort(key=lambda each: each[1] - each[2], reverse=True)
        evidence = GaugeMetricFamily(
            "bearcat_watch_evidence", "Log of the evidence for a change, of the points with most.",
            labels=["machine", "point"],
        )  # fmt: skip
        limits = GaugeMetricFamily(
            "bearcat_watch_threshold", "Evidence at which a change is an alarm.", labels=["machine", "point"]
        )
        for key, value, limit in known[:MOST_LABELS]:
            evidence.add_metric(key, value)
            limits.add_metric(key, limit)
        yield from (counts, evidence, limits)


def write_table(store: Store, path: Path) -> int:
    """Writes a file whose name ends in .parquet or .csv; how many rows. An earlier file stays until all is written."""
    writers = {".parquet": _parquet, ".csv": _csv}
    if path.suffix.lower() not in writers:
        raise InputError(f"--out: {path}: the name must end in .parquet or .csv")
    columns, number = [*TEXTS[:6], *NUMBERS, *TEXTS[6:], "late", *store.measurement_names()], 0
    with drafted(path) as draft, writers[path.suffix.lower()](draft, columns) as write:
        rows = store.export()
        while batch := list(islice(rows, BATCH)):
            write([{name: row.get(name) for name in columns} | {"time": written_time(row["time"])} for row in batch])
            number += len(batch)
    return number


@contextmanager
def _parquet(path: Path, columns: list[str]) -> Iterator[Callable[[Rows], None]]:
    pyarrow, parquet = library("pyarrow", "formats", str(path)), library("pyarrow.parquet", "formats", str(path))
    kinds = dict.fromkeys(TEXTS, pyarrow.string()) | {"late": pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in columns])
    with parquet.ParquetWriter(path, schema) as writer:
        yield lambda rows: writer.write_table(pyarrow.Table.from_pylist(rows, schema))


@contextmanager
def _csv(path: Path, columns: list[str]) -> Iterator[Callable[[Rows], None]]:
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        yield lambda rows: writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
