"""Counts and times of a server, in the text that Prometheus reads. Used from one thread, the event loop's.

>>> metrics = Metrics()
>>> metrics.count("bearcat_requests_total", labels={"path": "/predict", "status": "200"})
>>> print(metrics.text())
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
HELP = {
    "bearcat_requests_total": "Requests answered, by path and status.",
    "bearcat_windows_total": "Windows diagnosed.",
    "bearcat_recordings_total": "Recordings, or sets of windows, diagnosed, by class.",
    "bearcat_alarms_total": "Of these, the alarms.",
    "bearcat_unfamiliar_total": "Of these, those that look like nothing the model was adapted to.",
}
IN_FLIGHT = "bearcat_requests_in_flight"
ACCEPTED = "bearcat_predictions_in_flight"
SECONDS = "bearcat_request_seconds"

Series = tuple[str, tuple[tuple[str, str], ...]]


class Metrics:
    """Counters by name and labels, a histogram of seconds by path, and how many requests are being answered."""

    def __init__(self) -> None:
        self.in_flight = 0  # requests of any kind
        self.accepted = 0  # recordings and windows being received, waiting or computed
        plain = ("bearcat_windows_total", "bearcat_alarms_total", "bearcat_unfamiliar_total")
        self._counts: Counter[Series] = Counter({(name, ()): 0 for name in plain})  # there from the start
        self._times: dict[str, list[float]] = {}  # path → counts by bound, then the sum

    def count(self, name: str, amount: int = 1, labels: Mapping[str, str] | None = None) -> None:
        self._counts[name, tuple((labels or {}).items())] += amount

    def time(self, path: str, seconds: float) -> None:
        row = self._times.setdefault(path, [0.0] * (len(BOUNDS) + 2))
        row[bisect_left(BOUNDS, seconds)] += 1
        row[-1] += seconds

    def text(self) -> str:
        lines = []
        for name, told in HELP.items():
            lines += [f"# HELP {name} {told}", f"# TYPE {name} counter"]
            lines += [
                f"{name}{_labelled(labels)} {value}"
                for (found, labels), value in sorted(self._counts.items())
                if found == name
            ]
        lines += [f"# HELP {SECONDS} Seconds from a request's head to its answer.", f"# TYPE {SECONDS} histogram"]
        for path, row in sorted(self._times.items()):
            total = 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), row[:-1], strict=True):
                total += int(count)
                lines.append(f"{SECONDS}_bucket{_labelled((('path', path), ('le', bound)))} {total}")
            lines += [f"{SECONDS}_sum{_labelled((('path', path),))} {row[-1]:.6f}"]
            lines += [f"{SECONDS}_count{_labelled((('path', path),))} {total}"]
        for name, told, value in (
            (IN_FLIGHT, "Requests being answered, this one among them.", self.in_flight),
            (ACCEPTED, "Recordings being received, waiting or computed.", self.accepted),
        ):
            lines += [f"# HELP {name} {told}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"


def _labelled(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    plain = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in plain) + "}"
