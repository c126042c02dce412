"""A grid, read from a TOML file, as a list of runs. docs/benchmark.md tells how to write one.

>>> grid = read_grid(Path("grids/smoke.toml"))
>>> [planned.cell for planned in plan(grid)]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from bearcat.data import Dataset, Preparation, Split, Task, dataset_label, open_dataset
from bearcat.data.catalogue import find_domain
from bearcat.errors import InputError, suggest
from bearcat.methods.recipe import RECIPES, Recipe, find_recipe
from bearcat.report.results import Cell
from bearcat.runs.run import Order
from bearcat.training.loop import checked_precision

KEYS = (
    "title", "data", "domains", "tasks", "inputs", "seeds", "epochs", "preparation", "split", "methods", "method",
    "precision",
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """What the grid calls a method, and what it is."""

    name: str
    recipe_name: str
    settings: tuple[tuple[str, str], ...] = ()

    def recipe(self, kind: str, epochs: int | None) -> Recipe:
        """For this input and so many epochs; settings are those of the paper's 300 and scaled with it."""
        recipe = RECIPES[self.recipe_name].for_input(kind).with_settings(dict(self.settings))
        return recipe if epochs is None else recipe.in_epochs(epochs)


@dataclass(frozen=True)
class Grid:
    """What a file asks for. Domains are as written: nothing has been looked up on disk."""

    title: str
    data: str
    settings: tuple[tuple[str, str], ...]  # of the dataset
    domains: tuple[str, ...] | None  # None: all that the dataset has
    tasks: tuple[tuple[tuple[str, ...], str], ...] | None  # None: every ordered pair of domains
    inputs: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int | None
    preparation: Preparation
    split: Split
    methods: tuple[Method, ...]
    precision: str | None = None


@dataclass(frozen=True)
class Planned:
    """A cell of the grid and the run that fills it. Cells that ask for the same thing share a run."""

    cell: Cell
    order: Order


def read_grid(path: Path) -> Grid:
    """The grid in this file; anything unknown or of a wrong kind is named in one sentence."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        near = suggest(path.stem, sorted(one.stem for one in path.parent.glob("*.toml")))
        raise InputError(f"{path}: there is no such file{near}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from error
    try:
        return _grid(told, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def plan(grid: Grid, root: Path | None = None) -> list[Planned]:
    """Every cell of the grid, method by method. The dataset is looked at only where the grid leaves domains open."""
    dataset, label = open_dataset(grid.data, root, dict(grid.settings)), dataset_label(grid.data)
    tasks = [Task(source[0] if len(source) == 1 else source, target) for source, target in _tasks(grid, dataset)]
    sizes = {"methods": len(grid.methods), "tasks": len(tasks), "inputs": len(grid.inputs), "seeds": len(grid.seeds)}
    if 0 in sizes.values():
        told = " × ".join(f"{count} {name}" for name, count in sizes.items())
        empty = next(name for name, count in sizes.items() if count == 0)
        more = "domains, a task needs two" if empty == "tasks" and grid.tasks is None else empty
        raise InputError(f"the grid '{grid.title}' has no cells ({told}); add {more}")
    return [
        Planned(
            Cell(label, kind, str(task), method.name, seed),
            Order(
                label, dataset, task.sources, task.target, method.recipe_name, method.recipe(kind, grid.epochs),
                replace(grid.preparation, input=kind), grid.split, seed, grid.precision,
            ),
        )
        for method in grid.methods
        for kind in grid.inputs
        for task in tasks
        for seed in grid.seeds
    ]  # fmt: skip


def only_methods(grid: Grid, names: Sequence[str]) -> Grid:
    """The grid with these of its methods."""
    known = [method.name for method in grid.methods]
    for name in names:
        if name not in known:
            raise InputError(f"the grid has no method '{name}'{suggest(name, known)}")
    return replace(grid, methods=tuple(method for method in grid.methods if method.name in names))


def _tasks(grid: Grid, dataset: Dataset) -> list[tuple[tuple[str, ...], str]]:
    """The tasks by the domains' names; an index or a grid without domains needs a look at what is there."""
    named = grid.domains or ()
    if grid.tasks is not None:
        named = tuple(one for source, target in grid.tasks for one in (*source, target))
    known: Sequence[str] = named
    if any(one.isdecimal() for one in named) or (grid.tasks is None and grid.domains is None):
        known = dataset.catalogue().domains
    if grid.tasks is not None:
        return [
            (tuple(find_domain(one, known) for one in source), find_domain(target, known))
            for source, target in grid.tasks
        ]
    domains = known if grid.domains is None else [find_domain(one, known) for one in grid.domains]
    return [((source,), target) for source, target in permutations(domains, 2)]


def _grid(told: Mapping[str, Any], name: str) -> Grid:
    _known("", told, KEYS)
    data, settings = _data(told)
    inputs = _texts("inputs", told.get("inputs", ["time"]))
    preparation = _section("preparation", told, Preparation(), leave_out=("input",))
    for kind in inputs:
        replace(preparation, input=kind)  # which says so where there is no such input
    methods = _methods(told)
    _once("methods", [method.name for method in methods])
    _once("inputs", inputs)
    epochs = told.get("epochs")
    if epochs is not None and (_kind(epochs) is not int or epochs < 1):
        raise InputError(f"'epochs' must be a whole number from 1 on, not {epochs!r}")
    for method in methods:
        for kind in inputs:
            try:
                method.recipe(kind, epochs)
            except InputError as error:
                raise InputError(f"method '{method.name}': {error}") from error
    domains = None if "domains" not in told else tuple(_texts("domains", told["domains"]))
    _once("domains", domains or ())
    return Grid(
        title=_text("title", told.get("title", name)),
        data=data,
        settings=settings,
        domains=domains,
        tasks=_listed_tasks(told.get("tasks", "all")),
        inputs=tuple(inputs),
        seeds=_seeds(told.get("seeds", 5)),
        epochs=epochs,
        preparation=preparation,
        split=_section("split", told, Split()),
        methods=methods,
        precision=checked_precision(_text("precision", told["precision"]) if "precision" in told else None),
    )


def _data(told: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """`data = "cwru"`, or a table with `name` and `settings`."""
    data = told.get("data")
    if data is None:
        raise InputError("'data' is missing; name a dataset, such as data = \"simulated\"")
    if isinstance(data, str):
        return data, ()
    table = _table("data", data)
    _known("data.", table, ("name", "settings"))
    settings = _table("data.settings", table.get("settings", {}))
    if "root" in settings:
        raise InputError("'data.settings.root' belongs on the command line; give the folder with --root")
    texts = tuple((name, _as_text(f"data.settings.{name}", value)) for name, value in settings.items())
    return _text("data.name", table.get("name")), texts


def _methods(told: Mapping[str, Any]) -> tuple[Method, ...]:
    """`methods = ["DANN", …]`, and `[[method]]` tables for those with a name or settings of their own."""
    methods = [Method(name, name) for name in map(find_recipe, _texts("methods", told.get("methods", [])))]
    tables = told.get("method", [])
    if not isinstance(tables, list):
        raise InputError("'method' must be a list of tables; open each with [[method]]")
    for number, one in enumerate(tables, start=1):
        place = f"method {number}"
        table = _table(place, one)
        _known(f"{place}: ", table, ("name", "recipe", "set"))
        if "recipe" not in table:
            raise InputError(f"{place}: 'recipe' is missing; bearcat recipes lists them")
        recipe = find_recipe(_text(f"{place}: recipe", table["recipe"]))
        settings = tuple(_flat(f"{place}: set", _table(f"{place}: set", table.get("set", {}))))
        methods.append(Method(_text(f"{place}: name", table.get("name", recipe)), recipe, settings))
    return tuple(methods)


def _flat(place: str, table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """{"labels.tau" = 0.95} and {labels = {tau = 0.95}} alike."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(place, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _as_text(f"{place}.{prefix}{name}", value)


def _listed_tasks(tasks: Any) -> tuple[tuple[tuple[str, ...], str], ...] | None:
    if tasks == "all":
        return None
    if not isinstance(tasks, list):
        raise InputError(f"'tasks' must be \"all\" or a list of source and target, not {tasks!r}")
    found = []
    for number, one in enumerate(tasks, start=1):
        parts = one.split(":") if isinstance(one, str) else one
        if not isinstance(parts, list) or len(parts) != 2 or not all(parts):
            raise InputError(f'task {number} must be "A:B" or ["A", "B"], not {one!r}')
        sources = [parts[0]] if isinstance(parts[0], str) else parts[0]
        found.append((tuple(_texts(f"task {number}", sources)), _text(f"task {number}", parts[1])))
        _once(f"task {number}", found[-1][0])
        Task(*found[-1])  # which says so where source and target are the same
    _once("tasks", [f"{'+'.join(source)}:{target}" for source, target in found])
    return tuple(found)


def _seeds(seeds: Any) -> tuple[int, ...]:
    """A number of seeds, counted from 0, or a list of them."""
    if _kind(seeds) is int and seeds >= 0:
        return tuple(range(seeds))
    if isinstance(seeds, list) and all(_kind(one) is int and one >= 0 for one in seeds):
        _once("seeds", [str(one) for one in seeds])
        return tuple(seeds)
    raise InputError(f"'seeds' must be a number of seeds or a list of whole numbers from 0 on, not {seeds!r}")


def _section(name: str, told: Mapping[str, Any], settings: Any, leave_out: Sequence[str] = ()) -> Any:
    """A table that overrides fields of a dataclass, whose types it must match."""
    table = _table(name, told.get(name, {}))
    kinds = {one.name: str(one.type) for one in fields(settings) if one.name not in leave_out}
    _known(f"{name}.", table, tuple(kinds))
    words = {"int": (int,), "float": (int, float), "str": (str,)}
    for key, value in table.items():
        wanted = kinds[key].removesuffix(" | None")
        if _kind(value) not in words[wanted]:
            what = {"int": "a whole number", "float": "a number", "str": "a text"}[wanted]
            raise InputError(f"'{name}.{key}' must be {what}, not {value!r}")
    return replace(settings, **table)


def _kind(value: Any) -> type:
    """The type itself: for TOML true is no number, though for Python it is."""
    return type(value)


def _known(place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"unknown key '{place}{key}'{suggest(key, known)}")


def _once(name: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"'{name}' has '{value}' twice; give each a name of its own or leave one out")


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"'{name}' must be a table, not {value!r}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"'{name}' must be a text, not {value!r}")
    return value


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InputError(f"'{name}' must be a list of texts, not {value!r}")
    return [_text(name, one) for one in value]


def _as_text(name: str, value: Any) -> str:
    """A setting as the command line would have it, to be read as its field's type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_as_text(name, one) for one in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise InputError(f"'{name}' must be a number, a text, true, false or a list of those, not {value!r}")
