"""The numbers of each epoch, written for a tool that displays a training.

A tracker decides nothing, and the training does not depend on it. A training that is resumed opens the same folder
again and continues there.

>>> tracker = open_tracker("tensorboard", Path("bearcat-out/track"))  # then: tensorboard --logdir bearcat-out/track
>>> tracker.epoch(0, {"loss_supervised": 2.1})
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bearcat.errors import InputError, suggest

if TYPE_CHECKING:
    from bearcat.training.evaluate import EpochEnd


def require_tracker(name: str) -> None:
    """Refuses an unknown tracker, or one whose package is missing, before any data are read."""
    if name not in TRACKERS:
        raise InputError(f"unknown tracker '{name}'{suggest(name, TRACKERS)}")
    if find_spec(name) is None:
        raise InputError(f"tracking with {name} needs an extra; pip install 'bearcat[track]'")


def open_tracker(name: str, folder: Path) -> TensorBoard:
    """The tracker of this name, writing into the folder, which may hold an earlier part of the same training."""
    require_tracker(name)
    return TRACKERS[name](folder)


@contextmanager
def tracked(
    name: str | None, folders: Mapping[int, Path], progress: Callable[[EpochEnd], None] | None
) -> Iterator[Callable[[EpochEnd], None] | None]:
    """The progress, which also hands every epoch to a tracker of each run, by the run's number in its stack."""
    if name is None:
        yield progress
        return
    with ExitStack() as opened:
        trackers = {number: open_tracker(name, folder) for number, folder in folders.items()}
        for tracker in trackers.values():
            opened.callback(tracker.close)

        def show(end: EpochEnd) -> None:
            latest = {key: values[-1].tolist() for key, values in end.history.items() if len(values) == end.epoch + 1}
            for number, tracker in trackers.items():
                tracker.epoch(end.epoch, {key: values[number] for key, values in latest.items()})
            if progress is not None:
                progress(end)

        yield show


class TensorBoard:
    """Event files. Every opening makes a new one; TensorBoard reads all files of a folder as one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)

    def epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Keeps the numbers at the end of an epoch; nan means there is none."""
        from torch.utils.tensorboard import SummaryWriter

        with self._writing():
            if self._writer is None:
                self._wait_for_new_name()
                # What an interrupted training wrote of this epoch and later ones comes again: readers drop the old.
                self._writer = SummaryWriter(str(self._folder), purge_step=epoch)
            for name, number in numbers.items():
                if not math.isnan(number):
                    self._writer.add_scalar(name, number, epoch)
            self._writer.flush()  # so that a viewer shows it at once

    def close(self) -> None:
        """Ends the tracking. Closing twice does no harm."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with self._writing():
                writer.close()

    def _wait_for_new_name(self) -> None:
        """Waits until a file opened now sorts after the others: names begin with the second, and readers sort them."""
        seconds = [path.name.split(".")[3] for path in self._folder.glob("events.out.tfevents.*.*")]
        wait = max((int(second) for second in seconds if second.isdecimal()), default=0) + 1 - time.time()
        if 0 < wait <= 1:  # more would be a clock that was set back, and no waiting helps
            time.sleep(wait)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self._folder}: TensorBoard's events cannot be written ({error.strerror or error}); "
                "make room or train without --track"
            ) from error


TRACKERS: dict[str, Callable[[Path], TensorBoard]] = {"tensorboard": TensorBoard}
