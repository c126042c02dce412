"""Settings and requests: frozen dataclasses whose fields are read from text.

A row of a table (an input, an encoder, a calibrator) is written as its name with settings,
`dense:widths=256,128:dropout=0.1`, in records, model folders, grids and on the command line.

A request is what a user can ask for: each field once, with its type, default, range and one line of help. Options of
the command line, keywords of Python, the query over HTTP and docs/commands.md are made from these fields. A grid is
read in the same way (bench/grid.py).

>>> override(Simulated(), {"seconds": "2", "severities": "0.5,2"})
>>> from_text("frequency", INPUTS, "input")
>>> DiagnoseRequest.of(rpm=1480, bearing="6205", rate="12000").rate
12000.0
>>> AdaptRequest.of(methd="DANN")
bearcat.errors.InputError: unknown setting 'methd'; did you mean 'method'?
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from bearcat.errors import RANGES, InputError, check_range, naming_place, suggest

Settings = TypeVar("Settings")
_hints = functools.cache(typing.get_type_hints)  # which evaluates the texts anew each time
DESCRIBED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """`name=value` texts as a table."""
    table = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputError(f"'{text}' is not a setting; write NAME=VALUE")
        table[name.strip()] = value.strip()
    return table


def override(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """A copy with these fields changed, whose values may be texts, lists and tables; InputError names a wrong one."""
    return dataclasses.replace(settings, **_read_fields(type(settings), given, True))  # type: ignore[type-var]


def _read_fields(kind: Any, table: Mapping[str, Any], given: bool) -> dict[str, Any]:
    """Fields of a dataclass from a table that a person has `given`, or a program."""
    hints, names = _hints(kind), [field.name for field in dataclasses.fields(kind)]
    for name in table:
        if given and name not in names:
            raise InputError(f"unknown setting '{name}'{suggest(name, names)}")
    return {name: from_plain(hints[name], table[name], name, given) for name in names if name in table}


def find_name(name: str, table: Iterable[str], what: str) -> str:
    """The entry of a table called so, in any case; the nearest is suggested if there is none."""
    names = {entry.lower(): entry for entry in table}
    if name.lower() not in names:
        raise InputError(f"unknown {what} '{name}'{suggest(name, names.values())}")
    return names[name.lower()]


def from_text(text: str, table: Mapping[str, Callable[[], Settings]], what: str) -> Settings:
    """The value that `NAME` or `NAME:SETTING=VALUE:…` describes, made of a row of the table."""
    name, *settings = text.split(":")
    value = table[find_name(name, table, what)]()
    with naming_place(f"{what} '{text}'"):
        return override(value, pairs(settings)) if settings else value


def to_text(value: Any, table: Mapping[str, Callable[[], Any]], every: bool = True) -> str:
    """A value made of a row of the table as `NAME:SETTING=VALUE:…`, with all settings or those not at their default."""
    parts = [next((name for name, kind in table.items() if kind is type(value)), type(value).__name__)]
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        if every or setting != field.default:
            items = setting if isinstance(setting, tuple) else ("none" if setting is None else setting,)
            parts.append(f"{field.name}={','.join(map(str, items))}")
    return ":".join(parts)


def to_plain(value: Any) -> Any:
    """A frozen dataclass as values that JSON knows."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: Any, value: Any, name: str = "the value", given: bool = False) -> Any:
    """A value of this type from what JSON or TOML holds of it; InputError names what does not fit.

    Of a dataclass, missing entries have its defaults. Where a program wrote the value, entries that the dataclass does
    not know are left out. Where a person has `given` it they are refused, numbers may be texts, and a text may stand
    for a table with the first field alone.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if given and kind in DESCRIBED and not isinstance(value, Mapping | list | tuple):
        value = str(value)
    if kind is Any or (type(value) is (origin or kind) and origin is not tuple):
        return value
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and (value is None or str(value).lower() in ("", "none")):
            return None
        first, *others = (argument for argument in arguments if argument is not type(None))
        for other in others:
            with contextlib.suppress(ValueError):
                return from_plain(other, value, name, given)
        return from_plain(first, value, name, given)
    if origin is Literal and value in arguments:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and (given or isinstance(value, Mapping)):
        return _read_dataclass(kind, value, name, given)
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, Mapping):  # a list of one table, or of pairs
            value = [value] if dataclasses.is_dataclass(arguments[0]) else list(value.items())
        if isinstance(value, list | tuple):
            kinds = arguments if ... not in arguments else arguments[:1] * len(value)
            if len(kinds) == len(value):
                parts = enumerate(zip(kinds, value, strict=True), start=1)
                return tuple(from_plain(part, item, f"{name} {number}", given) for number, (part, item) in parts)
    elif origin is Mapping and isinstance(value, Mapping):
        return {str(key): from_plain(arguments[1], item, f"{name} of '{key}'", given) for key, item in value.items()}
    elif kind is float and type(value) is int:
        return float(value)
    elif kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    elif isinstance(value, str) and kind in (int, float, Path):
        with contextlib.suppress(ValueError):
            return kind(value)
    needed = {Literal: " or ".join(filter(None, map(str, arguments))), tuple: "a list like a,b"}.get(origin)
    needed = needed or DESCRIBED.get(kind, "a table")
    raise InputError(f"'{name}' must be {needed}, not {value!r:.40}")


def _read_dataclass(kind: Any, value: Any, name: str, given: bool) -> Any:
    """A dataclass from a table; an error names the table, if a person wrote it, and the entry."""
    fields = dataclasses.fields(kind)
    with naming_place(name) if given else contextlib.nullcontext():
        table = {fields[0].name: value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            raise InputError(f"must be a table, not {value!r:.40}")
        read = _read_fields(kind, table, given)
        for field in fields:
            if field.name not in read and field.default is field.default_factory is dataclasses.MISSING:
                raise InputError(f"'{field.name}' is missing")
        return kind(**read)


MANY = "; repeat for more"
PRIOR = 0.3  # share of recordings that are of a faulty bearing, where nobody says another


def option(default: Any, text: str, metavar: str = "", flag: str = "") -> Any:
    """A field with its help; a field of a number has the range of its name in RANGES, if there is one."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class Request:
    """The base of all requests."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """The request with these values, which may be texts; InputError names the field of a wrong one."""
        request = override(cls(), {name: value for name, value in values.items() if value is not None})
        for field in dataclasses.fields(cls):
            value = getattr(request, field.name)
            if field.name in RANGES and isinstance(value, int | float):
                check_range(field.name, value, field=field.name)
        return request


@dataclass(frozen=True, kw_only=True)
class SignalRequest(Request):
    """What recordings may not state."""

    rpm: str | None = option(None, "Speed of the shaft, or the channel with it.", "RPM")
    bearing: Any = option(None, "6205, bpfo=3.59,bpfi=5.42 or balls=9,ball=7.94,pitch=39.", "BEARING")  # noqa: RUF009
    channel: str | None = option(None, "The channel to read, by name.", "NAME")


@dataclass(frozen=True, kw_only=True)
class PointRequest(SignalRequest):
    """What diagnosing and watching have in common."""

    channels: Literal["together", "apart"] | None = option(
        None, "Channels are axes of one bearing, or of several bearings.", "together|apart"
    )
    prior: float = option(PRIOR, "Share of recordings that are faulty.", "SHARE")
    trust_speed: bool = option(False, "Keep the stated speed where the signal contradicts it.")
    jobs: int = option(1, "Processes; 0: one for each core.", "N")


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest(PointRequest):
    """Of `diagnose`, `predict`, `report` and the server."""

    rate: float | None = option(None, "Sampling rate of files that do not state it.", "HZ")
    alarm: tuple[str, ...] = option((), "This class is an alarm" + MANY + ".  [default: all but healthy]", "CLASS")
    unit: str | None = option(None, "Unit of the samples: g, m/s², mm/s, …", "UNIT")
    group: int | None = option(None, "ISO 20816-3: 1 above 300 kW, 2 from 15 to 300 kW.", "1|2")
    mounting: Literal["rigid", "flexible"] | None = option(
        None, "Mounting of the machine, for ISO 20816-3.", "rigid|flexible"
    )


@dataclass(frozen=True, kw_only=True)
class WatchRequest(PointRequest):
    """Of `watch`."""

    rpm: float | None = option(None, "Speed of the shaft.", "RPM")  # type: ignore[assignment]  # no channel
    false_alarms: float = option(1.0, "Accepted false alarms of a point in a year.", "N")
    baseline: int | None = option(None, "Recordings of a baseline.  [default: 8 to 30]", "N")
    baseline_days: float = option(2.0, "Days of running of a baseline.", "N")


@dataclass(frozen=True, kw_only=True)
class ServeRequest(Request):
    """Of `serve`."""

    store: str | None = option(None, "Show the machines of this store of bearcat watch at /fleet.", "STORE")
    host: str = option("127.0.0.1", "The address to listen on; 0.0.0.0 for all.", "ADDRESS")
    port: int = option(8000, "The port; 0 takes a free one.", "N")
    max_bytes: int = option(64 * 2**20, "Largest request in bytes.", "N")
    timeout: float = option(30.0, "Longest time of a request in seconds.", "S")
    concurrency: int = option(64, "Connections at once; others get 503.", "N")
    alarm: tuple[str, ...] = option((), "This class is an alarm" + MANY + ".  [default: all but healthy]", "CLASS")


@dataclass(frozen=True, kw_only=True)
class DataRequest(SignalRequest):
    """How a dataset or a user's folder is read."""

    root: Path | None = option(None, "The dataset's folder.  [default: $BEARCAT_DATA/NAME]", "FOLDER")  # noqa: RUF009
    rate: float | None = option(None, "Resample to it; also the rate of files that state none.", "HZ")
    settings: tuple[str, ...] = option((), "A setting of the dataset" + MANY + ".", "NAME=VALUE", "--set")

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
    reference: str = option("", "Class labelled in the target, or a healthy file.", "CLASS|FILE")
    epochs: int | None = option(None, "Epochs of training.  [default: the method's]", "N")
    window: int | None = option(None, "Samples of a window.  [default: 1024]", "N")
    stride: int | None = option(None, "Samples from window to window.  [default: no overlap]", "N")
    split: str | None = option(None, "Split by window, block, recording or specimen.", "NAME")
    prior: float = option(PRIOR, "Share of recordings that are faulty.", "SHARE")
    seed: int = option(0, "Seed of split and training.", "N")
    device: str = option("auto", "Where training runs: auto, cpu or cuda.", "NAME")
    method_settings: tuple[str, ...] = option((), "A setting of the method" + MANY + ".", "NAME=VALUE", "--method-set")
