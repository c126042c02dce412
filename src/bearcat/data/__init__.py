"""Recordings in, tasks out; numpy and scipy only. `DATASETS` is the table of everything that can be opened.

Names are loaded on first use: diagnosing a file needs neither tasks nor benches.

>>> catalogue = open_dataset("simulated", settings={"seconds": "1", "faults": "outer"}).catalogue()
>>> task = Task("N15_M07_F10", "N09_M07_F10")
>>> source = prepare(load(catalogue, task.sources), Preparation())
>>> target = prepare(load(catalogue, [task.target]), Preparation())
>>> split_task(task, source, target, "window", seed=0).classes
('healthy', 'outer-1', 'outer-2', 'outer-3')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bearcat.data.bearing import BEARINGS, Bearing, find_bearing
    from bearcat.data.benches import CWRU, HITSM, AcrossMachines, Paderborn
    from bearcat.data.datasets import DATASETS, Catalogue, Dataset, Entry, Problem, load, open_dataset
    from bearcat.data.folder import Folder
    from bearcat.data.inputs import INPUTS, Input, Preparation, find_input
    from bearcat.data.recording import Recording, Windows, resample
    from bearcat.data.simulate import Simulated
    from bearcat.data.tasks import Task, split_task
    from bearcat.data.windows import prepare

__all__ = [
    "BEARINGS", "CWRU", "DATASETS", "HITSM", "INPUTS", "AcrossMachines", "Bearing", "Catalogue", "Dataset", "Entry",
    "Folder", "Input", "Paderborn", "Preparation", "Problem", "Recording", "Simulated", "Task", "Windows",
    "find_bearing", "find_input", "load", "open_dataset", "prepare", "resample", "split_task",
]  # fmt: skip

_MODULES = (  # in which these names are looked for, the cheapest first
    "bearing", "recording", "datasets", "inputs", "windows", "tasks", "folder", "benches", "simulate",
)  # fmt: skip

if not TYPE_CHECKING:  # a type checker knows the names above and no others

    def __getattr__(name: str) -> Any:
        for module in _MODULES if name in __all__ else ():
            if name in (names := vars(import_module(f"{__name__}.{module}"))):
                return names[name]
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
