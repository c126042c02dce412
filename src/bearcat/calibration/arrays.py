"""Reading the inputs of this package: numpy or torch, with or without the run axis.

>>> sample = read(logits, labels)                        # (window, class) and (window,), or with a run axis before
>>> like(logits, sample.weight.sum(1))                   # a number for (window, class), one per run otherwise
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bearcat.errors import InputError

AnyArray = Tensor | NDArray[Any]
Array = TypeVar("Array", Tensor, NDArray[Any])  # what comes in as numpy goes out as numpy, torch as torch


@dataclass(frozen=True, eq=False)
class Sample:
    """Scores (run, window, class), labels (run, window) and weight (run, window) float64 on one device.

    Where the weight is 0 the score and the label are 0 too, so that padding can hold anything, NaN included.
    """

    scores: Tensor
    labels: Tensor
    weight: Tensor

    def shares(self) -> Tensor:
        """Weights that sum to one in each run, zeros for a run without any, (run, window)."""
        total = self.weight.sum(1, keepdim=True)
        return torch.where(total > 0, self.weight / total, 0.0)

    def accuracy(self) -> Tensor:
        """The share of windows whose largest score is that of their label, (run,)."""
        return (self.shares() * (self.scores.argmax(dim=-1) == self.labels)).sum(dim=1)


def as_tensor(values: AnyArray) -> Tensor:
    """A tensor without history; numpy (and lists) are copied, since torch warns about read-only memory."""
    return values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))


def like(given: Array, result: Tensor) -> Array:
    """A result (run, …) as numpy if the input (run, window, class) was, and without the run axis if it had none."""
    result = result if np.ndim(given) == 3 else result[0]
    if isinstance(given, Tensor):
        return result
    return result.numpy()[()]  # a numpy scalar rather than an array without axes


def read(
    scores: AnyArray,
    labels: AnyArray,
    weight: AnyArray | None = None,
    names: tuple[str, str, str] = ("probabilities", "labels", "weight"),
) -> Sample:
    """Check shapes and clean padding. Values are checked on the CPU only: a GPU would have to be waited for."""
    of_scores, of_labels, of_weight = names
    tensor = as_tensor(scores)
    if tensor.ndim not in (2, 3) or tensor.shape[-1] == 0:
        raise InputError(
            f"{of_scores} must have the axes (run, window, class) or (window, class), not the shape"
            f" {tuple(tensor.shape)}"
        )
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    stacked = tensor.ndim == 3
    tensor = tensor if stacked else tensor[None]
    target = _windows(labels, tensor, stacked, of_labels)
    if target.is_floating_point():
        raise InputError(f"{of_labels} must be whole numbers (class indices), not {target.dtype}")
    tensor, present = _cleaned(tensor, weight, stacked, of_weight)
    target = target.long() if target.shape[1] else torch.zeros_like(present, dtype=torch.int64)
    target = torch.where(present != 0, target, 0)
    if tensor.device.type == "cpu":
        if not (torch.isfinite(present) & (present >= 0)).all():
            raise InputError(
                f"{of_weight} must be finite and not negative; give 0 to the windows that should not count"
            )
        if not ((target >= 0) & (target < tensor.shape[-1])).all():
            raise InputError(
                f"{of_labels} must lie in 0 … {tensor.shape[-1] - 1}, the classes of {of_scores};"
                " give weight 0 to unlabelled windows"
            )
    return Sample(tensor, target, present)


def read_features(features: AnyArray | None, weight: AnyArray | None, name: str) -> tuple[Tensor, Tensor]:
    """Features (run, window, feature) and weight (run, window) in float64, zeros where the weight is 0."""
    if features is None:
        raise InputError(f"{name} is missing from the evidence; this calibrator compares domains by their features")
    tensor = as_tensor(features).double()
    stacked = tensor.ndim == 3
    if tensor.ndim not in (2, 3):
        raise InputError(f"{name} must have the axes (run, window, feature), not the shape {tuple(tensor.shape)}")
    tensor = tensor if stacked else tensor[None]
    return _cleaned(tensor, weight, stacked, name.replace("features", "weight"))


def _cleaned(values: Tensor, weight: AnyArray | None, stacked: bool, name: str) -> tuple[Tensor, Tensor]:
    """Values (run, window, any), 0 where the weight is, and the weight (run, window) in float64, by default 1."""
    if weight is None:
        present = torch.ones(values.shape[:2], dtype=torch.float64, device=values.device)
    else:
        present = _windows(weight, values, stacked, name).double()
    if values.shape[1] == 0:  # no window at all is the same as one that does not count
        values = values.new_zeros(values.shape[0], 1, values.shape[2])
        present = present.new_zeros(values.shape[:2])
    return torch.where((present != 0)[..., None], values, 0.0), present


def _windows(values: AnyArray, beside: Tensor, stacked: bool, name: str) -> Tensor:
    """One value per window, (run, window), on the device of what it stands beside."""
    tensor = as_tensor(values).to(beside.device)
    tensor = tensor if stacked else tensor[None]
    if tensor.shape != beside.shape[:2]:
        raise InputError(
            f"{name} must hold one value per window, shape {tuple(beside.shape[(not stacked) : 2])},"
            f" not {tuple(tensor.shape[(not stacked) :])}"
        )
    return tensor
