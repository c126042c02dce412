"""What a run is, the data it needs, and what a request for an adaptation plans.

A `RunSpec` holds everything that determines a run's result. Its identity, a hash of the version of our results, every
setting, the seed, the content of the files and the code of rows that are not the package's own, names the run wherever
it is kept: its folder in a store, run.json in the folder of `bearcat adapt`.

>>> library = Library()
>>> task = Task("N15_M07_F10", "N09_M07_F10")
>>> spec = library.identified(RunSpec("simulated", Simulated(), task, "DANN", RECIPES["DANN"]))
>>> spec.identity, library.split(spec).training
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch

from bearcat.adaptation.evaluation import Checks, run_checks
from bearcat.cat.recipes import RECIPES, Recipe, find_recipe
from bearcat.cat.state import RESULT_VERSION
from bearcat.data.choose import Choice, Requested, choose_settings, paper_settings
from bearcat.data.datasets import Catalogue, Dataset, dataset_label, dataset_name, find_domain, load, open_dataset
from bearcat.data.folder import at_speeds
from bearcat.data.inputs import Preparation, find_input, suited_input
from bearcat.data.recording import Windows, join
from bearcat.data.tasks import UNKNOWN, Mix, SplitTask, Task, TrainingData, mixed_task, split_task
from bearcat.data.windows import fingerprint, prepare
from bearcat.deploy import MeasuredUnit, examine, measure_unit
from bearcat.deploy.find import Given, units_of
from bearcat.diagnosis.fusion import fuse
from bearcat.diagnosis.lines import FAULTS
from bearcat.diagnosis.speed import reading_speed
from bearcat.errors import InputError
from bearcat.fast.device import chosen_device
from bearcat.methods import DEFAULT_RECIPE
from bearcat.methods.matching import MatchClusters
from bearcat.methods.transforms import has_several_states, state_codes, without_own_benches
from bearcat.record import task_words
from bearcat.report import Cell
from bearcat.settings import PRIOR, AdaptRequest, pairs, to_plain
from bearcat.storage import digest_json, row_identity

Made = TypeVar("Made")
ANCHOR = 0.95  # probability of a fault by the signal alone, from which on it labels a recording of a target


@dataclass(frozen=True)
class RunSpec:
    """One run: what is trained on what, with which seed."""

    data: str  # what records call the dataset
    dataset: Dataset
    task: Task
    recipe_name: str
    recipe: Recipe
    preparation: Preparation = field(default_factory=Preparation)
    split: str = "window"
    seed: int = 0
    mix: Mix = field(default_factory=Mix)  # of the target's classes
    prior: float = PRIOR  # share of recordings that are of a faulty bearing, for the diagnoses
    fingerprints: tuple[str, ...] = ()  # of the content of each source and of the target, from Library.identified
    # The rest is for records and reports and does not determine the result.
    method: str | None = None  # the grid's name for it; None: the recipe's name
    chosen: tuple[Choice, ...] = ()  # why settings that were not requested are what they are
    warnings: tuple[str, ...] = ()  # what is known to be wrong with the data

    @property
    def domains(self) -> tuple[str, ...]:
        return (*self.task.sources, self.task.target)

    @property
    def cell(self) -> Cell:
        """Where the run stands in the tables of a report."""
        method = self.method or self.recipe_name
        return Cell(self.data, self.preparation.input, task_words(str(self.task), str(self.mix)), method, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Every setting but the seed and the folder of the dataset, as plain values."""
        data = {name: value for name, value in to_plain(self.dataset).items() if name != "root"}
        return {
            "data": {"name": self.data} | data,
            "source": list(self.task.sources),
            "target": self.task.target,
            "preparation": asdict(self.preparation),
            "split": self.split,
            "recipe": {"name": self.recipe_name} | self.recipe.to_dict(),
            "mix": to_plain(self.mix) | {"words": str(self.mix)},
            "prior": self.prior,
            "code": self.code,
        }

    @cached_property  # a cluster's worker, which may not have the files, is given it
    def code(self) -> dict[str, str]:
        """What names the code of the rows that are not the package's own."""
        rows = {"dataset": self.dataset, "input": find_input(self.preparation.input), **self.recipe.rows()}
        return {name: identity for name, row in rows.items() if (identity := row_identity(row)) is not None}

    @property
    def given(self) -> Given:
        """What the user says of recordings; what was learnt from the dataset's own bench does not judge it."""
        rpm = getattr(self.dataset, "rpm", None)
        return Given(
            rpm=rpm if isinstance(rpm, float) else None, without=dataset_name(self.dataset), search=False,
            assumed_rate=self.preparation.rate,
        )  # fmt: skip

    @cached_property
    def identity(self) -> str:
        if not self.fingerprints:
            raise ValueError("the identity of a run needs the fingerprints of its data; use Library.identified")
        return digest_json([RESULT_VERSION, self.to_dict(), self.seed, self.fingerprints])[:24]


def make_recipe(name: str, kind: str, epochs: int | None = None, settings: Mapping[str, str] | None = None) -> Recipe:
    """A recipe for an input of this kind, with settings by name, of the paper's 300 epochs and scaled to so many."""
    recipe = RECIPES[name].for_input(kind).with_settings(settings or {})
    return recipe.checked(epochs)


def _split_key(spec: RunSpec) -> Hashable:
    """What runs share whose windows are split alike."""
    return spec.dataset, spec.task, spec.preparation, spec.split, spec.seed, spec.mix


class Library:
    """The data of runs: catalogues, prepared windows and splits, each made once for all runs that need them."""

    def __init__(self) -> None:
        self._made = dict[Hashable, Any]()

    def _once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def measured(self, spec: RunSpec, domain: str) -> list[MeasuredUnit]:
        """The recordings of a domain, and what their signals say at the speeds they state; each is measured once."""
        given, rate, cut = spec.given, spec.preparation.rate, spec.preparation.cut

        def measure() -> list[MeasuredUnit]:
            units = units_of(self.catalogue(spec.dataset).only([domain]), cut)
            return [replace(measure_unit(unit, given), open=unit.open) for unit in units]  # none stays open

        return self._once(("measured", spec.dataset, domain, rate, cut), measure)

    def corrected_speeds(self, spec: RunSpec) -> dict[str, float]:
        """The speed in rpm of each recording of the run that is read at another one than it states, by its origin."""
        speeds = {
            channel: reading_speed(point.speed, point.speed.stated)
            for domain in spec.domains
            for unit in self.measured(spec, domain)
            for point in unit.points
            if point.speed is not None and point.speed.corrected
            for channel in point.channels
        }
        return {name: rpm for name, rpm in speeds.items() if rpm is not None}

    def read_at(self, dataset: Dataset, catalogue: Catalogue) -> None:
        """Takes windows of this catalogue from now on; what was measured stays, so diagnoses are of what was stated."""
        self._made["catalogue", dataset] = catalogue

    def catalogue(self, dataset: Dataset) -> Catalogue:
        return self._once(("catalogue", dataset), dataset.catalogue)

    def part(self, spec: RunSpec) -> Catalogue:
        """The part of the catalogue that is the run's domains."""
        return self.catalogue(spec.dataset).only(spec.domains)

    def windows(self, spec: RunSpec, domain: str) -> Windows:
        """The prepared windows of a domain."""
        key = "windows", spec.dataset, domain, spec.preparation
        return self._once(key, lambda: prepare(load(self.catalogue(spec.dataset), [domain]), spec.preparation))

    def split(self, spec: RunSpec) -> SplitTask:
        """The split of a run's windows. It is made once; each answer copies values for itself, when they are used."""

        def make() -> SplitTask:
            *sources, target = (self.windows(spec, domain) for domain in spec.domains)
            source = sources[0] if len(sources) == 1 else join(sources)
            parts = spec.task, source, target, spec.split, spec.seed
            return split_task(*parts) if spec.mix == Mix() else mixed_task(*parts, spec.mix)

        return replace(self._once(("split", _split_key(spec)), make))

    def training(self, spec: RunSpec, split: SplitTask) -> TrainingData:
        """The split's training data. Where the recipe has a use for it, recordings whose signals are certain by
        themselves have their classes: faults alone, as one without lines may be faulty too.
        """
        data = split.training
        if spec.recipe.find(MatchClusters) is None or not has_several_states(data.source_train):
            return data
        codes, certain = state_codes(split.classes), dict[str, int]()
        for point in examine(self.measured(spec, spec.task.target), spec.given):
            shares = fuse(point.witnesses)
            state = max(shares, key=lambda name: shares[name], default=None)
            if state in FAULTS and state in codes and shares[state] >= ANCHOR:
                certain |= dict.fromkeys(point.channels, codes[state])
        infos = split.target.recordings
        anchors = np.array([certain.get(infos[number].origin, UNKNOWN) for number in split.target_order.tolist()])
        return replace(data, target_train=replace(data.target_train, anchor=anchors[data.target_train.recording]))

    def checks(self, spec: RunSpec, split: SplitTask) -> tuple[Checks, Checks]:
        """What check models say of test and training windows; they are fitted once for all runs of the split."""
        return self._once(("checks", _split_key(spec)), lambda: run_checks(split, spec.preparation.input))

    def identified(self, spec: RunSpec) -> RunSpec:
        """The run with the fingerprints of its data and the input that suits them, which complete its identity."""
        if spec.fingerprints:
            return spec
        spec = self._suited(spec)
        catalogue, made = self.catalogue(spec.dataset), list[str]()
        for domain in spec.domains:
            key = "fingerprint", spec.dataset, domain
            made.append(self._once(key, partial(fingerprint, catalogue.only([domain]))))
        return replace(spec, fingerprints=tuple(made))

    def _suited(self, spec: RunSpec) -> RunSpec:
        """The run with the input that the metadata of its recordings allow, and why."""
        requested, rate = spec.preparation.input, spec.preparation.rate  # to which everything is brought
        if suited_input(requested, ()) == requested:  # whatever the recordings
            return spec

        def suited() -> str:
            infos = [recording.info() for recording in load(self.part(spec))]
            return suited_input(requested, [replace(info, rate=rate or info.rate) for info in infos])

        kind = self._once(("input", spec.dataset, spec.domains, requested, rate), suited)
        preparation = replace(spec.preparation, input=kind)
        return replace(spec, preparation=preparation, chosen=(*spec.chosen, Choice("input", kind)))


QUICK_EPOCHS = 40  # of the demonstration
# What `bearcat adapt` does without any option. The defects are small, so that there are mistakes to calibrate with.
DEMONSTRATION = {"severities": "0.15,0.5", "faults": "inner,outer"}


@dataclass(frozen=True, eq=False)
class AdaptationPlan:
    """The run to train, and its data."""

    spec: RunSpec
    library: Library
    device: torch.device
    requested: bool = False  # the method was named: its model is saved, whichever is recommended


def make_plan(request: AdaptRequest, reading: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> AdaptationPlan:
    """The plan for a request; `reading` passes on the recordings that are read for it, to show progress."""
    name, method_settings = find_recipe(request.method or DEFAULT_RECIPE), pairs(request.method_settings)
    recipe, quick = RECIPES[name].with_settings(method_settings), request.data == "simulated"
    requested = Requested(
        request.channel, request.rate, request.window, request.stride, request.split, request.input or recipe.input,
        balance=recipe.balance if "balance" in method_settings else None,
    )  # fmt: skip
    paper_settings(requested)  # refuses impossible settings before anything is read
    device = chosen_device(request.device)
    demonstration = DEMONSTRATION if quick and not request.settings else {}
    dataset = open_dataset(request.data, request.root, demonstration | request.dataset_settings)
    catalogue, library = dataset.catalogue(), Library()
    task = choose_task(catalogue, request.source, request.target)
    usual = recipe.schedule.epochs
    epochs = request.epochs if request.epochs is not None else min(usual, QUICK_EPOCHS) if quick else usual
    unused = request.reference and recipe.find(MatchClusters) is None
    doubts = (f"{name} does not use the reference recordings; {DEFAULT_RECIPE} does",) if unused else ()

    def planned(read: Catalogue) -> RunSpec:
        opened, chosen, data = choose_settings(dataset, read, task, requested, reading)
        library.read_at(opened, chosen)
        made = make_recipe(name, data.preparation.input, epochs, {"balance": str(data.balance)} | method_settings)
        return RunSpec(
            dataset_label(request.data), opened, task, name, without_own_benches(made, request.data), data.preparation,
            data.split, request.seed, Mix(reference=request.reference), request.prior,
            chosen=data.choices, warnings=(*doubts, *data.warnings),
        )  # fmt: skip

    spec = planned(catalogue)
    if "rpm" in find_input(spec.preparation.input).needs and (speeds := library.corrected_speeds(spec)):
        spec, (origin, rpm) = planned(at_speeds(catalogue, speeds)), next(iter(speeds.items()))
        wrong = f"{len(speeds)} recordings state a wrong speed; each is read as measured"
        spec = replace(spec, warnings=(*spec.warnings, f"{wrong}, such as {origin} at {rpm:.0f} rpm"))
    return AdaptationPlan(spec, library, device, request.method is not None)


def choose_task(catalogue: Catalogue, source: Sequence[str], target: str | None) -> Task:
    """The task between the named domains, or between the first two where no names are given."""
    sources = tuple(dict.fromkeys(find_domain(name, catalogue.domains) for name in source)) or catalogue.domains[:1]
    if target is not None:
        return Task(sources, find_domain(target, catalogue.domains))
    left = [domain for domain in catalogue.domains if domain not in sources]
    if not left:
        raise InputError(f"no domain is left for the target beside {', '.join(sources) or 'none'}; name two domains")
    return Task(sources, left[0])
