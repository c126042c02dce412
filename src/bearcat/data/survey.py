"""What `bearcat data check` knows: every recording of a dataset read once, counted, and every trouble named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bearcat.data.catalogue import Catalogue, Entry, Problem
from bearcat.data.prepare import Preparation, different_rates
from bearcat.data.recording import cut, resample
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
    samples: int
    windows: int


@dataclass(frozen=True)
class Survey:
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]  # what stops the benchmark
    notes: tuple[str, ...]  # what is good to know

    @property
    def recordings(self) -> int:
        return sum(row.recordings for row in self.rows)


def survey(
    catalogue: Catalogue, preparation: Preparation, progress: Callable[[Iterable[Entry]], Iterable[Entry]] = tuple
) -> Survey:
    """Reads everything in the catalogue; a file that cannot be used becomes a problem and the others go on."""
    gathered: dict[tuple[str, str], list[tuple[int, float | None, int]]] = {}
    problems = list(catalogue.problems)
    for entry in progress(catalogue.entries):
        try:
            recording = entry.read()
            if preparation.rate is not None:
                recording = resample(recording, preparation.rate)
            windows = len(cut(recording, preparation.length, preparation.step))
            gathered.setdefault((entry.domain, entry.label or UNLABELLED), []).append(
                (recording.signal.size, recording.rate, windows)
            )
        except InputError as error:
            problems.append(Problem(entry.origin, str(error), entry.domain))
    order = [(domain, label) for domain in catalogue.domains for label in (*catalogue.classes, UNLABELLED)]
    rows = tuple(_row(*key, gathered[key]) for key in order if key in gathered)
    if sentence := different_rates({rate: row.domain for row in reversed(rows) for rate in row.rates}):
        problems.append(Problem("rate", sentence))
    return Survey(rows, tuple(problems), (*catalogue.notes, *_class_notes(rows)))


def _row(domain: str, label: str, found: list[tuple[int, float | None, int]]) -> Row:
    known = all(rate is not None for _, rate, _ in found)
    return Row(
        domain=domain,
        label=label,
        recordings=len(found),
        seconds=sum(samples / (rate or 1) for samples, rate, _ in found) if known else None,
        rates=tuple(dict.fromkeys(rate for _, rate, _ in found)),
        samples=sum(samples for samples, _, _ in found),
        windows=sum(windows for _, _, windows in found),
    )


def _class_notes(rows: tuple[Row, ...]) -> list[str]:
    """Where class sets differ between domains: as a target, such a domain has classes no source can teach."""
    labelled: dict[str, set[str]] = {}
    for row in rows:
        if row.label != UNLABELLED:
            labelled.setdefault(row.domain, set()).add(row.label)
    notes = []
    for domain, labels in labelled.items():
        for other, taught in labelled.items():
            if alien := sorted(labels - taught):
                notes.append(f"source '{other}' cannot teach these classes of target '{domain}': {', '.join(alien)}")
    unlabelled = [row.domain for row in rows if row.label == UNLABELLED and row.domain not in labelled]
    notes += [f"domain '{domain}' has no labels: it can be a target, not a source" for domain in unlabelled]
    if any(None in row.rates for row in rows):
        notes.append("some files do not say their sampling rate; give it in a manifest, or with --rate")
    return notes
