"""What is wrong with a user's recordings: files that cannot be read, and recordings unlike the others.

`measure` reads a recording and says what is known of it before anything is chosen. `survey` is what `bearcat data
check` reports.

>>> survey(Folder(Path("my-recordings")).catalogue(), Preparation()).notes
("600rpm/inner/3.csv: is at 4000 Hz, while 9 others are at 8000 Hz; check how it was recorded",)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from bearcat.data.catalogue import Catalogue, Entry, Problem, grouped
from bearcat.data.recording import Floats, RecordingInfo, cut, resample, unlike_vibration
from bearcat.data.signals import MEASURED, SignalLimits
from bearcat.data.splits import specimen_counts
from bearcat.data.windows import Preparation, different_rates
from bearcat.errors import InputError
from bearcat.sentences import UNLIKE

if TYPE_CHECKING:
    from bearcat.data.folder import FolderEntry

UNLABELLED = "(unlabelled)"
UNMEASURED = "cannot be measured"
FEWEST = 4  # recordings of which one can be odd
MOST_ODD = 0.2  # of the recordings; more are another kind of recording, not a mistake
CLIPPED = 0.002  # of the samples, at the highest or lowest value
LISTED = 5  # sentences of one kind


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
    windows: int


@dataclass(frozen=True)
class Survey:
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]  # what stops the benchmark
    notes: tuple[str, ...]  # what is good to know
    specimens: Mapping[str, int | None]  # of each class; None: not known


def survey(
    catalogue: Catalogue, preparation: Preparation, progress: Callable[[Iterable[Entry]], Iterable[Entry]] = tuple
) -> Survey:
    """Reads everything in the catalogue; a file that cannot be used becomes a problem and the others go on."""
    found: list[tuple[RecordingInfo, int, int]] = []
    problems, measured = list(catalogue.problems), list[tuple[RecordingInfo, SignalLimits]]()
    for entry in progress(catalogue.entries):
        try:
            recording = entry.read()
            measured.append((recording.info(), _limits(recording.signal)))
            if preparation.rate is not None:
                recording = resample(recording, preparation.rate)
            windows = len(cut(recording, preparation.length, preparation.step))
            found.append((recording.info(), recording.signal.size, windows))
        except InputError as error:
            problems.append(Problem(entry.origin, str(error), entry.domain))
    groups = grouped(found, lambda item: (item[0].domain, item[0].label or UNLABELLED))
    order = [*catalogue.classes, UNLABELLED]
    rows = tuple(_row(*key, groups[key]) for key in product(catalogue.domains, order) if key in groups)
    if sentence := different_rates({rate: row.domain for row in reversed(rows) for rate in row.rates}):
        problems.append(Problem("rate", sentence))
    notes = (*catalogue.notes, *_notes(rows), *odd_recordings(measured))
    return Survey(rows, tuple(problems), notes, specimen_counts([info for info, *_ in found]))


def _limits(samples: Floats) -> SignalLimits:
    """Of the beginning of a recording (time,)."""
    limits = SignalLimits()
    limits.add(samples[:MEASURED])
    return limits


def _row(domain: str, label: str, found: Sequence[tuple[RecordingInfo, int, int]]) -> Row:
    recordings, _, windows = zip(*found, strict=True)
    rates = tuple(dict.fromkeys(recording.rate for recording in recordings))
    seconds = None if None in rates else sum(size / (recording.rate or 1) for recording, size, _ in found)
    speeds = tuple(sorted({recording.rpm for recording in recordings if recording.rpm}))
    bearings = tuple(dict.fromkeys(str(recording.bearing) for recording in recordings if recording.bearing))
    return Row(domain, label, len(found), seconds, rates, speeds, bearings, sum(windows))


def _notes(rows: Sequence[Row]) -> list[str]:
    labelled = {row.domain for row in rows if row.label != UNLABELLED}
    alone = dict.fromkeys(row.domain for row in rows if row.domain not in labelled)
    notes = [f"domain '{domain}' has no labels: it can be a target, not a source" for domain in alone]
    if any(None in row.rates for row in rows):
        notes.append("some files do not say their sampling rate; give it in a manifest, or with --rate")
    return notes


@dataclass(frozen=True)
class ChannelMeasurement:
    """What was measured of one channel of a recording."""

    samples: int
    unlike: str | None = None  # why this is no vibration; None where it may be
    limits: SignalLimits | None = None  # of its beginning
    problem: str | None = None  # why it cannot be read as a recording


@dataclass(frozen=True, kw_only=True)
class Measurement(RecordingInfo):
    """What is known about a recording before anything is chosen."""

    channels: Mapping[str, ChannelMeasurement]


def measure(entry: FolderEntry) -> Measurement:
    """Reads a recording and measures each of its channels; one of them at least can be used."""
    signals = entry.signals()
    info = entry.row.metadata(signals)
    channels, problems = dict[str, ChannelMeasurement](), list[str]()
    for name, samples in signals.channels.items():
        unlike = _unlike(samples)
        limits, problem = None if unlike == UNMEASURED else _limits(samples), None
        try:
            entry.row.recording(signals, name)
        except InputError as error:
            problem = str(error)
            problems.append(problem)
        channels[name] = ChannelMeasurement(len(samples), unlike, limits, problem)
    if problems and len(problems) == len(channels):
        raise InputError(problems[0])
    return Measurement(channels=channels, **vars(info))


def _unlike(samples: Floats) -> str | None:
    """Why a channel cannot be a vibration; None where it may be one."""
    part = samples[:MEASURED].astype(np.float64)
    if not np.isfinite(part).all() or len(part) < 16:  # reading will name such a file
        return UNMEASURED
    unlike = unlike_vibration(part)
    return UNLIKE[unlike] if unlike else None


def odd_recordings(measured: Sequence[tuple[RecordingInfo, SignalLimits]]) -> list[str]:
    """A sentence for each recording that is constant, clipped or of another rate than the others; some of a kind."""
    constant, clipped, sentences = list[str](), list[str](), list[str]()
    for info, limits in measured:
        if limits.low == limits.high:
            constant.append(f"{info.origin}: does not change ({limits.low:g} throughout); check its sensor")
        elif limits.clipped >= CLIPPED:
            share = f"{100 * limits.clipped:.1f} % of its samples stand at ±{max(limits.high, -limits.low):.4g}"
            clipped.append(f"{info.origin}: is clipped, {share}; record it again with a lower gain")
    for same_kind in (constant, clipped, list(odd_rates([info for info, _ in measured]))):
        sentences += same_kind[:LISTED]
        if len(same_kind) > LISTED:
            sentences[-1] += f" (and {len(same_kind) - LISTED} more such recordings)"
    return sentences


def odd_rates(recordings: Sequence[RecordingInfo]) -> Iterator[str]:
    """Recordings of a rate that nearly no other has."""
    if not recordings:
        return
    (usual, most), *others = Counter(recording.rate for recording in recordings).most_common()
    if usual is None or most < FEWEST - 1 or sum(count for _, count in others) > max(1, MOST_ODD * len(recordings)):
        return
    for recording in recordings:
        if recording.rate != usual:
            own = "does not say its rate" if recording.rate is None else f"is at {recording.rate:g} Hz"
            yield f"{recording.origin}: {own}, while {most} others are at {usual:g} Hz; check how it was recorded"
