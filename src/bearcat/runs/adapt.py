"""One adaptation from recordings to a folder of results: what `bearcat adapt` and `bearcat.adapt` do.

    OUT/
      record.json, predictions.csv, curves.csv, run.json, reliability.png      as in run.py, of the recipe
      model/                   the recommended model: the recipe's own, or its unadapted counterpart's
      model-adapted/           the recipe's own model, where the unadapted one is recommended
      beside-RECIPE/           the same of recipes it is compared with; the unadapted counterpart always is
      report.html              all of it on one page
      checkpoint.safetensors   while training; an interrupted run goes on from it

record.json is written once, last, with the decision on the recommended model and its diagnoses of the target.

>>> found = adapt(plan, Path("out"))
>>> found.decision.action, found.recordings.summary
('use', '14 recordings: 9 alarm, 5 ok.')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bearcat.data import Entry
from bearcat.data.datasets.folder import FolderEntry
from bearcat.data.recording import Recording, healthy_class
from bearcat.deploy.model import Model, load_model, save_model
from bearcat.diagnosis.physics import PhysicsEvidence, PhysicsWitness
from bearcat.diagnosis.recording import Diagnoses
from bearcat.record import RECORD, Record, SavedModel
from bearcat.report.results import BESIDE
from bearcat.runs.plan import AdaptationPlan
from bearcat.runs.record import claim, drawable
from bearcat.runs.run import EXTRAS, FinishedRun, run_stack, train_stack, write_run
from bearcat.runs.spec import Library, RunSpec
from bearcat.training.evaluate import EpochEnd
from bearcat.trust.decision import Decision, ModelEvidence, choose_model, decide

Bar = Callable[[str, int], AbstractContextManager[Callable[[EpochEnd], None] | None]]  # of a recipe and its epochs
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A finished adaptation: its folder, its record (docs/record.md), the runs beside it, and what to be warned of."""

    folder: Path
    record: Record
    beside: Mapping[str, Record]
    warnings: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        """The recommended model's folder, for `diagnose`, `bearcat predict` and `bearcat serve`."""
        return self.folder / "model"

    @property
    def decision(self) -> Decision:
        """What to do with that model, and why."""
        return self.record.decision

    @property
    def recordings(self) -> Diagnoses:
        """The target's recordings, as that model and physics diagnose them."""
        return Diagnoses(self.record.recordings)

    @property
    def runs(self) -> tuple[tuple[str, Record], ...]:
        """All runs by recipe, the adaptation's own last."""
        return (*self.beside.items(), (self.record.settings.recipe_name, self.record))

    @property
    def sentences(self) -> list[str]:
        """Whether it adapted, and which model is in `model`."""
        return [text for text in (self.record.adaptation_sentence, self.record.saved_sentence) if text]

    def to_frame(self) -> Any:
        """The target's recordings as a pandas data frame."""
        return self.recordings.to_frame()

    def __repr__(self) -> str:
        settings = self.record.settings
        title = f"{' and '.join(settings.sources)} → {settings.target} by {settings.recipe_name}"
        lines = [repr(self.recordings), self.decision.sentence, *self.sentences, title]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"model: {self.model}; page: {self.folder / 'report.html'}"])


def adapt(plan: AdaptationPlan, out: Path, bar: Bar = lambda *_: nullcontext(), track: str | None = None) -> Adaptation:
    """Trains, evaluates, decides and writes everything into OUT. What is finished is not run again.

    The recipe's unadapted counterpart is trained too, unless the recipe is that, or did not adapt; one of the two
    models is recommended (trust/decision.py).
    """
    spec = plan.library.identified(plan.spec)
    keep = EXTRAS if drawable() else ("model",)
    if (out / RECORD).exists():
        claim(out, spec)
        record = Record.read(out)
        places = {place.parent for place in out.glob(f"{BESIDE}*/{RECORD}")}
        beside = {place.name.removeprefix(BESIDE): Record.read(place) for place in places}
    else:
        record, beside = _train(plan, spec, out, bar, track, keep)
    named = {other: beside[other] for other in sorted(beside)}
    if drawable() and not (out / "report.html").exists():
        from bearcat.report.pages import write_run_page

        write_run_page(out)
    (out / CHECKPOINT).unlink(missing_ok=True)
    warnings = (*plan.warnings, *(text for text in record.warnings if text not in plan.warnings))
    return Adaptation(out, record, named, warnings)


def _train(
    plan: AdaptationPlan, spec: RunSpec, out: Path, bar: Bar, track: str | None, keep: tuple[str, ...]
) -> tuple[Record, dict[str, Record]]:
    """Trains the run and those beside it, decides, and writes the folders; the run's own record last."""
    library, physics = plan.library, dict[str, PhysicsEvidence | None]()

    def observe(recording: Recording) -> None:
        physics[recording.origin] = look(recording, spec.preparation.rate)

    library.observe(spec, observe)
    with bar(spec.recipe_name, spec.recipe.schedule.epochs) as progress:
        checkpoint = out / CHECKPOINT
        (own,) = train_stack([spec], [out], plan.device, progress, checkpoint, library=library, track=track, keep=keep)
    finding = own.record.adaptation
    name, recipe = spec.recipe.unadapted()
    others = {other.recipe_name: other for other in plan.beside}
    compares = spec.recipe.adapts and (finding is None or bool(finding["adapted"]))
    if compares or name in others:
        others[name] = replace(spec, recipe_name=name, recipe=recipe)
    beside = dict[str, Record]()
    for other in others.values():
        folder = out / f"{BESIDE}{other.recipe_name}"
        with bar(other.recipe_name, other.recipe.schedule.epochs) as progress:
            (beside[other.recipe_name],) = run_stack(
                [other], [folder], plan.device, progress, folder / CHECKPOINT, keep=keep, library=library, track=track
            )
        (folder / CHECKPOINT).unlink(missing_ok=True)
    supported = bool(finding["adapted"]) if finding is not None else None
    unadapted = beside[name] if compares else None
    if unadapted is None:
        adapted, reason = choose_model(spec.recipe_name, own.record.evidence, None, supported)
    else:
        agreement = own.record.agreement, unadapted.agreement
        adapted, reason = choose_model(spec.recipe_name, own.record.evidence, unadapted.evidence, supported, agreement)
    unadapted = None if adapted else unadapted
    chosen, place = (own.record, ".") if unadapted is None else (unadapted, f"{BESIDE}{name}")
    diagnoses = _with_physics(spec, Diagnoses(chosen.recordings), physics, library)
    saved = SavedModel(chosen.settings.recipe_name, chosen.settings.adapts and adapted, place, reason)
    record = decided_record(replace(own.record, saved=saved), chosen.evidence, diagnoses)
    model = own.model
    if unadapted is not None and model is not None:
        save_model(out / "model-adapted", model)
        model = load_model(out / place / "model")
    write_run(
        out, FinishedRun(record, model and decided_model(model, record.decision), own.predictions, own.curves), keep
    )
    return record, beside


def decided_model(model: Model, decision: Decision) -> Model:
    """The model with this decision in what it says of itself."""
    return replace(model, metadata={**model.metadata, "decision": asdict(decision)})


def decided_record(record: Record, evidence: ModelEvidence, diagnoses: Diagnoses) -> Record:
    """The record with the decision on the model, by this evidence and by its diagnoses, and on each recording."""
    healthy = healthy_class(record.data.classes)
    faulty = None if healthy is None else sum(each.label != healthy for each in diagnoses)
    one_class = evidence.one_class if all(each.nearest == evidence.one_class for each in diagnoses) else None
    evidence = replace(
        evidence, physics=diagnoses.physics_check, recordings=len(diagnoses), faulty=faulty, one_class=one_class
    )
    decision = decide(evidence)
    recordings = tuple(each.decided(decision.action) for each in diagnoses)
    return replace(record, decision=decision, evidence=evidence, recordings=recordings)


def _with_physics(
    spec: RunSpec, diagnoses: Diagnoses, known: Mapping[str, PhysicsEvidence | None], library: Library
) -> Diagnoses:
    """The diagnoses with what physics says of each recording, of files that were not read for their windows too."""
    entries = {
        entry.origin: entry
        for entry in library.catalogue(spec.dataset).entries
        if entry.domain == spec.task.target and entry.origin not in known and _may_be_known(entry)
    }
    found = dict(known)
    for each in diagnoses:
        if each.recording in entries:
            found[each.recording] = look(entries[each.recording].read(), spec.preparation.rate)
    return Diagnoses(replace(each, physics=found.get(each.recording)) for each in diagnoses)


def _may_be_known(entry: Entry) -> bool:
    """Whether speed and bearing of the recording can be known, as far as can be said without reading it again."""
    return not isinstance(entry, FolderEntry) or (entry.row.bearing is not None and entry.row.rpm is not None)


def look(recording: Recording, rate: float | None) -> PhysicsEvidence | None:
    """What physics says of a recording; None where its speed varies, or anything it needs is not known.

    `rate` is of recordings that do not say theirs, as for the model's windows.
    """
    if recording.speed is not None:
        return None
    witness = PhysicsWitness(recording.origin, recording.rate or rate, recording.rpm, recording.bearing)
    for _ in witness.observe([recording.signal]):
        pass
    return witness.finish()
