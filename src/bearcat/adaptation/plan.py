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
from bearcat.data import Catalogue, Task, dataset_label, open_dataset
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
    method: str | None = None  # None: DEFAULT_RECIPE
    beside: Sequence[str] = ()  # methods to train too
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
    method_settings: Mapping[str, str] = field(default_factory=dict)
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
    name = find_recipe(wishes.method or DEFAULT_RECIPE)
    own = RECIPES[name].with_settings(wishes.method_settings)
    recipes = {name: own} | {other: RECIPES[other] for other in map(find_recipe, wishes.beside) if other != name}
    balance = own.balance if "balance" in wishes.method_settings else None
    requested = Requested(
        wishes.channel, wishes.rate, wishes.window, wishes.stride, wishes.split, wishes.input or own.input, balance
    )
    paper_settings(requested)  # refuses impossible settings before anything is read
    device = chosen_device(wishes.device)
    given = {setting: getattr(wishes, setting) for setting in ("channel", "rpm", "bearing", "specimen", "machine")}
    asked = dict(settings or {}) | {key: value for key, value in given.items() if value is not None}
    dataset = open_dataset(wishes.data, wishes.root, asked)
    catalogue = dataset.catalogue()
    task = choose_task(catalogue, wishes.source, wishes.target)
    chosen: dict[str, DataSettings] = {}  # by the input of recipes
    for kind in dict.fromkeys(recipe.input for recipe in recipes.values()):
        wanted = replace(requested, input=wishes.input or kind)
        opened, catalogue, chosen[kind] = choose_settings(dataset, catalogue, task, wanted, reading)
        requested = replace(requested, split=chosen[own.input].split.scheme)  # holds for the recipes beside it too

    def planned(method: str) -> RunSpec:
        found, epochs = chosen[recipes[method].input], wishes.epochs
        if epochs is None:
            epochs = RECIPES[method].schedule.epochs
            epochs = min(epochs, QUICK_EPOCHS) if wishes.data == "simulated" else epochs
        changes = {"balance": str(found.balance)} | (dict(wishes.method_settings) if method == name else {})
        recipe = without_own_benches(make_recipe(method, found.preparation.input, epochs, changes), wishes.data)
        return RunSpec(
            dataset_label(wishes.data), opened, task, method, recipe, found.preparation, found.split, wishes.seed,
            wishes.mix, chosen=found.choices, warnings=found.warnings,
        )  # fmt: skip

    library, spec = Library({opened: catalogue}), planned(name)
    choices, warnings = spec.chosen, list(spec.warnings)
    if wishes.mix.reference and own.find(MatchClusters) is None:
        warnings.insert(0, f"{name} does not use the reference recordings; {DEFAULT_RECIPE} does")
    variants = dict[str, Recipe]()
    if wishes.method is None and wishes.input is None and not wishes.method_settings:
        spec = library.identified(spec)
        variants = spec.recipe.candidates(spec.preparation.input)
    beside = tuple(planned(other) for other in recipes if other != name)
    candidates = tuple(replace(spec, recipe_name=f"{name}-{kind}", recipe=variants[kind]) for kind in variants)
    return AdaptationPlan(spec, beside, library, device, notes, choices, tuple(warnings), candidates)


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
