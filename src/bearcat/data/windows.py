"""Recordings → the windows a network is given; and how windows are split into parts.

>>> windows = prepare(load(catalogue, ["load0"]), Preparation(input="frequency"))
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bearcat.data.datasets import Catalogue, content_digest, grouped
from bearcat.data.inputs import Preparation, find_input
from bearcat.data.recording import (
    Floats,
    Integers,
    Recording,
    RecordingInfo,
    Windows,
    cut,
    of_recordings,
    parts_of,
    resample,
    spectral_shape,
)
from bearcat.data.signals import reading
from bearcat.errors import InputError
from bearcat.storage import digest_json, source_hash

# Windows worked on at once: about a recording of the paper; smaller chunks make the threads wait for each other. And
# samples, which bound the memory where windows are long.
CHUNK, CHUNK_SAMPLES = 256, 1 << 20
SCHEMES = ("window", "block", "recording", "specimen")  # the first is the paper's (docs/protocol.md)
TEST_SHARE = 0.2  # of windows, recordings or names: held out for testing
GAP = 1  # windows left out on each side of a test block, beyond those that share its samples
Recordings = Sequence[RecordingInfo]


def prepare(recordings: Sequence[Recording], preparation: Preparation) -> Windows:
    """Cut, transform and standardise all windows of these recordings, in order, into one float32 array.

    >>> recordings = load(Simulated(seconds=1.0, faults=("outer",)).catalogue(), ["0"])
    >>> prepare(recordings, Preparation(length=1000)).values.shape
    (64, 1, 1000)
    """
    if preparation.cut is not None:
        recordings = [part for recording in recordings for part in parts_of(recording, preparation.cut)]
    if preparation.rate is not None:
        recordings = [resample(recording, preparation.rate) for recording in recordings]
    check_one_rate(recordings)
    kind, length = find_input(preparation.input).suited(recordings), preparation.length
    for recording in recordings:
        try:
            kind.check(length, recording.rate, recording.rpm, recording.bearing)
        except InputError as error:
            raise InputError(f"{recording.origin}: {error}", error.field) from error
    parts = [cut(recording, length, preparation.step) for recording in recordings]
    counts, size = [len(part) for part in parts], max(1, min(CHUNK, CHUNK_SAMPLES // length))

    def transformed(recording: Recording, part: Floats) -> list[tuple[Floats, Floats]]:
        chunks = (part[start : start + size] for start in range(0, len(part), size))
        metadata = recording.rate, recording.rpm, recording.bearing
        return [(kind.transform(chunk, *metadata), spectral_shape(chunk)) for chunk in chunks]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # numpy lets go of the interpreter, so threads help
        chunks = [chunk for chunks in pool.map(transformed, recordings, parts) for chunk in chunks]
    values, shapes = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    number = np.repeat(np.arange(len(counts)), counts)
    start = np.concatenate([np.arange(count) * preparation.step for count in counts])
    return Windows(values, number, start, length, tuple(recording.info() for recording in recordings), shapes)


def check_one_rate(recordings: Recordings) -> None:
    """Refuses recordings of several rates, each with an example of who has it."""
    rates = {info.rate: info.origin for info in reversed(recordings)}
    if len(rates) > 1:
        listed = ", ".join(f"{who}: {'unknown' if rate is None else f'{rate:g} Hz'}" for rate, who in rates.items())
        advice = f"bring them to one with --rate {min(filter(None, rates)):g}"
        raise InputError(f"the recordings have different sampling rates ({listed}); {advice}")


def fingerprint(catalogue: Catalogue) -> str:
    """SHA-256 of everything that determines the recordings: labels, readers, files' content, and what is missing."""
    content: dict[Path | None, str] = {}
    entries = []
    for entry in catalogue.entries:
        if entry.file is not None and entry.file not in content:
            with reading(entry.origin, "a file"):
                content[entry.file] = content_digest(entry.file)
        code = filter(None, [source_hash(entry.read)])  # of a user's own reader
        entries.append([entry.domain, entry.label, entry.origin, entry.identity, content.get(entry.file), *code])
    missing = (*catalogue.problems, *catalogue.left_out)
    return digest_json([entries, sorted(problem.origin for problem in missing)])


# Splits. A model may recognise a specimen, one physical bearing, in the place of its fault (docs/protocol.md).


def choose_scheme(source: Recordings, target: Recordings, counts: Sequence[int], covered: int) -> str:
    """One of SCHEMES for recordings of so many windows; `covered`: windows begun within one of them."""
    gap = GAP + covered - 1
    blocks = all(count >= max(1, round(TEST_SHARE * count)) + 2 * gap + 1 for count in counts)
    classes = list(grouped(source, lambda info: info.label).values())
    names = [{info.specimen for info in infos} for infos in (*classes, target)]
    complete, several = None not in set.union(*names), all(len(infos) > 1 for infos in names[:-1])
    many = min(map(len, classes)) >= 5 and len(target) >= 10
    if blocks and complete and several and set.union(*names[:-1]).isdisjoint(names[-1]):
        return "specimen"
    if many and not (blocks and np.median(counts) >= 10 * gap):
        return "recording"
    return "block" if blocks else "window"


def parts_by_scheme(
    windows: Windows, codes: Integers | None, scheme: str, random: np.random.Generator
) -> tuple[Integers, Integers]:
    """Indices of the windows to train on and to test on, in random order; codes None: classes are not used."""
    if scheme == "block":
        train, test = _blocks(windows, random)
    else:
        by_window = windows.recording if codes is None else codes
        test = _stratified(by_window, random) if scheme == "window" else _whole_recordings(windows, codes, random)
        train = ~test
    return random.permutation(np.flatnonzero(train)), random.permutation(np.flatnonzero(test))


def parts_by_specimen(source: Windows, random: np.random.Generator) -> tuple[Integers, Integers]:
    """Indices as of `parts_by_scheme`, with no specimen on both sides. Of a class with fewer than three none can be
    spared from learning: it is divided by recordings, or by a block of its only recording.
    """
    infos = source.recordings
    names = [str(info.specimen) for info in infos]
    classes = grouped(range(len(infos)), lambda number: str(infos[number].label))
    of_class = {label: {names[number] for number in members} for label, members in classes.items()}
    tested = names_to_test(of_class, TEST_SHARE, random, keep=2)
    test = np.array([name in tested for name in names])
    divided = [members for members in classes.values() if not test[members].any()]
    for members in divided:
        test[random.permutation(members)[: min(max(1, round(TEST_SHARE * len(members))), len(members) - 1)]] = True
    in_test = test[source.recording]
    in_train = ~in_test
    if alone := [number for members in divided for number in members if len(members) == 1]:
        single = np.isin(np.arange(len(infos)), alone)
        in_single = single[source.recording]
        in_train[in_single], in_test[in_single] = _blocks(of_recordings(source, single.tolist()), random)
    return random.permutation(np.flatnonzero(in_train)), random.permutation(np.flatnonzero(in_test))


def keep_apart(
    source: Recordings, target: Recordings, random: np.random.Generator
) -> tuple[list[bool], list[bool], list[str]]:
    """Which recordings of source and target are used, so that none of their specimens is on both sides.

    Of those on both sides half, drawn at random in each class, are held out for the target. Where a class has one
    specimen in the source, its recordings are divided in their order, and the class is in the third answer. A file that
    is listed twice is used once. Labels of the target are not used.
    """
    if silent := [info.origin for info in (*source, *target) if not info.specimen]:
        needs = "does not say its specimen, which the split 'specimen' needs"
        raise InputError(f"{silent[0]}: {needs}; give it in a manifest's column 'specimen'")
    in_target = {info.specimen for info in target}
    for_target, for_source = set[str](), set[str]()  # specimens, and origins
    divided = list[str]()  # classes
    for label, infos in grouped(source, lambda info: info.label).items():
        names = list(dict.fromkeys(str(info.specimen) for info in infos))
        both = [name for name in names if name in in_target]
        if both and len(names) > 1:
            for_target |= set(random.permutation(both)[: max(1, len(both) // 2)].tolist())
        elif both:  # of the files that both sides list, the first half is for the source
            origins_there = {info.origin for info in target if info.specimen == both[0]}
            files = list(dict.fromkeys(info.origin for info in infos))
            shared = [origin for origin in files if origin in origins_there]
            for_source |= set(shared[: (len(shared) + (len(files) == len(shared))) // 2])
            divided.append(str(label))
    single = {str(info.specimen) for info in source if info.label in divided}
    listed = {info.origin for info in target}
    use_source, origins = list[bool](), set[str]()
    for info in source:
        given_away = info.specimen in single and info.origin in listed and info.origin not in for_source
        use_source.append(info.specimen not in for_target and not given_away and info.origin not in origins)
        origins.add(info.origin)
    taken = {info.specimen for info in source} - for_target - single
    use_target = [info.specimen not in taken and info.origin not in for_source for info in target]
    if not any(use_target):
        raise InputError("the split 'specimen' leaves no recording in the target; choose another", "split")
    return use_source, use_target, divided


def _stratified(strata: Integers, random: np.random.Generator) -> NDArray[np.bool_]:
    """A random share of every stratum, exact in total by largest remainders, with one or more on either side."""
    _, members = np.unique(strata, return_inverse=True)
    sizes = np.bincount(members)
    ideal = sizes * TEST_SHARE
    take = np.floor(ideal).astype(np.int64)
    rest = round(ideal.sum()) - take.sum()
    order = np.lexsort((random.permutation(len(sizes)), -(ideal - take)))
    take[order[:rest]] += 1
    take = np.clip(take, np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    in_share = np.zeros(len(strata), dtype=bool)
    for stratum, count in enumerate(take):
        in_share[random.permutation(np.flatnonzero(members == stratum))[:count]] = True
    return in_share


def _blocks(windows: Windows, random: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """In every recording one stretch of time, placed at random, is the test; the windows next to it are left out."""
    train, test = np.zeros((2, len(windows)), dtype=bool)
    placed: dict[tuple[int, int], int] = {}  # by measurement and number of windows: channels recorded at once are alike
    measurements = _measurements(windows.recordings)
    for number, recording in enumerate(windows.recordings):
        members = np.flatnonzero(windows.recording == number)
        members = members[np.argsort(windows.start[members])]
        step = int(np.diff(windows.start[members]).min()) if len(members) > 1 else windows.span
        gap = GAP + -(-windows.span // step) - 1  # windows closer than the span share samples
        size = max(1, round(TEST_SHARE * len(members)))
        if len(members) < size + 2 * gap + 1:
            few = f"{len(members)} windows are too few for a test block of {size} between gaps of {gap}"
            raise InputError(f"{recording.origin}: {few}; use longer recordings or the split 'window'")
        key = measurements[number], len(members)
        first = placed[key] if key in placed else int(random.integers(len(members) - size + 1))
        placed[key] = first
        test[members[first : first + size]] = True
        train[members[: max(0, first - gap)]] = True
        train[members[first + size + gap :]] = True
    return train, test


def _measurements(recordings: Sequence[RecordingInfo]) -> list[int]:
    """(recording,) the number of the measurement each is of: channels of one file, or of one part of it, share it."""
    numbers: dict[str, int] = {}
    return [
        numbers.setdefault(info.origin.replace(f"#{info.channel}", "", 1), number)
        if f"#{info.channel}" in info.origin else number
        for number, info in enumerate(recordings)
    ]  # fmt: skip


def _whole_recordings(windows: Windows, codes: Integers | None, random: np.random.Generator) -> NDArray[np.bool_]:
    """Every measurement on one side only; where classes may be used, each has some on both."""
    firsts, measurements = np.unique(_measurements(windows.recordings), return_inverse=True)
    groups = np.zeros(len(firsts), dtype=np.int64)
    if codes is not None:
        groups[measurements[windows.recording]] = codes
    for group, count in zip(*np.unique(groups, return_counts=True), strict=True):
        if count < 2:
            single = windows.recordings[firsts[int(np.flatnonzero(groups == group)[0])]]
            what = f"domain '{single.domain}'" if codes is None else f"class '{single.label}' of '{single.domain}'"
            raise InputError(f"{what} has a single recording ({single.origin}); add one or use the split 'block'")
    return _stratified(groups, random)[measurements[windows.recording]]


def names_to_test(
    classes: Mapping[str, set[str]], share: float, random: np.random.Generator, keep: int = 1
) -> set[str]:
    """About a share of every class's names, one or more, such that each class keeps so many to learn from."""
    tested: set[str] = set()
    for names_of_class in classes.values():
        count = max(1, round(share * len(names_of_class)))
        for name in random.permutation(sorted(names_of_class)).tolist():
            spared = all(len(names - tested - {name}) >= keep for names in classes.values() if name in names)
            if spared and len(names_of_class & tested) < count:
                tested.add(name)
    return tested


def held_out(
    codes: Integers, share: float, random: np.random.Generator, groups: Integers | None = None
) -> NDArray[np.bool_]:
    """(window,) bool: a share of the windows of every class (window,), to calibrate on. Whole `groups` (window,) where
    they are given, so far as every class keeps one to learn from; of a class with one, windows.
    """
    held = np.zeros(len(codes), dtype=bool)
    if groups is not None:
        of_class = {str(code): set(map(str, groups[codes == code])) for code in np.unique(codes)}
        held = np.isin(groups.astype(str), list(names_to_test(of_class, share, random)))
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        if not held[members].any():
            held[random.permutation(members)[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    if not held.any():
        raise InputError(f"{len(codes)} samples, one of each class, leave none to calibrate on; give more windows")
    return held
