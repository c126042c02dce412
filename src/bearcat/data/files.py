"""Folders of data files: finding files, and checking that paths stay inside a folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from bearcat.errors import InputError

Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items with each key, in their order."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def checked_root(root: Path, name: str | None = None) -> Path:
    """The dataset's folder, or a sentence that it is not there; `name` is of a dataset that can be fetched."""
    try:
        if root.is_dir():
            next(root.iterdir(), None)
            return root
    except PermissionError as error:
        raise InputError(f"{root}: permission denied; make the folder readable for your user") from error
    what = "is a file, not a folder" if root.exists() else "there is no such folder"
    fetch = f"fetch it with: bearcat data fetch {name} --root {root}, or " if name else ""
    raise InputError(f"{root}: {what}; {fetch}check the path given with --root or --data")


def found_files(root: Path, pattern: str, name: str | None = None) -> dict[str, list[Path]]:
    """The files below a folder that match, by name, each with all the places it stands in."""
    paths = sorted(checked_root(root, name).rglob(pattern))
    return grouped((path for path in paths if path.is_file() and not path.name.startswith(".")), lambda path: path.name)


def inside(root: Path, path: Path) -> bool:
    """Whether a path, links followed, stays inside a folder."""
    return path.resolve().is_relative_to(root.resolve())
