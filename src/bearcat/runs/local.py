"""The same runs one by one in several processes of this machine.

Each process holds the lock of the run it trains and tells how it goes on through a pipe. A process that dies is
replaced and its run tried once more.

>>> execute(jobs, store, Local(torch.device("cpu"), jobs=2))
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bearcat.errors import InputError
from bearcat.runs.execute import Bench, Stopped, Talk, disk_trouble, holding, note_failure, sentence_of, settle
from bearcat.runs.run import Library
from bearcat.runs.store import Job, Store

ATTEMPTS = 2  # at a run whose worker dies


@dataclass(frozen=True)
class Local:
    """Runs one by one in each of several processes."""

    device: torch.device
    jobs: int

    def run(self, jobs: Sequence[Job], known: Mapping[str, Job], bench: Bench) -> None:
        del known
        waiting, deaths = deque(jobs), Counter[str]()
        workers: list[_Worker] = []
        try:
            workers += [_Worker.start(self, bench.store) for _ in range(min(self.jobs, len(waiting)))]
            while waiting or any(worker.job for worker in workers):
                if bench.late:
                    waiting.clear()  # those at work stop at their next checkpoint
                for worker in workers:
                    if worker.job is None and waiting:
                        worker.give(waiting.popleft(), bench)
                ready = wait([worker.pipe for worker in workers if worker.job])
                for worker in [one for one in workers if one.pipe in ready]:
                    lost = _heard(worker, bench)
                    if lost is not None:
                        workers[workers.index(worker)] = _Worker.start(self, bench.store)
                        deaths[lost.run] += 1
                        if deaths[lost.run] < ATTEMPTS:
                            bench.talk.note(f"a worker died ({worker.death()}); its run is tried again")
                            waiting.append(lost)
                        else:
                            with holding(bench.store, [lost]) as held:
                                for one in held:
                                    note_failure(one, f"its worker died twice ({worker.death()})", bench)
        finally:
            for worker in workers:
                worker.end()
        if bench.late:
            raise Stopped


@dataclass(eq=False)
class _Worker:
    """A process that trains what it is given, and what it is training now."""

    process: Any
    pipe: Connection
    job: Job | None = None

    @classmethod
    def start(cls, settings: Local, store: Store) -> _Worker:
        method = multiprocessing.get_context("spawn")  # a forked torch would share its threads' locks
        ours, theirs = method.Pipe()
        words = (theirs, store, str(settings.device), 1 if settings.jobs > 1 else None)
        process = method.Process(target=_work, args=words, daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def give(self, job: Job, bench: Bench) -> None:
        self.job = job
        with suppress(BrokenPipeError):  # it died; the next read says so
            self.pipe.send((job, bench.left, bench.checkpoint_seconds, bench.track))

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()

    def death(self) -> str:
        code = self.process.exitcode
        return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


def _heard(worker: _Worker, bench: Bench) -> Job | None:
    """Takes one message of a worker; its job where it turns out to be dead."""
    try:
        word, *more = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.end()
        return worker.job
    if word == "epoch" and worker.job is not None:
        bench.talk.epoch([worker.job.run], *more)
    elif word == "note":
        bench.talk.note(*more)
    elif word == "settled":
        bench.talk.settled(*more)
    elif word == "disk":
        raise InputError(*more)
    elif word == "free":
        worker.job = None
    return None


def _work(pipe: Connection, store: Store, device: str, threads: int | None) -> None:
    """The life of a worker process: a run at a time, until the pipe closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)

    def say(*words: Any) -> None:
        try:
            pipe.send(words)
        except OSError:
            os._exit(1)  # nobody listens any more; an error raised here would be taken for the run's own

    talk = Talk(
        settled=lambda run, here: say("settled", run, here),
        epoch=lambda _, done, epochs: say("epoch", done, epochs),
        note=lambda sentence: say("note", sentence),
    )
    library = Library()
    while True:
        try:
            job, left, checkpoint_seconds, track = pipe.recv()
        except EOFError:
            return
        deadline = None if left is None else time.monotonic() + left
        bench = Bench(store, talk, deadline, checkpoint_seconds, library, track)
        try:
            with holding(store, [job]) as held, suppress(Stopped):
                if held:
                    settle(held, torch.device(device), bench)
        except (OSError, InputError) as error:
            say("disk", disk_trouble(error, store) or sentence_of(error))
        say("free")
