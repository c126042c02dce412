"""Following a training from elsewhere: the numbers of each epoch, sent to where people watch them.

A tracker is told every epoch's numbers and is closed at the end; it decides nothing and the training does not depend on
it. A training that is resumed opens its folder again and goes on there.

>>> tracker = open_tracker("tensorboard", Path("bearcat-out/track"))  # then: tensorboard --logdir bearcat-out/track
>>> tracker.epoch(0, {"loss_supervised": 2.1})
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from bearcat.errors import InputError, suggest


class Tracker(Protocol):
    """Where the numbers of a training go."""

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """The numbers at the end of an epoch; nan means there is none."""

    def close(self) -> None:
        """Everything told so far is kept; closing twice is no harm."""


def require_tracker(name: str) -> None:
    """Says now, and not after the data are read, that there is no such tracker or that its package is missing."""
    if name not in TRACKERS:
        raise InputError(f"unknown tracker '{name}'{suggest(name, TRACKERS)}")
    if find_spec(name) is None:
        raise InputError(f"tracking with {name} needs an extra; pip install 'bearcat[track]'")


def open_tracker(name: str, folder: Path) -> Tracker:
    """The tracker called so, writing into the folder, which may hold an earlier part of the same training."""
    require_tracker(name)
    return TRACKERS[name](folder)


class TensorBoard:
    """Event files, written with the tensorboard package alone; neither TensorFlow nor torch is needed."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise InputError("tracking with TensorBoard needs an extra; pip install 'bearcat[track]'") from error
        self._event, self._session, self._summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        self._folder = folder
        self._begun = False
        # Every opening makes a new file; TensorBoard reads all files of a folder as one run.
        self._writer: Any = self._sure(lambda: EventFileWriter(_in_turn(folder)))

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:
            raise ValueError("this tracker is closed")
        events = []
        if not self._begun:
            # What an interrupted training wrote of this epoch and later ones is told again: readers drop the old.
            events.append(self._event(step=epoch, session_log=self._session(status=self._session.START)))
            self._begun = True
        values = [
            self._summary.Value(tag=name, simple_value=number)
            for name, number in numbers.items()
            if not math.isnan(number)
        ]
        if values:
            events.append(self._event(step=epoch, summary=self._summary(value=values)))
        for event in events:
            event.wall_time = time.time()
            self._sure(partial(self._writer.add_event, event))
        self._sure(self._writer.flush)  # somebody is watching

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._sure(writer.close)

    def _sure(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except OSError as error:
            raise InputError(
                f"{self._folder}: TensorBoard's events cannot be written ({error.strerror or error}); "
                "make room or train without --track"
            ) from error


def _in_turn(folder: Path) -> str:
    """The folder, once a file opened now sorts after those there: names begin with the second, readers go by name."""
    begun = [one.name.removeprefix("events.out.tfevents.").partition(".")[0] for one in folder.glob("events.*")]
    taken = [int(one) for one in begun if one.isdecimal()]
    wait = max(taken, default=0) + 1 - time.time()
    if 0 < wait <= 1:  # more would be a clock that was set back, and no waiting helps
        time.sleep(wait)
    return str(folder)


TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard}
