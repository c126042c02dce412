"""Orders in, folders of results out: a stack of runs trained together, each with a folder of its own.

    FOLDER/
      record.json        scores, estimates, settings, seed, data, versions, seconds; written last: it says "finished"
      predictions.csv    one row per target test window
      curves.csv         one row per epoch
      run.json           what this folder is for, so that another run does not overwrite it
      model/             the trained model, if wanted
      reliability.png    source and target, before and after calibration, if wanted
      track/             what a tracker wrote, if wanted

This is the only place that writes such a folder: `bearcat adapt` is a stack of one, a benchmark is many stacks.

>>> records = adapt_all([order], [Path("out")], torch.device("cpu"))
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bearcat
from bearcat.calibration import Calibration, reliability_bins
from bearcat.data import (
    Catalogue,
    Dataset,
    Preparation,
    Split,
    SplitTask,
    Task,
    Windows,
    cache_folder,
    cached_windows,
    join,
    split_task,
)
from bearcat.data.choose import Choice
from bearcat.data.tasks import UNKNOWN
from bearcat.deploy.model import Model, save_model
from bearcat.errors import InputError
from bearcat.methods.recipe import Recipe
from bearcat.models import select_run
from bearcat.report.figures import write_reliability
from bearcat.runs.track import open_tracker
from bearcat.storage import digest, write_atomically
from bearcat.training.batches import padded_stack
from bearcat.training.estimates import RunEstimates, estimate_runs, spectral_shapes
from bearcat.training.evaluate import EpochEnd, predict, scores, watcher
from bearcat.training.loop import RESULT_VERSION, Run, Trained, stack_key, train
from bearcat.trust.pooling import pooled_temperature

RECORD, PREDICTIONS, CURVES, NOTE = "record.json", "predictions.csv", "curves.csv", "run.json"
KEPT = ("model", "picture")  # what a folder may hold besides


@dataclass(frozen=True)
class Order:
    """What is to be trained on what."""

    dataset_name: str
    dataset: Dataset
    sources: tuple[str, ...]
    target: str
    recipe_name: str
    recipe: Recipe
    preparation: Preparation
    split: Split
    seed: int
    precision: str | None = None  # on a GPU: "float32", "tf32" or "bfloat16"; None: as fast as it can
    # Why settings are what they are, and what is known to be wrong with the data: for the record, not for the result.
    chosen: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        return Task(self.sources[0] if len(self.sources) == 1 else self.sources, self.target)

    def told(self) -> dict[str, Any]:
        """Every setting, as plain values."""
        settings = {
            one.name: _plain(getattr(self.dataset, one.name))
            for one in fields(self.dataset)  # type: ignore[arg-type]
            if one.name != "root" and not ("later" in one.metadata and getattr(self.dataset, one.name) == one.default)
        }
        return {
            "data": {"name": self.dataset_name} | settings,
            "source": list(self.sources),
            "target": self.target,
            "preparation": asdict(self.preparation),
            "split": asdict(self.split),
            "recipe": {"name": self.recipe_name} | self.recipe.to_dict(),
        } | ({} if self.precision is None else {"precision": self.precision})  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Runs of equal shape can be trained together."""

    recipe: Recipe  # without the numbers that may differ
    window: tuple[int, ...]  # channel, time
    key: Hashable  # what the loop asks for besides (train.stack_key)
    windows: int = field(compare=False)  # of all parts together: how much memory the data need


class Library:
    """Catalogues and prepared windows, each read once however many runs want them."""

    def __init__(self, catalogues: Mapping[Dataset, Catalogue] | None = None) -> None:
        """`catalogues` are those that were made already."""
        self._catalogues = dict(catalogues or {})
        self._windows: dict[tuple[Dataset, str, Preparation], Windows] = {}
        self._splits: dict[tuple[Dataset, Task, Preparation, Split, int], SplitTask] = {}

    def catalogue(self, dataset: Dataset) -> Catalogue:
        if dataset not in self._catalogues:
            self._catalogues[dataset] = dataset.catalogue()
        return self._catalogues[dataset]

    def windows(self, dataset: Dataset, domain: str, preparation: Preparation) -> Windows:
        key = (dataset, domain, preparation)
        if key not in self._windows:
            part = self.catalogue(dataset).only([domain])
            self._windows[key] = cached_windows(part, preparation, cache_folder())
        return self._windows[key]

    def split(self, order: Order) -> SplitTask:
        """The split of a run's windows. It is made once; each answer copies values for itself, when it is used."""
        key = (order.dataset, order.task, order.preparation, order.split, order.seed)
        if key not in self._splits:
            domains = (*order.sources, order.target)
            *source, target = (self.windows(order.dataset, domain, order.preparation) for domain in domains)
            self._splits[key] = split_task(
                order.task, source[0] if len(source) == 1 else join(source), target, order.split, order.seed,
                keep_unknown=True,
            )  # fmt: skip
        return replace(self._splits[key])

    def shape(self, order: Order) -> Shape:
        """What decides which runs go together; values are not copied for it."""
        split = self.split(order)
        parts = (split.source_train, split.source_test, split.target_train, split.target_test)
        return Shape(
            order.recipe.stack_key(), split.target.values.shape[1:],
            (order.precision, stack_key(Run(order.recipe, split.outline(), order.seed))),
            sum(len(part) for part in parts),
        )  # fmt: skip


def adapt_all(
    orders: Sequence[Order],
    folders: Sequence[Path],
    device: torch.device,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    keep: Sequence[str] = (),
    library: Library | None = None,
    track: str | None = None,
) -> list[dict[str, Any]]:
    """Trains these runs of one shape together and writes a folder for each; returns their records.

    Folders that hold their record already are left alone, and where all do nothing is trained. `keep` is of KEPT,
    `track` one of track.TRACKERS, which then writes into FOLDER/track.
    """
    library = library or Library()
    splits = [library.split(order) for order in orders]
    identities = [_claim(*one) for one in zip(folders, orders, splits, strict=True)]
    open_ones = [number for number, folder in enumerate(folders) if not (folder / RECORD).exists()]
    if open_ones:
        started = time.monotonic()
        runs = [Run(order.recipe, split.training, order.seed) for order, split in zip(orders, splits, strict=True)]
        watch = watcher([one.held_back for one in splits], device)
        with _tracked(track, {number: folders[number] for number in open_ones}, progress) as told:
            trained = train(
                runs, device, watch, told, checkpoint, checkpoint_seconds, precision=orders[0].precision
            )  # fmt: skip
        seen = _look(trained, splits, device)
        seconds = time.monotonic() - started
        for number in open_ones:
            order, split, folder = orders[number], splits[number], folders[number]
            record = _record(order, split, trained, seen, number, device, identities[number], seconds)
            _write_predictions(folder / PREDICTIONS, split, seen, number)
            _write_curves(folder / CURVES, trained, number, split.training.classes)
            if "model" in keep:
                rate = library.windows(order.dataset, order.target, order.preparation).recordings[0].rate
                model = _model(trained, seen, number, order, split, rate, record)
                save_model(folder / "model", model)
            if "picture" in keep:
                write_reliability(record["reliability"], folder / "reliability.png")
            write_atomically(folder / RECORD, _sealed(folder, record))
    return [json.loads((folder / RECORD).read_text(encoding="utf-8")) for folder in folders]


@contextmanager
def _tracked(
    name: str | None, folders: Mapping[int, Path], progress: Callable[[EpochEnd], None] | None
) -> Iterator[Callable[[EpochEnd], None] | None]:
    """The progress, which tells a tracker of each run (by its number in the stack) the epoch's numbers besides."""
    if name is None:
        yield progress
        return
    with ExitStack() as opened:
        trackers = {number: open_tracker(name, folder / "track") for number, folder in folders.items()}
        for tracker in trackers.values():
            opened.callback(tracker.close)

        def both(end: EpochEnd) -> None:
            latest = {key: values[-1].tolist() for key, values in end.history.items() if len(values) == end.epoch + 1}
            for number, tracker in trackers.items():
                tracker.epoch(end.epoch, {key: values[number] for key, values in latest.items()})
            if progress is not None:
                progress(end)

        yield both


def checked_record(folder: Path) -> dict[str, Any]:
    """The record of a finished run, held against its own checksum and those of the files beside it.

    ValueError says which file is damaged; FileNotFoundError, that there is no record.
    """
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        told = record.pop("checksums")
        intact = told[RECORD] == digest(_text(record))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / RECORD}: is damaged ({type(error).__name__})") from error
    if not intact:
        raise ValueError(f"{folder / RECORD}: is damaged (it does not match its checksum)")
    for name in (PREDICTIONS, CURVES):
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError as error:
            raise ValueError(f"{folder / name}: is missing") from error
        if digest(content) != told[name]:
            raise ValueError(f"{folder / name}: is damaged (it does not match its checksum)")
    return record | {"checksums": told}


def add_estimate(folder: Path, name: str, value: Any) -> dict[str, Any]:
    """Puts one more entry among a finished run's estimates, and its seal anew; returns the record."""
    record = checked_record(folder)
    del record["checksums"]
    record["estimates"] = record["estimates"] | {name: value}
    write_atomically(folder / RECORD, _sealed(folder, record))
    return checked_record(folder)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What the final networks say of the test windows: (run, window, class) and (run, …).

    Behind a run's own windows, where others of its stack have more, stands nothing of meaning.
    """

    source: Tensor  # calibrated log-probabilities, on the CPU as is what follows
    target: Tensor  # calibrated probabilities
    target_plain: Tensor
    scores: dict[str, dict[str, Tensor]]
    reliability: dict[str, dict[str, list[dict[str, Any]] | None]]
    labelled: list[bool]
    trust: list[RunEstimates]
    calibration: Calibration | None


def _look(trained: Trained, splits: Sequence[SplitTask], device: torch.device) -> _Seen:
    calibration = trained.calibration
    values = padded_stack([np.asarray(one.held_back.target_test.values) for one in splits], 0, device)
    labels = padded_stack([one.held_back.target_test_labels for one in splits], UNKNOWN, device)
    seen = {
        "source": predict(trained.network, trained.batches.source_test),
        "target": predict(trained.network, values),
    }
    logits = {where: one for where, (one, _) in seen.items()}
    truth = {"source": trained.batches.source_test_labels, "target": labels}
    plain = {where: one.softmax(dim=-1) for where, one in logits.items()}
    calibrated = {
        where: plain[where] if calibration is None else calibration.apply(one).softmax(dim=-1)
        for where, one in logits.items()
    }
    return _Seen(
        source=(logits["source"] if calibration is None else calibration.apply(logits["source"]))
        .double().log_softmax(dim=-1).cpu(),
        target=calibrated["target"].cpu(),
        target_plain=plain["target"].cpu(),
        scores={where: scores(one, calibration, truth[where]) for where, one in logits.items()},
        reliability={
            where: {
                "uncalibrated": _bins(plain[where], truth[where]),
                "calibrated": None if calibration is None else _bins(calibrated[where], truth[where]),
            }
            for where in logits
        },
        labelled=(labels != UNKNOWN).any(dim=1).tolist(),
        trust=estimate_runs(
            trained.network, calibration, trained.batches, [one.held_back for one in splits],
            [spectral_shapes(split) for split in splits], trained.finite, seen["source"], seen["target"],
        ),
        calibration=calibration and Calibration.from_state({k: v.cpu() for k, v in calibration.state().items()}),
    )  # fmt: skip


def _bins(probabilities: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Per run what a reliability diagram draws; `mass` counts windows, None stands where a bin has none."""
    known = labels != UNKNOWN
    found = reliability_bins(probabilities, labels.clamp(min=0), known.to(probabilities.dtype))
    windows = known.sum(dim=1).tolist()
    return [
        {
            "edges": found.edges[number].tolist(),
            "mass": [round(one) for one in (found.mass[number].nan_to_num() * windows[number]).tolist()],
            "confidence": [_number(one) for one in found.confidence[number]],
            "accuracy": [_number(one) for one in found.accuracy[number]],
        }
        for number in range(len(labels))
    ]  # fmt: skip


def _identity_told(note: Path) -> str | None:
    """Whose folder it is; None where the note is damaged, which is no loss while nothing is finished."""
    try:
        return str(json.loads(note.read_text(encoding="utf-8"))["identity"])
    except (ValueError, KeyError, TypeError):
        return None


def _claim(folder: Path, order: Order, split: SplitTask) -> str:
    """Marks the folder as this run's, or refuses one that is another's. Returns the run's identity."""
    content = hashlib.sha256(json.dumps([RESULT_VERSION, order.told(), order.seed], sort_keys=True).encode())
    for part in (split.training.source_train, split.training.source_test, split.training.target_train):
        content.update(np.ascontiguousarray(part.values).tobytes())
    identity = content.hexdigest()
    note = folder / NOTE
    try:
        if note.exists():
            there = _identity_told(note)
            if there != identity and (there is not None or (folder / RECORD).exists()):
                raise InputError(f"{folder}: holds another run (other settings, seed or data); choose another --out")
        elif folder.exists() and (
            not folder.is_dir() or any(not one.name.startswith(("beside-", f".{NOTE}")) for one in folder.iterdir())
        ):
            raise InputError(f"{folder}: is not empty and holds no run of bearcat; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        told = {"identity": identity, "seed": order.seed} | order.told()
        write_atomically(note, json.dumps(told, indent=1, ensure_ascii=False).encode())
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder}: cannot be used ({type(error).__name__}: {error}); choose another --out") from error
    return identity


def bound_told(temperature: float) -> str:
    """What it means that calibration ended at one of its bounds, 1 and 100 (bearcat.calibration.Temperature)."""
    if temperature > 1:
        return "the temperature is at its upper bound; the source test windows are not classified better than by chance"
    return (
        "the temperature is at its bound; on the source test windows the model is less sure than it is right (it makes"
        " no mistakes there, or was trained for a short time), and calibration makes nothing surer"
    )


def _record(
    order: Order, split: SplitTask, trained: Trained, seen: _Seen, number: int, device: torch.device, identity: str,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    training, calibration, labelled = split.training, seen.calibration, seen.labelled[number]
    probabilities = seen.target[number][: len(split.held_back.target_test)]
    predicted = probabilities.argmax(dim=-1).bincount(minlength=len(training.classes))
    never = [name for name, count in zip(training.classes, predicted.tolist(), strict=True) if count == 0]
    at_bound = calibration is not None and bool(calibration.at_bound[number])
    warnings = [*order.warnings, *(f"class '{name}' is never predicted on the target" for name in never)]
    if not bool(trained.finite[number]):
        warnings.append("the loss turned NaN or infinite; the run was stopped there and its numbers mean nothing")
    if int((predicted > 0).sum()) == 1:
        warnings.append("the predictions on the target collapsed to one class")
    if at_bound and calibration is not None:
        warnings.append(bound_told(float(calibration.temperature[number])))

    def of(where: str) -> dict[str, Any] | None:
        """The scores of the source, and of the target where it has labels."""
        if where == "target" and not labelled:
            return None
        return {name: _number(score[number]) for name, score in seen.scores[where].items()}

    def bins(where: str) -> dict[str, Any] | None:
        if where == "target" and not labelled:
            return None
        return {when: found and found[number] for when, found in seen.reliability[where].items()}

    return {
        "scores": {"source": of("source"), "target": of("target")},
        "estimates": seen.trust[number].estimates,
        "estimates_checked": seen.trust[number].checked,
        "calibration": None if calibration is None else {
            "temperature": _number(calibration.temperature[number]), "at_bound": at_bound,
        },
        "reliability": {"source": bins("source"), "target": bins("target")},
        "failed": not bool(trained.finite[number]),
        "collapsed": int((predicted > 0).sum()) == 1,
        "never_predicted": never,
        "warnings": warnings,
        "settings": order.told(),
        **({"chosen": [asdict(one) for one in order.chosen]} if order.chosen else {}),
        "seed": order.seed,
        "data": {
            "classes": list(training.classes),
            "source_train": len(training.source_train),
            "source_test": len(training.source_test),
            "target_train": len(training.target_train),
            "target_test": len(split.held_back.target_test),
            "identity": identity,
        },
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "kernels": trained.kernels,
        "precision": trained.precision,
        "versions": _versions(),
        "seconds": round(seconds, 2),
        "stack": len(trained.finite),  # runs that shared these seconds
    }  # fmt: skip


def _versions() -> dict[str, str]:
    return {
        "bearcat": bearcat.__version__,
        "result": str(RESULT_VERSION),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _number(value: Tensor) -> float | None:
    """A plain number; None for nan, which JSON does not know."""
    number = float(value)
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, int | float | str | None) else str(value)


def _sealed(folder: Path, record: dict[str, Any]) -> bytes:
    """The record as it is written, with checksums of itself and of the files beside it."""
    files = {name: digest((folder / name).read_bytes()) for name in (PREDICTIONS, CURVES)}
    plain = json.loads(_text(record))
    return json.dumps(
        plain | {"checksums": {RECORD: digest(_text(plain))} | files}, indent=1, ensure_ascii=False
    ).encode()


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, allow_nan=False).encode()


def _model(
    trained: Trained, seen: _Seen, number: int, order: Order, split: SplitTask, rate: float | None,
    record: Mapping[str, Any],
) -> Model:  # fmt: skip
    """One run of the stack as a model of its own, with what its card tells of the run."""
    channels, points = split.held_back.target_test.values.shape[1:]
    network = select_run(trained.network, number, order.recipe.encoder, channels, points)
    calibration = trained.calibration and Calibration.from_state(
        {name: value[number : number + 1].cpu() for name, value in trained.calibration.state().items()}
    )
    estimates, source_recordings = record["estimates"], split.training.source_test.recording
    told = {
        "recipe": order.recipe_name, "task": str(order.task), "seed": order.seed, "versions": _versions(),
        "data": {"name": order.dataset_name} | {
            name: record["data"][name] for name in ("source_train", "source_test", "target_train", "target_test")
        },
        "scores": {where: scores for where, scores in record["scores"].items() if scores is not None},
        "estimates": {name: estimates[name] for name in ("verdict", "accuracy") if estimates.get(name)},
        "limits": list(record["warnings"]),
        "refusal": estimates["verdict"] if record["failed"] or record["collapsed"] else None,
        "pooled_recordings": len(set(source_recordings.tolist())),
    }  # fmt: skip
    known, labels = seen.trust[number].familiarity, split.training.source_test.labels
    of_source = seen.source[number, : len(labels)].numpy()
    sound = bool(np.isfinite(of_source.max(axis=1)).all())  # not so where training broke down
    return Model(
        network, calibration, split.training.classes, order.preparation, rate, told, order.recipe.encoder, channels,
        pooled_temperature=pooled_temperature(of_source, labels, source_recordings) if sound else 1.0,
        familiarity=known if known.usable else None,
    )  # fmt: skip


def _write_predictions(path: Path, split: SplitTask, seen: _Seen, number: int) -> None:
    calibrated, plain = seen.target[number].numpy(), seen.target_plain[number].numpy()
    test: Windows = split.held_back.target_test
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["recording", "start", "label", "predicted", "confidence", "confidence_uncalibrated"])
        for row in np.lexsort((test.start, test.recording)):
            one = test.recordings[int(test.recording[row])]
            best = int(calibrated[row].argmax())
            writer.writerow(
                [one.origin, int(test.start[row]), one.label or "", split.training.classes[best],
                 f"{calibrated[row].max():.6f}", f"{plain[row].max():.6f}"]
            )  # fmt: skip


def _write_curves(path: Path, trained: Trained, number: int, classes: Sequence[str]) -> None:
    names = {f"threshold_{place}": f"threshold:{label}" for place, label in enumerate(classes)}
    columns = {names.get(name, name): values[:, number].tolist() for name, values in trained.history.items()}
    epochs = max(len(values) for values in columns.values())
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", *columns])
        for epoch in range(epochs):
            cells = [values[epoch] if epoch < len(values) else math.nan for values in columns.values()]
            writer.writerow([epoch, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in cells)])
