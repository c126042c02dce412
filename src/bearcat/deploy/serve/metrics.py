"""Counts and times of a server, in the text that Prometheus reads.

>>> metrics = Metrics()
>>> metrics.requests.labels(path="/predict", status="200").inc()
>>> print(metrics.text().decode())
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for each counter, which is not needed


class Metrics:
    """Counters of this server alone; their names get the ending _total."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "bearcat_requests", "Requests answered, by path and status.", ["path", "status"], registry=registry
        )
        self.recordings = Counter(
            "bearcat_recordings", "Recordings, or sets of windows, diagnosed, by class.", ["class"], registry=registry
        )
        self.windows = Counter("bearcat_windows", "Windows diagnosed.", registry=registry)
        self.alarms = Counter("bearcat_alarms", "Recordings that were an alarm.", registry=registry)
        self.unfamiliar = Counter("bearcat_unfamiliar", "Recordings unfamiliar to the model.", registry=registry)
        self.seconds = Histogram(
            "bearcat_request_seconds", "Seconds from a request's head to its answer.", ["path"],
            buckets=BOUNDS, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge("bearcat_requests_in_flight", "Requests being answered.", registry=registry)
        self.accepted = Gauge(
            "bearcat_predictions_in_flight", "Recordings being received, waiting or computed.", registry=registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
