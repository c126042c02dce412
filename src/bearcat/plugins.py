"""Code that a user adds: its source, which is part of a run's identity, and the errors it raises.

The source is that of the user's modules that define a row's class, its base classes, and what these import.

>>> row_identity(MyLoss())              # None for a row of the package
>>> raised_in(error)                    # "my_loss.py, line 12", if it came from a user's file
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
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
    return top == beside.partition(".")[0] or ((file := _file(module)) is not None and is_own_file(file))


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


def is_own_file(path: Path) -> bool:
    """Whether a file is a user's: neither of this package, nor of Python, nor of an installed package."""
    foreign = INSTALLED & {*path.parts} or any(path.is_relative_to(folder) for folder in (PACKAGE, *STANDARD))
    return path.exists() and not foreign


def raised_in(error: BaseException) -> str | None:
    """The last line of a user's own file on the way from this package to an error: "my_loss.py, line 12"."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if Path(frame.filename).is_relative_to(PACKAGE)]
    of_user = [frame for frame in frames[min(ours, default=0) :] if is_own_file(Path(frame.filename))]
    return f"{os.path.relpath(of_user[-1].filename)}, line {of_user[-1].lineno}" if of_user else None


def error_sentence(error: BaseException) -> str:
    """An error in one line; of one that came from a user's own file, where."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, InputError):
        return text
    line = raised_in(error)
    return f"{'' if line is None else f'{line}: '}{type(error).__name__}: {text}"


def traceback_text(error: BaseException) -> str:
    """The traceback, as Python prints it."""
    return "".join(traceback.format_exception(error))
