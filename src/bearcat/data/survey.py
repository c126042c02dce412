"""What `bearcat data check` reports: every recording of a dataset read once and counted, and every problem named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from bearcat.data.catalogue import Catalogue, Entry, Problem
from bearcat.data.files import grouped
from bearcat.data.neighbours import Portrait, odd_recordings, portrait
from bearcat.data.prepare import Preparation, different_rates
from bearcat.data.recording import RecordingInfo, cut, resample
from bearcat.errors import InputError

UNLABELLED = "(unlabelled)"


@dataclass(frozen=True)
class Row:
    """The recordings of one class in one domain."""

    domain: str
    label: str
    recordings: int
    seconds: float | None  # None: the rate is unknown
    rates: tuple[float | None, ...]
    speeds: tuple[float, ...]  # rpm, where known
    bearings: tuple[str, ...]  # where known
    samples: int
    windows: int


@dataclass(frozen=True)
class Survey:
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]  # what stops the benchmark
    notes: tuple[str, ...]  # what is good to know


def survey(
    catalogue: Catalogue, preparation: Preparation, progress: Callable[[Iterable[Entry]], Iterable[Entry]] = tuple
) -> Survey:
    """Reads everything in the catalogue; a file that cannot be used becomes a problem and the others go on."""
    found: dict[tuple[str, str], list[tuple[RecordingInfo, int, int]]] = defaultdict(list)
    problems, portraits = list(catalogue.problems), list[Portrait]()
    for entry in progress(catalogue.entries):
        try:
            recording = entry.read()
            portraits.append(portrait(recording, recording.signal))
            if preparation.rate is not None:
                recording = resample(recording, preparation.rate)
            windows = len(cut(recording, preparation.length, preparation.step))
            found[entry.domain, entry.label or UNLABELLED].append((recording.info(), recording.signal.size, windows))
        except InputError as error:
            problems.append(Problem(entry.origin, str(error), entry.domain))
    order = [(domain, label) for domain in catalogue.domains for label in (*catalogue.classes, UNLABELLED)]
    rows = tuple(_row(*key, found[key]) for key in order if key in found)
    if sentence := different_rates({rate: row.domain for row in reversed(rows) for rate in row.rates}):
        problems.append(Problem("rate", sentence))
    return Survey(rows, tuple(problems), (*catalogue.notes, *_class_notes(rows), *odd_recordings(portraits)))


def _row(domain: str, label: str, found: list[tuple[RecordingInfo, int, int]]) -> Row:
    recordings, samples, windows = zip(*found, strict=True)
    rates = tuple(dict.fromkeys(recording.rate for recording in recordings))
    return Row(
        domain=domain,
        label=label,
        recordings=len(found),
        seconds=None if None in rates else sum(size / (recording.rate or 1) for recording, size, _ in found),
        rates=rates,
        speeds=tuple(sorted({recording.rpm for recording in recordings if recording.rpm})),
        bearings=tuple(dict.fromkeys(str(recording.bearing) for recording in recordings if recording.bearing)),
        samples=sum(samples),
        windows=sum(windows),
    )


def _class_notes(rows: tuple[Row, ...]) -> list[str]:
    """Notes on domains whose classes differ: as a target, a domain may have classes that a source cannot teach."""
    known = grouped((row for row in rows if row.label != UNLABELLED), lambda row: row.domain)
    labelled = {domain: {row.label for row in same} for domain, same in known.items()}
    notes = [
        f"source '{other}' cannot teach these classes of target '{domain}': {', '.join(sorted(labels - taught))}"
        for (domain, labels), (other, taught) in product(labelled.items(), repeat=2)
        if labels - taught
    ]
    unlabelled = [row.domain for row in rows if row.label == UNLABELLED and row.domain not in labelled]
    notes += [f"domain '{domain}' has no labels: it can be a target, not a source" for domain in unlabelled]
    if any(None in row.rates for row in rows):
        notes.append("some files do not say their sampling rate; give it in a manifest, or with --rate")
    return notes
