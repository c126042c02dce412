"""Files on disk: atomic writing, hashing, tensors with their metadata in one file, and where the cache is.

A reader finds the old file or the new one, never a half. Nothing is executed on loading.

>>> write_atomically(Path("out/checkpoint.safetensors"), tensor_bytes({"weight": weight}, {"epoch": 3}))
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bearcat.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A file to write, which gets this name at the end; an earlier file stays until then. Missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        yield draft
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk does not say whose
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Writes the whole file or nothing."""
    with drafted(path) as draft, draft.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def real_path(path: Path) -> Path:
    """The absolute path with links followed; one that leads to itself stays as it is."""
    return Path(os.path.realpath(path))


def check_regular(path: Path, origin: str | None = None) -> None:
    """InputError where a file is a pipe or a device, whose reading might never end; `origin` is what it is called."""
    if path.exists() and not path.is_file():
        raise InputError(f"{origin or path}: is no regular file; copy its content into one")


def read_regular(path: Path) -> bytes:
    """The content of a file that is no pipe and no device."""
    check_regular(path)
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """The value in a file; ValueError where it is not JSON, or nested too deeply."""
    try:
        return json.loads(read_regular(path))
    except RecursionError as error:
        raise ValueError(f"{path}: is nested too deeply") from error


def write_json(path: Path, value: Any) -> None:
    """Writes a value for people and programs; what is no text in UTF-8 is escaped, and NaN is a ValueError."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode(errors="backslashreplace"))


def digest(content: bytes) -> str:
    """SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of plain values, however a dict is ordered."""
    return digest(json.dumps(value, sort_keys=True).encode())


def tensor_bytes(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> bytes:
    """Tensors and plain metadata as `load_tensors` reads them."""
    from safetensors.torch import save

    detached = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(detached, metadata={"bearcat": json.dumps(metadata)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the metadata of a file, or one sentence that it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["bearcat"])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (no mapping)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged and cannot be read; delete it to start from the beginning") from error


def cache_folder() -> Path:
    """$BEARCAT_CACHE, or the user's cache folder.

    >>> cached_windows(Simulated(seconds=1.0).catalogue().only(["0"]), Preparation(), cache_folder()).values.ndim
    3
    """
    if folder := os.environ.get("BEARCAT_CACHE"):
        return Path(folder)
    from platformdirs import user_cache_path

    return user_cache_path("bearcat", appauthor=False)
