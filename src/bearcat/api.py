"""The things most people do, in one call each: `bearcat.adapt`, `bearcat.load` and `bearcat.diagnose`.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing, asked_bearing, known_orders
from bearcat.data.channels import Declared
from bearcat.data.datasets.folder import MANIFEST
from bearcat.deploy.find import FoundUnit, alone, array_recording, find_units, number_or_channel
from bearcat.deploy.predict import Given, Job, diagnose_units, healthy_physics, open_model
from bearcat.diagnosis.recording import Diagnoses, Diagnosis
from bearcat.errors import InputError

if TYPE_CHECKING:
    from bearcat.adaptation.adapt import Adaptation

Recorded = str | Path | NDArray[Any]


def adapt(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    method: str | None = None,
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
    a finished run is not run again. Doubts about the data are Python warnings; so are recordings that cannot be used:
    they are left out, and `problems` of the result says why. `progress` shows a bar.

    >>> adapted = bearcat.adapt(
    ...     "N15_M07_F10", "N09_M07_F10", data="simulated", epochs=1, window=1024, device="cpu", out="out",
    ...     settings={"seconds": 1, "severities": 4, "faults": "inner,outer"},
    ... )
    >>> adapted.decision.action in ("use", "check", "do not use")
    True
    """
    from bearcat.adaptation.adapt import adapt as run
    from bearcat.adaptation.plan import Wishes, make_plan
    from bearcat.data.tasks import Mix

    sources = [source] if isinstance(source, str | Path) else list(source)
    given = {name: str(value) for name, value in (settings or {}).items()}
    if data is None:
        data, folders = _common_root([Path(each) for each in [*sources, target]])
        given["folders"] = ",".join(folders)
        sources, target = [Path(name).name for name in folders[:-1]], Path(folders[-1]).name
    plan = make_plan(Wishes(
        data=str(data), root=None if root is None else Path(root), source=[str(each) for each in sources],
        target=str(target), input=input, method=method, epochs=epochs, seed=seed, split=split, window=window,
        channel=channel, specimen=specimen, machine=machine,
        rate=rate, rpm=None if rpm is None else str(rpm), bearing=bearing, device=device,
        mix=Mix(reference=reference or ""), settings=given or None,
    ))  # fmt: skip
    for sentence in (*(problem.sentence for problem in plan.problems), *plan.warnings):
        warnings.warn(sentence, stacklevel=2)
    if not progress:
        return run(plan, Path(out))
    from bearcat.cat.progress import training_progress

    return run(plan, Path(out), training_progress)


def load(
    data: str | Path,
    root: str | Path | None = None,
    *,
    domains: Sequence[str] | None = None,
    window: int = 1024,
    stride: int | None = None,
    rate: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.str_], NDArray[np.str_]]:
    """Windows of a named dataset or of a folder, as arrays: X (window, channel, sample), y and domain (window,).

    X holds waveforms, each standardised; y has the names of the classes, "" where a recording has no label.

    >>> X, y, domain = bearcat.load("simulated", window=512, settings={"seconds": 1, "faults": "inner"})
    >>> X.shape, str(y[0]), str(domain[0])
    ((496, 1, 512), 'healthy', 'N15_M07_F10')
    """
    from bearcat.data import Preparation, cache_folder, cached_windows, open_dataset

    texts = {name: str(value) for name, value in (settings or {}).items()}
    dataset = open_dataset(str(data), None if root is None else Path(root), texts)
    catalogue = dataset.catalogue().only(domains)
    windows = cached_windows(catalogue, Preparation("time", window, stride, rate), cache_folder())
    infos = windows.recordings
    labels, names = (np.array(texts) for texts in ([i.label or "" for i in infos], [i.domain for i in infos]))
    return np.array(windows.values), labels[windows.recording], names[windows.recording]


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
    rpm: float | str | None = None,
    bearing: str | Bearing | None = None,
    orders: Mapping[str, float] | None = None,
    channel: str | None = None,
    rate: float | None = None,
    healthy: Recorded | Sequence[Recorded] = (),
    channels: str | None = None,
    trust_speed: bool = False,
    unit: str | None = None,
    group: int | None = None,
    mounting: str | None = None,
    override: bool = False,
    jobs: int = 1,
) -> Diagnoses:
    """Diagnoses files, folders of them, or arrays (time,), which need their `rate`.

    Physics and the general model look at each recording whose speed and bearing are known, and a `model` (its folder,
    an ONNX file, or what `adapt` returned) too where it is given. `orders` (BPFO, BPFI, perhaps BSF and FTF, as
    multiples of the shaft's speed) may stand in for a bearing. `healthy` are known good recordings of the same point:
    lines that were always there are no alarm. `channels` of a file are axes of one bearing ("together") or bearings of
    their own ("apart"); their names say it otherwise. A speed that is not given is measured, and one that is given is
    checked, unless you `trust_speed`; `rpm` may name the channel that holds it. `rpm`, `bearing` and `rate` are of
    recordings that do not say their own; with `override` they replace what files and manifests say. With
    `bearing="unknown"` lines of any bearing are looked for. `unit` of the samples, `group` and `mounting` of the
    machine give its zone of ISO 20816-3. `jobs` processes share the recordings (0: one for each core).

    A file that cannot be used is to be checked, and `problems` of the result says why. InputError is raised where one
    file or array was given and it cannot be used, and not for folders and lists, whatever is in them.

    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> bearcat.diagnose(noise, rate=12_000, rpm=1480, bearing="6205").counts
    {'ok': 1, 'check': 0, 'alarm': 0}
    """
    path = None if model is None else Path(model) if isinstance(model, str | Path) else model.model
    opened = None if path is None else open_model(path)
    known = None if orders is None else known_orders(bearing, orders)
    geometry, search = asked_bearing(bearing)
    number, speed = number_or_channel(rpm)
    given = Given(
        rate, number, geometry, known, trust_speed=trust_speed, search=search, declared=Declared(unit, group, mounting),
        override=override,
    )  # fmt: skip

    def units(files: Recorded | Sequence[Recorded]) -> Iterator[FoundUnit]:
        several = [files] if isinstance(files, str | Path | np.ndarray) else list(files)
        for number, each in enumerate(several):
            if isinstance(each, np.ndarray):
                _check_array_speed(speed)
                array = array_recording(each, rate, f"array {number}" if len(several) > 1 else "array")
                yield FoundUnit(array.name, partial(iter, [alone(array)]))
            else:
                yield from find_units([Path(each)], opened, channel, channels, speed, override)

    named = not isinstance(healthy, tuple | list) or bool(healthy)
    usual = (each for unit in units(healthy) for each in unit.measurements())
    given = replace(given, healthy=healthy_physics(usual, given) if named else {})
    single = isinstance(files, np.ndarray) or (isinstance(files, str | Path) and not Path(files).is_dir())
    found = list[Diagnosis]()
    for answer in diagnose_units(units(files), Job(given, model=opened, path=path), jobs):
        found += answer.diagnoses
        if answer.problem is not None:  # the others go on
            if single and Path(str(files)).name != MANIFEST:
                raise answer.problem
            found.append(Diagnosis.undecided(answer.name, answer.problem))
    return Diagnoses(found).beside_each_other()


def _check_array_speed(channel: str | None) -> None:
    if channel is not None:
        raise InputError(f"rpm: an array has no channel '{channel}'; give a number", "rpm")
