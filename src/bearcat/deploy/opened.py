"""Opens models and asks them: folders with dense layers in numpy, ONNX files, and other folders with torch.

Loading executes nothing but an ONNX graph.

>>> model = open_model(Path("out/model"))   # or bearing.onnx: pip install 'bearcat[runtime]'
>>> model.outputs(windows)                  # windows as recorded (window, channel, sample)
>>> recording, findings = at_rate_of(model, recording)
>>> pooled = pool(tally_windows(model, recording), model.pooled_temperature, model.familiarity)
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.inputs import Preparation, find_input
from bearcat.data.recording import Recording, cut_samples, resample, spectral_shape, stated_speed
from bearcat.deploy.find import FoundRecording, Given
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.fusion import FOLDER, NetworkEvidence
from bearcat.diagnosis.pooling import Familiarity, Outputs, Pooled, Tally, pool, tally
from bearcat.diagnosis.recording import Observation
from bearcat.diagnosis.speed import reading_speed
from bearcat.errors import InputError, library
from bearcat.findings import Finding
from bearcat.settings import from_plain, to_plain
from bearcat.storage import digest, digest_json, read_json, read_regular

FORMAT, GRAPH_FORMAT = 3, 4  # of folders and ONNX files; increased when old readers would misunderstand new models
WEIGHTS, METADATA = "weights.safetensors", "model.json"
DENSE = ("dense", "linear")  # encoders that run in numpy: loading torch takes twice as long as a whole `predict`
CACHED = 16  # windows at once: activations stay in a core's cache (benchmarks/recording_speed.py)
BATCH = 256  # windows handed to the model at once

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Metadata:
    """The metadata of both formats. rpm, channel and bearing are those of the adapted target."""

    classes: tuple[str, ...]
    channels: int
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    rpm: float | None  # for recordings that state none
    channel: str | None  # read from files with several
    bearing: Bearing | None
    pooled_temperature: float  # of a recording's confidence (bearcat.diagnosis.pooling)
    decision: Decision  # whether to use it, from the run that made it
    encoder: str  # a row of ENCODERS
    calibrator: str | None = None  # a row of CALIBRATORS
    shift: str | None = None  # from its source to its target: condition, specimen, machine, …; None: unknown

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as both formats store them."""
        return {field.name: to_plain(getattr(self, field.name)) for field in fields(Metadata)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor(Metadata):
    """A model that can be asked."""

    run: Callable[[Array], Outputs]  # prepared windows (window, channel, point) → log-probabilities, features
    metadata: dict[str, Any]  # for people: recipe, task, seed, versions
    familiarity: Familiarity | None = None  # limits of familiar windows, fitted on the adapted target
    path: Path | None = None  # the folder or file it was read from

    def __reduce__(self) -> tuple[Callable[[Path], Predictor], tuple[Path | None]]:
        return opened_once, (self.path,)  # another process opens it for itself

    def outputs(self, windows: Array, rpm: float | None = None, bearing: Bearing | None = None) -> Outputs:
        """Classifies recorded windows (window, channel, sample) at its rate; some inputs use speed and bearing."""
        return self.run(find_input(self.preparation.input).transform(windows, self.sampling_rate, rpm, bearing))

    @property
    def sampling_rate(self) -> float | None:
        """The rate of its windows; None: unknown."""
        return self.preparation.rate or self.rate


def open_model(path: Path) -> Predictor:
    """The model in a folder or an .onnx file; `general` is the one that comes with the package."""
    path = FOLDER if str(path) == FOLDER.name and not (path / METADATA).exists() else path
    with naming(path, "is a damaged model"):
        if path.suffix.lower() == ".onnx":
            return tried(load_onnx(path))
        tensors, attributes = read_folder(path)
        if attributes["encoder"].partition(":")[0] in DENSE:
            return tried(Predictor(**attributes, run=partial(run_dense, tensors["network"], tensors["calibration"])))
        from bearcat.deploy.model import load_model

        return tried(load_model(path))


def tried(model: Predictor) -> Predictor:
    """The model itself, whose outputs for a window fit its metadata."""
    if model.channels != 1:
        raise InputError("takes several channels at once, and recordings are read one channel at a time")
    outputs, known = model.run(np.zeros((1, 1, model.preparation.points), np.float32)), model.familiarity
    fits = outputs.log_probabilities.shape == (1, len(model.classes)) and 0 < model.pooled_temperature < math.inf
    if not fits or (known is not None and outputs.features.shape[1] != known.features.shape[1]):
        raise ValueError("its network does not fit its classes, or a number is impossible")
    return model


@cache
def opened_once(path: Path) -> Predictor:
    """The model at this path, opened once in each process."""
    return open_model(path)


@contextmanager
def naming(path: Path, problem: str) -> Iterator[None]:
    """Turns every error into an InputError that begins with the model's path."""
    try:
        yield
    except InputError as error:  # one about an unknown input or encoder does not name the model
        raise InputError(f"{path}: {error.beside(str(path))}") from error
    except ModuleNotFoundError as error:
        instead = f"pip install {error.name}, or use the file that bearcat export writes elsewhere"
        raise InputError(f"{path}: this model folder needs {error.name}; {instead}") from error
    except Exception as error:  # damaged files raise nearly every kind
        what = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise InputError(f"{path}: {problem} ({what:.200}); copy or make the model again") from error


def check_format(version: int, expected: int, path: Path) -> None:
    """InputError, with a remedy, if the model has the format of another version."""
    if version != expected:
        writer = "a newer" if version > expected else "an older"
        raise InputError(f"{path}: was written by {writer} bearcat; use that one, or make the model again")


def read_folder(folder: Path) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    """Tensors of network and calibration, and fields of a Predictor; compares the checksums."""
    from safetensors.numpy import load

    if not (folder / METADATA).exists():
        raise InputError(f"{folder}: is no model folder; bearcat adapt writes one, OUT/model (or give a file .onnx)")
    metadata = read_json(folder / METADATA)
    seal, expected = metadata.pop("seal", None), digest_json(metadata)
    check_format(metadata.pop("format"), FORMAT, folder)
    if seal != expected:
        raise InputError(f"{folder}: {METADATA} was changed; copy or train the model again")
    weights = metadata.pop("weights", WEIGHTS)  # models of earlier versions do not name it
    content = read_regular(folder / weights)
    if digest(content) != metadata.pop("sha256"):
        raise InputError(f"{folder}: {weights} does not match {METADATA}; copy or train the model again")
    attributes = vars(from_plain(Metadata, metadata)) | {"metadata": metadata, "path": folder}
    tensors: dict[str, dict[str, Array]] = {"network": {}, "calibration": {}, "familiarity": {}}
    for name, array in load(content).items():
        kind, _, inner = name.partition(".")
        tensors[kind][inner] = array
    if familiar := tensors.pop("familiarity"):
        attributes["familiarity"] = Familiarity.from_state(familiar)
    return tensors, attributes


def chunks(values: Array) -> list[Array]:
    """The windows, CACHED at a time; of none, an empty part."""
    return [values[start : start + CACHED] for start in range(0, max(len(values), 1), CACHED)]


def run_dense(network: Mapping[str, Array], calibration: Mapping[str, Array], values: Array) -> Outputs:
    """Computes dense layers with ReLU, a linear head and its calibration, if there is one.

    Arrays begin with an axis of one run, as in a stack.
    """
    if "scaling.mean" in network:
        values = (values - network["scaling.mean"][0]) * network["scaling.factor"][0]
    features = np.concatenate([_dense(network, part) for part in chunks(values)])
    scores = features @ network["head.weight"][0].T + network["head.bias"][0]
    if calibration:  # in float32, as bearcat.cat.calibration has it
        scores = scores * calibration["scale"][0].astype(np.float32)
        if "matrix" in calibration:
            scores = (scores @ calibration["matrix"][0].T).astype(np.float32)
        scores = scores + calibration["bias"][0].astype(np.float32)
    highest = scores.max(axis=-1, keepdims=True)
    total = np.log(np.exp(scores - highest).sum(axis=-1, keepdims=True))
    return Outputs(scores - highest - total, features)


def _dense(weights: Mapping[str, Array], windows: Array) -> Array:
    values, layer = windows.reshape(len(windows), math.prod(windows.shape[1:])), 0
    while (weight := weights.get(f"encoder.dense.{layer}.weight")) is not None:
        values = np.maximum(values @ weight[0].T + weights[f"encoder.dense.{layer}.bias"][0], 0)
        layer += 1
    return values


def load_onnx(path: Path) -> Predictor:
    """The model in a file written by `export_onnx`."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # of newer versions
    onnxruntime = library("onnxruntime", "runtime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    with naming(path, "is no ONNX file, or a damaged one"):
        session = onnxruntime.InferenceSession(read_regular(path), options, providers=["CPUExecutionProvider"])
        texts: dict[str, str] = session.get_modelmeta().custom_metadata_map
        if "bearcat_format" not in texts:
            raise InputError("is an ONNX file that bearcat did not write; use bearcat export")
        check_format(int(texts["bearcat_format"]), GRAPH_FORMAT, path)
        metadata = {name: json.loads(text) for name, text in texts.items()}
        attributes = vars(from_plain(Metadata, metadata)) | {"metadata": metadata, "path": path}
        if (text := metadata.pop("familiarity")) is not None:
            attributes["familiarity"] = decoded(text)
        return Predictor(**attributes, run=partial(run_graph, session))


def run_graph(session: Any, values: Array) -> Outputs:
    """The outputs of an ONNX graph for prepared windows. Several threads may run it at once."""
    names, windows = ["log_probabilities", "features"], np.ascontiguousarray(values, dtype=np.float32)
    try:
        parts = [session.run(names, {"values": part}) for part in chunks(windows)]
    except Exception as error:  # onnxruntime has a class for every kind of failure
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


def answered(point: Observation, recordings: Iterable[FoundRecording], model: Predictor, given: Given) -> Observation:
    """The point with the model's answer, by the windows of all its axes at the stated or measured speed."""
    if point.problem is not None or point.speed is None:
        return point
    tallies, noticed = list[Tally](), list(point.observed)
    needed = "rpm" in find_input(model.preparation.input).needs
    for found in recordings:
        recording = found.read()
        rpm, _ = stated_speed(recording.origin, recording.own_rpm, found.rpm, given.rpm)
        unknown = needed and rpm is None and model.rpm is None
        rpm = point.speed.rpm if unknown else reading_speed(point.speed, rpm)
        if unknown and rpm is not None:
            noticed.append(Finding("measured speed", "remark", {"rpm": rpm}))
        elif needed and rpm is None:
            noticed.append(Finding("usual speed", "remark", {"rpm": model.rpm}))
        recording, about_rate = at_rate_of(model, recording, given.rate)
        tallies.append(tally_windows(model, recording, rpm, given.bearing_of(found)))
        noticed += about_rate
    pooled = pool(reduce(add, tallies), model.pooled_temperature, model.familiarity)
    network = network_evidence(pooled, model.classes, model.decision, model.shift)
    general = None if model.metadata.get("recipe") == "general" else point.witnesses.general  # it would count twice
    return replace(point, witnesses=replace(point.witnesses, network=network, general=general), observed=(*noticed,))


def network_evidence(pooled: Pooled, classes: Sequence[str], decision: Decision, shift: str | None) -> NetworkEvidence:
    """A model's pooled windows as evidence; `decision` is its recommendation, `shift` leads to its target."""
    shares = dict(zip(classes, pooled.probabilities.tolist(), strict=True))
    return NetworkEvidence(
        shares, pooled.agreement, pooled.windows, decision.action, pooled.unfamiliar, pooled.familiar, shift
    )


def at_rate_of(model: Predictor, recording: Recording, rate: float | None = None) -> tuple[Recording, list[Finding]]:
    """The recording at the model's rate, and remarks; `rate` is that of files which state none."""
    wanted, rate, findings = model.sampling_rate, recording.rate or rate, list[Finding]()
    if wanted is None or recording.rate == wanted:
        return recording, []
    if rate is None and model.preparation.rate is None:
        unknown = f"does not state its sampling rate; give it (the model's is {wanted:g} Hz)"
        raise InputError(f"{recording.origin}: {unknown}", "rate")
    if rate is None:
        findings.append(Finding("rate assumed", "remark", {"rate": wanted}))  # as in training
    elif rate != wanted:
        findings.append(Finding("resampled", "remark", {"rate": rate, "to": wanted}))
    return resample(replace(recording, rate=rate), wanted), findings


def tally_windows(
    model: Predictor, recording: Recording, rpm: float | None = None, bearing: Bearing | None = None
) -> Tally:
    """Sums and counts over the windows of a recording, at the model's rate."""
    length, tallies = model.preparation.length, list[Tally]()
    if recording.signal.size < length:
        short = f"is shorter than one window of {length} samples"
        raise InputError(f"{recording.origin}: {short}; record for longer", readable=True)
    windows = cut_samples(recording.signal, length, model.preparation.step)[:, None]
    for batch in np.split(windows, range(BATCH, len(windows), BATCH)):
        outputs, unfamiliar = model.outputs(batch, rpm or model.rpm, bearing or model.bearing), None
        if model.familiarity is not None:
            unfamiliar = model.familiarity.unfamiliar(outputs.features, spectral_shape(batch))
        tallies.append(tally(outputs.log_probabilities, unfamiliar))
    return reduce(add, tallies)
