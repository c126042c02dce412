"""A trained model as a folder, or as one ONNX graph. Loading executes nothing.

    model/weights.safetensors   the reported network (teacher or student), its calibration, its familiarity
    model/model.json            the fields of `Metadata` and more; SHA-256 of the weights and of itself

>>> model = load_model(Path("out/model"))
>>> model.outputs(windows)             # windows as recorded (window, channel, sample), docs/deploy.md
>>> export_onnx(model, Path("bearing.onnx"))                               # pip install 'bearcat[export]'
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bearcat.cat import Calibration
from bearcat.cat.networks import Network, restore
from bearcat.deploy.opened import (
    DENSE,
    FORMAT,
    GRAPH_FORMAT,
    METADATA,
    WEIGHTS,
    Array,
    Predictor,
    chunks,
    encoded,
    naming,
    read_folder,
    run_dense,
)
from bearcat.diagnosis.pooling import Outputs
from bearcat.errors import InputError, library
from bearcat.storage import digest, digest_file, digest_json, tensor_bytes, write_atomically, write_json

OPSET = 18


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(Predictor):
    """One network, its calibration, and how a recording is prepared for it.

    Dense layers run in numpy, so that its answers are those of its folder to the last digit.
    """

    network: Network
    calibration: Calibration | None
    run: Callable[[Array], Outputs] = field(init=False)

    def __post_init__(self) -> None:
        run = partial(run_network, self.network, self.calibration)
        if self.encoder.partition(":")[0] in DENSE:
            run = partial(run_dense, _arrays(self.network.state_dict()), _arrays(_state(self.calibration)))
        object.__setattr__(self, "run", run)


def _state(calibration: Calibration | None) -> Mapping[str, Tensor]:
    return {} if calibration is None else calibration.state()


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.numpy(force=True) for name, tensor in tensors.items()}


@torch.no_grad()
def run_network(network: Network, calibration: Calibration | None, values: Array) -> Outputs:
    """The outputs of a network and its calibration for prepared windows."""
    windows = np.ascontiguousarray(values, dtype=np.float32)
    parts = [network(torch.from_numpy(part)[None]) for part in chunks(windows)]
    logits, features = (torch.cat([part[0] for part in kind]) for kind in zip(*parts, strict=True))
    calibrated = logits if calibration is None else calibration.apply(logits)
    return Outputs(calibrated.log_softmax(dim=-1).numpy(), features.numpy())


def save_model(folder: Path, model: Model) -> None:
    """Writes the folder: weights first, then the metadata with their checksum.

    Weights of an earlier model are deleted last, so that the folder always holds a complete model.
    """
    tensors = {f"network.{name}": value for name, value in model.network.state_dict().items()}
    tensors |= {f"calibration.{name}": value for name, value in _state(model.calibration).items()}
    if model.familiarity is not None:
        arrays = model.familiarity.state()
        tensors |= {f"familiarity.{name}": torch.from_numpy(array) for name, array in arrays.items()}
    content = tensor_bytes(tensors, {"format": FORMAT})
    checksum = digest(content)
    same = (folder / WEIGHTS).is_file() and digest_file(folder / WEIGHTS) == checksum
    weights = WEIGHTS if same or not (folder / METADATA).exists() else f"weights-{checksum[:12]}.safetensors"
    write_atomically(folder / weights, content)
    metadata = model.metadata | model.to_dict() | {"format": FORMAT, "weights": weights, "sha256": checksum}
    write_json(folder / METADATA, metadata | {"seal": digest_json(metadata)})
    for earlier in folder.glob("weights*.safetensors"):
        if earlier.name != weights:
            earlier.unlink()


def load_model(folder: Path) -> Model:
    """The model in this folder, checked against its checksums; InputError if anything is missing or damaged."""
    with naming(folder, "is a damaged model folder"):
        tensors, attributes = read_folder(folder)
        network, calibration = (
            {name: torch.from_numpy(array) for name, array in tensors[kind].items()}
            for kind in ("network", "calibration")
        )
        points = attributes["preparation"].points
        return Model(
            network=restore(attributes["encoder"], network, attributes["channels"], points),
            calibration=Calibration(**calibration) if calibration else None, **attributes,
        )  # fmt: skip


class ExportForm(nn.Module):
    """The model as an ONNX graph: prepared windows → probabilities, logits and features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = model.network
        self.calibration = model.calibration or Calibration.identity(1, len(model.classes))

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values (window, channel, point) → probabilities, log-probabilities, logits, features."""
        logits, features = self.network(values[None])
        calibrated = self.calibration.apply(logits)[0]
        return calibrated.softmax(dim=-1), calibrated.log_softmax(dim=-1), logits[0], features[0]


def export_onnx(model: Model, path: Path) -> Path:
    """Writes the model as one graph, from prepared `values` (docs/inputs.md) to `probabilities`, `log_probabilities`,
    `logits` and `features`.
    """
    if path.suffix != ".onnx":
        raise InputError(f"{path}: the file's name must end in .onnx")
    program = _traced(model)
    familiarity = None if model.familiarity is None else encoded(model.familiarity)
    metadata = model.metadata | model.to_dict() | {"bearcat_format": GRAPH_FORMAT, "familiarity": familiarity}
    program.model.metadata_props.update({key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()})
    write_atomically(path, program.model_proto.SerializeToString())
    return path


def _traced(model: Model) -> Any:
    """The model as traced by torch.onnx; InputError if the encoder cannot be exported."""
    library("onnxscript", "export")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not needed here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                ExportForm(model).eval(),
                (torch.zeros(2, model.channels, model.preparation.points),),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["values"],
                output_names=["probabilities", "log_probabilities", "logits", "features"],
                dynamic_shapes=({0: torch.export.Dim("window")},),
            )
    except torch.onnx.OnnxExporterError as error:
        lacking = f"ONNX lacks an operation of the encoder '{model.encoder}'"
        raise InputError(f"{lacking}; use the model's folder") from error
    graph = program.model.graph
    if any(value.shape and isinstance(value.shape[0], int) for value in (graph.inputs[0], *graph.outputs)):
        raise InputError(f"the encoder '{model.encoder}' fixes the number of windows; write x.shape[0], not len(x)")
    return program
