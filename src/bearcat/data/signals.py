"""What a file of signals holds: channels by name, their samples and rates; and how failures of reading are told.

>>> name, samples = read_signals(Path("monday.wav")).pick(None)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.errors import InputError, check_range, suggest
from bearcat.names import shown

Samples = NDArray[Any]
Speeds = Mapping[str, float]  # of channels whose speed (rpm) the file states as a number

BLOCK = 2**18  # samples read at once
SOME_NAMES = 30  # of channels, listed in a sentence
KEPT_BYTES = 2**29  # of decoded files that are kept to be read again
MOST_CHANNELS = 1000  # of a file; more are windows that were cut already, or a table that lies on its side


class TooLargeError(InputError):
    """The file may be readable, but there is too much in it."""


@contextmanager
def reading(origin: str, kind: str) -> Iterator[None]:
    """Turns any failure while reading a file (readers raise nearly all kinds) into one sentence that names it."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{origin}: there is no such file") from error
    except PermissionError as error:
        raise InputError(f"{origin}: permission denied; make the file readable for your user") from error
    except MemoryError as error:
        raise TooLargeError(f"{origin}: needs more memory than there is; cut it into shorter recordings") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{origin}: is not UTF-8 text; save it again with the encoding UTF-8") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200].rstrip(".") or type(error).__name__
        damaged = f"cannot be read as {kind} ({reason}); it is damaged or of another format"
        raise InputError(f"{origin}: {damaged}") from error


def library(name: str, extra: str, origin: str) -> Any:
    """A module that reads a format, or the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{origin}: reading it needs an extra; pip install 'bearcat[{extra}]'") from error


def too_many(origin: str, count: int) -> InputError:
    most = f"has {count} columns, more than {MOST_CHANNELS}"
    return InputError(f"{origin}: {most}; transpose the table, or cut it into files")


@dataclass(frozen=True, eq=False)
class SignalFile:
    """An open file: its channels with the bytes their samples take (0 where it does not say), and their rate.

    `read` may be called once, with the names of the channels wanted; it gives blocks of them in the file's order.
    """

    origin: str
    channels: Mapping[str, int]
    rate: float | None  # None: the file does not say
    read: Callable[[Sequence[str]], Iterator[tuple[str, Samples]]]
    names: Collection[str] = ()  # of everything in the file, for the sentence that there is no signal
    speeds: Speeds = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (count := max(len(self.channels), len(self.names))) > MOST_CHANNELS:
            raise too_many(self.origin, count)
        if not self.channels:
            raise InputError(f"{self.origin}: holds no numeric signal; it has {some_names(map(shown, self.names))}")
        check_range("rate", self.rate, self.origin)


@dataclass(frozen=True, eq=False)
class Signals:
    """The channels of one file, by name, and their sampling rate."""

    origin: str
    channels: Mapping[str, Samples]
    rate: float | None
    speed: Samples | None = None  # in rpm, where a channel holds it
    speeds: Speeds = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all channels."""
        return sum(samples.nbytes for samples in self.channels.values())

    def pick(self, channel: str | None) -> tuple[str, Samples]:
        """The channel of this name; without a name, the only one there is."""
        name = chosen_channel(self.origin, self.channels, channel)
        return name, self.channels[name]


def chosen_channel(origin: str, channels: Mapping[str, Any], channel: str | None) -> str:
    """The channel of this name; without a name, the only one there is."""
    if channel is None and len(channels) == 1:
        return next(iter(channels))
    if channel is None:
        raise InputError(f"{origin}: holds {len(channels)} channels ({some_names(channels)}); choose one", "channel")
    if channel not in channels:
        known = list(islice(channels, SOME_NAMES))
        raise InputError(f"{origin}: has no channel '{channel}'{suggest(channel, known)}", "channel")
    return channel


def some_names(names: Iterable[str]) -> str:
    listed = list(islice(names, SOME_NAMES + 1))
    return ", ".join(listed[:SOME_NAMES] + ["…"] * (len(listed) > SOME_NAMES))[:400] or "nothing"


def rate_of(origin: str, name: str, times: Samples) -> float:
    """The rate of evenly spaced times."""
    span = times[-1] - times[0]
    if not np.isfinite(span) or span <= 0:
        raise InputError(f"{origin}: the times in column '{name}' do not rise; sort them, or remove the column")
    step = span / (times.size - 1)
    off = np.abs(times - times[0] - step * np.arange(times.size))
    if not off.max() <= 1.5 * step:
        uneven = f"the times in '{name}' are not evenly spaced (near {times[off.argmax()]:g} s)"
        raise InputError(f"{origin}: {uneven}; resample the signal, or remove the column and give the rate")
    rate = float(1 / step)
    return float(round(rate)) if abs(rate - round(rate)) < 1e-4 * rate else rate  # whole but for the file's rounding
