"""A model as one ONNX graph, from windows as recorded to calibrated probabilities; and a reader that needs no torch.

    windows (window, channel, sample) float32
    rpm (1,), orders (4,) float32, where its input needs the speed and the bearing (FTF, BPFO, BPFI and BSF)
      → the model's input (its torch form) → network = features, logits
      → calibration → log_probabilities, probabilities

Classes, rate, preparation, versions and the decision of its run are in the graph's metadata, and what the model is
familiar with: features and spectra of some hundred windows (float16, in base64), and limits.

>>> export_onnx(load_model(Path("out/model")), Path("bearing.onnx"))       # pip install 'bearcat[export]'
>>> load_onnx(Path("bearing.onnx")).predict(windows)                       # pip install 'bearcat[runtime]'
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat import __version__
from bearcat.data.bearing import Bearing
from bearcat.data.inputs import INPUTS, check_needs, find_input, metadata_arrays
from bearcat.data.prepare import Preparation
from bearcat.deploy.metadata import ONNX, Predictor, check_metadata, common_fields
from bearcat.errors import InputError
from bearcat.storage import write_atomically
from bearcat.trust.pooling import Familiarity, Outputs

if TYPE_CHECKING:
    from bearcat.deploy.model import Model

FORMAT = 3
OPSET = 18
BATCH = 16  # windows a call: more do not fit a core's cache (benchmarks/predict_speed.py)

BEHIND = {"rpm": "rpm", "bearing": "orders"}  # what a recording says → the graph's input behind the windows

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class OnnxModel(Predictor):
    """A graph in onnxruntime and what its metadata say."""

    session: Any  # onnxruntime.InferenceSession, which may be used by several threads at once
    classes: tuple[str, ...]
    preparation: Preparation  # whose input is not used: it is inside the graph, which needs no row of INPUTS
    rate: float | None
    channels: int
    pooled_temperature: float
    metadata: dict[str, Any]
    familiarity: Familiarity | None

    @property
    def input(self) -> str:
        return str(self.metadata["preparation"]["input"])

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.metadata["needs"])

    @property
    def calibrated(self) -> bool:
        return bool(self.metadata["calibrated"])

    def predict(self, windows: Array, rpm: float | None = None, bearing: Bearing | None = None) -> Array:
        """(window, channel, sample) windows as recorded → calibrated probabilities (window, class)."""
        return self.run(windows, ["probabilities"], rpm, bearing)[0]

    def outputs(self, windows: Array, rpm: float | None = None, bearing: Bearing | None = None) -> Outputs:
        return Outputs(*self.run(windows, ["log_probabilities", "logits", "features"], rpm, bearing))

    def run(
        self, windows: Array, outputs: Sequence[str], rpm: float | None = None, bearing: Bearing | None = None
    ) -> list[Array]:
        """These of the graph's outputs: probabilities, log_probabilities, logits (before calibration), features."""
        rate = self.preparation.rate or self.rate
        check_needs(self.needs, {"rate": rate, "rpm": rpm, "bearing": bearing})
        if self.input.split(":")[0] in INPUTS:
            find_input(self.input).check(self.preparation.length, rate, rpm, bearing)
        given = np.ascontiguousarray(windows, dtype=np.float32)
        if given.ndim != 3 or given.shape[1:] != (self.channels, self.preparation.length):
            raise InputError(
                f"windows must have the shape (window, {self.channels}, {self.preparation.length}), not {given.shape}"
            )
        starts = range(0, max(len(given), 1), BATCH)
        arrays = [array.astype(np.float32) for array in metadata_arrays(self.needs, rpm, bearing)]
        behind = dict(zip((BEHIND[name] for name in self.needs if name in BEHIND), arrays, strict=True))
        parts = [self.session.run(list(outputs), {"windows": given[at : at + BATCH]} | behind) for at in starts]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]


def load_onnx(path: Path, threads: int | None = None) -> OnnxModel:
    """A file written by `export_onnx`; `threads`: how many cores a call may use (all where None)."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # newer versions report home
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
    texts = dict(session.get_modelmeta().custom_metadata_map)
    if "bearcat_format" not in texts:
        raise InputError(f"{path}: is an ONNX file, but not one of bearcat's; write it with bearcat export")
    if texts["bearcat_format"] != str(FORMAT):
        raise InputError(
            f"{path}: was written by another bearcat (format {texts['bearcat_format']}, this one reads {FORMAT});"
            " export the model again, or upgrade bearcat"
        )
    try:
        metadata = {name: json.loads(text) for name, text in texts.items() if name in ONNX}
        check_metadata(metadata, str(path), ONNX)
        _check_graph(session, metadata)
        return OnnxModel(
            session=session,
            preparation=Preparation(**{key: metadata["preparation"][key] for key in ("length", "stride", "rate")}),
            familiarity=_decode_familiarity(metadata.pop("familiarity"), session),
            **common_fields(metadata),
        )
    except InputError as error:
        if str(error).startswith(f"{path}"):
            raise
        raise InputError(f"{path}: has damaged metadata ({error}); export the model again") from error
    except Exception as error:  # damaged files raise nearly every kind
        raise InputError(f"{path}: has damaged metadata ({type(error).__name__}); export the model again") from error


def _check_graph(session: Any, metadata: Mapping[str, Any]) -> None:
    """ValueError where the graph takes or gives something else than its metadata say."""
    taken = {node.name: node.shape[1:] for node in session.get_inputs()}
    given = {node.name: node.shape[1:] for node in session.get_outputs()}
    classes = [len(metadata["classes"])]
    expected = dict.fromkeys(("probabilities", "log_probabilities", "logits"), classes)
    behind: dict[str, list[int]] = {BEHIND[name]: [] for name in metadata["needs"] if name in BEHIND}
    if taken != {"windows": [metadata["channels"], metadata["preparation"]["length"]]} | behind:
        raise ValueError("the graph takes other windows")
    if {name: given.get(name) for name in expected} != expected or len(given.get("features", ())) != 1:
        raise ValueError("the graph gives other outputs")


def export_onnx(model: Model, path: Path) -> Path:
    """Writes the model as one graph; `windows` in, `probabilities`, `log_probabilities`, `logits`, `features` out."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise InputError(f"{path}: the file's name must end in .onnx")
    program = _traced(model)
    made_by = {key: model.metadata[key] for key in ("recipe", "task", "seed", "versions") if key in model.metadata}
    metadata = model.to_dict() | {
        "bearcat_format": FORMAT,
        "bearcat_version": __version__,
        "calibrated": model.calibrated,
        "familiarity": _encode_familiarity(model.familiarity),
        "needs": model.needs,
        "made_by": made_by,
    }
    program.model.metadata_props.update({key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()})
    program.model.producer_name, program.model.producer_version = "bearcat", __version__
    write_atomically(path, program.model_proto.SerializeToString())
    return path


def _traced(model: Model) -> Any:
    """The model as torch.onnx sees it; one sentence where the input or the encoder has no such form."""
    import logging
    import warnings

    import torch

    from bearcat.deploy.model import ExportForm

    form = find_input(model.input).torch_form(model.preparation.length, model.preparation.rate or model.rate)
    if form is None:
        unable = f"the input '{model.input}' has no torch form, so its model cannot be exported"
        raise InputError(f"{unable}; use the model's folder")
    examples = {"rpm": torch.full((1,), 900.0), "orders": torch.tensor([0.4, 3.6, 5.4, 2.4])}
    behind = {name: examples[name] for needed, name in BEHIND.items() if needed in model.needs}
    windows = torch.zeros(2, model.channels, model.preparation.length)
    disabled = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)  # it speaks of packages that no graph here needs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                ExportForm(form, model).eval(),
                (windows, *behind.values()),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["windows", *behind],
                output_names=["probabilities", "log_probabilities", "logits", "features"],
                dynamic_shapes=({0: torch.export.Dim("window")}, *(None for _ in behind)),
            )
    except ImportError as error:
        raise InputError("writing ONNX needs an extra; pip install 'bearcat[export]'") from error
    except torch.onnx.OnnxExporterError as error:
        raise InputError(
            f"ONNX lacks an operation of the encoder '{model.encoder}' or the input '{model.input}', so the model"
            " cannot be exported; use its folder"
        ) from error
    finally:
        logging.disable(disabled)


def _encode_familiarity(familiarity: Familiarity | None) -> dict[str, Any] | None:
    """As JSON has it: arrays as their shape and their bytes in base64, row by row, and numbers."""
    if familiarity is None:
        return None
    encoded: dict[str, Any] = {}
    for name, value in familiarity.state().items():
        content = base64.b64encode(value.astype("<f2" if value.ndim == 2 else "<f4").tobytes()).decode()
        encoded[name] = {"shape": list(value.shape), "base64": content} if value.ndim else value.item()
    return encoded


def _decode_familiarity(encoded: Mapping[str, Any] | None, session: Any) -> Familiarity | None:
    """Back from `_encode_familiarity`; ValueError where the features are not as wide as the graph's."""
    if encoded is None:
        return None
    state = dict(encoded)
    for name, value in encoded.items():
        if isinstance(value, dict):
            kind = "<f2" if len(value["shape"]) == 2 else "<f4"
            state[name] = np.frombuffer(base64.b64decode(value["base64"], validate=True), dtype=kind)
            state[name] = state[name].reshape(value["shape"])
    width = next(output.shape[1] for output in session.get_outputs() if output.name == "features")
    familiarity = Familiarity.from_state(state)
    if familiarity.features.shape[1] != width:
        raise ValueError(f"features of {familiarity.features.shape[1]} numbers do not fit a graph of {width}")
    return familiarity
