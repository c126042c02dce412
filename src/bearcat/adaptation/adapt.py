"""One adaptation from recordings to a folder of results, and what labels of some target recordings say of it later.

docs/record.md lists the files. record.json is written once, last, with the decision on the saved model and its
diagnoses of the target; checkpoint.safetensors is there while training, and an interrupted run goes on from it.

>>> adaptation = adapt(plan, Path("out"))
>>> adaptation.decision.action, adaptation.recordings.summary
('use', '14 recordings: 9 alarm, 5 ok.')
>>> check_run(Path("out"), {"pump-B/07.wav": "healthy"}).decision.sentence
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from bearcat.adaptation import AdaptationPlan, RunSpec
from bearcat.adaptation.run import Bar, FinishedRun, claim, diagnose_target, run_stack
from bearcat.cat import Calibration
from bearcat.cat.calibration import read
from bearcat.data.catalogue import inside
from bearcat.deploy.model import load_model, save_model
from bearcat.diagnosis.decision import Decision, LabelCheck, choose_model, decide
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.recording import AlarmRule, Diagnoses
from bearcat.errors import InputError, suggest
from bearcat.findings import ENOUGH
from bearcat.methods.target_calibration import updated_temperature
from bearcat.record import CHECKPOINT, RECORD, LabelledRecordings, Record, SavedModel
from bearcat.report import BESIDE, Predictions, read_result
from bearcat.storage import read_regular

PRIOR_SPREAD = math.log(2)  # of the logarithm of the temperature, before there are labels


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
    def warnings(self) -> tuple[str, ...]:
        """What may spoil the result."""
        return self.record.warnings

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with each recording of source and target that was left out, by its name."""
        return self.record.problems

    def __repr__(self) -> str:
        settings = self.record.settings
        title = f"{' and '.join(settings.sources)} → {settings.target} by {settings.recipe_name}"
        lines = [repr(self.recordings), self.decision.sentence, *self.record.sentences, title]
        lines += [f"problem: {problem}" for problem in self.problems.values()]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"model: {self.model}; page: {self.folder / 'report.html'}"])


def adapt(plan: AdaptationPlan, out: Path, bar: Bar = lambda *_: nullcontext()) -> Adaptation:
    """Trains, evaluates, decides and writes everything into OUT. What is finished is not run again."""
    spec = plan.library.identified(plan.spec)
    if (out / RECORD).exists():
        claim(out, spec)
    else:
        _train(plan, spec, out, bar)
    if not (out / "report.html").exists():
        _write_page(out)
    for folder in (out, *out.glob(f"{BESIDE}*")):
        (folder / CHECKPOINT).unlink(missing_ok=True)
    result = read_result(out)
    return Adaptation(out, result.record, {run.cell.method: run.record for run in result.beside})


def _train(plan: AdaptationPlan, spec: RunSpec, out: Path, bar: Bar) -> None:
    """Trains the run and, to compare with, its unadapted counterpart, unless it is that or did not adapt; decides, and
    writes the folders, the run's own record last.
    """

    def trained(run: RunSpec, folder: Path, write: bool) -> FinishedRun:
        with bar(run.recipe_name, run.recipe.schedule.epochs) as progress:
            (finished,) = run_stack(
                [run], [folder], plan.device, progress, folder / CHECKPOINT, keep_model=True, library=plan.library,
                write=write,
            )  # fmt: skip
        return finished

    run = recommended = trained(spec, out, write=False)
    finding, evidence, name = run.record.adaptation, run.record.evidence, None
    supported = None if finding is None else bool(finding["adapted"])
    if spec.recipe.adapts and supported is not False:
        name, recipe = spec.recipe.unadapted()
        unadapted = trained(replace(spec, recipe_name=name, recipe=recipe), out / f"{BESIDE}{name}", write=True)
        agreement = [made.record.estimates.accuracy.get("agreement") for made in (run, unadapted)]
        adapted, reason = choose_model(spec.recipe_name, evidence, unadapted.record.evidence, supported, agreement)
        recommended = run if adapted else unadapted
    else:
        reason = f"{spec.recipe_name} did not adapt"
    chosen = run if plan.requested else recommended
    saved = SavedModel(
        chosen.record.settings.recipe_name, chosen is run and spec.recipe.adapts and supported is not False,
        "." if chosen is run else f"{BESIDE}{name}", reason, plan.requested, name,
        None if recommended is chosen else name,
    )  # fmt: skip
    # A network that broke down has nothing to say of the recordings; their signals have.
    model = None if chosen.record.failed else chosen.model
    record = replace(run.record, saved=saved, evidence=chosen.record.evidence)
    record = diagnose_target(record, plan.library, spec, model, chosen.unknown)
    model = chosen.model and replace(chosen.model, decision=record.decision)
    replace(run, record=record, model=model).write(out)


def _write_page(folder: Path) -> None:
    if all(find_spec(name) is not None for name in ("matplotlib", "jinja2")):  # the extra `report`
        from bearcat.report.pages import write_run_page

        write_run_page(folder)


def read_labels(path: Path) -> dict[str, str]:
    """A table with the columns recording and label."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_regular(path).decode("utf-8-sig"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if not rows or not {"recording", "label"} <= set(rows[0]):
        raise InputError(f"{path}: must have the columns recording and label, and a row for each recording")
    return {str(row["recording"]): str(row["label"]) for row in rows}


def check_run(folder: Path, labels: Mapping[str, str]) -> Record:
    """Compares the saved model with these labels; decides anew, and recalibrates the model and its diagnoses.

    Labels of an earlier check are forgotten. The recordings need not be drawn at random: those that the decision asks
    for are the uncertain ones, so the interval is a cautious one for the others.
    """
    result = read_result(folder)
    record, predictions = result.record, result.saved.predictions
    nearest = {diagnosis.recording: diagnosis.nearest for diagnosis in record.recordings}
    truth = _named(labels, list(nearest), record.data.classes)
    right = sum(nearest[name] == label for name, label in truth.items())
    evidence = replace(record.evidence, labels=LabelCheck(len(truth), right, len(set(truth.values()))))
    unlabelled = tuple(name for name in evidence.uncertain if name not in truth)
    decision = decide(replace(evidence, uncertain=unlabelled))
    earlier = 1.0 if record.labelled is None else record.labelled.temperature_factor
    factor = _temperature_factor(predictions, truth, record.data.classes)
    rule = AlarmRule.of(record.data.classes, prior=record.settings.prior)
    tempered = [replace(diagnosis.tempered(factor / earlier), rule=rule) for diagnosis in record.recordings]
    recordings = tuple(decide_together(tempered, decision.action))
    labelled = LabelledRecordings(len(truth), right, factor)
    if (folder / "model").is_dir():
        if not inside(folder, folder / "model"):
            raise InputError(f"{folder / 'model'}: leads outside the run's folder; copy the model into it")
        model = load_model(folder / "model")
        change = factor / float(model.metadata.get("temperature_factor", 1.0))  # a check may have been interrupted here
        before = model.calibration or Calibration.identity(1, len(model.classes))
        after = replace(
            before, scale=before.scale / change, bias=before.bias / change, at_bound=torch.zeros_like(before.at_bound)
        )
        metadata = {**model.metadata, "temperature_factor": factor}
        model = replace(model, calibration=after, calibrator=model.calibrator or "Temperature", metadata=metadata)
        save_model(folder / "model", replace(model, decision=decision))
    record = replace(record, evidence=evidence, decision=decision, recordings=recordings, labelled=labelled)
    record.write(folder)
    _write_page(folder)
    return record


def _named(labels: Mapping[str, str], recordings: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """The labels by the recordings' full names."""
    truth = {}
    for name, label in labels.items():
        if label not in classes:
            raise InputError(f"{name}: label '{label}' is no class of the model{suggest(label, classes)}")
        called = [full for full in recordings if f"/{full}".endswith(f"/{name}") or name.endswith(f"/{full}")]
        if len(called) != 1:
            problem = "is no recording of the run" if not called else "names several recordings"
            raise InputError(f"{name}: {problem}{suggest(name, recordings)}")
        truth[called[0]] = label
    return truth


def _temperature_factor(predictions: Predictions, truth: Mapping[str, str], classes: Sequence[str]) -> float:
    """What the temperature is multiplied by, so that confidences on the labelled recordings are as good as they can be.

    The run's own calibration is the prior: a factor of two either way is exceeded once in three times. A recording
    counts once, however many windows it has: they are no independent evidence. A few labels, or labels of one class,
    make nothing surer: that a fault was recognised says nothing of how sure "healthy" is.
    """
    windows = Counter(predictions.recording)
    labels = [classes.index(truth[name]) if name in truth else 0 for name in predictions.recording]
    weight = [1 / windows[name] if name in truth else 0.0 for name in predictions.recording]
    if not any(weight):
        return 1.0
    sample = read(predictions.log_probabilities, np.array(labels), np.array(weight))
    factor = float(updated_temperature(sample, PRIOR_SPREAD)[0])
    return factor if len(truth) >= ENOUGH and len(set(truth.values())) > 1 else max(factor, 1.0)
