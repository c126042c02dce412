"""Checkpoints, and what determines a training's result, so that no checkpoint is continued by another training."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bearcat.cat import networks
from bearcat.cat.calibrators import find_calibrator
from bearcat.cat.recipes import Recipe
from bearcat.errors import InputError
from bearcat.plugins import row_identity
from bearcat.storage import digest, digest_json, load_tensors, save_tensors

if TYPE_CHECKING:
    from bearcat.cat.algorithm import Run
    from bearcat.cat.state import TrainingState

RESULT_VERSION = 9  # raise it whenever the same settings, seed and data give another result


def recipe_rows(recipe: Recipe) -> dict[str, Any]:
    """Everything a recipe is made of whose code may be a user's own, by name."""
    rows: dict[str, Any] = {f"ingredients.{each.name}": each for each in recipe.ingredients}
    calibrators = {"calibration": recipe.calibration, "final": recipe.final}
    rows |= {name: find_calibrator(text) for name, text in calibrators.items() if text is not None}
    return rows | {"encoder": networks.find_encoder(recipe.encoder)}


def identify(runs: Sequence[Run]) -> str:
    """A hash of everything that determines the result, so that a checkpoint is never continued by another training."""
    parts = []
    for run in runs:
        labelled = run.data.source_train, run.data.source_test
        arrays = [*(array for part in labelled for array in (part.values, part.labels)), run.data.target_train.values]
        content = digest(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        code = {name: row_identity(row) for name, row in recipe_rows(run.recipe).items()}
        parts.append([RESULT_VERSION, run.recipe.to_dict(), code, run.seed, list(run.data.classes), content])
    return digest_json(parts)


class Checkpoint:
    """A file from which an interrupted training goes on, if there is a path; written at most every few seconds."""

    def __init__(
        self, state: TrainingState, runs: Sequence[Run], path: Path | None, seconds: float, precision: str,
        identity: str | None,
    ) -> None:  # fmt: skip
        self.state, self.path, self.seconds, self.saved_at = state, path, seconds, time.monotonic()
        if path is not None:
            self.identity = digest_json([identity or identify(runs), precision])
            if path.exists():
                resume(state, path, self.identity)

    def save_if_due(self) -> None:
        """Writes it after the first and the last epoch, and where enough time has passed."""
        due = time.monotonic() - self.saved_at > self.seconds
        if self.path is not None and (due or self.state.epoch in (1, self.state.recipe.schedule.epochs)):
            save(self.state, self.path, self.identity)
            self.saved_at = time.monotonic()


def save(state: TrainingState, path: Path, identity: str) -> None:
    """Writes a checkpoint. Order and dropout are functions of the seed, so weights, moments and a count suffice."""
    tensors = {
        f"{part}.{name}": value
        for part, network in state.networks().items()
        for name, value in network.state_dict().items()
    }
    for part, optimiser in state.optimisers.items():
        for number, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{part}.{number}.{name}": value for name, value in moments.items()}
    tensors |= {f"history.{name}": torch.stack(values) for name, values in state.history.items()}
    tensors |= {"draw": state.randomness.draw, "finite": state.finite}
    metadata = {
        "identity": identity, "epoch": state.epoch, "teacher": state.teacher is not None,
        "history": list(state.history),  # tensors come back in another order
    }  # fmt: skip
    save_tensors(path, tensors, metadata)


def resume(state: TrainingState, path: Path, identity: str) -> None:
    """Puts everything back to what it was when the checkpoint was written."""
    tensors, metadata = load_tensors(path)
    if metadata.get("identity") != identity:
        raise InputError(
            f"{path}: belongs to another training (settings, code, seed or data); use another --out or delete it"
        )
    if metadata["teacher"]:
        state.teacher = copy.deepcopy(state.student).requires_grad_(False)
    try:
        for part, network in state.networks().items():
            network.load_state_dict(_with_prefix(tensors, f"{part}."))
        for part, optimiser in state.optimisers.items():
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in _with_prefix(tensors, f"adam.{part}.").items():
                number, _, kind = name.partition(".")
                moments.setdefault(int(number), {})[kind] = value
            optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
        state.randomness.draw.copy_(tensors["draw"])
        state.finite.copy_(tensors["finite"])
        state.history = {name: list(tensors[f"history.{name}"].unbind(0)) for name in metadata["history"]}
        state.epoch = int(metadata["epoch"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: is damaged and cannot be continued; delete it to start again") from error


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
