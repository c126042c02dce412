"""What goes into fitting a calibrator, and what comes out.

>>> evidence = Evidence(source_logits=logits, source_labels=labels)
>>> calibration = Calibration.identity(runs=1, classes=4)
>>> calibration.probabilities(logits)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bearcat.calibration.arrays import AnyArray, Array, Sample, as_tensor, like, read, read_features
from bearcat.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All that a calibrator may read; all but the first two are optional. Weights of 0 mark padding.

    Axes: logits (run, window, class), labels and weights (run, window), features (run, window, feature); the run axis
    may be left out everywhere, and numpy arrays are accepted. In training, only what a calibrator `needs` is computed.
    """

    source_logits: AnyArray  # the labelled source test split
    source_labels: AnyArray
    source_weight: AnyArray | None = None
    source_features: AnyArray | None = None
    source_train_features: AnyArray | None = None
    source_train_weight: AnyArray | None = None
    target_logits: AnyArray | None = None  # the unlabelled target training split
    target_features: AnyArray | None = None
    target_weight: AnyArray | None = None
    target_recording: AnyArray | None = None  # (run, window) int64: which recording each target window is of
    target_windows: AnyArray | None = None  # (run, window, channel, point), as the network takes them
    network: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # windows → logits and features
    head: Callable[[Tensor], Tensor] | None = None  # features → logits
    estimates: Mapping[str, AnyArray] | None = None  # without labels: "accuracy" (run,), "class_shares" (run, class)
    seeds: AnyArray | None = None  # (run,) int64, for calibrators that draw; zeros where not given

    def source(self) -> Sample:
        """The source test split, checked, its padding cleaned."""
        names = ("source_logits", "source_labels", "source_weight")
        return read(self.source_logits, self.source_labels, self.source_weight, names)

    def target(self) -> Sample:
        """The target's training windows, without labels, checked, their padding cleaned."""
        logits, weight = read_features(self.target_logits, self.target_weight, "target_logits")
        return Sample(logits, torch.zeros_like(weight, dtype=torch.int64), weight)


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted map on logits for every run: matrix @ (scale · logits) + bias. Tensors in float64."""

    scale: Tensor  # (run, class)
    bias: Tensor  # (run, class)
    at_bound: Tensor  # (run,) bool: the fit ended at one of the calibrator's bounds
    matrix: Tensor | None = None  # (run, class, class); None is the identity

    @staticmethod
    def identity(runs: int, classes: int, device: torch.device | str | None = None) -> Calibration:
        """The map that changes nothing."""
        ones = torch.ones(runs, classes, dtype=torch.float64, device=device)
        return Calibration(ones, torch.zeros_like(ones), torch.zeros(runs, dtype=torch.bool, device=device))

    @property
    def temperature(self) -> Tensor:
        """(run,) 1/scale where the map is one positive scale for all classes and nothing else; NaN otherwise."""
        return torch.where(self._one_scale(), 1 / self.scale[:, 0], torch.nan)

    def apply(self, logits: Array) -> Array:
        """Calibrated logits, shape as given ((window, class) for a calibration of one run), in at least float32.

        A temperature keeps the set of largest logits exactly, although multiplying in floating point can make
        neighbouring numbers equal.
        """
        given, result = self._mapped(logits)
        return like(logits, self._order_kept(given, result))

    def probabilities(self, logits: Array) -> Array:
        """Softmax of the calibrated logits; a temperature keeps the set of most likely classes exactly."""
        given, result = self._mapped(logits)
        return like(logits, self._order_kept(given, result.softmax(-1)))

    def state(self) -> dict[str, Tensor]:
        """Contiguous tensors by name, for saving."""
        return {name: tensor.contiguous() for name, tensor in vars(self).items() if tensor is not None}

    @staticmethod
    def from_state(state: Mapping[str, Tensor]) -> Calibration:
        """Back from `state`."""
        needed = {"scale", "bias", "at_bound"}
        if not needed <= set(state) <= needed | {"matrix"}:
            raise InputError(
                f"a calibration is made of {', '.join(sorted(needed))} and perhaps matrix, not {set(state)}"
            )
        return Calibration(**state)

    def _one_scale(self) -> Tensor:
        if self.matrix is not None:
            return torch.zeros_like(self.at_bound)
        same = (self.scale == self.scale[:, :1]) & (self.scale > 0) & (self.bias == 0)
        return same.all(1)

    def _mapped(self, logits: AnyArray) -> tuple[Tensor, Tensor]:
        """Logits as (run, window, class), before and after."""
        given = logits if isinstance(logits, Tensor) else as_tensor(logits)  # with its history, unlike as_tensor
        runs, classes = self.scale.shape
        fits = (given.ndim == 3 and len(given) == runs) or (given.ndim == 2 and runs == 1)
        if not fits or given.shape[-1] != classes:
            raise InputError(
                f"logits must have the shape ({runs}, window, {classes}) of this calibration, not {tuple(given.shape)}"
            )
        given = given[None] if given.ndim == 2 else given
        given = given if given.dtype in (torch.float32, torch.float64) else given.float()
        result = given * self.scale[:, None].to(given)  # no matrix product: those may be rounded to TF32 on a GPU
        if self.matrix is not None:
            matrix = self.matrix.to(given.device)
            result = (result.to(matrix.dtype) @ matrix.transpose(1, 2)).to(given.dtype)
        return given, result + self.bias[:, None].to(given)

    def _order_kept(self, before: Tensor, after: Tensor) -> Tensor:
        """Where only a temperature is applied, what has become equal to the largest is set one step below it."""
        largest = after.amax(-1, keepdim=True).detach()
        caught_up = (before < before.amax(-1, keepdim=True)) & (after >= largest)
        below = torch.nextafter(largest, torch.full_like(largest, -torch.inf))
        return torch.where(caught_up & self._one_scale()[:, None, None].to(after.device), below, after)


class Calibrator(Protocol):
    """Settings that can be fitted; a row of CALIBRATORS."""

    needs: ClassVar[tuple[str, ...]]  # the fields of Evidence it reads beyond source logits, labels and weight

    def fit(self, evidence: Evidence) -> Calibration: ...
