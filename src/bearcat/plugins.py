"""Code that is not the package's own: what a user adds to its tables, by the source it has and the errors it raises.

The source is part of a run's identity and of the key of prepared windows, so that changed code never meets old results.
It is that of the files in which a row's class and its base classes are written and of the user's own files that these
import, line endings made equal. Paths, times and the versions of installed packages are no part of it.

>>> row_identity(MyLoss())              # None for a row of the package
>>> raised_in(error)                    # "examples/my_loss.py, line 12", if it came from a user's file
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import sysconfig
import traceback
import types
import uuid
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from bearcat.errors import InputError
from bearcat.storage import digest, digest_json

PACKAGE = Path(__file__).parent
INSTALLED = {"site-packages", "dist-packages"}
COMPILED = (".pyx", ".pxd", ".pxi")  # of Cython, whose frames name no folder: numpy/random/_generator.pyx
STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
LONGEST_TRACEBACK = 20_000  # characters that are kept, the last ones

# Hashes of classes and functions by their compiled code: as the source was when they were first looked at.
_remembered: WeakKeyDictionary[Any, dict[tuple[types.CodeType, ...], str]] = WeakKeyDictionary()


def row_identity(row: Any) -> str | None:
    """What names the code of a row: its `version` where that is not 1, and a hash of its source if it is a user's own.
    None for rows of the package as they were first.
    """
    version = getattr(row, "version", 1)
    parts = [f"version {version}"] if version != 1 else []
    return " ".join([*parts, *filter(None, [source_hash(row)])]) or None


def source_hash(value: Any) -> str | None:
    """SHA-256 of the source of an object's class, a class or a function; None where all of it is the package's."""
    if isinstance(value, functools.partial):
        hashes = [source_hash(value.func)]
    elif isinstance(value, types.MethodType):
        hashes = [source_hash(value.__func__), source_hash(type(value.__self__))]
    elif isinstance(value, types.FunctionType):
        hashes = [] if _is_package(value.__module__) else [_hash_of(value)]
    else:
        kind = value if isinstance(value, type) else type(value)
        hashes = [_hash_of(each) for each in kind.__mro__ if _counts(each, kind)]
        if is_dataclass(value) and not isinstance(value, type):
            parts = (getattr(value, field.name) for field in fields(value))
            hashes += [source_hash(part) for part in parts if is_dataclass(part)]
    found = list(filter(None, hashes))
    return digest_json(found) if len(found) > 1 else next(iter(found), None)


def written_in(row: Any) -> list[str]:
    """The names of the user's own files in which a row's class and its base classes are written."""
    kinds = [kind for kind in type(row).__mro__ if _counts(kind, type(row))]
    return sorted({path.name for kind in kinds for path in _files_of(kind)[0] if is_own_file(path)})


def _is_package(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "bearcat"


def _counts(kind: type, row: type) -> bool:
    """Whether a base class is a user's own, or of the installed package that the row itself is of."""
    top, own = (each.__module__.partition(".")[0] for each in (kind, row))
    if top == "bearcat" or top in sys.stdlib_module_names:
        return False
    return top == own or not any(INSTALLED & {*path.parts} for path in _files_of(kind)[0])


def _hash_of(value: Any) -> str:
    files, codes = _files_of(value)
    known = _remembered.setdefault(value, {})
    if codes not in known:
        if all(path.is_file() for path in files):
            texts, waiting = dict[Path, bytes](), list(files)
            while waiting:
                if (path := waiting.pop()) not in texts:
                    texts[path] = _text(path)
                    waiting += _imported(path, texts[path])
            known[codes] = digest_json([value.__qualname__, sorted(map(digest, texts.values()))])
        else:
            known[codes] = f"unsaved {uuid.uuid4().hex}"
            warnings.warn(
                f"the code of '{value.__qualname__}' is in no file, so results made with it are not used again in"
                " another session, nor after it is defined again; save it in a file and import it",
                stacklevel=2,
            )
    return known[codes]


def _files_of(value: Any) -> tuple[list[Path], tuple[types.CodeType, ...]]:
    """The files in which the functions of a class, or a function, are written, and their compiled code."""
    home = Path(getattr(sys.modules.get(value.__module__), "__file__", None) or "<unknown>")
    members = _functions((value,) if isinstance(value, types.FunctionType) else vars(value).values())
    codes = tuple(
        code for each in members
        if not _is_generated(code := each.__code__) and _is_written_with(home, Path(code.co_filename))
    )  # fmt: skip
    names = dict.fromkeys(code.co_filename for code in codes)
    return [Path(name) for name in names] or [home], codes  # a class may have no functions of its own


def _is_written_with(home: Path, path: Path) -> bool:
    """Whether a file is a user's own, or of the package that `home` is of; decorators add functions of other files."""
    return path == home or is_own_file(path) or (_package(path) is not None and _package(path) == _package(home))


def _package(path: Path) -> str | None:
    """The folder or file behind site-packages; None of a path that is not there."""
    places = [number for number, part in enumerate(path.parts) if part in INSTALLED]
    return "".join(path.parts[places[-1] + 1 : places[-1] + 2]) if places else None


def _is_generated(code: types.CodeType) -> bool:
    """Whether dataclasses wrote it."""
    return code.co_filename == "<string>" and code.co_name.startswith("__")


def _functions(members: Any) -> Iterator[types.FunctionType]:
    for member in members:
        if isinstance(member, property):
            yield from _functions((member.fget, member.fset))
        elif isinstance(member, staticmethod | classmethod):
            yield from _functions((member.__func__,))
        elif isinstance(member, functools.cached_property):
            yield from _functions((member.func,))
        elif isinstance(member, types.FunctionType):
            yield member
            if (inner := inspect.unwrap(member)) is not member:
                yield from _functions((inner,))


def _text(path: Path) -> bytes:
    return path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")


@functools.lru_cache(maxsize=4096)
def _imported(path: Path, text: bytes) -> list[Path]:
    """The user's own files that a file imports, anywhere in it, or the other files of the package it belongs to."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # not Python, such as a compiled module
        return []
    found: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _located(_root(alias.name, path), alias.name)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            folder = path.parents[node.level - 1] if node.level else _root(name, path)
            for alias in node.names:
                found += _located(folder, f"{name}.{alias.name}".strip(".")) or _located(folder, name)
    return found


def _located(folder: Path | None, name: str) -> list[Path]:
    """The file of a module below a folder."""
    if folder is None:
        return []
    place = folder.joinpath(*name.split("."))
    return [path for path in (place / "__init__.py", place.with_name(f"{place.name}.py")) if path.is_file()][:1]


def _root(name: str, importer: Path) -> Path | None:
    """The folder that an absolute import starts from; None where what is imported is not the user's own."""
    top = name.partition(".")[0]
    if top == "bearcat" or top in sys.stdlib_module_names:
        return None
    spec = None
    with suppress(ImportError, ValueError):
        spec = find_spec(top)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    if not places:
        return None
    root = Path(places[0]).parent
    return root if importer.is_relative_to(root / top) or is_own_file(root) else None


def is_own_file(path: Path) -> bool:
    """Whether a file is a user's: neither of this package, nor of Python, nor of an installed package."""
    installed = INSTALLED & {*path.parts} or (path.suffix in COMPILED and not path.is_absolute())
    return not (installed or any(path.is_relative_to(folder) for folder in (PACKAGE, *STANDARD)))


def raised_in(error: BaseException) -> str | None:
    """The last line of a user's own file on the way from this package to an error: "my_loss.py, line 12"."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((number for number, frame in enumerate(frames) if Path(frame.filename).is_relative_to(PACKAGE)), None)
    for frame in reversed(frames if first is None else frames[first:]):
        path = Path(frame.filename)
        if is_own_file(path) and not frame.filename.startswith(("<frozen", "<string")):
            with suppress(ValueError):
                path = path.relative_to(Path.cwd())
            return f"{path}, line {frame.lineno}"
    return None


def error_sentence(error: BaseException) -> str:
    """An error in one line; of one that came from a user's own file, where."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, InputError):
        return text
    place = raised_in(error)
    return f"{'' if place is None else f'{place}: '}{type(error).__name__}: {text}"


def traceback_text(error: BaseException) -> str:
    """The whole way to an error, as Python prints it; the end of it where it is very long."""
    return "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:]
