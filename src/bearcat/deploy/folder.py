"""A trained model in its folder. Dense layers run in numpy, so that a diagnosis starts without torch.

>>> model = open_folder(Path("out/model"))
>>> model.outputs(windows)             # windows as recorded (window, channel, sample)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.deploy.predictor import BATCH, FOLDER, Array, Predictor, check_format, check_metadata, naming
from bearcat.diagnosis.pooling import Familiarity, Outputs
from bearcat.errors import InputError
from bearcat.storage import digest, digest_json, read_json, read_regular

WEIGHTS, METADATA = "weights.safetensors", "model.json"
DENSE = ("dense", "linear")  # encoders that need no torch
Parts = dict[str, dict[str, Array]]  # tensors by what they are of: network, calibration, familiarity


@dataclass(frozen=True, eq=False, kw_only=True)
class NumpyModel(Predictor):
    """Dense layers with ReLU and a linear head; arrays are without the axis of runs."""

    network: Mapping[str, Array]
    calibration: Mapping[str, Array] | None

    @property
    def calibrated(self) -> bool:
        return self.calibration is not None and not bool(self.calibration["at_bound"])

    def classify(self, values: Array) -> Outputs:
        logits, features = forward(self.network, values)
        calibrated = logits if self.calibration is None else _calibrated(logits, self.calibration)
        highest = calibrated.max(axis=-1, keepdims=True)
        total = np.log(np.exp(calibrated - highest).sum(axis=-1, keepdims=True))
        return Outputs(calibrated - highest - total, logits, features)


def forward(weights: Mapping[str, Array], windows: Array) -> tuple[Array, Array]:
    """Logits (window, class) and features (window, feature) of prepared windows (window, channel, point)."""
    if "scaling.mean" in weights:
        windows = (windows - weights["scaling.mean"]) * weights["scaling.factor"]
    starts = range(0, max(len(windows), 1), BATCH)
    features = np.concatenate([_dense(weights, windows[start : start + BATCH]) for start in starts])
    return features @ weights["head.weight"].T + weights["head.bias"], features


def _dense(weights: Mapping[str, Array], windows: Array) -> Array:
    values, number = windows.reshape(len(windows), math.prod(windows.shape[1:])), 0
    while (weight := weights.get(f"encoder.dense.{number}.weight")) is not None:
        values = np.maximum(values @ weight.T + weights[f"encoder.dense.{number}.bias"], 0)
        number += 1
    return values


def _calibrated(logits: Array, calibration: Mapping[str, Array]) -> Array:
    """matrix @ (scale · logits) + bias, in float32, as bearcat.cat.calibration has it."""
    result = logits * calibration["scale"].astype(np.float32)
    if "matrix" in calibration:
        result = (result @ calibration["matrix"].T).astype(np.float32)
    return np.asarray(result + calibration["bias"].astype(np.float32))


def open_folder(folder: Path) -> NumpyModel | None:
    """The model in this folder; None where its encoder needs torch (deploy/model.py)."""
    folder = Path(folder)
    with naming(folder, "is a damaged model folder"):
        metadata, parts, fields = read_folder(folder)
        if metadata["encoder"].partition(":")[0] not in DENSE:
            return None
        network, calibration = (
            {name: array[0] for name, array in parts[kind].items()} for kind in ("network", "calibration")
        )
        model = NumpyModel(**fields, network=network, calibration=calibration if metadata["calibrated"] else None)
        tried = model.classify(np.zeros((1, model.channels, model.preparation.points), dtype=np.float32))
        if tried.log_probabilities.shape[1] != len(model.classes):
            raise ValueError("its layers give other classes")
        if model.familiarity is not None and tried.features.shape[1] != model.familiarity.features.shape[1]:
            raise ValueError("its layers give other features")
        return model


def read_folder(folder: Path) -> tuple[dict[str, Any], Parts, dict[str, Any]]:
    """Metadata, tensors and the fields of a Predictor, checked against the checksums."""
    from safetensors.numpy import load

    _check_place(folder)
    metadata = read_json(folder / METADATA)
    check_format(metadata["format"], folder)
    weights = folder / _weights_name(metadata)
    content = read_regular(weights)
    if digest(content) != metadata["sha256"]:
        raise InputError(f"{folder}: {weights.name} does not match {METADATA}; copy or train the model again")
    if metadata.pop("seal") != digest_json(metadata):
        raise InputError(f"{folder}: {METADATA} was changed; copy or train the model again")
    check_metadata(metadata, str(folder), FOLDER)
    parts: Parts = {"network": {}, "calibration": {}, "familiarity": {}}
    for name, array in load(content).items():
        kind, _, inner = name.partition(".")
        parts.setdefault(kind, {})[inner] = array
    known = parts["familiarity"]
    fields = Predictor.fields_of(metadata) | {"familiarity": Familiarity.from_state(known) if known else None}
    return metadata, parts, fields


def _check_place(folder: Path) -> None:
    """InputError says what to give instead, where this is no model folder."""
    if folder.is_file():
        exported = folder.suffix.lower() == ".onnx"
        instead = "the folder it was exported from" if exported else "the model's folder, or a file that ends in .onnx"
        raise InputError(f"{folder}: is a file; give {instead}")
    present = any(folder.glob("weights*.safetensors"))
    for name, there in ((METADATA, (folder / METADATA).exists()), (WEIGHTS, present)):
        if not there:
            place = folder / "model"  # where bearcat adapt puts it, if it is the run's folder that was given
            instead = f"give {place}" if (place / METADATA).exists() else "bearcat adapt writes one, OUT/model"
            raise InputError(f"{folder}: is no model folder, {name} is missing; {instead}")


def _weights_name(metadata: Mapping[str, Any]) -> str:
    """The file of the weights, which lies in the model's folder."""
    name = str(metadata.get("weights", WEIGHTS))  # models of earlier versions do not say it
    if not re.fullmatch(r"weights(-[0-9a-f]{12})?\.safetensors", name):
        raise ValueError("it names other weights")
    return name
