"""What determines a training's result, so that a checkpoint is never continued by another training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bearcat.cat import networks
from bearcat.cat.calibrators import find_calibrator
from bearcat.cat.recipes import Recipe
from bearcat.plugins import row_identity
from bearcat.storage import digest, digest_json

if TYPE_CHECKING:
    from bearcat.cat.algorithm import Run

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
