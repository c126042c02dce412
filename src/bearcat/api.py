"""The things most people do, in one call each: `bearcat.adapt`, `bearcat.load` and `bearcat.diagnose`.

>>> import bearcat
>>> found = bearcat.adapt("recordings/pump-A", "recordings/pump-B", out="out")
>>> found                                   # decisions and diagnoses as a table, and the recommendation
>>> found.recordings.to_frame()             # the target's recordings as a pandas data frame
>>> bearcat.diagnose("monday.wav", model=found)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.manifest import MANIFEST
from bearcat.deploy.diagnose import Recorded
from bearcat.deploy.diagnose import diagnose as run
from bearcat.diagnosis.recording import Diagnoses
from bearcat.errors import InputError
from bearcat.requests import AdaptRequest, DiagnoseRequest

if TYPE_CHECKING:
    from bearcat.adaptation.adapt import Adaptation


def adapt(
    source: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    data: str | Path | None = None,
    out: str | Path = "bearcat-out",
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
    **request: Any,
) -> Adaptation:
    """Learns from labelled recordings, adapts to unlabelled ones, and says how far to trust the result.

    `source` is a folder with a folder for each label (or several such), `target` a folder of recordings; or both are
    names of domains in `data`, as for `bearcat adapt`. Other keywords are the fields of `AdaptRequest`, called as the
    options of `bearcat adapt`; what is not given is chosen from the recordings. The results are in `out`; a finished
    run is not run again. Doubts about the data are Python warnings; so are recordings that cannot be used: they are
    left out, and `problems` of the result says why. `progress` shows a bar.

    >>> adapted = bearcat.adapt(
    ...     "N15_M07_F10", "N09_M07_F10", data="simulated", epochs=1, window=1024, device="cpu", out="out",
    ...     settings={"seconds": 1, "severities": 4, "faults": "inner,outer"},
    ... )
    >>> adapted.decision.action in ("use", "check", "do not use")
    True
    """
    from bearcat.adaptation import make_plan
    from bearcat.adaptation.adapt import adapt as run
    from bearcat.cat.arrays import training_progress

    sources = [source] if isinstance(source, str | Path) else list(source)
    given = [f"{name}={value}" for name, value in (settings or {}).items()]
    if data is None:
        data, folders = _common_root([Path(each) for each in [*sources, target]])
        given.append(f"folders={','.join(folders)}")
        sources, target = [Path(name).name for name in folders[:-1]], Path(folders[-1]).name
    plan = make_plan(AdaptRequest.of(data=data, source=sources, target=target, settings=given, **request))
    for sentence in (*(problem.sentence for problem in plan.problems), *plan.warnings):
        warnings.warn(sentence, stacklevel=2)
    return run(plan, Path(out), training_progress) if progress else run(plan, Path(out))


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
    healthy: Recorded | Sequence[Recorded] = (),
    **request: Any,
) -> Diagnoses:
    """Diagnoses files, folders of them, or arrays (time,), which need their `rate`.

    Physics and the general model look at each recording whose speed and bearing are known, and a `model` (its folder,
    an ONNX file, or what `adapt` returned) too where it is given. `healthy` are known good recordings of the same
    point: lines that were always there are no alarm. Other keywords are the fields of `DiagnoseRequest`, called as the
    options of `bearcat diagnose`. `rpm`, `bearing` and `rate` are of recordings that do not say their own; a speed
    that is not given is measured. With `bearing="unknown"` lines of any bearing are looked for.

    A file that cannot be used is to be checked, and `problems` of the result says why. InputError is raised where one
    file or array was given and it cannot be used, and not for folders and lists, whatever is in them.

    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> bearcat.diagnose(noise, rate=12_000, rpm=1480, bearing="6205").counts
    {'ok': 1, 'check': 0, 'alarm': 0}
    """
    path = None if model is None else Path(model) if isinstance(model, str | Path) else model.model
    asked, opened = DiagnoseRequest.of(**request), None
    if path is not None:
        from bearcat.deploy.opened import open_model

        opened = open_model(path)
    found = run(_several(files), opened, _several(healthy), asked)
    single = isinstance(files, np.ndarray) or (isinstance(files, str | Path) and not Path(files).is_dir())
    return found.usable() if single and Path(str(files)).name != MANIFEST else found


def _several(files: Recorded | Sequence[Recorded]) -> Sequence[Recorded]:
    return [files] if isinstance(files, str | Path | np.ndarray) else list(files)
