"""Everything that changes while runs are trained: how it begins, its history, its checkpoints, its scores."""

from __future__ import annotations

import math
import sys
import time
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from bearcat.cat import networks, published
from bearcat.cat.calibration import Calibration, scores
from bearcat.cat.ingredient import BeforeTraining, Ingredient, Loss, Prepared, TargetFinding
from bearcat.cat.networks import InputScaling, Network, build_network, initialise, predict
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.cat.teacher import SelfTraining, copy_of
from bearcat.data.recording import Integers
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.errors import InputError
from bearcat.fast.device import Batches, choose_precision, fast_path, padded_stack, stack_data, stack_key
from bearcat.fast.stacked import Randomness, path_of, use_path
from bearcat.storage import digest_json, load_tensors, tensor_bytes, write_atomically

if TYPE_CHECKING:
    from bearcat.cat.algorithm import Run

FEW_RUNS = 4  # of a dense network, whose products are too small to share
# Weights of a plain module that one thread trains: a transformer of 18 000 took 1.6 and 6 s with one thread, 16 and 17
# with two, while other programs kept both cores busy.
SMALL_MODULE = 100_000
RESULT_VERSION = 9  # raise it whenever the same settings, seed and data give another result
EVERY = 60.0  # seconds from one line of progress in a log to the next
SAVE_EVERY = 20.0  # seconds from one checkpoint to the next
STUDENT, DROPOUT = 20, 22  # streams of randomness; modules of losses have their own (Loss.stream)


@dataclass(eq=False)
class TrainingState:
    """Networks, optimiser and what is known of each epoch. Recorded steps use its tensors in place. At the end it is
    what training leaves behind.
    """

    recipe: Recipe
    student: Network
    modules: dict[str, nn.Module]  # of ingredients, by name
    adam: torch.optim.Adam  # of the student and the modules
    batches: Batches
    randomness: Randomness
    finite: Tensor  # (run,) bool: the loss never turned NaN or infinite
    precision: str = "float32"  # or "tf32", "bfloat16": of products on a GPU, and of the activations Triton stores
    recordings: Sequence[Integers] = ()  # of each run's target windows; each its own where they are not known
    checks: Sequence[Mapping[str, Integers]] = ()  # what check models say of them (diagnosis/accuracy.py)
    findings: Sequence[TargetFinding | None] = ()  # of each run: what was found in its windows before training
    history: dict[str, Tensor] = field(default_factory=dict)  # (epoch, run) by name, NaN where there was no number
    epoch: int = 0
    teacher: Network | None = None
    calibration: Calibration | None = None  # of this epoch; at the end of the finished network, by `final` if given
    source_calibration: Calibration | None = None  # at the end, by the calibrator that training used
    thresholds: Tensor | None = None  # (run, class), of this epoch
    pseudo_labels: Tensor | None = None  # (run, target window) of this epoch, −1 where none
    totals: dict[str, Tensor] = field(default_factory=dict)  # this epoch's means over steps, (run,) each
    phase: Hashable = None  # steps of a phase do the same, and are recorded once

    @property
    def run_count(self) -> int:
        return len(self.finite)

    @property
    def network(self) -> Network:
        """The one whose predictions count: the teacher, or the student while there is none."""
        return self.student if self.teacher is None else self.teacher

    @property
    def recordable(self) -> bool:
        """Whether a GPU can record steps. A user's own code may ask the device, which no recording allows."""
        losses = [part for part in self.recipe.ingredients if isinstance(part, Loss)]
        return not isinstance(self.student.encoder, networks.PlainModule) and all(loss.recordable for loss in losses)

    @property
    def small(self) -> bool:
        """Whether the networks are so small that one thread trains them."""
        encoder = self.student.encoder
        if isinstance(encoder, networks.PlainModule):
            return sum(weight.numel() for weight in encoder.parameters()) <= SMALL_MODULE
        return isinstance(encoder, networks.DenseEncoder) and self.run_count <= FEW_RUNS

    @property
    def kernels(self) -> dict[str, str]:
        """Of each part ("encoder", losses with a module): "plain", "triton" or "native"."""
        return {name: path_of(part) for name, part in {"encoder": self.student.encoder, **self.modules}.items()}

    @property
    def parameters(self) -> int:
        """How many numbers are trained in each run, with those of losses' modules."""
        modules = self.student, *self.modules.values()
        return sum(weight.numel() for module in modules for weight in module.parameters()) // self.run_count

    def with_target(self, epoch: int) -> bool:
        """Whether a batch has target windows."""
        joint = self.recipe.published and epoch >= self.recipe.schedule.align_from
        return joint or any(part.uses_target for part in self.recipe.on(Ingredient, epoch))

    def ramps(self, epoch: int) -> dict[str, list[float]]:
        """The numbers that losses rise by, one for each step of the epoch, as iterations proceed."""
        recipe, steps = self.recipe, self.batches.iterations
        found: dict[str, list[float]] = {}
        for loss in recipe.on(Loss, epoch):
            start = loss.start(recipe.schedule)
            done, whole = (epoch - start) * steps, (recipe.schedule.epochs - start) * steps
            counted = [published.steps_counted(loss, step) if recipe.published else step for step in range(steps)]
            found[loss.name] = [loss.ramp((done + step) / whole) for step in counted]
        return found

    def start_epoch(self, epoch: int) -> None:
        """Sets the epoch and its learning rate; in place where that lies on a GPU, so that recorded steps see it."""
        self.epoch, rate = epoch, self.recipe.schedule.learning_rate(epoch)
        for group in self.adam.param_groups:
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate

    def start_totals(self, epoch: int) -> None:
        """Begins to add up an epoch's numbers; in a new phase there may be others."""
        schedule = self.recipe.schedule
        phase = epoch >= schedule.align_from, epoch >= schedule.label_from, self.calibration is not None
        if phase != self.phase:
            self.phase = phase
            self.totals.clear()
        for total in self.totals.values():
            total.zero_()

    def add(self, name: str, value: Tensor) -> None:
        """Counts a step's number (run,) into the epoch's mean."""
        total = self.totals.setdefault(name, torch.zeros_like(value))
        total += value.detach() / self.batches.iterations

    def remember(self, name: str, value: Tensor) -> None:
        """Writes a number (run,) of this epoch into the history."""
        empty = torch.full((self.recipe.schedule.epochs, self.run_count), math.nan)
        self.history.setdefault(name, empty)[self.epoch] = value.detach().to("cpu", torch.float32)

    def finish_epoch(self) -> None:
        """Writes the epoch's means into the history; a run whose loss is no number is marked, and the others go on."""
        for name, value in self.totals.items():
            self.remember(name, value)
        broken = ~torch.stack([value.isfinite() for value in self.totals.values()]).all(dim=0)
        for parameter in self.student.parameters():
            broken = broken | ~parameter.isfinite().view(self.run_count, -1).all(dim=1)
        self.finite &= ~broken
        if not bool(self.finite.all()):  # zeros cannot spread: logits, and all that follows from them, stay finite
            tensors = [tensor for network in self.networks().values() for tensor in network.state_dict().values()]
            moments = self.adam.state.values()
            for tensor in (*tensors, *(state[name] for state in moments for name in ("exp_avg", "exp_avg_sq"))):
                tensor[~self.finite] = 0
        if self.calibration is not None:
            self.remember("temperature", self.calibration.temperature)
            self.remember("temperature_at_bound", self.calibration.at_bound.to(torch.float32))
        if self.thresholds is not None:
            for label in range(self.thresholds.shape[1]):
                self.remember(f"threshold_{label}", self.thresholds[:, label])

    def networks(self) -> dict[str, nn.Module]:
        """Student, teacher where there is one, and modules of losses, by name."""
        teacher = {} if self.teacher is None else {"teacher": self.teacher}
        return {"student": self.student, **teacher, **{f"module-{name}": part for name, part in self.modules.items()}}


def begin(runs: Sequence[Run], device: torch.device) -> TrainingState:
    """The state before the first step: the data as preparations leave it, networks, modules and optimisers, each run's
    from its own seed.
    """
    recipe = runs[0].recipe
    if any(stack_key(run) != stack_key(runs[0]) for run in runs):
        raise InputError("runs of a stack need the same method, windows of one shape and number, and the same classes")
    prepared = [prepare(run) for run in runs]
    seeds = [run.seed for run in runs]
    batches = stack_data([run.data for run in prepared], seeds, recipe.schedule.batch, device, recipe.balance)
    classes, dtype = len(runs[0].data.classes), batches.source_train.dtype
    _, _, channels, points = batches.source_train.shape
    student = build_network(
        recipe.encoder, len(seeds), channels, points, classes, recipe.dropout, networks.run_seed(seeds[0], STUDENT)
    )
    initialise(student, seeds, STUDENT)
    modules: dict[str, nn.Module] = {}
    for loss in (part for part in recipe.ingredients if isinstance(part, Loss)):
        module = loss.build(len(seeds), student.head.weight.shape[2], classes, recipe.dropout)
        if module is not None:
            initialise(module, seeds, loss.stream or zlib.crc32(loss.name.encode()))
            modules[loss.name] = module
    scaling = [run.scaling for run in prepared if run.scaling is not None]
    if scaling:
        parts = zip(*(part.buffers() for part in scaling), strict=True)
        student.scaling = InputScaling(*(torch.cat(list(tensors)) for tensors in parts))

    learning: list[nn.Module] = [student, *modules.values()]
    for network in learning:
        network.to(device, dtype)
    weights = [weight for network in learning for weight in network.parameters() if weight.requires_grad]
    on_gpu, schedule = device.type == "cuda", recipe.schedule
    rate = torch.tensor(schedule.rate, device=device) if on_gpu else schedule.rate
    adam = torch.optim.Adam(weights, lr=rate, weight_decay=schedule.weight_decay, fused=True, capturable=on_gpu)
    keys = [int(np.random.SeedSequence([seed, DROPOUT]).generate_state(1)[0]) for seed in seeds]
    single = dtype == torch.float32  # Triton's kernels are for nothing else
    path = fast_path(device) if single or device.type == "cpu" else "plain"
    encoder_path = path if getattr(student.encoder, "narrow", False) else "plain"
    precision = choose_precision(recipe.precision, encoder_path, device)
    use_path(learning, path, precision)
    return TrainingState(
        recipe, student, modules, adam, batches,
        Randomness(torch.tensor(keys, dtype=torch.int64, device=device)),
        finite=torch.ones(len(seeds), dtype=torch.bool, device=device), precision=precision,
        recordings=[
            target.recording if len(target.recording) else np.arange(len(target))
            for target in (run.data.target_train for run in runs)
        ],
        checks=[run.checks or {} for run in runs],
        findings=[run.finding for run in prepared],
    )  # fmt: skip


def prepare(run: Run) -> Prepared:
    """A run's data as its preparations leave it, what the network begins with, and what was found."""
    whole = Prepared(run.data)
    for ingredient in run.recipe.on(BeforeTraining, 0):
        part = ingredient.prepare(whole.data)
        if part.scaling is not None and whole.scaling is not None:
            raise InputError("a method scales its input by one ingredient; leave the others out")
        whole = Prepared(part.data, part.scaling or whole.scaling, part.finding or whole.finding)
    return whole


class Checkpoint:
    """A file from which an interrupted training goes on, if there is a path; written at most every few seconds.

    `identity` names what determines the result, so that no other training continues it. Order and dropout are functions
    of the seed, so weights, moments and a count suffice.
    """

    def __init__(self, state: TrainingState, path: Path | None, identity: str) -> None:
        self.state, self.path, self.saved_at = state, path, time.monotonic()
        self.identity = digest_json([identity, state.precision])
        if path is not None and not identity:
            raise InputError("a checkpoint needs an identity that names what is trained; give one")
        if path is not None and path.exists():
            self.resume(path)

    def save_if_due(self) -> None:
        """Writes it after the first and the last epoch, and where enough time has passed."""
        state, due = self.state, time.monotonic() - self.saved_at > SAVE_EVERY
        if self.path is None or not (due or state.epoch + 1 in (1, state.recipe.schedule.epochs)):
            return
        tensors = {"draw": state.randomness.draw, "finite": state.finite}
        for part, network in state.networks().items():
            tensors |= {f"{part}.{name}": value for name, value in network.state_dict().items()}
        for number, moments in state.adam.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": value for name, value in moments.items()}
        tensors |= {f"history.{name}": values for name, values in state.history.items()}
        metadata = {
            "identity": self.identity, "epoch": state.epoch + 1, "teacher": state.teacher is not None,
            "history": list(state.history),  # tensors come back in another order
        }  # fmt: skip
        write_atomically(self.path, tensor_bytes(tensors, metadata))
        self.saved_at = time.monotonic()

    def resume(self, path: Path) -> None:
        """Restores the saved state."""
        tensors, metadata = load_tensors(path)
        if metadata.get("identity") != self.identity:
            raise InputError(
                f"{path}: belongs to another training (settings, code, seed or data); use another --out or delete it"
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        state = self.state
        if metadata["teacher"]:
            state.teacher = copy_of(state.student)
        try:
            for name, network in state.networks().items():
                network.load_state_dict(part(f"{name}."))
            moments: dict[int, dict[str, Tensor]] = {}
            for place, value in part("adam.").items():
                number, _, kind = place.partition(".")
                moments.setdefault(int(number), {})[kind] = value
            state.adam.load_state_dict(state.adam.state_dict() | {"state": moments})
            state.randomness.draw.copy_(tensors["draw"])
            state.finite.copy_(tensors["finite"])
            state.history = {name: tensors[f"history.{name}"].clone() for name in metadata["history"]}
            state.epoch = int(metadata["epoch"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise InputError(f"{path}: is damaged and cannot be continued; delete it to start again") from error


def watcher(held_back: Sequence[HeldBack], device: torch.device) -> Callable[[TrainingState], dict[str, Tensor]]:
    """Evaluates the networks after every epoch: scores of student and teacher, and the accuracy of pseudo-labels."""
    target = padded_stack([np.asarray(held.target_test.values) for held in held_back], 0, device)
    target_labels = padded_stack([held.target_test_labels for held in held_back], UNKNOWN, device)
    train_labels = padded_stack([held.target_train_labels for held in held_back], UNKNOWN, device)

    def watch(state: TrainingState) -> dict[str, Tensor]:
        measured: dict[str, Tensor] = {}
        source = state.batches.source_test, state.batches.source_test_labels
        for name, network in {"student": state.student, "teacher": state.teacher}.items():
            for domain, (values, labels) in {"source": source, "target": (target, target_labels)}.items():
                if network is not None:
                    calibration = state.calibration if network is state.network else None
                    found = scores(predict(network, values)[0], calibration, labels)
                    for score in ("accuracy", "ece", "ece_uncalibrated"):
                        measured[f"{domain}_{score}_{name}"] = found[score]
        if state.pseudo_labels is not None:
            selected = (state.pseudo_labels >= 0) & (train_labels != UNKNOWN)
            right = (state.pseudo_labels == train_labels) & selected
            measured["pseudo_label_accuracy"] = right.sum(dim=1) / selected.sum(dim=1)  # 0/0 is nan: none was selected
        return measured

    return watch


def unchanged(name: str, recipe: Recipe, history: Mapping[str, Tensor], run: int) -> tuple[str, ...]:
    """That T was 1 in all epochs, if so: the calibrator changed nothing, and the method is the one without it."""
    if recipe.find(SelfTraining) is None or "temperature" not in history:
        return ()
    temperature = history["temperature"][:, run]  # NaN before T_cal, and where it is more than a temperature
    if bool(temperature.isnan().all() | (temperature.nan_to_num(1.0) != 1).any()):
        return ()
    plain = replace(RECIPES[name], calibration=None, final=None) if name in RECIPES else None
    twin = next((other for other, row in RECIPES.items() if row == plain), "the same method without a calibrator")
    return (f"{name} equals {twin} here: T = 1 in all epochs",)


@contextmanager
def training_progress(name: str, epochs: int) -> Iterator[Callable[[TrainingState], None]]:
    """Shows epoch, losses, share of target windows labelled, temperature and time left, on standard error."""
    began = printed = time.monotonic()
    terminal = sys.stderr.isatty()

    def show(state: TrainingState) -> None:
        nonlocal printed
        now, done = time.monotonic(), state.epoch + 1
        if not terminal and now - printed < EVERY:
            return
        printed = now
        last = {key: float(values[state.epoch, 0]) for key, values in state.history.items()}
        last = {key: value for key, value in last.items() if not math.isnan(value)}
        text = "loss " + "+".join(f"{value:.2f}" for key, value in last.items() if key.startswith("loss_"))
        if "pseudo_label_share" in last:
            text += f" {last['pseudo_label_share']:.0%} labelled"
        if "temperature" in last:
            text += f" T {last['temperature']:.1f}"
        left = timedelta(seconds=round((now - began) / done * (epochs - done)))
        text = f"{name}: epoch {done} of {epochs}, {text}, {left} left"
        print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal:
            print(file=sys.stderr)
