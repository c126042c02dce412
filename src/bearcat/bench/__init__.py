"""The store: the folder that keeps the runs of grids; docs/benchmark.md shows what is in it.

A run's record is written last, so an unfinished run never counts as done. The process that works on a run holds its
lock, and the system frees it however that process ends, so any number of processes may work on one store.

>>> store = open_store(Path("bench-store"), create=True)
>>> specs = identify(plan(read_grid(Path("grids/smoke.toml"))), store, Library())
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from bearcat.errors import InputError
from bearcat.record import RECORD, Record
from bearcat.report import Missing, Result
from bearcat.storage import digest_json, read_json, write_json

if TYPE_CHECKING:
    from bearcat.adaptation import Library, RunSpec

VERSION = 1  # of the layout
FOLDERS = ("runs", "locks", "stacks")
ABOUT, DATA = "store.json", "data.json"  # version; fingerprints, for machines without the recordings
FAILURE = "failure.json"


@dataclass(frozen=True, eq=False)
class RunState:
    """Of a run: "done" (with its record), "running", "failed", "damaged" or "missing"; `detail` says who, or why."""

    kind: str
    detail: str = ""
    record: Record | None = None
    traceback: str = ""  # of a failed run, where one was kept


@dataclass(frozen=True)
class RunStore:
    """A folder of runs, each named by its identity."""

    path: Path

    def folder(self, run: str) -> Path:
        return self.path / "runs" / run

    def state(self, run: str) -> RunState:
        folder = self.folder(run)
        try:
            with suppress(FileNotFoundError):
                return RunState("done", record=Record.read(folder))
        except (ValueError, OSError) as error:
            return RunState("damaged", str(error))
        if owner := self.owner(run):
            return RunState("running", owner)
        try:
            failure = read_json(folder / FAILURE)
            return RunState("failed", str(failure["sentence"]), traceback=str(failure.get("traceback", "")))
        except FileNotFoundError:
            return RunState("missing")
        except (OSError, ValueError, KeyError, TypeError):
            return RunState("failed", f"{folder / FAILURE} is damaged, so the reason is lost")

    def settled(self, run: str) -> bool:
        """Whether nothing is left to do: the run is finished, or it failed."""
        return any((self.folder(run) / name).exists() for name in (RECORD, FAILURE))

    def clear(self, run: str) -> None:
        """Removes record and failure of a run, which is then trained again."""
        for name in (RECORD, FAILURE):
            (self.folder(run) / name).unlink(missing_ok=True)

    def lock(self, run: str) -> FileIO | None:
        """Makes the run ours until the lock is closed or the process ends; None where another process has it."""
        lock = FileIO(os.open(self.path / "locks" / f"{run}.lock", os.O_RDWR | os.O_CREAT, 0o644), "r+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        lock.truncate(0)
        lock.write(f"{socket.gethostname()}, process {os.getpid()}".encode())
        return lock

    def owner(self, run: str) -> str | None:
        """The process that has the run's lock; None where no process has it."""
        with suppress(OSError), FileIO(self.path / "locks" / f"{run}.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(200).decode(errors="replace") or "another process"
        return None

    def fail(self, run: str, sentence: str, traceback: str = "") -> None:
        """Keeps the reason why a run, which must be ours, has no result."""
        write_json(self.folder(run) / FAILURE, {"sentence": sentence, "traceback": traceback})

    def stack(self, runs: Sequence[str]) -> Path:
        """The folder of these runs while they are trained together, in this order."""
        return self.path / "stacks" / digest_json(list(runs))[:24]

    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of data that `remember` has kept."""
        try:
            return dict(read_json(self.path / DATA))
        except (OSError, ValueError, TypeError):
            return {}

    def remember(self, fingerprints: Mapping[str, str]) -> None:
        """Keeps fingerprints of data, where the store exists and can be written."""
        if (self.path / ABOUT).exists() and fingerprints.items() - self.fingerprints().items():
            with suppress(OSError):
                write_json(self.path / DATA, self.fingerprints() | dict(fingerprints))


def open_store(path: Path, create: bool = False) -> RunStore:
    """The store in this folder. Without `create`, a folder that does not exist reads as an empty store."""
    about = path / ABOUT
    try:
        if not about.exists() and path.exists() and {part.name for part in path.iterdir()} - {*FOLDERS, DATA}:
            raise InputError(f"{path}: is not empty and holds no store of bearcat; choose another --store")
        if create:
            for folder in FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            write_json(about, {"version": VERSION})  # fails now, and not after hours, where it cannot be written
    except OSError as error:
        raise InputError(f"{path}: cannot be used as a store ({error.strerror}); choose another --store") from error
    return RunStore(path)


def identify(specs: Sequence[RunSpec], store: RunStore, library: Library) -> list[RunSpec]:
    """The runs with their identities; the store remembers the fingerprints of their data."""
    identified = [library.identified(spec) for spec in specs]
    store.remember(library.fingerprints)
    return identified


def results(specs: Sequence[RunSpec], store: RunStore) -> tuple[list[Result], list[Missing]]:
    """What a report is made of: the finished runs under the grid's names for them, and the cells without one."""
    finished, missing = [], []
    for spec in specs:
        state = store.state(spec.identity)
        if state.record is not None:
            finished.append(Result(spec.cell, state.record, store.folder(spec.identity)))
        else:
            kind = "not run" if state.kind == "missing" else state.kind
            missing.append(Missing(spec.cell, kind, "" if kind == "running" else state.detail))
    return finished, missing
