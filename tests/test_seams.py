"""A new ingredient, calibrator, input or encoder is one short file outside the package: it trains, is evaluated, saved,
predicts and is exported. The files are examples/add_*.py, which docs/extend.md shows.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bearcat.cat import CALIBRATORS
from bearcat.cat.algorithm import Run, train
from bearcat.cat.networks import ENCODERS
from bearcat.cat.recipes import RECIPES
from bearcat.data.inputs import INPUTS
from tests.test_train import CPU, SHORT, toy

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = (
    "--set", "seconds=0.8", "--set", "severities=4", "--set", "faults=inner,outer", "--window", "256", "--epochs", "4",
)  # fmt: skip
SEAMS = {
    "add_an_ingredient.py": ("--method", "my-CORAL", "--input", "frequency"),
    "add_a_calibrator.py": ("--method", "CAT-MeanConfidence", "--input", "frequency"),
    "add_an_input.py": ("--method", "DANN", "--input", "my-log-spectrum:bands=40"),
    "add_a_torch_module.py": (
        "--method",
        "DANN",
        "--input",
        "frequency",
        "--method-set",
        "encoder=my-network:width=16",
    ),
}


TABLES = (RECIPES, CALIBRATORS, INPUTS, ENCODERS)


@pytest.fixture
def tables() -> Iterator[Callable[[], None]]:
    """Takes the rows that an example added out of their tables, when called and when the test ends."""
    before = [dict(table) for table in TABLES]

    def put_back() -> None:
        for table, rows in zip(TABLES, before, strict=True):
            table.clear()
            table.update(rows)

    yield put_back
    put_back()


@pytest.fixture
def example(tables: Callable[[], None]) -> Callable[[str], dict[str, Any]]:
    """Runs an example's file, whose row is in its table until the test ends."""
    return lambda name: runpy.run_path(str(EXAMPLES / name))


def test_runs_of_a_new_ingredient_stack(example):
    example("add_an_ingredient.py")
    recipe = replace(RECIPES["my-CORAL"], schedule=replace(SHORT, epochs=5), dropout=0.0)
    runs = [Run(recipe, toy(seed, dtype=np.float64), seed) for seed in range(2)]
    together = train(runs, CPU)
    for number, run in enumerate(runs):
        alone = train([run], CPU)
        for name, value in alone.network.state_dict().items():
            torch.testing.assert_close(together.network.state_dict()[name][number], value[0], rtol=1e-6, atol=1e-9)
    assert (together.history["loss_coral"][3:] > 0).all()
