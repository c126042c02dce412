"""Grids on a Ray cluster: the same results, whoever is killed."""
# ruff: noqa: F811 (fixtures of the everyday tests)

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bearcat.bench import connect_ray, on_ray
from bearcat.errors import InputError
from tests.commands import PYTHON
from tests.test_bench import CAT, HEAD, TOLERANCE, agree, make, recordings, whole  # noqa: F401


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """The processes a process has started, and those they have started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return children + [other for child in children for other in descendants(child)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, _kernels: list[Path]) -> Iterator[Any]:
    """Ray with a local cluster, as the executor starts it, and with a GPU in its books; started once for all tests."""
    pytest.importorskip("ray")
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    for file in _kernels:
        (home / file.name).hardlink_to(file)
    (home / ".ray" / "auth_token").write_text("a-token-for-tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("BEARCAT_CACHE", str(home))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 1}')
        patch.setenv("RAY_worker_niceness", "0")  # Ray's 15 would let all other tests go first
        patch.setattr(os, "cpu_count", lambda: 1)
        ray = connect_ray("local")
        patch.delenv("RAY_OVERRIDE_RESOURCES")
        yield ray
        ray.shutdown()


def test_ray_agrees_with_the_stack_and_a_killed_worker_s_run_is_repeated(make, whole, cluster, tmp_path):
    site, address = make(), cluster.get_runtime_context().gcs_address
    with (tmp_path / "said").open("w") as said:
        job = subprocess.Popen([*PYTHON, *site.words("--ray", address, "--device", "cpu")], stdout=said, stderr=said)

    def training() -> list[int]:
        return [pid for pid in descendants(os.getpid()) if command_line(pid).startswith(b"ray::train")]

    wait_until(lambda: job.poll() is not None or training(), 180)
    assert job.poll() is None, (tmp_path / "said").read_text()
    (worker,) = training()
    os.kill(worker, signal.SIGKILL)
    status, printed = job.wait(180), (tmp_path / "said").read_text()
    assert (status, "4 done" in printed) == (0, True), printed
    assert not list((site.store.path / "stacks").iterdir())
    agree(whole, site, TOLERANCE)


def test_a_cluster_that_is_not_there_is_one_sentence(make):
    pytest.importorskip("ray")
    with socket.socket() as taken:  # bound but not listening: nobody can be reached there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster at '{address}' could be reached"):
            make().execute(partial(on_ray, device="cpu", address=address))
