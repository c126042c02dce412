"""One adaptation from recordings to a folder of results: what `bearcat adapt` does.

    OUT/
      record.json, predictions.csv, curves.csv, run.json, reliability.png, model/      as in run.py
      beside-RECIPE/           the same of recipes it is compared with; the unadapted counterpart always is
      model-adapted/           the recipe's own model, where that of its unadapted counterpart is saved as model/
      report.html              all of it on one page
      checkpoint.safetensors   while training; an interrupted run goes on from it

>>> record = adapt(spec, Path("out"), torch.device("cpu"))
>>> record.decision.saved["sentence"]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bearcat.data import Catalogue, Entry, Task
from bearcat.data.catalogue import find_domain
from bearcat.data.datasets.folder import EMPTY, FolderEntry
from bearcat.deploy.model import load_model, save_model
from bearcat.diagnosis.physical import PhysicalDiagnosis, SecondOpinion, contradiction, state_of
from bearcat.errors import InputError
from bearcat.record import Record
from bearcat.report.choices import choose_saved, compared
from bearcat.report.results import BESIDE, read_result
from bearcat.runs.record import drawable
from bearcat.runs.run import EXTRAS, run_stack
from bearcat.runs.spec import Library, RunSpec
from bearcat.training.evaluate import EpochEnd

# What `bearcat adapt` does without any option. The defects are small, so that there are mistakes to calibrate with.
DEMONSTRATION = ["severities=0.15,0.5", "faults=inner,outer"]
DEMONSTRATION_SENTENCE = "Simulated bearings (healthy; inner and outer race, defects of 0.15 and 0.5 mm), to see it."

FEWEST_OPINIONS = 2  # recordings on which the bearing's orders speak, from which on they may outvote a model
OUTVOTED = (
    "Do not use this model: the bearing's orders name other faults on most of the target's recordings; diagnose those"
    " from physics (bearcat diagnose)."
)

Bar = Callable[[str, int], AbstractContextManager[Callable[[EpochEnd], None] | None]]  # of a recipe and its epochs


def choose_task(catalogue: Catalogue, source: Sequence[str], target: str | None) -> Task:
    """The task between the named domains, or between the first two where no names are given."""
    if len(catalogue.domains) < 2 and not (source and target):
        raise InputError(f"adapting needs two domains, and there is {', '.join(catalogue.domains) or 'none'}")
    sources = tuple(dict.fromkeys(_source(name, catalogue) for name in source)) or catalogue.domains[:1]
    if target is not None:
        return Task(sources, _domain(target, catalogue))
    left = [domain for domain in catalogue.domains if domain not in sources]
    if not left:
        raise InputError("every domain is a source; leave one of them for the target")
    return Task(sources, left[0])


def _source(name: str, catalogue: Catalogue) -> str:
    try:
        return _domain(name, catalogue)
    except InputError as error:
        parts = [part.strip() for part in name.split(",") if part.strip()]
        if len(parts) < 2:
            raise
        repeated = " ".join(f"--source {part}" for part in parts)
        raise InputError(f"unknown domain '{name}'; for several sources repeat the option: {repeated}") from error


def _domain(name: str, catalogue: Catalogue) -> str:
    if f"{name}: {EMPTY}" in catalogue.notes:
        raise InputError(f"the domain '{name}' has no recordings; put some into its folder or choose another")
    return find_domain(name, catalogue.domains)


def adapt(
    spec: RunSpec,
    out: Path,
    device: torch.device,
    bar: Bar = lambda *_: nullcontext(),
    beside: Sequence[RunSpec] = (),
    track: str | None = None,
    library: Library | None = None,
) -> Record:
    """Trains, evaluates and writes everything into OUT; returns the record. What is finished is not run again.

    The recipe's unadapted counterpart is trained too, unless the recipe is that, or kept it; the model of one of the
    two is saved (`choose_saved`). `beside` are further runs to compare with.
    """
    library = library or Library()
    keep = EXTRAS if drawable() else ("model",)

    def trained(run: RunSpec, folder: Path) -> Record:
        checkpoint = folder / "checkpoint.safetensors"
        with bar(run.recipe_name, run.recipe.schedule.epochs) as progress:
            (record,) = run_stack(
                [run], [folder], device, progress, checkpoint, keep=keep, library=library, track=track
            )
        checkpoint.unlink(missing_ok=True)
        return record

    record = trained(spec, out)
    name, recipe = spec.recipe.unadapted()
    others = {other.recipe_name: other for other in beside if other.recipe_name != spec.recipe_name}
    moving = record.estimates.shares.get("moving", {"adapted": True})
    compares = spec.recipe.adapts and bool(moving["adapted"])
    if compares or name in others:
        others[name] = replace(spec, recipe_name=name, recipe=recipe)
    for other in others.values():
        trained(other, out / f"{BESIDE}{other.recipe_name}")

    result = read_result(out)
    saved = choose_saved(result, read_result(out / f"{BESIDE}{name}") if compares else None)
    if saved["folder"] != ".":
        _exchange_model(out, out / saved["folder"])
    estimates, decision = record.estimates, record.decision
    if result.beside:
        estimates = replace(estimates, beside=compared(result, result.beside))
    if decision.saved == saved:
        record = record.amend(out, estimates=estimates)
    else:
        chosen = Record.read(out / saved["folder"])
        rows, opinion = second_opinion(spec, chosen.recordings or (), library)
        if opinion and opinion["contradicted"]:
            refused: dict[str, Any] = {}
            if outvoted(opinion):
                verdict = chosen.decision.sentence.removeprefix(f"{OUTVOTED} ")  # of an adaptation interrupted here
                refused = {"action": "do not use", "sentence": f"{OUTVOTED} {verdict}"}
                chosen.amend(out / saved["folder"], decision=replace(chosen.decision, **refused))
            _annotate(out / "model", opinion["sentence"], refused.get("sentence"))
            decision = replace(decision, **refused)
        decision = replace(decision, saved=saved, second_opinion=opinion)
        record = record.amend(out, estimates=estimates, decision=decision, recordings=tuple(rows))
    if drawable():
        from bearcat.report.pages import write_run_page

        write_run_page(out)
    return record


def _exchange_model(out: Path, folder: Path) -> None:
    """Puts the model of the run in `folder` in the place of the recipe's own, which is kept under another name."""
    model, own, half = out / "model", out / "model-adapted", out / ".model"
    if not own.exists():
        model.rename(own)
    if not model.exists():
        shutil.copytree(folder / "model", half, dirs_exist_ok=True)
        half.rename(model)


def outvoted(opinion: dict[str, Any]) -> bool:
    """Whether the bearing's orders name a fault that the model does not on most recordings on which they speak.

    That they show no fault does not count: a fault may have no line.
    """
    named = [found for found in opinion["contradicted"] if found["physics"] != "healthy"]
    return 2 * len(named) > int(opinion["recordings"]) >= FEWEST_OPINIONS


def _annotate(folder: Path, caution: str, refusal: str | None) -> None:
    """Adds a sentence to what the saved model says of itself, and that it is not to be used where it is not."""
    model = load_model(folder)
    cautions = [*model.cautions, *([] if caution in model.cautions else [caution])]
    metadata = {**model.metadata, "cautions": cautions, "refusal": refusal or model.refusal}
    save_model(folder, replace(model, metadata=metadata))


def _may_be_known(entry: Entry) -> bool:
    """Whether speed and bearing of the recording can be known, as far as can be said without reading it again."""
    return not isinstance(entry, FolderEntry) or (entry.row.bearing is not None and entry.row.rpm is not None)


def second_opinion(
    spec: RunSpec, rows: Sequence[Mapping[str, Any]], library: Library
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The diagnosed recordings, each with the line in its envelope spectrum; and what the bearing's orders say of them.

    `line` and `physics` are None where speed or bearing are not known; the opinion is None where no recording's are,
    or no class is a state of a bearing.
    """
    entries = {
        entry.origin: entry
        for entry in library.catalogue(spec.dataset).entries
        if entry.domain == spec.task.target and _may_be_known(entry)
    }
    found, compared, contradicted = [], 0, []
    for row in rows:
        physical = _physical(entries[row["recording"]]) if row["recording"] in entries else None
        nearest = row["nearest"]
        line, physics = (None, None) if physical is None else (physical.line(nearest), physical.answer)
        doubt = contradiction(physical, nearest)
        found.append({**row, "line": line, "physics": physics, "contradiction": doubt})
        compared += physical is not None and physical.state is not None and state_of(nearest) is not None
        if physical is not None and doubt:
            reason = {"physics": physical.answer, "confidence": physical.confidence, "reason": physical.reason}
            contradicted.append({"recording": row["recording"], "model": nearest, **reason})
    if not compared:
        return found, None
    sentence = f"The bearing's orders agree with the model on all {compared} target recordings that they tell."
    if contradicted:
        first = contradicted[0]
        said = "show no fault" if first["physics"] == "healthy" else f"say {first['physics']}"
        sentence = (
            f"The bearing's orders contradict the model on {len(contradicted)} of {compared} target recordings, such as"
            f" {first['recording']}: the model says '{first['model']}', they {said}: {first['reason']}."
        )
    return found, {"recordings": compared, "contradicted": contradicted, "sentence": sentence}


def _physical(entry: Entry) -> PhysicalDiagnosis | None:
    """The diagnosis from physics; None where the speed varies, or anything it needs is not known."""
    recording = entry.read()
    if recording.speed is not None:
        return None
    second = SecondOpinion(entry.origin, recording.rate, recording.rpm, recording.bearing)
    for _ in second.observe([recording.signal]):
        pass
    return second.diagnosis()
