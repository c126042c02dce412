"""How to prepare one's own recordings: chosen from the recordings, with a sentence for every choice.

An engineer's folder seldom looks like the paper's data: rates differ, files hold several channels, recordings are short
or few. `choose` looks at all recordings of a task and settles channel, rate, window, stride, split, input and whether
to balance classes. What somebody asked for is not chosen; what cannot work is refused in one sentence. Of the target
nothing but its unlabelled samples is looked at. docs/add-your-data.md has the rules in words.

>>> folder = Folder(root=Path("my-recordings"))
>>> looks = [look(one) for one in folder.signals(folder.catalogue())]
>>> chosen = choose(looks, Task("600rpm", "1200rpm"), Asked(input="time"))
>>> [f"{one.setting}: {one.value}, because {one.reason}" for one in chosen.choices]
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from bearcat.data.datasets.folder import Held
from bearcat.data.prepare import Preparation
from bearcat.data.recording import Floats, count_windows
from bearcat.data.tasks import Split, Task, classes_of
from bearcat.errors import InputError

USUAL, SHORTEST, LONGEST = 1024, 256, 4096  # samples a window: the paper's; what spectra still tell apart; what costs
ENOUGH, ENOUGH_TARGET = 50, 200  # windows of the rarest source class, and of the target
FEWEST = 10  # windows of a class below which a test share of it says nothing
LOW_RATE = 8000.0  # Hz; impacts in rolling bearings ring at some kHz
UNEVEN = 3.0  # the largest class over the smallest, beyond which classes are balanced
STANDS_OUT = 1.1  # how much more impulsive than the next a channel must be to be taken for the right one
SEGMENT, LOOKED = 4096, 1 << 17  # samples; statistics are medians over segments of the first so many
SAME_SPEED = 0.05  # relative difference of shaft speeds that is none


@dataclass(frozen=True)
class Channel:
    """What was measured of one channel of a recording."""

    samples: int
    impulsiveness: float  # kurtosis above an eighth of the rate, median over segments; noise has 3
    unlike: str | None = None  # why this is no vibration; None where it may be


@dataclass(frozen=True)
class Look:
    """What is known of one recording before anything is chosen."""

    domain: str
    label: str | None
    origin: str
    rate: float | None
    rpm: float | None
    channels: Mapping[str, Channel]


@dataclass(frozen=True)
class Asked:
    """What somebody asked for; None is left to the recordings."""

    channel: str | None = None
    rate: float | None = None
    window: int | None = None
    stride: int | None = None
    split: str | None = None
    input: str | None = None
    balance: bool | None = None


@dataclass(frozen=True)
class Choice:
    """One setting that nobody asked for, and why it is what it is."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True)
class Chosen:
    """How a task's recordings are prepared, parted and weighed."""

    preparation: Preparation
    split: Split
    channel: str | None
    balance: bool
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()  # what may spoil the result


def as_asked(asked: Asked) -> Chosen:
    """The paper's settings where nobody asked for others: for the named datasets."""
    preparation = Preparation(asked.input or "time", asked.window or USUAL, asked.stride, asked.rate)
    return Chosen(preparation, Split(asked.split or "window"), asked.channel, asked.balance or False)


def look(held: Held) -> Look:
    """Measures every channel of a recording."""
    told = re.search(r"(\d+(?:\.\d+)?)\s*_?rpm", held.domain, re.IGNORECASE)
    rpm = held.rpm or (float(told[1]) if told else None)
    channels = {name: _measured(np.asarray(samples)) for name, samples in held.channels.items()}
    return Look(held.domain, held.label, held.origin, held.rate, rpm or None, channels)


def choose(looks: Sequence[Look], task: Task, asked: Asked) -> Chosen:
    """Settles everything that is not asked for; refuses what cannot be a task."""
    source = [one for one in looks if one.domain in task.sources]
    target = [one for one in looks if one.domain == task.target]
    for domain in (*task.sources, task.target):
        if not any(one.domain == domain for one in looks):
            raise InputError(f"the domain '{domain}' has no recordings; put some into <{domain}>/ or choose another")
    classes = classes_of((one.origin, one.label) for one in source)
    choices: list[Choice] = []
    warnings: list[str] = []
    channel = _channel([*source, *target], asked, choices)
    rate = _rate(source, target, asked, choices, warnings)
    samples = {one.origin: _samples(one, channel, rate) for one in looks}
    preparation = _window(source, target, samples, rate, asked, choices)
    counts = {origin: count_windows(size, preparation.length, preparation.stride) for origin, size in samples.items()}
    split = _split(source, target, counts, preparation, asked, choices, warnings)
    preparation = replace(preparation, input=_input(source, target, asked, choices))
    balance = _balance(source, counts, asked, choices)
    warnings += _single(source, classes) + _alien(target, classes)
    return Chosen(preparation, split, channel, balance, tuple(choices), tuple(warnings))


# --- channels ---------------------------------------------------------------------------------------------------------


def _measured(samples: Floats) -> Channel:
    """How impulsive a channel is, and whether it looks like a vibration at all."""
    size, part = len(samples), samples[:LOOKED].astype(np.float64)
    length = min(SEGMENT, size)
    segments = part[: len(part) // length * length].reshape(-1, length)
    if not np.isfinite(segments).all() or length < 16:  # the reader names such files; here they only must not disturb
        return Channel(size, 0.0, "cannot be measured")
    segments = segments - segments.mean(axis=1, keepdims=True)
    lines = np.fft.rfft(segments, axis=1)
    power = (np.abs(np.fft.rfft(segments * np.hanning(length), axis=1)) ** 2).sum(axis=0)  # a ramp leaks without
    low, high = np.percentile(part, [0.1, 99.9])
    if power.sum() == 0 or high == low:
        return Channel(size, 0.0, "does not change")
    if power[: max(1, length // 256) + 1].sum() > 0.999 * power.sum():
        return Channel(size, 0.0, "changes slowly, as temperature or load do")
    middle = (np.median(part) - low) / (high - low)
    if not 0.15 < middle < 0.85:
        return Channel(size, 0.0, "stands at one level with pulses to one side, as a tachometer does")
    lines[:, : length // 8] = 0
    ringing = np.fft.irfft(lines, n=length, axis=1)
    square = (ringing**2).mean(axis=1)
    kurtosis = np.divide((ringing**4).mean(axis=1), square**2, out=np.full(len(square), 3.0), where=square > 0)
    return Channel(size, float(np.median(kurtosis)))


def _channel(looks: Sequence[Look], asked: Asked, choices: list[Choice]) -> str | None:
    """The channel all files must be asked for; None where each has but one (or the manifest says which)."""
    if asked.channel is not None:
        return asked.channel
    if all(len(one.channels) == 1 for one in looks):
        choices.append(Choice("channel", "the only one", "each recording has one"))
        return None
    common = [name for name in looks[0].channels if all(name in one.channels for one in looks)]
    if not common:
        other = next(one for one in looks if not set(one.channels) & set(looks[0].channels) or one is looks[-1])
        raise InputError(
            f"no channel is in all recordings ({looks[0].origin}: {', '.join(looks[0].channels)}; {other.origin}:"
            f" {', '.join(other.channels)}); name them alike, or list the files in a manifest with a column 'channel'"
        )
    if len(common) == 1:
        choices.append(Choice("channel", common[0], "it is the only one that all recordings have"))
        return common[0]
    unlike = {name: next((one.channels[name].unlike for one in looks if one.channels[name].unlike), None)
              for name in common}  # fmt: skip
    left_out = "".join(f"; '{name}' {why}" for name, why in unlike.items() if why)
    # Many recordings may be of healthy bearings, so the upper quartile speaks and not the median.
    impulsive = {
        name: float(np.quantile([one.channels[name].impulsiveness for one in looks], 0.75))
        for name in common
        if unlike[name] is None
    }
    ranked = sorted(impulsive, key=impulsive.__getitem__, reverse=True)
    told = ", ".join(f"{name} {impulsive[name]:.1f}" for name in ranked)
    if len(ranked) == 1:
        choices.append(Choice("channel", ranked[0], f"it is the only one that looks like a vibration{left_out}"))
        return ranked[0]
    if not ranked or impulsive[ranked[0]] < STANDS_OUT * impulsive[ranked[1]]:
        raise InputError(
            f"the recordings have {len(common)} channels ({', '.join(common)}) and none stands out (kurtosis: "
            f"{told or 'none is a vibration'}{left_out}); say which one with --channel"
        )
    choices.append(
        Choice(
            "channel",
            ranked[0],
            f"it is the most impulsive, and bearing faults are trains of impacts (kurtosis above an eighth of the"
            f" rate: {told}){left_out}",
        )
    )
    return ranked[0]


# --- rate -------------------------------------------------------------------------------------------------------------


def _rate(
    source: Sequence[Look], target: Sequence[Look], asked: Asked, choices: list[Choice], warnings: list[str]
) -> float | None:
    """The rate of the windows; resampled down to the lowest where recordings differ, never up."""
    known = {one.rate for one in (*source, *target)}
    rates = sorted(rate for rate in known if rate is not None)
    if asked.rate is not None:
        if rates and asked.rate > rates[0]:
            warnings.append(
                f"recordings at {rates[0]:g} Hz are brought up to {asked.rate:g} Hz, which adds no content to them"
            )
        rate: float | None = asked.rate
    elif not rates:
        choices.append(
            Choice("rate", "as recorded", "no file says its rate; windows are counted in samples, and --rate tells it")
        )
        return None
    elif None in known:
        silent = next(one.origin for one in (*source, *target) if one.rate is None)
        told = ", ".join(f"{one:g} Hz" for one in rates)
        raise InputError(
            f"{silent}: does not say its sampling rate, while others do ({told}); give it in a manifest's column"
            f" 'rate', or take all such files to be at one rate with --rate {rates[0]:g}"
        )
    elif len(rates) == 1:
        rate = rates[0]
        choices.append(Choice("rate", f"as recorded, {rate:g} Hz", "all recordings have it"))
    else:
        rate = rates[0]
        where = [name for name, part in (("source", source), ("target", target)) if any(o.rate == rate for o in part)]
        choices.append(
            Choice(
                "rate",
                f"{rate:g} Hz",
                f"it is the lowest of {', '.join(f'{one:g}' for one in rates)} (in the {' and '.join(where)}), and"
                f" resampling up would invent; content above {rate / 2:g} Hz of the faster recordings is lost",
            )
        )
    if rate is not None and rate < LOW_RATE:
        warnings.append(
            f"at {rate:g} Hz nothing above {rate / 2:g} Hz is seen, and the resonances that bearing faults ring lie"
            " mostly above 2 kHz; expect early faults to be missed"
        )
    return rate


def _samples(one: Look, channel: str | None, rate: float | None) -> int:
    """How many samples a recording has at the chosen rate."""
    chosen = one.channels.get(channel or "") or next(iter(one.channels.values()))
    if rate is None or one.rate in (None, rate):
        return chosen.samples
    return math.ceil(chosen.samples * Fraction(rate / (one.rate or rate)).limit_denominator(1000))


# --- windows ----------------------------------------------------------------------------------------------------------


def _window(
    source: Sequence[Look], target: Sequence[Look], samples: Mapping[str, int], rate: float | None, asked: Asked,
    choices: list[Choice],
) -> Preparation:  # fmt: skip
    """The longest sensible window, and as little overlap as gives enough windows."""
    slowest = min((one.rpm for one in (*source, *target) if one.rpm), default=None)
    wanted, why = USUAL, "the paper's; shaft speeds, which might ask for more, are not known"
    if slowest is not None and rate is not None:
        turn = rate * 60 / slowest
        wanted = min(LONGEST, max(USUAL, 1 << round(math.log2(turn))))
        why = f"at {slowest:g} rpm a turn of the shaft takes {turn:.0f} samples, and this is {wanted / turn:.1f} of one"
    lengths = [asked.window] if asked.window else [wanted >> n for n in range(5) if wanted >> n >= SHORTEST]
    resampled = None if asked.rate is None and len({one.rate for one in (*source, *target)}) == 1 else rate
    found: list[tuple[int, int]] = []
    for length in lengths:
        for stride in [asked.stride] if asked.stride else [length, length // 2, length // 4]:
            counts = {origin: count_windows(size, length, stride) for origin, size in samples.items()}
            if min(counts.values()) < 1:
                continue
            rarest = min(_per_class(source, counts).values())
            here = sum(counts[one.origin] for one in target)
            found.append((length, stride))
            if rarest >= ENOUGH and here >= ENOUGH_TARGET:
                break
        else:
            continue
        break
    if not found:
        shortest = min(samples, key=samples.__getitem__)
        raise InputError(
            f"{shortest}: {samples[shortest]} samples are fewer than one window of {lengths[-1]};"
            " use a shorter window or leave the recording out"
        )
    length, stride = found[-1]  # the first that gives enough, or else the one that gives most
    counts = {origin: count_windows(size, length, stride) for origin, size in samples.items()}
    _enough(source, counts, length, stride)
    if not asked.window:
        if length < wanted:
            shortest = min(samples, key=samples.__getitem__)
            why = (
                f"recordings are short (the shortest, {shortest}, has {samples[shortest]} samples) and longer windows"
                " would be too few"
            )
        choices.append(Choice("window", f"{length} samples", why))
    if not asked.stride:
        rare, few = _rarest(source, counts)
        here = sum(counts[one.origin] for one in target)
        overlap = f"{stride} samples, {100 * (length - stride) // length} % overlap"
        told = f"{few} windows of the rarest class '{rare}' and {here} of the target"
        value, reason = (
            ("no overlap", f"there are enough: {told}") if stride == length else (overlap, f"it gives {told}")
        )
        choices.append(Choice("stride", value, reason))
    return Preparation(length=length, stride=None if stride == length else stride, rate=resampled)


def _per_class(source: Sequence[Look], counts: Mapping[str, int]) -> Counter[str]:
    """Windows of each class of the source."""
    found: Counter[str] = Counter()
    for one in source:
        found[str(one.label)] += counts[one.origin]
    return found


def _rarest(source: Sequence[Look], counts: Mapping[str, int]) -> tuple[str, int]:
    return min(_per_class(source, counts).items(), key=lambda pair: pair[1])


def _enough(source: Sequence[Look], counts: Mapping[str, int], length: int, stride: int) -> None:
    rare, few = _rarest(source, counts)
    if few < FEWEST:
        raise InputError(
            f"class '{rare}' of the source has {few} windows ({length} samples every {stride}), too few to learn and to"
            f" test; record more of it, at least {(FEWEST - 1) * stride + length} samples, or leave the class out"
        )


def _split(
    source: Sequence[Look], target: Sequence[Look], counts: Mapping[str, int], preparation: Preparation, asked: Asked,
    choices: list[Choice], warnings: list[str],
) -> Split:  # fmt: skip
    """Stretches of time where recordings are long enough, whole recordings where there are many short ones."""
    overlapping = preparation.step < preparation.length
    if asked.split is None:
        split = Split("block")
        gap = split.gap + math.ceil(preparation.length / preparation.step) - 1
        blocks = all(many >= max(1, round(split.test * many)) + 2 * gap + 1 for many in counts.values())
        recordings = Counter(str(one.label) for one in source)
        if blocks and np.median(list(counts.values())) >= 10 * gap:
            reason = (
                "a stretch of every recording is kept for testing, so that no window is tested beside its neighbours"
            )
        elif min(recordings.values()) >= 5 and len(target) >= 10:
            split, reason = Split("recording"), "recordings are short and many, so some are kept whole for testing"
        elif blocks:
            reason = "a stretch of every recording is kept for testing; recordings are short, so gaps cost many windows"
        else:
            split, reason = Split("window"), "recordings are too short to keep a stretch of each apart"
        choices.append(Choice("split", split.scheme, reason))
    else:
        split = Split(asked.split)
    if split.scheme == "window" and overlapping:
        warnings.append(
            "windows overlap and are split at random, so test windows share samples with training windows: accuracy and"
            " confidence on the source are flattered"
        )
    return split


# --- input and classes ------------------------------------------------------------------------------------------------


def _input(source: Sequence[Look], target: Sequence[Look], asked: Asked, choices: list[Choice]) -> str:
    if asked.input is not None:
        return asked.input
    speeds = [{one.rpm for one in part} for part in (source, target)]
    known = None not in speeds[0] | speeds[1]
    between = {rpm for rpm in speeds[0] | speeds[1] if rpm}
    if known and max(between) > (1 + SAME_SPEED) * min(between):
        reason = (
            f"speeds differ ({', '.join(f'{rpm:g}' for rpm in sorted(between))} rpm), and lines of a spectrum move with"
            " them; on HIT-SM, between speeds, time input was far better (docs/results.md)"
        )
    else:
        reason = "it was the better one where both were measured (docs/add-your-data.md)"
    choices.append(Choice("input", "time", reason))
    return "time"


def _balance(source: Sequence[Look], counts: Mapping[str, int], asked: Asked, choices: list[Choice]) -> bool:
    if asked.balance is not None:
        return asked.balance
    windows = _per_class(source, counts)
    most, least = windows.most_common()[0], windows.most_common()[-1]
    ratio = most[1] / least[1]
    if ratio <= UNEVEN:
        reason = f"the largest class, '{most[0]}', has {ratio:.1f} times the windows of the smallest, '{least[0]}'"
        choices.append(Choice("balance", "off", reason))
        return False
    reason = (
        f"class '{most[0]}' has {ratio:.1f} times the windows of '{least[0]}'; each class is drawn equally often, and"
        " counts equally in calibration"
    )
    choices.append(Choice("balance", "on", reason))
    return True


def _single(source: Sequence[Look], classes: Sequence[str]) -> list[str]:
    """Classes known from one recording: what is learnt of them may be the day they were recorded."""
    recordings = Counter(str(one.label) for one in source)
    lonely = [name for name in classes if recordings[name] == 1]
    if not lonely:
        return []
    return [f"known from a single recording each: {', '.join(lonely)}; other recordings of them may look different"]


def _alien(target: Sequence[Look], classes: Sequence[str]) -> list[str]:
    alien = sorted({one.label for one in target if one.label is not None} - set(classes))
    if not alien:
        return []
    return [
        f"the source does not teach these classes of the target: {', '.join(alien)}; their windows count in no score,"
        " and each will be given the name of a class that the source has"
    ]
