"""A trained model as a folder: weights and calibration in safetensors, the rest in JSON. Loading executes nothing.

    model/
      weights.safetensors     the reported network (teacher, or student), its calibration, and what it is familiar with
      model.json              format, classes, input, encoder, calibrator, recipe; SHA-256 of the weights and of itself
      README.md               the model card, for people; nothing reads it back, so it may be added to

Input, encoder and calibrator are stored by name and settings, as rows of INPUTS, ENCODERS and CALIBRATORS. Readers
ignore fields and tensors that they do not know; the format's number rises when an old reader would misunderstand a new
folder.

>>> model = load_model(Path("out/model"))
>>> model.log_probabilities(windows)   # windows as recorded (window, channel, sample) → (window, class), calibrated
>>> model.outputs(windows)             # with the logits before calibration, and the features
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bearcat import __version__
from bearcat.calibration import Calibration, find_calibrator
from bearcat.data.bearing import Bearing
from bearcat.data.inputs import WHAT, find_input
from bearcat.data.prepare import Preparation
from bearcat.data.recording import Speed
from bearcat.deploy.metadata import FOLDER, Predictor, check_metadata, common_fields
from bearcat.errors import InputError
from bearcat.models.networks import Network, restore
from bearcat.settings import from_plain
from bearcat.storage import (
    digest,
    digest_file,
    digest_json,
    load_tensors,
    read_json,
    read_regular,
    save_tensors,
    write_atomically,
)
from bearcat.trust.decision import Decision
from bearcat.trust.pooling import Familiarity, Outputs

FORMAT = 3
BATCH = 16  # windows at once: what lies between two layers then stays in the cache (benchmarks/predict_speed.py)
WEIGHTS, METADATA, CARD = "weights.safetensors", "model.json", "README.md"


@dataclass(frozen=True, eq=False)
class Model(Predictor):
    """One network, its calibration, and how a recording is prepared for it."""

    network: Network
    calibration: Calibration | None
    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None
    metadata: dict[str, Any]
    encoder: str = "cnn"  # a row of ENCODERS
    calibrator: str | None = None  # a row of CALIBRATORS
    channels: int = 1
    pooled_temperature: float = 1.0
    familiarity: Familiarity | None = None

    @property
    def input(self) -> str:
        return self.preparation.input

    @property
    def needs(self) -> tuple[str, ...]:
        return find_input(self.input).needs

    @property
    def at_bound(self) -> bool:
        """Whether its calibration ended at its bound."""
        return self.calibration is not None and bool(self.calibration.at_bound.any())

    @property
    def calibrated(self) -> bool:
        return self.calibration is not None and not self.at_bound

    def outputs(self, windows: np.ndarray, rpm: Speed | None = None, bearing: Bearing | None = None) -> Outputs:
        rate = self.preparation.rate or self.rate
        return self.classify(find_input(self.input).transform(windows, rate, rpm, bearing))

    @torch.no_grad()
    def classify(self, values: np.ndarray) -> Outputs:
        """The outputs of prepared windows (window, channel, point), as its input makes them."""
        given = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        starts = range(0, max(len(given), 1), BATCH)
        parts = [self.network(given[None, start : start + BATCH]) for start in starts]
        logits, features = (torch.cat([part[0] for part in kind]) for kind in zip(*parts, strict=True))
        calibrated = logits if self.calibration is None else self.calibration.apply(logits)
        return Outputs(calibrated.log_softmax(dim=-1).numpy(), logits.numpy(), features.numpy())


class ExportForm(nn.Module):
    """The model as a graph has it: windows as recorded → probabilities, log-probabilities, logits, features."""

    def __init__(self, form: nn.Module, model: Model) -> None:
        super().__init__()
        self.form, self.network = form, model.network
        calibration = model.calibration or Calibration.identity(1, len(model.classes))
        matrix = calibration.matrix if calibration.matrix is not None else torch.eye(len(model.classes))[None]
        self.register_buffer("factor", (matrix[0].double() * calibration.scale[0].double()).float())
        self.register_buffer("bias", calibration.bias[0].float())

    def forward(self, windows: Tensor, first: Tensor | None = None, second: Tensor | None = None) -> tuple[Tensor, ...]:
        """Speed and orders of the bearing follow the windows, where the input needs them."""
        metadata = [tensor for tensor in (first, second) if tensor is not None]
        logits, features = self.network(self.form(windows, *metadata)[None])
        calibrated = logits[0] @ self.factor.T + self.bias
        return calibrated.softmax(dim=-1), calibrated.log_softmax(dim=-1), logits[0], features[0]


def save_model(folder: Path, model: Model) -> None:
    """Writes the folder: weights first, then the metadata that vouch for them, then the card."""
    tensors = {f"network.{name}": value for name, value in model.network.state_dict().items()}
    if model.calibration is not None:
        tensors |= {f"calibration.{name}": value for name, value in model.calibration.state().items()}
    if (known := model.familiarity) is not None:
        tensors |= {f"familiarity.{name}": torch.from_numpy(array) for name, array in known.state().items()}
    save_tensors(folder / WEIGHTS, tensors, {"format": FORMAT})
    own = model.to_dict() | {
        "format": FORMAT,
        "encoder": model.encoder,
        "calibrator": model.calibrator,
        "calibrated": model.calibration is not None,
        "calibration_at_bound": model.at_bound,
        "familiarity": known
        and {"windows": len(known.features), "false_alarms": known.rate, "recording_limit": known.recording_limit},
        "sha256": digest_file(folder / WEIGHTS),
    }
    rest = {name: value for name, value in model.metadata.items() if name not in own and name != "seal"}
    metadata = json.loads(json.dumps(own | rest))
    sealed = metadata | {"seal": digest_json(metadata)}
    write_atomically(folder / METADATA, json.dumps(sealed, indent=1, ensure_ascii=False).encode())
    write_atomically(folder / CARD, model_card(metadata).encode())


def load_model(folder: Path) -> Model:
    """The model in this folder, checked against its checksums; one sentence where anything is missing or damaged."""
    folder = Path(folder)
    try:
        metadata = read_json(folder / METADATA)
        weights = read_regular(folder / WEIGHTS)
        if metadata["format"] != FORMAT:
            writer, advice = (
                ("a newer", "upgrade") if metadata["format"] > FORMAT else ("an older", "train it again with")
            )
            raise InputError(f"{folder}: was written by {writer} bearcat; {advice} this one")
        if digest(weights) != metadata["sha256"]:
            raise InputError(f"{folder}: {WEIGHTS} does not match {METADATA}; copy or train the model again")
        if metadata.pop("seal") != digest_json(metadata):
            raise InputError(
                f"{folder}: is a damaged model folder, {METADATA} was changed; copy or train the model again"
            )
        check_metadata(metadata, str(folder), FOLDER)
        tensors, _ = load_tensors(folder / WEIGHTS)
        preparation = Preparation(**metadata["preparation"])
        network = restore(metadata["encoder"], _part(tensors, "network."), metadata["channels"], preparation.points)
        familiarity = {name: value.numpy() for name, value in _part(tensors, "familiarity.").items()}
        return Model(
            network=network,
            calibration=Calibration.from_state(_part(tensors, "calibration.")) if metadata["calibrated"] else None,
            preparation=preparation,
            encoder=metadata["encoder"],
            calibrator=metadata["calibrator"],
            **common_fields(metadata),
            familiarity=Familiarity.from_state(familiarity) if familiarity else None,
        )
    except FileNotFoundError as error:
        place = folder / "model"  # where bearcat adapt puts it, if it is the run's folder that was given
        instead = f"give {place}" if (place / METADATA).exists() else "bearcat adapt writes one, OUT/model"
        missing = Path(str(error.filename)).name
        raise InputError(f"{folder}: is no model folder, {missing} is missing; {instead}") from error
    except NotADirectoryError as error:
        exported = folder.suffix.lower() == ".onnx"
        instead = "the folder it was exported from" if exported else "the model's folder, or a file that ends in .onnx"
        raise InputError(f"{folder}: is a file; give {instead}") from error
    except InputError as error:
        inside = str(error).startswith(f"{folder}")  # a row that is not in INPUTS or ENCODERS is named without it
        raise error if inside else InputError(f"{folder}: {error}") from error
    except Exception as error:  # damaged files raise nearly every kind
        raise InputError(
            f"{folder}: is a damaged model folder ({type(error).__name__}); train the model again"
        ) from error


def model_card(metadata: Mapping[str, Any]) -> str:
    """The card as Markdown, of what model.json holds; what is missing there is called unknown."""
    preparation = metadata["preparation"]
    recipe = {name: metadata[name] for name in ("recipe", "task", "seed") if name in metadata}
    rate = "unknown rate" if metadata["rate"] is None else f"{metadata['rate']:g} Hz"
    needs = find_input(preparation["input"]).needs
    fitted = f", fitted on {metadata['pooled_recordings']} recordings" if metadata.get("pooled_recordings") else ""
    needed = " and ".join(what for name, what in WHAT.items() if name != "rate" and name in needs)
    limits = [
        "It knows the classes above. A fault of another kind is unknown where it looks unfamiliar, and is given one of"
        " these names where it does not.",
        "Confidence was fitted without labels of the machine it is used on; on another machine, speed, load or mounting"
        " it may be too high.",
        "Recordings at another sampling rate are resampled; nothing above half the lower rate is left then.",
        *metadata.get("limits", ()),
    ]
    parts = [
        f"# A bearing diagnosis model: {recipe.get('recipe', 'recipe unknown')}, {recipe.get('task', 'task unknown')}",
        f"**{from_plain(Decision, metadata['decision']).sentence}**",
        "Written by bearcat. Use it with `bearcat predict`, or export it with `bearcat export`.",
        f"## What it does\nTakes windows of {preparation['length']} samples of {metadata['channels']} channel(s) at"
        f" {rate} ({preparation['input']} input, {metadata['encoder']} encoder) and distinguishes"
        f" {len(metadata['classes'])} classes: {', '.join(metadata['classes'])}."
        f"{f' It needs {needed} of each recording.' if needed else ''}\n\n{_calibration_sentence(metadata)}"
        f" The confidences of windows are pooled with temperature {metadata['pooled_temperature']:.4g}{fitted}.\n\n"
        f"{_familiarity_sentence(metadata.get('familiarity'))}",
        f"## Data\n{_listed(metadata.get('data'), 'Unknown.')}",
        f"## Recipe\n{_listed(recipe, 'Unknown.')}",
        f"## Scores (measured with labels)\n{_listed(metadata.get('scores'), 'None: no labels, or unknown.')}",
        "## Limits\n" + "\n".join(f"- {limit}" for limit in limits),
        f"## Versions\n{_listed({'bearcat (saved by)': __version__} | dict(metadata.get('versions') or {}), '')}",
    ]
    return "\n\n".join(parts) + "\n"


def _calibration_sentence(metadata: Mapping[str, Any]) -> str:
    if not metadata["calibrated"]:
        return "Its confidence is NOT calibrated: its recipe has no calibrator, or training ended before it was fitted."
    if metadata["calibration_at_bound"]:
        return (
            "Its confidence is NOT calibrated: the fit ended at a bound, as it does where the model makes no mistakes"
            " on the source, or was trained for a short time."
        )
    needs = () if metadata["calibrator"] is None else find_calibrator(metadata["calibrator"]).needs
    target = any(name.startswith(("target", "estimates")) for name in needs)
    also = " and on windows of the target without their labels" if target else ""
    return f"Its confidence is calibrated on held-out windows of the source{also}."


def _familiarity_sentence(familiarity: Mapping[str, Any] | None) -> str:
    if familiarity is None:
        return "It cannot notice unfamiliar recordings."
    return (
        f"It compares recordings with {familiarity['windows']} windows of those it was adapted to. About"
        f" {100 * familiarity['false_alarms']:.0f} % of windows like them are called unfamiliar by chance; a recording"
        f" is, where more than {100 * familiarity['recording_limit']:.0f} % of its windows are, and more than chance"
        " makes. A fault that was among those recordings is familiar."
    )


def _listed(values: Any, nothing: str, indent: str = "") -> str:
    """Nested values as a Markdown list."""
    lines = []
    for name, value in (values if isinstance(values, Mapping) else {}).items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}- {name}:\n{_listed(value, nothing, indent + '  ')}")
        else:
            parts = value if isinstance(value, list | tuple) else [value]
            words = (
                "none" if part is None else f"{part:.4g}" if isinstance(part, float) else f"{part}" for part in parts
            )
            lines.append(f"{indent}- {name}: {', '.join(words)}")
    return "\n".join(lines) or nothing


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
