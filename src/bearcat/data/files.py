"""Folders of data files: finding files, and checking that paths stay inside a folder."""

from __future__ import annotations

from pathlib import Path

from bearcat.errors import InputError


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
    found: dict[str, list[Path]] = {}
    for path in sorted(checked_root(root, name).rglob(pattern)):
        if path.is_file() and not path.name.startswith("."):
            found.setdefault(path.name, []).append(path)
    return found


def inside(root: Path, path: Path) -> bool:
    """Whether a path, links followed, stays inside a folder."""
    return path.resolve().is_relative_to(root.resolve())
