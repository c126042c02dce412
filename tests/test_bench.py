"""Benchmarks as they go in practice: interrupted, shared, damaged, short of room; and the same whoever runs them."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bearcat.child import connect_ray
from bearcat.cli.bench import bench_status
from bearcat.deploy.predict import Given
from bearcat.errors import InputError
from bearcat.models.networks import ENCODERS
from bearcat.runs import execute as executing
from bearcat.runs.execute import Cluster, Execution, Listener, Stack, bytes_of_run, execute, stack_size
from bearcat.runs.grid import plan, read_grid
from bearcat.runs.spec import Library, RunSpec
from bearcat.runs.store import CHECKPOINT, RunStore, identify, open_store, results
from bearcat.watch.folder import WatchedFolder
from bearcat.watch.measuring import Reading, measure_file, on_cluster
from tests import commands
from tests.commands import bearcat
from tests.test_adapt import rows_of
from tests.test_plain import ResNet
from tests.test_watch import content, record, watch

CPU = torch.device("cpu")
TOLERANCE = 1e-3  # of scores between executors, on a CPU; docs/benchmark.md states it
HEAD = """
title = "tiny"
data = "folder"
tasks = ["a:b"]
seeds = 2
epochs = 4
preparation = { length = 64 }
"""
# A small network: what is tested here is who trains it, when, and what is kept.
SOURCE_ONLY, CAT = (
    f'[[method]]\nrecipe = "{recipe}"\nset.encoder = "dense:widths=16"\n'
    for recipe in ("source-only", "CAT*-Temperature")
)
GRID = HEAD + SOURCE_ONLY + CAT


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tones in noise for classes, shifted from domain to domain; domain c is too short for a batch."""
    root = tmp_path_factory.mktemp("recordings")
    for domain, shift, samples in (("a", 0.0, 2304), ("b", 0.02, 2304), ("c", 0.0, 320)):
        for number, label in enumerate(("one", "two", "three")):
            random = np.random.default_rng([number, int(100 * shift), samples])
            tone = np.sin(2 * np.pi * (0.05 + 0.1 * number + shift) * np.arange(samples))
            (root / domain / label).mkdir(parents=True)
            np.save(root / domain / label / "x.npy", tone + 0.5 * random.standard_normal(samples))
    return root


@dataclass
class Site:
    """A grid, a store and what was said about them."""

    grid: Path
    root: Path
    store: RunStore
    specs: list[RunSpec]
    messages: list[str] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (runs in the stack, epoch)

    def listener(self) -> Listener:
        return Listener(epoch=lambda runs, done, _: self.epochs.append((len(runs), done)), message=self.messages.append)

    def execute(self, executor: Stack | Cluster | None = None, retry_failed: bool = False, **settings: object) -> bool:
        execution = Execution(self.store, self.specs, self.listener(), **settings)
        return execute(execution, executor or Stack(CPU), retry_failed)

    def words(self, *more: object) -> list[str]:
        return ["bench", "run", *map(str, (self.grid, "--store", self.store.path, "--root", self.root, *more))]

    def kinds(self) -> list[str]:
        return [self.store.state(spec.identity).kind for spec in self.specs]

    def record(self, number: int) -> dict:
        return json.loads((self.store.folder(self.specs[number].identity) / "record.json").read_text())

    def times(self) -> dict[str, int]:
        return {path.parent.name: path.stat().st_mtime_ns for path in self.store.path.glob("runs/*/record.json")}


@pytest.fixture
def make(tmp_path: Path, recordings: Path) -> Callable[..., Site]:
    def made(text: str = GRID, name: str = "store") -> Site:
        grid = tmp_path / f"{name}.toml"
        grid.write_text(text)
        store = open_store(tmp_path / name, create=True)
        return Site(grid, recordings, store, identify(plan(read_grid(grid), recordings), store, Library()))

    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, recordings: Path) -> Site:
    """The grid as it comes out when nothing disturbs it."""
    place = tmp_path_factory.mktemp("whole")
    (place / "grid.toml").write_text(GRID)
    store = open_store(place / "store", create=True)
    site = Site(
        place / "grid.toml",
        recordings,
        store,
        identify(plan(read_grid(place / "grid.toml"), recordings), store, Library()),
    )
    assert site.execute()
    return site


def agree(first: Site, second: Site, tolerance: float) -> None:
    """Every cell of both has the same scores, and the same predictions to within the tolerance."""
    assert [spec.cell for spec in first.specs] == [spec.cell for spec in second.specs]
    for number in range(len(first.specs)):
        mine, theirs = first.record(number), second.record(number)
        assert mine["settings"] == theirs["settings"]
        assert mine["data"] == theirs["data"]
        for where in ("source", "target"):
            for score, value in mine["scores"][where].items():
                assert theirs["scores"][where][score] == pytest.approx(value, abs=tolerance), (where, score)
        tables = [
            rows_of(site.store.folder(site.specs[number].identity) / "predictions.csv") for site in (first, second)
        ]
        for left, right in zip(*tables, strict=True):
            assert (left["recording"], left["start"]) == (right["recording"], right["start"])
            assert float(left["confidence"]) == pytest.approx(float(right["confidence"]), abs=tolerance)


@dataclass
class Command:
    """`bearcat bench run`, running."""

    process: multiprocessing.process.BaseProcess
    output: Path
    errors: Path

    def finish(self, seconds: float = 150) -> tuple[int | None, str, str]:
        """Exit status, standard output and error."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()
        return self.process.exitcode, self.output.read_text(), self.errors.read_text()

    def wait_for_checkpoint(self, site: Site, seconds: float = 120) -> None:
        """Until a run is under way; a command that ends before, or takes too long, is shown with what it printed."""
        deadline = time.monotonic() + seconds
        while not list(site.store.path.glob("stacks/*/checkpoint.safetensors")):
            if self.process.exitcode is not None or time.monotonic() > deadline:
                raise AssertionError(f"no checkpoint was written: {self.finish(0)}, {site.kinds()}")
            time.sleep(0.01)


def start(site: Site, *more: object, **settings: Any) -> Command:
    place = site.store.path.parent
    output, errors = place / f"{site.store.path.name}.out", place / f"{site.store.path.name}.err"
    return Command(commands.start(*site.words(*more), output=output, errors=errors, **settings), output, errors)


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


# What comes out.


def test_every_cell_gets_a_folder_like_adapt_writes_it(whole):
    assert whole.kinds() == ["done"] * 4
    for number, spec in enumerate(whole.specs):
        folder = whole.store.folder(spec.identity)
        assert {path.name for path in folder.iterdir()} == {"record.json", "run.json", "predictions.csv", "curves.csv"}
        record = whole.record(number)
        assert record["settings"] == spec.to_dict()
        assert record["stack"] == 2
        rows = rows_of(folder / "curves.csv")
        assert len(rows) == 4
        for where in ("source", "target"):
            found = record["reliability"][where]
            assert (found["calibrated"] is None) == (spec.cell.method == "source-only")
            for bins, score in (("uncalibrated", "ece_uncalibrated"), ("calibrated", "ece")):
                if found[bins] is not None:
                    mass = np.array(found[bins]["mass"])
                    gap = [abs(a - c) if n else 0.0 for n, a, c in
                           zip(mass, found[bins]["accuracy"], found[bins]["confidence"], strict=True)]  # fmt: skip
                    assert mass.sum() == record["data"][f"{where}_test"]
                    assert (mass / mass.sum()) @ gap == pytest.approx(record["scores"][where][score], abs=1e-6)
    assert not list((whole.store.path / "stacks").iterdir())


def test_a_finished_grid_is_not_run_again(whole):
    before = whole.times()
    whole.epochs.clear()
    assert whole.execute()
    assert whole.times() == before
    assert whole.epochs == []


def test_runs_of_another_result_version_or_of_other_data_are_reported_before_they_are_repeated(
    make, whole, recordings, tmp_path, monkeypatch, capsys
):
    version = whole.record(0)["versions"]["result"]
    changed = tmp_path / "changed"
    shutil.copytree(recordings, changed)
    np.save(changed / "b" / "one" / "x.npy", np.load(changed / "b" / "one" / "x.npy") + 0.01)
    for root, made_by, note in (
        (changed, int(version), "other data"), (recordings, 99, f"result version {version}"),
        (recordings, int(version), None),
    ):  # fmt: skip
        site = make(name=f"{root.name}-{made_by}")
        shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
        for module in ("spec", "store"):
            monkeypatch.setattr(f"bearcat.runs.{module}.RESULT_VERSION", made_by)
        site.specs = identify(plan(read_grid(site.grid), root), site.store, Library())
        assert site.execute(limit_seconds=0) == (note is None)
        assert [message.startswith("4 finished runs") and note in message for message in site.messages] == [
            True
        ] * bool(note)
        bench_status(site.grid, site.store.path, root)
        assert capsys.readouterr().err == "".join(f"note: {message}\n" for message in site.messages)


def test_results_carry_the_grid_s_names_and_what_is_missing_its_reason(make, whole):
    site = make(HEAD + SOURCE_ONLY + 'name = "mine"\n[[method]]\nname = "new"\nrecipe = "DANN"\n')
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    found, missing = results(site.specs, site.store)
    assert [result.cell.method for result in found] == ["mine", "mine"]
    assert [(cell.cell.method, cell.reason) for cell in missing] == [("new", "not run")] * 2
    assert found[0].score("target", "accuracy") == whole.record(0)["scores"]["target"]["accuracy"]
    assert len(found[0].predictions.label) == whole.record(0)["data"]["target_test"]


# The same, whoever runs it.


def test_a_stack_and_runs_alone_agree(make, whole):
    alone = make()
    assert alone.execute(Stack(CPU, size=1))
    assert alone.record(0)["stack"] == 1
    agree(whole, alone, TOLERANCE)


def test_plain_modules_are_trained_one_by_one_beside_stacks(make, whole, monkeypatch):
    monkeypatch.setitem(ENCODERS, "resnet", ResNet)
    site = make(HEAD + SOURCE_ONLY + '[[method]]\nrecipe = "DANN"\nset.encoder = "resnet"\n')
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    assert site.execute(Stack(CPU, size=2))
    assert site.kinds() == ["done"] * 4
    assert [site.record(number)["stack"] for number in range(4)] == [2, 2, 1, 1]
    assert [site.record(number)["kernels"]["encoder"] for number in (2, 3)] == ["one by one"] * 2
    assert [sorted(site.record(number)["settings"].get("code", {})) for number in (0, 2)] == [[], ["encoder"]]
    assert site.record(2)["scores"] != site.record(3)["scores"]


def children_of(pid: int) -> list[int]:
    return [int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()]


def descendants(pid: int) -> list[int]:
    """The processes a process has started, and those they have started."""
    children = children_of(pid)
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
        ray = connect_ray(jobs=1)
        patch.delenv("RAY_OVERRIDE_RESOURCES")
        yield ray
        ray.shutdown()


@pytest.mark.slow
def test_the_script_for_slurm_agrees_with_the_stack_and_a_killed_worker_s_run_is_repeated(
    make, whole, cluster, tmp_path
):
    """SLURM is played: its `srun` notes what it should start on the nodes, where there is a cluster already."""
    page = (Path(__file__).parents[1] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```bash\n(#!/bin/bash.*?)^```", page, re.DOTALL | re.MULTILINE)
    site = make()
    head, port = cluster.get_runtime_context().gcs_address.split(":")
    for theirs, ours in (
        ("6379", port), ("grids/paper.toml", site.grid), ("/shared/paderborn", site.root), ("/shared/store", site.store.path),
        ("--limit-seconds 28000", "--limit-seconds 280 --device cpu"),
    ):  # fmt: skip
        assert theirs in script
        script = script.replace(theirs, str(ours))
    played = {"srun": f'echo "$*" >> {tmp_path}/calls', "scontrol": f"echo {head}; echo another"}
    for name, text in played.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    own = os.environ | {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NODELIST": "vm[1-2]",
    }  # fmt: skip
    with (tmp_path / "said").open("w") as said:
        job = subprocess.Popen(["bash", "-c", script], env=own, stdout=said, stderr=said)
    wait_until(lambda: job.poll() is not None or list(site.store.path.glob("stacks/*/checkpoint.safetensors")), 180)
    assert job.poll() is None, (tmp_path / "said").read_text()
    workers = [pid for pid in descendants(os.getpid()) if command_line(pid).startswith(b"ray::train")]
    os.kill(workers[0], signal.SIGKILL)
    status, printed = job.wait(180), (tmp_path / "said").read_text()
    assert status == 0, printed
    assert len(workers) == 1
    assert "WorkerCrashedError" in printed
    assert "4 done" in printed
    assert not list((site.store.path / "stacks").iterdir())
    agree(whole, site, TOLERANCE)
    first, second = sorted((tmp_path / "calls").read_text().splitlines(), key=lambda call: "--head" not in call)
    assert first.endswith(f"--nodelist={head} ray start --head --port={port} --num-cpus=1 --block")
    assert second.endswith(f"--exclude={head} ray start --address={head}:{port} --num-cpus=1 --block")


@pytest.mark.slow
def test_on_a_cluster_with_gpus_a_run_gets_one_from_ray_and_none_where_the_cpu_is_asked_for(make, cluster, monkeypatch):
    """The GPU is one in Ray's books alone, so what runs there only tells what it was given."""
    given = lambda _, __, device, *___: (f"{device} {cluster.get_gpu_ids()}", "")  # noqa: E731
    monkeypatch.setattr(executing, "train_remotely", given)
    for requested, expected in (("auto", "cuda [0]"), ("cpu", "cpu []")):
        site = make(HEAD.replace("seeds = 2", "seeds = 1") + CAT, requested)
        Cluster(requested).drive(cluster, site.specs, Execution(site.store, site.specs))
        assert [site.store.state(spec.identity).detail for spec in site.specs] == [expected]


@pytest.mark.slow
def test_recordings_of_watched_machines_are_measured_on_a_cluster_that_has_no_such_folder(cluster, tmp_path):
    path = tmp_path / "pump" / "DE" / "2024-05-01.npy"
    path.parent.mkdir(parents=True)
    np.save(path, np.random.default_rng(0).standard_normal(8000).astype(np.float32))
    (arrival,) = WatchedFolder(tmp_path).scan()
    reading = Reading(Given(rate=4000.0, rpm=1500.0))
    here = measure_file(arrival, "digest", reading)
    begun = on_cluster(cluster, reading)(arrival, "digest")
    path.rename(tmp_path / "moved")
    assert [(each.point, each.recording, each.values) for each in begun()] == [
        (each.point, each.recording, each.values) for each in here
    ]


@pytest.mark.slow
def test_a_watch_finds_the_same_on_a_cluster_in_the_same_order(cluster, tmp_path):
    for day, machine in itertools.product(range(4), ("pump 1", "fan 20")):
        record(tmp_path / "plant", machine, "DE", day)
    there = ("--executor", "ray", "--address", cluster.get_runtime_context().gcs_address)
    places = {tmp_path / "here.db": (), tmp_path / "there.db": there}
    here, other = (watch(tmp_path / "plant", place, *words) for place, words in places.items())
    assert (here.returncode, here.stdout) == (other.returncode, other.stdout), other.stderr
    mine, theirs = map(content, places)
    assert len(mine["snapshots"]) == 8
    assert theirs == mine


def test_a_cluster_that_is_not_there_is_one_sentence(make):
    pytest.importorskip("ray")
    with socket.socket() as taken:  # bound but not listening: nobody can be reached there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster at '{address}' could be reached"):
            make().execute(Cluster("cpu", address=address))
    with pytest.raises(InputError, match="--jobs is for a local Ray cluster"):
        make().execute(Cluster("cpu", jobs=2, address=address))


# Interruptions.


def die_in_the_second_stack(site: Site) -> None:
    def epoch(runs, done, _):
        if site.specs[2].identity in runs and done == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    execute(Execution(site.store, site.specs, Listener(epoch=epoch)), Stack(CPU))


def test_killed_in_mid_grid_it_keeps_what_is_finished_and_goes_on_from_the_checkpoint(make, whole):
    site = make()
    assert commands.ended(die_in_the_second_stack, site) == -signal.SIGKILL
    assert site.kinds() == ["done", "done", "missing", "missing"]
    before = site.times()
    again = bearcat(*site.words("--device", "cpu"))
    assert again.returncode == 0, again.stderr
    assert "CAT*-Temperature: going on from a checkpoint" in again.stderr
    assert site.kinds() == ["done"] * 4
    assert before.items() <= site.times().items()
    agree(whole, site, 0)


def test_a_time_limit_stops_at_a_checkpoint_and_nothing_is_trained_twice(make):
    site, begun, rounds = make(), [], 0
    assert not site.execute(limit_seconds=0)
    assert {*site.kinds()} == {"missing"}
    site.listener = lambda: Listener(epoch=lambda runs, done, _: begun.append((runs[0], done)) or time.sleep(0.1))
    while not site.execute(limit_seconds=0.1, checkpoint_seconds=0):
        rounds += 1
        assert rounds < 30
    assert rounds > 0
    assert len(begun) == len({*begun}), "an epoch was trained twice"
    assert {*site.kinds()} == {"done"}


def test_an_interrupted_stack_goes_on_where_its_checkpoint_was(make, whole):
    site = make()

    def interrupt(runs, done, epochs):
        site.epochs.append((len(runs), done))
        if done == 3:
            raise KeyboardInterrupt

    listener, site.listener = site.listener, lambda: Listener(epoch=interrupt)
    with pytest.raises(KeyboardInterrupt):
        site.execute()
    assert site.kinds() == ["missing"] * 4, "the locks must be free again"
    site.listener = listener
    site.epochs.clear()
    assert site.execute()
    assert site.epochs[0] == (2, 2), "the first epoch was in the checkpoint"
    agree(whole, site, 0)


def test_a_checkpoint_of_runs_that_were_finished_otherwise_is_removed_and_of_others_kept(make, whole):
    site = make()
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    over = site.store.stack([spec.identity for spec in site.specs[2:]])
    open_still = site.store.stack([site.specs[0].identity, "another grid's"])
    for folder in (over, open_still):
        (folder / CHECKPOINT).write_bytes(b"weights")
    assert site.execute()
    assert list((site.store.path / "stacks").iterdir()) == [open_still]


def test_a_damaged_checkpoint_costs_only_time(make, whole):
    site = make()
    folder = site.store.stack([spec.identity for spec in site.specs[:2]])
    (folder / CHECKPOINT).write_bytes(b"junk")
    assert site.execute()
    assert any("is damaged" in message and "starts again" in message for message in site.messages)
    agree(whole, site, 0)


def test_two_processes_on_one_store_train_each_run_once(make, whole):
    site = make()
    said = [site.store.path.parent / name for name in ("one", "other")]
    both = [
        commands.start(*site.words("--stack", "1", "--device", "cpu"), output=output, errors=output) for output in said
    ]
    for process in both:
        process.join(120)
    outputs = [output.read_text() for output in said]
    assert [process.exitcode for process in both] == [0, 0], outputs
    trained = [int(output.split(" trained by this process")[0].split()[-1]) for output in outputs]
    assert sum(trained) == 4
    assert all(trained), "one of them did nothing"
    agree(whole, site, TOLERANCE)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(make):
    site = make(GRID.replace("epochs = 4", "epochs = 200"))
    command = start(site, "--device", "cpu")
    command.wait_for_checkpoint(site)
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does
    status, _, errors = command.finish(60)
    assert status == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert site.kinds() == ["missing"] * 4


def test_runs_of_another_process_are_reported_as_running_and_waited_for(make):
    site = make()
    lock = site.store.lock(site.specs[0].identity)
    assert lock is not None
    assert site.store.lock(site.specs[0].identity) is None
    state = site.store.state(site.specs[0].identity)
    assert (state.kind, f"process {os.getpid()}" in state.detail) == ("running", True)
    reports = []

    def note(sentence):
        reports.append((sentence, site.kinds()))
        lock.close()

    site.listener = lambda: Listener(message=note)
    assert site.execute()
    ((sentence, kinds),) = reports
    assert sentence.startswith("waiting for 1 run")
    assert state.detail in sentence
    assert kinds == ["running", "done", "done", "done"]
    assert site.kinds() == ["done"] * 4


# Faults.


@pytest.mark.parametrize("damage", ["cut", "flip", "predictions", "curves gone"])
def test_a_damaged_run_is_set_aside_named_and_repeated(make, whole, damage):
    site = make()
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    folder, before = site.store.folder(site.specs[0].identity), site.times()
    record = folder / "record.json"
    if damage == "cut":
        record.write_bytes(record.read_bytes()[:1000])
    elif damage == "flip":
        record.write_text(record.read_text().replace('"seed": 0', '"seed": 1'))
    elif damage == "predictions":
        lines = (folder / "predictions.csv").read_text().splitlines()
        (folder / "predictions.csv").write_text("\n".join(lines[:-1]))
    else:
        (folder / "curves.csv").unlink()
    assert site.kinds() == ["damaged", "done", "done", "done"]
    assert results(site.specs, site.store)[1][0].reason.startswith(f"damaged: {folder}")
    assert site.execute()
    assert site.kinds() == ["done"] * 4
    assert (folder / "record.corrupt-1.json").exists()
    assert (folder / "curves.corrupt-1.csv").exists() == (damage != "curves gone")
    assert any("*.corrupt-1.*" in message and str(folder) in message for message in site.messages)
    assert {name: when for name, when in site.times().items() if name != folder.name}.items() <= before.items()
    agree(whole, site, TOLERANCE)


def test_a_damaged_note_of_an_unfinished_run_does_not_stop_it(make, whole):
    site = make()
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    folder = site.store.folder(site.specs[0].identity)
    (folder / "record.json").unlink()
    (folder / "run.json").write_text("garbage")
    assert site.execute()
    assert site.kinds() == ["done"] * 4


def test_a_wrong_root_fails_no_run(make, command, whole):
    site = make()
    shutil.copy(whole.store.path / "data.json", site.store.path / "data.json")  # it remembers the data
    words = ["bench", "run", site.grid, "--store", site.store.path, "--root", site.root / "typo"]
    status, _, errors = command(*words)
    assert (status, "typo" in errors, errors.count("\n")) == (2, True, 1), errors
    assert site.kinds() == ["missing"] * 4


def test_a_store_of_a_newer_version_is_refused_and_not_touched(make, command):
    site = make()
    (site.store.path / "store.json").write_text('{"version": 99}')
    before = {path: path.stat().st_mtime_ns for path in site.store.path.rglob("*")}
    for words in (site.words(), ["bench", "status", *site.words()[2:]]):
        status, output, errors = command(*words)
        assert (status, output, errors.count("\n")) == (2, "", 1)
        assert errors.startswith(f"bearcat: {site.store.path}: ")
        assert "version 99" in errors
    assert {path: path.stat().st_mtime_ns for path in site.store.path.rglob("*")} == before


def test_a_folder_of_something_else_or_a_damaged_store_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="holds no store"):
        open_store(tmp_path, create=True)
    store = open_store(tmp_path / "store", create=True)
    (store.path / "store.json").write_text("[")
    with pytest.raises(InputError, match=r"store.json: is damaged"):
        open_store(store.path)


def test_a_full_disk_is_one_sentence_and_the_store_stays_whole(make, whole, monkeypatch):
    """As file systems do that find room only when a file is to be on disk: the sync of what was written fails."""
    site, honest = make(), os.fsync
    folder = site.store.folder(site.specs[2].identity)

    def full(handle):
        if Path(f"/proc/self/fd/{handle}").readlink().parent == folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=f"{site.store.path}: the disk is full"):
            site.execute()
    assert site.kinds() == ["done", "done", "missing", "missing"]
    assert not list(folder.iterdir()), "a draft was left behind"
    assert site.execute()
    agree(whole, site, 0)


def test_where_nothing_can_be_written_is_one_sentence(make, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "store", Path("/proc/store")):
        with pytest.raises(InputError, match=r"cannot be used as a store .*--store"):
            open_store(place, create=True)


def test_a_read_only_store_can_be_read_but_not_run(make, whole):
    """In a process that is not root, for whom permissions mean nothing."""
    site = make()
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    places = [site.store.path, *(path for path in site.store.path.rglob("*") if path.is_dir())]
    for path in places:
        path.chmod(0o555)
    for path in site.store.path.parents:
        if path.stat().st_uid == os.getuid() and path.name.startswith(("pytest", "popen", "test_")):
            path.chmod(0o755)
    child = os.fork()
    if child == 0:  # what is printed here is lost; the exit status tells
        status = 1
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            assert len(results(site.specs, open_store(site.store.path))[0]) == 4
            try:
                open_store(site.store.path, create=True)
            except InputError as error:
                status = 0 if "cannot be used as a store (Permission denied)" in str(error) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    for path in places:
        path.chmod(0o755)
    assert os.waitstatus_to_exitcode(status) == 0


def test_cells_that_cannot_work_fail_by_name_and_the_rest_completes(make, command):
    text = HEAD.replace('tasks = ["a:b"]', 'tasks = ["a:b", "c:b"]').replace("= 4", "= 2") + SOURCE_ONLY
    site = make(text + '[[method]]\nname = "large"\nrecipe = "DANN"\nset.schedule.batch = 5000\n')
    assert site.execute()
    assert site.kinds() == ["done", "done", *["failed"] * 6]
    few = "12 training windows are fewer than a batch of 64"
    sentences = [site.store.state(spec.identity).detail for spec in site.specs]
    assert all(few in sentences[number] for number in (2, 3))
    assert all("fewer than a batch of 5000" in sentences[number] for number in (4, 5))
    assert results(site.specs, site.store)[1][0].reason.startswith(f"failed: {few}")
    status, output, errors = command("bench", "status", *site.words()[2:])
    assert status == 0
    assert "8 cells: 2 done, 6 failed" in output
    assert f"failed: source-only, c→b, time, seed 0: {few}" in errors
    site.messages.clear()
    assert site.execute()
    assert site.messages == [], "failed runs are left alone"
    assert site.execute(retry_failed=True)
    assert sum("failed" in message for message in site.messages) == 6


def test_one_bad_run_does_not_take_its_stack_with_it(make, whole):
    site = make()
    folder = site.store.folder(site.specs[1].identity)
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    assert site.execute()
    assert site.kinds() == ["done", "failed", "done", "done"]
    assert "holds no run of bearcat" in site.store.state(site.specs[1].identity).detail


def test_where_memory_is_short_stacks_are_halved(make, monkeypatch):
    """Only the shortage is played; what fits is really trained."""
    site = make(HEAD.replace("seeds = 2", "seeds = 8").replace("= 4", "= 2") + SOURCE_ONLY)
    honest, sizes = executing.run_stack, []

    def scarce(specs, *words, **more):
        sizes.append(len(specs))
        if len(specs) > 2:
            raise torch.OutOfMemoryError
        return honest(specs, *words, **more)

    monkeypatch.setattr(executing, "run_stack", scarce)
    assert site.execute(Stack(CPU, size=5))
    assert sizes == [4, 2, 2, 4, 2, 2]
    assert site.kinds() == ["done"] * 8

    def nothing_fits(*_, **__):
        raise MemoryError

    monkeypatch.setattr(executing, "run_stack", nothing_fits)
    other = make(GRID.replace("seeds = 2", "seeds = 1"), "other")
    assert other.execute()
    assert other.kinds() == ["failed", "failed"]


def test_the_automatic_size_of_a_stack_fits_the_memory_and_longer_windows_need_more(make, monkeypatch):
    assert executing.free_memory(CPU) > 1e8
    spec, longer = make().specs[0], make(GRID.replace("= 64", "= 128"), "longer").specs[0]
    data = Library().split(spec).training
    need = bytes_of_run(spec.recipe, data)
    monkeypatch.setattr(executing, "free_memory", lambda _: 5 * need)
    assert stack_size(spec.recipe, data, CPU) == 3
    monkeypatch.setattr(executing, "free_memory", lambda _: 0)
    assert stack_size(spec.recipe, data, CPU) == 1
    assert bytes_of_run(longer.recipe, Library().split(longer).training) > need


def test_status_counts_and_estimates(make, whole, command):
    site = make(GRID.replace("seeds = 2", "seeds = 3"))
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    status, output, errors = command("bench", "status", *site.words()[2:])
    assert (status, errors) == (0, "")
    assert "6 cells: 4 done, 2 missing" in output
    assert ["source-only", "2", "0", "0", "1"] in [line.split() for line in output.splitlines()]
    assert "ETA: about" in output
