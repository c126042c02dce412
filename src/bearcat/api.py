"""The things most people do, in one call each: `bearcat.adapt`, `bearcat.load` and `bearcat.diagnose`.

>>> adapted = bearcat.adapt("recordings/pump-A", "recordings/pump-B", out="out")
>>> bearcat.diagnose("monday.wav", model=adapted)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.datasets import MANIFEST
from bearcat.deploy import Recorded
from bearcat.deploy import diagnose as run
from bearcat.diagnosis.recording import Diagnoses
from bearcat.errors import InputError
from bearcat.settings import AdaptRequest, DiagnoseRequest

if TYPE_CHECKING:
    from bearcat.adaptation.run import Adaptation


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

    `source` is a folder (or several) with a folder for each label, `target` a folder of recordings; with `data` both
    are names of its domains. Other keywords are fields of `AdaptRequest`, the options of `bearcat adapt`. Results are
    written to `out`; a finished run is not repeated. Doubts about the data are Python warnings, as are unusable
    recordings, which are left out and listed in `problems`. `progress` shows a bar.

    >>> adapted = bearcat.adapt(
    ...     "N15_M07_F10", "N09_M07_F10", data="simulated", epochs=1, window=1024, device="cpu", out="out",
    ...     settings={"seconds": 1, "severities": 4, "faults": "inner,outer"},
    ... )
    >>> adapted.decision.action in ("use", "check", "do not use")
    True
    """
    from bearcat.adaptation import make_plan
    from bearcat.adaptation.run import adapt as run
    from bearcat.cat.state import training_progress

    sources = [source] if isinstance(source, str | Path) else list(source)
    texts = [f"{name}={value}" for name, value in (settings or {}).items()]
    if data is None:
        data, folders = _common_root([Path(folder) for folder in [*sources, target]])
        texts.append(f"folders={','.join(folders)}")
        sources, target = [Path(folder).name for folder in folders[:-1]], Path(folders[-1]).name
    plan = make_plan(AdaptRequest.of(data=data, source=sources, target=target, settings=texts, **request))
    for sentence in (*(problem.sentence for problem in plan.library.part(plan.spec).left_out), *plan.spec.warnings):
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

    X holds standardised waveforms, y the names of classes, "" for a recording without a label.

    >>> X, y, domain = bearcat.load("simulated", window=512, settings={"seconds": 1, "faults": "inner"})
    >>> X.shape, str(y[0]), str(domain[0])
    ((496, 1, 512), 'healthy', 'N15_M07_F10')
    """
    from bearcat.data import Preparation, open_dataset, prepare
    from bearcat.data import load as load_recordings

    texts = {name: str(value) for name, value in (settings or {}).items()}
    dataset = open_dataset(str(data), None if root is None else Path(root), texts)
    windows = prepare(load_recordings(dataset.catalogue(), domains), Preparation("time", window, stride, rate))
    labels = np.array([recording.label or "" for recording in windows.recordings])
    names = np.array([recording.domain for recording in windows.recordings])
    return np.array(windows.values), labels[windows.recording], names[windows.recording]


def _common_root(folders: Sequence[Path]) -> tuple[Path, list[str]]:
    """A folder above all of these, and their paths below it."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give folders, or names of domains with data=…")
    folders = [folder.resolve() for folder in folders]
    root = Path(os.path.commonpath([folder.parent for folder in folders]))
    names = [folder.relative_to(root).as_posix() for folder in folders]
    if len({folder.name for folder in folders}) < len(folders) or any("," in name for name in names):
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

    `model` is its folder, an ONNX file, or what `adapt` returned. `healthy` are good recordings of the point, whose
    lines are no alarm. Other keywords are fields of `DiagnoseRequest`, the options of `bearcat diagnose`; `rpm`,
    `bearing` and `rate` are for recordings that do not state theirs. A speed that is not stated is measured.

    A file that cannot be used is one to check, and `problems` says why. If it is the only one, it raises InputError.

    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> bearcat.diagnose(noise, rate=12_000, rpm=1480, bearing="6205").counts
    {'ok': 1, 'check': 0, 'alarm': 0}
    """
    options, opened = DiagnoseRequest.of(**request), None
    if model is not None:
        from bearcat.deploy.opened import open_model

        opened = open_model(Path(model) if isinstance(model, str | Path) else model.model)
    diagnoses = run(_listed(files), opened, _listed(healthy), options)
    single = isinstance(files, np.ndarray) or (isinstance(files, str | Path) and not Path(files).is_dir())
    return diagnoses.usable() if single and Path(str(files)).name != MANIFEST else diagnoses


def _listed(files: Recorded | Sequence[Recorded]) -> Sequence[Recorded]:
    return [files] if isinstance(files, str | Path | np.ndarray) else list(files)
