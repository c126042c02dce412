"""The record of a run: what a finished run says of itself, as values with types, and how it is written and read.

record.json is written last and marks a run as finished. It carries checksums of itself and of the tables beside it, so
that a damaged folder is noticed. docs/record.md lists its entries. Nothing here needs torch.

>>> record = Record.read(Path("bearcat-out"))
>>> record.scores.target.accuracy, record.settings.epochs
(0.913, 60)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bearcat.data.choose import Choice
from bearcat.storage import digest, read_json, write_atomically
from bearcat.trust.accuracy import Estimate

RECORD, PREDICTIONS, CURVES, SPEC = "record.json", "predictions.csv", "curves.csv", "run.json"
Kind = TypeVar("Kind")
_types: Any = cache(get_type_hints)


@dataclass(frozen=True)
class DomainScores:
    """Of the test windows of one domain; shares are fractions, and None stands for what could not be counted."""

    accuracy: float | None
    ece: float | None  # ten bins
    ece_uncalibrated: float | None
    ece15: float | None = None  # fifteen bins
    ece15_uncalibrated: float | None = None
    nll: float | None = None
    brier: float | None = None
    balanced_accuracy: float | None = None
    ece_source_calibrated: float | None = None  # where the recipe ends with another calibrator than it trains with
    ece15_source_calibrated: float | None = None
    recordings: int | None = None  # with known labels; only of the target, as all below
    recording_accuracy: float | None = None
    false_alarms: float | None = None
    missed_faults: float | None = None
    recording_false_alarms: float | None = None
    recording_missed_faults: float | None = None


@dataclass(frozen=True)
class Scores:
    """None where a domain has no labels."""

    source: DomainScores | None
    target: DomainScores | None


@dataclass(frozen=True)
class RecordedBins:
    """A reliability diagram's numbers: edges (bin + 1); windows, mean confidence and accuracy (bin)."""

    edges: tuple[float, ...]
    mass: tuple[float, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]


@dataclass(frozen=True)
class DomainReliability:
    uncalibrated: RecordedBins
    calibrated: RecordedBins | None


@dataclass(frozen=True)
class Reliability:
    """None where a domain has no labels."""

    source: DomainReliability | None
    target: DomainReliability | None


@dataclass(frozen=True)
class RunDecision:
    """What to do with the run's model, found without target labels. In JSON these are entries of `estimates`."""

    action: str  # "use", "check" or "do not use"; JSON: decision
    sentence: str  # JSON: verdict
    expected: Estimate | None  # accuracy on the target; None where the estimates are not numbers
    doubtful_recordings: tuple[str, ...] = ()
    saved: Mapping[str, Any] | None = None  # which model `adapt` saved, and why: recipe, adapted, folder, sentence
    second_opinion: Mapping[str, Any] | None = None  # physics check of the target's recordings

    @property
    def saved_folder(self) -> str:
        """Of the run whose model is in the run's folder, relative to it."""
        return str((self.saved or {}).get("folder", "."))


@dataclass(frozen=True)
class FamiliarityEstimates:
    """How many windows look unfamiliar; the rate that limits were set for, and shares beyond them."""

    rate: float | None
    false_alarms: float | None  # of held-out windows of the target
    source_unfamiliar: float | None
    distance_limit: float | None = None
    shape_limit: float | None = None
    recording_limit: float | None = None
    recordings: int | None = None


@dataclass(frozen=True)
class Estimates:
    """What is known of the run without target labels."""

    mean_confidence: float | None
    accuracy: Mapping[str, Estimate | None]  # by estimator; None where it is not a number
    familiarity: FamiliarityEstimates
    validators: Mapping[str, float | None] = field(default_factory=dict)
    abstention: Mapping[str, Any] = field(default_factory=dict)
    unity: float | None = None
    shares: Mapping[str, Any] = field(default_factory=dict)  # of the target's classes; what ingredients found
    beside: Mapping[str, Any] | None = None  # comparison with the runs beside it
    labelled: Mapping[str, Any] | None = None  # what labels of some recordings said (`bearcat check`)


@dataclass(frozen=True)
class CheckedEstimates:
    """The estimates against the target's labels."""

    accuracy: float
    too_high_by: Mapping[str, float] = field(default_factory=dict)
    inside: Mapping[str, bool] = field(default_factory=dict)
    familiarity: Mapping[str, float | None] = field(default_factory=dict)
    abstention: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FittedCalibration:
    temperature: float | None  # None where it is not a number
    at_bound: bool
    source_temperature: float | None = None  # what training used, where the finished network has another calibrator
    labelled: int | None = None  # recordings whose labels have changed it (`bearcat check`)


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
    """Everything that determines a run but its seed, as plain values. What others need to know of it are properties."""

    values: Mapping[str, Any]

    def check(self) -> None:
        """KeyError or TypeError where a setting is missing or is no value that it may have."""
        for name in ("dataset", "task", "input", "length", "split", "test_share", "adapts", "phases", "epochs"):
            getattr(self, name)

    @property
    def dataset(self) -> str:
        return str(self.values["data"]["name"])

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.values["source"])

    @property
    def target(self) -> str:
        return str(self.values["target"])

    @property
    def task(self) -> str:
        """As tables name it."""
        return task_words(f"{'+'.join(self.sources)}→{self.target}", self.values.get("mix", {}).get("words", ""))

    @property
    def input(self) -> str:
        return str(self.values["preparation"]["input"])

    @property
    def length(self) -> int:
        """Samples of a window."""
        return int(self.values["preparation"]["length"])

    @property
    def split(self) -> str:
        return str(self.values["split"]["scheme"])

    @property
    def test_share(self) -> float:
        return float(self.values["split"]["test"])

    @property
    def recipe(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.values["recipe"]
        return found

    @property
    def recipe_name(self) -> str:
        return str(self.recipe["name"])

    @property
    def epochs(self) -> int:
        return int(self.recipe["schedule"]["epochs"])

    @property
    def calibrator(self) -> str | None:
        found: str | None = self.recipe["calibration"]
        return found

    @property
    def adapts(self) -> bool:
        """Whether the recipe uses the target at all; otherwise it is training on the source alone."""
        parts = self.recipe["ingredients"]
        return any(name != "standardise" or part["by"] == "domain" for name, part in parts.items())

    @property
    def adaptive_thresholds(self) -> bool:
        """Whether pseudo-labels, where there are any, have thresholds that training moves."""
        return bool(self.recipe["ingredients"].get("labels", {}).get("threshold") != "fixed")

    @property
    def phases(self) -> dict[str, int]:
        """The epochs at which alignment (DA), pseudo-labels (PL) and calibration (cal) begin, where they do."""
        schedule, parts, found = self.recipe["schedule"], self.recipe["ingredients"], dict[str, int]()
        stated = any("phase" in part for part in parts.values())
        for name, part in parts.items():
            if phase := part.get("phase") if stated else _phase_by_name(name):
                sign, usual = {"alignment": ("DA", "align_from"), "labels": ("PL", "label_from")}[phase]
                begins = int(part.get("begins", schedule[usual]))
                found[sign] = min(begins, found.get(sign, begins))
        return found | ({"cal": int(schedule["calibrate_from"])} if self.calibrator else {})


def _phase_by_name(ingredient: str) -> str | None:
    """The phase of an ingredient in records that do not say it. To go once recipes say it of each."""
    if ingredient in ("matching", "moving", "standardise", "shares"):
        return None
    return "labels" if ingredient == "labels" else "alignment"


def task_words(task: str, mix: str) -> str:
    """A task's name in tables, with what is special about its target's classes."""
    return f"{task} ({mix})" if mix else task


@dataclass(frozen=True)
class Record:
    """Everything that is known of a finished run."""

    scores: Scores
    estimates: Estimates
    decision: RunDecision
    estimates_checked: CheckedEstimates | None  # None where the target has no labels
    calibration: FittedCalibration | None
    reliability: Reliability
    failed: bool  # the loss turned NaN or infinite
    collapsed: bool  # one class for every window of several recordings
    never_predicted: tuple[str, ...]
    warnings: tuple[str, ...]
    settings: RunSettings
    seed: int
    data: DataSizes
    device: str
    versions: Mapping[str, str]
    seconds: float  # of the whole stack
    stack: int = 1  # runs that shared these seconds
    kernels: Mapping[str, str] | None = None  # of each part
    precision: str | None = None
    chosen: tuple[Choice, ...] = ()  # settings that were chosen from the recordings, with reasons
    recordings: tuple[Mapping[str, Any], ...] | None = None  # of the target, as the saved model diagnoses them

    @property
    def run_seconds(self) -> float:
        """The run's share of the time of the runs that were trained together with it."""
        return self.seconds / self.stack

    @property
    def temperature(self) -> float | None:
        return None if self.calibration is None else self.calibration.temperature

    @property
    def at_bound(self) -> bool:
        """Whether calibration ended at the bound of its temperature."""
        return self.calibration is not None and self.calibration.at_bound

    def to_dict(self) -> dict[str, Any]:
        """As record.json has it, without its checksums."""
        found = _plain(self)
        decision = found.pop("decision")
        decision |= {"decision": decision.pop("action"), "verdict": decision.pop("sentence")}
        found |= {"settings": self.settings.values, "estimates": found["estimates"] | decision}
        plain: dict[str, Any] = json.loads(_text(found))
        return plain

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Record:
        """ValueError says which entry is missing or no value that it may have."""
        try:
            estimates, settings = given["estimates"], {"values": given["settings"]}
            decision = {**estimates, "action": estimates["decision"], "sentence": estimates["verdict"]}
            record = _build(cls, {**given, "settings": settings, "decision": decision})
            record.settings.check()
        except KeyError as error:
            raise ValueError(f"{error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
        return record

    def write(self, folder: Path) -> None:
        """Seals and writes the record; the tables beside it must be there already."""
        plain = self.to_dict()
        checksums = {name: digest((folder / name).read_bytes()) for name in (PREDICTIONS, CURVES)}
        sealed = plain | {"checksums": {RECORD: digest(_text(plain))} | checksums}
        write_atomically(folder / RECORD, json.dumps(sealed, indent=1, ensure_ascii=False).encode())

    @classmethod
    def read(cls, folder: Path) -> Record:
        """The record of a finished run, compared with its own checksum and those of the tables beside it.

        ValueError says which file is damaged, or no record; FileNotFoundError, that there is no record.
        """
        path = folder / RECORD
        try:
            found = read_json(path)
            checksums = found.pop("checksums")
            intact = checksums[RECORD] == digest(_text(found))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: is damaged ({type(error).__name__})") from error
        if not intact:
            raise ValueError(f"{path}: is damaged (it does not match its checksum)")
        for name in (PREDICTIONS, CURVES):
            try:
                content = (folder / name).read_bytes()
            except FileNotFoundError as error:
                raise ValueError(f"{folder / name}: is missing") from error
            if digest(content) != checksums.get(name):
                raise ValueError(f"{folder / name}: is damaged (it does not match its checksum)")
        try:
            return cls.from_dict(found)
        except ValueError as error:
            raise ValueError(f"{path}: cannot be read as the record of a run ({error})") from error

    def amend(self, folder: Path, **changes: Any) -> Record:
        """The record with these fields changed, sealed and written anew where that changes anything."""
        amended = replace(self, **changes)
        if amended.to_dict() != self.to_dict():
            amended.write(folder)
        return amended


def _build(kind: type[Kind], given: Any) -> Kind:
    """A dataclass from a mapping; entries that it does not know are left out, and a missing one is a KeyError."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{kind.__name__} is no mapping but {given!r:.40}")
    values, types = {}, _types(kind)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in given or (each.default is MISSING and each.default_factory is MISSING):
            values[each.name] = _value(types[each.name], given[each.name], each.name)
    return kind(**values)


def _value(kind: Any, given: Any, name: str) -> Any:
    """A value of this type from JSON's; ValueError names the entry where it is of another."""
    if type(None) in (parts := get_args(kind)):  # an estimate that is no number has nulls
        kind = parts[0]
        if given is None or (kind is Estimate and None in given.values()):
            return None
        parts = get_args(kind)
    origin = get_origin(kind) or kind
    if is_dataclass(kind):
        return _build(kind, given)  # type: ignore[arg-type]
    if origin is tuple and isinstance(given, list | tuple):
        return tuple(_value(parts[0], each, name) for each in given)
    if origin is Mapping and isinstance(given, Mapping):
        return {key: _value(parts[1], each, name) for key, each in given.items()}
    allowed = (int, float) if kind is float else object if kind is Any else origin
    if not isinstance(given, allowed) or (isinstance(given, bool) and kind not in (bool, Any)):
        raise ValueError(f"'{name}' is {given!r:.40}")
    return given


def _plain(value: Any) -> Any:
    """Values that JSON knows; an entry that need not be there and is not known is left out."""
    if is_dataclass(value):
        found = {each.name: (_plain(getattr(value, each.name)), each.default) for each in fields(value)}
        return {name: item for name, (item, default) in found.items() if item is not None or default is not None}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, allow_nan=False).encode()
