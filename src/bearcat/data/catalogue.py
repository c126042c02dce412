"""What a dataset holds, before any of it is read; and how its files are found in a folder.

Checking, loading and caching share one list of recordings (there or missing) and one reader for each `Entry`.

>>> recordings = load(CWRU(root=Path("data/cwru")).catalogue(), domains=["load0", "load3"])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from bearcat.data.recording import Recording, RecordingInfo
from bearcat.errors import InputError, suggest
from bearcat.storage import digest_file, real_path

Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Download:
    """One file to fetch: official address, and name under the dataset's folder.

    >>> Download("https://example.org/a.mat", "a.mat").name
    'a.mat'
    """

    address: str
    name: str


@dataclass(frozen=True)
class About:
    """A dataset's title and licence, for people who consider using it.

    >>> About("two pumps of our plant", licence="ours").title
    'two pumps of our plant'
    """

    title: str
    licence: str  # and its address


@dataclass(frozen=True)
class Entry:
    """One recording that is there: its domain and label, the file it comes from, and how to read it.

    >>> Simulated(seconds=1.0).catalogue().entries[0].read().rate
    16000.0
    """

    domain: str
    label: str | None
    origin: str
    file: Path | None  # None: it is computed
    identity: str  # all but the file's content that determines it (reader, channel, settings); in the cache's key
    read: Callable[[], Recording]


@dataclass(frozen=True)
class Problem:
    """A file that is missing or cannot be used, and the sentence that says so.

    >>> Problem("a.wav", "a.wav: holds no samples; record it again").sentence.partition(":")[0]
    'a.wav'
    """

    origin: str
    sentence: str
    domain: str | None = None  # None: it concerns the whole dataset; empty: a file of no domain
    label: str | None = None
    stated: Mapping[str, str | None] = field(default_factory=dict, hash=False)  # in its row of a manifest


@dataclass(frozen=True)
class Catalogue:
    """The entries of a dataset in a fixed order, with its domains and classes in theirs.

    >>> Simulated(seconds=1.0).catalogue().only(["0"]).domains
    ('N15_M07_F10',)
    """

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[Problem, ...] = ()  # recordings that cannot be used, and without which the others go on

    def only(self, domains: Iterable[str] | None) -> Catalogue:
        """The part in these domains, by name or index, in this order; None: all of it."""
        if domains is None:
            return self
        names = tuple(dict.fromkeys(find_domain(domain, self.domains) for domain in domains))
        entries = tuple(entry for entry in self.entries if entry.domain in names)
        problems, left_out = (
            tuple(problem for problem in several if not problem.domain or problem.domain in names)
            for several in (self.problems, self.left_out)
        )
        return replace(self, domains=names, entries=entries, problems=problems, left_out=left_out)

    def leave_out(self, problems: Sequence[Problem]) -> Catalogue:
        """The catalogue without these recordings, which it goes on naming."""
        origins = {problem.origin for problem in problems if problem not in self.problems}  # whose entries are here
        entries = tuple(entry for entry in self.entries if entry.origin not in origins)
        others = tuple(problem for problem in self.problems if problem not in problems)
        return replace(self, entries=entries, problems=others, left_out=(*self.left_out, *problems))

    def check(self) -> None:
        """Stops at the first file that is missing or cannot be used, by name."""
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise InputError(self.problems[0].sentence + more)


class Dataset(Protocol):
    """A frozen dataclass of settings that can list its recordings. The visible table of them is `DATASETS`.

    >>> Simulated().downloads()
    ()
    """

    about: ClassVar[About] = About("a dataset of your own", "yours")

    def downloads(self) -> tuple[Download, ...]:
        """The official files; empty where there is nothing to fetch."""
        return ()

    def catalogue(self) -> Catalogue: ...


def find_domain(name: str, domains: Sequence[str]) -> str:
    """The domain of this name or at this index; an unknown name, or a folder without recordings, suggests another."""
    if name in domains:
        return name
    if name.isdecimal() and int(name) < len(domains):
        return domains[int(name)]
    raise InputError(f"unknown domain '{name}', or one without recordings{suggest(name, domains)}")


def load(catalogue: Catalogue, domains: Iterable[str] | None = None) -> list[Recording]:
    """All recordings of these domains, or the first problem.

    >>> [recording.label for recording in load(Simulated(seconds=1.0, faults=("outer",)).catalogue(), ["0"])]
    ['healthy', 'outer-1', 'outer-2', 'outer-3']
    """
    catalogue = catalogue.only(domains)
    catalogue.check()
    return [entry.read() for entry in catalogue.entries]


def content_digest(path: Path) -> str:
    """SHA-256 of a file's content, computed once as long as its size, times and inode stay the same."""
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache
def _digest(path: Path, *_: int) -> str:
    return digest_file(path)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items with each key, in their order."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def two_classes(recordings: Iterable[RecordingInfo]) -> str | None:
    """The sentence for a specimen that has two classes."""
    first: dict[str, RecordingInfo] = {}
    for info in recordings:
        if info.specimen and info.label is not None:
            other = first.setdefault(info.specimen, info)
            if other.label != info.label:
                both = f"'{other.label}' in {other.origin} and '{info.label}' in {info.origin}"
                return f"specimen '{info.specimen}' is {both}; correct one, or name the two states apart"
    return None


def checked_root(root: Path, name: str | None = None) -> Path:
    """The dataset's folder, or a sentence that it is not there; `name` is of a dataset that can be fetched."""
    try:
        if root.is_dir():
            next(root.iterdir(), None)
            return root
    except PermissionError as error:
        raise InputError(f"{root}: permission denied; make the folder readable for your user") from error
    what = "is a file, not a folder" if root.exists() else "there is no such folder"
    fetch = f"fetch it with: bearcat data fetch {name} --root {root}, or " if name else ""
    raise InputError(f"{root}: {what}; {fetch}check the path")


def files_in(root: Path, pattern: str) -> dict[str, Path]:
    """The files below a folder that match, by name."""
    paths = sorted(root.rglob(pattern), reverse=True)  # of two with one name, the first
    return {path.name: path for path in paths if path.is_file() and not path.name.startswith(".")}


def present(root: Path, wanted: Iterable[Entry]) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """The entries whose files are there, and a problem for each of the others."""
    entries, problems = list[Entry](), list[Problem]()
    for entry in wanted:
        if entry.file is not None and entry.file.is_file():
            entries.append(entry)
        else:
            missing = f"{entry.origin}: missing in {root} ({entry.domain}, {entry.label}); fetch or copy it there"
            problems.append(Problem(entry.origin, missing, entry.domain, entry.label))
    return tuple(entries), tuple(problems)


def inside(root: Path, path: Path) -> bool:
    """Whether a path, links followed, stays inside a folder."""
    return real_path(path).is_relative_to(real_path(root))
