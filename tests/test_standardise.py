"""Standardising: what it does to source and target, that the model keeps it, and that a stack does as its runs do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bearcat.cat import Confusion
from bearcat.cat.algorithm import Run, train
from bearcat.cat.ingredient import Prepared
from bearcat.cat.networks import predict, select_run
from bearcat.cat.recipes import GROUPS, Recipe, Schedule
from bearcat.data.tasks import Labelled, TrainingData, Unlabelled
from bearcat.errors import InputError
from bearcat.methods import Standardise, unadapted

pytestmark = pytest.mark.usefixtures("narrow_classifier")
CPU = torch.device("cpu")
PHYSICAL = GROUPS["ours, on physical inputs"]
SHORT = Schedule(epochs=3, batch=16, align_from=1, drops=())


def points(seed: int = 0, windows: int = 24, domains: int = 1) -> TrainingData:
    """Points (window, 1, 6) around a centre per class; each domain has an offset and a factor of its own."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(3, 6))

    def make(count, offset, factor):
        labels = np.arange(count) % 3
        values = (centres[labels] + 0.2 * random.normal(size=(count, 6))) * factor + offset
        return values[:, None].astype(np.float32), labels

    def labelled(count):
        domain = np.repeat(np.arange(domains), count)
        values = make(len(domain), 5.0 * domain[:, None], 1.0 + domain[:, None])
        return Labelled(*values, np.empty(0, dtype=np.int64), domain)

    return TrainingData(tuple("abc"), labelled(windows), labelled(12), Unlabelled(*make(windows, -3.0, 0.5)))


def scaled(prepared: Prepared, values: np.ndarray) -> np.ndarray:
    """The windows as the network sees them."""
    return prepared.scaling(torch.from_numpy(values)[None])[0].numpy()


@pytest.mark.parametrize("domains", [1, 2])
def test_each_domain_is_centred_and_scaled_by_itself(domains):
    data = points(domains=domains)
    for part in (data.source_train, data.target_train):
        part.values[:, :, 2] = 7.0  # which keeps its scale
    prepared = Standardise("domain").prepare(data)
    source = prepared.data.source_train
    for values in (*(source.values[source.domain == part] for part in range(domains)), data.target_train.values):
        np.testing.assert_allclose(scaled(prepared, values).mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(scaled(prepared, values).std(axis=0), [[1, 1, 0, 1, 1, 1]], atol=1e-4)


def test_a_stack_does_as_its_runs_do_and_a_run_taken_out_of_it_too():
    recipe = Recipe((Standardise(), Confusion()), encoder="dense:widths=8", schedule=SHORT, dropout=0.0)
    runs = [Run(recipe, points(seed), seed) for seed in range(2)]
    together = train(runs, CPU)
    for number, run in enumerate(runs):
        windows = torch.from_numpy(run.data.target_train.values)[None]
        expected, _ = predict(train([run], CPU).network, windows)
        taken = select_run(together.network, number, recipe.encoder, 1, 6)
        torch.testing.assert_close(taken(windows)[0], expected, rtol=1e-4, atol=1e-4)


def accuracy_after_a_change_of_level(name: str) -> float:
    data = points(windows=120)
    trained = train([Run(replace(PHYSICAL[name].in_epochs(12), dropout=0.0), data, 0)], CPU)
    logits, _ = predict(trained.network, torch.from_numpy(data.target_train.values)[None])
    return float((logits[0].argmax(dim=-1) == torch.arange(120) % 3).float().mean())


@pytest.mark.parametrize("name", [name for name, recipe in PHYSICAL.items() if recipe.adapts])
def test_recipes_on_physical_inputs_follow_a_change_of_level_and_source_only_does_not(name):
    assert accuracy_after_a_change_of_level(name) > 0.95
    assert accuracy_after_a_change_of_level(unadapted(PHYSICAL[name])[0]) < 0.8


def test_a_recipe_scales_by_one_ingredient_and_by_what_is_known():
    class Second(Standardise):
        name = "second"

    twice = Recipe((Standardise(), Second()), encoder="linear", schedule=SHORT)
    with pytest.raises(InputError, match="one ingredient"):
        train([Run(twice, points(), 0)], CPU)
    with pytest.raises(InputError, match="by"):
        Standardise("day")
