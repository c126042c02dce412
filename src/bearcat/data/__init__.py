"""Recordings in, tasks out; numpy and scipy only. `DATASETS` is the table of everything that can be opened.

>>> catalogue = open_dataset("cwru", root=Path("data/cwru")).catalogue()
>>> source = cached_windows(catalogue.only(["load0"]), Preparation(), cache_folder())
>>> target = cached_windows(catalogue.only(["load3"]), Preparation(), cache_folder())
>>> split = split_task(Task("load0", "load3"), source, target, Split(), seed=0)
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from bearcat.data.bearing import BEARINGS, Bearing, find_bearing
from bearcat.data.catalogue import About, Catalogue, Dataset, Download, Entry, Problem, load
from bearcat.data.datasets.benches import CWRU, HITSM, AcrossMachines, Paderborn
from bearcat.data.datasets.collection import SIGNALS, TABLE, Collection
from bearcat.data.datasets.folder import MANIFEST, Folder
from bearcat.data.datasets.simulate import Simulated
from bearcat.data.prepare import Preparation, cached_windows, prepare
from bearcat.data.recording import Recording, RecordingInfo, Windows, join, resample
from bearcat.data.run_to_failure import FEMTO, IMS
from bearcat.data.tasks import Split, SplitTask, Task, split_task
from bearcat.errors import InputError, suggest
from bearcat.settings import cache_folder, override

__all__ = [
    "BEARINGS", "CWRU", "DATASETS", "FEMTO", "HITSM", "IMS", "About", "AcrossMachines", "Bearing", "Catalogue",
    "Collection", "Dataset", "Download", "Entry", "Folder", "Paderborn", "Preparation", "Problem", "Recording",
    "RecordingInfo", "Simulated", "Split", "SplitTask", "Task", "Windows", "cache_folder", "cached_windows",
    "dataset_label", "default_root", "find_bearing", "join", "load", "open_dataset", "prepare", "resample",
    "split_task",
]  # fmt: skip

DATASETS: dict[str, type[Dataset]] = {
    "simulated": Simulated,
    "paderborn": Paderborn,
    "cwru": CWRU,
    "hit-sm": HITSM,
    "ims": IMS,
    "femto": FEMTO,
    "across-machines": AcrossMachines,
    "collection": Collection,
    "folder": Folder,
}
OWN = ("folder", "collection")  # of which the path is given


def default_root(name: str) -> Path:
    """The folder of a dataset where none is given: $BEARCAT_DATA/NAME, or one in the user's data folder."""
    if folder := os.environ.get("BEARCAT_DATA"):
        return Path(folder) / name
    from platformdirs import user_data_path

    return user_data_path("bearcat", appauthor=False) / name


def dataset_label(name: str) -> str:
    """A dataset's name in records; of one's own folder, the folder's name without its path."""
    return name if name in DATASETS else _folder_of(Path(name)).resolve().name


def _kind_of(folder: Path) -> type[Dataset]:
    return Collection if (folder / TABLE).is_file() and (folder / SIGNALS).is_dir() else Folder


def _folder_of(path: Path) -> Path:
    """The folder of recordings that a path names: itself, or that of a manifest."""
    return path.parent if path.name == MANIFEST and path.is_file() else path


def open_dataset(name: str, root: Path | None = None, settings: Mapping[str, str] | None = None) -> Dataset:
    """The dataset of this name, or, where the name is a folder's, the recordings in it. Settings are texts by field."""
    kind = DATASETS.get(name)
    if kind is None and root is None and re.fullmatch(r"[\w-]+", name) and default_root(name).is_dir():
        kind = _kind_of(default_root(name))  # a folder of recordings beside those of the known datasets
    if kind is None:
        if root is not None or not (Path(name).exists() or "/" in name or os.sep in name):
            known = [dataset for dataset in DATASETS if dataset not in OWN]
            raise InputError(f"unknown dataset '{name}'{suggest(name, known)} (or give the path of your own folder)")
        kind, root = _kind_of(Path(name)), _folder_of(Path(name))
    if "root" in {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        if name in OWN and root is None:
            raise InputError(f"the dataset '{name}' needs its folder; give it with --root")
        place = default_root(name).parent if kind is AcrossMachines else default_root(name)  # it has several folders
        return override(kind(root=root or place), settings or {})  # type: ignore[call-arg]
    return override(kind(), settings or {})
