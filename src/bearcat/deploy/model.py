"""A trained model as a folder: weights and calibration in safetensors, the rest in JSON. Loading executes nothing.

    model/
      weights.safetensors     the reported network (teacher, or student), its calibration, and what it is familiar with
      model.json              format, classes, preprocessing, recipe; SHA-256 of the weights and of itself
      README.md               the model card, for people; nothing reads it back, so it may be added to

Format 1 is the only one so far. Readers leave fields and tensors alone that they do not know, and do without those
that older folders lack (the seal, the pooled temperature, the familiarity, the refusal); the format's number rises when
an old reader would misunderstand a new folder.

>>> model = load_model(Path("out/model"))
>>> model.probabilities(windows)       # prepared windows (window, channel, time) → (window, class), calibrated
>>> model.log_probabilities(raw)       # the same of windows as recorded, and logarithms
>>> model.outputs(raw)                 # with the logits before calibration, and the features
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat import __version__
from bearcat.calibration import Calibration
from bearcat.data.prepare import Preparation
from bearcat.data.recording import spectrum, standardise
from bearcat.errors import InputError
from bearcat.models import Student
from bearcat.storage import load_tensors, save_tensors
from bearcat.trust.estimates import Familiarity
from bearcat.trust.pooling import Outputs

FORMAT = 1
BATCH = 16  # windows at once: what lies between two layers then stays in the cache (benchmarks/predict_speed.py)
WEIGHTS, WORDS, CARD = "weights.safetensors", "model.json", "README.md"


@dataclass(frozen=True, eq=False)
class Model:
    """One network, its calibration, and what must be done to a recording before it sees it."""

    network: Student
    calibration: Calibration | None
    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    told: dict[str, Any]  # for people and the card: recipe, task, data, scores, estimates, limits, versions, …
    pooled_temperature: float = 1.0  # of a recording's confidence (bearcat.trust.pooling)
    familiarity: Familiarity | None = None  # what windows of the adapted target look like, where that was fitted

    @property
    def calibrated(self) -> bool:
        """Whether its confidence is: a calibration that ended at its bound is none."""
        return self.calibration is not None and not bool(self.calibration.at_bound.any())

    @property
    def refusal(self) -> str | None:
        """The verdict of the run that made it, where that is not to use it: training broke down, or gave one class."""
        return self.told.get("refusal")

    @property
    def channels(self) -> int:
        return int(self.network.state_dict()["encoder.convolutions.0.weight"].shape[2])

    def probabilities(self, values: np.ndarray, calibrated: bool = True) -> np.ndarray:
        """(window, channel, time) prepared windows → (window, class)."""
        logits, _ = self._run(values)
        result: np.ndarray = (self._calibrated(logits) if calibrated else logits).softmax(dim=-1).numpy()
        return result

    def log_probabilities(self, windows: np.ndarray) -> np.ndarray:
        """(window, channel, sample) windows as recorded → (window, class), calibrated."""
        return self.outputs(windows).log_probabilities

    def outputs(self, windows: np.ndarray) -> Outputs:
        """The same windows → calibrated log-probabilities, logits before calibration, and features."""
        values = windows if self.preparation.input == "time" else spectrum(windows)
        logits, features = self._run(standardise(values))
        return Outputs(self._calibrated(logits).log_softmax(dim=-1).numpy(), logits.numpy(), features.numpy())

    @torch.no_grad()
    def _run(self, values: np.ndarray) -> tuple[Tensor, Tensor]:
        given = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        starts = range(0, max(len(given), 1), BATCH)
        parts = [self.network(given[None, start : start + BATCH]) for start in starts]
        return torch.cat([logits[0] for logits, _ in parts]), torch.cat([features[0] for _, features in parts])

    def _calibrated(self, logits: Tensor) -> Tensor:
        return logits if self.calibration is None else self.calibration.apply(logits)


def save_model(folder: Path, model: Model) -> None:
    """Writes the folder: weights first, then the words that vouch for them, then the card."""
    tensors = {f"network.{name}": value for name, value in model.network.state_dict().items()}
    if model.calibration is not None:
        tensors |= {f"calibration.{name}": value for name, value in model.calibration.state().items()}
    if model.familiarity is not None:
        tensors |= {f"familiarity.{name}": torch.from_numpy(one) for name, one in model.familiarity.state().items()}
    save_tensors(folder / WEIGHTS, tensors, {"format": FORMAT})
    ours = {
        "format": FORMAT,
        "classes": list(model.classes),
        "channels": model.channels,
        "preparation": asdict(model.preparation),
        "rate": model.rate,
        "calibrated": model.calibration is not None,
        "calibration_at_bound": model.calibration is not None and bool(model.calibration.at_bound.any()),
        "pooled_temperature": model.pooled_temperature,
        "refusal": model.refusal,
        "familiarity": model.familiarity and {
            "windows": len(model.familiarity.features), "false_alarms": model.familiarity.rate,
            "recording_limit": model.familiarity.recording_limit,
        },
        "sha256": hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(),
    }  # fmt: skip
    told = ours | {name: value for name, value in model.told.items() if name not in ours and name != "seal"}
    sealed = told | {"seal": _seal(told)}
    (folder / WORDS).write_text(json.dumps(sealed, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / CARD).write_text(model_card(told), encoding="utf-8")


def load_model(folder: Path) -> Model:
    """The model in this folder, checked against its checksums; one sentence where anything is missing or damaged."""
    folder = Path(folder)
    try:
        told = json.loads((folder / WORDS).read_text(encoding="utf-8"))
        weights = (folder / WEIGHTS).read_bytes()
        if told["format"] > FORMAT:
            raise InputError(f"{folder}: was written by a newer bearcat (format {told['format']}); upgrade bearcat")
        if hashlib.sha256(weights).hexdigest() != told["sha256"]:
            raise InputError(f"{folder}: {WEIGHTS} does not match {WORDS}; copy or train the model again")
        seal = told.pop("seal", None)  # folders of the first bearcats have none
        if seal is not None and seal != _seal(told):
            raise InputError(f"{folder}: is a damaged model folder, {WORDS} was changed; copy or train the model again")
        tensors, _ = load_tensors(folder / WEIGHTS)
        preparation = Preparation(**told["preparation"])
        network = Student(1, told["channels"], preparation.points, len(told["classes"]))
        network.load_state_dict(_part(tensors, "network."))
        calibration = Calibration.from_state(_part(tensors, "calibration.")) if told["calibrated"] else None
        pooled = float(told.get("pooled_temperature", 1.0))
        known = {name: value.numpy() for name, value in _part(tensors, "familiarity.").items()}
        return Model(
            network, calibration, tuple(told["classes"]), preparation, told["rate"], told, pooled,
            Familiarity.from_state(known) if known else None,
        )  # fmt: skip
    except FileNotFoundError as error:
        place = folder / "model"  # where bearcat adapt puts it, if it is the run's folder that was given
        instead = f"give {place}" if (place / WORDS).exists() else "bearcat adapt writes one, OUT/model"
        missing = Path(str(error.filename)).name
        raise InputError(f"{folder}: is no model folder, {missing} is missing; {instead}") from error
    except NotADirectoryError as error:
        exported = folder.suffix.lower() == ".onnx"
        instead = "the folder it was exported from" if exported else "the model's folder, or a file that ends in .onnx"
        raise InputError(f"{folder}: is a file; give {instead}") from error
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"{folder}: is a damaged model folder ({type(error).__name__}); train the model again"
        ) from error


def model_card(told: Mapping[str, Any]) -> str:
    """The card as Markdown, of what model.json holds. What nobody has told is said to be unknown, not left out."""
    preparation = told["preparation"]
    rate = "unknown" if told["rate"] is None else f"{told['rate']:g} Hz"
    classes = ", ".join(told["classes"])
    parts = [
        f"# A bearing diagnosis model: {told.get('recipe', 'recipe unknown')}, {told.get('task', 'task unknown')}",
        *([f"**{told['refusal']}**"] if told.get("refusal") else []),
        "Written by bearcat; the numbers are those of the run that made the model. Use it with `bearcat predict`,"
        " or export it with `bearcat export`.",
        f"## What it does\nTakes windows of {preparation['length']} samples of {told['channels']} channel(s) at {rate}"
        f" ({preparation['input']} input) and tells {len(told['classes'])} classes apart: {classes}."
        f" {_calibration_told(told['calibrated'], told['calibration_at_bound'])}"
        f" A recording's confidence is pooled from its windows with temperature {told['pooled_temperature']:.4g}"
        f"{_recordings_told(told.get('pooled_recordings'))}."
        f" {_familiarity_told(told.get('familiarity'))}",
        f"## Data\n{_listed(told.get('data'), 'Not told.')}",
        f"## Recipe\n{_listed({name: told[name] for name in ('recipe', 'task', 'seed') if name in told}, 'Not told.')}",
        f"## Scores (measured with labels)\n{_listed(told.get('scores'), 'None: no labels, or not told.')}",
        f"## Estimates (without target labels)\n{_listed(told.get('estimates'), 'None were made.')}",
        "## Limits\n"
        "- It knows the classes above and no others: a fault of another kind is given one of these names.\n"
        "- Confidence is as good as the labelled source recordings it was fitted on; on another machine, speed, load or"
        " mounting it may be too high.\n"
        "- Recordings at another sampling rate are resampled first; nothing above half the lower rate is left then."
        + "".join(f"\n- {one}" for one in told.get("limits", ())),
        f"## Versions\n{_listed({'bearcat (saved by)': __version__} | dict(told.get('versions') or {}), '')}",
    ]
    return "\n\n".join(parts) + "\n"


def _calibration_told(calibrated: bool, at_bound: bool) -> str:
    if not calibrated:
        return "Its confidence is NOT calibrated: its recipe has no calibrator, or training ended before that began."
    if at_bound:
        return (
            "Its confidence is NOT calibrated: that was tried, but ended at a bound, as it does where the model is less"
            " sure than it is right on the source (it makes no mistakes there, or was trained for a short time)."
        )
    return "Its confidence is calibrated on held-out windows of the source."


def _recordings_told(recordings: int | None) -> str:
    if recordings is None:
        return ", which nobody fitted"
    return (
        f", which {recordings} labelled recordings of the source may have raised above 1; they know nothing of how a"
        " target misleads all windows of a recording alike"
    )


def _familiarity_told(familiarity: Mapping[str, Any] | None) -> str:
    if familiarity is None:
        return "It cannot tell whether a recording is unfamiliar."
    return (
        "It tells whether a recording looks like those it was adapted to, of which it keeps"
        f" {familiarity['windows']} windows' features: about {100 * familiarity['false_alarms']:.0f} % of windows like"
        " them are called unfamiliar by chance, and a recording where they are more than"
        f" {100 * familiarity['recording_limit']:.0f} % and more than chance makes. A fault that was among those"
        " recordings already is familiar."
    )


def _listed(values: Any, nothing: str, indent: str = "") -> str:
    """Nested values as a Markdown list."""
    if not values:
        return nothing
    if not isinstance(values, Mapping):
        return f"{indent}- {values}"
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}- {name}:\n{_listed(value, nothing, indent + '  ')}")
        elif isinstance(value, list | tuple):
            lines.append(f"{indent}- {name}: {', '.join(map(str, value))}")
        else:
            shown = "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(f"{indent}- {name}: {shown}")
    return "\n".join(lines)


def _seal(told: Mapping[str, Any]) -> str:
    """SHA-256 of the words, however they are laid out in the file."""
    plain = json.loads(json.dumps(told))  # tuples and the like as they will be read back
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
