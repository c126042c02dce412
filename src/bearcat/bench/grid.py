"""A grid, read from a TOML file, as a list of runs. docs/benchmark.md says how to write one.

>>> grid = read_grid(Path("grids/smoke.toml"))
>>> [spec.cell for spec in plan(grid)]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from bearcat.adaptation import Library, RunSpec, make_recipe
from bearcat.cat.recipes import RECIPES, Recipe, find_recipe
from bearcat.data.catalogue import Dataset, find_domain
from bearcat.data.datasets import dataset_label, open_dataset, takes_root
from bearcat.data.inputs import Preparation
from bearcat.data.tasks import Mix, Split, Task
from bearcat.errors import InputError, suggest
from bearcat.methods.before_training import without_own_benches
from bearcat.settings import override
from bearcat.storage import read_regular


@dataclass(frozen=True)
class Method:
    """A recipe with settings, and the grid's name for it."""

    name: str
    recipe_name: str
    settings: tuple[tuple[str, str], ...] = ()

    def recipe(self, kind: str, epochs: int | None, published: bool = False) -> Recipe:
        """For this input and number of epochs (`make_recipe`)."""
        settings = ({"published": "true"} if published else {}) | dict(self.settings)
        try:
            return make_recipe(self.recipe_name, kind, epochs, settings)
        except InputError as error:
            raise InputError(f"method '{self.name}': {error}") from error


@dataclass(frozen=True)
class Grid:
    """What a file asks for. Domains are as written: nothing has been looked up on disk."""

    title: str
    data: str
    settings: tuple[tuple[str, str], ...]  # of the dataset
    methods: tuple[Method, ...]
    tasks: tuple[Task, ...] | None = None  # None: every ordered pair of domains
    domains: tuple[str, ...] | None = None  # None: all that the dataset has
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    preparation: Preparation = field(default_factory=Preparation)
    split: Split = field(default_factory=Split)
    mixes: tuple[Mix, ...] = (Mix(),)  # of the target's classes; `[target]`, or `[[target]]` for several
    inputs: tuple[str, ...] | None = None  # None: each method's own
    epochs: int | None = None
    published: bool = False  # what the published code does, in every method (docs/method.md), and in float32
    label: str = ""  # of the dataset in tables; empty: its name
    parts: tuple[Grid, ...] = ()  # a grid over several datasets: these are planned instead of the grid itself


def read_grid(path: Path) -> Grid:
    """The grid in this file; anything unknown or of a wrong type is named in one sentence."""
    try:
        table = tomllib.loads(read_regular(path).decode())
    except FileNotFoundError as error:
        near = suggest(path.stem, sorted(other.stem for other in path.parent.glob("*.toml")))
        raise InputError(f"{path}: there is no such file{near}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from error
    with naming(path):
        return _grid(table, path.stem)


def plan(grid: Grid, root: Path | None = None, library: Library | None = None) -> list[RunSpec]:
    """Every run of the grid, method by method. The dataset is opened only where the grid leaves domains open."""
    if grid.parts:
        names = {part.data for part in grid.parts if takes_root(part.data)}
        if root is not None and len(names) != 1:
            instead = "set BEARCAT_DATA to the folder they lie in" if names else "leave --root out"
            raise InputError(f"{len(names)} datasets of the grid lie in a folder, and --root is for one; {instead}")
        return [spec for part in grid.parts for spec in plan(part, root if part.data in names else None, library)]
    dataset, label = open_dataset(grid.data, root, dict(grid.settings)), grid.label or dataset_label(grid.data)
    tasks = _tasks(grid, dataset, library or Library())
    for mix in grid.mixes:
        if mix != Mix():
            mix.spelled((library or Library()).catalogue(dataset).classes)  # refuses an unknown class
    specs = [
        RunSpec(
            label, dataset, task, method.recipe_name, recipe, replace(grid.preparation, input=kind), grid.split, seed,
            mix, method=method.name,
        )
        for method in grid.methods
        for kind in (grid.inputs or (RECIPES[method.recipe_name].input,))
        for recipe in [without_own_benches(method.recipe(kind, grid.epochs, grid.published), grid.data)]
        for task in tasks
        for mix in grid.mixes
        for seed in grid.seeds
    ]  # fmt: skip
    if not specs:
        raise InputError(f"the grid '{grid.title}' has no cells; it needs methods, tasks between two domains and seeds")
    return specs


def only_methods(grid: Grid, names: Sequence[str]) -> Grid:
    """The grid with these of its methods."""
    known = list(dict.fromkeys(method.name for part in grid.parts or (grid,) for method in part.methods))
    for name in names:
        if name not in known:
            raise InputError(f"the grid has no method '{name}'{suggest(name, known)}")

    def restricted(part: Grid) -> Grid:
        return replace(part, methods=tuple(method for method in part.methods if method.name in names))

    return replace(restricted(grid), parts=tuple(part for part in map(restricted, grid.parts) if part.methods))


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Puts the place in front of an error's sentence."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _tasks(grid: Grid, dataset: Dataset, library: Library) -> list[Task]:
    """The tasks by the domains' names. An index, or a grid without domains, needs the dataset's catalogue."""
    known = [*(name for task in grid.tasks or () for name in (*task.sources, task.target)), *(grid.domains or ())]
    if any(name.isdecimal() for name in known) or (grid.tasks is None and grid.domains is None):
        known = list(library.catalogue(dataset).domains)
    if grid.tasks is None:
        domains = known if grid.domains is None else [find_domain(name, known) for name in grid.domains]
        return [Task((source,), target) for source, target in permutations(domains, 2)]
    return [
        Task(tuple(find_domain(name, known) for name in task.sources), find_domain(task.target, known))
        for task in grid.tasks
    ]


def _grid(table: dict[str, Any], name: str) -> Grid:
    """Tables and lists are read by what they hold; what is left, as `override` reads settings. The table is used up."""
    if "part" in table:
        return _parted(table, name)
    if "data" not in table:
        raise InputError("'data' is missing; name a dataset, such as data = \"simulated\"")
    data, settings, label = _data(table.pop("data"))
    parts: dict[str, Any] = {"methods": _methods(table.pop("methods", []), table.pop("method", []))}
    if isinstance(table.get("split"), str):
        table["split"] = {"scheme": table["split"]}
    for key, usual in {"preparation": Preparation(), "split": Split()}.items():
        if key in table:
            parts[key] = _overridden(usual, key, table.pop(key))
    if "target" in table:
        parts["mixes"] = _mixes(table.pop("target"))
    if "tasks" in table:
        parts["tasks"] = _tasks_listed(table.pop("tasks"))
    for key in ("domains", "inputs"):
        if key in table:
            parts[key] = _names(key, table.pop(key))
    if "seeds" in table:
        parts["seeds"] = _seeds(table.pop("seeds"))
    return override(Grid(name, data, settings, label=label, **parts), dict(_texts("", table)))


def _parted(table: dict[str, Any], name: str) -> Grid:
    """A grid over several datasets: what stands above the `[[part]]` tables holds for each unless it says otherwise."""
    parts = table.pop("part")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts) or not parts:
        raise InputError("'part' must be a list of tables; open each with [[part]]")
    found = []
    for number, part in enumerate(parts, start=1):
        with naming(f"part {number}"):
            found.append(_grid(table | part, name))
    return replace(found[0], parts=tuple(found))


def _data(data: Any) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """`data = "cwru"`, or a table with `name`, `settings` and the `label` that tables have for it."""
    table = {"name": data} if isinstance(data, str) else data
    _check("data", table, ("name", "settings", "label"))
    if not isinstance(table.get("name"), str):
        raise InputError(f"'data.name' must be the name of a dataset, not {table.get('name')!r}")
    settings = _texts("data.settings", table.get("settings", {}))
    (label,) = _names("data.label", [table["label"]]) if "label" in table else ("",)
    return table["name"], settings, label


def _methods(names: Any, tables: Any) -> tuple[Method, ...]:
    """`methods = ["DANN", …]`, and `[[method]]` tables for those with a name or settings of their own."""
    methods = [Method(name, name) for name in map(find_recipe, _names("methods", names))]
    if not isinstance(tables, list):
        raise InputError("'method' must be a list of tables; open each with [[method]]")
    for number, table in enumerate(tables, start=1):
        with naming(f"method {number}"):
            if isinstance(table, dict) and "recipe" in table:
                raise InputError("'recipe' is called 'method' now; write method = …")
            _check("method", table, ("name", "method", "set"))
            if "method" not in table:
                raise InputError("'method' is missing; bearcat methods lists them")
            recipe = find_recipe(*_names("method", [table["method"]]))
            (name,) = _names("name", [table.get("name", recipe)])
            settings = _texts("set", table.get("set", {}))
            if "input" in dict(settings):
                raise InputError("'set.input' is no setting of a method; list the inputs with 'inputs'")
            methods.append(Method(name, recipe, settings))
    _names("methods", [method.name for method in methods])
    return tuple(methods)


def _tasks_listed(tasks: Any) -> tuple[Task, ...] | None:
    """ "all", or a list of "A:B", ["A", "B"] or [["A", "C"], "B"]."""
    if tasks == "all":
        return None
    if not isinstance(tasks, list):
        raise InputError(f"'tasks' must be \"all\" or a list of source and target, not {tasks!r}")
    found = []
    for number, task in enumerate(tasks, start=1):
        parts = task.split(":") if isinstance(task, str) else task
        if not isinstance(parts, list) or len(parts) != 2:
            raise InputError(f'task {number} must be "A:B" or ["A", "B"], not {task!r}')
        sources = parts[0] if isinstance(parts[0], list) else parts[:1]
        found.append(Task(_names(f"task {number}", sources), *_names(f"task {number}", parts[1:])))
    _names("tasks", [str(task) for task in found])
    return tuple(found)


def _mixes(tables: Any) -> tuple[Mix, ...]:
    """`[target]` with the fields of `Mix`, or several `[[target]]`."""
    mixes = []
    for number, table in enumerate(tables if isinstance(tables, list) else [tables], start=1):
        with naming(f"target {number}"):
            _check("target", table)
            mixes.append(override(Mix(), table))
    return tuple(mixes)


def _seeds(seeds: Any) -> tuple[int, ...]:
    """A number of seeds, counted from 0, or a list of them."""
    numbers = list(range(seeds)) if type(seeds) is int and 0 <= seeds <= 10_000 else seeds
    if not isinstance(numbers, list) or not all(type(seed) is int and seed >= 0 for seed in numbers):
        raise InputError(f"'seeds' must be a number to 10000, or a list of whole numbers from 0 on, not {seeds!r}")
    return tuple(map(int, _names("seeds", [str(seed) for seed in numbers])))


def _overridden(settings: Any, place: str, table: Any) -> Any:
    """A dataclass with the fields changed that its table names."""
    texts = dict(_texts(place, table))
    if "input" in texts:
        raise InputError(f"'{place}.input' is no setting of a grid; list the inputs with 'inputs'")
    with naming(place):
        return override(settings, texts)


def _texts(place: str, table: Any) -> tuple[tuple[str, str], ...]:
    """Settings as the command line writes them; {"labels.tau" = 0.95} and {labels = {tau = 0.95}} alike."""
    _check(place, table)
    found = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", text) for inner, text in _texts(f"{place}.{name}", value)]
            continue
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str | int | float) for each in values):
            raise InputError(f"'{place}.{name}' must be a number, a text, true or false, or a list of those")
        found.append((name, ",".join(str(each) for each in values)))
    return tuple(found)


def _check(place: str, table: Any, known: Sequence[str] | None = None) -> None:
    """Refuses what is no table, or has other keys than those known."""
    if not isinstance(table, dict):
        raise InputError(f"'{place}' must be a table, not {table!r}")
    for key in table:
        if known is not None and key not in known:
            raise InputError(f"unknown key '{place}.{key}'{suggest(key, known)}")


def _names(place: str, values: Any) -> tuple[str, ...]:
    """A list of names, each of them a text that is given once."""
    if not isinstance(values, list):
        raise InputError(f"'{place}' must be a list, not {values!r}")
    for value in values:
        if not isinstance(value, str) or not value:
            raise InputError(f"'{place}' must be a text, not {value!r}")
        if values.count(value) > 1:
            raise InputError(f"'{place}' has '{value}' twice; give each a name of its own or leave one out")
    return tuple(values)
