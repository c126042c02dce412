"""Trains a stack of runs and writes a folder for each; docs/record.md lists its files.

Only this module writes such a folder, record.json last: it says "finished". `bearcat adapt` trains stacks of one,
a benchmark many stacks.

>>> (run,) = run_stack([spec], [Path("out")], torch.device("cpu"))
>>> run.record.scores
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bearcat.adaptation.estimates import RunEvidence, estimate_runs, unknown_recordings
from bearcat.adaptation.record import COLUMNS, Evaluation, claim, drawable, make_record
from bearcat.adaptation.spec import Library, RunSpec
from bearcat.cat import Calibration, reliability_bins
from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.evaluate import EpochEnd, predict, scores, watcher
from bearcat.cat.networks import select_run
from bearcat.data import SplitTask, Windows
from bearcat.data.recording import RecordingInfo, healthy_class
from bearcat.data.tasks import UNKNOWN, HeldBack
from bearcat.deploy.model import Model, load_model, save_model
from bearcat.diagnosis.decision import Decision, ModelEvidence, decide
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.pooling import Familiarity, Tally, pool, pooled_temperature, tally
from bearcat.diagnosis.recording import Diagnoses, Diagnosis, network_evidence
from bearcat.diagnosis.signal import SignalEvidence
from bearcat.fast.batches import padded_stack
from bearcat.names import csv_cell
from bearcat.record import CURVES, PREDICTIONS, RECORD, Record
from bearcat.report.figures import write_reliability
from bearcat.report.results import read_result
from bearcat.storage import digest_json, write_atomically

MOST_RECORDINGS, MOST_WINDOWS = 200, 200  # of the target, and of each, that a record diagnoses


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A trained and evaluated run, as its folder holds it."""

    record: Record
    model: Model | None = None  # if wanted
    tables: Mapping[str, bytes] = field(default_factory=dict)  # predictions.csv and curves.csv; none of a run read back

    def write(self, folder: Path) -> None:
        """Writes the folder of the run, its record last; a picture only beside a model."""
        for name, content in self.tables.items():
            write_atomically(folder / name, content)
        if self.model is not None:
            save_model(folder / "model", self.model)
            if drawable():
                write_reliability(self.record.reliability, folder / "reliability.png")
        self.record.write(folder)


def run_stack(
    specs: Sequence[RunSpec],
    folders: Sequence[Path],
    device: torch.device,
    progress: Callable[[EpochEnd], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    keep_model: bool = False,
    library: Library | None = None,
    write: bool = True,
) -> list[FinishedRun]:
    """Trains these runs, whose stack keys must agree, together; writes a folder for each, or only claims it.

    Runs whose folder holds their record already are read, and where all do, nothing is trained.
    """
    library = library or Library()
    specs = [library.identified(spec) for spec in specs]
    done = [(folder / RECORD).exists() for folder in folders]
    splits = [] if all(done) else [library.split(spec) for spec in specs]  # data that cannot be used leave no folder
    for folder, spec in zip(folders, specs, strict=True):
        claim(folder, spec)
    found = {place: _read(folder, keep_model) for place, folder in enumerate(folders) if done[place]}
    if all(done):
        return list(found.values())
    started = time.monotonic()
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
    known = [library.evidence(spec, split) for spec, split in zip(specs, splits, strict=True)]
    runs = [
        Run(spec.recipe, library.training(spec, split), spec.seed, evidence.train_checks)
        for spec, split, evidence in zip(specs, splits, known, strict=True)
    ]
    watch = watcher([split.held_back for split in splits], device)
    identity = digest_json([spec.identity for spec in specs])
    trained = train(runs, device, watch, progress, checkpoint, checkpoint_seconds, identity=identity)
    evaluations = evaluate(trained, splits, known)
    seconds = time.monotonic() - started
    for place in [place for place, finished in enumerate(done) if not finished]:
        spec, split, evaluation = specs[place], splits[place], evaluations[place]
        record, model = make_record(spec, split, evaluation, trained, place, seconds), None
        record = replace(record, problems={each.origin: each.sentence for each in library.left_out(spec)})
        numbers = unknown_recordings(trained.findings[place], split)
        unknown = [split.target.recordings[number].origin for number in numbers]
        if not keep_model and not record.failed:
            diagnoses = diagnose_tested(split, evaluation, unknown, record)
            diagnoses = heard(library, spec, diagnoses)
            record = decided_record(record, record.evidence, Diagnoses(diagnoses))
        if keep_model:
            model = _model(trained, place, spec, split, evaluation, record)
            if not record.failed:
                model, diagnoses = diagnose_target(model, split.target, unknown)
                record = replace(record, recordings=tuple(diagnoses))
                if (total := len(split.target.recordings)) > MOST_RECORDINGS:
                    only = f"only the first {MOST_RECORDINGS} of {total} target recordings are diagnosed here"
                    record = replace(record, warnings=(*record.warnings, f"{only}; use bearcat predict for the others"))
        tables = {PREDICTIONS: _predictions(split, evaluation), CURVES: _curves(trained, place, split.classes)}
        found[place] = FinishedRun(record, model, tables)
        if write:
            found[place].write(folders[place])
    return [found[place] for place in range(len(specs))]


def _read(folder: Path, keep_model: bool) -> FinishedRun:
    """A run that was finished before; with its model where that is wanted."""
    return FinishedRun(read_result(folder).record, load_model(folder / "model") if keep_model else None)


def evaluate(trained: Trained, splits: Sequence[SplitTask], evidence: Sequence[RunEvidence]) -> list[Evaluation]:
    """What the final networks say of the test windows, for each run of the stack."""
    device = trained.finite.device
    values = padded_stack([np.asarray(split.held_back.target_test.values) for split in splits], 0, device)
    labels = {
        "source": trained.batches.source_test_labels,
        "target": padded_stack([split.held_back.target_test_labels for split in splits], UNKNOWN, device),
    }
    source, target = (predict(trained.network, windows) for windows in (trained.batches.source_test, values))
    stack, plain = trained.calibration, {"source": source[0], "target": target[0]}
    calibrated = plain if stack is None else {domain: stack.apply(logits) for domain, logits in plain.items()}
    estimates = estimate_runs(trained, splits, evidence, source, target)
    scored = {domain: scores(plain[domain], stack, labels[domain]) for domain in labels}
    other = trained.source_calibration if trained.source_calibration is not stack else None
    for domain, found in scored.items() if other is not None else ():
        by_source = scores(plain[domain], other, labels[domain])
        found |= {f"{name}_source_calibrated": by_source[name] for name in ("ece", "ece15")}
    probabilities, uncalibrated = (each["target"].softmax(dim=-1).cpu().numpy() for each in (calibrated, plain))
    evaluations = []
    for number, split in enumerate(splits):
        windows = len(split.held_back.target_test)
        own = None
        if stack is not None:
            state = {name: value[number : number + 1].cpu() for name, value in stack.state().items()}
            own = Calibration.from_state(state)
        temperature = None if other is None else _number(other.temperature[number])
        evaluation = Evaluation(
            probabilities[number, :windows], uncalibrated[number, :windows], own, temperature, estimates[number]
        )
        evaluations.append(evaluation)
        for domain, stacked in labels.items():
            truth = stacked[number]
            if bool((truth != UNKNOWN).any()):
                evaluation.scores[domain] = {name: _number(score[number]) for name, score in scored[domain].items()}
                before, after = (_bins(each[domain][number], truth) for each in (plain, calibrated))
                diagram = {"uncalibrated": before, "calibrated": None if stack is None else after}
                evaluation.reliability[domain] = diagram
        if (target_scores := evaluation.scores["target"]) is not None:
            target_scores |= alarm_scores(evaluation.target, split.held_back, split.classes)
    return evaluations


def alarm_scores(probabilities: np.ndarray, held_back: HeldBack, classes: Sequence[str]) -> dict[str, Any]:
    """Recordings with labels and the share diagnosed rightly; rates of errors, None where there is none to count."""
    windows, truth = held_back.target_test.recording, held_back.target_test_labels
    known = truth != UNKNOWN
    diagnosed, right = [], []
    for number in np.unique(windows[known]):
        members = windows == number
        diagnosed.append(pool(tally(_log(probabilities[members]))).index)
        right.append(truth[members][0])
    hits = np.equal(diagnosed, right)
    found: dict[str, Any] = {"recordings": len(right), "recording_accuracy": float(hits.mean()) if right else None}
    healthy = healthy_class(classes)
    code = UNKNOWN if healthy is None else list(classes).index(healthy)
    for prefix, predicted, labels in (
        ("", probabilities.argmax(axis=1)[known], truth[known]),
        ("recording_", np.array(diagnosed), np.array(right)),
    ):
        alarms, sound = predicted != code, labels == code
        for name, wrong in (("false_alarms", alarms[sound]), ("missed_faults", ~alarms[~sound])):
            found[prefix + name] = float(wrong.mean()) if healthy and len(wrong) else None
    return found


def _bins(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """What a reliability diagram draws of one run; `mass` counts windows, None stands where a bin has none."""
    known = labels != UNKNOWN
    found = reliability_bins(logits.softmax(dim=-1), labels.clamp(min=0), known.to(logits.dtype))
    return {
        "edges": found.edges.tolist(),
        "mass": [round(share) for share in (found.mass.nan_to_num() * known.sum()).tolist()],
        "confidence": [_number(value) for value in found.confidence],
        "accuracy": [_number(value) for value in found.accuracy],
    }


def _log(probabilities: np.ndarray) -> np.ndarray:
    """Log-probabilities, finite where float32 has rounded to 0."""
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)))


def _number(value: Tensor) -> float | None:
    """A plain number; None for nan, which JSON does not know."""
    number = float(value)
    return number if math.isfinite(number) else None


def diagnose_target(model: Model, windows: Windows, unknown: Sequence[str] = ()) -> tuple[Model, list[Diagnosis]]:
    """The model made familiar with the target's recordings, but those of an `unknown` class; its diagnosis of each."""
    tallies: dict[str, Tally] = {}
    for number, info in enumerate(windows.recordings[:MOST_RECORDINGS]):
        members = np.flatnonzero(windows.recording == number)
        members = members[:: math.ceil(len(members) / MOST_WINDOWS) or 1]
        if not len(members):
            continue
        part = windows[members]
        outputs, unfamiliar = model.classify(part.values), None
        if model.familiarity is not None and part.shapes is not None:
            unfamiliar = model.familiarity.unfamiliar(outputs.features, part.shapes)
        tallies[info.origin] = tally(outputs.log_probabilities, unfamiliar)
    familiarity = _covering(model.familiarity, tallies, unknown)
    infos = {info.origin: info for info in windows.recordings}
    judged = model.decision, model.shift
    found = _diagnoses(tallies, infos, model.pooled_temperature, familiarity, model.classes, judged, unknown)
    return replace(model, familiarity=familiarity), found


def diagnose_tested(
    split: SplitTask, evaluation: Evaluation, unknown: Sequence[str], record: Record
) -> list[Diagnosis]:
    """The same by the test windows alone, of a run whose model is not kept."""
    tested, probabilities, tallies = split.held_back.target_test, _log(evaluation.target), dict[str, Tally]()
    for number in np.unique(tested.recording).tolist():
        members = tested.recording == number
        tallies[tested.recordings[number].origin] = tally(probabilities[members], evaluation.trust.unfamiliar[members])
    temperature = pooled_temperature(probabilities, tested.recording, _mean_confidence(evaluation))
    usable = evaluation.trust.familiarity if evaluation.trust.familiarity.usable else None
    familiarity = _covering(usable, tallies, unknown)
    infos = {info.origin: info for info in tested.recordings}
    judged = record.decision, record.evidence.shift
    return _diagnoses(tallies, infos, temperature, familiarity, split.classes, judged, unknown)


def _covering(
    familiarity: Familiarity | None, tallies: Mapping[str, Tally], unknown: Sequence[str]
) -> Familiarity | None:
    known = [counted for origin, counted in tallies.items() if origin not in unknown]
    shares = [(counted.unfamiliar or 0) / counted.windows for counted in known]
    return None if familiarity is None else familiarity.covering(shares)


def _diagnoses(
    tallies: Mapping[str, Tally], infos: Mapping[str, RecordingInfo], temperature: float,
    familiarity: Familiarity | None, classes: Sequence[str], judged: tuple[Decision, str | None],
    unknown: Sequence[str],
) -> list[Diagnosis]:  # fmt: skip
    found = []
    for origin, counted in tallies.items():
        pooled = pool(counted, temperature, familiarity)
        pooled = replace(pooled, familiar=False) if origin in unknown else pooled
        network = network_evidence(pooled, classes, *judged)
        machine = infos[origin].machine or infos[origin].domain
        point = infos[origin].channel
        diagnosis = Diagnosis.of(origin, Witnesses(network=network), machine=machine, point=point)
        found.append(replace(diagnosis, machine_stated=infos[origin].machine is not None))
    return found


def heard(library: Library, spec: RunSpec, diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The diagnoses with what the signals say by themselves; they are to be decided again."""
    signals, found = library.signals(spec, [each.recording for each in diagnoses]), []
    for each in diagnoses:
        signal = signals.get(each.recording, SignalEvidence())
        seen = replace(each.witnesses, physics=signal.physics, general=signal.general, without=spec.tested)
        if signal.quality is not None and signal.quality.no_signal is not None:
            silent = Diagnosis.silent(each.recording, signal.quality.no_signal, signal.quality.rms, *each.where)
            found.append(replace(silent, drawing=signal.drawing, machine_stated=each.machine_stated))
            continue
        noticed, rms = ((), None) if signal.quality is None else (signal.quality.findings, signal.quality.rms)
        again = replace(each, witnesses=seen, rms=rms, drawing=signal.drawing, vibration=signal.vibration)
        found.append(again.remarked(noticed))
    return found


def decided_record(record: Record, evidence: ModelEvidence, diagnoses: Diagnoses) -> Record:
    """The record with the decision on the model, by this evidence and by its diagnoses, and on each recording."""
    healthy = healthy_class(record.data.classes)
    faulty = None if healthy is None else sum(each.label != healthy for each in diagnoses)
    one_class = evidence.one_class if all(each.nearest == evidence.one_class for each in diagnoses) else None
    physics, number = diagnoses.physics_check, len(diagnoses)
    evidence = replace(evidence, physics=physics, recordings=number, faulty=faulty, one_class=one_class)
    decision = decide(evidence)
    recordings = tuple(diagnoses.beside_each_other(decision.action, decision.expected))
    return replace(record, decision=decision, evidence=evidence, recordings=recordings)


def _model(
    trained: Trained, number: int, spec: RunSpec, split: SplitTask, evaluation: Evaluation, record: Record
) -> Model:
    """One run of the stack as a model of its own, with what its card says of the run."""
    infos, tested = split.target.recordings, split.held_back.target_test.recording
    channels, points = split.target.values.shape[1:]
    network = select_run(trained.network, number, spec.recipe.encoder, channels, points)
    bearing = _shared(info.bearing for info in infos)
    sizes = ("source_train", "source_test", "target_train", "target_test")
    card = {
        "channel": _shared(info.channel for info in infos), "bearing": bearing and asdict(bearing),
        "rpm": _shared(None if info.rpm_channel else info.rpm for info in infos),
        "recipe": spec.recipe_name, "task": str(spec.task), "seed": spec.seed, "versions": dict(record.versions),
        "data": {"name": spec.data} | {name: getattr(record.data, name) for name in sizes},
        "scores": {domain: found for domain, found in evaluation.scores.items() if found is not None},
        "limits": list(record.warnings), "decision": asdict(record.decision), "shift": record.evidence.shift,
        "pooled_recordings": len(set(tested.tolist())),
    }  # fmt: skip
    pooled = pooled_temperature(_log(evaluation.target), tested, _mean_confidence(evaluation))
    familiarity = evaluation.trust.familiarity
    return Model(
        split.classes, spec.preparation, infos[0].rate, card, channels, pooled,
        familiarity if familiarity.usable else None, network=network, calibration=evaluation.calibration,
        encoder=spec.recipe.encoder, calibrator=spec.recipe.final or spec.recipe.calibration,
    )  # fmt: skip


def _mean_confidence(evaluation: Evaluation) -> float:
    return float(evaluation.target.max(axis=1).mean())


def _shared(values: Iterable[Any]) -> Any:
    """The value that all of these are; None where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _predictions(split: SplitTask, evaluation: Evaluation) -> bytes:
    """predictions.csv: a row for each target test window."""
    calibrated, plain, test = evaluation.target, evaluation.target_uncalibrated, split.held_back.target_test
    spread = _log(calibrated)
    rows = []
    for row in np.lexsort((test.start, test.recording)):
        recording = test.recordings[int(test.recording[row])]
        predicted, confidence = split.classes[int(calibrated[row].argmax())], f"{calibrated[row].max():.6f}"
        rows.append((
            *map(csv_cell, (recording.origin, int(test.start[row]), recording.label or "", predicted)), confidence,
            f"{plain[row].max():.6f}", " ".join(f"{value:.5g}" for value in spread[row].tolist()),
        ))  # fmt: skip
    return _csv(COLUMNS, rows)


def _curves(trained: Trained, number: int, classes: Sequence[str]) -> bytes:
    """curves.csv: a row for each epoch, empty where a number did not exist; thresholds by the names of classes."""
    names = {f"threshold_{code}": f"threshold:{label}" for code, label in enumerate(classes)}
    columns = {names.get(name, name): values[:, number].tolist() for name, values in trained.history.items()}
    rows = enumerate(zip_longest(*columns.values(), fillvalue=math.nan))
    texts = ((epoch, *("" if math.isnan(cell) else f"{cell:.6g}" for cell in cells)) for epoch, cells in rows)
    return _csv(("epoch", *columns), texts)


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode()
