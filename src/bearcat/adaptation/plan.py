"""What a user wants adapted → the runs to train, with what was chosen and what to be warned of, as values.

The command line and `bearcat.adapt` both plan here; nothing is printed and nothing is trained.

>>> plan = make_plan(Wishes(data="my-recordings", source=("600rpm",), target="1200rpm"))
>>> plan.spec.preparation, plan.choices, plan.warnings
>>> adapt(plan, Path("out"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bearcat.adaptation.spec import Library, RunSpec, make_recipe
from bearcat.cat.recipes import DEFAULT_RECIPE, QUICK_EPOCHS, RECIPES, Recipe, find_recipe
from bearcat.data import Catalogue, Dataset, Task, dataset_label, open_dataset
from bearcat.data.catalogue import Problem, find_domain
from bearcat.data.choose import Choice, DataSettings, Requested, choose_settings, paper_settings
from bearcat.data.datasets.folder import EMPTY
from bearcat.data.tasks import Mix
from bearcat.errors import InputError
from bearcat.fast.device import chosen_device
from bearcat.methods.before_training import MatchClusters
from bearcat.methods.known_states import without_own_benches

# What `bearcat adapt` does without any option. The defects are small, so that there are mistakes to calibrate with.
DEMONSTRATION = {"severities": "0.15,0.5", "faults": "inner,outer"}
DEMONSTRATION_NOTE = "Simulated bearings: healthy, inner race, outer race; defects of 0.15 and 0.5 mm."


@dataclass(frozen=True)
class Wishes:
    """What a user asks for; what is None or empty is chosen, from the recordings where they are the user's own."""

    data: str = "simulated"  # a dataset's name, or a path
    root: Path | None = None
    source: Sequence[str] = ()
    target: str | None = None
    input: str | None = None
    recipe: str | None = None  # None: DEFAULT_RECIPE
    beside: Sequence[str] = ()  # recipes to train too
    epochs: int | None = None
    seed: int = 0
    split: str | None = None
    device: str = "auto"
    channel: str | None = None
    rate: float | None = None
    rpm: str | None = None
    bearing: str | None = None
    window: int | None = None
    stride: int | None = None
    mix: Mix = field(default_factory=Mix)
    settings: Mapping[str, str] | None = None  # of the dataset
    recipe_settings: Mapping[str, str] = field(default_factory=dict)
    specimen: str | None = None  # what of a path names the bearing, and the machine
    machine: str | None = None


@dataclass(frozen=True, eq=False)
class AdaptationPlan:
    """The run to train, those to train beside it, their data, and what to tell the user."""

    spec: RunSpec
    beside: tuple[RunSpec, ...]
    library: Library
    device: torch.device
    notes: tuple[str, ...]
    choices: tuple[Choice, ...]  # settings that were not asked for, with their reasons
    warnings: tuple[str, ...]
    candidates: tuple[RunSpec, ...] = ()  # to rate beside the run, where its recipe was not asked for

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Recordings that cannot be used, and are left out."""
        return self.library.left_out(self.spec)


def make_plan(wishes: Wishes, reading: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> AdaptationPlan:
    """The plan for these wishes; `reading` passes on the recordings that are read for it, to show progress."""
    notes, settings = tuple[str, ...](), wishes.settings
    if wishes.data == "simulated" and settings is None:
        notes, settings = (DEMONSTRATION_NOTE,), DEMONSTRATION
    _requested(wishes, find_recipe(wishes.recipe or DEFAULT_RECIPE))  # refuses impossible settings before reading
    chosen_device(wishes.device)
    given = {name: getattr(wishes, name) for name in ("channel", "rpm", "bearing", "specimen", "machine")}
    asked = dict(settings or {}) | {key: value for key, value in given.items() if value is not None}
    dataset = open_dataset(wishes.data, wishes.root, asked)
    catalogue = dataset.catalogue()
    task = choose_task(catalogue, wishes.source, wishes.target)
    found = _plan(replace(wishes, recipe=wishes.recipe or DEFAULT_RECIPE), dataset, catalogue, task, notes, reading)
    if wishes.recipe is not None or wishes.input is not None or wishes.recipe_settings:
        return found
    spec = found.library.identified(found.spec)
    variants = spec.recipe.candidates(spec.preparation.input)
    candidates = (replace(spec, recipe_name=f"{spec.recipe_name}-{name}", recipe=variants[name]) for name in variants)
    return replace(found, candidates=tuple(candidates))


def _requested(wishes: Wishes, name: str) -> tuple[Recipe, Requested]:
    """The recipe of this name with the wishes' settings, and what is asked of its data."""
    changed = RECIPES[name].with_settings(wishes.recipe_settings)
    balance = changed.balance if "balance" in wishes.recipe_settings else None
    requested = Requested(
        wishes.channel, wishes.rate, wishes.window, wishes.stride, wishes.split, wishes.input, balance, changed.input
    )
    paper_settings(requested)
    return changed, requested


def _plan(
    wishes: Wishes, dataset: Dataset, catalogue: Catalogue, task: Task, notes: tuple[str, ...],
    reading: Callable[[Iterable[Any]], Iterable[Any]],
) -> AdaptationPlan:  # fmt: skip
    """The plan for these wishes, whose recipe is known."""
    name = find_recipe(str(wishes.recipe))
    names = [other for other in dict.fromkeys(map(find_recipe, wishes.beside)) if other != name] + [name]
    changed, requested = _requested(wishes, name)
    chosen: dict[str, DataSettings] = {}  # by the input of recipes
    for kind in dict.fromkeys([changed.input, *(RECIPES[other].input for other in names[:-1])]):
        first = chosen.get(changed.input)  # whose split holds for the recipes beside it too
        scheme = requested.split or (first.split.scheme if first else None)
        wanted = replace(requested, default_input=kind, split=scheme)
        opened, catalogue, chosen[kind] = choose_settings(dataset, catalogue, task, wanted, reading)
    specs = []
    for other in names:
        own_changes = wishes.recipe_settings if other == name else {}
        own = chosen[changed.input if other == name else RECIPES[other].input]
        usual = RECIPES[other].schedule.epochs
        usual = min(usual, QUICK_EPOCHS) if wishes.data == "simulated" else usual
        length = usual if wishes.epochs is None else wishes.epochs
        recipe = make_recipe(other, own.preparation.input, length, {"balance": str(own.balance)} | dict(own_changes))
        recipe = without_own_benches(recipe, wishes.data)
        specs.append(RunSpec(
            dataset_label(wishes.data), opened, task, other, recipe, own.preparation, own.split, wishes.seed,
            wishes.mix, chosen=own.choices, warnings=own.warnings,
        ))  # fmt: skip
    warnings = list(chosen[changed.input].warnings)
    if wishes.mix.reference and changed.find(MatchClusters) is None:
        warnings.insert(0, f"{name} does not use the reference recordings; {DEFAULT_RECIPE} does")
    *beside, spec = specs
    library = Library({opened: catalogue})
    return AdaptationPlan(
        spec,
        tuple(beside),
        library,
        chosen_device(wishes.device),
        notes,
        chosen[changed.input].choices,
        tuple(warnings),
    )


def choose_task(catalogue: Catalogue, source: Sequence[str], target: str | None) -> Task:
    """The task between the named domains, or between the first two where no names are given."""
    if len(catalogue.domains) < 2 and not (source and target):
        raise InputError(f"adapting needs two domains, and there is {', '.join(catalogue.domains) or 'none'}")
    sources = tuple(dict.fromkeys(_domain(name, catalogue) for name in source)) or catalogue.domains[:1]
    if target is not None:
        return Task(sources, _domain(target, catalogue))
    left = [domain for domain in catalogue.domains if domain not in sources]
    if not left:
        raise InputError("every domain is a source; leave one of them for the target")
    return Task(sources, left[0])


def _domain(name: str, catalogue: Catalogue) -> str:
    """The domain of this name or index."""
    if f"{name}: {EMPTY}" in catalogue.notes:
        raise InputError(f"the domain '{name}' has no recordings; put some into its folder or choose another")
    return find_domain(name, catalogue.domains)
