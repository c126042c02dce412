"""A model as one ONNX graph, from windows as recorded to calibrated probabilities; and a reader that needs no torch.

The graph is written node by node from the weights, so that it stays small and can be read in any viewer:

    windows (window, channel, sample) float32
      → standardised, in float64 as far as the sums go (an offset far above the vibration costs no digits)
      → for frequency input the spectrum by two matrix products; cosines and sines are gathered from a table of one turn
      → four convolutions with their normalisation folded in, pooling, two dense layers = features
      → head = logits → calibration → log_probabilities, probabilities

Classes, rate, preparation and versions are in its metadata, the verdict of its run where that is not to use it, and
what the model is familiar with: features of some hundred windows, their spectra in bands (float16, in base64), and
limits, for bearcat.trust.estimates.Familiarity, which needs numpy and scipy alone.

>>> export_onnx(load_model(Path("out/model")), Path("bearing.onnx"))       # pip install 'bearcat[export]'
>>> load_onnx(Path("bearing.onnx")).predict(windows)                       # pip install 'bearcat[runtime]'
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat import __version__
from bearcat.data.prepare import Preparation
from bearcat.errors import InputError
from bearcat.trust.estimates import Familiarity
from bearcat.trust.pooling import Outputs

if TYPE_CHECKING:
    from bearcat.deploy.model import Model

FORMAT = 1
OPSET = 18
IR_VERSION = 9  # onnxruntime since 1.16 reads it
BATCH = 16  # windows a call: more do not fit a core's cache (benchmarks/predict_speed.py)
POOLED = 4  # points that adaptive pooling leaves, as in bearcat.models.networks, which needs torch

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A graph in onnxruntime and what its metadata say; the same questions as bearcat.deploy.model.Model answers."""

    session: Any  # onnxruntime.InferenceSession, which may be used by several threads at once
    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None
    channels: int
    pooled_temperature: float
    told: dict[str, Any]
    familiarity: Familiarity | None = None

    @property
    def calibrated(self) -> bool | None:
        """Whether its confidence is; None where a file of before does not say."""
        return self.told.get("calibrated")

    @property
    def refusal(self) -> str | None:
        """The verdict of the run that made it, where that is not to use it."""
        return self.told.get("refusal")

    def predict(self, windows: Array) -> Array:
        """(window, channel, sample) windows as recorded → calibrated probabilities (window, class)."""
        return self.run(windows, ["probabilities"])[0]

    def log_probabilities(self, windows: Array) -> Array:
        """The same windows → calibrated log-probabilities (window, class)."""
        return self.run(windows, ["log_probabilities"])[0]

    def outputs(self, windows: Array) -> Outputs:
        """The same windows → calibrated log-probabilities, logits before calibration, and features."""
        return Outputs(*self.run(windows, ["log_probabilities", "logits", "features"]))

    def run(self, windows: Array, outputs: Sequence[str]) -> list[Array]:
        """These of the graph's outputs: probabilities, log_probabilities, logits (before calibration), features."""
        given = np.ascontiguousarray(windows, dtype=np.float32)
        if given.ndim != 3 or given.shape[1:] != (self.channels, self.preparation.length):
            raise InputError(
                f"windows must have the shape (window, {self.channels}, {self.preparation.length}), not {given.shape}"
            )
        starts = range(0, max(len(given), 1), BATCH)
        parts = [self.session.run(list(outputs), {"windows": given[start : start + BATCH]}) for start in starts]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]


def load_onnx(path: Path, threads: int | None = None) -> OnnxModel:
    """A file written by `export_onnx`; `threads`: how many cores a call may use (all where None)."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # of late it tells its makers that it runs
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(f"{path}: running ONNX needs an extra; pip install 'bearcat[runtime]'") from error
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class for every kind of damage, all children of Exception
        raise InputError(f"{path}: is no ONNX file that onnxruntime can read; export the model again") from error
    words = dict(session.get_modelmeta().custom_metadata_map)
    if "bearcat_format" not in words:
        raise InputError(f"{path}: is an ONNX file, but not one of bearcat's; write it with bearcat export")
    if words["bearcat_format"].isdecimal() and int(words["bearcat_format"]) > FORMAT:
        raise InputError(f"{path}: was written by a newer bearcat (format {words['bearcat_format']}); upgrade bearcat")
    try:
        told = {name: json.loads(text) for name, text in words.items()}
        return OnnxModel(
            session, tuple(told["classes"]), Preparation(**told["preparation"]), told["rate"], told["channels"],
            told["pooled_temperature"], told, _known(told.pop("familiarity", None), session),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: has damaged metadata ({type(error).__name__}); export the model again") from error


def export_onnx(model: Model, path: Path) -> Path:
    """Writes the model as one graph; `windows` in, `probabilities`, `log_probabilities`, `logits`, `features` out."""
    try:
        import onnx
    except ImportError as error:
        raise InputError("writing ONNX needs an extra; pip install 'bearcat[export]'") from error
    path = Path(path)
    if path.suffix != ".onnx":
        raise InputError(f"{path}: the file's name must end in .onnx")
    graph = _graph(model)
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        producer_name="bearcat", producer_version=__version__,
    )  # fmt: skip
    told = {
        "bearcat_format": FORMAT,
        "bearcat_version": __version__,
        "classes": list(model.classes),
        "preparation": asdict(model.preparation),
        "rate": model.rate,
        "channels": model.channels,
        "calibrated": model.calibrated,
        "pooled_temperature": model.pooled_temperature,
        "refusal": model.refusal,
        "familiarity": _familiarity_told(model.familiarity),
        "made_by": {name: model.told[name] for name in ("recipe", "task", "seed", "versions") if name in model.told},
    }
    onnx.helper.set_model_props(made, {name: json.dumps(value, ensure_ascii=False) for name, value in told.items()})
    onnx.checker.check_model(made, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(made.SerializeToString())
    return path


def _familiarity_told(familiarity: Familiarity | None) -> dict[str, Any] | None:
    """As JSON has it: arrays as their shape and their bytes in base64, row by row, and numbers."""
    if familiarity is None:
        return None
    told: dict[str, Any] = {}
    for name, value in familiarity.state().items():
        content = base64.b64encode(value.astype("<f2" if value.ndim == 2 else "<f4").tobytes()).decode()
        told[name] = {"shape": list(value.shape), "base64": content} if value.ndim else value.item()
    return told


def _known(told: Mapping[str, Any] | None, session: Any) -> Familiarity | None:
    """Back from `_familiarity_told`; ValueError where the features are not as wide as the graph's."""
    if told is None:
        return None
    state = dict(told)
    for name, value in told.items():
        if isinstance(value, dict):
            content, kind = (
                base64.b64decode(value["base64"], validate=True),
                "<f2" if len(value["shape"]) == 2 else "<f4",
            )
            state[name] = np.frombuffer(content, dtype=kind).reshape(value["shape"])
    width = next(one.shape[1] for one in session.get_outputs() if one.name == "features")
    found = Familiarity.from_state(state)
    if found.features.shape[1] != width:
        raise ValueError(f"features of {found.features.shape[1]} numbers do not fit a graph of {width}")
    return found


class _Graph:
    """Nodes and constants so far. Every method adds to them and returns the name of what it made."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def node(self, kind: str, inputs: Sequence[str], name: str, **settings: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **settings))
        return name

    def integers(self, *values: int) -> str:
        return self.constant("_".join(["integers", *map(str, values)]), np.array(values, dtype=np.int64))


def _graph(model: Model) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    graph, preparation = _Graph(), model.preparation
    state = {name: value.double().numpy()[0] for name, value in model.network.state_dict().items()}
    values = _standardised(graph, "windows", "time")
    if preparation.input == "frequency":
        values = _standardised(graph, _spectrum(graph, values, preparation.length), "spectrum")
    values = graph.node("Cast", [values], "prepared", to=TensorProto.FLOAT)
    features = _features(graph, values, state, preparation.points, model.channels)
    logits = _dense(graph, features, "logits", state["head.weight"], state["head.bias"])
    final = _calibrated(graph, logits, model)
    graph.node("LogSoftmax", [final], "log_probabilities", axis=-1)
    graph.node("Softmax", [final], "probabilities", axis=-1)

    def port(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["window", *shape])

    classes = len(model.classes)
    return helper.make_graph(
        graph.nodes, "bearcat", [port("windows", model.channels, preparation.length)],
        [port("probabilities", classes), port("log_probabilities", classes), port("logits", classes),
         port("features", len(state["head.weight"][0]))],
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
        doc_string="Windows as recorded (window, channel, sample) → calibrated class probabilities.",
    )  # fmt: skip


def _standardised(graph: _Graph, values: str, name: str) -> str:
    """As data.recording.standardise, in float64; a constant window becomes zeros."""
    from onnx import TensorProto

    last = graph.integers(-1)
    exact = graph.node("Cast", [values], f"{name}_exact", to=TensorProto.DOUBLE)
    mean = graph.node("ReduceMean", [exact, last], f"{name}_mean", keepdims=1)
    centred = graph.node("Sub", [exact, mean], f"{name}_centred")
    square = graph.node("Mul", [centred, centred], f"{name}_square")
    variance = graph.node("ReduceMean", [square, last], f"{name}_variance", keepdims=1)
    deviation = graph.node("Sqrt", [variance], f"{name}_deviation")
    nothing = graph.node("Equal", [deviation, graph.constant("zero", np.array(0.0))], f"{name}_constant")
    one = graph.node("Cast", [nothing], f"{name}_one", to=TensorProto.DOUBLE)
    divisor = graph.node("Add", [deviation, one], f"{name}_divisor")
    return graph.node("Div", [centred, divisor], f"{name}_standardised")


def _spectrum(graph: _Graph, standardised: str, length: int) -> str:
    """Magnitudes of the first length // 2 bins, over the window's deviation, which the next standardisation removes.

    The mean is bin 0 and has been taken away for the sake of digits; it is put back from where it was computed.
    """
    from onnx import TensorProto

    bins = length // 2
    signal = graph.node("Cast", [standardised], "signal", to=TensorProto.FLOAT)
    samples = graph.constant("samples", np.arange(length, dtype=np.int64)[:, None])
    orders = graph.constant("orders", np.arange(1, bins, dtype=np.int64)[None])
    angles = graph.node("Mul", [samples, orders], "angles")
    angles = graph.node("Mod", [angles, graph.integers(length)], "angles_in_a_turn")
    turn = 2 * np.pi * np.arange(length) / length
    squares = []
    for name, table in (("cosine", np.cos(turn)), ("sine", np.sin(turn))):
        wave = graph.node("Gather", [graph.constant(f"{name}_turn", table.astype(np.float32)), angles], name)
        part = graph.node("MatMul", [signal, wave], f"{name}_part")
        exact = graph.node("Cast", [part], f"{name}_exact", to=TensorProto.DOUBLE)
        squares.append(graph.node("Mul", [exact, exact], f"{name}_square"))
    power = graph.node("Add", squares, "power")
    magnitude = graph.node("Sqrt", [power], "magnitude_times_length")
    magnitude = graph.node("Div", [magnitude, graph.constant("length", np.array(float(length)))], "magnitude")
    offset = graph.node("Div", ["time_mean", "time_divisor"], "offset")
    return graph.node("Concat", [graph.node("Abs", [offset], "bin_0"), magnitude], "spectrum", axis=-1)


def _features(graph: _Graph, values: str, state: dict[str, Array], points: int, channels: int) -> str:
    """The encoder in evaluation mode, (window, channel, point) → (window, feature).

    Points lie along the second axis of a picture of height 1: onnxruntime has faster convolutions for pictures.
    """
    values = graph.node("Reshape", [values, graph.integers(-1, channels, 1, points)], "picture")
    for number in range(4):
        layer, norm = f"encoder.convolutions.{number}", f"encoder.norms.{number}"
        factor = state[f"{norm}.weight"] / np.sqrt(state[f"{norm}.running_var"] + 1e-5)
        weight = state[f"{layer}.weight"] * factor[:, None, None]
        bias = (state[f"{layer}.bias"] - state[f"{norm}.running_mean"]) * factor + state[f"{norm}.bias"]
        names = [
            graph.constant(f"convolution_{number}_weight", weight[:, :, None].astype(np.float32)),
            graph.constant(f"convolution_{number}_bias", bias.astype(np.float32)),
        ]
        width = weight.shape[-1]
        values = graph.node("Conv", [values, *names], f"convolution_{number}", kernel_shape=[1, width])
        values = graph.node("Relu", [values], f"convolution_{number}_relu")
        points -= width - 1
        if number == 1:
            values = graph.node("MaxPool", [values], "halved", kernel_shape=[1, 2], strides=[1, 2])
            points //= 2
    values = _pooled(graph, values, points)
    values = graph.node("Flatten", [values], "flat", axis=1)
    for number in range(2):
        layer = f"encoder.dense.{number}"
        values = _dense(graph, values, f"dense_{number}", state[f"{layer}.weight"], state[f"{layer}.bias"])
        values = graph.node("Relu", [values], "features" if number else "dense_0_relu")
    return values


def _pooled(graph: _Graph, values: str, points: int) -> str:
    """Adaptive max pooling to POOLED points: part i reaches from ⌊i n/POOLED⌋ to ⌈(i + 1) n/POOLED⌉."""
    if points % POOLED == 0:
        width = points // POOLED
        return graph.node("MaxPool", [values], "pooled", kernel_shape=[1, width], strides=[1, width])
    parts, last = [], graph.integers(3)
    for part in range(POOLED):
        start, stop = part * points // POOLED, -(-(part + 1) * points // POOLED)
        piece = graph.node("Slice", [values, graph.integers(start), graph.integers(stop), last], f"piece_{part}")
        parts.append(graph.node("ReduceMax", [piece, last], f"piece_{part}_largest", keepdims=1))
    return graph.node("Concat", parts, "pooled", axis=3)


def _dense(graph: _Graph, values: str, name: str, weight: Array, bias: Array) -> str:
    names = [
        graph.constant(f"{name}_weight", weight.astype(np.float32)),
        graph.constant(f"{name}_bias", bias.astype(np.float32)),
    ]
    return graph.node("Gemm", [values, *names], name, transB=1)


def _calibrated(graph: _Graph, logits: str, model: Model) -> str:
    """matrix @ (scale · logits) + bias; whatever the calibrator was, its fitted form is this."""
    if model.calibration is None:
        return logits
    state = {name: value.double().cpu().numpy()[0] for name, value in model.calibration.state().items()}
    matrix = state.get("matrix")
    if matrix is None:
        scale = graph.constant("calibration_scale", state["scale"].astype(np.float32))
        bias = graph.constant("calibration_bias", state["bias"].astype(np.float32))
        scaled = graph.node("Mul", [logits, scale], "scaled_logits")
        return graph.node("Add", [scaled, bias], "calibrated_logits")
    return _dense(graph, logits, "calibrated_logits", matrix * state["scale"], state["bias"])
