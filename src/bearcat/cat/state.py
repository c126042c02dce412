"""Everything that changes while a stack is trained, and `Recorder`, which runs the steps that change it.

Ingredients act on the state; the loop saves and resumes it. A step runs as it is on a CPU, as a CUDA graph on a GPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bearcat.cat import Calibration
from bearcat.cat.networks import Network
from bearcat.cat.recipes import Schedule
from bearcat.errors import InputError
from bearcat.fast.batches import Batches, Checked, gather
from bearcat.fast.stacked import Randomness, mixed
from bearcat.storage import load_tensors, save_tensors


@dataclass(eq=False)
class TrainingState:
    """Networks, optimisers, and what ingredients leave for each other and for the history; recorded steps read and
    write it where it lies.
    """

    student: Network
    modules: dict[str, nn.Module]  # of ingredients, by name
    optimisers: dict[str, torch.optim.Adam]  # "student", and of the modules by name
    batches: Batches
    schedule: Schedule
    classes: int
    randomness: Randomness
    finite: Tensor  # (run,) bool: the loss never turned NaN or infinite
    checks: Sequence[Checked] = ()  # of each run's target windows
    history: dict[str, list[Tensor]] = field(default_factory=dict)
    epoch: int = 0
    teacher: Network | None = None
    calibration: Calibration | None = None  # of this epoch
    thresholds: Tensor | None = None  # (run, class), of this epoch
    pseudo_labels: Tensor | None = None  # (run, target window + 1) of this epoch, −1 where none; last: padding
    supported: Tensor | None = None  # (run, target window + 1): the label a rule of selection supports, −1 where none
    # This step's pseudo-labels, which of them are used, (run, batch), and the probabilities they were made of.
    batch_labels: tuple[Tensor, Tensor, Tensor] | None = None
    totals: dict[str, Tensor] = field(default_factory=dict)  # this epoch's means over steps, (run,) each

    @property
    def runs(self) -> int:
        return len(self.finite)

    @property
    def reported(self) -> Network:
        """The network whose predictions count: the teacher, or the student while there is none."""
        return self.student if self.teacher is None else self.teacher

    @torch.no_grad()
    def predict_in_training(self, network: Network, epoch: int, live: bool) -> tuple[Tensor, Tensor]:
        """Logits of the target's training windows and which are there, batch by batch in an order of the epoch.

        The network is in training mode: with batch statistics, which move its own, and `live` dropout, whose draws are
        a function of the epoch, so that longer neighbours in the stack change nothing.
        """
        order = [torch.from_numpy(part).to(self.finite.device) for part in self.batches.target_pass(epoch)]
        draws = Randomness(mixed(self.randomness.key + 1))
        draws.draw.fill_(epoch << 20)
        found = []
        for index, present in zip(order[0].unbind(1), order[1].unbind(1), strict=True):
            draws.next()
            done = ~present.any(dim=1)  # runs of fewer batches: whatever goes through moves no statistics
            before = [statistic.clone() for statistic in network.buffers()]
            mask = None if bool(present.all()) else present | done[:, None]
            windows = gather(self.batches.target_train, index)
            found.append(network(windows, True, draws if live else None, mask)[0])
            for statistic, earlier in zip(network.buffers(), before, strict=True):
                statistic[done] = earlier[done]
        return torch.cat(found, dim=1), order[1].flatten(1)

    def add(self, name: str, value: Tensor) -> None:
        """Counts a step's number (run,) into the epoch's mean."""
        total = self.totals.setdefault(name, torch.zeros_like(value))
        total += value.detach() / self.batches.iterations

    def remember(self, name: str, value: Tensor) -> None:
        """Appends to the history; epochs before a number first existed are nan."""
        values = self.history.setdefault(name, [])
        self._pad(values)
        values.append(value.detach().to("cpu", torch.float32, copy=True))  # the next epoch reuses the place

    def pad_history(self) -> None:
        """Fills up what ended before the last epoch with nan."""
        for values in self.history.values():
            self._pad(values)

    def _pad(self, values: list[Tensor]) -> None:
        missing = torch.full((self.runs,), math.nan)
        values.extend(missing for _ in range(self.epoch - len(values)))

    def finish_epoch(self) -> None:
        """Writes the epoch's means into the history; a run whose loss is no number is marked, and the others go on."""
        for name, value in self.totals.items():
            self.remember(name, value)
        broken = ~torch.stack([value.isfinite() for value in self.totals.values()]).all(dim=0)
        for parameter in self.student.parameters():
            broken = broken | ~parameter.isfinite().view(self.runs, -1).all(dim=1)
        self.finite &= ~broken
        if not bool(self.finite.all()):  # zeros cannot spread: logits, and all that follows from them, stay finite
            tensors = [each for network in self._networks().values() for each in network.state_dict().values()]
            moments = [each for optimiser in self.optimisers.values() for each in optimiser.state.values()]
            for tensor in (*tensors, *(each[name] for each in moments for name in ("exp_avg", "exp_avg_sq"))):
                tensor[~self.finite] = 0
        if self.calibration is not None:
            self.remember("temperature", self.calibration.temperature)
            self.remember("temperature_at_bound", self.calibration.at_bound.to(torch.float32))
        if self.thresholds is not None:
            for label in range(self.thresholds.shape[1]):
                self.remember(f"threshold_{label}", self.thresholds[:, label])

    def _networks(self) -> dict[str, nn.Module]:
        networks: dict[str, nn.Module] = {"student": self.student}
        networks |= {} if self.teacher is None else {"teacher": self.teacher}
        return networks | {f"module-{name}": module for name, module in self.modules.items()}

    def save(self, path: Path, identity: str) -> None:
        """Writes a checkpoint. Order and dropout are functions of the seed, so weights, moments and a count suffice."""
        tensors = {
            f"{part}.{name}": value
            for part, network in self._networks().items()
            for name, value in network.state_dict().items()
        }
        for part, optimiser in self.optimisers.items():
            for number, moments in optimiser.state_dict()["state"].items():
                tensors |= {f"adam.{part}.{number}.{name}": value for name, value in moments.items()}
        tensors |= {f"history.{name}": torch.stack(values) for name, values in self.history.items()}
        tensors |= {"draw": self.randomness.draw, "finite": self.finite}
        metadata = {
            "identity": identity, "epoch": self.epoch, "teacher": self.teacher is not None,
            "history": list(self.history),  # tensors come back in another order
        }  # fmt: skip
        save_tensors(path, tensors, metadata)

    def resume(self, path: Path, identity: str) -> None:
        """Puts everything back to what it was when the checkpoint was written."""
        tensors, metadata = load_tensors(path)
        if metadata.get("identity") != identity:
            raise InputError(
                f"{path}: belongs to another training (settings, code, seed or data); use another --out or delete it"
            )
        if metadata["teacher"]:
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        try:
            for part, network in self._networks().items():
                network.load_state_dict(_with_prefix(tensors, f"{part}."))
            for part, optimiser in self.optimisers.items():
                moments: dict[int, dict[str, Tensor]] = {}
                for name, value in _with_prefix(tensors, f"adam.{part}.").items():
                    number, _, kind = name.partition(".")
                    moments.setdefault(int(number), {})[kind] = value
                optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
            self.randomness.draw.copy_(tensors["draw"])
            self.finite.copy_(tensors["finite"])
            self.history = {name: list(tensors[f"history.{name}"].unbind(0)) for name in metadata["history"]}
            self.epoch = int(metadata["epoch"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise InputError(f"{path}: is damaged and cannot be continued; delete it to start again") from error


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def put_back(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Undoes a perturbation of the weights."""
    torch._foreach_copy_(list(parameters), list(before))
