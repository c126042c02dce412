"""Ingredients of a method in their kinds, and what a training step offers to a loss.

An ingredient is a frozen dataclass: its fields are its numbers, its methods act. A `Loss` is a term of the loss; a
`BeforeTraining` changes the windows before the first step, `Augmentation` those of a step; `AfterEpoch` acts between
epochs. The paper's own (teacher, SAM) stand in the loop by name. A loss that you add is a function of one run:

>>> def entropy(view):
...     return torch.special.entr(view.target_logits.softmax(-1)).sum(-1).mean()
>>> RECIPES["entropy"] = Recipe((loss_of(entropy, weight=0.1),))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bearcat.data.tasks import TrainingData
from bearcat.errors import InputError, suggest
from bearcat.fast.stacked import ModuleOfRun, of_all_runs, uniform

if TYPE_CHECKING:
    from bearcat.cat.networks import InputScaling
    from bearcat.cat.state import TrainingState
    from bearcat.data.inputs import Input


def choice(*known: str, default: str | None = None) -> Any:
    """A field that has one of these values, by default the first.

    >>> SelfTraining(threshold="fixd")
    Traceback (most recent call last):
    bearcat.errors.InputError: setting 'labels.threshold' is 'fixd'; did you mean 'fixed'?
    """
    return field(default=default or known[0], metadata={"known": known})


def within(default: float, lowest: float, highest: float = math.inf) -> Any:
    """A field with a number from `lowest` to `highest`."""
    return field(default=default, metadata={"range": (lowest, highest)})


def check_settings(settings: Any, prefix: str) -> None:
    """Refuses values of fields made by `choice` or `within` that do not fit, and numbers that are not finite; the
    prefix is of the fields' names.
    """
    for setting in fields(settings):
        value, known = getattr(settings, setting.name), setting.metadata.get("known")
        if known is not None and value not in known:
            raise InputError(f"setting '{prefix}{setting.name}' is '{value}'{suggest(value, known)}")
        lowest, highest = setting.metadata.get("range", (-math.inf, math.inf))
        if isinstance(value, int | float) and not (math.isfinite(value) and lowest <= value <= highest):
            allowed = "be finite" if lowest == -math.inf else f"lie between {lowest:g} and {highest:g}"
            raise InputError(f"setting '{prefix}{setting.name}' must {allowed}, not {value:g}")


@dataclass(frozen=True)
class Schedule:
    """When things happen, in epochs (docs/method.md). An epoch is one pass over the source's training windows.

    >>> Schedule().scaled(30).align_from
    5
    """

    epochs: int = 300
    batch: int = within(64, 1, 10**6)
    rate: float = within(1e-3, 1e-12, 1e3)
    weight_decay: float = within(1e-5, 0, 1e3)  # ℓ2, in the gradient
    drops: tuple[int, ...] = (150, 250)  # the rate is multiplied by `drop_factor` from these epochs on
    drop_factor: float = within(0.1, 0, 1)
    align_from: int = 50  # T_DA: domain loss and MCC
    label_from: int = 50  # T_PL: teacher and pseudo-labels; 100 for frequency input
    calibrate_from: int = 150  # T_cal

    def __post_init__(self) -> None:
        check_settings(self, "schedule.")

    def scaled(self, epochs: int) -> Schedule:
        """The same course in fewer or more epochs: every phase keeps its share."""
        if epochs < 1:
            raise InputError(f"epochs must be at least 1, not {epochs}")
        begins = self.align_from, self.label_from, self.calibrate_from, *self.drops
        align, label, calibrate, *drops = (round(epoch * epochs / self.epochs) for epoch in begins)
        return replace(
            self, epochs=epochs, drops=tuple(drops), align_from=align, label_from=label, calibrate_from=calibrate
        )

    def learning_rate(self, epoch: int) -> float:
        """The rate in this epoch: it drops by the factor at each of the drops."""
        return self.rate * self.drop_factor ** sum(epoch >= drop for drop in self.drops)


@dataclass(frozen=True, eq=False)
class View:
    """What a training step offers to a loss, of one run. The windows of the source come first in a batch.

    >>> gap = loss_of(lambda view: (view.source_features.mean(0) - view.target_features.mean(0)).norm(), name="gap")
    """

    size: int  # windows of the source; the target's come behind them
    logits: Tensor  # (batch, class) of the student, in training mode
    features: Tensor  # (batch, feature)
    labels: Tensor  # (batch,) of the source
    pseudo_labels: Tensor | None  # (batch,) of the target; None while nobody makes any
    selected: Tensor | None  # which of the pseudo-labels are used
    probabilities: Tensor | None  # (batch, class) of the target, from which the pseudo-labels were made
    head_weight: Tensor  # (class, feature)
    head_bias: Tensor  # (class,)
    draw: Tensor  # () where the step's random numbers come from
    ramp: Tensor  # () this ingredient's `ramp` at this step
    module: ModuleOfRun = None  # type: ignore[assignment]  # what the ingredient's `build` made, called with (batch, any)

    @property
    def source_logits(self) -> Tensor:
        return self.logits[: self.size]

    @property
    def source_features(self) -> Tensor:
        return self.features[: self.size]

    @property
    def target_logits(self) -> Tensor:
        return self.logits[self.size :]

    @property
    def target_features(self) -> Tensor:
        return self.features[self.size :]

    def head(self, features: Tensor) -> Tensor:
        """The student's logits of features (batch, feature)."""
        return functional.linear(features, self.head_weight, self.head_bias)

    def uniform(self, layer: int, count: int) -> Tensor:
        """(count,) random numbers from 0 to below 1, others for each layer."""
        return uniform(self.draw, layer, count)


@dataclass(frozen=True)
class Ingredient:
    """One part of a method; the kinds below say what it does."""

    name: ClassVar[str]  # in settings (`--method-set NAME.FIELD=VALUE`), records and curves (`loss_NAME`)
    phase: ClassVar[str | None] = None  # with which it begins: "alignment" (T_DA), "labels" (T_PL); None: with training
    uses_target: ClassVar[bool] = False  # whether a step needs target windows for it

    def __post_init__(self) -> None:
        check_settings(self, f"{self.name}.")

    @property
    def adapts(self) -> bool:
        """Whether it uses the target at all."""
        return True

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
    """A term of the loss; by default one on the target that is on from T_DA to the end."""

    phase: ClassVar[str | None] = "alignment"
    uses_target = True
    aligns: ClassVar[bool] = False  # whether it compares the domains, so that SAM does not climb it
    recordable: ClassVar[bool] = True  # whether a CUDA graph can record it: it never waits for the device
    stream: ClassVar[int] = 0  # of randomness, for the initial weights of its module; 0: one made of its name

    def loss(self, view: View) -> Tensor:
        """Its term in one run, a scalar."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def build(self, runs: int, features: int, classes: int, dropout: float) -> nn.Module | None:  # noqa: ARG002
        """A module that is trained with the losses, for a stack of runs (bearcat.fast.stacked): it is called with
        values (run, batch, any) and the randomness of dropout.
        """
        return None

    def ramp(self, progress: float) -> float:
        """The number `view.ramp` has at a step, by the progress from `start` (0) to the end (1)."""
        return progress


PHASES = (None, "alignment", "labels")
RunLoss = Callable[[View], Tensor]


@dataclass(frozen=True)
class LossOfRun(Loss):
    """`weight` times a function of one run, which may do what torch.vmap cannot, such as ask for a number: it is called
    run by run.
    """

    recordable = False
    function: ClassVar[RunLoss]
    weight: float = 1.0

    def loss(self, view: View) -> Tensor:
        tensors = {name: value for name, value in vars(view).items() if isinstance(value, Tensor)}

        def of_each(*stacked: Tensor) -> Tensor:
            runs = (dict(zip(tensors, of_run, strict=True)) for of_run in zip(*stacked, strict=True))
            return torch.stack([self._scalar(type(self).function(replace(view, **of_run))) for of_run in runs])

        return self.weight * of_all_runs(of_each, *tensors.values())

    def _scalar(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.dim():
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"the loss '{self.name}' must return a tensor with one number, not {what}")
        return value


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
    if phase not in PHASES:
        raise InputError(f"the loss '{name}' has no phase '{phase}'; give 'alignment', 'labels' or None")
    kind: type[LossOfRun] = _class_of(function, name, phase, aligns)
    return kind(weight)


@cache
def _class_of(function: RunLoss, name: str, phase: str | None, aligns: bool) -> type[LossOfRun]:
    """A class of its own, of the function's module, so that its code is part of a run's identity."""
    members = {"name": name, "phase": phase, "aligns": aligns, "function": function, "__wrapped__": function}
    members |= {"__module__": function.__module__, "__qualname__": function.__qualname__, "__doc__": function.__doc__}
    return type(function.__name__, (LossOfRun,), members)


@dataclass(frozen=True)
class TargetFinding:
    """What a preparation found in a run's windows: whether it adapted the run, and why, for the user."""

    adapted: bool
    sentence: str
    unknown: tuple[int, ...] = ()  # recordings of the target that match no class of the source


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a preparation makes of a run's data."""

    data: TrainingData
    scaling: InputScaling | None = None  # what the network begins with
    finding: TargetFinding | None = None


@dataclass(frozen=True)
class BeforeTraining(Ingredient):
    """Something done to the prepared windows before training."""

    def prepare(self, data: TrainingData) -> Prepared:
        """The data to train with, what the network begins with, and what was found."""
        raise NotImplementedError(f"{type(self).__name__} prepares nothing")


@dataclass(frozen=True)
class Augmentation(Ingredient):
    """A view of the target's windows, drawn anew in each step; the student and all losses see it."""

    phase = "labels"
    uses_target = True
    of_teacher: ClassVar[bool] = False  # whether the teacher sees it too

    def change(self, windows: Tensor, draw: Tensor) -> Tensor:
        """The view of one run's windows (batch, channel, point); random numbers by fast.stacked.uniform(draw, …)."""
        raise NotImplementedError(f"{type(self).__name__} changes nothing")


@dataclass(frozen=True)
class AfterEpoch(Ingredient):
    """Something done after the steps of an epoch, before the networks are evaluated."""

    phase = "alignment"

    def end_epoch(self, state: TrainingState) -> None:
        """Acts on the networks of the state."""
        raise NotImplementedError(f"{type(self).__name__} does nothing")


KINDS = (Loss, BeforeTraining, Augmentation, AfterEpoch)
