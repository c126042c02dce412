"""Anybody's own recordings: a tree of folders, or a manifest.

    ROOT/<domain>/<label>/file      labelled
    ROOT/<domain>/file              unlabelled
    ROOT/manifest.csv               columns path, domain and, if you like, label, rate, channel, start, stop, rpm

A manifest, where there is one, is the whole truth; files it does not name are left out. `start` and `stop` are sample
numbers (stop not included), so that one long file can give several recordings. docs/add-your-data.md has examples.

>>> Folder(root=Path("my-recordings")).catalogue()
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bearcat.data.catalogue import About, Catalogue, Download, Entry, Problem
from bearcat.data.files import checked_root, inside
from bearcat.data.formats import FORMATS, Samples, read_signals, reading
from bearcat.data.recording import Recording
from bearcat.errors import InputError, suggest
from bearcat.storage import digest_file

MANIFEST = "manifest.csv"
EMPTY = "a folder without recordings"
COLUMNS = ("path", "domain", "label", "rate", "channel", "start", "stop", "rpm")


@dataclass(frozen=True)
class Piece:
    """One recording to be: a file, or a part of one."""

    path: Path
    origin: str
    domain: str
    label: str | None
    rate: float | None = None
    channel: str | None = None
    start: int = 0
    stop: int | None = None
    rpm: float | None = None  # of the shaft; helps to choose a window


@dataclass(frozen=True, eq=False)
class Held:
    """A recording with all that its file holds, before a channel is picked."""

    domain: str
    label: str | None
    origin: str
    rate: float | None
    rpm: float | None
    channels: Mapping[str, Samples]


@dataclass(frozen=True)
class Folder:
    """The settings of the dataset; `root` is a folder of domains, or holds a manifest."""

    root: Path
    channel: str | None = None  # for files with several channels; a manifest may say it row by row

    about: ClassVar[About] = About(
        title="your own recordings: ROOT/<domain>/<label>/file, or ROOT/manifest.csv",
        licence="yours",
        licence_address="",
        reference="",
        homepage="",
    )

    def downloads(self) -> tuple[Download, ...]:
        return ()

    def catalogue(self) -> Catalogue:
        root = checked_root(self.root)
        notes: list[str] = []
        problems: list[Problem] = []
        pieces = _pieces(root, problems, notes)
        doubles = _doubles(pieces)
        problems += doubles.values()
        entries = tuple(self._entry(piece) for number, piece in enumerate(pieces) if number not in doubles)
        if not pieces and not problems:
            raise InputError(
                f"{root}: holds no recordings; put files into {root}/<domain>/<label>/ (or <domain>/ without a label),"
                f" or list them in {root}/{MANIFEST}"
            )
        return Catalogue(
            domains=tuple(sorted({piece.domain for piece in pieces}, key=_natural)),
            classes=tuple(sorted({piece.label for piece in pieces if piece.label is not None}, key=_natural)),
            entries=entries,
            problems=tuple(problems),
            notes=tuple(notes),
        )

    def signals(self, catalogue: Catalogue) -> Iterator[Held]:
        """The recordings of a catalogue of this folder, one at a time, with every channel they might be read as."""
        listed = {entry.origin for entry in catalogue.entries}
        for piece in _pieces(checked_root(self.root), [], []):
            if piece.origin in listed:
                found, named = read_signals(piece.path, piece.origin), piece.channel or self.channel
                channels = found.channels if named is None else dict([found.pick(named)])
                yield Held(
                    piece.domain, piece.label, piece.origin, piece.rate or found.rate, piece.rpm,
                    {name: _part(piece, samples) for name, samples in channels.items()},
                )  # fmt: skip

    def _entry(self, piece: Piece) -> Entry:
        def read() -> Recording:
            signals = read_signals(piece.path, piece.origin)
            channel, samples = signals.pick(piece.channel or self.channel)
            return Recording(
                signal=_part(piece, samples), rate=piece.rate or signals.rate, label=piece.label,
                domain=piece.domain, channel=channel, origin=piece.origin,
            )  # fmt: skip

        channel = piece.channel or self.channel
        identity = f"folder-1 {channel} {piece.rate} {piece.start} {piece.stop}"
        return Entry(piece.domain, piece.label, piece.origin, piece.path, identity, read)


def _part(piece: Piece, samples: Samples) -> Samples:
    """The samples that a piece is made of."""
    if piece.start >= len(samples) or (piece.stop or 0) > len(samples):
        raise InputError(
            f"{piece.origin}: start {piece.start}, stop {piece.stop} do not fit its {len(samples)} samples;"
            f" correct them in {MANIFEST}"
        )
    return samples[piece.start : piece.stop]


def _natural(name: str) -> tuple[int, float, str]:
    """Sorts numbers as numbers: 600rpm before 1200rpm."""
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return (0, float(digits), name) if digits else (1, 0.0, name)


def _pieces(root: Path, problems: list[Problem], notes: list[str]) -> list[Piece]:
    if (root / MANIFEST).exists():
        return _from_manifest(root, problems)
    return _from_tree(root, problems, notes)


def _from_tree(root: Path, problems: list[Problem], notes: list[str]) -> list[Piece]:
    """A piece per file of a known format at ROOT/<domain>/[<label>/]; anything else is said."""
    pieces = []
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        origin = place.as_posix()
        if path.is_dir() or any(part.startswith((".", "__")) for part in place.parts):
            continue
        if not inside(root, path):
            problems.append(Problem(origin, f"{origin}: leads outside {root}; copy the file into the folder"))
        elif path.suffix.lower() not in FORMATS:
            notes.append(f"{origin}: left out, '{path.suffix}' is none of {', '.join(FORMATS)}")
        elif len(place.parts) not in (2, 3):
            problems.append(
                Problem(
                    origin, f"{origin}: expected at <domain>/<label>/{path.name} or <domain>/{path.name}; move it there"
                )
            )
        else:
            label = place.parts[1] if len(place.parts) == 3 else None
            pieces.append(Piece(path, origin, place.parts[0], label))
    there = {piece.domain for piece in pieces}
    folders = sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith((".", "__")))
    notes += [f"{name}: {EMPTY}" for name in folders if name not in there]
    return pieces


def _from_manifest(root: Path, problems: list[Problem]) -> list[Piece]:
    """A piece per row; a wrong header stops at once, a wrong row is one problem among others."""
    manifest = root / MANIFEST
    with reading(MANIFEST, "a table"):
        rows = list(csv.DictReader(manifest.read_text(encoding="utf-8-sig").splitlines()))
    header = list(rows[0]) if rows else []
    for column in header:
        if column not in COLUMNS:
            raise InputError(f"{MANIFEST}: unknown column '{column}'{suggest(str(column), COLUMNS)}")
    for column in ("path", "domain"):
        if column not in header:
            raise InputError(
                f"{MANIFEST}: the column '{column}' is missing; the first row must name at least path,domain"
            )
    pieces = []
    for number, row in enumerate(rows, start=2):
        try:
            pieces.append(_from_row(root, row, number))
        except InputError as error:
            problems.append(Problem(f"{MANIFEST} row {number}", str(error)))
    return pieces


def _from_row(root: Path, row: dict[str, str | None], number: int) -> Piece:
    """The piece a manifest's row names. Its path stays inside the manifest's folder."""
    where = f"{MANIFEST} row {number}"
    told = {column: (text or "").strip() or None for column, text in row.items()}
    name, domain = told["path"], told["domain"]
    if name is None or domain is None:
        raise InputError(f"{where}: path and domain must not be empty")
    path = root / name
    if not inside(root, path):
        raise InputError(f"{where}: '{name}' leads outside {root}; keep the recordings inside the manifest's folder")
    if not path.is_file():
        raise InputError(f"{where}: there is no file '{name}' in {root}")

    def number_in(column: str) -> float | None:
        text = told.get(column)
        try:
            value = None if text is None else float(text)
        except ValueError as error:
            raise InputError(f"{where}: '{column}' must be a number, not '{text}'") from error
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{where}: '{column}' must be finite and not negative, but is {text}")
        if value is not None and column not in ("rate", "rpm") and not value.is_integer():
            raise InputError(f"{where}: '{column}' is a sample number and must be whole, but is {text}")
        return value

    start, stop = int(number_in("start") or 0), number_in("stop")
    stop = None if stop is None else int(stop)
    if stop is not None and stop <= start:
        raise InputError(f"{where}: 'stop' ({stop}) must be greater than 'start' ({start})")
    part = f"[{start}:{'' if stop is None else stop}]" if start or stop else ""
    channel = told.get("channel")
    origin = name + (f"#{channel}" if channel else "") + part
    return Piece(path, origin, domain, told.get("label"), number_in("rate"), channel, start, stop, number_in("rpm"))


def _doubles(pieces: Sequence[Piece]) -> dict[int, Problem]:
    """Recordings (by number) that share samples with an earlier one, and would stand on both sides of a split.

    The same file twice, the same content under two names, parts that overlap. Contents are compared where sizes agree.
    """
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in dict.fromkeys(piece.path for piece in pieces):
        with suppress(OSError):  # a file that cannot be read is reported by its reader
            by_size[path.stat().st_size].append(path)
    content: dict[Path, str] = {}
    for paths in by_size.values():
        for path in paths if len(paths) > 1 else ():
            with suppress(OSError):
                content[path] = digest_file(path)
    problems: dict[int, Problem] = {}
    seen: dict[tuple[str, str | None], list[Piece]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        earlier = seen[content.get(piece.path, str(piece.path)), piece.channel]
        for other in earlier:
            if piece.start < (other.stop or math.inf) and other.start < (piece.stop or math.inf):
                sentence = f"{piece.origin}: holds the same samples as {other.origin}; keep one of them"
                problems[number] = Problem(piece.origin, sentence, piece.domain)
                break
        earlier.append(piece)
    return problems
