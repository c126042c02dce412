"""What a user can ask for: each field once, with its type, default, range and one line of help.

Options of the command line, keywords of Python, the query over HTTP and docs/commands.md are made from these fields.

>>> DiagnoseRequest.of(rpm=1480, bearing="6205", rate="12000").rate
12000.0
>>> AdaptRequest.of(methd="DANN")
bearcat.errors.InputError: unknown setting 'methd'; did you mean 'method'?
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bearcat.errors import RANGES, InputError, check_range, suggest
from bearcat.settings import override, pairs

RECORDINGS, ADVANCED = "Recordings", "Advanced"  # groups of options, the first being "Options"
DAY = 86_400.0  # seconds
MANY = "; repeat for more"


def option(
    default: Any, text: str, metavar: str = "", *, choices: tuple[str, ...] = (), group: str = "", flag: str = "",
) -> Any:  # fmt: skip
    """A field with its help; a field of a number has the range of its name in RANGES, if there is one."""
    words = {"help": text, "metavar": metavar, "choices": choices, "group": group, "flag": flag}
    return dataclasses.field(default=default, metadata=words)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The base of all requests."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """The request with these values, which may be texts; InputError names the field of a wrong one."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        request = override(cls(), {name: value for name, value in plain.items() if value is not None})
        for field in dataclasses.fields(cls):
            value, words = getattr(request, field.name), field.metadata
            if words["choices"] and value is not None and value not in words["choices"]:
                raise InputError(f"unknown choice '{value}'{suggest(value, words['choices'])}", field.name)
            if field.name in RANGES and isinstance(value, int | float):
                check_range(field.name, value, field=field.name)
        return request


@dataclass(frozen=True, kw_only=True)
class SignalRequest(Request):
    """What recordings may not state."""

    rpm: str | None = option(None, "Speed of the shaft, or the channel with it.", "RPM", group=RECORDINGS)
    bearing: Any = option(  # noqa: RUF009 (a text, or a Bearing)
        None, "6205, bpfo=3.59,bpfi=5.42 or balls=9,ball=7.94,pitch=39.", "BEARING", group=RECORDINGS
    )
    channel: str | None = option(None, "The channel to read, by name.", "NAME", group=RECORDINGS)


@dataclass(frozen=True, kw_only=True)
class PointRequest(SignalRequest):
    """What diagnosing and watching have in common."""

    channels: str | None = option(
        None, "Channels are axes of one bearing, or of several bearings.", "together|apart",
        choices=("together", "apart"), group=RECORDINGS,
    )  # fmt: skip
    trust_speed: bool = option(False, "Keep the stated speed where the signal contradicts it.", group=ADVANCED)
    jobs: int = option(1, "Processes; 0: one for each core.", "N", group=ADVANCED)


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest(PointRequest):
    """Of `diagnose`, `predict`, `report` and the server."""

    rate: float | None = option(None, "Sampling rate of files that do not state it.", "HZ", group=RECORDINGS)
    override: bool = option(False, "--rate, --rpm and --bearing override what files state.", group=ADVANCED)
    alarm: tuple[str, ...] = option(
        (), "This class is an alarm" + MANY + ".  [default: all but healthy]", "CLASS", group=ADVANCED
    )
    prior: float | None = option(None, "Share of recordings that are faulty.  [default: 0.3]", "SHARE", group=ADVANCED)
    unit: str | None = option(None, "Unit of the samples: g, m/s², mm/s, …", "UNIT", group=ADVANCED)
    group: int | None = option(None, "ISO 20816-3: 1 above 300 kW, 2 from 15 to 300 kW.", "1|2", group=ADVANCED)
    mounting: str | None = option(
        None,
        "Mounting of the machine, for ISO 20816-3.",
        "rigid|flexible",
        choices=("rigid", "flexible"),
        group=ADVANCED,
    )


@dataclass(frozen=True, kw_only=True)
class WatchRequest(PointRequest):
    """Of `watch`."""

    false_alarms: float | None = option(None, "Accepted false alarms of a point in a year.  [default: 1]", "N")
    baseline: int | None = option(None, "Recordings of a baseline.  [default: 8 to 30]", "N")
    baseline_days: float | None = option(None, "Days of running of a baseline.  [default: 2]", "N")
    timezone: str | None = option(None, "Time zone of times without one.  [default: UTC]", "ZONE", group=ADVANCED)

    @property
    def rule(self) -> dict[str, Any]:
        """The settings of the rule for alarms that are given, by their names."""
        period = None if self.baseline_days is None else DAY * self.baseline_days
        settings = {"false_alarms": self.false_alarms, "baseline": self.baseline, "period": period}
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ServeRequest(Request):
    """Of `serve`."""

    store: str | None = option(None, "Show the machines of this store of bearcat watch at /fleet.", "STORE")
    host: str = option("127.0.0.1", "The address to listen on; 0.0.0.0 for all.", "ADDRESS")
    port: int = option(8000, "The port; 0 takes a free one.", "N")
    max_bytes: int = option(64 * 2**20, "Largest request in bytes.", "N", group=ADVANCED)
    timeout: float = option(30.0, "Longest time of a request in seconds.", "S", group=ADVANCED)
    concurrency: int = option(64, "Connections at once; others get 503.", "N", group=ADVANCED)
    alarm: tuple[str, ...] = option((), "This class is an alarm" + MANY + ".", "CLASS", group=ADVANCED)


@dataclass(frozen=True, kw_only=True)
class DataRequest(SignalRequest):
    """How a dataset or a user's folder is read."""

    root: Path | None = option(  # noqa: RUF009 (frozen too)
        None, "The dataset's folder.  [default: $BEARCAT_DATA/NAME]", "FOLDER", group=RECORDINGS
    )
    rate: float | None = option(None, "Resample to it; also the rate of files that state none.", "HZ", group=RECORDINGS)
    settings: tuple[str, ...] = option(
        (), "A setting of the dataset" + MANY + ".", "NAME=VALUE", flag="--set", group=ADVANCED
    )

    @property
    def dataset_settings(self) -> dict[str, str]:
        """Settings of the dataset, with those that are fields of the request."""
        fields = {name: getattr(self, name) for name in ("channel", "rpm", "bearing")}
        return pairs(self.settings) | {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class AdaptRequest(DataRequest):
    """Of `adapt`; what is None or empty is chosen, from the recordings where they are the user's own."""

    data: str = option("simulated", "A dataset, or the path of your own folder.", "NAME")
    source: tuple[str, ...] = option((), "Labelled domain, by name or index" + MANY + ".", "NAME")
    target: str | None = option(None, "The domain to adapt to.", "NAME")
    method: str | None = option(None, "See `bearcat methods`.  [default: match-clusters]", "NAME")
    input: str | None = option(None, "Input of the network: physics, time, …  [default: the method's]", "NAME")
    reference: str | None = option(None, "A class labelled in the target, or a healthy file of it.", "CLASS|FILE")
    epochs: int | None = option(None, "Epochs of training; phases scale with them.  [default: the method's]", "N")
    beside: tuple[str, ...] = option((), "Train this method too" + MANY + ".", "NAME", group=ADVANCED)
    window: int | None = option(None, "Samples of a window.  [default: 1024]", "N", group=ADVANCED)
    stride: int | None = option(None, "Samples from window to window.  [default: no overlap]", "N", group=ADVANCED)
    split: str | None = option(None, "Split by window, block, recording or specimen.", "NAME", group=ADVANCED)
    seed: int = option(0, "Seed of the split and of training.", "N", group=ADVANCED)
    device: str = option("auto", "Where training runs: auto, cpu or cuda.", "NAME", group=ADVANCED)
    method_settings: tuple[str, ...] = option(
        (), "A setting of the method" + MANY + ".", "PART.NAME=VALUE", flag="--method-set", group=ADVANCED
    )
