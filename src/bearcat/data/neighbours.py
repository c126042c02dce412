"""Recordings that do not belong with the others: another rate, level or spectrum, a constant or a clipped signal.

One file with a wrong gain or a loose cable spoils a training set silently. It is named here, so that a person can look
at it; nothing is left out. Levels and spectra are compared with the median of a recording's neighbours: those of the
same domain and label, or, for the level, those of the same domain.

>>> odd_recordings([portrait(recording, recording.signal) for recording in load(catalogue)])
['600rpm/inner/3.csv: its level is 41 dB below that of its 9 neighbours; check unit, gain and cable']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.files import grouped
from bearcat.data.recording import RecordingInfo, cut_samples, spectral_shape
from bearcat.errors import InputError

MEASURED = 1 << 17  # samples, from the beginning of a recording
WINDOW = 1024  # samples, of those whose spectral shapes are averaged
FEWEST = 4  # recordings that can be neighbours
MOST_ODD = 0.2  # of the neighbours; more are another kind of recording, not a mistake
LEVEL = 30.0  # dB; a wrong unit or gain is 40 or 60, and a fault seldom 20
SHAPE = 1.5  # logarithm of energy shares, root mean square over bands: some 7 dB in every band
ALONE = 3.0  # how many times further than the next a spectrum must be
CLIPPED = 0.002  # of the samples, at the highest or lowest value
LISTED = 5  # sentences of one kind


@dataclass(frozen=True, kw_only=True, eq=False)
class Portrait(RecordingInfo):
    """What a recording looks like beside others."""

    value: float | None  # of a constant signal
    level: float  # dB of the standard deviation
    shape: NDArray[Any] | None  # (band,) the mean spectral shape; None where the recording is too short
    clipped: float  # share of samples at the highest or lowest value, where that is more than chance
    peak: float


def portrait(info: RecordingInfo, samples: NDArray[Any]) -> Portrait:
    """Of the first samples (time,) of a recording."""
    part = np.asarray(samples[:MEASURED], dtype=np.float64)
    part = part[np.isfinite(part)]
    if part.size == 0:
        raise InputError(f"{info.origin}: holds no finite samples; record it again")
    shape, constant = None, bool(np.ptp(part) == 0)
    if part.size >= WINDOW and not constant:
        shape = spectral_shape(cut_samples(part.astype(np.float32), WINDOW, WINDOW)[:, None]).mean(axis=0)
    return Portrait(
        value=float(part[0]) if constant else None, level=20 * float(np.log10(max(float(part.std()), 1e-300))),
        shape=shape, clipped=0.0 if constant else _clipped(part), peak=float(np.abs(part).max()), **vars(info.info()),
    )  # fmt: skip


def _clipped(samples: NDArray[Any]) -> float:
    """The share of samples at the highest and the lowest value, where far more stand there than just short of it."""
    found, near = 0, 0.01 * float(np.ptp(samples))
    for sign in (1, -1):
        below = (sign * samples).max() - sign * samples
        at, close = int((below == 0).sum()), int(((below > 0) & (below < near)).sum())
        found += at if at > 3 * close else 0
    coarse = np.unique(samples[:4096]).size <= 16  # such a converter repeats its values without being clipped
    return 0.0 if coarse else found / samples.size


def odd_recordings(portraits: Sequence[Portrait]) -> list[str]:
    """A sentence for each recording that differs from its neighbours, at most some of a kind."""
    sentences = []
    for kind in (_constant, _clipped_ones, odd_rates, _odd_levels, _odd_shapes):
        found = list(kind(portraits))
        more = f" (and {len(found) - LISTED} more such recordings)"
        sentences += found if len(found) <= LISTED else [*found[: LISTED - 1], found[LISTED - 1] + more]
    return sentences


def _constant(portraits: Sequence[Portrait]) -> Iterator[str]:
    for recording in portraits:
        if recording.value is not None:
            value = f"{recording.value:g} throughout"
            yield f"{recording.origin}: does not change ({value}), as where no sensor is connected; leave it out"


def _clipped_ones(portraits: Sequence[Portrait]) -> Iterator[str]:
    for recording in portraits:
        if recording.clipped >= CLIPPED:
            share = f"{100 * recording.clipped:.1f} % of its samples stand at ±{recording.peak:.4g}"
            yield f"{recording.origin}: is clipped, {share}; record it again with a lower gain"


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
    sound = [recording for recording in portraits if recording.value is None]
    for group in _groups(sound, mixed=True):
        off = np.array([recording.level for recording in group])
        off -= np.median(off)
        if (np.abs(off) >= LEVEL).sum() > max(1, MOST_ODD * len(group)):
            continue
        for recording, decibel in zip(group, off, strict=True):
            if abs(decibel) >= LEVEL:
                where = "below" if decibel < 0 else "above"
                mixed = ", some with other labels" if len({other.label for other in group}) > 1 else ""
                others = f"{where} that of its {len(group) - 1} neighbours{mixed}; check unit, gain and cable"
                yield f"{recording.origin}: its level is {abs(decibel):.0f} dB {others}"


def _odd_shapes(portraits: Sequence[Portrait]) -> Iterator[str]:
    sound = [recording for recording in portraits if recording.shape is not None]
    for group in _groups(sound, mixed=False):
        for same in grouped(group, lambda recording: recording.rate).values():
            if len(same) < FEWEST:
                continue
            shapes = np.array([recording.shape for recording in same])
            far = np.sqrt(((shapes - np.median(shapes, axis=0)) ** 2).mean(axis=1))
            *_, second, first = np.argsort(far)
            if far[first] >= max(SHAPE, ALONE * far[second]):
                decibel = 10 / np.log(10) * far[first]
                sentence = f"its spectrum is unlike that of its {len(same) - 1} neighbours (by {decibel:.0f} dB)"
                yield f"{same[first].origin}: {sentence}; it may be another sensor or machine, or a fault of its own"


def _groups(portraits: Sequence[Portrait], mixed: bool) -> Iterator[list[Portrait]]:
    """Recordings of one domain and label; `mixed`: those of one domain where a label has few."""
    for domain in grouped(portraits, lambda recording: recording.domain).values():
        labels = list(grouped(domain, lambda recording: recording.label).values())
        if mixed and any(len(group) < FEWEST for group in labels):
            labels = [domain]
        yield from (group for group in labels if len(group) >= FEWEST)
