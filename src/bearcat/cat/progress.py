"""How far a training is: a bar on a terminal, a line a minute where there is none.

>>> with training_progress("CAT*-Temperature", epochs=300) as show:
...     train(runs, device, progress=show)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bearcat.cat.state import TrainingState

EVERY = 60.0  # seconds from one line in a log to the next


@contextmanager
def training_progress(name: str, epochs: int) -> Iterator[Callable[[TrainingState], None]]:
    """Shows epoch, losses, share of target windows labelled, temperature and time left, on standard error."""
    began = time.monotonic()

    def left(done: int) -> str:
        return duration((time.monotonic() - began) / done * (epochs - done))

    if not sys.stderr.isatty():
        printed = began

        def log(end: TrainingState) -> None:
            nonlocal printed
            if time.monotonic() - printed >= EVERY:
                printed, done = time.monotonic(), end.epoch + 1
                text = f"{name}: epoch {done} of {epochs}, {numbers(end)}, {left(done)} left"
                print(text, file=sys.stderr, flush=True)

        yield log
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = Console(stderr=True, markup=False, emoji=False)
    texts = [TextColumn(f"{{task.fields[{field}]}}", markup=False) for field in ("numbers", "left")]
    title = TextColumn("{task.description}", markup=False)
    with Progress(title, BarColumn(5), MofNCompleteColumn(), *texts, console=screen) as bar:
        task = bar.add_task(name, total=epochs, numbers="", left="")

        def show(end: TrainingState) -> None:
            done = end.epoch + 1
            bar.update(task, completed=done, numbers=numbers(end), left=f"{left(done)} left")

        yield show


def numbers(end: TrainingState) -> str:
    """Losses of the epoch, the share of target windows that were labelled, and the temperature."""
    last = {key: float(values[-1][0]) for key, values in end.history.items() if len(values) == end.epoch + 1}
    text = "loss " + "+".join(f"{value:.2f}" for key, value in last.items() if key.startswith("loss_"))
    if "pseudo_label_share" in last:
        text += f" {last['pseudo_label_share']:.0%} labelled"
    return text + (f" T {last['temperature']:.1f}" if "temperature" in last else "")


def duration(seconds: float) -> str:
    """Seconds as 45 s, 3 min or 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
