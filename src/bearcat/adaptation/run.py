"""Trains runs, writes a folder for each, and adapts a model; docs/record.md lists the files.

Only this module writes such a folder, record.json last: it says "finished". A benchmark trains many stacks. `adapt`
trains a run and its unadapted counterpart, chooses between their models, and decides on the target's recordings with
the one that is saved. checkpoint.safetensors is there while training, and an interrupted run goes on from it.

>>> adaptation = adapt(plan, Path("out"))
>>> adaptation.decision.action, adaptation.recordings.summary
('use', '14 recordings: 9 alarm, 5 ok.')
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import zip_longest
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bearcat.adaptation import AdaptationPlan, Library, RunSpec
from bearcat.adaptation.evaluation import Evaluation, evaluate, log_of, make_record, write_page
from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.networks import select_run
from bearcat.cat.state import TrainingState, watcher
from bearcat.data.recording import healthy_class
from bearcat.data.tasks import SplitTask, references
from bearcat.deploy import examine
from bearcat.deploy.model import Model, load_model, save_model
from bearcat.deploy.opened import network_evidence
from bearcat.diagnosis.decision import Decision, choose_model, decide
from bearcat.diagnosis.judging import beside_healthy, decide_together, physics_check
from bearcat.diagnosis.pooling import Tally, pool, tally
from bearcat.diagnosis.recording import AlarmRule, Diagnoses, Observation
from bearcat.errors import InputError, csv_bytes, csv_cell
from bearcat.findings import Finding
from bearcat.methods import unadapted
from bearcat.record import CHECKPOINT, CURVES, PREDICTIONS, RECORD, SPEC, Record, SavedModel
from bearcat.report import BESIDE, read_result
from bearcat.storage import digest_json, read_json, write_atomically, write_json

Bar = Callable[[str, int], AbstractContextManager[Callable[[TrainingState], None] | None]]  # of a name and its epochs
OWN = (BESIDE, f".{SPEC}")  # may stand in a folder that no run has claimed: comparisons of `adapt`, interrupted claims
COLUMNS = ("recording", "start", "label", "predicted", "confidence", "log_probabilities")


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A trained and evaluated run, as its folder holds it."""

    record: Record
    model: Model | None = None  # if wanted
    tables: Mapping[str, bytes] = field(default_factory=dict)  # predictions.csv and curves.csv; none of a run read back
    unknown: tuple[str, ...] = ()  # recordings that were found to show a class the source lacks

    def write(self, folder: Path) -> None:
        """Writes the folder of the run, its record last."""
        for name, content in self.tables.items():
            write_atomically(folder / name, content)
        if self.model is not None:
            save_model(folder / "model", self.model)
        self.record.write(folder)


def claim(folder: Path, spec: RunSpec) -> None:
    """Marks the folder as this run's; refuses one that holds another run or something else."""
    note = folder / SPEC
    try:
        owner = str(read_json(note)["identity"]) if note.exists() else None
        files = [] if owner or not folder.exists() else [path.name for path in folder.iterdir()]
        strange = [name for name in files if not name.startswith(OWN)]
        if owner in (None, spec.identity) and not strange:
            write_json(note, {"identity": spec.identity, "seed": spec.seed} | spec.to_dict())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: cannot be used ({type(error).__name__}: {error}); choose another --out") from error
    if owner not in (None, spec.identity):
        raise InputError(f"{folder}: holds another run (of other settings, seed, data or code); choose another --out")
    if strange:
        raise InputError(f"{folder}: is not empty and holds no run of bearcat; choose another --out")


def run_stack(
    specs: Sequence[RunSpec], folders: Sequence[Path], device: torch.device,
    progress: Callable[[TrainingState], None] | None = None, checkpoint: Path | None = None, keep_model: bool = False,
    library: Library | None = None, write: bool = True,
) -> list[FinishedRun]:  # fmt: skip
    """Trains these runs, whose stack keys must agree, together; writes a folder for each, or only claims it."""
    library = library or Library()
    specs = [library.identified(spec) for spec in specs]
    splits = [library.split(spec) for spec in specs]  # data that cannot be used leave no folder
    for folder, spec in zip(folders, specs, strict=True):
        claim(folder, spec)
    started, finished = time.monotonic(), list[FinishedRun]()
    checks = [library.checks(spec, split) for spec, split in zip(specs, splits, strict=True)]
    runs = [
        Run(spec.recipe, library.training(spec, split), spec.seed, of_training)
        for spec, split, (_, of_training) in zip(specs, splits, checks, strict=True)
    ]
    watch = watcher([split.held_back for split in splits], device)
    identity = digest_json([spec.identity for spec in specs])
    trained = train(runs, device, watch, progress, checkpoint, identity=identity)
    evaluations = evaluate(trained, splits, [of_test for of_test, _ in checks])
    seconds = time.monotonic() - started
    for number, (spec, split, evaluation) in enumerate(zip(specs, splits, evaluations, strict=True)):
        record, model = make_record(spec, split, evaluation, trained, number, seconds), None
        record = replace(record, problems={problem.origin: problem.sentence for problem in library.part(spec).left_out})
        if keep_model:
            model = _model(trained, number, spec, split, evaluation, record)
        elif not record.failed:
            record = diagnose_tested(record, library, spec, split, evaluation)
        tables = {PREDICTIONS: _predictions(split, evaluation), CURVES: _curves(trained, number, split.classes)}
        finished.append(FinishedRun(record, model, tables, evaluation.unknown))
        if write:
            finished[number].write(folders[number])
    return finished


def diagnose_target(
    record: Record, library: Library, spec: RunSpec, model: Model | None, unknown: Sequence[str] = ()
) -> Record:
    """The record with the target's recordings as `bearcat predict` has them, and with the decision on the model, which
    their answers complete. Without a model, their signals alone, and none is ok.
    """
    observations = examine(library.measured(spec, spec.task.target), spec.given, model)
    if model is None:
        refused = Finding("refused model", "check")
        observations = [replace(observation, observed=(*observation.observed, refused)) for observation in observations]
    return _decided(record, observations, library, spec, unknown)


def diagnose_tested(
    record: Record, library: Library, spec: RunSpec, split: SplitTask, evaluation: Evaluation
) -> Record:
    """The same of a run whose model is not kept, by the test windows alone."""
    tested, probabilities, tallies = split.held_back.target_test, log_of(evaluation.target), dict[str, Tally]()
    for number in np.unique(tested.recording).tolist():
        members = tested.recording == number
        tallies[tested.recordings[number].origin] = tally(probabilities[members], evaluation.unfamiliar[members])

    def answered(point: Observation) -> Observation:
        parts = [tallies[channel] for channel in point.channels if channel in tallies]
        if not parts:
            return point
        pooled = pool(reduce(add, parts), evaluation.pooled_temperature, evaluation.familiarity)
        network = network_evidence(pooled, split.classes, record.decision, record.evidence.shift)
        return replace(point, witnesses=replace(point.witnesses, network=network))

    measured = library.measured(spec, spec.task.target)
    units = [replace(unit, points=list(map(answered, unit.points))) for unit in measured]
    names = {point.recording for unit in units for point in unit.points if point.network is not None}
    observations = [each for each in examine(units, spec.given) if each.recording in names]
    return _decided(record, observations, library, spec, evaluation.unknown)


def _decided(
    record: Record, observations: Sequence[Observation], library: Library, spec: RunSpec, unknown: Sequence[str]
) -> Record:
    """The record with the decision on the model, by its evidence and these recordings, and then on each of them.

    Those that `--reference` calls healthy show the usual lines of their point. A recording of a class that the source
    lacks is unfamiliar, whatever its windows are.
    """
    classes, windows = record.data.classes, library.windows(spec, spec.task.target).recordings
    codes, healthy = references(spec.mix, windows, classes, spec.task.target), healthy_class(classes)
    rule, marked = AlarmRule(prior=spec.prior), list[Observation]()
    for observation in observations:
        witnesses = observation.witnesses
        if witnesses.network is not None and observation.recording in unknown:
            witnesses = replace(witnesses, network=replace(witnesses.network, familiar=False))
        marked.append(replace(observation, witnesses=witnesses, rule=rule))
    recordings = beside_healthy(
        marked, {windows[number].origin for number, code in codes.items() if classes[code] == healthy}
    )
    evidence = record.evidence
    labels = [recording.nearest for recording in recordings if recording.nearest is not None]
    one_class = evidence.one_class if all(label == evidence.one_class for label in labels) else None
    evidence = replace(evidence, physics=physics_check(recordings), one_class=one_class)
    decision = decide(evidence)
    diagnoses = tuple(decide_together(recordings, decision.action))
    return replace(record, decision=decision, evidence=evidence, recordings=diagnoses)


def _model(
    trained: Trained, number: int, spec: RunSpec, split: SplitTask, evaluation: Evaluation, record: Record
) -> Model:
    """One run of the stack as a model of its own."""
    infos, (channels, points) = split.target.recordings, split.target.values.shape[1:]
    texts = spec.recipe.texts()
    about = {
        "recipe": spec.recipe_name, "task": str(spec.task), "seed": spec.seed, "versions": dict(record.versions),
    }  # fmt: skip
    return Model(
        classes=split.classes, channels=channels, preparation=spec.preparation, rate=infos[0].rate,
        rpm=_shared(None if info.rpm_channel else info.rpm for info in infos),
        channel=_shared(info.channel for info in infos), bearing=_shared(info.bearing for info in infos),
        pooled_temperature=evaluation.pooled_temperature, familiarity=evaluation.familiarity, decision=record.decision,
        shift=record.evidence.shift, metadata=about, calibration=evaluation.calibration, encoder=str(texts["encoder"]),
        network=select_run(trained.network, number, spec.recipe.encoder, channels, points),
        calibrator=texts["final"] or texts["calibration"],
    )  # fmt: skip


def _shared(values: Iterable[Any]) -> Any:
    """The value that all of these are; None where they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _predictions(split: SplitTask, evaluation: Evaluation) -> bytes:
    """predictions.csv: a row for each target test window."""
    calibrated, test = evaluation.target, split.held_back.target_test
    spread, rows = log_of(calibrated), []
    for row in np.lexsort((test.start, test.recording)):
        recording, predicted = test.recordings[int(test.recording[row])], split.classes[int(calibrated[row].argmax())]
        rows.append((
            *map(csv_cell, (recording.origin, int(test.start[row]), recording.label or "", predicted)),
            f"{calibrated[row].max():.6f}", " ".join(f"{value:.5g}" for value in spread[row].tolist()),
        ))  # fmt: skip
    return csv_bytes([COLUMNS, *rows])


def _curves(trained: Trained, number: int, classes: Sequence[str]) -> bytes:
    """curves.csv: a row for each epoch, empty where a number did not exist; thresholds by the names of classes."""
    names = {f"threshold_{code}": f"threshold:{label}" for code, label in enumerate(classes)}
    columns = {names.get(name, name): values[:, number].tolist() for name, values in trained.history.items()}
    rows = enumerate(zip_longest(*columns.values(), fillvalue=math.nan))
    texts = ((epoch, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in cells)) for epoch, cells in rows)
    return csv_bytes([("epoch", *columns), *texts])


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A finished adaptation: its folder, its record (docs/record.md), and the runs beside it.

    >>> adapted = bearcat.adapt(
    ...     "N15_M07_F10", "N09_M07_F10", data="simulated", epochs=1, window=1024, device="cpu", out="out",
    ...     settings={"seconds": 1, "severities": 4, "faults": "inner,outer"},
    ... )
    >>> adapted.recordings[0].recording
    'simulated/N09_M07_F10/healthy/1'
    """

    folder: Path
    record: Record
    beside: Mapping[str, Record]

    @property
    def model(self) -> Path:
        """The saved model's folder, for `diagnose`, `bearcat predict` and `bearcat serve`."""
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
    def runs(self) -> Mapping[str, Record]:
        """All runs by recipe, the adaptation's own first."""
        return {self.record.settings.recipe_name: self.record, **self.beside}

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with each recording of source and target that was left out, by its name."""
        return self.record.problems

    def __repr__(self) -> str:
        settings = self.record.settings
        title = f"{' and '.join(settings.sources)} → {settings.target} by {settings.recipe_name}"
        lines = [repr(self.recordings), self.decision.sentence, *self.record.sentences, title]
        lines += [f"problem: {problem}" for problem in self.problems.values()]
        lines += [f"warning: {warning}" for warning in self.record.warnings]
        return "\n".join([*lines, f"model: {self.model}; page: {self.folder / 'report.html'}"])


def adapt(plan: AdaptationPlan, out: Path, bar: Bar = lambda *_: nullcontext()) -> Adaptation:
    """Trains, evaluates, decides and writes everything into OUT. What is finished is not run again."""
    spec = plan.library.identified(plan.spec)
    if (out / RECORD).exists():
        claim(out, spec)
    else:
        _train(plan, spec, out, bar)
    if not (out / "report.html").exists():
        write_page(out)
    for folder in (out, *out.glob(f"{BESIDE}*")):
        (folder / CHECKPOINT).unlink(missing_ok=True)
    result = read_result(out)
    return Adaptation(out, result.record, {run.cell.method: run.record for run in result.beside})


def _train(plan: AdaptationPlan, spec: RunSpec, out: Path, bar: Bar) -> None:
    """Trains the run and, to compare with, its unadapted counterpart, unless it is that or did not adapt; decides, and
    writes the folders, the run's own record last.
    """

    def trained(run: RunSpec, folder: Path, write: bool) -> FinishedRun:
        if (folder / RECORD).exists():  # before an interruption
            claim(folder, run)
            return FinishedRun(read_result(folder).record, load_model(folder / "model"))
        with bar(run.recipe_name, run.recipe.schedule.epochs) as progress:
            (finished,) = run_stack(
                [run], [folder], plan.device, progress, folder / CHECKPOINT, keep_model=True, library=plan.library,
                write=write,
            )  # fmt: skip
        return finished

    run = recommended = trained(spec, out, write=False)
    finding, reason = run.record.adaptation, f"{spec.recipe_name} did not adapt"
    supported = None if finding is None else bool(finding["adapted"])
    adapts = spec.recipe.adapts and supported is not False
    if adapts:
        name, recipe = unadapted(spec.recipe)
        plain = trained(replace(spec, recipe_name=name, recipe=recipe), out / f"{BESIDE}{name}", write=True)
        evidence = run.record.evidence, plain.record.evidence
        agreement = [made.record.estimates.accuracy.get("agreement") for made in (run, plain)]
        adapted, reason = choose_model(spec.recipe_name, *evidence, supported, agreement)
        recommended = run if adapted else plain
    chosen = run if plan.requested else recommended
    method = recommended.record.settings.recipe_name
    if plan.requested:
        reason = "requested" if chosen is recommended else f"requested; {method} is recommended: {reason}"
    saved = SavedModel(
        chosen.record.settings.recipe_name, chosen is run and adapts,
        "." if chosen is run else f"{BESIDE}{method}", reason, plan.requested,
    )  # fmt: skip
    # A network that broke down has nothing to say of the recordings; their signals have.
    model = None if chosen.record.failed else chosen.model
    record = replace(run.record, saved=saved, evidence=chosen.record.evidence)
    record = diagnose_target(record, plan.library, spec, model, chosen.unknown)
    model = chosen.model and replace(chosen.model, decision=record.decision)
    replace(run, record=record, model=model).write(out)
