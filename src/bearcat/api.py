"""The two things most people do, in one call each: `bearcat.adapt` and `bearcat.diagnose`.

>>> import bearcat
>>> found = bearcat.adapt("recordings/pump-A", "recordings/pump-B", out="out")
>>> found                                   # what was found, as a table with its verdict
>>> found.to_frame()                        # the target's recordings as a pandas data frame
>>> bearcat.diagnose("monday.wav", model=found)
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from bearcat.data.bearing import Bearing, find_bearing
from bearcat.data.recording import Recording
from bearcat.data.stream import Stream
from bearcat.deploy.diagnose import Given, PhysicalDiagnoses
from bearcat.deploy.diagnose import diagnose as diagnose_from_physics
from bearcat.deploy.predict import FoundRecording, diagnose_found, find_recordings, open_model
from bearcat.errors import InputError
from bearcat.methods.recipe import DEFAULT_RECIPE
from bearcat.record import Record

COLUMNS = (
    "recording", "class", "nearest", "confidence", "agreement", "windows", "unfamiliar", "familiar", "line", "physics",
    "contradiction",
)  # fmt: skip


class Diagnoses(Sequence[Mapping[str, Any]]):
    """What a model says of recordings: a mapping of COLUMNS for each."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = tuple({name: row.get(name) for name in COLUMNS} for row in rows)

    def __getitem__(self, index: Any) -> Any:
        return Diagnoses(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        if not self._rows:
            return "no recordings"
        width = max(len("recording"), *(len(str(row["recording"])) for row in self._rows))
        kind = max(len("class"), *(len(str(row["class"])) for row in self._rows))
        lines = [f"{'recording':<{width}}  {'class':<{kind}}  confidence  agreement  windows"]
        for row in self._rows:
            odd = f"  most like {row['nearest']}" if row["familiar"] is False else ""
            odd += f"  orders say {row['physics']}" if row["contradiction"] else ""
            shares = f"{row['confidence']:>10.1%}  {row['agreement']:>9.1%}  {row['windows']:>7}"
            line = f"  {row['line']}" if row["line"] else ""
            lines.append(f"{row['recording']:<{width}}  {row['class']:<{kind}}  {shares}{line}{odd}")
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """A pandas data frame, a row for each recording."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("a data frame needs pandas; pip install pandas, or use list(...)") from error
        return pandas.DataFrame(list(self._rows), columns=list(COLUMNS))


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A finished adaptation: its folder, its record (docs/record.md) and the diagnoses of the target's recordings.

    `saved` is the record of the run whose model was saved: the same, or that of the unadapted one beside it.
    """

    folder: Path
    record: Record
    saved: Record

    @property
    def model(self) -> Path:
        """The model's folder, for `diagnose`, `bearcat predict` and `bearcat serve`."""
        return self.folder / "model"

    @property
    def recordings(self) -> Diagnoses:
        return Diagnoses(self.record.recordings or ())

    @property
    def verdict(self) -> str:
        """How far to trust the saved model, in words."""
        return self.saved.decision.sentence

    def to_frame(self) -> Any:
        """The target's recordings as a pandas data frame."""
        return self.recordings.to_frame()

    def __repr__(self) -> str:
        settings, warnings = self.record.settings, self.saved.warnings
        title = f"{' and '.join(settings.sources)} → {settings.target} by {settings.recipe_name}"
        scores = self.saved.scores.target
        known = "" if scores is None else f", {scores.accuracy:.1%} of its labelled windows right"
        lines = [title + known, repr(self.recordings), f"verdict: {self.verdict}"]
        decision = self.record.decision
        lines += [found["sentence"] for found in (decision.second_opinion, decision.saved) if found]
        lines += [f"warning: {warning}" for warning in warnings]
        return "\n".join([*lines, f"model: {self.model}; page: {self.folder / 'report.html'}"])


def adapt(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    recipe: str = DEFAULT_RECIPE,
    out: str | Path = "bearcat-out",
    input: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    window: int | None = None,
    channel: str | None = None,
    rate: float | None = None,
    rpm: float | str | None = None,
    bearing: str | None = None,
    reference: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Adaptation:
    """Learns from labelled recordings, adapts to unlabelled ones, and says how far to trust the result.

    `source` is a folder with a folder for each label (or several such), `target` a folder of recordings; or both are
    names of domains in `data`, a dataset's name or a path as for `bearcat adapt`. Everything else is chosen from
    the recordings where it is not given. `reference` names target recordings known to be of a class, or one that is
    healthy. The results are in `out`; a finished run is not run again. `progress` prints what `bearcat adapt` prints.
    """
    from bearcat.cli.train import adapt as command

    sources = [source] if isinstance(source, str | Path) else list(source)
    given = [f"{name}={value}" for name, value in (settings or {}).items()]
    if data is None:
        data, folders = _common_root([Path(each) for each in [*sources, target]])
        given.append(f"folders={','.join(folders)}")
        sources, target = [Path(name).name for name in folders[:-1]], Path(folders[-1]).name
    with ExitStack() as stack:
        if not progress:
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
        command(
            str(data), root=None if root is None else Path(root), source=[str(each) for each in sources],
            target=str(target), kind=input, recipe=recipe, epochs=epochs, seed=seed, window=window, channel=channel,
            rate=rate, rpm=None if rpm is None else str(rpm), bearing=bearing, reference=reference, device=device,
            out=Path(out), settings=given or None,
        )  # fmt: skip
    record = Record.read(Path(out))
    return Adaptation(Path(out), record, Record.read(Path(out) / record.decision.saved_folder))


def _common_root(folders: Sequence[Path]) -> tuple[Path, list[str]]:
    """A folder above all of these, and their places below it."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give folders, or names of domains with data=…")
    places = [folder.resolve() for folder in folders]
    root = Path(os.path.commonpath([place.parent for place in places]))
    names = [place.relative_to(root).as_posix() for place in places]
    if len({place.name for place in places}) < len(places) or any("," in name for name in names):
        raise InputError(
            "folders are domains called after their names, which must differ and have no comma; rename one"
        )
    return root, names


def diagnose(
    files: Given | Sequence[Given],
    *,
    model: str | Path | Adaptation | None = None,
    rpm: float | None = None,
    bearing: str | Bearing | None = None,
    orders: Mapping[str, float] | None = None,
    channel: str | None = None,
    rate: float | None = None,
) -> Diagnoses | PhysicalDiagnoses:
    """Diagnoses files, folders of them, or arrays (time,), which need their `rate`.

    With a `model` (its folder, an ONNX file, or what `adapt` returned) by that; without, from speed and bearing alone,
    where `orders` (BPFO, BPFI …, as multiples of the shaft's speed) may stand in for a bearing.
    """
    if rpm is not None and not 0 < rpm < inf:
        raise InputError(f"rpm must be a positive number, not {rpm:g}")
    if model is None:
        return diagnose_from_physics(files, rpm=rpm, bearing=bearing, orders=orders, channel=channel, rate=rate)
    if orders is not None:
        raise InputError("orders are for a diagnosis from physics alone; leave model or orders out")
    bearing = find_bearing(bearing) if isinstance(bearing, str) else bearing
    opened = open_model(model.model if isinstance(model, Adaptation) else Path(model))
    given = [files] if isinstance(files, str | Path | np.ndarray) else list(files)
    rows = []
    for number, each in enumerate(given):
        if isinstance(each, np.ndarray):
            recording = Recording(signal=each, rate=rate, domain="", origin=f"array {number}")
            opens = partial(Stream, recording.origin, rate, iter([recording.signal]))
            found = [FoundRecording(opens)]
        else:
            found = list(find_recordings([Path(each)], opened, channel))
        rows += [diagnose_found(opened, recording, rate, rpm, bearing).to_dict() for recording in found]
    return Diagnoses(rows)
