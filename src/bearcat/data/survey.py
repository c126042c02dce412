"""What is known of recordings before anything is chosen, and what is wrong with them.

`measure` reads a recording once. `survey` is what `bearcat data check` reports; of a user's own folder it reads the
channel and the rate that `adapt` would choose (data/choose.py).

>>> survey(Folder(Path("my-recordings")).catalogue(), Preparation()).notes
("600rpm/inner/3.csv: is at 4000 Hz, while 9 others are at 8000 Hz; check how it was recorded",)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from bearcat.data.catalogue import Catalogue, Entry, Problem, grouped
from bearcat.data.channels import vibrations
from bearcat.data.folder import FolderEntry
from bearcat.data.inputs import Preparation
from bearcat.data.recording import Floats, RecordingInfo, check_length, rate_ratio
from bearcat.data.signals import MEASURED, SignalLimits, chosen_channel
from bearcat.data.splits import specimen_counts
from bearcat.data.windows import different_rates
from bearcat.errors import InputError

Progress = Callable[[Iterable[Entry]], Iterable[Entry]]
UNLABELLED = "(unlabelled)"
FEWEST = 4  # recordings of which one can be odd
MOST_ODD = 0.2  # of the recordings; more are another kind of recording, not a mistake
CLIPPED = 0.002  # of the samples, at the highest or lowest value
LISTED = 5  # sentences about odd recordings


@dataclass(frozen=True)
class ChannelMeasurement:
    """What was measured of one channel of a recording."""

    samples: int
    oddity: str | None = None  # what a person should look at: it is constant, or clipped
    problem: str | None = None  # why it cannot be read as a recording


@dataclass(frozen=True, kw_only=True)
class Measurement(RecordingInfo):
    """What is known about a recording before anything is chosen."""

    channels: Mapping[str, ChannelMeasurement]

    def of(self, channel: str | None) -> ChannelMeasurement:
        """What was measured of this channel; of the first without a name, or where a manifest has chosen it."""
        if channel is None or self.channel is not None:
            return next(iter(self.channels.values()))
        return self.channels[chosen_channel(self.origin, self.channels, channel)]

    def samples(self, channel: str | None, rate: float | None) -> int:
        """How many samples this channel has at a rate; InputError where it cannot be read."""
        measured = self.of(channel)
        if measured.problem is not None:
            raise InputError(measured.problem)
        ratio = rate_ratio(self.origin, self.rate, rate) if rate and self.rate else 1
        return math.ceil(measured.samples * ratio)


Measurements = Sequence[Measurement]


def measure(entry: Entry) -> Measurement:
    """Reads a recording and measures each channel that may still be chosen; one of them at least can be used."""
    if not isinstance(entry, FolderEntry):
        recording = entry.read()
        channel = ChannelMeasurement(recording.signal.size, _oddity(recording.signal))
        return Measurement(channels={"": channel}, **vars(recording.info()))
    signals = entry.signals()
    info = entry.row.metadata(signals)
    channels, problems = dict[str, ChannelMeasurement](), list[str]()
    for name, samples in signals.channels.items():
        problem = oddity = None
        try:
            oddity = _oddity(entry.row.recording(signals, name).signal)
        except InputError as error:
            problem = str(error)
            problems.append(problem)
        channels[name] = ChannelMeasurement(len(samples), oddity, problem)
    if problems and len(problems) == len(channels):
        raise InputError(problems[0])
    return Measurement(channels=channels, **vars(info))


def _oddity(samples: Floats) -> str | None:
    """What is odd about the beginning of a recording (time,)."""
    limits = SignalLimits()
    limits.add(samples[:MEASURED])
    if limits.low == limits.high:
        return f"does not change ({limits.low:g} throughout); check its sensor"
    if limits.clipped >= CLIPPED:
        share = f"{100 * limits.clipped:.1f} % of its samples stand at ±{max(limits.high, -limits.low):.4g}"
        return f"is clipped, {share}; record it again with a lower gain"
    return None


def measured_of(catalogue: Catalogue, progress: Progress) -> tuple[list[Measurement], list[Problem]]:
    """The recordings that can be read, and a problem for each of the others."""
    measured, problems = list[Measurement](), list[Problem]()
    for entry in progress(catalogue.entries):
        try:
            measured.append(measure(entry))
        except InputError as error:
            problems.append(Problem(entry.origin, str(error), entry.domain, entry.label))
    return measured, problems


def usable(
    recordings: Measurements, check: Callable[[Measurement], object], problems: list[Problem]
) -> list[Measurement]:
    """The recordings that a check passes; the others become problems. InputError where it passes none."""
    passed, refused, field = list[Measurement](), list[Problem](), None
    for recording in recordings:
        try:
            check(recording)
            passed.append(recording)
        except InputError as error:
            sentence, field = f"{recording.origin}: {error.beside(recording.origin)}", error.field
            refused.append(Problem(recording.origin, sentence, recording.domain, recording.label))
    if refused and not passed:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise InputError(refused[0].sentence + more, field)
    problems += refused
    return passed


def usual_channel(recordings: Measurements, requested: str | None) -> str | None:
    """The channel to read of all files: the vibration that most of them have; None where each has but one channel."""
    if requested is not None or all(len(recording.channels) == 1 for recording in recordings):
        return requested
    names = Counter(name for recording in recordings for name in recording.channels)
    left = vibrations([name for name, count in names.items() if count == max(names.values())])
    if len(left) != 1:
        which = f"several channels may be the vibration: {', '.join(left)}"
        raise InputError(f"{which}; say which with --channel, or list all in a manifest")
    return left[0]


def usual_rate(recordings: Measurements, requested: float | None) -> float | None:
    """The rate of the windows: the lowest where recordings differ, for resampling up adds nothing."""
    rates = sorted({recording.rate for recording in recordings if recording.rate is not None})
    if requested is not None or not rates:
        return requested
    usual = Counter(recording.rate for recording in recordings).most_common(1)[0][0]
    return usual if any(odd_rates(recordings)) and usual is not None else rates[0]  # an odd one decides for none


def read_alike(
    recordings: Measurements, channel: str | None, rate: float | None, problems: list[Problem]
) -> tuple[str | None, float | None, dict[str, int]]:
    """The channel and rate, requested or usual, and by origin the samples of each recording that can be read so."""
    channel, requested, samples = usual_channel(recordings, channel), rate, dict[str, int]()
    rate = usual_rate(recordings, requested)

    def count(recording: Measurement) -> None:
        if requested is None and rate is not None and recording.rate is None:
            advice = f"give it in a manifest's column 'rate', or for all such files with --rate {rate:g}"
            raise InputError(f"does not say its sampling rate, as others do; {advice}")
        samples[recording.origin] = recording.samples(channel, rate)

    usable(recordings, count, problems)
    return channel, rate, samples


# What `data check` reports.


@dataclass(frozen=True)
class Survey:
    """What is there of each class (or UNLABELLED) in each domain: recordings with their numbers of samples."""

    classes: Mapping[tuple[str, str], list[tuple[RecordingInfo, int]]]
    problems: tuple[Problem, ...]  # what stops the benchmark, or is left out
    notes: tuple[str, ...]  # what is good to know
    specimens: Mapping[str, int | None]  # of each class; None: not known


def survey(
    catalogue: Catalogue, preparation: Preparation, channel: str | None = None, progress: Progress = tuple
) -> Survey:
    """Reads everything in the catalogue; a file that cannot be used becomes a problem and the others go on.

    Of a user's own folder, the channel and the rate are those that `adapt` would choose.
    """
    recordings, problems = measured_of(catalogue, progress)
    rate, samples = preparation.rate, dict[str, int]()
    try:
        if any(isinstance(entry, FolderEntry) for entry in catalogue.entries):
            channel, rate, samples = read_alike(recordings, channel, rate, problems)
        else:
            samples = {recording.origin: recording.samples(channel, rate) for recording in recordings}
        readable, length = [recording for recording in recordings if recording.origin in samples], preparation.length
        good = usable(readable, lambda item: check_length(item.origin, samples[item.origin], length), problems)
    except InputError as error:
        problems.append(Problem(error.field or "channel", str(error)))
        good = []
    read = [(replace(recording.info(), rate=rate or recording.rate), samples[recording.origin]) for recording in good]
    groups = grouped(read, lambda item: (item[0].domain, item[0].label or UNLABELLED))
    order = product(catalogue.domains, [*catalogue.classes, UNLABELLED])
    classes = {group: groups[group] for group in order if group in groups}
    infos = [info for group in classes.values() for info, _ in group]
    if sentence := different_rates({info.rate: info.domain for info in reversed(infos)}):
        problems.append(Problem("rate", sentence))
    labelled = {info.domain for info in infos if info.label is not None}
    unlabelled = dict.fromkeys(info.domain for info in infos if info.domain not in labelled)
    notes = [f"domain '{domain}' has no labels: it can be a target, not a source" for domain in unlabelled]
    if any(info.rate is None for info in infos):
        notes.append("some files do not say their sampling rate; give it in a manifest, or with --rate")
    notes = [*catalogue.notes, *notes, *odd_recordings(recordings, channel)]
    return Survey(classes, (*catalogue.problems, *problems), tuple(notes), specimen_counts(infos))


def odd_recordings(recordings: Measurements, channel: str | None) -> list[str]:
    """A sentence for each recording that is constant, clipped or of another rate than the others; the first of many."""
    oddities = dict[str, str | None]()
    for recording in recordings:
        with suppress(InputError):
            oddities[recording.origin] = recording.of(channel).oddity
    sentences = [f"{origin}: {oddity}" for origin, oddity in oddities.items() if oddity]
    sentences += odd_rates(recordings)
    if len(sentences) > LISTED:
        sentences = [*sentences[: LISTED - 1], f"{sentences[LISTED - 1]} (and {len(sentences) - LISTED} more odd ones)"]
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
            rate = "does not say its rate" if recording.rate is None else f"is at {recording.rate:g} Hz"
            yield f"{recording.origin}: {rate}, while {most} others are at {usual:g} Hz; check how it was recorded"
