"""Where the published code differs from our default.

`published=true` is one switch; docs/method.md has a table of what each difference costs. The loop (algorithm.py) calls
`start_epoch`, `follows_from`, `climbs` and `student_inputs`, makes pseudo-labels anew for SAM's second pass, and fits
the calibration at an epoch's end instead of its start; state.py calls `steps_counted` and draws target windows in every
method from T_DA on; scaling.py calls the calibrators' searches, at the end of this file.

>>> RECIPES["CAT*-Temperature"].with_settings({"published": "true"}).calibration
Temperature(bounds=None)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from bearcat.cat import scaling, teacher
from bearcat.cat.teacher import SelfTraining
from bearcat.fast.device import Batch, gather
from bearcat.fast.stacked import Randomness, mixed

if TYPE_CHECKING:
    from bearcat.cat.calibration import Sample
    from bearcat.cat.ingredient import Loss
    from bearcat.cat.networks import Network
    from bearcat.cat.recipes import Recipe
    from bearcat.cat.state import TrainingState

# Labels of the source (run, batch), and windows of each pass with the sizes of parts that have statistics of their own.
StudentInputs = tuple[Tensor, list[tuple[Tensor, tuple[int, ...]]]]
# Settings that go with it, of the recipe, of its ingredients and of its calibrator.
OPTIONS = {"precision": "float32", "uniformity.scaled": "true"}
CALIBRATORS_OPTIONS = {
    "Temperature": {"bounds": "none"},
    "CPCS": {"bounds": "none", "solver": "scikit-learn"},
    "Vector": {"solver": "sgd"},
    "Matrix": {"solver": "sgd"},
}
BY_EPOCH = ("mk-mmd", "jmmd", "coral")  # losses whose ramp advances by epoch
FROM_ONE = ("alignment", "cdan")  # losses whose ramp counts iterations from 1
SGD_STEPS, SGD_RATE, SGD_MOMENTUM = 5000, 0.01, 0.9  # of vector and matrix scaling


def settings_of(recipe: Recipe) -> dict[str, str]:
    """The settings that go with `published=true`, by the names that `--method-set` takes."""
    calibrator, parts = type(recipe.calibration).__name__, {part.name for part in recipe.ingredients}
    options = {name: text for name, text in OPTIONS.items() if "." not in name or name.partition(".")[0] in parts}
    return options | {f"calibration.{name}": text for name, text in CALIBRATORS_OPTIONS.get(calibrator, {}).items()}


def steps_counted(loss: Loss, step: int) -> int:
    """How many steps of this epoch a loss's ramp has behind it at a step."""
    return 0 if loss.name in BY_EPOCH else step + (loss.name in FROM_ONE)


def follows_from(recipe: Recipe) -> int:
    """The first epoch in which the teacher follows the student."""
    return min(recipe.schedule.align_from, recipe.schedule.label_from)


def climbs(recipe: Recipe, loss: Loss, epoch: int) -> bool:
    """Whether SAM climbs a loss on the target: with a teacher not MCC before T_PL."""
    return recipe.find(SelfTraining) is None or loss.name != "confusion" or epoch >= recipe.schedule.label_from


def start_epoch(state: TrainingState) -> None:
    """Begins every epoch with a pass of the target's training windows in training mode, of which no loss knows.

    A method with a teacher has it from the first epoch on, as an untrained copy: the pass goes through it, so that its
    running statistics become its own, and the thresholds count what it predicts; at T_PL it is overwritten by the
    student after it has counted. Without a teacher the pass goes through the student.
    """
    recipe, schedule, epoch = state.recipe, state.recipe.schedule, state.epoch
    if recipe.calibration and epoch > schedule.calibrate_from and state.calibration is None:
        teacher.update_calibration(state, recipe.calibration)  # what the epoch before a resume ended with
    settings = recipe.find(SelfTraining)
    if settings is None:
        predict_in_training(state, state.student, live=True)
        return
    if state.teacher is None:
        state.teacher = teacher.copy_of(state.student)
    counted = predict_in_training(state, state.teacher, settings.teacher.dropout)
    if epoch >= schedule.label_from:
        teacher.set_thresholds(settings, state, counted)
    if epoch == schedule.label_from:
        teacher.ema_update(state.teacher, state.student, 0.0)


def predict_in_training(state: TrainingState, network: Network, live: bool) -> Tensor:
    """Logits of the target's training windows, batch by batch in an order of the epoch, of a network in training mode:
    with batch statistics, which move its own, and `live` dropout, whose draws are a function of the epoch.
    """
    data, epoch = state.batches, state.epoch
    draws = Randomness(mixed(state.randomness.key + 1))
    draws.draw.fill_(epoch << 20)
    logits = []
    with torch.no_grad():
        for places in data.target_pass(epoch):
            draws.next()
            windows = gather(data.target_train, torch.from_numpy(places).to(state.finite.device))
            logits.append(network(windows, True, draws if live else None)[0])
    return torch.cat(logits, dim=1)


def student_inputs(recipe: Recipe, batch: Batch, losses: Sequence[Loss]) -> list[StudentInputs]:
    """What goes through the student for these losses: labels of the source, and windows pass by pass. The last entry is
    for losses that compare the domains, the first for all others.

    Without a teacher both domains are one joint batch from T_DA on. With one the source goes through twice, for two
    draws of dropout, then the target, and both jointly for the losses that compare them.
    """
    source, target, labels = batch.source, batch.target, batch.labels
    joint: StudentInputs = labels, [(torch.cat([source, target], dim=1), ())]
    if recipe.find(SelfTraining) is None:
        return [joint]
    others = [loss for loss in losses if loss.uses_target and not loss.aligns]
    doubled = [torch.cat([part, part], dim=1) for part in (labels, source)]
    apart: StudentInputs = doubled[0], [(windows, ()) for windows in (doubled[1], target)[: 1 + bool(others)]]
    return [apart, joint] if any(loss.aligns for loss in losses) else [apart]


def searched(
    sample: Sample, logits: Tensor, weights: Tensor, loss: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """`calibration.bounds=none`: temperature (run,) by Nelder and Mead's search from T = 2, run by run. Where all
    windows that count are right the loss falls as T goes to 0; the search then stops at some T, which is marked.
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
