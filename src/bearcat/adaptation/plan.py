"""What a user wants adapted → the runs to train, with what was chosen and what to be warned of, as values.

The command line and `bearcat.adapt` both plan here; nothing is printed and nothing is trained.

>>> plan = make_plan(AdaptRequest(data="my-recordings", source=("600rpm",), target="1200rpm"))
>>> plan.spec.preparation, plan.choices, plan.warnings
>>> adapt(plan, Path("out"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bearcat.adaptation.spec import Library, RunSpec, make_recipe
from bearcat.cat.recipes import DEFAULT_RECIPE, QUICK_EPOCHS, RECIPES, find_recipe
from bearcat.data import Catalogue, Task, dataset_label, open_dataset
from bearcat.data.catalogue import Problem, find_domain
from bearcat.data.choose import Choice, DataSettings, Requested, choose_settings, paper_settings
from bearcat.data.datasets.folder import EMPTY
from bearcat.data.tasks import Mix
from bearcat.errors import InputError
from bearcat.fast.device import chosen_device
from bearcat.methods.before_training import without_own_benches
from bearcat.methods.matching import MatchClusters
from bearcat.requests import AdaptRequest
from bearcat.settings import pairs

# What `bearcat adapt` does without any option. The defects are small, so that there are mistakes to calibrate with.
DEMONSTRATION = {"severities": "0.15,0.5", "faults": "inner,outer"}
DEMONSTRATION_NOTE = "Simulated bearings: healthy, inner race, outer race; defects of 0.15 and 0.5 mm."


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

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Recordings that cannot be used, and are left out."""
        return self.library.left_out(self.spec)


def make_plan(request: AdaptRequest, reading: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> AdaptationPlan:
    """The plan for a request; `reading` passes on the recordings that are read for it, to show progress."""
    demonstrates = request.data == "simulated" and not request.settings
    name, method_settings = find_recipe(request.method or DEFAULT_RECIPE), pairs(request.method_settings)
    own = RECIPES[name].with_settings(method_settings)
    recipes = {name: own} | {other: RECIPES[other] for other in map(find_recipe, request.beside) if other != name}
    balance = own.balance if "balance" in method_settings else None
    requested = Requested(
        request.channel,
        request.rate,
        request.window,
        request.stride,
        request.split,
        request.input or own.input,
        balance,
    )
    paper_settings(requested)  # refuses impossible settings before anything is read
    device = chosen_device(request.device)
    asked = (DEMONSTRATION if demonstrates else {}) | request.dataset_settings
    dataset = open_dataset(request.data, request.folder, asked)
    catalogue = dataset.catalogue()
    mix = Mix(reference=request.reference or "")
    task = choose_task(catalogue, request.source, request.target)
    chosen: dict[str, DataSettings] = {}  # by the input of recipes
    for kind in dict.fromkeys(recipe.input for recipe in recipes.values()):
        wanted = replace(requested, input=request.input or kind)
        opened, catalogue, chosen[kind] = choose_settings(dataset, catalogue, task, wanted, reading)
        requested = replace(requested, split=chosen[own.input].split.scheme)  # holds for the recipes beside it too

    def planned(method: str) -> RunSpec:
        found, epochs = chosen[recipes[method].input], request.epochs
        if epochs is None:
            epochs = RECIPES[method].schedule.epochs
            epochs = min(epochs, QUICK_EPOCHS) if request.data == "simulated" else epochs
        changes = {"balance": str(found.balance)} | (method_settings if method == name else {})
        recipe = without_own_benches(make_recipe(method, found.preparation.input, epochs, changes), request.data)
        return RunSpec(
            dataset_label(request.data), opened, task, method, recipe, found.preparation, found.split, request.seed,
            mix, chosen=found.choices, warnings=found.warnings,
        )  # fmt: skip

    library, spec = Library({opened: catalogue}), planned(name)
    choices, warnings = spec.chosen, list(spec.warnings)
    if request.reference and own.find(MatchClusters) is None:
        warnings.insert(0, f"{name} does not use the reference recordings; {DEFAULT_RECIPE} does")
    beside = tuple(planned(other) for other in recipes if other != name)
    notes = (DEMONSTRATION_NOTE,) if demonstrates else ()
    return AdaptationPlan(spec, beside, library, device, notes, choices, tuple(warnings))


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
