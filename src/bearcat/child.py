"""Processes of ours that do what might go wrong: with limits, without secrets, and ended with whoever started them.
And a Ray cluster, for work that is spread over several machines.

>>> child = Child("bearcat.data.isolated")
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from bearcat.errors import InputError

START = (
    "import sys, importlib; module, descriptor, *sys.path = sys.argv[1:];"
    " importlib.import_module(module).work(int(descriptor))"
)
# One thread and one pool of memory: each further one reserves address space, which is what is limited.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip
KEPT_MEMORY = {-1: 1 << 27, -3: 1 << 25}  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, bytes
# What a process gets of our environment: no token of a server, nor any other secret.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


def use_one_core() -> None:
    """One thread for numpy and torch, unless the user says otherwise, and memory that stays with this process: clearing
    new pages takes longer than filling them. To be called before numpy is loaded.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another library of C than the usual one
            library = ctypes.CDLL(None)
            for option, size in KEPT_MEMORY.items():
                library.mallopt(option, size)


def follow_parent(*decided_there: signal.Signals) -> None:
    """In a process of a pool: its parent decides on these signals, which reach both, and it ends when that does."""
    import threading
    from multiprocessing import parent_process

    for number in decided_there:
        signal.signal(number, signal.SIG_IGN)

    def follow() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class Child:
    """A process of ours that calls `work` of a module, in a session of its own, and the connection to it."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 (our own interpreter, code and path)
                [sys.executable, "-I", "-c", START, module, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True, env=inherited | ENVIRONMENT,
            )  # fmt: skip

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with what it has forked
        self.process.wait()
        self.socket.close()


def limit_process(memory: int) -> None:
    """No more than so many bytes beyond what is in use, no file written, no core dumped."""
    import resource

    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    usage = Path("/proc/self/statm")
    if usage.exists():  # other systems than Linux do not limit address space
        size = int(usage.read_text().split()[0]) * resource.getpagesize() + memory
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def connect_ray(address: str | None = None, jobs: int | None = None) -> Any:
    """Ray, connected to a cluster, a local one without address; a sentence where it is missing or cannot be reached."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what will be Ray's default; silences a warning
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("the executor 'ray' needs an extra; pip install 'bearcat[ray]'") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": jobs or os.cpu_count(), "include_dashboard": False}
    elif jobs is not None:
        raise InputError("--jobs is for a local Ray cluster; the one at --address decides itself, leave it out")
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"at '{address}'" if address else "on this machine"
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"no Ray cluster {where} could be reached ({type(error).__name__}: {reason})") from error
    return ray
