"""Archives (zip and rar), whose members are read as untrusted input without unpacking the rest.

RAR needs the extra `fetch` and mostly a program such as unrar.

>>> content = read_member(Path("KA04.rar"), "KA04/N15_M07_F10_KA04_1.mat", limit=2**29)
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bearcat.data.signals import library, reading
from bearcat.errors import InputError


def is_archive(path: Path) -> bool:
    """Whether the name has the ending of an archive we can read."""
    return path.name.lower().endswith((".zip", ".rar"))


def members(path: Path) -> list[str]:
    """The names of the files of the archive, with forward slashes, in its order."""
    with _opened(path) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


def read_member(path: Path, name: str, limit: int) -> bytes:
    """The bytes of one member, at most `limit`, checked against the archive's checksum."""
    with _opened(path) as archive, archive.open(name) as stream:
        content: bytes = stream.read(limit + 1)  # the size in a header is only a claim
        if len(content) > limit:
            raise InputError(f"{path}: unpacks {name!r} past the limit of {limit} bytes; check where it is from")
        return content


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open archive; both libraries have the same methods."""
    with reading(str(path), "an archive"):
        with path.open("rb") as stream:
            is_rar = stream.read(6) == b"Rar!\x1a\x07"
        if not is_rar:
            with zipfile.ZipFile(path) as archive:
                yield archive
            return
        rarfile = library("rarfile", "fetch", str(path))
        try:
            with rarfile.RarFile(path, errors="strict") as archive:  # else a torn archive counts as a shorter one
                yield archive
        except rarfile.RarCannotExec as error:  # stored members need no program
            raise InputError(f"{path}: is compressed; install unrar, unar, 7-zip or bsdtar to read it") from error
