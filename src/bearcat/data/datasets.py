"""What a dataset holds, before any of it is read; all datasets by name; and how one is fetched.

Checking and loading share one list of recordings (there or missing) and one reader for each `Entry`.

>>> catalogue = open_dataset("cwru", Path("data/cwru"), {"label_by": "type"}).catalogue()
>>> recordings = load(catalogue, domains=["load0", "load3"])

A file gets its name only when it is whole, so an interrupted download goes on with the files that are missing.

>>> fetch(open_dataset("cwru", Path("data/cwru")).downloads(), Path("data/cwru"))
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol, TypeVar

from bearcat.data.recording import Recording
from bearcat.errors import InputError, suggest
from bearcat.settings import override
from bearcat.storage import digest_file, drafted, real_path

Item = TypeVar("Item")
Key = TypeVar("Key")
CONDITIONS = ("N15_M07_F10", "N09_M07_F10", "N15_M01_F10", "N15_M07_F04")  # of Paderborn, and of the simulated bearings
MANIFEST = "manifest.csv"
TIMEOUT = 30.0  # seconds for a connection, and without a byte


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
    """A file that is missing or cannot be used, and the sentence that says so."""

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
    """A frozen dataclass of settings that can list its recordings. The visible table of them is `DATASETS`."""

    title: ClassVar[str] = "a dataset of your own"
    licence: ClassVar[str] = "yours"  # and its address

    def downloads(self) -> dict[str, str]:
        """The official address of each file below the dataset's folder; empty where there is nothing to fetch."""
        return {}

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


def inside(root: Path, path: Path) -> bool:
    """Whether a path, links followed, stays inside a folder."""
    return real_path(path).is_relative_to(real_path(root))


DATASETS: dict[str, type[Dataset] | str] = {
    "simulated": "bearcat.data.simulate:Simulated",
    "paderborn": "bearcat.data.benches:Paderborn",
    "cwru": "bearcat.data.benches:CWRU",
    "hit-sm": "bearcat.data.benches:HITSM",
    "across-machines": "bearcat.data.benches:AcrossMachines",
    "folder": "bearcat.data.folder:Folder",
}
"""All datasets by name: a class, or where it is, so that only what is opened is imported. A row more is a dataset more.

>>> open_dataset("simulated", settings={"seconds": "1"}).catalogue().domains[0]
'N15_M07_F10'
"""


def dataset_class(name: str) -> Any:
    """The class of a dataset of the table."""
    row = DATASETS[name]
    return resolve_name(row) if isinstance(row, str) else row


def dataset_name(dataset: Dataset) -> str | None:
    """The name of a dataset's row; None where it has none."""
    kind = type(dataset)
    return next((name for name, row in DATASETS.items() if row in (kind, f"{kind.__module__}:{kind.__name__}")), None)


def default_root(name: str) -> Path:
    """The folder of a dataset where none is given: $BEARCAT_DATA/NAME, or one in the user's data folder."""
    if given := os.environ.get("BEARCAT_DATA"):
        folder = Path(given)
    else:
        from platformdirs import user_data_path

        folder = user_data_path("bearcat", appauthor=False)
    return folder if name == "across-machines" else folder / name  # which is made of several


def dataset_label(name: str) -> str:
    """A dataset's name in records; of one's own folder, the folder's name without its path."""
    return name if name in DATASETS else Path(name).resolve().name


def takes_root(name: str) -> bool:
    """Whether this is the name of a dataset that lies in a folder: simulated ones do not, and a path is one itself."""
    return name in DATASETS and "root" in {setting.name for setting in fields(dataset_class(name))}


def open_dataset(name: str, root: Path | None = None, settings: Mapping[str, str] | None = None) -> Dataset:
    """The dataset of this name, or, where the name is a folder's, the recordings in it. Settings are texts by field.

    >>> open_dataset("simulated", settings={"seconds": "1", "faults": "inner"}).catalogue().classes[:2]
    ('healthy', 'inner-1')
    """
    kind: type[Dataset] = dataset_class(name if name in DATASETS else "folder")
    if name in DATASETS and not takes_root(name):
        return override(kind(), settings or {})
    if name in DATASETS:
        root = root or default_root(name)
    elif root is None and re.fullmatch(r"[\w-]+", name) and default_root(name).is_dir():
        root = default_root(name)  # a folder of recordings beside those of the known datasets
    elif root is None and (Path(name).exists() or "/" in name or os.sep in name):
        root = Path(name)
    else:
        unknown = f"unknown dataset '{name}'{suggest(name, [known for known in DATASETS if known != 'folder'])}"
        raise InputError(f"{unknown} (or give the path of your own folder)")
    return override(kind(root=root), settings or {})  # type: ignore[call-arg]


def fetch(downloads: Mapping[str, str], root: Path) -> list[Path]:
    """Downloads what is not there yet; the files, in order."""
    for name, address in downloads.items():
        if not (root / name).exists():
            _receive(address, root / name)
    return [root / name for name in downloads]


def _receive(address: str, target: Path) -> None:
    """Downloads a whole file; InputError says why it did not arrive."""
    import http.client
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    by_hand = f"look for it in a browser, and save it as {target}"
    request = Request(address, headers={"User-Agent": "bearcat"})  # noqa: S310 (of DATASETS)
    try:
        with urlopen(request, timeout=TIMEOUT) as response, drafted(target) as draft:  # noqa: S310
            if response.headers.get_content_type() == "text/html":
                raise InputError(f"{address} answered with a web page instead of the file: {by_hand}")
            total = response.length
            with draft.open("wb") as stream:
                shutil.copyfileobj(response, stream)
            if total is not None and (size := draft.stat().st_size) < total:
                raise InputError(f"only {size} of {total} bytes of {address} arrived: run the command again")
    except HTTPError as error:
        error.close()
        raise InputError(f"{address} refuses the download ({error.code}): try again later, or {by_hand}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = f"{getattr(error, 'reason', error) or type(error).__name__}"
        raise InputError(f"{address} failed ({reason}): run the command again") from error
