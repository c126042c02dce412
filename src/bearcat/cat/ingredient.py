"""Ingredients of a method in their kinds, and what a training step offers to a loss.

An ingredient is a frozen dataclass: its fields are its numbers, its methods act. A `Loss` is a term of the loss; a
`BeforeTraining` changes the windows before the first step, `Augmentation` those of a step; `AfterEpoch` acts between
epochs. The paper's own (teacher, SAM) stand in the loop by name. A loss that you add is a function of one run:

>>> def entropy(view):
...     return torch.special.entr(view.target_logits.softmax(-1)).sum(-1).mean()
>>> RECIPES["entropy"] = Recipe((loss_of(entropy, weight=0.1),))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from bearcat.errors import InputError, suggest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from bearcat.cat import evaluate, networks, scaling
    from bearcat.cat.recipes import Schedule
    from bearcat.cat.state import TrainingState
    from bearcat.data import tasks
    from bearcat.data.inputs import Input
    from bearcat.diagnosis import accuracy as check_models
    from bearcat.fast import device, stacked
else:

    class Deferred:
        """A module that is imported when something of it is used: recipes are listed without waiting for torch."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._module), name)

    Tensor, nn = Any, Any
    torch, functional, tasks, check_models = map(
        Deferred, ("torch", "torch.nn.functional", "bearcat.data.tasks", "bearcat.diagnosis.accuracy")
    )
    evaluate, networks, scaling = map(Deferred, ("bearcat.cat.evaluate", "bearcat.cat.networks", "bearcat.cat.scaling"))
    device, stacked = map(Deferred, ("bearcat.fast.device", "bearcat.fast.stacked"))

# What modules of recipes import from here, without loading torch.
__all__ = [
    "Tensor", "check_models", "device", "evaluate", "functional", "networks", "nn", "scaling", "stacked", "tasks",
    "torch",
]  # fmt: skip


def choice(*known: str, default: str | None = None) -> Any:
    """A field that has one of these values, by default the first.

    >>> SelfTraining(threshold="fixd")
    Traceback (most recent call last):
    bearcat.errors.InputError: setting 'labels.threshold' is 'fixd'; did you mean 'fixed'?
    """
    return field(default=default or known[0], metadata={"known": known})


def check_choices(settings: Any, prefix: str) -> None:
    """Refuses values of fields made by `choice` that are none of the known ones; the prefix is of the fields' names."""
    for setting in fields(settings):
        value, known = getattr(settings, setting.name), setting.metadata.get("known")
        if known is not None and value not in known:
            raise InputError(f"setting '{prefix}{setting.name}' is '{value}'{suggest(value, known)}")


@dataclass(frozen=True, eq=False)
class View:
    """What a training step offers to a loss: logits (run, batch, class), features (run, batch, feature), labels (run,
    batch). The windows of the source come first. A function of one run (`loss_of`) is given it without the run axis:

    >>> gap = loss_of(lambda view: (view.source_features.mean(0) - view.target_features.mean(0)).norm(), name="gap")
    """

    size: int  # windows of the source; the target's come behind them
    logits: Tensor  # of the student, in training mode
    features: Tensor
    labels: Tensor  # of the source
    pseudo_labels: Tensor | None  # of the target; None while nobody makes any
    selected: Tensor | None  # which of the pseudo-labels are used
    probabilities: Tensor | None  # (run, batch, class) of the target, from which the pseudo-labels were made
    head: Callable[[Tensor], Tensor]  # the student's: features → logits, of all runs
    randomness: stacked.Randomness  # for modules with dropout
    ramp: Tensor  # (1,) this ingredient's `ramp` at this step
    module: nn.Module | None = None  # what the ingredient's `build` made

    @property
    def source_logits(self) -> Tensor:
        return self.logits[..., : self.size, :]

    @property
    def source_features(self) -> Tensor:
        return self.features[..., : self.size, :]

    @property
    def target_logits(self) -> Tensor:
        return self.logits[..., self.size :, :]

    @property
    def target_features(self) -> Tensor:
        return self.features[..., self.size :, :]

    def of_run(self, run: int) -> View:
        """The same of one run, without the run axis."""
        tensors = {name: value for name, value in vars(self).items() if torch.is_tensor(value)}
        parts: dict[str, Any] = {name: value[0 if name == "ramp" else run] for name, value in tensors.items()}
        return replace(self, **parts)


@dataclass(frozen=True)
class Ingredient:
    """One part of a method; the kinds below say what it does.

    >>> [part.name for part in RECIPES["CAT*-Temperature"].ingredients]
    ['labels', 'alignment', 'confusion', 'sharpness']
    """

    name: ClassVar[str]  # in settings (`--method-set NAME.FIELD=VALUE`), records and curves (`loss_NAME`)
    phase: ClassVar[str | None] = None  # with which it begins: "alignment" (T_DA), "labels" (T_PL); None: with training
    uses_target: ClassVar[bool] = False  # whether a step needs target windows for it
    reads_target: ClassVar[bool] = True  # whether it uses the target at all

    def __post_init__(self) -> None:
        check_choices(self, f"{self.name}.")

    @property
    def adapts(self) -> bool:
        """Whether it uses the target."""
        return self.reads_target

    def start(self, schedule: Schedule) -> int:
        """The first epoch in which it is on."""
        return {None: 0, "alignment": schedule.align_from, "labels": schedule.label_from}[self.phase]

    def in_epochs(self, before: int, after: int) -> Ingredient:  # noqa: ARG002
        """The same ingredient for a training of `after` instead of `before` epochs."""
        return self

    def for_input(self, kind: Input) -> Ingredient:  # noqa: ARG002
        """The same ingredient for windows of this input."""
        return self


@dataclass(frozen=True)
class Loss(Ingredient):
    """A term of the loss; by default one on the target that is on from T_DA to the end. `loss` is given all runs.

    >>> [loss.name for loss in RECIPES["CAT*-Temperature"].on(Loss, epoch=50)]
    ['labels', 'alignment', 'confusion']
    """

    phase: ClassVar[str | None] = "alignment"
    uses_target = True
    # Whether it compares the domains: SDAT does not climb it, and with passes="separate" it reads a joint pass.
    aligns: ClassVar[bool] = False
    recordable: ClassVar[bool] = True  # whether it asks the device for nothing, so that steps can be recorded
    stream: ClassVar[int] = 0  # of randomness, for the initial weights of its module; 0: one made of its name

    def loss(self, view: View) -> Tensor:
        """Its term, (run,)."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module | None:  # noqa: ARG002
        """A module that is trained with the losses, for a stack of runs (bearcat.fast.stacked)."""
        return None

    def ramp(self, progress: float) -> float:
        """The number `view.ramp` has at a step, by the progress from `start` (0) to the end (1); not of one run."""
        return progress

    def ramps(self, schedule: Schedule, epoch: int, iterations: int) -> list[float]:
        """`ramp` at each step of an epoch, whose progress counts iterations from 0."""
        start = self.start(schedule)
        done, steps = (epoch - start) * iterations, (schedule.epochs - start) * iterations
        return [self.ramp((done + step) / steps) for step in range(iterations)]

    def climbs(self, schedule: Schedule, epoch: int) -> bool:  # noqa: ARG002
        """Whether it is in the loss that SDAT climbs."""
        return not self.aligns


RunLoss = Callable[[View], "Tensor"]


@dataclass(frozen=True)
class LossOfRun(Loss):
    """A function of one run, taken of each run of a stack."""

    recordable = False
    function: ClassVar[RunLoss]
    weight: float = 1.0

    def loss(self, view: View) -> Tensor:
        return self.weight * torch.stack([type(self).function(view.of_run(run)) for run in range(len(view.logits))])


def loss_of(
    function: RunLoss, weight: float = 1.0, *, name: str | None = None, phase: str | None = "alignment",
    aligns: bool = False,
) -> Loss:  # fmt: skip
    """A term of the loss, `weight` times a function of one run that returns a number; on from T_DA (phase "alignment"),
    T_PL ("labels") or the first epoch (None) on. SAM does not climb a loss that `aligns` the domains.

    >>> Recipe((Adversarial(), loss_of(lambda view: view.target_features.square().mean(), name="length"))).adapts
    True
    """
    name = name or function.__name__.replace("_", "-")
    if not name.replace("-", "").isalnum():
        raise InputError(f"a loss named '{name}' cannot be written in settings; give loss_of a name of letters and -")
    kind: type[LossOfRun] = _class_of(function, name, phase, aligns)
    return kind(weight)


@cache
def _class_of(function: RunLoss, name: str, phase: str | None, aligns: bool) -> type[LossOfRun]:
    """A class of its own, of the function's module, so that its code is part of a run's identity."""
    members = {"name": name, "phase": phase, "aligns": aligns, "function": function}
    members |= {"__module__": function.__module__, "__qualname__": function.__qualname__, "__doc__": function.__doc__}
    return type(function.__name__, (LossOfRun,), members)


@dataclass(frozen=True, kw_only=True)
class TargetFinding:
    """What a preparation found in a run's windows, and whether it adapted the run."""

    adapted: bool
    unknown: tuple[int, ...] = ()  # recordings of the target that match no class of the source

    @property
    def sentence(self) -> str:
        """For the user: whether it adapted, and why."""
        raise NotImplementedError(f"{type(self).__name__} has no sentence")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the record; fields without a value are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != ()}


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a preparation makes of a run's data."""

    data: tasks.TrainingData
    module: nn.Module | None = None  # what the network begins with; buffers alone, whose first axis is the run
    finding: TargetFinding | None = None


@dataclass(frozen=True)
class BeforeTraining(Ingredient):
    """Something done to the prepared windows before training.

    >>> RECIPES["match-clusters"].find(BeforeTraining).name
    'matching'
    """

    def prepare(self, data: tasks.TrainingData) -> Prepared:
        """The data to train with, what the network begins with, and what was found."""
        raise NotImplementedError(f"{type(self).__name__} prepares nothing")


@dataclass(frozen=True)
class Augmentation(Ingredient):
    """A view of the target's windows, drawn anew in each step; the student and all losses see it.

    >>> [view.name for view in RECIPES["AT-views"].on(Augmentation, epoch=50)]
    ['weak', 'strong']
    """

    phase = "labels"
    uses_target = True
    of_teacher: ClassVar[bool] = False  # whether the teacher sees it too

    def change(self, windows: Tensor, randomness: stacked.Randomness) -> Tensor:
        """The view of windows (run, batch, channel, point)."""
        raise NotImplementedError(f"{type(self).__name__} changes nothing")


@dataclass(frozen=True)
class AfterEpoch(Ingredient):
    """Something done after the steps of an epoch, before the networks are evaluated.

    >>> RECIPES["AdaBN"].find(AfterEpoch).name
    'adabn'
    """

    phase = "alignment"

    def end_epoch(self, state: TrainingState) -> None:
        """Acts on the networks of the state."""
        raise NotImplementedError(f"{type(self).__name__} does nothing")


KINDS = (Loss, BeforeTraining, Augmentation, AfterEpoch)
