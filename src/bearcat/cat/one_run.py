"""A loss of one's own as a function of one run: no run axis, no mask, no class.

>>> def entropy(view):
...     return torch.special.entr(view.target_logits.softmax(-1)).sum(-1).mean()
>>> RECIPES["entropy"] = Recipe((loss_of(entropy, weight=0.1),))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from bearcat.cat.ingredient import Deferred, Loss, View
from bearcat.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Deferred("torch")


@dataclass(frozen=True, eq=False)
class RunView:
    """What a training step offers to a loss of one run; only windows that are there.

    >>> def gap(view: RunView) -> Tensor:
    ...     return view.ramp * (view.source_features.mean(0) - view.target_features.mean(0)).square().sum()
    >>> loss_of(gap, aligns=True).name
    'gap'
    """

    source_logits: Tensor  # (window, class) of the student, in training mode, with a gradient
    target_logits: Tensor
    source_features: Tensor  # (window, feature) of the same pass
    target_features: Tensor
    labels: Tensor  # (window,) int64, of the source
    pseudo_labels: Tensor | None  # (window,) int64, of the target; None while nobody makes any
    selected: Tensor | None  # (window,) bool: which of the pseudo-labels are used
    probabilities: Tensor | None  # (window, class) that the pseudo-labels were made of
    ramp: Tensor  # a number: the share of the training that is done since the loss began


RunLoss = Callable[[RunView], "Tensor"]


@dataclass(frozen=True)
class LossOfRun(Loss):
    """A function of one run, lifted to a stack of them."""

    recordable = False
    function: ClassVar[RunLoss]
    weight: float = 1.0

    def loss(self, view: View) -> Tensor:
        """(run,): by vmap where nothing is padded; otherwise, or where vmap cannot, run by run."""
        parts = {each.name: getattr(view, each.name) for each in fields(RunView)} | {"ramp": view.ramp[0]}
        function = type(self).function
        if view.present is None and len(view.logits) > 1:
            stacked = {name: part for name, part in parts.items() if part is not None and name != "ramp"}
            others = {name: part for name, part in parts.items() if name not in stacked}
            try:
                lifted = torch.vmap(lambda own: function(RunView(**own, **others)))
                return self.weight * lifted(stacked)
            except RuntimeError:  # such as a branch on a value; what else is wrong is raised again below
                pass
        return self.weight * torch.stack([function(_of_run(view, parts, run)) for run in range(len(view.logits))])


def _of_run(view: View, parts: dict[str, Any], run: int) -> RunView:
    """One run's windows, without padding."""

    def own(name: str, part: Any) -> Any:
        if part is None or name == "ramp":
            return part
        present = view.source_present if name == "labels" or name.startswith("source") else view.target_present
        return part[run] if present is None else part[run][present[run]]

    return RunView(**{name: own(name, part) for name, part in parts.items()})


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
