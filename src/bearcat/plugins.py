"""Code that is not the package's own: what a user adds to its tables, by the source it has and the errors it raises.

The source is part of a run's identity and of the key of prepared windows, so that changed code never meets old results.
It is that of the modules in which a row's class and its base classes are written and of the user's own modules that
these import, line endings made equal. Paths, times and the versions of installed packages are no part of it.

>>> row_identity(MyLoss())              # None for a row of the package
>>> raised_in(error)                    # "examples/my_loss.py, line 12", if it came from a user's file
"""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
import traceback
import types
import uuid
import warnings
from contextlib import suppress
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from bearcat.errors import InputError
from bearcat.storage import digest, digest_json

PACKAGE = Path(__file__).parent
INSTALLED = {"site-packages", "dist-packages"}
STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
LONGEST_TRACEBACK = 20_000  # characters that are kept, the last ones


def row_identity(row: Any) -> str | None:
    """What names the code of a row: its `version` where that is not 1, and a hash of its source if it is a user's own.
    None for rows of the package as they were first.
    """
    version = getattr(row, "version", 1)
    parts = [f"version {version}"] if version != 1 else []
    return " ".join([*parts, *filter(None, [source_hash(row)])]) or None


def source_hash(value: Any) -> str | None:
    """SHA-256 of the source of an object's class, a class or a function; None where all of it is the package's."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__self__", value)  # of a method
    return _hash(value if isinstance(value, type | types.FunctionType) else type(value))


@functools.cache  # as it was when it was first used
def _hash(kind: Any) -> str | None:
    package = _top(kind.__module__)
    written = [part for part in getattr(kind, "__mro__", (kind,)) if _counts(part.__module__, package)]
    if not written:
        return None
    members = [member for part in written for member in (vars(part).values() if isinstance(part, type) else [part])]
    codes = [member.__code__ for member in members if isinstance(member, types.FunctionType)]
    # dataclasses write methods of their own, with names like __eq__, which are in no file either
    typed = any(code.co_filename.startswith("<") and not code.co_name.startswith("__") for code in codes)
    if not typed and all(_file(part.__module__) for part in written):
        sources = {source for part in written for source in _sources(part.__module__)}
        return digest_json([[part.__qualname__ for part in written], sorted(sources)])
    warnings.warn(
        f"the code of '{kind.__qualname__}' is in no file, so results made with it are not used again in another"
        " session, nor after it is defined again; save it in a file and import it",
        stacklevel=2,
    )
    return f"unsaved {uuid.uuid4().hex}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _counts(module: str, package: str) -> bool:
    """Whether a module is a user's own, or of the installed package that the row itself is of."""
    if (top := _top(module)) == "bearcat" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    return top == package or ((file := _file(top)) is not None and is_own_file(file))


def _sources(module: str) -> set[str]:
    """Hashes of the files of a module and of those it imports, directly or through others, that count."""
    texts, waiting = dict[Path, bytes](), [module]
    while waiting:
        name = waiting.pop()
        path = _file(name) if _counts(name, _top(module)) else None
        if path is not None and path.is_file() and path not in texts:
            texts[path] = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imported(texts[path], package)
    return set(map(digest, texts.values()))


def _imported(text: bytes, package: str) -> list[str]:
    """The names that a module of this package imports, anywhere in it, of which some may be no modules."""
    names: list[str] = []
    with suppress(SyntaxError, ValueError):  # not Python, such as a compiled module
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                name = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
                names += [name, *(f"{name}.{alias.name}" for alias in node.names)]
    return names


def _file(module: str) -> Path | None:
    """The file of a module, or the folder of a package without one; None where there is none."""
    if (file := getattr(sys.modules.get(module), "__file__", None)) is not None:
        return Path(file)
    with suppress(ImportError, ValueError):
        if (spec := find_spec(module)) is not None:
            places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
            return next((Path(place) for place in places if place), None)
    return None


def is_own_file(path: Path) -> bool:
    """Whether a file is a user's: neither of this package, nor of Python, nor of an installed package."""
    foreign = INSTALLED & {*path.parts} or any(path.is_relative_to(folder) for folder in (PACKAGE, *STANDARD))
    return path.exists() and not foreign


def raised_in(error: BaseException) -> str | None:
    """The last line of a user's own file on the way from this package to an error: "my_loss.py, line 12"."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((number for number, frame in enumerate(frames) if Path(frame.filename).is_relative_to(PACKAGE)), 0)
    for frame in reversed(frames[first:]):
        if is_own_file(path := Path(frame.filename)):
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
