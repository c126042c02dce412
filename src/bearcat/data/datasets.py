"""Everything that can be opened by name: benches, simulated bearings, and a user's own folder.

>>> open_dataset("cwru", Path("data/cwru"), {"label_by": "type"}).catalogue().classes
('normal', 'inner', 'ball', 'outer')
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path

from bearcat.data.benches import CWRU, HITSM, AcrossMachines, Paderborn
from bearcat.data.catalogue import Dataset
from bearcat.data.folder import Folder
from bearcat.data.manifest import MANIFEST
from bearcat.data.simulate import Simulated
from bearcat.errors import InputError, suggest
from bearcat.settings import override

DATASETS: dict[str, type[Dataset]] = {
    "simulated": Simulated,
    "paderborn": Paderborn,
    "cwru": CWRU,
    "hit-sm": HITSM,
    "across-machines": AcrossMachines,
    "folder": Folder,
}
"""All datasets by name; a row more is a dataset more.

>>> DATASETS["simulated"](seconds=1.0).catalogue().domains[0]
'N15_M07_F10'
"""
REMOVED = {
    "collection": "sets of bearing-datasets are not read any more; list their signals in a manifest",
    "femto": "is no dataset any more; list its files in a manifest with path, machine, time, rpm and rate",
    "ims": "is no dataset any more; docs/own-data.md has the lines that list its files in a manifest",
}


def default_root(name: str) -> Path:
    """The folder of a dataset where none is given: $BEARCAT_DATA/NAME, or one in the user's data folder."""
    if folder := os.environ.get("BEARCAT_DATA"):
        return Path(folder) / name
    from platformdirs import user_data_path

    return user_data_path("bearcat", appauthor=False) / name


def dataset_label(name: str) -> str:
    """A dataset's name in records; of one's own folder, the folder's name without its path."""
    return name if name in DATASETS else _folder_of(Path(name)).resolve().name


def _folder_of(path: Path) -> Path:
    """The folder of recordings that a path names: itself, or that of a manifest."""
    return path.parent if path.name == MANIFEST and path.is_file() else path


def takes_root(name: str) -> bool:
    """Whether this is the name of a dataset that lies in a folder: simulated ones do not, and a path is one itself."""
    return name in DATASETS and _has_root(DATASETS[name])


def _has_root(kind: type[Dataset]) -> bool:
    return "root" in inspect.signature(kind).parameters


def open_dataset(name: str, root: Path | None = None, settings: Mapping[str, str] | None = None) -> Dataset:
    """The dataset of this name, or, where the name is a folder's, the recordings in it. Settings are texts by field.

    >>> open_dataset("simulated", settings={"seconds": "1", "faults": "inner"}).catalogue().classes[:2]
    ('healthy', 'inner-1')
    """
    kind = DATASETS.get(name)
    if kind is None and root is None and re.fullmatch(r"[\w-]+", name) and default_root(name).is_dir():
        kind, root = Folder, default_root(name)  # a folder of recordings beside those of the known datasets
    if kind is None:
        if root is not None or not (Path(name).exists() or "/" in name or os.sep in name):
            if name in REMOVED:
                raise InputError(f"{name}: {REMOVED[name]}")
            known = [dataset for dataset in DATASETS if dataset != "folder"]
            raise InputError(f"unknown dataset '{name}'{suggest(name, known)} (or give the path of your own folder)")
        kind, root = Folder, _folder_of(Path(name))
    if _has_root(kind):
        if name == "folder" and root is None:
            raise InputError(f"the dataset '{name}' needs its folder; give it with --root")
        place = default_root(name).parent if kind is AcrossMachines else default_root(name)  # it has several folders
        return override(kind(root=root or place), settings or {})  # type: ignore[call-arg]
    return override(kind(), settings or {})
