"""Processes of ours that do what might go wrong: with limits, without secrets, and ended with whoever started them.

>>> child = Child("bearcat.data.isolated", {"memory": 2**30, "folder": ""})
>>> child.stream.write(message)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

START = (
    "import sys, json, importlib; module, descriptor, arguments, *sys.path = sys.argv[1:];"
    " importlib.import_module(module).work(int(descriptor), **json.loads(arguments))"
)
# One thread and one pool of memory: each further one reserves address space, which is what is limited.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip
# What a process gets of our environment: no token of a server, nor any other secret.
INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


class Child:
    """A process of ours that calls `work` of a module, in a session of its own, and the connection to it."""

    def __init__(self, module: str, arguments: Mapping[str, Any]) -> None:
        self.socket, theirs = socket.socketpair()
        self.stream = self.socket.makefile("rwb")
        words = [module, str(theirs.fileno()), json.dumps(arguments), *sys.path]
        inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 (our own interpreter, code and path)
                [sys.executable, "-I", "-c", START, *words], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=inherited | ENVIRONMENT,
            )  # fmt: skip

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with what it has forked
        self.process.wait()
        with suppress(OSError):  # what was not sent
            self.stream.close()
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
