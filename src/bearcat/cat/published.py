"""What the published code does otherwise than its text or than our default: all of it, and nothing else.

`published=true` sets these options; docs/method.md has a table of what each of them costs. The loop calls the functions
below where an option asks for them.

>>> RECIPES["CAT*-Temperature"].with_settings({"published": "true"}).passes
'separate'
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bearcat.cat.ingredient import Tensor, device, functional, scaling, stacked, torch

if TYPE_CHECKING:
    from bearcat.cat.calibration import Sample
    from bearcat.cat.networks import Network
    from bearcat.cat.recipes import Recipe
    from bearcat.cat.state import TrainingState

OPTIONS = {
    "teacher.dropout": "true", "teacher.early": "true", "labels.counts": "uncalibrated",
    "labels.counts_mode": "training", "labels.first_counts": "early", "labels.relabel": "true",
    "uniformity.scaled": "true", "alignment.progress": "iterations from 1", "cdan.progress": "iterations from 1",
    "mk-mmd.progress": "epochs", "jmmd.progress": "epochs", "coral.progress": "epochs", "calibrate": "end",
    "precision": "float32",
}  # fmt: skip
WITH_TEACHER = {"passes": "separate", "doubled": "true", "confusion.climbed": "labels"}
WITHOUT_TEACHER = {"passes": "joint", "target_pass": "true", "confusion.climbed": "on"}
CALIBRATORS_OPTIONS = {
    "Temperature": {"bounds": "none"},
    "CPCS": {"bounds": "none", "solver": "scikit-learn"},
    "Vector": {"solver": "sgd"},
    "Matrix": {"solver": "sgd"},
}
SGD_STEPS, SGD_RATE, SGD_MOMENTUM = 5000, 0.01, 0.9  # of vector and matrix scaling


def settings_of(recipe: Recipe, with_teacher: bool) -> dict[str, str]:
    """The options that apply to a recipe, by the names that `--method-set` takes."""
    calibrator = (recipe.calibration or "").partition(":")[0]
    parts = {ingredient.name for ingredient in recipe.ingredients} | ({"teacher"} if with_teacher else set())
    options = OPTIONS | (WITH_TEACHER if with_teacher else WITHOUT_TEACHER)
    return {name: text for name, text in options.items() if name.partition(".")[0] in parts or "." not in name} | {
        f"calibration.{name}": text for name, text in CALIBRATORS_OPTIONS.get(calibrator, {}).items()
    }


def passes(recipe: Recipe, source: Tensor, target: Tensor, joint: bool) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Windows of each pass of the student, and the sizes of its parts with statistics of their own.

    Ours is one pass of both domains, each with its own. `passes=joint`: from T_DA on one batch of both, with statistics
    of both together. `passes=separate`: losses of alignment read such a pass, the others one of each domain.
    """
    both, sizes = torch.cat([source, target], dim=1), (source.shape[1], target.shape[1])
    if joint:
        return [(both, ())]
    if not sizes[1]:
        return [(source, ())]
    return [(source, ()), (target, ())] if recipe.doubled else [(both, sizes)]


def predict_in_training(state: TrainingState, network: Network, live: bool) -> Tensor:
    """Logits of the target's training windows, batch by batch in an order of the epoch, of a network in training mode:
    with batch statistics, which move its own, and `live` dropout, whose draws are a function of the epoch.

    `target_pass=true`: each epoch begins with such a pass of the student, which no loss reads.
    `labels.counts_mode=training`: the teacher counts in one, and its running statistics become its own.
    """
    data, epoch = state.batches, state.epoch
    draws = stacked.Randomness(stacked.mixed(state.randomness.key + 1))
    draws.draw.fill_(epoch << 20)
    logits = []
    with torch.no_grad():
        for places in data.target_pass(epoch):
            draws.next()
            windows = device.gather(data.target_train, torch.from_numpy(places).to(state.finite.device))
            logits.append(network(windows, True, draws if live else None)[0])
    return torch.cat(logits, dim=1)


def searched(
    sample: Sample, logits: Tensor, weights: Tensor, loss: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """`calibration.bounds=none`: temperature (run,) by Nelder and Mead's search for T from 2, run by run, where every
    window that counts stops it somewhere on the way if it is right (the loss falls as T goes to 0), which is returned.
    """
    from scipy.optimize import fmin

    temperatures, degenerate = [], []
    for rows in zip(logits.cpu(), sample.labels.cpu(), weights.cpu(), strict=True):
        values, labels, shares = (row[rows[2] > 0] for row in rows)

        def at(place: Any, parts: Sequence[Tensor] = (values, labels, shares)) -> float:
            return float(loss(parts[0] / float(place[0]), parts[1], parts[2]))

        temperatures.append(float(fmin(at, 2.0, disp=False)[0]))
        degenerate.append(bool((values.gather(-1, labels[:, None]) == 0).all()))
    place = sample.scores.device
    return torch.tensor(temperatures, dtype=torch.float64, device=place), torch.tensor(degenerate, device=place)


def descended(inputs: Tensor, axes: str, sample: Sample, unchanged: Tensor) -> Tensor:
    """`calibration.solver=sgd`: vector and matrix scaling by gradient descent from "no change", without a ridge."""
    parameters, hit = unchanged.repeat(len(inputs), 1, 1), functional.one_hot(sample.labels, len(unchanged))
    shares = sample.shares()
    velocity = torch.zeros_like(parameters)
    for _ in range(SGD_STEPS):
        likely = torch.einsum(f"{axes},rcf->rwc", inputs, parameters).softmax(-1)
        gradient = torch.einsum(f"rwc,{axes}->rcf", shares[..., None] * (likely - hit), inputs)
        velocity = SGD_MOMENTUM * velocity + gradient
        parameters = parameters - SGD_RATE * velocity
    return parameters


def oversampled(windows: tuple[int, int], seeds: Tensor) -> tuple[Tensor, Tensor]:
    """CPCS's `calibration.solver=scikit-learn`: windows of both domains (run, windows of the larger), the smaller's
    drawn with replacement.
    """
    size = max(windows)

    def draw(count: int, stream: int) -> Tensor:
        if count == size:
            return torch.arange(count, device=seeds.device).expand(len(seeds), -1)
        return (scaling.random_integers(2 * seeds + stream, size) % count).sort(dim=1).values

    return draw(windows[0], 0), draw(windows[1], 1)


def domain_regression(source: Tensor, target: Tensor) -> Tensor:
    """`calibration.solver=scikit-learn`: weights and offset (run, feature + 1) by LogisticRegression in float32, target
    against source.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    coefficients = []
    for rows in zip(source.cpu(), target.cpu(), strict=True):
        of_source = torch.arange(2).flip(0).repeat_interleave(len(rows[0]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression().fit(torch.cat(rows).float().numpy(), of_source.numpy())
        coefficients.append([*-model.coef_[0], *-model.intercept_])
    return torch.tensor(coefficients, dtype=torch.float64, device=source.device)
