"""The record of a finished run as typed values, and how it is written and read.

record.json is written last and marks a run as finished. It carries checksums of itself and of the tables beside it.
docs/record.md lists its entries. Nothing here needs torch.

>>> record = Record.read(Path("bearcat-out"))
>>> record.scores.target.accuracy, record.settings.epochs
(0.913, 60)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bearcat.data.choose import Choice
from bearcat.diagnosis.decision import Decision, Estimate, ModelEvidence
from bearcat.diagnosis.recording import Diagnosis
from bearcat.settings import PRIOR, from_plain, to_plain
from bearcat.storage import digest, read_json, read_regular, write_json

RECORD, PREDICTIONS, CURVES, SPEC = "record.json", "predictions.csv", "curves.csv", "run.json"
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class DomainScores:
    """Scores on the test windows of one domain, as fractions; None: there was nothing to count."""

    accuracy: float | None
    ece: float | None  # ten bins
    ece_uncalibrated: float | None
    ece15: float | None = None  # fifteen bins
    ece15_uncalibrated: float | None = None
    nll: float | None = None
    brier: float | None = None
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    accuracy_uncalibrated: float | None = None  # of the arg max of uncalibrated logits; another for Vector and Matrix


@dataclass(frozen=True)
class Scores:
    """Scores of both domains; None for a domain without labels."""

    source: DomainScores | None
    target: DomainScores | None


@dataclass(frozen=True)
class RecordedBins:
    """A reliability diagram's numbers: edges (bin + 1); windows, mean confidence and accuracy (bin)."""

    edges: tuple[float, ...]
    mass: tuple[float, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]


# Of source and target, None where a domain has no labels: bins of "uncalibrated" and "calibrated" probabilities.
Reliability = Mapping[str, Mapping[str, RecordedBins | None] | None]


@dataclass(frozen=True)
class SavedModel:
    """The model that `bearcat adapt` saved: of the method that was requested by name, else the recommended one."""

    recipe: str
    adapted: bool
    folder: str  # relative to the run's: "." or that of the run beside it whose model it is
    reason: str  # why this one
    requested: bool = False  # its method was named

    def __post_init__(self) -> None:
        if self.folder != "." and not re.fullmatch(r"beside-[^/\\\0]+", self.folder):
            raise ValueError(f"'folder' leads outside the run: {self.folder!r:.40}")


@dataclass(frozen=True)
class LabelledRecordings:
    """How many labels of recordings agreed, and how they changed the saved model (`bearcat check`)."""

    recordings: int
    right: int
    temperature_factor: float  # by which its temperature was multiplied


@dataclass(frozen=True)
class Estimates:
    """Estimates that need no target labels."""

    mean_confidence: float | None
    accuracy: Mapping[str, float | None]  # by estimator; None where it is not a number
    expected: Estimate | None  # the accuracy to expect, from all of them
    window_agreement: float | None = None  # share of windows whose class is that of most windows of their recording


@dataclass(frozen=True)
class FittedCalibration:
    temperature: float | None  # None where it is not a number
    at_bound: bool


@dataclass(frozen=True)
class DataSizes:
    """Numbers of windows, and the hash that names the run."""

    classes: tuple[str, ...]
    source_train: int
    source_test: int
    target_train: int
    target_test: int
    identity: str


@dataclass(frozen=True)
class RunSettings:
    """Everything that determines a run but its seed: `values` as in record.json, and what reports read of them."""

    values: Mapping[str, Any]
    dataset: str
    sources: tuple[str, ...]
    target: str
    mix: str  # what is unusual about the target's classes, in words; empty: nothing
    prior: float  # share of recordings that are of a faulty bearing
    input: str
    recipe_name: str
    epochs: int
    calibrator: str | None  # of the finished network; training may use another

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSettings:
        recipe = values["recipe"]
        return cls(
            values, values["data"]["name"], tuple(values["source"]), values["target"],
            values.get("mix", {}).get("words", ""), values.get("prior", PRIOR), values["preparation"]["input"],
            recipe["name"], recipe["schedule"]["epochs"], recipe.get("final") or recipe["calibration"],
        )  # fmt: skip

    @property
    def task(self) -> str:
        """The task as tables name it."""
        return task_words(f"{'+'.join(self.sources)}→{self.target}", self.mix)


def task_words(task: str, mix: str) -> str:
    """A task's name in tables, with what is special about its target's classes."""
    return f"{task} ({mix})" if mix else task


@dataclass(frozen=True)
class Record:
    """A finished run."""

    scores: Scores
    estimates: Estimates
    evidence: ModelEvidence  # for the decision; of `adapt`, of the saved model, as decision and recordings
    decision: Decision
    calibration: FittedCalibration | None
    reliability: Reliability
    failed: bool  # the loss turned NaN or infinite
    collapsed: bool  # one class for every target window, though there are several or it is a fault
    never_predicted: tuple[str, ...]
    warnings: tuple[str, ...]
    settings: RunSettings
    seed: int
    data: DataSizes
    device: str
    versions: Mapping[str, str]
    seconds: float  # of the whole stack
    stack: int = 1  # runs that shared these seconds
    pseudo_label_share: float | None = None  # of the target's windows, in the last epoch
    parameters: int | None = None  # trained numbers of one run
    kernels: Mapping[str, str] | None = None  # of each part
    precision: str | None = None
    shift: str = "unknown"  # what differs between source and target: "machine", "specimen" or only the "condition"
    chosen: tuple[Choice, ...] = ()  # settings that were chosen from the recordings
    adaptation: Mapping[str, Any] | None = None  # what the recipe found in the recordings before training
    saved: SavedModel | None = None
    labelled: LabelledRecordings | None = None
    recordings: tuple[Diagnosis, ...] = ()  # of the target; none where no model was kept
    problems: Mapping[str, str] = field(default_factory=dict)  # recordings that were left out, by name, and why

    @property
    def temperature(self) -> float | None:
        return None if self.calibration is None else self.calibration.temperature

    @property
    def at_bound(self) -> bool:
        """Whether calibration ended at the bound of its temperature."""
        return self.calibration is not None and self.calibration.at_bound

    @property
    def sentences(self) -> tuple[str, ...]:
        """Whether the recipe adapted, if it decides that itself, and which model was saved, if one was, and why."""
        sentences = [] if self.adaptation is None else [str(self.adaptation["sentence"])]
        if (saved := self.saved) is not None:
            which = "adapted" if saved.adapted else "unadapted"
            sentences.append(f"Saved: the {which} model of {saved.recipe} ({saved.reason}).")
        return tuple(sentences)

    @property
    def requested_scores(self) -> DomainScores | None:
        """Scores on the target of a method that was requested by name; None: it was not, or there are no labels."""
        return self.scores.target if self.saved is not None and self.saved.requested else None

    def to_dict(self) -> dict[str, Any]:
        """The record as record.json has it, without its checksums."""
        replaced = {
            "settings": self.settings.values,
            "recordings": [diagnosis.to_dict() for diagnosis in self.recordings],
        }
        plain: dict[str, Any] = json.loads(_text(to_plain(replace(self, recordings=())) | replaced))
        return plain

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Record:
        """The record; ValueError names an entry that is missing or has an impossible value."""
        try:
            built = {
                "settings": RunSettings.from_dict(given["settings"]),
                "recordings": tuple(map(Diagnosis.from_dict, given["recordings"])),
            }
            record: Record = from_plain(cls, {**given, **built})
            _ = record.sentences  # raises if one is missing
            return record
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error

    def write(self, folder: Path) -> None:
        """Seals and writes the record; the tables beside it must be there already."""
        plain = self.to_dict()
        checksums = {name: digest((folder / name).read_bytes()) for name in (PREDICTIONS, CURVES)}
        sealed = plain | {"checksums": {RECORD: digest(_text(plain))} | checksums}
        write_json(folder / RECORD, sealed)

    @classmethod
    def read(cls, folder: Path) -> Record:
        """The record of a finished run, compared with its own checksum and those of the tables beside it.

        ValueError names a damaged file; FileNotFoundError means that there is no record.
        """
        path, tables = folder / RECORD, (folder / PREDICTIONS, folder / CURVES)
        try:
            plain = read_json(path)
            checksums = plain.pop("checksums")
            contents = {path: _text(plain)} | {table: read_regular(table) for table in tables if table.exists()}
            damaged = [file for file in (path, *tables) if digest(contents.get(file, b"")) != checksums[file.name]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: is damaged ({type(error).__name__})") from error
        if damaged:
            raise ValueError(f"{damaged[0]}: is damaged or missing (it does not match its checksum)")
        try:
            return cls.from_dict(plain)
        except ValueError as error:
            raise ValueError(f"{path}: cannot be read as the record of a run ({error})") from error


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, allow_nan=False).encode()
