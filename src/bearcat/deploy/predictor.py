"""What every model says of itself, in its folder and in an ONNX file alike; and the model in an ONNX file.

A model may come from anywhere, so its metadata are checked by type and range before anything is built of them: wrong
values would fail later, in the middle of a diagnosis. Nothing here needs torch.

>>> load_onnx(Path("bearing.onnx")).outputs(windows)                       # pip install 'bearcat[runtime]'
"""

from __future__ import annotations

import base64
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.inputs import Input, find_input
from bearcat.data.prepare import Preparation
from bearcat.data.recording import Speed
from bearcat.diagnosis.decision import CHECK, REFUSE, USE, Decision
from bearcat.diagnosis.pooling import Familiarity, Outputs
from bearcat.errors import InputError
from bearcat.ranges import RANGES
from bearcat.settings import from_plain
from bearcat.storage import read_regular

FORMAT = 3  # of model folders and ONNX files: rises when an old reader would misunderstand a new model
MOST_CLASSES, MOST_CHANNELS, LONGEST_TEXT = 10_000, 1024, 10_000
BATCH = 16  # windows at once: what lies between two layers stays in a core's cache (benchmarks/recording_speed.py)
IN_GRAPH = ("time", "frequency")  # inputs that a graph holds; of all others it takes the values of prepared windows

Array = NDArray[Any]
Check = Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class Predictor(ABC):
    """What Model and OnnxModel have in common. Of `metadata`, rpm, channel and bearing are of the adapted target."""

    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    metadata: dict[str, Any]  # for people and the card: recipe, task, data, scores, estimates, limits, versions, …
    channels: int = 1
    pooled_temperature: float = 1.0  # of a recording's confidence (bearcat.diagnosis.pooling)
    familiarity: Familiarity | None = None  # what windows of the adapted target look like, where that was fitted
    place: Path | None = None  # which it was read from

    @property
    def input(self) -> str:
        """A row of INPUTS."""
        return self.preparation.input

    @cached_property
    def input_row(self) -> Input:
        """That row, with its settings."""
        return find_input(self.input)

    @property
    def needs(self) -> tuple[str, ...]:
        """What of "rate", "rpm" and "bearing" its input needs."""
        return self.input_row.needs

    @property
    @abstractmethod
    def calibrated(self) -> bool:
        """Whether it has a calibration; one that ended at its bound is none."""

    def outputs(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Outputs:
        """(window, channel, sample) as recorded, at its rate → log-probabilities, logits, features.

        Speed and bearing are for inputs that use them.
        """
        return self.classify(self.input_row.transform(windows, self.sampling_rate, rpm, bearing))

    def classify(self, values: Array) -> Outputs:
        """The outputs of prepared windows (window, channel, point)."""
        raise NotImplementedError

    def log_probabilities(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Array:
        """The same windows → (window, class), calibrated."""
        return self.outputs(windows, rpm, bearing).log_probabilities

    @property
    def sampling_rate(self) -> float | None:
        """Of the windows it takes, where that is known."""
        return self.preparation.rate or self.rate

    @property
    def rpm(self) -> float | None:
        """The speed of recordings that say none."""
        return self.metadata.get("rpm")

    @property
    def channel(self) -> str | None:
        """The channel which files with several are read by."""
        return self.metadata.get("channel")

    @cached_property
    def bearing(self) -> Bearing | None:
        geometry = self.metadata.get("bearing")
        return None if geometry is None else Bearing(**geometry)

    @property
    def shift(self) -> str | None:
        """From its source to its target: condition, specimen, machine, …; None where that is not known."""
        found = self.metadata.get("shift")
        return found if isinstance(found, str) else None

    @cached_property
    def decision(self) -> Decision:
        """What to do with it, by the run that made it."""
        found: Decision = from_plain(Decision, self.metadata["decision"])
        return found

    def to_dict(self) -> dict[str, Any]:
        """What both formats hold of it in the same way."""
        return {
            "classes": list(self.classes), "channels": self.channels, "preparation": asdict(self.preparation),
            "rate": self.rate, "rpm": self.rpm, "channel": self.channel, "bearing": self.metadata.get("bearing"),
            "pooled_temperature": self.pooled_temperature, "decision": self.metadata["decision"], "shift": self.shift,
        }  # fmt: skip

    @staticmethod
    def fields_of(metadata: dict[str, Any]) -> dict[str, Any]:
        """Fields that both formats hold in the same way, of checked metadata."""
        plain = {name: metadata[name] for name in ("rate", "channels", "pooled_temperature")}
        preparation = Preparation(**metadata["preparation"])
        return plain | {"classes": tuple(metadata["classes"]), "preparation": preparation, "metadata": metadata}


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _whole(low: float, high: float) -> tuple[Check, str]:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low:g} to {high:g}"


def _within(name: str) -> tuple[Check, str]:
    """A number in one of RANGES."""
    return RANGES[name].holds, f"a number {RANGES[name].words}"


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _names(value: Any) -> bool:
    filled = _texts(value) and 0 < len(value) <= MOST_CLASSES and all(map(str.strip, value))
    return filled and len(set(value)) == len(value)


def _decision(value: Any) -> bool:
    found = from_plain(Decision, value)
    low, high = found.interval or (0, 1)
    shares = 0 <= low <= high <= 1 and 0 <= (found.expected or 0) <= 1
    return shares and found.action in (USE, CHECK, REFUSE) and _texts(value["reasons"])


# Whether a value will do, and what it must be.
FIELDS: Mapping[str, tuple[Check, str]] = {
    "classes": (_names, "a list of different names"),
    "channels": _whole(1, MOST_CHANNELS),
    "preparation": (_is(dict), "a table"),
    "preparation.input": (_text, "a row of INPUTS"),
    "preparation.length": _whole(RANGES["length"].lowest, RANGES["length"].highest),
    "preparation.stride": _whole(RANGES["stride"].lowest, RANGES["stride"].highest),
    "preparation.rate": _within("rate"),
    "rate": _within("rate"),
    "rpm": _within("rpm"),
    "channel": (_text, "the name of a channel"),
    "bearing": (lambda value: bool(Bearing(**value)), "the geometry of a bearing"),
    "encoder": (_text, "a row of ENCODERS"),
    "calibrator": (_text, "a row of CALIBRATORS"),
    "calibrated": (_is(bool), "true or false"),
    "calibration_at_bound": (_is(bool), "true or false"),
    "pooled_temperature": (_positive, "a positive number"),
    "decision": (_decision, "action, expected, interval and reasons"),
    "familiarity": (_is(dict), "a table"),
    "made_by": (_is(dict), "a table"),
    "sha256": (_text, "a checksum"),
}
NULLABLE = {"preparation.stride", "preparation.rate", "rate", "rpm", "channel", "bearing", "calibrator", "familiarity"}
ONNX = tuple(name for name in FIELDS if name not in ("encoder", "calibrator", "calibration_at_bound", "sha256"))
FOLDER = tuple(name for name in FIELDS if name != "made_by")


def check_metadata(metadata: Any, place: str, names: Iterable[str]) -> None:
    """InputError names the first of these fields that is missing or of a wrong type."""
    for name in names:
        value = metadata
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                raise InputError(f"{place}: has damaged metadata ('{name}' is missing); copy the model again")
            value = value[key]
        check, expected = FIELDS[name]
        try:
            good = name in NULLABLE if value is None else check(value)
        except Exception:  # values of a wrong type raise nearly every kind
            good = False
        if not good:
            expected += ", or null" if name in NULLABLE else ""
            raise InputError(f"{place}: has damaged metadata ('{name}' must be {expected}); copy the model again")


def check_format(found: int, place: Path) -> None:
    """InputError where another version wrote a model, with what to do."""
    if found != FORMAT:
        writer, advice = ("a newer", "upgrade") if found > FORMAT else ("an older", "train or export it again with")
        raise InputError(f"{place}: was written by {writer} bearcat; {advice} this one")


@contextmanager
def naming(place: Path, problem: str) -> Iterator[None]:
    """Every error is a sentence that begins with the model's place."""
    try:
        yield
    except InputError as error:  # a row that is not in INPUTS or ENCODERS is named without the place
        raise error if str(error).startswith(f"{place}") else InputError(f"{place}: {error}") from error
    except ModuleNotFoundError:  # nothing is wrong with the model
        raise
    except Exception as error:  # damaged files raise nearly every kind
        raise InputError(f"{place}: {problem} ({type(error).__name__}); copy or make the model again") from error


class Graph:
    """An ONNX graph in onnxruntime. Several threads may run it at once."""

    def __init__(self, content: bytes, threads: int | None = None) -> None:
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
            self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a class for every kind of damage, all children of Exception
            raise InputError("is no ONNX file that onnxruntime can read; export the model again") from error
        self.metadata: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        self.inputs, self.outputs = (  # their axes but the first
            {node.name: list(node.shape[1:]) for node in nodes}
            for nodes in (self.session.get_inputs(), self.session.get_outputs())
        )

    def run(self, outputs: Sequence[str], given: Array) -> list[Array]:
        """These outputs of the one array that the graph takes, (window, …)."""
        ((name, _),), parts = self.inputs.items(), []
        for first in range(0, max(len(given), 1), BATCH):
            parts.append(self.session.run(list(outputs), {name: given[first : first + BATCH]}))
        return [np.concatenate(part) for part in zip(*parts, strict=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxModel(Predictor):
    """A graph and its metadata. The graph takes windows as recorded where it holds its input (IN_GRAPH)."""

    graph: Graph

    @property
    def calibrated(self) -> bool:
        return bool(self.metadata["calibrated"])

    def outputs(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Outputs:
        given, length = np.ascontiguousarray(windows, dtype=np.float32), self.preparation.length
        if given.ndim != 3 or given.shape[1:] != (self.channels, length):
            raise InputError(f"windows must have the shape (window, {self.channels}, {length}), not {given.shape}")
        return self.classify(given) if self.input in IN_GRAPH else super().outputs(given, rpm, bearing)

    def classify(self, values: Array) -> Outputs:
        try:
            return Outputs(*self.graph.run(("log_probabilities", "logits", "features"), values))
        except Exception as error:  # onnxruntime has a class for every kind of failure, all children of Exception
            raise InputError(f"the graph of this ONNX file fails ({type(error).__name__}); export it again") from error


def load_onnx(path: Path, threads: int | None = None) -> OnnxModel:
    """A file written by `export_onnx`; `threads`: how many cores a call may use (all where None)."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    with naming(path, "cannot be read"):
        graph = Graph(read_regular(path), threads)
    texts = graph.metadata
    if "bearcat_format" not in texts:
        raise InputError(f"{path}: is an ONNX file, but not one of bearcat's; write it with bearcat export")
    with naming(path, "has damaged metadata"):
        check_format(int(texts["bearcat_format"]), path)
        metadata = {name: json.loads(text) for name, text in texts.items() if name in ONNX}
        check_metadata(metadata, str(path), ONNX)
        known = metadata.pop("familiarity")
        familiarity = None if known is None else _decoded(known)
        fields = Predictor.fields_of(metadata)
        _check_graph(graph, metadata, fields["preparation"], familiarity)
        return OnnxModel(graph=graph, familiarity=familiarity, **fields)


def _check_graph(
    graph: Graph, metadata: Mapping[str, Any], preparation: Preparation, familiarity: Familiarity | None
) -> None:
    """ValueError where the graph takes or gives something else than its metadata say."""
    taken, given = graph.inputs, graph.outputs
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
