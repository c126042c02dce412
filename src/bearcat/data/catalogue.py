"""What a dataset holds, before any of it is read.

A dataset's `catalogue()` lists the recordings that are there and those that are missing. An `Entry` can be read on its
own, so that checking, loading and caching share one list and one reader.

>>> catalogue = CWRU(root=Path("data/cwru")).catalogue()
>>> recordings = load(catalogue, domains=["load0", "load3"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
    """A dataset's title, licence and reference, for people who consider using it."""

    title: str
    licence: str
    licence_address: str = ""
    reference: str = ""
    homepage: str = ""


@dataclass(frozen=True)
class Entry:
    """One recording that is there: its domain and label, the file it comes from, and how to read it.

    `file` is None for a recording that is computed. `identity` names everything but the file's content that determines
    the recording (reader, member of an archive, channel, settings); it is part of the cache's key.
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

    def only(self, domains: Iterable[str] | None) -> Catalogue:
        """The part in these domains, by name or index, in this order; None: all of it."""
        if domains is None:
            return self
        chosen = tuple(dict.fromkeys(find_domain(domain, self.domains) for domain in domains))
        entries = tuple(entry for entry in self.entries if entry.domain in chosen)
        problems = tuple(problem for problem in self.problems if not problem.domain or problem.domain in chosen)
        return replace(self, domains=chosen, entries=entries, problems=problems)

    def check(self) -> None:
        """Stops at the first file that is missing or cannot be used, by name."""
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise InputError(self.problems[0].sentence + more)


class Dataset(Protocol):
    """A frozen dataclass of settings that can list its recordings. The visible table of them is `DATASETS`."""

    about: ClassVar[About]

    def downloads(self) -> tuple[Download, ...]:
        """The official files; empty where there is nothing to fetch."""
        return ()

    def catalogue(self) -> Catalogue: ...


def find_domain(name: str, domains: Sequence[str]) -> str:
    """The domain of this name or at this index; an unknown name suggests the nearest one."""
    if name in domains:
        return name
    if name.isdecimal() and int(name) < len(domains):
        return domains[int(name)]
    raise InputError(f"unknown domain '{name}'{suggest(name, domains)}")


def load(catalogue: Catalogue, domains: Iterable[str] | None = None) -> list[Recording]:
    """All recordings of these domains, read now; the first file that is missing or unreadable stops it by name."""
    catalogue = catalogue.only(domains)
    catalogue.check()
    return [entry.read() for entry in catalogue.entries]
