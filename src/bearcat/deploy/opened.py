"""Opens models: folders with dense layers in numpy, ONNX files, and other folders with torch.

A model may be untrusted, so types and ranges of its metadata are checked before anything else is read.

>>> open_model(Path("out/model")).outputs(windows)   # windows as recorded (window, channel, sample)
>>> open_model(Path("bearing.onnx"))                 # pip install 'bearcat[runtime]'
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.inputs import Preparation, find_input
from bearcat.data.recording import Speed
from bearcat.diagnosis.decision import CHECK, REFUSE, USE, Decision
from bearcat.diagnosis.pooling import Familiarity, Outputs
from bearcat.errors import InputError, check_range
from bearcat.settings import from_plain, to_plain
from bearcat.storage import digest, digest_json, read_json, read_regular

FORMAT, GRAPH_FORMAT = 3, 4  # of folders and ONNX files; increased when old readers would misunderstand new models
WEIGHTS, METADATA = "weights.safetensors", "model.json"
GENERAL = Path(__file__).parents[1] / "general"  # the model of benchmarks/general_model.py
DENSE = ("dense", "linear")  # encoders that need no torch
CACHED = 16  # windows at once: activations stay in a core's cache (benchmarks/recording_speed.py)

Array = NDArray[Any]
Parts = dict[str, dict[str, Array]]  # tensors of network, calibration and familiarity


@dataclass(frozen=True, eq=False, kw_only=True)
class Metadata:
    """The metadata of both formats, checked. rpm, channel and bearing are those of the adapted target."""

    classes: tuple[str, ...]
    channels: int
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    rpm: float | None  # for recordings that state none
    channel: str | None  # read from files with several
    bearing: Bearing | None
    pooled_temperature: float  # of a recording's confidence (bearcat.diagnosis.pooling)
    decision: Decision  # whether to use it, from the run that made it
    shift: str | None = None  # from its source to its target: condition, specimen, machine, …; None: unknown

    def __post_init__(self) -> None:
        check_range("rate", self.rate, field="rate")
        check_range("rpm", self.rpm, field="rpm")
        low, high = self.decision.interval or (0, 1)
        names = {name.strip() for name in self.classes}
        wrong = {
            "classes": not names or "" in names or len(names) != len(self.classes),
            "channels": self.channels < 1,
            "pooled_temperature": not 0 < self.pooled_temperature < math.inf,
            "decision": self.decision.action not in (USE, CHECK, REFUSE)
            or not (0 <= low <= high <= 1 and 0 <= (self.decision.expected or 0) <= 1),
        }  # fmt: skip
        for name in (name for name, value in wrong.items() if value):
            raise ValueError(f"'{name}' has an impossible value")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as both formats store them."""
        return {field.name: to_plain(getattr(self, field.name)) for field in fields(Metadata)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor(Metadata, ABC):
    """The interface of all models."""

    metadata: dict[str, Any]  # for people: recipe, task, seed, versions
    familiarity: Familiarity | None = None  # limits of familiar windows, fitted on the adapted target
    path: Path | None = None  # the folder or file it was read from

    def __reduce__(self) -> tuple[Callable[[Path], Predictor], tuple[Path | None]]:
        return opened_once, (self.path,)  # another process opens it for itself

    @property
    @abstractmethod
    def calibrated(self) -> bool:
        """Whether it has a calibration that did not end at its bound."""

    @abstractmethod
    def classify(self, values: Array) -> Outputs:
        """Prepared windows (window, channel, point) → log-probabilities, logits, features."""

    def outputs(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Outputs:
        """Classifies recorded windows (window, channel, sample) at its rate; some inputs use speed and bearing."""
        return self.classify(find_input(self.preparation.input).transform(windows, self.sampling_rate, rpm, bearing))

    def tried(self) -> Self:
        """The model itself; ValueError if its outputs do not fit its metadata."""
        outputs = self.classify(np.zeros((1, self.channels, self.preparation.points), dtype=np.float32))
        if outputs.log_probabilities.shape[1] != len(self.classes):
            raise ValueError("its outputs have another number of classes")
        if self.familiarity is not None and outputs.features.shape[1] != self.familiarity.features.shape[1]:
            raise ValueError("its outputs have another number of features")
        return self

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of "rate", "rpm" and "bearing" its input needs."""
        return find_input(self.preparation.input).needs

    @property
    def sampling_rate(self) -> float | None:
        """The rate of its windows; None: unknown."""
        return self.preparation.rate or self.rate


def read_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Predictor; ValueError or InputError names one that is missing or has a wrong type."""
    checked: Metadata = from_plain(Metadata, metadata)
    if not isinstance(metadata["calibrated"], bool):
        raise ValueError("'calibrated' is neither true nor false")
    return {field.name: getattr(checked, field.name) for field in fields(Metadata)} | {"metadata": metadata}


def check_format(version: int, expected: int, path: Path) -> None:
    """InputError, with a remedy, if the model has the format of another version."""
    if version != expected:
        writer, advice = ("a newer", "upgrade") if version > expected else ("an older", "train or export it again with")
        raise InputError(f"{path}: was written by {writer} bearcat; {advice} this one")


@contextmanager
def naming(path: Path, problem: str) -> Iterator[None]:
    """Turns every error into an InputError that begins with the model's path."""
    try:
        yield
    except InputError as error:  # one about an unknown input or encoder does not name the model
        raise InputError(f"{path}: {error.beside(str(path))}") from error
    except ModuleNotFoundError:  # the model may be sound
        raise
    except Exception as error:  # damaged files raise nearly every kind
        what = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise InputError(f"{path}: {problem} ({what:.200}); copy or make the model again") from error


def open_model(path: Path) -> Predictor:
    """The model in a folder or an .onnx file; `general` is the one that comes with the package."""
    path = GENERAL if str(path) == GENERAL.name and not (Path(path) / "model.json").exists() else Path(path)
    if path.suffix.lower() == ".onnx":
        return load_onnx(path)
    try:
        if (model := open_folder(path)) is not None:
            return model
        from bearcat.deploy.model import load_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        instead = f"pip install {error.name}, or use the file that bearcat export writes elsewhere"
        raise InputError(f"{path}: this model folder needs {error.name}; {instead}") from error
    return replace(load_model(path), path=path)


@cache
def opened_once(path: Path) -> Predictor:
    """The model at this path, opened once in each process."""
    return open_model(path)


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedModel(Predictor):
    """Dense layers in numpy, or a graph in onnxruntime."""

    run: Callable[[Array], Outputs]
    is_calibrated: bool

    @property
    def calibrated(self) -> bool:
        return self.is_calibrated

    def classify(self, values: Array) -> Outputs:
        return self.run(values)


def chunks(values: Array) -> list[Array]:
    """The windows, CACHED at a time; of none, an empty part."""
    return [values[start : start + CACHED] for start in range(0, max(len(values), 1), CACHED)]


def run_dense(network: Mapping[str, Array], calibration: Mapping[str, Array] | None, values: Array) -> Outputs:
    """Computes dense layers with ReLU, a linear head and its calibration; arrays have no axis of runs."""
    if "scaling.mean" in network:
        values = (values - network["scaling.mean"]) * network["scaling.factor"]
    features = np.concatenate([_dense(network, part) for part in chunks(values)])
    logits = features @ network["head.weight"].T + network["head.bias"]
    calibrated = logits
    if calibration is not None:  # in float32, as bearcat.cat.calibration has it
        calibrated = logits * calibration["scale"].astype(np.float32)
        if "matrix" in calibration:
            calibrated = (calibrated @ calibration["matrix"].T).astype(np.float32)
        calibrated = calibrated + calibration["bias"].astype(np.float32)
    highest = calibrated.max(axis=-1, keepdims=True)
    total = np.log(np.exp(calibrated - highest).sum(axis=-1, keepdims=True))
    return Outputs(calibrated - highest - total, logits, features)


def _dense(weights: Mapping[str, Array], windows: Array) -> Array:
    values, layer = windows.reshape(len(windows), math.prod(windows.shape[1:])), 0
    while (weight := weights.get(f"encoder.dense.{layer}.weight")) is not None:
        values = np.maximum(values @ weight.T + weights[f"encoder.dense.{layer}.bias"], 0)
        layer += 1
    return values


def dense_model(
    attributes: Mapping[str, Any], network: Mapping[str, Array], calibration: Mapping[str, Array] | None
) -> OpenedModel:
    """A model of dense layers from the fields of a Predictor and its tensors, which still have the axis of runs."""
    network = {name: array[0] for name, array in network.items()}
    if calibration is not None:
        calibration = {name: array[0] for name, array in calibration.items()}
    calibrated = calibration is not None and not bool(calibration["at_bound"])
    return OpenedModel(**attributes, run=partial(run_dense, network, calibration), is_calibrated=calibrated)


def open_folder(folder: Path) -> OpenedModel | None:
    """The model in this folder; None if its encoder needs torch (deploy/model.py)."""
    folder = Path(folder)
    with naming(folder, "is a damaged model folder"):
        metadata, parts, attributes = read_folder(folder)
        if metadata["encoder"].partition(":")[0] not in DENSE:
            return None
        calibration = parts["calibration"] if metadata["calibrated"] else None
        return dense_model(attributes | {"path": folder}, parts["network"], calibration).tried()


def read_folder(folder: Path) -> tuple[dict[str, Any], Parts, dict[str, Any]]:
    """Metadata, tensors and the fields of a Predictor, after a comparison with the checksums."""
    from safetensors.numpy import load

    if not (folder / METADATA).exists():
        raise InputError(f"{folder}: is no model folder; bearcat adapt writes one, OUT/model (or give a file .onnx)")
    metadata = read_json(folder / METADATA)
    check_format(metadata["format"], FORMAT, folder)
    weights = str(metadata.get("weights", WEIGHTS))  # models of earlier versions do not name it
    if not re.fullmatch(r"weights(-[0-9a-f]{12})?\.safetensors", weights):
        raise ValueError("it names a file that is not a model's weights")
    content = read_regular(folder / weights)
    if digest(content) != metadata["sha256"]:
        raise InputError(f"{folder}: {weights} does not match {METADATA}; copy or train the model again")
    if metadata.pop("seal") != digest_json(metadata):
        raise InputError(f"{folder}: {METADATA} was changed; copy or train the model again")
    attributes = read_metadata(metadata)
    parts: Parts = {"network": {}, "calibration": {}, "familiarity": {}}
    for name, array in load(content).items():
        kind, _, inner = name.partition(".")
        parts.setdefault(kind, {})[inner] = array
    familiar = parts["familiarity"]
    return metadata, parts, attributes | {"familiarity": Familiarity.from_state(familiar) if familiar else None}


def load_onnx(path: Path) -> OpenedModel:
    """The model in a file written by `export_onnx`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # of newer versions
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("running ONNX needs an extra; pip install 'bearcat[runtime]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    with naming(path, "is no ONNX file that onnxruntime can read"):
        session = onnxruntime.InferenceSession(read_regular(path), options, providers=["CPUExecutionProvider"])
    texts: dict[str, str] = session.get_modelmeta().custom_metadata_map
    if "bearcat_format" not in texts:
        raise InputError(f"{path}: is an ONNX file that bearcat did not write; use bearcat export")
    with naming(path, "has damaged metadata"):
        check_format(int(texts["bearcat_format"]), GRAPH_FORMAT, path)
        metadata = {name: json.loads(text) for name, text in texts.items()}
        attributes, familiar = read_metadata(metadata), metadata.pop("familiarity")
        attributes |= {"familiarity": None if familiar is None else decoded(familiar), "path": path}
        return OpenedModel(**attributes, run=partial(run_graph, session), is_calibrated=metadata["calibrated"]).tried()


def run_graph(session: Any, values: Array) -> Outputs:
    """The outputs of an ONNX graph for prepared windows. Several threads may run it at once."""
    names, windows = ["log_probabilities", "logits", "features"], np.ascontiguousarray(values, dtype=np.float32)
    try:
        parts = [session.run(names, {"values": part}) for part in chunks(windows)]
    except Exception as error:  # onnxruntime has a class for every kind of failure, all children of Exception
        raise InputError(f"the graph of this ONNX file fails ({type(error).__name__}); export it again") from error
    return Outputs(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def encoded(familiarity: Familiarity) -> str:
    """The arrays of a familiarity as text, for the metadata of a graph."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **familiarity.state())
    return base64.b64encode(content.getvalue()).decode()


def decoded(text: str) -> Familiarity:
    """The familiarity from a text that `encoded` made."""
    with np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False) as arrays:
        return Familiarity.from_state(dict(arrays))
