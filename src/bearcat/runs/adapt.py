"""One adaptation from recordings to a folder of results: what `bearcat adapt` does.

    OUT/
      record.json, predictions.csv, curves.csv, run.json, reliability.png, model/      as in run.py
      report.html              all of it on one page
      checkpoint.safetensors   while training; an interrupted run goes on from it

>>> record = adapt(spec, Path("out"), torch.device("cpu"))
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bearcat.data import Catalogue, Entry, Task
from bearcat.data.catalogue import find_domain
from bearcat.data.datasets.folder import EMPTY, FolderEntry
from bearcat.diagnosis.classifier import state_of
from bearcat.diagnosis.physical import SecondOpinion, contradiction
from bearcat.errors import InputError
from bearcat.report.choices import compared
from bearcat.report.results import read_result
from bearcat.runs.record import PREDICTIONS, add_estimate, drawable
from bearcat.runs.run import EXTRAS, run_stack
from bearcat.runs.spec import Library, RunSpec
from bearcat.training.evaluate import EpochEnd

# What `bearcat adapt` does without any option. The defects are small, so that there are mistakes to calibrate with.
DEMONSTRATION = ["severities=0.2,0.5", "faults=inner,outer"]
DEMONSTRATION_SENTENCE = "Simulated bearings (healthy; inner and outer race, defects of 0.2 and 0.5 mm), to see it."

MOST_COMPARED = 200  # recordings of the target that are read again for a second opinion


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
    progress: Callable[[EpochEnd], None] | None = None,
    beside: Sequence[Path] = (),
    page: bool = True,
    track: str | None = None,
    library: Library | None = None,
) -> dict[str, Any]:
    """Trains, evaluates and writes everything into OUT; returns the record. A finished run is not run again.

    `beside` are folders of other finished runs that the record and the page compare it with.
    """
    library, checkpoint = library or Library(), out / "checkpoint.safetensors"
    keep = EXTRAS if drawable() else ("model",)
    (record,) = run_stack([spec], [out], device, progress, checkpoint, keep=keep, library=library, track=track)
    checkpoint.unlink(missing_ok=True)
    if beside:
        found = compared(read_result(out), [read_result(folder) for folder in beside])
        if record["estimates"].get("beside") != found:
            record = add_estimate(out, "beside", found)
    opinion = second_opinion(spec, out, library)
    if opinion is not None and record["estimates"].get("second_opinion") != opinion:
        record = add_estimate(out, "second_opinion", opinion)
    if page and drawable():
        from bearcat.report.run_page import write_run_page

        write_run_page(out, beside)
    return record


def _may_be_known(entry: Entry) -> bool:
    """Whether speed and bearing of the recording can be known, as far as can be said without reading it again."""
    return not isinstance(entry, FolderEntry) or (entry.row.bearing is not None and entry.row.rpm is not None)


def second_opinion(spec: RunSpec, out: Path, library: Library) -> dict[str, Any] | None:
    """What the bearing's orders say of the target's recordings, beside what most test windows of each were called.

    None where no recording's speed and bearing are known, or no class is a state of a bearing.
    """
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    with (out / PREDICTIONS).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            votes[row["recording"]][row["predicted"]] += 1
    compared, contradicted = 0, []
    entries = [
        entry
        for entry in library.catalogue(spec.dataset).entries
        if entry.domain == spec.task.target and entry.origin in votes and _may_be_known(entry)
    ]
    for entry in entries[:: -(-len(entries) // MOST_COMPARED) or 1]:
        recording, label = entry.read(), votes[entry.origin].most_common(1)[0][0]
        if recording.speed is not None or state_of(label) is None:
            continue
        second = SecondOpinion(entry.origin, recording.rate, recording.rpm, recording.bearing)
        for _ in second.observe([recording.signal]):
            pass
        physical = second.diagnosis()
        if physical is None or physical.state is None:
            continue
        compared += 1
        if contradiction(physical, label):
            found = {"physics": physical.answer, "confidence": physical.confidence, "reason": physical.reason}
            contradicted.append({"recording": entry.origin, "model": label, **found})
    if not compared:
        return None
    sentence = f"The bearing's orders agree with the model on all {compared} target recordings that they tell."
    if contradicted:
        first = contradicted[0]
        said = "show no fault" if first["physics"] == "healthy" else f"say {first['physics']}"
        sentence = (
            f"The bearing's orders contradict the model on {len(contradicted)} of {compared} target recordings, such as"
            f" {first['recording']}: the model says '{first['model']}', they {said}."
        )
    return {"recordings": compared, "contradicted": contradicted, "sentence": sentence}
