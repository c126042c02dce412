"""Counts and times of a server, in the text that Prometheus reads.

>>> metrics = Metrics()
>>> metrics.requests.labels(path="/predict", status="200").inc()
>>> print(metrics.text().decode())
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for each counter, which is not needed


class Metrics:
    """Counters of this server alone; their names get the ending _total."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.requests = counter("bearcat_requests", "Requests answered, by path and status.", ["path", "status"])
        self.recordings = counter(
            "bearcat_recordings", "Recordings, or sets of windows, diagnosed, by class.", ["class"]
        )
        self.windows = counter("bearcat_windows", "Windows diagnosed.")
        self.alarms = counter("bearcat_alarms", "Recordings that were an alarm.")
        self.unfamiliar = counter("bearcat_unfamiliar", "Recordings unfamiliar to the model.")
        self.seconds = Histogram(
            "bearcat_request_seconds", "Seconds from a request's head to its answer.", ["path"],
            buckets=BOUNDS, registry=registry,
        )  # fmt: skip
        self.in_flight = gauge("bearcat_requests_in_flight", "Requests being answered.")
        self.accepted = gauge("bearcat_predictions_in_flight", "Recordings being received, waiting or computed.")

    def text(self) -> bytes:
        return generate_latest(self.registry)
