"""A grid, read from a TOML file, as a list of runs. docs/benchmark.md says how to write one.

>>> grid = read_grid(Path("grids/smoke.toml"))
>>> [spec.cell for spec in plan(grid)]
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

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

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Method:
    """A `[[method]]` table: a method with settings, and the grid's name for it."""

    method: str = ""
    name: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self, kind: str, epochs: int | None, published: bool = False) -> Recipe:
        """For this input and number of epochs (`make_recipe`)."""
        settings = ({"published": "true"} if published else {}) | _texts(self.set)
        try:
            return make_recipe(self.method, kind, epochs, settings)
        except InputError as error:
            raise InputError(f"method '{self.name}': {error}") from error


@dataclass(frozen=True)
class GridData:
    """The dataset of a grid, by its name or as a table."""

    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""  # in tables; empty: its name


@dataclass(frozen=True)
class Grid:
    """What a file asks for. Domains are as written: nothing has been looked up on disk."""

    title: str
    data: GridData
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
        names = {part.data.name for part in grid.parts if takes_root(part.data.name)}
        if root is not None and len(names) != 1:
            instead = "set BEARCAT_DATA to the folder they lie in" if names else "leave --root out"
            raise InputError(f"{len(names)} datasets of the grid lie in a folder, and --root is for one; {instead}")
        return [spec for part in grid.parts for spec in plan(part, root if part.data.name in names else None, library)]
    data, library = grid.data, library or Library()
    dataset, label = open_dataset(data.name, root, data.settings), data.label or dataset_label(data.name)
    tasks = _tasks(grid, dataset, library)
    for mix in grid.mixes:
        if mix != Mix():
            mix.spelled(library.catalogue(dataset).classes)  # refuses an unknown class
    specs = [
        RunSpec(
            label, dataset, task, method.method, recipe, replace(grid.preparation, input=kind), grid.split, seed,
            mix, method=method.name,
        )
        for method in grid.methods
        for kind in (grid.inputs or (RECIPES[method.method].input,))
        for recipe in [without_own_benches(method.recipe(kind, grid.epochs, grid.published), data.name)]
        for task in tasks
        for mix in grid.mixes
        for seed in grid.seeds
    ]  # fmt: skip
    if not specs:
        raise InputError(f"the grid '{grid.title}' has no cells; it needs methods, tasks between two domains and seeds")
    cell, times = Counter(spec.cell for spec in specs).most_common(1)[0]
    if times > 1:
        raise InputError(f"the grid has '{cell}' twice; list methods, tasks and seeds once")
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
    """What stands above the `[[part]]` tables holds for each of them unless it says otherwise."""
    table = {"title": name, "split": {}, "preparation": {}, "target": {}, "tasks": "all", "seeds": 5} | table
    if "part" in table:
        parts = []
        for number, part in enumerate(_tables("part", table.pop("part")), start=1):
            with naming(f"part {number}"):
                parts.append(_grid(table | part, name))
        return replace(parts[0], parts=tuple(parts))
    data, split, targets = table.pop("data", ""), table.pop("split"), table.pop("target")
    grid = Grid(
        name,
        _read(GridData(), "data", {"name": data} if isinstance(data, str) else data),
        _methods(table.pop("methods", []), table.pop("method", None)),
        _listed_tasks(table.pop("tasks")),
        seeds=_seeds(table.pop("seeds")),
        preparation=_read(Preparation(), "preparation", table.pop("preparation")),
        split=_read(Split(), "split", {"scheme": split} if isinstance(split, str) else split),
        mixes=tuple(_read(Mix(), "target", mix) for mix in (targets if isinstance(targets, list) else [targets])),
    )
    if not grid.data.name:
        raise InputError("'data' is missing; name a dataset, such as data = \"simulated\"")
    return override(grid, table)


def _methods(names: Any, tables: Any) -> tuple[Method, ...]:
    """`methods = ["DANN", …]`, and `[[method]]` tables for those with a name or settings of their own."""
    if not isinstance(names, list):
        raise InputError(f"'methods' must be a list, not {names!r}")
    methods = [Method(name, name) for name in map(find_recipe, map(str, names))]
    for number, table in enumerate([] if tables is None else _tables("method", tables), start=1):
        method = _read(Method(), f"method {number}", table)
        if not method.method:
            raise InputError(f"method {number}: 'method' is missing; bearcat methods lists them")
        if "input" in method.set:
            raise InputError("'set.input' is no setting of a method; list the inputs with 'inputs'")
        recipe = find_recipe(method.method)
        methods.append(replace(method, method=recipe, name=method.name or recipe))
    return tuple(methods)


def _listed_tasks(tasks: Any) -> tuple[Task, ...] | None:
    """ "all", or a list of "A:B", ["A", "B"] or [["A", "C"], "B"]."""
    if tasks == "all":
        return None
    if not isinstance(tasks, list):
        raise InputError(f"'tasks' must be \"all\" or a list of source and target, not {tasks!r}")
    listed = []
    for number, task in enumerate(tasks, start=1):
        ends = task.split(":") if isinstance(task, str) else task
        pair = ends if isinstance(ends, list) and len(ends) == 2 else ["", ""]
        names = [*(pair[0] if isinstance(pair[0], list) else pair[:1]), pair[1]]
        if not all(isinstance(name, str) and name for name in names):
            raise InputError(f'task {number} must be "A:B" or ["A", "B"], not {task!r}')
        listed.append(Task(tuple(names[:-1]), names[-1]))
    return tuple(listed)


def _seeds(seeds: Any) -> tuple[int, ...]:
    """A number of seeds, counted from 0, or a list of them."""
    numbers = range(seeds) if type(seeds) is int and 0 <= seeds <= 10_000 else seeds
    if not isinstance(numbers, list | range) or not all(type(seed) is int and seed >= 0 for seed in numbers):
        raise InputError(f"'seeds' must be a number to 10000, or a list of whole numbers from 0 on, not {seeds!r}")
    return tuple(numbers)


def _texts(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as the command line writes them; {"labels.tau" = 0.95} and {labels = {tau = 0.95}} alike."""
    texts = dict[str, str]()
    for name, value in table.items():
        if isinstance(value, Mapping):
            texts |= _texts(value, f"{prefix}{name}.")
        else:
            texts[prefix + name] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return texts


def _read(settings: Settings, place: str, table: Any) -> Settings:
    """These settings with the values of a table; an error names the table."""
    with naming(place):
        if not isinstance(table, dict):
            raise InputError(f"must be a table, not {table!r}")
        if "input" in table:
            raise InputError("'input' has no place here; list the inputs with 'inputs'")
        return override(settings, table)


def _tables(name: str, tables: Any) -> list[dict[str, Any]]:
    """A list of tables, refused where it is something else."""
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"'{name}' must be a list of tables; open each with [[{name}]]")
    return tables
