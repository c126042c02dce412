"""A trained model as a folder: weights and calibration in safetensors, the rest in JSON. Loading executes nothing.

    model/
      weights.safetensors     the reported network (teacher, or student) and its calibration
      model.json              format, classes, preprocessing, recipe, SHA-256 of the weights

>>> model = load_model(Path("out/model"))
>>> model.probabilities(windows)       # prepared windows (window, channel, time) → (window, class), calibrated
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bearcat import checkpoint
from bearcat.calibration import Calibration
from bearcat.data.prepare import Preparation
from bearcat.errors import InputError
from bearcat.evaluate import predict
from bearcat.models import Student

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Model:
    """One network, its calibration, and what must be done to a recording before it sees it."""

    network: Student
    calibration: Calibration | None
    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    told: dict[str, Any]  # recipe and task, for people

    def probabilities(self, values: np.ndarray, calibrated: bool = True) -> np.ndarray:
        """(window, channel, time) prepared windows → (window, class)."""
        logits, _ = predict(self.network, torch.from_numpy(np.ascontiguousarray(values))[None])
        if calibrated and self.calibration is not None:
            logits = self.calibration.apply(logits)
        result: np.ndarray = logits.softmax(dim=-1)[0].numpy()
        return result


def save_model(folder: Path, model: Model) -> None:
    tensors = {f"network.{name}": value for name, value in model.network.state_dict().items()}
    if model.calibration is not None:
        tensors |= {f"calibration.{name}": value for name, value in model.calibration.state().items()}
    weights = folder / "weights.safetensors"
    _, _, channels, _ = model.network.encoder.convolutions[0].weight.shape  # type: ignore[misc]
    checkpoint.save(weights, tensors, {"format": FORMAT})
    told = {
        "format": FORMAT,
        "classes": list(model.classes),
        "channels": channels,
        "preparation": asdict(model.preparation),
        "rate": model.rate,
        "calibrated": model.calibration is not None,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        **model.told,
    }
    (folder / "model.json").write_text(json.dumps(told, indent=1, ensure_ascii=False))


def load_model(folder: Path) -> Model:
    """The model in this folder, checked against its checksum; one sentence where anything is missing or damaged."""
    try:
        told = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        weights = (folder / "weights.safetensors").read_bytes()
        if told["format"] > FORMAT:
            raise InputError(f"{folder}: was written by a newer bearcat (format {told['format']}); upgrade bearcat")
        if hashlib.sha256(weights).hexdigest() != told["sha256"]:
            raise InputError(f"{folder}: weights.safetensors does not match model.json; copy or train the model again")
        tensors, _ = checkpoint.load(folder / "weights.safetensors")
        preparation = Preparation(**told["preparation"])
        network = Student(1, told["channels"], preparation.points, len(told["classes"]))
        _load(network, tensors, "network.")
        state = {k.removeprefix("calibration."): v for k, v in tensors.items() if k.startswith("calibration.")}
        calibration = Calibration.from_state(state) if told["calibrated"] else None
        return Model(network, calibration, tuple(told["classes"]), preparation, told["rate"], told)
    except FileNotFoundError as error:
        raise InputError(f"{folder}: is no model folder, {Path(str(error.filename)).name} is missing") from error
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{folder}: is a damaged model folder ({type(error).__name__}); train the model again"
        ) from error


def _load(network: Student, tensors: dict[str, torch.Tensor], prefix: str) -> None:
    network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
