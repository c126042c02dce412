"""A new ingredient, calibrator, input or encoder is one short file outside the package: it trains, is evaluated, saved,
predicts and is exported. The files are examples/add_*.py, which the pages docs/add-*.md show.
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

from bearcat.cat import CALIBRATORS, Evidence
from bearcat.cat.algorithm import Run, train
from bearcat.cat.ingredient import View
from bearcat.cat.networks import ENCODERS
from bearcat.cat.recipes import RECIPES
from bearcat.data.inputs import INPUTS, find_input
from bearcat.deploy.model import export_onnx, load_model
from bearcat.errors import InputError
from tests.test_train import CPU, SHORT, toy

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = (
    "--set", "seconds=0.8", "--set", "severities=4", "--set", "faults=inner,outer", "--window", "256", "--epochs", "4",
)  # fmt: skip
SEAMS = {
    "add_an_ingredient.py": ("--recipe", "my-CORAL", "--input", "frequency"),
    "add_a_calibrator.py": ("--recipe", "CAT-MeanConfidence", "--input", "frequency"),
    "add_an_input.py": ("--recipe", "DANN", "--input", "my-log-spectrum:bands=40"),
    "add_an_encoder.py": ("--recipe", "DANN", "--input", "frequency", "--recipe-set", "encoder=my-dense:widths=64,32"),
    "add_a_torch_module.py": (
        "--recipe",
        "DANN",
        "--input",
        "frequency",
        "--recipe-set",
        "encoder=my-transformer:width=16",
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


def test_coral_is_its_formula(example):
    coral = example("add_an_ingredient.py")["Coral"]()
    random = torch.Generator().manual_seed(0)
    features = torch.randn(2, 14, 5, generator=random, dtype=torch.float64)
    present = torch.rand(2, 14, generator=random) > 0.2
    view = View(
        8, features, features, present, torch.zeros(2, 8), None, None, None, None, None, ramp=torch.tensor([0.5])  # type: ignore[arg-type]
    )  # fmt: skip
    for run in range(2):
        source = features[run, :8][present[run, :8]].numpy()
        target = features[run, 8:][present[run, 8:]].numpy()
        gap = np.cov(source.T, bias=True) - np.cov(target.T, bias=True)
        assert float(coral.loss(view)[run]) == pytest.approx(0.5 * (gap**2).sum() / (4 * 25))


def test_mean_confidence_makes_confidence_the_accuracy_on_the_source(example):
    calibrator = example("add_a_calibrator.py")["MeanConfidence"]()
    logits = 5 * torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    labels, wrong = logits.argmax(dim=-1), torch.tensor([[24], [12]])  # of sixty
    labels = torch.where(torch.arange(60) < wrong, (labels + 1) % 4, labels)
    evidence = Evidence(
        source_logits=logits, source_labels=labels, target_logits=logits, target_weight=torch.ones(2, 60)
    )
    fitted = calibrator.fit(evidence)
    sure = fitted.probabilities(logits).amax(dim=-1).mean(dim=1)
    torch.testing.assert_close(sure, torch.tensor([0.6, 0.8]), rtol=1e-4, atol=1e-4)


def test_the_log_spectrum_does_not_know_the_gain(example):
    example("add_an_input.py")
    windows = np.random.default_rng(0).standard_normal((3, 1, 256)).astype(np.float32)
    found = find_input("my-log-spectrum:bands=16")
    assert found.transform(windows).shape == (3, 1, 16)
    assert found.transform(8 * windows) == pytest.approx(found.transform(windows), abs=1e-4)


def test_an_input_without_a_torch_form_is_not_exported_and_says_so(tmp_path, monkeypatch):
    from bearcat.data.inputs import Waveform
    from tests.test_artefact import made_model, save_model

    class Closed(Waveform):
        def torch_form(self, length, rate=None):
            return None

    monkeypatch.setitem(INPUTS, "closed", Closed)
    save_model(tmp_path / "model", made_model("closed"))
    with pytest.raises(InputError, match="'closed' has no torch form"):
        export_onnx(load_model(tmp_path / "model"), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
