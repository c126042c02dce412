"""What is wrong with a user's recordings: files that cannot be read, and recordings unlike the others.

`measure` reads a recording and says what is known of it before anything is chosen. `survey` is what `bearcat data
check` reports. `odd_recordings` compares rate, level and spectrum with the neighbours' (same domain and label).

>>> odd_recordings([portrait(recording, recording.signal) for recording in load(catalogue)])
['600rpm/inner/3.csv: its level is 41 dB below that of its 9 neighbours; check unit, gain and cable']
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.catalogue import Catalogue, Entry, Problem, grouped
from bearcat.data.clipping import SignalLimits
from bearcat.data.prepare import Preparation, different_rates
from bearcat.data.recording import (
    SEGMENT,
    Floats,
    RecordingInfo,
    cut,
    resample,
    spectral_shape,
    unlike_vibration,
)
from bearcat.data.specimens import Leakage, leakage
from bearcat.errors import InputError
from bearcat.sentences import UNLIKE

if TYPE_CHECKING:
    from bearcat.data.datasets.folder import FolderEntry
    from bearcat.data.signals import Signals

UNLABELLED = "(unlabelled)"

MEASURED = 1 << 17  # samples, from the beginning of a recording
UNMEASURED = "cannot be measured"
WINDOW = 1024  # samples, of those whose spectral shapes are averaged
FEWEST = 4  # recordings that can be neighbours
MOST_ODD = 0.2  # of the neighbours; more are another kind of recording, not a mistake
LEVEL = 30.0  # dB; a wrong unit or gain is 40 or 60, and a fault seldom 20
SHAPE = 1.5  # logarithm of energy shares, root mean square over bands: some 7 dB in every band
ALONE = 3.0  # how many times further than the next a spectrum must be
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
    leakage: Leakage | None = None  # with the specimens of each class; None: nothing was read


def survey(
    catalogue: Catalogue, preparation: Preparation, progress: Callable[[Iterable[Entry]], Iterable[Entry]] = tuple
) -> Survey:
    """Reads everything in the catalogue; a file that cannot be used becomes a problem and the others go on."""
    found: list[tuple[RecordingInfo, int, int]] = []
    problems, portraits = list(catalogue.problems), list[Portrait]()
    for entry in progress(catalogue.entries):
        try:
            recording = entry.read()
            portraits.append(portrait(recording, recording.signal))
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
    notes = (*catalogue.notes, *_class_notes(rows), *odd_recordings(portraits))
    return Survey(rows, tuple(problems), notes, leakage([], [info for info, *_ in found]) if found else None)


def _row(domain: str, label: str, found: Sequence[tuple[RecordingInfo, int, int]]) -> Row:
    recordings, _, windows = zip(*found, strict=True)
    rates = tuple(dict.fromkeys(recording.rate for recording in recordings))
    seconds = None if None in rates else sum(size / (recording.rate or 1) for recording, size, _ in found)
    speeds = tuple(sorted({recording.rpm for recording in recordings if recording.rpm}))
    bearings = tuple(dict.fromkeys(str(recording.bearing) for recording in recordings if recording.bearing))
    return Row(domain, label, len(found), seconds, rates, speeds, bearings, sum(windows))


def _class_notes(rows: Sequence[Row]) -> list[str]:
    """Notes on domains whose classes differ: as a target, a domain may have classes that a source cannot teach."""
    known = grouped((row for row in rows if row.label != UNLABELLED), lambda row: row.domain)
    labelled = {domain: {row.label for row in same} for domain, same in known.items()}
    notes = []
    for (domain, labels), (other, taught) in product(labelled.items(), repeat=2):
        if lacking := ", ".join(sorted(labels - taught)):
            notes.append(f"source '{other}' cannot teach these classes of target '{domain}': {lacking}")
    unlabelled = [row.domain for row in rows if row.label == UNLABELLED and row.domain not in labelled]
    notes += [f"domain '{domain}' has no labels: it can be a target, not a source" for domain in unlabelled]
    if any(None in row.rates for row in rows):
        notes.append("some files do not say their sampling rate; give it in a manifest, or with --rate")
    return notes


@dataclass(frozen=True, kw_only=True, eq=False)
class Portrait(RecordingInfo):
    """What a recording looks like beside others."""

    value: float | None  # of a constant signal
    level: float  # dB of the standard deviation
    shape: NDArray[Any] | None  # (band,) the mean spectral shape; None where the recording is too short
    clipped: float  # share of samples at the highest or lowest value, where that is more than chance
    peak: float


def portrait(info: RecordingInfo, samples: NDArray[Any], limits: SignalLimits | None = None) -> Portrait:
    """Of the first samples (time,) of a recording; `limits` are those of all of them, where they are known."""
    part = np.asarray(samples[:MEASURED])
    finite = np.isfinite(part)
    part = part if finite.all() else part[finite]
    if part.size == 0:
        raise InputError(f"{info.origin}: holds no finite samples; record it again")
    shape = None
    if limits is None:
        limits = SignalLimits()
        limits.add(part)
    constant = limits.low == limits.high
    if part.size >= WINDOW and not constant:
        windows = part[: part.size // WINDOW * WINDOW].astype(np.float32, copy=False).reshape(-1, 1, WINDOW)
        shape = spectral_shape(windows).mean(axis=0)
    centred = part.astype(np.float64)
    centred -= centred.mean()
    deviation = math.sqrt(np.square(centred, out=centred).mean())
    return Portrait(
        value=float(part[0]) if constant else None, level=20 * math.log10(max(deviation, 1e-300)),
        shape=shape, clipped=limits.clipped, peak=max(limits.high, -limits.low), **vars(info.info()),
    )  # fmt: skip


@dataclass(frozen=True)
class ChannelMeasurement:
    """What was measured of one channel of a recording."""

    samples: int
    impulsiveness: float  # kurtosis above an eighth of the rate, median over segments; noise has 3
    unlike: str | None = None  # why this is no vibration; None where it may be
    portrait: Portrait | None = None  # to compare it with other recordings
    problem: str | None = None  # why it cannot be read as a recording


@dataclass(frozen=True, kw_only=True)
class Measurement(RecordingInfo):
    """What is known about a recording before anything is chosen."""

    channels: Mapping[str, ChannelMeasurement]


def measure(entry: FolderEntry) -> Measurement:
    """Reads a recording and measures each of its channels; one of them at least can be used."""
    signals = entry.signals()
    info = entry.row.metadata(signals)
    channels = {}
    for name, samples in signals.channels.items():
        impulsiveness, unlike = _impulsiveness(samples)
        compared = None if unlike == UNMEASURED else portrait(info, samples)
        problem = _problem(entry, signals, name)
        channels[name] = ChannelMeasurement(len(samples), impulsiveness, unlike, compared, problem)
    problems = [channel.problem for channel in channels.values() if channel.problem is not None]
    if problems and len(problems) == len(channels):
        raise InputError(problems[0])
    return Measurement(channels=channels, **vars(info))


def _problem(entry: FolderEntry, signals: Signals, channel: str) -> str | None:
    """Why this channel of what was read cannot be a recording; None where it can."""
    try:
        entry.row.recording(signals, channel)
    except InputError as error:
        return str(error)
    return None


def _impulsiveness(samples: Floats) -> tuple[float, str | None]:
    """How impulsive a channel is, and why it cannot be a vibration."""
    part = samples[:MEASURED].astype(np.float64)
    length = min(SEGMENT, len(samples))
    segments = part[: len(part) // length * length].reshape(-1, length)
    if not np.isfinite(segments).all() or length < 16:  # reading will name such a file
        return 0.0, UNMEASURED
    if unlike := unlike_vibration(part):
        return 0.0, UNLIKE[unlike]
    lines = np.fft.rfft(segments - segments.mean(axis=1, keepdims=True), axis=1)
    lines[:, : length // 8] = 0
    ringing = np.fft.irfft(lines, n=length, axis=1)
    square = (ringing**2).mean(axis=1)
    kurtosis = np.divide((ringing**4).mean(axis=1), square**2, out=np.full(len(square), 3.0), where=square > 0)
    return float(np.median(kurtosis)), None


def odd_recordings(portraits: Sequence[Portrait]) -> list[str]:
    """A sentence for each recording that differs from its neighbours, at most some of a kind."""
    constant, clipped, sentences = list[str](), list[str](), list[str]()
    for recording in portraits:
        if recording.value is not None:
            constant.append(f"{recording.origin}: does not change ({recording.value:g} throughout); check its sensor")
        if recording.clipped >= CLIPPED:
            share = f"{100 * recording.clipped:.1f} % of its samples stand at ±{recording.peak:.4g}"
            clipped.append(f"{recording.origin}: is clipped, {share}; record it again with a lower gain")
    for kind in (constant, clipped, odd_rates(portraits), _odd_levels(portraits), _odd_shapes(portraits)):
        found = list(kind)
        more = f" (and {len(found) - LISTED} more such recordings)"
        sentences += found if len(found) <= LISTED else [*found[: LISTED - 1], found[LISTED - 1] + more]
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


def _odd_levels(portraits: Sequence[Portrait]) -> Iterator[str]:
    """Those far from the median of one domain and label, or of one domain where a label has few recordings."""
    sound, groups = [recording for recording in portraits if recording.value is None], list[list[Portrait]]()
    for domain in grouped(sound, lambda recording: recording.domain).values():
        labels = list(grouped(domain, lambda recording: recording.label).values())
        groups += [domain] if any(len(group) < FEWEST for group in labels) else labels
    for group in (group for group in groups if len(group) >= FEWEST):
        off = np.array([recording.level for recording in group])
        off -= np.median(off)
        if (np.abs(off) >= LEVEL).sum() > max(1, MOST_ODD * len(group)):
            continue
        for recording, decibel in zip(group, off, strict=True):
            if abs(decibel) >= LEVEL:
                mixed = ", some with other labels" if len({other.label for other in group}) > 1 else ""
                others = f"{'below' if decibel < 0 else 'above'} that of its {len(group) - 1} neighbours{mixed}"
                yield f"{recording.origin}: its level is {abs(decibel):.0f} dB {others}; check unit, gain and cable"


def _odd_shapes(portraits: Sequence[Portrait]) -> Iterator[str]:
    sound = [recording for recording in portraits if recording.shape is not None]
    for same in grouped(sound, lambda recording: (recording.domain, recording.label, recording.rate)).values():
        if len(same) < FEWEST:
            continue
        shapes = np.array([recording.shape for recording in same])
        far = np.sqrt(((shapes - np.median(shapes, axis=0)) ** 2).mean(axis=1))
        *_, second, first = np.argsort(far)
        if far[first] >= max(SHAPE, ALONE * far[second]):
            unlike = f"unlike that of its {len(same) - 1} neighbours (by {10 / np.log(10) * far[first]:.0f} dB)"
            yield f"{same[first].origin}: its spectrum is {unlike}; another sensor or machine, or a fault of its own"
