"""What a dataset holds, before any of it is read.

Every dataset answers one question, `catalogue()`: which recordings are there, which are missing. An `Entry` can be
read on its own, so that checking, loading and caching share one list and one reader.

>>> catalogue = CWRU(root=Path("data/cwru")).catalogue()
>>> recordings = load(catalogue, domains=["load0", "load3"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from bearcat.data.recording import Recording
from bearcat.errors import InputError, suggest


@dataclass(frozen=True)
class Download:
    """One file to fetch: official address, name under the dataset's folder, published SHA-256 if there is one."""

    address: str
    name: str
    sha256: str | None = None


@dataclass(frozen=True)
class About:
    """What a person wants to know of a dataset before using it."""

    title: str
    licence: str
    licence_address: str
    reference: str
    homepage: str


@dataclass(frozen=True)
class Entry:
    """One recording that is there: where it belongs, which file it comes from, and how to read it.

    `file` is None for a recording that is computed; `identity` says everything but the file's content that
    determines the samples (reader, member of an archive, channel, settings), for the cache's key.
    """

    domain: str
    label: str | None
    origin: str
    file: Path | None
    identity: str
    read: Callable[[], Recording]


@dataclass(frozen=True)
class Problem:
    """A file that is missing or cannot be used, and the sentence that says so."""

    origin: str
    sentence: str
    domain: str | None = None  # None: it concerns the whole dataset

    @classmethod
    def about_file(cls, name: str, places: Sequence[Path], root: Path, what: str, domain: str) -> Problem:
        """A file that is wanted once but stands in no place, or in several."""
        if not places:
            return cls(name, f"{name}: missing in {root} ({what}); fetch or copy it there", domain)
        found = " and ".join(place.relative_to(root).as_posix() for place in places)
        return cls(name, f"{name}: found more than once ({found}); keep one of them", domain)


@dataclass(frozen=True)
class Catalogue:
    """The entries of a dataset in a fixed order, with its domains and classes in theirs."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def only(self, domains: Iterable[str]) -> Catalogue:
        """The part in these domains, in this order; a domain is given by its name or its index."""
        chosen = tuple(dict.fromkeys(domain_named(one, self.domains) for one in domains))
        entries = tuple(entry for entry in self.entries if entry.domain in chosen)
        problems = tuple(one for one in self.problems if not one.domain or one.domain in chosen)
        return Catalogue(chosen, self.classes, entries, problems, self.notes)


class Dataset(Protocol):
    """A frozen dataclass of settings that can list its recordings. The visible table of them is `DATASETS`."""

    about: ClassVar[About]

    def downloads(self) -> tuple[Download, ...]:
        """The official files; empty where there is nothing to fetch."""
        ...

    def catalogue(self) -> Catalogue: ...


def domain_named(name: str, domains: Sequence[str]) -> str:
    """The domain called so, or at this index; the nearest is suggested if there is none."""
    if name in domains:
        return name
    if name.isdecimal() and int(name) < len(domains):
        return domains[int(name)]
    raise InputError(f"unknown domain '{name}'{suggest(name, domains)}")


def load(catalogue: Catalogue, domains: Iterable[str] | None = None) -> list[Recording]:
    """All recordings of these domains, read now; the first file that is missing or unreadable stops it by name."""
    if domains is not None:
        catalogue = catalogue.only(domains)
    if catalogue.problems:
        more = f" (and {len(catalogue.problems) - 1} more)" if len(catalogue.problems) > 1 else ""
        raise InputError(catalogue.problems[0].sentence + more)
    return [entry.read() for entry in catalogue.entries]
