"""The two things most people do, in one call each: `bearcat.adapt` and `bearcat.diagnose`.

>>> import bearcat
>>> found = bearcat.adapt("recordings/pump-A", "recordings/pump-B", out="out")
>>> found                                   # decisions and diagnoses as a table, and the recommendation
>>> found.to_frame()                        # the target's recordings as a pandas data frame
>>> bearcat.diagnose("monday.wav", model=found)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing, find_bearing, known_orders
from bearcat.deploy.find import FoundMeasurement, alone, array_recording, find_measurements
from bearcat.deploy.predict import Given, diagnose_measurement, healthy_physics, open_model
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.errors import InputError

if TYPE_CHECKING:
    from bearcat.runs.adapt import Adaptation

Recorded = str | Path | NDArray[Any]


def adapt(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    recipe: str | None = None,
    out: str | Path = "bearcat-out",
    input: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    split: str | None = None,
    window: int | None = None,
    channel: str | None = None,
    rate: float | None = None,
    rpm: float | str | None = None,
    bearing: str | None = None,
    specimen: str | None = None,
    machine: str | None = None,
    reference: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Adaptation:
    """Learns from labelled recordings, adapts to unlabelled ones, and says how far to trust the result.

    `source` is a folder with a folder for each label (or several such), `target` a folder of recordings; or both are
    names of domains in `data`, as for `bearcat adapt`. Everything else is chosen from the recordings where it is not
    given. `reference` names target recordings known to be of a class, or one that is healthy. The results are in `out`;
    a finished run is not run again. Doubts about the data are Python warnings; `progress` shows a bar.
    """
    from bearcat.runs.adapt import adapt as run
    from bearcat.runs.plan import Wishes, make_plan, target_mix

    sources = [source] if isinstance(source, str | Path) else list(source)
    given = {name: str(value) for name, value in (settings or {}).items()}
    if data is None:
        data, folders = _common_root([Path(each) for each in [*sources, target]])
        given["folders"] = ",".join(folders)
        sources, target = [Path(name).name for name in folders[:-1]], Path(folders[-1]).name
    plan = make_plan(Wishes(
        data=str(data), root=None if root is None else Path(root), source=[str(each) for each in sources],
        target=str(target), input=input, recipe=recipe, epochs=epochs, seed=seed, split=split, window=window,
        channel=channel, specimen=specimen, machine=machine,
        rate=rate, rpm=None if rpm is None else str(rpm), bearing=bearing, device=device,
        mix=target_mix((), {}, reference), settings=given or None,
    ))  # fmt: skip
    for sentence in plan.warnings:
        warnings.warn(sentence, stacklevel=2)
    if not progress:
        return run(plan, Path(out))
    from bearcat.cli.train import training_bar

    return run(plan, Path(out), training_bar)


def _common_root(folders: Sequence[Path]) -> tuple[Path, list[str]]:
    """A folder above all of these, and their places below it."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give folders, or names of domains with data=…")
    places = [folder.resolve() for folder in folders]
    root = Path(os.path.commonpath([place.parent for place in places]))
    names = [place.relative_to(root).as_posix() for place in places]
    if len({place.name for place in places}) < len(places) or any("," in name for name in names):
        raise InputError("folders are domains by their names, which must differ and have no comma; rename one")
    return root, names


def diagnose(
    files: Recorded | Sequence[Recorded],
    *,
    model: str | Path | Adaptation | None = None,
    rpm: float | None = None,
    bearing: str | Bearing | None = None,
    orders: Mapping[str, float] | None = None,
    channel: str | None = None,
    rate: float | None = None,
    healthy: Recorded | Sequence[Recorded] = (),
    channels: str | None = None,
    trust_speed: bool = False,
) -> Diagnoses:
    """Diagnoses files, folders of them, or arrays (time,), which need their `rate`.

    Physics and the general model look at each recording whose speed and bearing are known, and a `model` (its folder,
    an ONNX file, or what `adapt` returned) too where it is given. `orders` (BPFO, BPFI, perhaps BSF and FTF, as
    multiples of the shaft's speed) may stand in for a bearing. `healthy` are known good recordings of the same point:
    lines that were always there are no alarm. `channels` of a file are axes of one bearing ("together") or bearings of
    their own ("apart"); their names say it otherwise. A speed that is not given is measured, and one that is given is
    checked, unless you `trust_speed`. A file that cannot be used is to be checked; InputError where none can.
    """
    opened = None if model is None else open_model(Path(model) if isinstance(model, str | Path) else model.model)
    known = known_orders(bearing, orders) if opened is None or orders is not None else None
    geometry = find_bearing(bearing) if isinstance(bearing, str) else bearing
    given = Given(rate, rpm, geometry, known, trust_speed=trust_speed)

    def measurements(files: Recorded | Sequence[Recorded]) -> Iterator[FoundMeasurement]:
        several = [files] if isinstance(files, str | Path | np.ndarray) else list(files)
        for number, each in enumerate(several):
            if isinstance(each, np.ndarray):
                yield alone(array_recording(each, rate, f"array {number}" if len(several) > 1 else "array"))
            else:
                yield from find_measurements([Path(each)], opened, channel, channels)

    named = not isinstance(healthy, tuple | list) or bool(healthy)
    given = replace(given, healthy=healthy_physics(measurements(healthy), given) if named else {})
    found, errors = list[Diagnosis](), list[InputError]()
    for each in measurements(files):
        try:
            found += diagnose_measurement(each, opened, given)
        except InputError as error:  # the others go on
            errors.append(error)
            found.append(Diagnosis.unreadable(each.name, str(error)))
    if errors and len(errors) == len(found):
        raise errors[0]
    return Diagnoses(found).beside_each_other()
