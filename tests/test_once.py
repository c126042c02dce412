"""Each step of a command is done once, and a command that was interrupted goes on to the same bytes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bearcat.adaptation as specs
from bearcat.adaptation import adapt as adapting
from bearcat.adaptation import make_plan
from bearcat.adaptation import run as running
from bearcat.data import open_dataset
from bearcat.record import RECORD, Record
from bearcat.requests import AdaptRequest

FASTEST = {"input": "frequency", "window": 256, "epochs": 2, "method": "dense-MCC", "device": "cpu"}
_watched: list[tuple[Path, Counter[str]]] = []


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched and isinstance(arguments[0], str | Path):
        for folder, opened in _watched:
            place = Path(arguments[0]).absolute()
            if place.is_relative_to(folder):
                opened[place.relative_to(folder).as_posix()] += 1


sys.addaudithook(_count)


@contextmanager
def openings(folder: Path) -> Iterator[Counter[str]]:
    """How often each file below this folder is opened by this process, in whatever way."""
    opened: Counter[str] = Counter()
    _watched.append((folder.absolute(), opened))
    try:
        yield opened
    finally:
        _watched.pop()


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """A folder of one's own: a labelled pump, and one without labels."""
    root = tmp_path_factory.mktemp("mine")
    settings = {"severities": "4", "faults": "inner,outer", "seconds": "1"}
    for entry in open_dataset("simulated", None, settings).catalogue().only(["0", "1"]).entries:
        labelled = entry.domain == "N15_M07_F10"
        place = root / ("pump-A-1500rpm" if labelled else "pump-B-900rpm") / (str(entry.label) if labelled else "")
        place.mkdir(parents=True, exist_ok=True)
        np.savetxt(place / f"{entry.label}.csv", entry.read().signal, fmt="%.6g")  # which is opened once to be read
    return root


def wishes(mine: Path, **changes: Any) -> AdaptRequest:
    return AdaptRequest(**{"data": str(mine), "rate": 16_000.0, "bearing": "6203"} | FASTEST | changes)


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, of: Callable[..., object]) -> Counter[object]:
    """Calls of a function from here on, by what `of` makes of their arguments."""
    calls: Counter[object] = Counter()
    honest = getattr(owner, name)

    def call(*words: Any, **more: Any) -> Any:
        calls[of(*words, **more)] += 1
        return honest(*words, **more)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.fixture(scope="module")
def whole(mine, tmp_path_factory) -> Path:
    """The folder of an adaptation that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BEARCAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("bearcat.adaptation.adapt.find_spec", lambda _: None)
        adapting.adapt(make_plan(wishes(mine)), out)
    return out


def test_adapting_reads_fits_and_writes_everything_once(mine, tmp_path, monkeypatch):
    """Two runs are trained: the recipe's and its unadapted counterpart's."""
    monkeypatch.setattr("bearcat.adaptation.adapt.find_spec", lambda _: None)
    fitted = counted(monkeypatch, specs, "run_evidence", lambda *_: "check models")
    written = counted(monkeypatch, Record, "write", lambda _, folder: folder.name)
    read = counted(monkeypatch, Record, "read", lambda folder: folder.name)
    with openings(mine) as opened:
        found = adapting.adapt(make_plan(wishes(mine)), tmp_path / "out")
    assert len(found.runs) == 2
    assert all(each.physics is not None for each in found.recordings)
    assert fitted == {"check models": 1}
    assert written == {"out": 1, "beside-dense-source-only": 1}
    assert read == {}
    files = [path.relative_to(mine).as_posix() for path in mine.rglob("*.csv")]
    assert opened == dict.fromkeys(files, 2)  # once to hash it, once to decode it


def contents(folder: Path) -> dict[str, object]:
    """What a run's folder holds, without what it took."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.name == RECORD:
            record = json.loads(path.read_text())
            found[name] = {key: value for key, value in record.items() if key not in ("seconds", "checksums")}
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("step", ["train beside", "choose", "save", "record"])
def test_an_interrupted_adaptation_goes_on_to_the_same_bytes(mine, whole, tmp_path, monkeypatch, step):
    """Killed before this step: of the run, the one beside it, the choice of a model, the run's own folder."""
    monkeypatch.setattr("bearcat.adaptation.adapt.find_spec", lambda _: None)
    out = tmp_path / "out"
    owner, name, own = {
        "train beside": (adapting, "run_stack", lambda *_, write, **__: write),
        "choose": (adapting, "choose_model", lambda *_: True),
        "save": (running, "save_model", lambda folder, _: folder == out / "model"),
        "record": (Record, "write", lambda _, folder: folder == out),
    }[step]
    honest = getattr(owner, name)

    def killed(*words: Any, **more: Any) -> Any:
        if own(*words, **more):
            raise KeyboardInterrupt
        return honest(*words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            adapting.adapt(make_plan(wishes(mine)), out)
    assert not (out / RECORD).exists()
    adapting.adapt(make_plan(wishes(mine)), out)
    assert contents(out) == contents(whole)
    before = contents(out)
    again = adapting.adapt(make_plan(wishes(mine)), out)
    assert contents(out) == before
    assert again.record.to_dict() == Record.read(out).to_dict()
