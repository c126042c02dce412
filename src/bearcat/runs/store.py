"""Where the runs of grids are kept, so that nothing finished is ever run again and nothing unfinished passes for done.

    STORE/
      store.json            version and identity of the store
      runs/<run>/           the folder of a run (runs.py), named by the hash of everything that determines its result;
                            record.json is written last and marks it finished; failure.json says why it failed
      locks/<run>.lock      held by the process that works on the run; the system frees it however that process ends
      stacks/<stack>/       members and checkpoint of runs that are being trained together
      data.json             fingerprints of the data, for machines that have the store but not the recordings

Any number of processes, on any number of machines that share the folder, may work on one store.

>>> jobs = identify(plan(read_grid(Path("grids/smoke.toml"))), open_store(Path("bench-store")))
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bearcat.data import Catalogue
from bearcat.data.formats import reading
from bearcat.errors import InputError
from bearcat.report.results import Cell, Missing, Result
from bearcat.report.wording import count
from bearcat.runs.grid import Planned
from bearcat.runs.run import CURVES, NOTE, PREDICTIONS, RECORD, Library, Order, checked_record
from bearcat.storage import digest_file, write_atomically
from bearcat.training.loop import RESULT_VERSION

VERSION = 1  # of the layout
PARTS = ("store.json", "data.json", "runs", "locks", "stacks")
FAILURE, MANIFEST, CHECKPOINT = "failure.json", "stack.json", "checkpoint.safetensors"


@dataclass(frozen=True)
class Job:
    """A cell of a grid and the run that fills it, by the name of its folder."""

    run: str
    cell: Cell
    order: Order


@dataclass(frozen=True, eq=False)
class State:
    """Of a run: "done" (with its record), "running", "failed", "damaged" or "missing"; `told` says who, or why."""

    kind: str
    told: str = ""
    record: Mapping[str, Any] | None = None


@dataclass(eq=False)
class Lock:
    """A run that is ours until this is released or the process ends."""

    handle: int

    def release(self) -> None:
        os.close(self.handle)


@dataclass(frozen=True)
class Store:
    """A folder of runs."""

    path: Path

    def folder(self, run: str) -> Path:
        return self.path / "runs" / run

    def state(self, run: str, ours: bool = False) -> State:
        """Of the run; who holds its lock is not asked where it is ours."""
        folder = self.folder(run)
        try:
            return State("done", record=checked_record(folder))
        except FileNotFoundError:
            pass
        except (ValueError, OSError) as error:
            return State("damaged", str(error))
        if not ours and (owner := self.owner(run)):
            return State("running", owner)
        try:
            return State("failed", str(json.loads((folder / FAILURE).read_text(encoding="utf-8"))["sentence"]))
        except FileNotFoundError:
            return State("missing")
        except (OSError, ValueError, KeyError, TypeError):
            return State("failed", f"{folder / FAILURE} is damaged, so the reason is lost")

    def lock(self, run: str) -> Lock | None:
        """Makes the run ours; None where another process has it."""
        handle = os.open(self._lock_path(run), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.write(handle, f"{socket.gethostname()}, process {os.getpid()}".encode())
        except BaseException as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return Lock(handle)

    def settled(self, run: str) -> bool:
        """Whether there is nothing left to do: it is finished, or it failed."""
        return (self.folder(run) / RECORD).exists() or (self.folder(run) / FAILURE).exists()

    def owner(self, run: str) -> str | None:
        """Who holds the run's lock; None where nobody does."""
        try:
            handle = os.open(self._lock_path(run), os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return os.read(handle, 200).decode(errors="replace") or "another process"
        finally:
            os.close(handle)

    def _lock_path(self, run: str) -> Path:
        return self.path / "locks" / f"{run}.lock"

    def set_aside(self, run: str) -> str:
        """Renames the files of a damaged run, so that it can be repeated and still be looked at; it must be ours.

        Returns what they are called now.
        """
        folder, number = self.folder(run), 1
        while any(folder.glob(f"*.corrupt-{number}.*")):
            number += 1
        for path in (folder / CURVES, folder / PREDICTIONS, folder / RECORD):  # the record last: it says "finished"
            if path.exists():
                path.rename(folder / f"{path.stem}.corrupt-{number}{path.suffix}")
        return f"*.corrupt-{number}.*"

    def fail(self, run: str, sentence: str) -> None:
        """Notes why a run has no result; the run must be ours."""
        self.folder(run).mkdir(parents=True, exist_ok=True)
        told = {"sentence": sentence, "host": socket.gethostname(), "when": time.strftime("%Y-%m-%d %H:%M:%S %z")}
        write_atomically(self.folder(run) / FAILURE, json.dumps(told, indent=1, ensure_ascii=False).encode())

    def forget_failure(self, run: str) -> None:
        (self.folder(run) / FAILURE).unlink(missing_ok=True)

    def stack(self, runs: Sequence[str]) -> Path:
        """The folder of these runs while they are trained together, in this order; made where it is not there."""
        folder = self.path / "stacks" / hashlib.sha256("\n".join(runs).encode()).hexdigest()[:24]
        if not (folder / MANIFEST).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / MANIFEST, json.dumps({"members": list(runs)}, indent=1).encode())
        return folder

    def drop_stack(self, runs: Sequence[str]) -> None:
        shutil.rmtree(self.stack(runs), ignore_errors=True)

    def stacks(self) -> Iterator[list[str]]:
        """The members of every stack that was begun and not finished; a damaged manifest is thrown away."""
        for folder in sorted((self.path / "stacks").glob("*")):
            try:
                yield [str(one) for one in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["members"]]
            except FileNotFoundError:
                continue  # another process makes or removes it just now
            except (ValueError, KeyError, TypeError):
                shutil.rmtree(folder, ignore_errors=True)


def open_store(path: Path, create: bool = False) -> Store:
    """The store in this folder. Without `create`, a folder that is not there reads as an empty store."""
    about = path / "store.json"
    try:
        if not about.exists():
            if path.exists() and (not path.is_dir() or {one.name for one in path.iterdir()} - {*PARTS}):
                raise InputError(f"{path}: is not empty and holds no store of bearcat; choose another --store")
            if create:
                for part in ("runs", "locks", "stacks"):
                    (path / part).mkdir(parents=True, exist_ok=True)
                with _alone(path):
                    if not about.exists():
                        write_atomically(about, json.dumps({"version": VERSION, "identity": uuid.uuid4().hex}).encode())
            return Store(path)
        version = json.loads(about.read_text(encoding="utf-8"))["version"]
        if version > VERSION:
            raise InputError(f"{path}: was written by a newer bearcat (store version {version}); upgrade bearcat")
        if create:
            with _alone(path):  # which tells now, and not after hours, where the folder cannot be written
                pass
    except OSError as error:
        raise InputError(f"{path}: cannot be used as a store ({error.strerror}); choose another --store") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'{about}: is damaged; write {{"version": {VERSION}}} into it') from error
    return Store(path)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Until the end of the block no other process is in such a block of this store."""
    handle = os.open(path / "locks" / "store.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def identify(
    planned: Sequence[Planned], store: Store, library: Library | None = None, from_memory: bool = False
) -> list[Job]:
    """Names each cell's run by the hash of its settings, seed, data and of the version of our results.

    With `from_memory`, where the recordings are not on this machine, the store's memory of them is used: enough to look
    at results, and no way to train.
    """
    library, digests, known = library or Library(), dict[Path, str](), dict[str, str]()
    remembered = _remembered(store)

    def fingerprint_of(order: Order, domain: str) -> str:
        key = hashlib.sha256(json.dumps([order.told()["data"], domain], sort_keys=True).encode()).hexdigest()
        if key not in known:
            try:
                known[key] = fingerprint(library.catalogue(order.dataset), domain, digests)
            except InputError:
                if not from_memory or key not in remembered:
                    raise
                known[key] = remembered[key]
        return known[key]

    jobs = []
    for one in planned:
        content = [fingerprint_of(one.order, domain) for domain in (*one.order.sources, one.order.target)]
        words = json.dumps([RESULT_VERSION, one.order.told(), one.order.seed, content], sort_keys=True)
        jobs.append(Job(hashlib.sha256(words.encode()).hexdigest()[:24], one.cell, one.order))
    if (store.path / "store.json").exists() and known.items() - remembered.items():
        try:
            with _alone(store.path):
                merged = _remembered(store) | known
                write_atomically(store.path / "data.json", json.dumps(merged, indent=1).encode())
        except OSError:
            pass  # a store that can only be read needs no memory
    return jobs


def fingerprint(catalogue: Catalogue, domain: str, digests: dict[Path, str]) -> str:
    """Of everything that determines the samples of a domain: its files' content, and how they are read.

    A file that is missing counts too: when it comes, the domain is another one.
    """
    part = catalogue.only([domain])
    told: list[list[str | None]] = [[one.origin, one.sentence] for one in part.problems]
    for one in part.entries:
        if one.file is not None and one.file not in digests:
            with reading(one.origin, "a file"):
                digests[one.file] = digest_file(one.file)
        told.append([one.label, one.origin, one.identity, digests[one.file] if one.file is not None else None])
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _remembered(store: Store) -> dict[str, str]:
    try:
        return dict(json.loads((store.path / "data.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def overtaken(jobs: Sequence[Job], store: Store) -> list[str]:
    """A sentence on finished runs with the very settings and seeds of these that do not count, for each reason why."""
    if not jobs:
        return []
    names = {job.run for job in jobs}
    wanted = {_words(job.order.told() | {"seed": job.order.seed}) for job in jobs}
    found = Counter[str]()
    for folder in (store.path / "runs").glob("*"):
        if folder.name in names or not (folder / RECORD).exists():
            continue
        try:
            told = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            if _words({name: value for name, value in told.items() if name != "identity"}) in wanted:
                version = json.loads((folder / RECORD).read_text(encoding="utf-8"))["versions"]["result"]
                newer = f"of result version {version}, and this bearcat makes {RESULT_VERSION}"
                found[newer if version != str(RESULT_VERSION) else "of other data"] += 1
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # whatever it is, it is not asked for
    return [
        f"{count(number, 'finished run of this grid is', 'finished runs of this grid are')} {why}: not used, but to be"
        " trained again"
        for why, number in found.items()
    ]


def _words(told: Mapping[str, Any]) -> str:
    return json.dumps(told, sort_keys=True)


def results(jobs: Sequence[Job], store: Store) -> tuple[list[Result], list[Missing]]:
    """What a report is made of: the finished runs under the grid's names for them, and the cells without one."""
    found, missing = [], []
    for job in jobs:
        state = store.state(job.run)
        if state.record is not None:
            found.append(Result(job.cell, state.record, store.folder(job.run)))
        else:
            reason = {
                "running": "running", "failed": f"failed: {state.told}", "damaged": f"damaged: {state.told}",
            }.get(state.kind, "not run")  # fmt: skip
            missing.append(Missing(job.cell, reason))
    return found, missing
