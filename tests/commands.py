"""`bearcat` on the command line, in a process of its own: by its words, exit status, output and error.

Importing torch takes a process some four seconds, and the tests start a hundred of them. So commands are forks of
Python's fork server, which has imported what they import: as much a process as any other, with its folder and its
environment, that can be killed. `fresh` starts Python anew, for tests about starting.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = [sys.executable, "-c", "from bearcat.cli import main; main()"]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.figure", "onnxruntime",
    "onnxscript", "rich.progress", "rich.table", "sklearn.neighbors", "torch._dynamo", "bearcat.adaptation.run",
    "bearcat.bench.grid", "bearcat.cli.recordings", "bearcat.cli.train", "bearcat.cli.watch", "bearcat.deploy.serve",
    "bearcat.report.pages", "bearcat.watch.watching",
])  # fmt: skip


def bearcat(
    *words: object, folder: Path | None = None, fresh: bool = False, pictures: bool = True
) -> subprocess.CompletedProcess[str]:
    """Waits for the command to end; a traceback is never an answer. Without `pictures`, as where matplotlib is missing:
    drawing takes longer than training does here."""
    if fresh:
        call = [*PYTHON, *map(str, words)]
        result = subprocess.run(call, capture_output=True, text=True, cwd=folder, timeout=120)
    else:
        with tempfile.TemporaryDirectory() as place:
            output, errors = Path(place) / "out", Path(place) / "err"
            status = waited(start(*words, folder=folder, output=output, errors=errors, pictures=pictures))
            result = subprocess.CompletedProcess(words, status, output.read_text("utf-8"), errors.read_text("utf-8"))
    assert "Traceback" not in result.stderr, result.stderr
    return result


def python(
    script: Path | str, *words: object, folder: Path | None = None, status: tuple[int, ...] = (0,), pictures: bool = True
) -> str:  # fmt: skip
    """What a script (or `bearcat`) prints, to both streams together."""
    name = None if script == "bearcat" else str(script)
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as printed:
        both = {"output": printed.name, "errors": printed.name}
        code = waited(start(*words, folder=folder, pictures=pictures, script=name, **both), 300)
        text = printed.read()
    assert code in status, f"{script} {words} ended with {code}:\n{text}"
    return text


def start(
    *words: object, folder: Path | None = None, output: Path | str = os.devnull, errors: Path | str = os.devnull,
    largest_file: int = -1, pictures: bool = True, script: str | None = None,
) -> multiprocessing.context.ForkServerProcess:  # fmt: skip
    """The command, or `python SCRIPT WORDS`, running in a process group of its own; files may grow to `largest_file`
    bytes."""
    arguments = list(map(str, words)), str(folder or Path.cwd()), dict(os.environ), str(output), str(errors)
    process = SERVER.Process(target=_command, args=(*arguments, largest_file, pictures, script))
    process.start()
    return process


def waited(process: multiprocessing.context.ForkServerProcess, seconds: float = 120) -> int | None:
    """The exit status of a process that ends in this time; otherwise it is killed."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"the process did not end in {seconds} s")
    return process.exitcode


def ended(target: Callable[..., None], *words: object) -> int | None:
    """The exit status of a function in a process of its own."""
    process = SERVER.Process(target=target, args=words)
    process.start()
    return waited(process)


def _command(
    words: list[str], folder: str, environment: dict[str, str], output: str, errors: str, largest_file: int,
    pictures: bool, script: str | None,
) -> None:  # fmt: skip
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, -1))
    for stream, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # by its environment, not its parent's
    os.chdir(folder)
    if not pictures:
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
    sys.argv = [script or "bearcat", *words]
    if script:
        sys.path.insert(0, str(Path(script).parent.absolute()))
        runpy.run_path(script, run_name="__main__")
    else:
        from bearcat.cli import main

        main()
