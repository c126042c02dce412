"""The cache: the right windows always, from disk where it can be, rebuilt where it is damaged."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from bearcat.data import Folder, Preparation, cached_windows, load, prepare
from bearcat.data.recording import Windows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two recordings, an hour old."""
    for number, name in enumerate(("a/inner/1.npy", "a/outer/1.npy")):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True)
        np.save(path, np.random.default_rng(number).standard_normal(5000).astype(np.float32))
        os.utime(path, (time.time() - 3600,) * 2)
    return tmp_path / "set"


def windows_of(folder: Path, cache: Path | None, **settings) -> Windows:
    catalogue, preparation = Folder(root=folder).catalogue(), Preparation(length=256, **settings)
    return prepare(load(catalogue), preparation) if cache is None else cached_windows(catalogue, preparation, cache)


def same(first: Windows, second: Windows) -> bool:
    arrays = ("values", "start", "recording")
    equal = all(np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays)
    return equal and (first.recordings, first.span) == (second.recordings, second.span)


@pytest.mark.parametrize("settings", [{}, {"input": "frequency"}, {"stride": 100}])
def test_what_comes_from_the_cache_is_what_was_prepared(folder, tmp_path, monkeypatch, settings):
    fresh = windows_of(folder, None, **settings)
    first = windows_of(folder, tmp_path / "cache", **settings)
    monkeypatch.setattr("bearcat.data.windows.prepare", None)  # which would be called to prepare them again
    again = windows_of(folder, tmp_path / "cache", **settings)
    assert same(fresh, first)
    assert same(fresh, again)
    assert isinstance(again.values, np.memmap)
    assert not again.values.flags.writeable


@pytest.mark.parametrize("settings", [{"input": "frequency"}, {"stride": 17}, {"rate": 500.0}])
def test_another_setting_never_meets_an_old_entry(folder, tmp_path, settings):
    windows_of(folder, tmp_path / "cache")
    assert same(windows_of(folder, tmp_path / "cache", **settings), windows_of(folder, None, **settings))


def test_a_changed_file_never_meets_an_old_entry_even_with_size_and_date_kept(folder, tmp_path):
    old = windows_of(folder, tmp_path / "cache")
    path = folder / "a/inner/1.npy"
    before = path.stat()
    np.save(path, np.load(path)[::-1].copy())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    new = windows_of(folder, tmp_path / "cache")
    assert not np.array_equal(old.values, new.values)
    assert same(new, windows_of(folder, None))


def test_a_moved_label_is_another_dataset(folder, tmp_path):
    windows_of(folder, tmp_path / "cache")
    shutil.move(folder / "a/inner", folder / "a/cage")
    assert set(windows_of(folder, tmp_path / "cache").labels) == {"cage", "outer"}


@pytest.mark.parametrize("damage", ["cut", "index", "gone"])
def test_a_damaged_entry_is_built_again(folder, tmp_path, damage):
    windows_of(folder, tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "windows").iterdir()
    if damage == "cut":
        (place / "windows.npy").write_bytes((place / "windows.npy").read_bytes()[:-100])
    elif damage == "index":
        (place / "index.json").write_text("{")
    else:
        (place / "windows.npy").unlink()
    assert same(windows_of(folder, tmp_path / "cache"), windows_of(folder, None))
    assert isinstance(windows_of(folder, tmp_path / "cache").values, np.memmap)  # and is whole again
    assert [path.name[0] for path in (tmp_path / "cache" / "windows").iterdir()] != ["."]


def test_a_cache_that_cannot_be_written_is_done_without(folder, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert same(windows_of(folder, blocked), windows_of(folder, None))
