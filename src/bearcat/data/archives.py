"""Archives (zip and rar), read and unpacked as untrusted input.

A member can be read without unpacking the rest. Unpacking checks every name, counts the bytes that really come out,
and shows a file only once the whole archive was read. RAR needs the extra `fetch` and mostly a program such as unrar.

>>> unpack(Path("KA04.rar"), Path("data/pu"))
"""

from __future__ import annotations

import errno
import filecmp
import shutil
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from bearcat.data.signals import library, reading
from bearcat.errors import InputError

MEMBER_LIMIT = 2**30  # bytes of one member in memory; the largest recording of the known datasets is far below
UNPACK_LIMIT, FILES_LIMIT = 16 * 2**30, 100_000  # bytes and files that an archive may unpack to
CHUNK = 2**20


class DamagedArchiveError(InputError):
    """The archive is damaged, so another download may help."""


@dataclass(frozen=True)
class _Item:
    """Anything that an archive lists, except folders; `regular` is False for links and devices."""

    name: str
    regular: bool
    open: Callable[[], AbstractContextManager[IO[bytes]]]


def is_archive(path: Path) -> bool:
    """Whether the name has the ending of an archive we can read."""
    return path.name.lower().endswith((".zip", ".rar"))


def members(path: Path) -> list[str]:
    """The names of the regular files of the archive, with forward slashes, in its order."""
    with closing(_items(path)) as items:
        return [item.name for item in items if item.regular]


def read_member(path: Path, name: str, limit: int = MEMBER_LIMIT) -> bytes:
    """The bytes of one member, at most `limit`, checked against the archive's checksum."""
    contents = []
    with closing(_items(path)) as items:
        for item in items:
            if item.regular and item.name == name:
                contents.append(b"".join(_chunks(path, item, limit)))
                limit -= len(contents[-1])
    if len(contents) != 1:
        raise InputError(f"{path}: holds {name!r} {'twice' if contents else 'nowhere'}; unpack the archive by hand")
    return contents[0]


def unpack(path: Path, folder: Path) -> list[Path]:
    """Unpacks every file below the folder, all or none of them; identical files already there are kept."""
    staging = folder / f".unpacking-{path.name}"  # hidden, so that nothing a kill leaves is taken for data
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            return _place(path, _stage(path, folder, staging))
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def path_inside(folder: Path, name: str) -> Path:
    """The path of an untrusted name in the folder; a name that could lead out of it is refused."""
    parts = name.split("/")
    strange = any(sign in "\\:" or ord(sign) < 32 or ord(sign) == 127 for sign in name)
    if strange or not all(part.strip(". ") for part in parts):
        raise InputError(f"{name!r} is not a plain file name below {folder}: check where it comes from")
    path = folder.joinpath(*parts)
    try:
        # The last part may be a link, since a move replaces the link itself; the folders on the way may not lead out.
        within = path.parent.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        within = False
    if not within:
        raise InputError(f"{name!r} leads outside {folder} through a link: remove the link {path.parent}")
    return path


def rar_reader() -> Any:
    """The module rarfile, or the command that installs it."""
    return library("rarfile", "fetch", "a RAR archive")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns an error of the disk into a sentence that names the path."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        what = f"the disk of {path} is full" if full else f"cannot write {path} ({error.strerror or error})"
        raise InputError(f"{what}: put that right and run it again, what was finished is kept") from error


def _items(path: Path) -> Generator[_Item, None, None]:
    """Everything that the archive lists, except folders; items can be opened until the generator is closed."""
    with reading(str(path), "an archive", DamagedArchiveError):
        with path.open("rb") as stream:
            is_rar = stream.read(6) == b"Rar!\x1a\x07"
        for count, item in enumerate(_rar_items(path) if is_rar else _zip_items(path), start=1):
            if count > FILES_LIMIT:
                raise InputError(f"{path}: holds more than {FILES_LIMIT} files, which is not believable")
            yield item


def _zip_items(path: Path) -> Generator[_Item, None, None]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack far more at once
                raise InputError(f"{path}: {info.filename!r} is neither stored nor deflated; unpack it by hand")
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was not made on Unix
            if not info.is_dir():
                yield _Item(info.filename, kind in {0, stat.S_IFREG}, partial(archive.open, info))


def _rar_items(path: Path) -> Generator[_Item, None, None]:
    rarfile = rar_reader()

    def open_member(info: Any) -> Any:
        try:
            return archive.open(info)  # stored members need no program
        except rarfile.RarCannotExec as error:
            raise InputError(f"{path}: is compressed; install unrar, unar, 7-zip or bsdtar to unpack it") from error

    with rarfile.RarFile(path, errors="strict") as archive:  # else a torn archive counts as a shorter one
        if archive.needs_password():
            raise InputError(f"{path}: is protected by a password; unpack it by hand")
        for info in archive.infolist():
            if not info.is_dir():
                yield _Item(info.filename, info.is_file() and info.file_redir is None, partial(open_member, info))


def _chunks(path: Path, item: _Item, limit: int) -> Generator[bytes, None, None]:
    """The bytes that really come out of one member: the size in a header is only a claim."""
    with reading(str(path), "an archive", DamagedArchiveError), item.open() as stream:
        while chunk := stream.read(CHUNK):
            limit -= len(chunk)
            if limit < 0:
                raise InputError(f"{path}: unpacks {item.name!r} past the limit of bytes; check where it is from")
            yield chunk


def _stage(path: Path, folder: Path, staging: Path) -> list[tuple[Path, Path]]:
    """Writes every member under a number; the pairs of written file and final path."""
    left, staged, files, folders = UNPACK_LIMIT, list[tuple[Path, Path]](), set[str](), set[str]()
    with closing(_items(path)) as items:
        for number, item in enumerate(items):
            if not item.regular:
                raise InputError(f"{path}: holds {item.name!r}, a link or device; it was not unpacked, do so by hand")
            try:
                target = path_inside(folder, item.name)
            except InputError as error:
                raise InputError(f"{path}: was not unpacked, because {error}") from error
            _check_collision(path, item.name, files, folders)
            part = staging / f"{number:06}.part"
            with part.open("wb") as stream, closing(_chunks(path, item, left)) as chunks:
                for chunk in chunks:
                    left -= stream.write(chunk)
            staged.append((part, target))
    return staged


def _check_collision(path: Path, name: str, files: set[str], folders: set[str]) -> None:
    """Refuses two members that would be one file on some disk, or a file that is another one's folder."""
    # Windows and macOS ignore case and the way accents are composed; Windows also drops dots and spaces at an end.
    parts = [part.rstrip(". ") for part in unicodedata.normalize("NFC", name).casefold().split("/")]
    key = "/".join(parts)
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    if key in files or key in folders or above & files:
        raise InputError(f"{path}: holds {name!r} and another member of the same name; unpack it by hand")
    files.add(key)
    folders |= above


def _place(path: Path, staged: list[tuple[Path, Path]]) -> list[Path]:
    """Moves the written files to their final paths, once it is sure that none would replace a different one."""
    new = {target: part for part, target in staged if not (target.exists() or target.is_symlink())}
    for part, target in staged:
        if target not in new and not (target.is_file() and filecmp.cmp(part, target, shallow=False)):
            raise InputError(f"{target}: is there already and differs from the one in {path.name}; move it away")
    for target, part in new.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
    return [target for _, target in staged]
