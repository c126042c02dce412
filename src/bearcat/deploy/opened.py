"""Models as they are opened: dense layers of a folder in numpy, ONNX files, and torch where a network needs it.

>>> open_model(Path("out/model")).outputs(windows)   # windows as recorded (window, channel, sample)
>>> open_model(Path("bearing.onnx"))                 # pip install 'bearcat[runtime]'
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Speed
from bearcat.data.windows import Preparation
from bearcat.deploy.predictor import IN_GRAPH, Array, Predictor, check_format, naming, read_metadata
from bearcat.diagnosis.pooling import Familiarity, Outputs
from bearcat.errors import InputError
from bearcat.storage import digest, digest_json, read_json, read_regular

WEIGHTS, METADATA = "weights.safetensors", "model.json"
GENERAL = Path(__file__).parents[1] / "general"  # the model of benchmarks/general_model.py
DENSE = ("dense", "linear")  # encoders that need no torch
CACHED = 16  # windows at once: what lies between two layers stays in a core's cache (benchmarks/recording_speed.py)
Parts = dict[str, dict[str, Array]]  # tensors by what they are of: network, calibration, familiarity


def open_model(path: Path) -> Predictor:
    """The model in a folder, or in a file that ends in .onnx; `general` is the one that comes with the package."""
    path = GENERAL if str(path) == GENERAL.name and not (Path(path) / "model.json").exists() else Path(path)
    if path.suffix.lower() == ".onnx":
        return replace(load_onnx(path, threads=1), place=path)
    try:
        if (found := open_folder(path)) is not None:
            return replace(found, place=path)
        from bearcat.deploy.model import load_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        instead = f"pip install {error.name}, or use the file that bearcat export writes elsewhere"
        raise InputError(f"{path}: this model folder needs {error.name}; {instead}") from error
    return replace(load_model(path), place=path)


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
    starts = range(0, max(len(windows), 1), CACHED)
    features = np.concatenate([_dense(weights, windows[start : start + CACHED]) for start in starts])
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
    fields = read_metadata(metadata)
    parts: Parts = {"network": {}, "calibration": {}, "familiarity": {}}
    for name, array in load(content).items():
        kind, _, inner = name.partition(".")
        parts.setdefault(kind, {})[inner] = array
    known = parts["familiarity"]
    return metadata, parts, fields | {"familiarity": Familiarity.from_state(known) if known else None}


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


def _session(content: bytes, threads: int | None) -> Any:
    """An ONNX graph in onnxruntime. Several threads may run it at once."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # newer versions report home
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("running ONNX needs an extra; pip install 'bearcat[runtime]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait leave the core
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class for every kind of damage, all children of Exception
        raise InputError("is no ONNX file that onnxruntime can read; export the model again") from error


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxModel(Predictor):
    """A graph and its metadata. The graph takes windows as recorded where it holds its input (IN_GRAPH)."""

    session: Any

    @property
    def calibrated(self) -> bool:
        return bool(self.metadata["calibrated"])

    def outputs(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Outputs:
        given, length = np.ascontiguousarray(windows, dtype=np.float32), self.preparation.length
        if given.ndim != 3 or given.shape[1:] != (self.channels, length):
            raise InputError(f"windows must have the shape (window, {self.channels}, {length}), not {given.shape}")
        return self.classify(given) if self.input in IN_GRAPH else super().outputs(given, rpm, bearing)

    def classify(self, values: Array) -> Outputs:
        (given,), names = self.session.get_inputs(), ["log_probabilities", "logits", "features"]
        starts = range(0, max(len(values), 1), CACHED)
        try:
            parts = [self.session.run(names, {given.name: values[start : start + CACHED]}) for start in starts]
        except Exception as error:  # onnxruntime has a class for every kind of failure, all children of Exception
            raise InputError(f"the graph of this ONNX file fails ({type(error).__name__}); export it again") from error
        return Outputs(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def load_onnx(path: Path, threads: int | None = None) -> OnnxModel:
    """A file written by `export_onnx`; `threads`: how many cores a call may use (all where None)."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    with naming(path, "cannot be read"):
        session = _session(read_regular(path), threads)
    texts: dict[str, str] = session.get_modelmeta().custom_metadata_map
    if "bearcat_format" not in texts:
        raise InputError(f"{path}: is an ONNX file, but not one of bearcat's; write it with bearcat export")
    with naming(path, "has damaged metadata"):
        check_format(int(texts["bearcat_format"]), path)
        metadata = {name: json.loads(text) for name, text in texts.items()}
        fields, known = read_metadata(metadata), metadata.pop("familiarity")
        familiarity = None if known is None else _decoded(known)
        _check_graph(session, metadata, fields["preparation"], familiarity)
        return OnnxModel(session=session, familiarity=familiarity, **fields)


def _check_graph(
    session: Any, metadata: Mapping[str, Any], preparation: Preparation, familiarity: Familiarity | None
) -> None:
    """ValueError where the graph takes or gives something else than its metadata say."""
    taken, given = (  # their axes but the first
        {node.name: list(node.shape[1:]) for node in nodes} for nodes in (session.get_inputs(), session.get_outputs())
    )
    if (within := preparation.input in IN_GRAPH) and taken != {"windows": [metadata["channels"], preparation.length]}:
        raise ValueError("the graph takes other windows")
    if not within and "windows" in taken:
        raise InputError(f"holds its input '{preparation.input}', as graphs of an older bearcat do; export it again")
    if not within and taken != {"values": [metadata["channels"], preparation.points]}:
        raise ValueError("the graph takes other values")
    expected = {name: [len(metadata["classes"])] for name in ("probabilities", "log_probabilities", "logits")}
    if given | expected != given:
        raise ValueError("the graph gives other outputs")
    width = given.get("features", [])
    known = width if familiarity is None else [familiarity.features.shape[1]]
    if width != known or [type(size) for size in width] != [int]:
        raise ValueError("the graph gives other features")


def _decoded(encoded: Mapping[str, Any]) -> Familiarity:
    """A familiarity as `export_onnx` writes it: arrays as their shape and their bytes in base64, and numbers."""
    state = dict(encoded)
    for name, value in encoded.items():
        if isinstance(value, dict):
            kind = "<f2" if len(value["shape"]) == 2 else "<f4"
            content = base64.b64decode(value["base64"], validate=True)
            state[name] = np.frombuffer(content, dtype=kind).reshape(value["shape"])
    return Familiarity.from_state(state)
