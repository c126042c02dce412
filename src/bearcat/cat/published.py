"""What the published code does otherwise than its text or than our default: all of it, and nothing else.

`published=true` sets these options; docs/method.md has a table of what each of them costs. The loop calls the functions
below where an option asks for them.

>>> RECIPES["CAT*-Temperature"].with_settings({"published": "true"}).passes
'separate'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bearcat.cat.ingredient import Deferred

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bearcat.cat.networks import Network
    from bearcat.cat.recipes import Recipe
    from bearcat.cat.state import TrainingState
    from bearcat.cat.teacher import SelfTraining
    from bearcat.fast import batches, stacked
    from bearcat.fast.batches import Batch
else:
    torch, stacked = Deferred("torch"), Deferred("bearcat.fast.stacked")
    batches = Deferred("bearcat.fast.batches")

OPTIONS = {
    "teacher.statistics": "target", "teacher.dropout": "true", "teacher.early": "true",
    "labels.average": "batch", "labels.counts": "uncalibrated", "labels.counts_mode": "training",
    "labels.first_counts": "early", "labels.relabel": "true", "uniformity.scaled": "true",
    "sharpness.scope": "task", "alignment.reduction": "mean", "alignment.progress": "iterations from 1",
    "cdan.progress": "iterations from 1", "mk-mmd.progress": "epochs", "jmmd.progress": "epochs",
    "coral.progress": "epochs", "calibrate": "end", "precision": "float32",
}  # fmt: skip
WITH_TEACHER = {"passes": "separate", "doubled": "true", "confusion.climbed": "labels"}
WITHOUT_TEACHER = {"passes": "joint", "target_pass": "true", "confusion.climbed": "on"}
CALIBRATORS_OPTIONS = {
    "Temperature": {"bounds": "none"},
    "CPCS": {"bounds": "none", "resampling": "over", "solver": "scikit-learn"},
    "TransCal": {"solver": "slsqp", "start": "100"},
    "Vector": {"solver": "sgd"},
    "Matrix": {"solver": "sgd"},
}


def settings_of(recipe: Recipe, with_teacher: bool) -> dict[str, str]:
    """The options that apply to a recipe, by the names that `--method-set` takes."""
    calibrator = (recipe.calibration or "").partition(":")[0]
    parts = {each.name for each in recipe.ingredients} | ({"teacher"} if with_teacher else set())
    wanted = OPTIONS | (WITH_TEACHER if with_teacher else WITHOUT_TEACHER)
    return {name: text for name, text in wanted.items() if name.partition(".")[0] in parts or "." not in name} | {
        f"calibration.{name}": text for name, text in CALIBRATORS_OPTIONS.get(calibrator, {}).items()
    }


def passes(recipe: Recipe, batch: Batch, with_target: bool, joint: bool) -> tuple[Batch, list[Batch], int]:
    """Which passes of the student a loss reads, and of how many domains each is: ours are one of both domains.

    `passes=joint`: from T_DA on one batch of both domains, with statistics of both together. `passes=separate`: losses
    of alignment read such a pass; the others one of the source, with `doubled=true` twice over, and one of the target.
    """
    if joint or recipe.passes == "joint":
        return batch, [batch], 1
    batch = batch.doubled() if recipe.doubled else batch
    if not with_target:
        return batch.of_source, [batch.of_source], 1
    return (batch, [batch.of_source, batch.of_target], 1) if recipe.doubled else (batch, [batch], 2)


def counting_pass(labels: SelfTraining, state: TrainingState) -> tuple[Tensor, Tensor] | None:
    """`labels.counts_mode=training`: the teacher counts in training mode, and its running statistics become its own."""
    if labels.counts_mode != "training" or state.teacher is None:
        return None
    return predict_in_training(state, state.teacher, labels.teacher.dropout)


def move_statistics(state: TrainingState) -> None:
    """`target_pass=true`: each epoch begins with a pass of the target through the student, which no loss reads."""
    predict_in_training(state, state.student, live=True)


def predict_in_training(state: TrainingState, network: Network, live: bool) -> tuple[Tensor, Tensor]:
    """Logits of the target's training windows and which are there, batch by batch in an order of the epoch.

    The network is in training mode: with batch statistics, which move its own, and `live` dropout, whose draws are a
    function of the epoch, so that longer neighbours in the stack change nothing.
    """
    data, epoch = state.batches, state.epoch
    order = [torch.from_numpy(part).to(state.finite.device) for part in data.target_pass(epoch)]
    draws = stacked.Randomness(stacked.mixed(state.randomness.key + 1))
    draws.draw.fill_(epoch << 20)
    found = []
    with torch.no_grad():
        for index, present in zip(order[0].unbind(1), order[1].unbind(1), strict=True):
            draws.next()
            done = ~present.any(dim=1)  # runs of fewer batches: whatever goes through moves no statistics
            before = [statistic.clone() for statistic in network.buffers()]
            mask = None if bool(present.all()) else present | done[:, None]
            windows = batches.gather(data.target_train, index)
            found.append(network(windows, True, draws if live else None, mask)[0])
            for statistic, earlier in zip(network.buffers(), before, strict=True):
                statistic[done] = earlier[done]
    return torch.cat(found, dim=1), order[1].flatten(1)
