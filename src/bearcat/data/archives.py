"""Archives, read and unpacked as if a stranger had made them.

A member can be read without unpacking the rest, which is how a dataset is used while still packed; unpacking checks
every name, counts the bytes that really come out, and shows a file only once the whole archive was read. The kind of
an archive is told by its first bytes, so a download is recognised before it has its final name. RAR needs the extra
`fetch` and, for compressed members, a program such as unrar.

>>> [member.name for member in members(Path("KA04.rar"))]
>>> samples = read_member(Path("KA04.rar"), "KA04/N15_M07_F10_KA04_1.mat")
>>> unpack(Path("KA04.rar"), Path("data/pu"))
"""

from __future__ import annotations

import bz2
import errno
import filecmp
import gzip
import importlib
import lzma
import os
import shutil
import stat
import sys
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from bearcat.errors import InputError

ARCHIVES = (".zip", ".rar", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MEMBER_LIMIT = 2**30  # one member in memory; the largest recording of the datasets we read is far below
UNPACK_LIMIT = 16 * 2**30
FILES_LIMIT = 100_000
CHUNK = 2**20
HEADER_LIMIT = 16 * 2**20  # the most one read of a tar may ask for


class DamagedArchiveError(InputError):
    """The archive's own bytes are at fault, so that another download may help."""


@dataclass(frozen=True)
class Member:
    """A regular file inside an archive: its name with forward slashes, and the size its header states."""

    name: str
    size: int


@dataclass(frozen=True)
class _Item:
    """Whatever an archive lists; `regular` is False for links and devices. Folders are never listed."""

    name: str
    size: int
    regular: bool
    open: Callable[[], AbstractContextManager[IO[bytes]]]


def is_archive(path: Path) -> bool:
    """Whether the name has the ending of an archive we can read."""
    return path.name.lower().endswith(ARCHIVES)


def members(path: Path) -> list[Member]:
    """The regular files of the archive, in its order."""
    with closing(_items(path, FILES_LIMIT)) as items:
        return [Member(item.name, item.size) for item in items if item.regular]


def read_member(path: Path, name: str, limit: int = MEMBER_LIMIT) -> bytes:
    """The bytes of one member, at most `limit`, checked against the archive's checksum where its format has one.

    A compressed tar is read from its start each time: unpack it if many members are wanted.
    """
    content: bytes | None = None
    with closing(_items(path, FILES_LIMIT)) as items:
        for item in items:
            if not item.regular or item.name != name:
                continue
            if content is not None:
                raise InputError(f"{path} holds {name!r} twice, so it is unclear which is meant: unpack it by hand")
            content = b"".join(_chunks(path, item, limit))
    if content is None:
        raise InputError(f"{path} holds no file {name!r}: check the name, or download the archive again")
    return content


def unpack(path: Path, folder: Path, *, limit_bytes: int = UNPACK_LIMIT, limit_files: int = FILES_LIMIT) -> list[Path]:
    """Unpack every file below the folder, all or none of them; identical files already there are kept.

    Members are written under numbers into a hidden folder beside their destination, so that nothing left there by a
    kill could be taken for data, and moved once the whole archive was read. Empty folders are not created.
    """
    staging = folder / f".unpacking-{path.name}"
    with disk_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / f".unpacking-{path.name}.lock", f"unpacking {path.name}"):
            _clear(staging)
            staging.mkdir()
            try:
                staged = _stage(path, folder, staging, limit_bytes, limit_files)
                return _place(path, staged)
            finally:
                _clear(staging)


def inside(folder: Path, name: str) -> Path:
    """Where a name given by somebody else lies in the folder; a name that could lead out of it is refused."""
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
    try:
        return importlib.import_module("rarfile")
    except ImportError as missing:
        raise InputError("reading RAR archives needs an extra: pip install 'bearcat[fetch]'") from missing


@contextmanager
def disk_words(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a sentence that names the path."""
    try:
        yield
    except OSError as error:
        kept = "what was finished is kept"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise InputError(f"the disk of {path} is full: free some space and run it again, {kept}") from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise InputError(f"no permission to write {path}: choose a folder of your own, {kept}") from error
        raise InputError(f"cannot write {path} ({error.strerror or error}): put that right, {kept}") from error


@contextmanager
def alone(lock: Path, work: str) -> Iterator[None]:
    """Hold the lock file while working, or say in a sentence that another process does."""
    release = _claim(lock)
    if release is None:
        marker = _marker(lock)
        stale = f" (or delete {marker} if there is none)" if marker.exists() else ""
        raise InputError(f"another process is {work}: wait until it is done{stale} and run it again")
    try:
        yield
    finally:
        release()


def _claim(lock: Path) -> Callable[[], None] | None:
    """Take the lock and return how to let it go, or None where another one has it."""
    if sys.platform == "win32":
        return _claim_marker(lock)
    import fcntl

    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == lock.stat().st_ino:
            return lambda: _let_go(lock, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another, or removed by the one who held it a moment ago
    except OSError:
        _let_go(lock, descriptor)
        return _claim_marker(lock)
    os.close(descriptor)
    return None


def _let_go(lock: Path, descriptor: int) -> None:
    # Removed while still held: whoever opened it meanwhile sees that the name is gone and does not take it.
    lock.unlink(missing_ok=True)
    os.close(descriptor)


def _claim_marker(lock: Path) -> Callable[[], None] | None:
    """Where there is no flock (Windows, some network disks) the existence of a file is the lock, stale after a kill."""
    marker = _marker(lock)
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return None
    return lambda: marker.unlink(missing_ok=True)


def _marker(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.held")


def _items(path: Path, limit_files: int) -> Generator[_Item, None, None]:
    """All that the archive lists but folders, lazily: a tar must be read in its order."""
    with _archive_words(path):
        with path.open("rb") as stream:
            start = stream.read(8)
        if start.startswith(b"Rar!\x1a\x07"):
            found = _rar_items(path)
        elif start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            found = _zip_items(path)
        else:
            found = _tar_items(path, start)
        for count, item in enumerate(found, start=1):
            if count > limit_files:
                raise InputError(f"{path} holds more than {limit_files} files, which is not believable: not unpacked")
            yield item


def _zip_items(path: Path) -> Generator[_Item, None, None]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was not made on Unix
            if not info.is_dir():
                yield _Item(info.filename, info.file_size, kind in {0, stat.S_IFREG}, partial(archive.open, info))


def _rar_items(path: Path) -> Generator[_Item, None, None]:
    # Strict, since rarfile otherwise takes a torn archive for a shorter one.
    with rar_reader().RarFile(path, errors="strict") as archive:
        if archive.needs_password():
            raise InputError(f"{path} is protected by a password: unpack it by hand")
        for info in archive.infolist():
            if not info.is_dir():
                regular = info.is_file() and info.file_redir is None
                yield _Item(info.filename, info.file_size, regular, partial(archive.open, info))


def _tar_items(path: Path, start: bytes) -> Generator[_Item, None, None]:
    with _tar_stream(path, start) as stream:
        careful = cast(IO[bytes], _Careful(stream))
        with tarfile.open(fileobj=careful, mode="r:") as archive:
            for info in archive:
                if not info.isdir():
                    opened = cast(Callable[[], IO[bytes]], partial(archive.extractfile, info))
                    yield _Item(info.name.removeprefix("./"), info.size, info.isreg(), opened)
            # tarfile takes a torn or garbled header after the first for the end; the real end is a block of zeros.
            careful.seek(archive.offset)
            if careful.read(512) != bytes(512):
                raise tarfile.ReadError("it ends in the middle")
        while careful.read(CHUNK):  # gzip and xz keep their checksum at the very end
            pass


def _tar_stream(path: Path, start: bytes) -> IO[bytes]:
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(path))
    if start.startswith(b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.open(path))
    return path.open("rb")


class _Careful:
    """A stream for tarfile that refuses absurd reads: tarfile takes an extended header whole, at the size it claims."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.tell = stream.tell
        self.seek = stream.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= HEADER_LIMIT:
            raise tarfile.ReadError("a header of absurd size")
        return self.stream.read(size)


def _chunks(path: Path, item: _Item, limit: int, total: int = 0) -> Generator[bytes, None, None]:
    """The bytes that really come out of one member, counted on from `total`: the size in a header is only a claim."""
    with _archive_words(path), item.open() as stream:
        while chunk := stream.read(CHUNK):
            total += len(chunk)
            if total > limit:
                raise InputError(
                    f"{path} unpacks {item.name!r} past the limit of {limit} bytes: check where it is from"
                )
            yield chunk


@contextmanager
def _archive_words(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading an archive into a sentence that names it.

    It catches every kind of exception, because the parsers of the three formats raise nearly all of them on bad bytes.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there: check the name, or fetch it") from error
    except (PermissionError, IsADirectoryError) as error:
        raise InputError(f"{path} cannot be opened ({error.strerror}): check what it is and its permissions") from error
    except Exception as error:
        raise _rar_tool_missing(path, error) or DamagedArchiveError(
            f"{path} is damaged or not an archive ({error or type(error).__name__}): download it again"
        ) from error


def _rar_tool_missing(path: Path, error: Exception) -> InputError | None:
    """rarfile reads stored members itself; for compressed ones it runs a program, and may find none."""
    rarfile = sys.modules.get("rarfile")
    if rarfile is None or not isinstance(error, rarfile.RarCannotExec):
        return None
    return InputError(
        f"{path} is compressed and no program that unpacks RAR was found: install unrar, unar, 7-zip or bsdtar, "
        "and run it again"
    )


def _stage(path: Path, folder: Path, staging: Path, limit_bytes: int, limit_files: int) -> list[tuple[Path, Path]]:
    """Write every member under a number; the pairs of written file and final path."""
    staged: list[tuple[Path, Path]] = []
    files: set[str] = set()
    folders: set[str] = set()
    total = 0
    with closing(_items(path, limit_files)) as items:
        for number, item in enumerate(items):
            if not item.regular:
                raise InputError(f"{path} holds {item.name!r}, a link or device: it was not unpacked, do so by hand")
            target = _destination(path, folder, item.name)
            _check_collision(path, item.name, files, folders)
            part = staging / f"{number:06}.part"
            with part.open("wb") as stream, closing(_chunks(path, item, limit_bytes, total)) as chunks:
                for chunk in chunks:
                    total += stream.write(chunk)
            staged.append((part, target))
    return staged


def _destination(path: Path, folder: Path, name: str) -> Path:
    try:
        return inside(folder, name)
    except InputError as error:
        raise InputError(f"{path} was not unpacked, because {error}") from error


def _check_collision(path: Path, name: str, files: set[str], folders: set[str]) -> None:
    """Refuse two members that would be one file on some disk, or a file that is another one's folder."""
    # Windows and macOS ignore case and the way accents are composed; Windows also drops dots and spaces at an end.
    parts = [part.rstrip(". ") for part in unicodedata.normalize("NFC", name).casefold().split("/")]
    key = "/".join(parts)
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    if key in files or key in folders or above & files:
        raise InputError(f"{path} holds {name!r} and another member of the same name: unpack it by hand")
    files.add(key)
    folders |= above


def _place(path: Path, staged: list[tuple[Path, Path]]) -> list[Path]:
    """Move the written files to their final paths, after a look that none would replace a different one."""
    kept = {target for part, target in staged if _already_there(path, part, target)}
    for part, target in staged:
        if target not in kept:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
    return [target for _, target in staged]


def _already_there(path: Path, part: Path, target: Path) -> bool:
    if not (target.exists() or target.is_symlink()):
        return False
    if target.is_file() and filecmp.cmp(part, target, shallow=False):
        return True
    raise InputError(
        f"{target} is already there and differs from the one in {path.name}: move it away and run it again"
    )


def _clear(staging: Path) -> None:
    if staging.exists():
        shutil.rmtree(staging)
