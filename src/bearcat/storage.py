"""Files on disk: atomic writing, hashes, tensors with their metadata in one file, where the cache is; users' code.

A reader finds the old file or the new one, never a half. Nothing is executed on loading. The source of a user's code,
which is part of a run's identity, is that of the modules that define a row's class, its base classes, and what these
import.

>>> write_atomically(Path("out/checkpoint.safetensors"), tensor_bytes({"weight": weight}, {"epoch": 3}))
>>> row_identity(MyLoss())  # None for a row of the package
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import os
import sys
import types
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bearcat.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

INSTALLED = {"site-packages", "dist-packages"}  # folders of others' code


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


def row_identity(row: Any) -> str | None:
    """A row's `version` where that is not 1, and a hash of its source if it is a user's own; else None."""
    version = getattr(row, "version", 1)
    return " ".join(filter(None, [f"version {version}" if version != 1 else None, source_hash(row)])) or None


def source_hash(value: Any) -> str | None:
    """SHA-256 of the source of an object's class, a class or a function; None where all of it is the package's."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__self__", value)  # of a method
    return _hash(value if isinstance(value, type | types.FunctionType) else type(value))


@functools.cache  # as it was when it was first used
def _hash(kind: Any) -> str | None:
    written = [part for part in getattr(kind, "__mro__", (kind,)) if _is_own(part.__module__, kind.__module__)]
    if not written:
        return None
    sources = dict[str, str]()
    for part in written:
        _add_sources(part.__module__, sources)
    with suppress(OSError, TypeError):  # typed at a prompt, or in a cell of a notebook, whose module has no file
        if all(inspect.getsource(part) and part.__module__ in sources for part in written):
            return digest_json([[part.__qualname__ for part in written], sorted(set(sources.values()))])
    warnings.warn(
        f"the code of '{kind.__qualname__}' is in no file, so results made with it are not used again in another"
        " session, nor after it is defined again; save it in a file and import it",
        stacklevel=2,
    )
    return f"unsaved {uuid.uuid4().hex}"


def _is_own(module: str, beside: str) -> bool:
    """Whether a module is a user's, or of the same installed package as `beside`."""
    top = module.partition(".")[0]
    if top == "bearcat" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = _file(module)
    return top == beside.partition(".")[0] or (file is not None and not INSTALLED & {*file.parts})


def _add_sources(module: str, sources: dict[str, str]) -> None:
    """Adds hashes of the files of a module and of those it imports, directly or through others."""
    if module in sources or (file := _file(module)) is None:
        return
    text = file.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    sources[module] = digest(text)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    with suppress(SyntaxError, ValueError, ImportError):  # not Python, such as a compiled module
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
            if isinstance(node, ast.ImportFrom):
                origin = resolve_name("." * node.level + (node.module or ""), package or module)
                names = [origin, *(f"{origin}.{name}" for name in names)]
            for name in names:
                if _is_own(name, module):
                    _add_sources(name, sources)


def _file(module: str) -> Path | None:
    """The file of a module; None where there is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    with suppress(ImportError, ValueError):
        spec = find_spec(module) if file is None else None
        file = spec.origin if spec is not None and spec.has_location else file
    return None if file is None else Path(file)


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
    """$BEARCAT_CACHE, or the user's cache folder, for compiled kernels."""
    if folder := os.environ.get("BEARCAT_CACHE"):
        return Path(folder)
    from platformdirs import user_cache_path

    return user_cache_path("bearcat", appauthor=False)
