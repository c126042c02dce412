"""Settings are fields of frozen dataclasses; this module reads them from text. And where the cache is.

A row of a table (an input, an encoder, a calibrator) is written as its name, with the settings that differ from their
defaults, `dense:widths=256,128:dropout=0.1`, in records, model folders, grids and on the command line.

>>> override(Simulated(), {"seconds": "2", "severities": "0.5,2"})
>>> from_text("frequency", INPUTS, "input")
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bearcat.errors import InputError, suggest

Settings = TypeVar("Settings")
# Settings of v0.3 that have another name or place today, some by the class that had them.
REMOVED = {
    "ramp_up": "set labels.weight",
    "ridge": "it is 1e-4 for vector and matrix scaling, and 1 for CPCS",
    "CPCS.resampling": "solver=scikit-learn draws the smaller domain again too",
    "label_by": "list the files in a manifest, with labels of your own",
    "Paderborn.channel": "list the files in a manifest for another channel than the first",
    "Grid.precision": 'write set = { precision = "bfloat16" } in a [[method]]',
    "DiagnoseRequest.orders": 'write bearing="bpfo=3.585,bpfi=5.415"',
    "Method.recipe": "write method = …",
    "AdaptRequest.recipe": "it is called 'method'",
}
_hints = functools.cache(typing.get_type_hints)  # which evaluates the texts anew each time


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """`name=value` texts as a table."""
    table = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputError(f"'{text}' is not a setting; write NAME=VALUE")
        table[name.strip()] = value.strip()
    return table


def override(settings: Settings, texts: Mapping[str, Any]) -> Settings:
    """A copy with these fields changed; values and texts are read as the field's type."""
    kind: Any = type(settings)
    fields = [field.name for field in dataclasses.fields(settings)]  # type: ignore[arg-type]
    hints, changed = _hints(kind), {}
    for name, text in texts.items():
        if name not in fields:
            if instead := REMOVED.get(name) or REMOVED.get(f"{kind.__name__}.{name}"):
                raise InputError(f"setting '{name}' is gone; {instead}")
            raise InputError(f"unknown setting '{name}'{suggest(name, fields)}")
        try:
            changed[name] = from_plain(hints[name], text if hints[name] is Any else _texts(text))
        except ValueError as error:
            raise InputError(f"setting '{name}': '{text}' is not {_described(hints[name])}") from error
    return dataclasses.replace(settings, **changed)  # type: ignore[type-var]


def _texts(value: Any) -> Any:
    """A value, or each one of a list or a table, as text, which every type of setting can be read from."""
    if isinstance(value, Mapping):
        return {str(name): _texts(item) for name, item in value.items()}
    return [_texts(item) for item in value] if isinstance(value, list | tuple) else str(value)


def find_name(name: str, table: Iterable[str], what: str) -> str:
    """The entry of a table called so, in any case; the nearest is suggested if there is none."""
    names = list(table)
    for entry in names:
        if entry.lower() == name.lower():
            return entry
    raise InputError(f"unknown {what} '{name}'{suggest(name, names)}")


def from_text(text: str, table: Mapping[str, Callable[[], Settings]], what: str) -> Settings:
    """The value that `NAME` or `NAME:SETTING=VALUE:…` describes, made of a row of the table."""
    name, *settings = text.split(":")
    value = table[find_name(name, table, what)]()
    try:
        return override(value, pairs(settings)) if settings else value
    except InputError as error:
        raise InputError(f"{what} '{text}': {error}") from error


def spell_out(text: str, table: Mapping[str, Callable[[], Any]], what: str) -> str:
    """The same text with every setting, so that a later change of a default means another text."""
    return to_text(from_text(text, table, what), table)


def to_text(value: Any, table: Mapping[str, Callable[[], Any]]) -> str:
    """A value made of a row of the table as `NAME:SETTING=VALUE:…`, with every setting."""
    parts = [next(name for name, kind in table.items() if kind is type(value))]
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        parts.append(f"{field.name}={','.join(map(str, setting if isinstance(setting, tuple) else (setting,)))}")
    return ":".join(parts)


def to_plain(value: Any) -> Any:
    """A frozen dataclass as values that JSON knows."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: Any, value: Any, name: str = "the value") -> Any:
    """A value of this type from what JSON or TOML holds of it, or from its text; ValueError names what does not fit.

    Of a dataclass, entries that it does not know are left out, and missing ones have its defaults.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (type(value) is (origin or kind) and origin is not tuple):
        return value
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and (value is None or str(value).lower() in ("", "none")):
            return None
        first, *others = (argument for argument in arguments if argument is not type(None))
        for other in others:
            with contextlib.suppress(ValueError):
                return from_plain(other, value, name)
        return from_plain(first, value, name)
    if origin is typing.Literal and value in arguments:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        hints, fields = _hints(kind), {}
        for field in dataclasses.fields(kind):
            if field.name in value:
                fields[field.name] = from_plain(hints[field.name], value[field.name], f"'{field.name}'")
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise ValueError(f"'{field.name}' is missing")
        return kind(**fields)
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        value = list(value.items()) if isinstance(value, Mapping) else value
        if isinstance(value, list | tuple):
            kinds = arguments if ... not in arguments else arguments[:1] * len(value)
            if len(kinds) == len(value):
                return tuple(from_plain(item, part, name) for item, part in zip(kinds, value, strict=True))
    elif origin is Mapping and isinstance(value, Mapping):
        return {str(key): from_plain(arguments[1], item, f"{name} of '{key}'") for key, item in value.items()}
    elif kind is float and type(value) is int:
        return float(value)
    elif isinstance(value, str) and kind is bool and value.lower() in ("true", "false"):
        return value.lower() == "true"
    elif isinstance(value, str) and kind in (int, float, Path):
        return kind(value)
    raise ValueError(f"{name} cannot be {value!r:.40}")


def _described(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
    if typing.get_origin(kind) is Mapping:
        return "a table"
    arguments = [argument for argument in typing.get_args(kind) if argument not in (type(None), ...)]
    if typing.get_origin(kind) is tuple:
        return f"a list like a,b,c, where every part is {words.get(arguments[0], 'a value')}"
    return words.get(arguments[0] if arguments else kind, f"a {kind}")


def cache_folder() -> Path:
    """$BEARCAT_CACHE, or the user's cache folder.

    >>> cached_windows(Simulated(seconds=1.0).catalogue().only(["0"]), Preparation(), cache_folder()).values.ndim
    3
    """
    if folder := os.environ.get("BEARCAT_CACHE"):
        return Path(folder)
    from platformdirs import user_cache_path

    return user_cache_path("bearcat", appauthor=False)
