"""Benchmarks as they go in practice: interrupted, shared, damaged, short of room; and the same whoever runs them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bearcat import bench
from bearcat.adaptation import Library, RunSpec
from bearcat.adaptation import run as running
from bearcat.bench import LARGEST, Execution, Executor, RunStore, execute, in_stacks, open_store, results
from bearcat.bench.grid import plan, read_grid
from bearcat.errors import InputError
from bearcat.record import CHECKPOINT
from bearcat.storage import digest_json
from tests import commands
from tests.commands import bearcat
from tests.test_adapt import rows_of

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
    f'[[method]]\nmethod = "{recipe}"\nset.encoder = "dense:widths=16"\n'
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

    def execute(self, executor: Executor | None = None, retry_failed: bool = False) -> None:
        execution = Execution(self.store, self.specs, Library(), self.messages.append)
        execute(execution, executor or partial(in_stacks, device=CPU), retry_failed)

    def words(self, *more: object) -> list[str]:
        return ["bench", "run", *map(str, (self.grid, "--store", self.store.path, "--root", self.root, *more))]

    def kinds(self) -> list[str]:
        return [self.store.state(spec.identity).kind for spec in self.specs]

    def record(self, number: int) -> dict:
        return json.loads((self.store.folder(self.specs[number].identity) / "record.json").read_text())

    def times(self) -> dict[str, int]:
        return {path.parent.name: path.stat().st_mtime_ns for path in self.store.path.glob("runs/*/record.json")}


def made_site(place: Path, recordings: Path, text: str, name: str) -> Site:
    grid = place / f"{name}.toml"
    grid.write_text(text)
    store = open_store(place / name, create=True)
    library = Library()
    specs = [library.identified(spec) for spec in plan(read_grid(grid), recordings, library)]
    return Site(grid, recordings, store, specs)


@pytest.fixture
def make(tmp_path: Path, recordings: Path) -> Callable[..., Site]:
    return lambda text=GRID, name="store": made_site(tmp_path, recordings, text, name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, recordings: Path) -> Site:
    """The grid as it comes out when nothing disturbs it."""
    site = made_site(tmp_path_factory.mktemp("whole"), recordings, GRID, "store")
    site.execute()
    return site


def agree(first: Site, second: Site, tolerance: float) -> None:
    """Every cell of both has the same scores, and the same predictions to within the tolerance."""
    assert [spec.cell for spec in first.specs] == [spec.cell for spec in second.specs]
    for number in range(len(first.specs)):
        mine, theirs = first.record(number), second.record(number)
        assert (mine["settings"], mine["data"]) == (theirs["settings"], theirs["data"])
        for where in ("source", "target"):
            assert theirs["scores"][where] == pytest.approx(mine["scores"][where], abs=tolerance), where
        folders = [site.store.folder(site.specs[number].identity) for site in (first, second)]
        for left, right in zip(*(rows_of(folder / "predictions.csv") for folder in folders), strict=True):
            assert (left["recording"], left["start"]) == (right["recording"], right["start"])
            assert float(left["confidence"]) == pytest.approx(float(right["confidence"]), abs=tolerance)


def test_every_cell_gets_a_folder_like_adapt_writes_it(whole):
    assert whole.kinds() == ["done"] * 4
    for number, spec in enumerate(whole.specs):
        folder = whole.store.folder(spec.identity)
        assert {path.name for path in folder.iterdir()} == {"record.json", "run.json", "predictions.csv", "curves.csv"}
        record = whole.record(number)
        assert (record["settings"], record["stack"]) == (spec.to_dict(), 2)
        assert len(rows_of(folder / "curves.csv")) == 4
    assert not list((whole.store.path / "stacks").iterdir())


def die_in_the_second_stack(site: Site) -> None:
    def bar(name: str, _: int) -> nullcontext:
        die = lambda state: os.kill(os.getpid(), signal.SIGKILL) if state.epoch == 2 else None  # noqa: E731
        return nullcontext(die if name.startswith("CAT") else None)

    execute(Execution(site.store, site.specs, Library(), bar=bar), partial(in_stacks, device=CPU))


def test_killed_in_mid_grid_it_keeps_what_is_finished_and_goes_on_from_the_checkpoint(make, whole):
    site = make()
    assert commands.ended(die_in_the_second_stack, site) == -signal.SIGKILL
    assert site.kinds() == ["done", "done", "missing", "missing"]
    before = site.times()
    again = bearcat(*site.words("--device", "cpu"))
    assert again.returncode == 0, again.stderr
    assert "CAT*-Temperature × 2: going on from a checkpoint" in again.stderr
    assert site.kinds() == ["done"] * 4
    assert before.items() <= site.times().items()
    agree(whole, site, 0)


def test_two_processes_on_one_store_train_each_run_once(make, whole):
    site = make()
    files = [site.store.path.parent / name for name in ("one", "other")]
    both = [commands.start(*site.words("--device", "cpu"), output=file, errors=file) for file in files]
    assert [commands.waited(process) for process in both] == [0, 0]
    outputs = [file.read_text() for file in files]
    assert sum(int(output.split(" trained by this process")[0].split()[-1]) for output in outputs) == 4
    agree(whole, site, TOLERANCE)


def test_a_damaged_run_is_named_and_repeated(make, whole):
    """tests/test_record.py has other damages."""
    site = make()
    shutil.copytree(whole.store.path, site.store.path, dirs_exist_ok=True)
    folder, before = site.store.folder(site.specs[0].identity), site.times()
    lines = (folder / "predictions.csv").read_text().splitlines()
    (folder / "predictions.csv").write_text("\n".join(lines[:-1]))
    assert site.kinds() == ["damaged", "done", "done", "done"]
    assert str(results(site.specs, site.store)[1][site.specs[0].cell]).startswith(f"damaged: {folder}")
    site.execute()
    assert site.kinds() == ["done"] * 4
    assert any(str(folder) in message for message in site.messages)
    assert {name: when for name, when in site.times().items() if name != folder.name}.items() <= before.items()
    agree(whole, site, TOLERANCE)


def test_cells_that_cannot_work_fail_by_name_and_the_rest_completes(make, command):
    text = HEAD.replace('tasks = ["a:b"]', 'tasks = ["a:b", "c:b"]').replace("= 4", "= 2") + SOURCE_ONLY
    site = make(text + '[[method]]\nname = "large"\nmethod = "DANN"\nset.schedule.batch = 5000\n')
    site.execute()
    assert site.kinds() == ["done", "done", *["failed"] * 6]
    few = "12 training windows are fewer than a batch of 64"
    assert str(results(site.specs, site.store)[1][site.specs[2].cell]).startswith(f"failed: {few}")
    assert "fewer than a batch of 5000" in site.store.state(site.specs[4].identity).detail
    failure = site.store.folder(site.specs[4].identity) / "failure.json"
    assert json.loads(failure.read_text())["traceback"].startswith("Traceback")
    status, output, errors = command("bench", "status", *site.words()[2:])
    assert (status, "8 cells: 2 done, 6 failed" in output) == (0, True)
    assert f"failed: source-only, c→b, time, seed 0: {few}" in errors
    site.messages.clear()
    site.execute()
    assert site.messages == [], "failed runs are left alone"
    site.execute(retry_failed=True)
    assert sum("failed" in message for message in site.messages) == 6


def test_a_worker_sends_the_files_of_its_run_or_why_there_are_none(make, monkeypatch):
    """Only Ray is played: it does a task when its answer is wanted."""
    played = SimpleNamespace(
        cluster_resources=dict, get=lambda task: task(), wait=lambda tasks, **_: (tasks[:1], tasks[1:]),
        remote=lambda **_: lambda function: SimpleNamespace(remote=partial(partial, function)),
        shutdown=lambda: None, exceptions=SimpleNamespace(RayError=OSError),
    )  # fmt: skip
    monkeypatch.setattr(bench, "connect_ray", lambda _: played)
    site = make(HEAD.replace('["a:b"]', '["a:b", "c:b"]').replace("= 4", "= 2") + SOURCE_ONLY)
    site.execute(partial(bench.on_ray, address="local"))
    assert site.kinds() == ["done", "done", "failed", "failed"]
    assert [("fewer than a batch of 64" in message) for message in site.messages] == [True, True]


def test_a_stack_that_fails_is_halved_until_only_what_cannot_work_is_left_out(make, monkeypatch):
    """Only the shortage of memory is played; what fits is really trained."""
    site = make(HEAD.replace("seeds = 2", "seeds = 8").replace("= 4", "= 2") + SOURCE_ONLY)
    folder = site.store.folder(site.specs[1].identity)
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    honest, sizes = running.run_stack, []

    def scarce(specs, *words, **more):
        sizes.append(len(specs))
        if len(specs) > 2:
            raise torch.OutOfMemoryError
        return honest(specs, *words, **more)

    monkeypatch.setattr(running, "run_stack", scarce)
    monkeypatch.setitem(LARGEST, "cpu", 4)
    site.execute()
    assert sizes == [4, 2, 1, 1, 2, 4, 2, 2]
    assert site.kinds() == ["done", "failed", *["done"] * 6]
    assert "holds no run of bearcat" in site.store.state(site.specs[1].identity).detail


def test_interrupted_between_halves_the_rest_is_in_the_same_stacks(make, monkeypatch):
    site, sizes = make(HEAD.replace("seeds = 2", "seeds = 6").replace("= 4", "= 2") + SOURCE_ONLY), []
    honest = running.run_stack

    def scarce(specs, *words, **more):
        sizes.append(len(specs))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        if len(specs) > 2:
            raise torch.OutOfMemoryError
        return honest(specs, *words, **more)

    monkeypatch.setattr(running, "run_stack", scarce)
    monkeypatch.setitem(LARGEST, "cpu", 4)
    with pytest.raises(KeyboardInterrupt):
        site.execute()
    site.execute()
    assert (sizes, site.kinds()) == ([4, 2, 2, 2, 2], ["done"] * 6)


def test_a_damaged_checkpoint_is_a_start_anew_and_of_what_goes_wrong_only_a_full_disk_stops_all(make, monkeypatch):
    site = make(HEAD.replace("= 4", "= 2") + SOURCE_ONLY)
    runs = [spec.identity for spec in site.specs]
    checkpoint = site.store.path / "stacks" / digest_json(runs)[:24] / CHECKPOINT
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"junk")
    site.execute()
    assert (site.kinds(), len(site.messages)) == (["done"] * 2, 2)

    def broken(specs, *_, **__):
        raise error from error.__cause__

    monkeypatch.setattr(running, "run_stack", broken)
    other, error = make(site.grid.read_text(), "other"), PermissionError(errno.EACCES, "no access")
    other.execute()
    assert other.kinds() == ["failed"] * 2
    full, named = OSError(errno.ENOSPC, "full"), InputError("cannot be used")
    named.__cause__ = full
    for error in (full, named):
        with pytest.raises(type(error)):
            other.execute(retry_failed=True)
