"""Which run a folder belongs to, and the record of a run from its evaluation.

run.json says which run a folder belongs to, so that another does not overwrite it.

>>> claim(folder, spec)
>>> make_record(spec, split, evaluation, trained, 0, seconds=12.5).write(folder)
"""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import bearcat
from bearcat.adaptation.estimates import RunEstimates
from bearcat.adaptation.spec import RunSpec
from bearcat.cat import Calibration
from bearcat.cat.algorithm import Trained
from bearcat.cat.evaluate import unchanged
from bearcat.cat.state import RESULT_VERSION
from bearcat.data import SplitTask
from bearcat.data.splits import specimen_counts
from bearcat.data.tasks import UNKNOWN
from bearcat.diagnosis.decision import decide
from bearcat.errors import InputError
from bearcat.record import (
    RECORD,
    SPEC,
    DataSizes,
    Estimates,
    FittedCalibration,
    Record,
    Reliability,
    RunSettings,
    Scores,
)
from bearcat.report.results import BESIDE
from bearcat.settings import from_plain
from bearcat.storage import read_json, write_json

OWN = (BESIDE, f".{SPEC}")  # may stand in a folder that no run has claimed: comparisons of `adapt`, interrupted claims
COLUMNS = ("recording", "start", "label", "predicted", "confidence", "confidence_uncalibrated", "log_probabilities")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The predictions of a run for its target test windows, and what follows from them and from those of the source."""

    target: NDArray[np.float32]  # (window, class) calibrated probabilities
    target_uncalibrated: NDArray[np.float32]
    calibration: Calibration | None  # of this run alone, on the CPU
    trust: RunEstimates
    scores: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {"source": None, "target": None})
    reliability: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {"source": None, "target": None})


def claim(folder: Path, spec: RunSpec) -> None:
    """Marks the folder as this run's; refuses one that holds another run or something else."""
    note = folder / SPEC
    try:
        if note.exists():
            owner = None
            with suppress(ValueError, KeyError, TypeError):  # a damaged note is no loss while nothing is finished
                owner = str(read_json(note)["identity"])
            if owner != spec.identity and (owner is not None or (folder / RECORD).exists()):
                differs = "other settings, seed, data or code"
                raise InputError(f"{folder}: holds another run ({differs}); choose another --out")
        elif folder.exists() and not (folder.is_dir() and all(path.name.startswith(OWN) for path in folder.iterdir())):
            raise InputError(f"{folder}: is not empty and holds no run of bearcat; choose another --out")
        settings = {"identity": spec.identity, "seed": spec.seed} | spec.to_dict()
        write_json(note, settings)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: cannot be used ({type(error).__name__}: {error}); choose another --out") from error


def make_record(
    spec: RunSpec, split: SplitTask, evaluation: Evaluation, trained: Trained, number: int, seconds: float
) -> Record:
    """Everything that is known of this run of a stack, but its diagnoses. `seconds` are those of the whole stack."""
    calibration, estimated, finding = evaluation.calibration, evaluation.trust, trained.findings[number]
    predicted = np.bincount(evaluation.target.argmax(axis=1), minlength=len(split.classes))
    never = [name for name, windows in zip(split.classes, predicted.tolist(), strict=True) if windows == 0]
    labels = split.held_back.target_test_labels
    several = len(np.unique(labels[labels != UNKNOWN])) > 1  # in the target, as far as labels say
    collapsed = estimated.evidence.one_class is not None or (several and len(never) == len(split.classes) - 1)
    finite, warnings = bool(trained.finite[number]), [*spec.warnings, *split.warnings]
    if not finite:
        warnings.append("the loss turned NaN or infinite; the run was stopped there and its numbers mean nothing")
    warnings += unchanged(spec.recipe_name, spec.recipe, trained.history, number)
    fitted = None
    if calibration is not None:
        temperature, at_bound = float(calibration.temperature[0]), bool(calibration.at_bound[0])
        known = temperature if np.isfinite(temperature) else None
        fitted = FittedCalibration(known, at_bound)
        if at_bound:
            warnings.append(describe_bound(temperature))
    device = trained.finite.device
    parts = {"source_train": split.source_train, "source_test": split.source_test}
    parts |= {"target_train": split.target_train, "target_test": split.target_test}
    versions = {"bearcat": bearcat.__version__, "result": str(RESULT_VERSION), "python": platform.python_version()}
    return Record(
        scores=from_plain(Scores, evaluation.scores),
        estimates=from_plain(Estimates, estimated.estimates),
        evidence=estimated.evidence,
        decision=decide(estimated.evidence),
        calibration=fitted,
        reliability=from_plain(Reliability, evaluation.reliability),
        failed=not finite,
        collapsed=collapsed,
        never_predicted=tuple(never),
        warnings=tuple(warnings),
        settings=RunSettings.from_dict(spec.to_dict()),
        seed=spec.seed,
        data=DataSizes(split.classes, **{name: len(part) for name, part in parts.items()}, identity=spec.identity),
        device=str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        versions=versions | {"torch": torch.__version__, "numpy": np.__version__},
        seconds=round(seconds, 2),
        stack=len(trained.finite),
        parameters=trained.parameters,
        memory=peak_memory(device),
        kernels=trained.kernels,
        precision=trained.precision,
        chosen=spec.chosen,
        shift=split.shift,
        specimens=specimen_counts((*split.source.recordings, *split.target.recordings)),
        adaptation=None if finding is None else finding.to_dict() | {"sentence": finding.sentence},
    )


def peak_memory(device: torch.device) -> int | None:
    """Bytes at most: on a graphics card since its count was last set back, else of this process since its start."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows
        return None
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def describe_bound(temperature: float) -> str:
    """What it means that calibration ended at one of its bounds, 1 and 100 (bearcat.cat.Temperature)."""
    if temperature > 1:
        return "the temperature is at its upper bound; the source test windows are not classified better than by chance"
    return (
        "the temperature is at its bound: on the source test windows the model is less sure than it is right, and"
        " calibration makes nothing surer"
    )


def drawable() -> bool:
    """Whether there is what pictures and pages need, the extra `report`."""
    return all(find_spec(name) is not None for name in ("matplotlib", "jinja2"))
