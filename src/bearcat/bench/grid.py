"""A grid, read from a TOML file, as a list of runs. docs/benchmark.md says how to write one.

>>> grids = read_grid(Path("grids/smoke.toml"))
>>> [spec.cell for spec in plan(grids)]
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from bearcat.adaptation import Library, RunSpec, make_recipe
from bearcat.cat.recipes import RECIPES, Recipe, find_recipe
from bearcat.data.datasets import Dataset, dataset_label, find_domain, open_dataset, takes_root
from bearcat.data.inputs import Preparation
from bearcat.data.tasks import Mix, Task
from bearcat.data.windows import SCHEMES
from bearcat.errors import InputError, naming_place
from bearcat.methods.transforms import without_own_benches
from bearcat.settings import find_name, from_plain
from bearcat.storage import read_regular

MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Method:
    """A method by its name, or a `[[method]]` table: with settings, and the grid's name for it."""

    method: str
    name: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "input" in self.set:
            raise InputError("'set.input' is no setting of a method; list the inputs with 'inputs'")
        object.__setattr__(self, "method", find_recipe(self.method))
        object.__setattr__(self, "name", self.name or self.method)

    def recipe(self, kind: str, epochs: int | None, published: bool = False) -> Recipe:
        """For this input and number of epochs (`make_recipe`)."""
        settings = ({"published": "true"} if published else {}) | _texts(self.set)
        with naming_place(f"method '{self.name}'"):
            return make_recipe(self.method, kind, epochs, settings)


@dataclass(frozen=True)
class GridData:
    """The dataset of a grid, by its name or as a table."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""  # in tables; empty: its name


@dataclass(frozen=True)
class Grid:
    """The keys of a file, or of one of its parts. Nothing has been looked up on disk."""

    data: GridData
    title: str = ""
    methods: tuple[Method, ...] = ()
    method: tuple[Method, ...] = ()  # more of them: `[[method]]` tables
    tasks: tuple[str, ...] = ("all",)  # "A:B", or "A+B:C"; all: every ordered pair of domains
    domains: tuple[str, ...] | None = None  # None: all that the dataset has
    seeds: tuple[int, ...] | int = 5  # or how many, from 0 on
    preparation: Preparation = field(default_factory=Preparation)
    split: str = "window"
    target: tuple[Mix, ...] = (Mix(),)  # its classes; `[[target]]` tables
    inputs: tuple[str, ...] | None = None  # None: each method's own
    epochs: int | None = None
    published: bool = False  # what the published code does, in every method (docs/method.md), and in float32

    @property
    def all_seeds(self) -> Sequence[int]:
        return range(self.seeds) if isinstance(self.seeds, int) else self.seeds

    def __post_init__(self) -> None:
        find_name(self.split, SCHEMES, "split")
        if len(self.all_seeds) > MOST_SEEDS or min(self.all_seeds, default=-1) < 0:
            allowed = f"a number from 1 to {MOST_SEEDS}, or a list of numbers from 0 on"
            raise InputError(f"'seeds' must be {allowed}, not {self.seeds}")


def read_grid(path: Path) -> tuple[Grid, ...]:
    """The parts of the grid in this file, or the one that it is; anything unknown or wrong is named in one sentence."""
    try:
        table = tomllib.loads(read_regular(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from error
    # What stands above the `[[part]]` tables holds for each of them unless it says otherwise.
    common = {"title": path.stem} | table
    parts = common.pop("part", [{}])
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path}: 'part' must be a list of tables; open each with [[part]]")
    grids = list[Grid]()
    for number, part in enumerate(parts, start=1):
        place, keys = f"{path}: part {number}" if "part" in table else str(path), common | part
        if isinstance(keys.get("preparation"), dict) and "input" in keys["preparation"]:
            raise InputError(f"{place}: preparation: 'input' has no place here; list the inputs with 'inputs'")
        grids.append(from_plain(Grid, keys, place, given=True))
    return tuple(grids)


def plan(grids: Sequence[Grid], root: Path | None = None, library: Library | None = None) -> list[RunSpec]:
    """Every run of the grids, method by method. A dataset is opened only where domains are left open."""
    library, names = library or Library(), {grid.data.name for grid in grids if takes_root(grid.data.name)}
    if root is not None and len(names) != 1:
        raise InputError(f"--root is for one dataset, and {len(names)} of the grid lie in folders; use BEARCAT_DATA")
    specs = [spec for grid in grids for spec in _specs(grid, root if grid.data.name in names else None, library)]
    cell, times = Counter(spec.cell for spec in specs).most_common(1)[0]
    if times > 1:
        raise InputError(f"the grid has '{cell}' twice; list methods, tasks and seeds once")
    return specs


def _specs(grid: Grid, root: Path | None, library: Library) -> list[RunSpec]:
    data = grid.data
    dataset, label = open_dataset(data.name, root, data.settings), data.label or dataset_label(data.name)
    tasks = _tasks(grid, dataset, library)
    for mix in grid.target:
        if mix != Mix():
            mix.spelled(library.catalogue(dataset).classes)  # refuses an unknown class
    specs = [
        RunSpec(
            label, dataset, task, method.method, recipe, replace(grid.preparation, input=kind), grid.split, seed,
            mix, method=method.name,
        )
        for method in (*grid.methods, *grid.method)
        for kind in (grid.inputs or (RECIPES[method.method].input,))
        for recipe in [without_own_benches(method.recipe(kind, grid.epochs, grid.published), data.name)]
        for task in tasks
        for mix in grid.target
        for seed in grid.all_seeds
    ]  # fmt: skip
    if not specs:
        raise InputError(f"the grid '{grid.title}' has no cells; it needs methods, tasks between two domains and seeds")
    return specs


def _tasks(grid: Grid, dataset: Dataset, library: Library) -> list[Task]:
    """The tasks by the domains' names. An index, or a grid without domains, needs the dataset's catalogue."""
    known = grid.domains or ()
    named = (*known, *":".join(grid.tasks).replace("+", ":").split(":"))
    if not known or any(name.isdecimal() for name in named):
        known = library.catalogue(dataset).domains
    if grid.tasks == ("all",):
        domains = [find_domain(name, known) for name in grid.domains or known]
        return [Task((source,), target) for source, target in permutations(domains, 2)]
    tasks = []
    for number, text in enumerate(grid.tasks, start=1):
        source, _, target = text.partition(":")
        if not source or not target:
            raise InputError(f'task {number} must be "A:B", or "A+B:C" for two sources, not {text!r}')
        sources = tuple(find_domain(name, known) for name in source.split("+"))
        tasks.append(Task(sources, find_domain(target, known)))
    return tasks


def _texts(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as the command line writes them; {"labels.tau" = 0.95} and {labels = {tau = 0.95}} alike."""
    texts = dict[str, str]()
    for name, value in table.items():
        if isinstance(value, Mapping):
            texts |= _texts(value, f"{prefix}{name}.")
        else:
            texts[prefix + name] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return texts
