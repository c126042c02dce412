"""One adaptation from recordings to a folder of results: what `bearcat adapt` does.

    OUT/
      record.json        scores, settings, seed, data, versions, seconds
      predictions.csv    one row per target test window
      curves.csv         one row per epoch
      reliability.png    source and target, before and after calibration
      model/             the trained model
      run.json           what this folder is for, so that another run does not overwrite it
      checkpoint.safetensors   while training; an interrupted run goes on from it

>>> record = adapt(Order(dataset=open_dataset("simulated")), Path("out"), torch.device("cpu"))
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bearcat
from bearcat.artefact import Model, save_model
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
from bearcat.data.catalogue import domain_named
from bearcat.data.tasks import UNKNOWN
from bearcat.errors import InputError
from bearcat.evaluate import EpochEnd, predict, scores, watcher
from bearcat.recipe import Recipe
from bearcat.report.plots import Bins, draw_reliability
from bearcat.train import RESULT_VERSION, Run, Trained, train

# What `bearcat adapt` does when it is told nothing: three states of a bearing, seen in short spectra, so that a few
# minutes on two cores are enough. Easy on purpose, and no evidence about real machines.
DEMONSTRATION = ("frequency", 256, ["severities=4", "faults=inner,outer"])
DEMONSTRATION_SENTENCE = (
    "An easy task on simulated bearings (healthy, inner, outer; spectra of 256 samples), to see it work."
)


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

    def told(self) -> dict[str, Any]:
        """Every setting, as plain values."""
        settings = {one.name: getattr(self.dataset, one.name) for one in fields(self.dataset)}  # type: ignore[arg-type]
        return {
            "data": {"name": self.dataset_name} | {k: _plain(v) for k, v in settings.items() if k != "root"},
            "source": list(self.sources),
            "target": self.target,
            "preparation": asdict(self.preparation),
            "split": asdict(self.split),
            "recipe": {"name": self.recipe_name} | self.recipe.told(),
        }


def choose_domains(catalogue: Catalogue, source: Sequence[str], target: str | None) -> tuple[tuple[str, ...], str]:
    """The named domains, or the first two where nobody says."""
    if len(catalogue.domains) < 2 and not (source and target):
        raise InputError(f"adapting needs two domains, and there is {', '.join(catalogue.domains) or 'none'}")
    sources = tuple(domain_named(one, catalogue.domains) for one in source) or catalogue.domains[:1]
    if target is not None:
        return sources, domain_named(target, catalogue.domains)
    return sources, next(one for one in catalogue.domains if one not in sources)


def adapt(
    order: Order, out: Path, device: torch.device, progress: Callable[[EpochEnd], None] | None = None
) -> dict[str, Any]:
    """Trains, evaluates and writes everything into OUT; returns the record. A finished run is not run again."""
    catalogue = order.dataset.catalogue()
    task = Task(order.sources[0] if len(order.sources) == 1 else order.sources, order.target)
    windows = {
        one: cached_windows(catalogue.only([one]), order.preparation, cache_folder())
        for one in (*order.sources, order.target)
    }
    source = windows[order.sources[0]] if len(order.sources) == 1 else join([windows[one] for one in order.sources])
    split = split_task(task, source, windows[order.target], order.split, order.seed, keep_unknown=True)
    identity = _claim(out, order, split)
    if (out / "record.json").exists():
        finished: dict[str, Any] = json.loads((out / "record.json").read_text(encoding="utf-8"))
        return finished
    started = time.monotonic()
    checkpoint = out / "checkpoint.safetensors"
    run = Run(order.recipe, split.training, order.seed)
    labelled = bool((split.held_back.target_test_labels != UNKNOWN).any())
    watch = watcher([split.held_back], device)
    trained = train([run], device, watch, progress, checkpoint)
    record = _record(order, split, trained, labelled, device, identity, time.monotonic() - started)
    network, calibration = trained.network.cpu(), trained.calibration
    if calibration is not None:
        calibration = Calibration.from_state({name: value.cpu() for name, value in calibration.state().items()})
    told = {"recipe": order.recipe_name, "task": str(task), "versions": _versions()}
    rate = windows[order.target].recordings[0].rate
    save_model(out / "model", Model(network, calibration, split.training.classes, order.preparation, rate, told))
    _write_predictions(out / "predictions.csv", split, network, calibration)
    _write_curves(out / "curves.csv", trained, split.training.classes)
    _draw(out / "reliability.png", split, network, calibration, labelled)
    _write(out / "record.json", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False))
    checkpoint.unlink(missing_ok=True)
    return record


def _claim(out: Path, order: Order, split: SplitTask) -> str:
    """Marks the folder as this run's, or refuses one that is another's. Returns the run's identity."""
    content = hashlib.sha256(json.dumps([RESULT_VERSION, order.told(), order.seed], sort_keys=True).encode())
    for part in (split.training.source_train, split.training.source_test, split.training.target_train):
        content.update(np.ascontiguousarray(part.values).tobytes())
    identity = content.hexdigest()
    note = out / "run.json"
    try:
        if note.exists():
            there = json.loads(note.read_text(encoding="utf-8")).get("identity")
            if there != identity:
                raise InputError(f"{out}: holds another run (other settings, seed or data); choose another --out")
        elif out.exists() and (not out.is_dir() or any(not one.name.startswith("beside-") for one in out.iterdir())):
            raise InputError(f"{out}: is not empty and holds no run of bearcat; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        _write(
            note, json.dumps({"identity": identity, "seed": order.seed} | order.told(), indent=1, ensure_ascii=False)
        )
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{out}: cannot be used ({type(error).__name__}: {error}); choose another --out") from error
    return identity


def _record(
    order: Order,
    split: SplitTask,
    trained: Trained,
    labelled: bool,
    device: torch.device,
    identity: str,
    seconds: float,
) -> dict[str, Any]:
    held, training = split.held_back, split.training
    values = torch.from_numpy(np.ascontiguousarray(held.target_test.values))[None].to(device)
    logits, _ = predict(trained.network, values)
    source_logits, _ = predict(trained.network, trained.batches.source_test)
    calibration = trained.calibration
    found = {"source": scores(source_logits, calibration, trained.batches.source_test_labels), "target": None}
    if labelled:
        labels = torch.from_numpy(held.target_test_labels)[None].to(device)
        found["target"] = scores(logits, calibration, labels)
    probabilities = (logits if calibration is None else calibration.apply(logits)).softmax(dim=-1)[0]
    predicted = probabilities.argmax(dim=-1).bincount(minlength=len(training.classes))
    never = [name for name, count in zip(training.classes, predicted.tolist(), strict=True) if count == 0]
    at_bound = calibration is not None and bool(calibration.at_bound[0])
    warnings = [f"class '{name}' is never predicted on the target" for name in never]
    if not bool(trained.finite[0]):
        warnings.append("the loss turned NaN or infinite; the run was stopped there and its numbers mean nothing")
    if int((predicted > 0).sum()) == 1:
        warnings.append("the predictions on the target collapsed to one class")
    if at_bound:
        warnings.append("the temperature is at its bound; the source is classified too well to calibrate on")
    return {
        "scores": {
            where: None if value is None else {name: _number(score[0]) for name, score in value.items()}
            for where, value in found.items()
        },
        "estimates": {"mean_confidence": _number(probabilities.max(dim=-1).values.mean())},
        "calibration": None if calibration is None else {
            "temperature": _number(calibration.temperature[0]), "at_bound": at_bound,
        },
        "failed": not bool(trained.finite[0]),
        "collapsed": int((predicted > 0).sum()) == 1,
        "never_predicted": never,
        "warnings": warnings,
        "settings": order.told(),
        "seed": order.seed,
        "data": {
            "classes": list(training.classes),
            "source_train": len(training.source_train),
            "source_test": len(training.source_test),
            "target_train": len(training.target_train),
            "target_test": len(held.target_test),
            "identity": identity,
        },
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "versions": _versions(),
        "seconds": round(seconds, 2),
    }  # fmt: skip


def _versions() -> dict[str, str]:
    return {
        "bearcat": bearcat.__version__,
        "result": str(RESULT_VERSION),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _number(value: torch.Tensor) -> float | None:
    """A plain number; None for nan, which JSON does not know."""
    number = float(value)
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    return (
        list(value)
        if isinstance(value, tuple)
        else value
        if isinstance(value, int | float | str | None)
        else str(value)
    )


def _target_probabilities(
    split: SplitTask, network: Any, calibration: Calibration | None
) -> tuple[np.ndarray, np.ndarray]:
    """Of the target test windows, calibrated and not: (window, class)."""
    logits, _ = predict(network, torch.from_numpy(np.ascontiguousarray(split.held_back.target_test.values))[None])
    plain = logits.softmax(dim=-1)
    calibrated = plain if calibration is None else calibration.apply(logits).softmax(dim=-1)
    return calibrated[0].numpy(), plain[0].numpy()


def _write_predictions(path: Path, split: SplitTask, network: Any, calibration: Calibration | None) -> None:
    calibrated, plain = _target_probabilities(split, network, calibration)
    test: Windows = split.held_back.target_test
    order = np.lexsort((test.start, test.recording))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["recording", "start", "label", "predicted", "confidence", "confidence_uncalibrated"])
        for row in order:
            one = test.recordings[int(test.recording[row])]
            best = int(calibrated[row].argmax())
            writer.writerow(
                [one.origin, int(test.start[row]), one.label or "", split.training.classes[best],
                 f"{calibrated[row].max():.6f}", f"{plain[row].max():.6f}"]
            )  # fmt: skip


def _write_curves(path: Path, trained: Trained, classes: Sequence[str]) -> None:
    names = {f"threshold_{number}": f"threshold:{label}" for number, label in enumerate(classes)}
    columns = {names.get(name, name): values[:, 0].tolist() for name, values in trained.history.items()}
    epochs = max(len(values) for values in columns.values())
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", *columns])
        for epoch in range(epochs):
            cells = [values[epoch] if epoch < len(values) else math.nan for values in columns.values()]
            writer.writerow([epoch, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in cells)])


def _draw(path: Path, split: SplitTask, network: Any, calibration: Calibration | None, labelled: bool) -> None:
    """Source and target before and after calibration; without target labels the source alone."""
    training, held = split.training, split.held_back
    parts = [("source", training.source_test.values, training.source_test.labels)]
    if labelled:
        known = held.target_test_labels != UNKNOWN
        parts.append(("target", np.asarray(held.target_test.values)[known], held.target_test_labels[known]))
    panels = []
    for name, values, labels in parts:
        logits, _ = predict(network, torch.from_numpy(np.ascontiguousarray(values))[None])
        for when, fitted in (("before", None), ("after", calibration)):
            if when == "before" or calibration is not None:
                made = (logits if fitted is None else fitted.apply(logits)).softmax(dim=-1)[0].numpy()
                title = f"{name}, {when} calibration" if calibration is not None else name
                panels.append((title, _bins(made, labels)))
    draw_reliability(panels, path)


def _bins(probabilities: np.ndarray, labels: np.ndarray) -> Bins:
    found = reliability_bins(probabilities, labels)
    edges, mass, confidence, accuracy = (
        np.asarray(one, dtype=np.float64) for one in (found.edges, found.mass, found.confidence, found.accuracy)
    )
    gap = np.abs(np.nan_to_num(confidence) - np.nan_to_num(accuracy))
    return Bins(edges, mass, confidence, accuracy, ece=float((mass / mass.sum() * gap).sum()))


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105


def with_settings(recipe: Recipe, texts: dict[str, str]) -> Recipe:
    """A recipe with some of its ingredients' settings changed: {"teacher.statistics": "averaged"}."""
    from bearcat.errors import suggest
    from bearcat.settings import override

    for name, text in texts.items():
        part, sign, setting = name.partition(".")
        if not sign:
            recipe = override(recipe, {name: text})
            continue
        ingredients = [one.name for one in fields(recipe) if one.name not in ("dropout", "passes")]
        if part not in ingredients:
            raise InputError(f"unknown ingredient '{part}'{suggest(part, ingredients)}")
        ingredient = getattr(recipe, part)
        if ingredient is None:
            raise InputError(f"the recipe has no '{part}' whose '{setting}' could be set; choose another recipe")
        recipe = replace(recipe, **{part: override(ingredient, {setting: text})})
    return recipe
