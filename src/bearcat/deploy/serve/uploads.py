"""The private folder in which a server keeps uploads while it works on them.

A cleaner of temporary files may remove it: it is made again, and nobody else's folder or link at its place is used.

>>> with UploadFolder() as uploads:
...     path, file = uploads.create(".wav")
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

TRIAL = bytes(2**16)  # what `problem` stores
TRIAL_SECONDS = 1.0  # in which it is stored once at most


class UploadError(Exception):
    """An upload cannot be stored; the sentence says why."""


@contextmanager
def storing() -> Iterator[None]:
    """UploadError instead of the system's errors."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UploadError(f"the server cannot store uploads ({reason}); make room in its temporary folder") from error


class UploadFolder(AbstractContextManager["UploadFolder"]):
    """Files in it are readable for this user alone."""

    def __init__(self) -> None:
        self.path, self.descriptor = Path(tempfile.mkdtemp(prefix="bearcat-")), -1
        self.made, self.numbers = [self.path], count()
        self.tried: tuple[float, str | None] = (-TRIAL_SECONDS, None)
        self._hold()

    def __exit__(self, *_: object) -> None:
        self._release()
        for path in self.made:
            shutil.rmtree(path, ignore_errors=True)

    def create(self, suffix: str) -> tuple[Path, BinaryIO]:
        """A new file; UploadError where there can be none."""
        with storing():
            if not self._is_ours():
                self._make_again()
            path = self.path / f"{next(self.numbers)}{suffix}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            if self.descriptor < 0:  # Windows
                return path, os.fdopen(os.open(path, flags, 0o600), "wb")
            return path, os.fdopen(os.open(path.name, flags, 0o600, dir_fd=self.descriptor), "wb")

    def problem(self) -> str | None:
        """Why nothing can be stored at present; a small file is written to find out."""
        if time.monotonic() - self.tried[0] >= TRIAL_SECONDS:
            self.tried = (time.monotonic(), self._try())
        return self.tried[1]

    def _try(self) -> str | None:
        try:
            path, file = self.create(".trial")
            try:
                with storing(), file:
                    file.write(TRIAL)
            finally:
                path.unlink(missing_ok=True)
        except UploadError as error:
            return str(error)
        return None

    def _is_ours(self) -> bool:
        """Whether the folder that we made is still at its place."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return self.descriptor < 0 or os.path.samestat(found, os.fstat(self.descriptor))

    def _make_again(self) -> None:
        """At its place, where readers would remove it should we be killed; elsewhere if something else is there."""
        self._release()
        try:
            self.path.mkdir(0o700)
        except OSError:
            self.path = Path(tempfile.mkdtemp(prefix="bearcat-"))
            self.made.append(self.path)
        self._hold()

    def _hold(self) -> None:
        if os.open in os.supports_dir_fd:
            import fcntl

            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with suppress(OSError):
                fcntl.flock(self.descriptor, fcntl.LOCK_SH)  # systemd's cleaner leaves locked folders alone

    def _release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
