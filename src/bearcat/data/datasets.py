"""Everything that can be opened by name: benches, simulated bearings, and a user's own folder; and how it is fetched.

>>> open_dataset("cwru", Path("data/cwru"), {"label_by": "type"}).catalogue().classes
('normal', 'inner', 'ball', 'outer')

A file gets its name only when it is whole, so an interrupted download goes on with the files that are missing.

>>> fetch(open_dataset("cwru", Path("data/cwru")).downloads(), Path("data/cwru"))
"""

from __future__ import annotations

import http.client
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bearcat.data.benches import CWRU, HITSM, AcrossMachines, Paderborn
from bearcat.data.catalogue import About, Dataset, Download
from bearcat.data.folder import Folder
from bearcat.data.manifest import MANIFEST
from bearcat.data.simulate import Simulated
from bearcat.errors import InputError, suggest
from bearcat.settings import override
from bearcat.storage import drafted

DATASETS: dict[str, type[Dataset]] = {
    "simulated": Simulated,
    "paderborn": Paderborn,
    "cwru": CWRU,
    "hit-sm": HITSM,
    "across-machines": AcrossMachines,
    "folder": Folder,
}
"""All datasets by name; a row more is a dataset more.

>>> DATASETS["simulated"](seconds=1.0).catalogue().domains[0]
'N15_M07_F10'
"""
CHUNK = 2**18
TIMEOUT = 30.0  # seconds for a connection, and without a byte

Progress = Callable[[str, int, int | None], None]


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
    return name if name in DATASETS else _folder_of(Path(name)).resolve().name


def _folder_of(path: Path) -> Path:
    """The folder of recordings that a path names: itself, or that of a manifest."""
    return path.parent if path.name == MANIFEST and path.is_file() else path


def takes_root(name: str) -> bool:
    """Whether this is the name of a dataset that lies in a folder: simulated ones do not, and a path is one itself."""
    return name in DATASETS and "root" in inspect.signature(DATASETS[name]).parameters


def open_dataset(name: str, root: Path | None = None, settings: Mapping[str, str] | None = None) -> Dataset:
    """The dataset of this name, or, where the name is a folder's, the recordings in it. Settings are texts by field.

    >>> open_dataset("simulated", settings={"seconds": "1", "faults": "inner"}).catalogue().classes[:2]
    ('healthy', 'inner-1')
    """
    kind = DATASETS.get(name, Folder)
    if name in DATASETS and not takes_root(name):
        return override(kind(), settings or {})
    if name == "folder" and root is None:
        raise InputError(f"the dataset '{name}' needs its folder; give it with --root")
    if name in DATASETS:
        root = root or default_root(name)
    elif root is None and re.fullmatch(r"[\w-]+", name) and default_root(name).is_dir():
        root = default_root(name)  # a folder of recordings beside those of the known datasets
    elif root is None and (Path(name).exists() or "/" in name or os.sep in name):
        root = _folder_of(Path(name))
    else:
        unknown = f"unknown dataset '{name}'{suggest(name, [known for known in DATASETS if known != 'folder'])}"
        raise InputError(f"{unknown} (or give the path of your own folder)")
    return override(kind(root=root), settings or {})  # type: ignore[call-arg]


def require_licence(about: About, accepted: bool) -> None:
    """Stops unless the licence is accepted."""
    if not accepted:
        raise InputError(f"the licence of {about.title} is: {about.licence}; accept it with --accept-licence")


def fetch(downloads: Sequence[Download], root: Path, *, progress: Progress | None = None) -> list[Path]:
    """Downloads what is not there yet; the files, in order.

    `progress` is called with the name, the bytes there are and the total (None if the server does not say).
    """
    targets = [root / download.name for download in downloads]
    for download, target in zip(downloads, targets, strict=True):
        if not target.exists():
            _receive(download, target, progress or (lambda *_: None))
    return targets


def _receive(download: Download, target: Path, progress: Progress) -> None:
    """Downloads a whole file; InputError says why it did not arrive."""
    address, by_hand = download.address, f"look for it in a browser, and save it as {target}"
    request, have = Request(address, headers={"User-Agent": "bearcat"}), 0  # noqa: S310 (of DATASETS)
    try:
        with urlopen(request, timeout=TIMEOUT) as response, drafted(target) as draft:  # noqa: S310
            if response.headers.get_content_type() == "text/html":
                raise InputError(f"{address} answered with a web page instead of the file: {by_hand}")
            total = response.length
            with draft.open("wb") as stream:
                progress(download.name, have, total)
                while chunk := response.read1(CHUNK):
                    have += stream.write(chunk)
                    progress(download.name, have, total)
            if total is not None and have < total:
                raise InputError(f"only {have} of {total} bytes of {address} arrived: run the command again")
    except HTTPError as error:
        error.close()
        raise InputError(f"{address} refuses the download ({error.code}): try again later, or {by_hand}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = f"{getattr(error, 'reason', error) or type(error).__name__}"
        raise InputError(f"{address} failed ({reason}) after {have} bytes: run the command again") from error
