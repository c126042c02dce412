"""Trains the runs behind the tables of docs/results.md and writes one line per run.

    BEARCAT_DATA=data python benchmarks/evidence.py plant specimens conditions --device cuda --out runs.jsonl
    python benchmarks/evidence_tables.py runs.jsonl      # then: docs/results.json and the tables

The paper's protocol is grids/replication.toml, trained by `bearcat bench run`. Processes get jobs of runs that share
their data, seed by seed, so that results are comparable whenever time runs out. A run is written to --out when it is
finished, and runs in --out are not trained again. Needs no packages but bearcat's.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import queue
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

GRIDS = Path(__file__).resolve().parents[1] / "grids"
CELL = ("part", "dataset", "input", "task", "method", "seed")
STORE = Path("bench-store")  # in which the runs are kept
SEEDS = 5  # at most
GRACE = 30.0  # seconds before the limit at which nothing more is begun and stacks stop at a checkpoint


@dataclass(frozen=True)
class Selection:
    """Of a grid: which parts (none: all), methods, inputs and seeds; runs of a job share what `job` gives."""

    grid: str
    methods: tuple[str, ...]
    seeds: int
    job: Callable[[Any], object]
    parts: tuple[int, ...] = ()
    inputs: tuple[str, ...] | None = None

    def specs(self, seed: int) -> Iterator[Any]:
        from bearcat.bench.grid import plan, read_grid

        for number, part in enumerate(read_grid(GRIDS / f"{self.grid}.toml")):
            methods = tuple(method for method in part.all_methods if method.name in self.methods)
            if methods and seed < self.seeds and (not self.parts or number in self.parts):
                inputs = self.inputs or part.inputs
                yield from plan([replace(part, methods=methods, method=(), seeds=(seed,), inputs=inputs)])


PARTS: dict[str, tuple[Selection, ...]] = {
    "conditions": (
        Selection("physics", ("dense-source-only", "match-clusters", "dense-MCC"), 5,
                  lambda spec: (spec.data, spec.task.target), (0, 1, 2, 3)),
    ),
    "specimens": (
        Selection("specimen", ("dense-source-only", "match-clusters", "unseen-bearings"), 5,
                  lambda spec: (spec.data, spec.task)),
    ),
    "plant": (
        Selection("plant-shaped", ("dense-source-only", "match-clusters"), 3, lambda spec: (spec.data, spec.task)),
    ),
}  # fmt: skip


def jobs(part: str, seed: int, done: set[tuple[Any, ...]]) -> list[tuple[str, list[Any]]]:
    """The runs of a part and seed that no line holds, in groups."""
    groups = defaultdict[object, list[Any]](list)
    for selection in PARTS[part]:
        for spec in selection.specs(seed):
            if tuple(cell(part, spec).values()) not in done:
                groups[selection.grid, selection.job(spec)].append(spec)
    return [(part, group) for group in groups.values()]


def cell(part: str, spec: Any) -> dict[str, Any]:
    """Which run, by the grid's own words: a physical input is known more exactly once the recordings are read."""
    known = spec.cell
    return dict(zip(CELL, (part, known.dataset, known.input, known.task, known.method, known.seed), strict=True))


def line_of(names: dict[str, Any], result: Any) -> dict[str, Any]:
    """What is kept of a run."""
    from recording_scores import witness_scores

    record = result.record
    target = {name: value for name, value in asdict(record.scores.target).items() if value is not None}
    expected = record.estimates.expected
    adapted = None if record.adaptation is None else bool(record.adaptation.get("adapted"))
    return names | {
        "target": {name: round(value, 6) for name, value in target.items()},
        "source_accuracy": record.scores.source and record.scores.source.accuracy,
        "expected": expected and round(expected.value, 5), "action": record.decision.action, "adapted": adapted,
        "shift": record.shift, "failed": record.failed, "collapsed": record.collapsed, "mix": record.settings.mix,
        "epochs": record.settings.epochs, "windows": [record.data.source_train, record.data.target_test],
        "seconds": record.seconds / record.stack, "stack": record.stack, "parameters": record.parameters,
        "device": record.device, "precision": record.precision, "versions": dict(record.versions),
        "recordings": {
            name: {key: value for key, value in asdict(scores).items() if value is not None}
            for name, scores in witness_scores(result).items()
        },
    }  # fmt: skip


def append(out: Path, line: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(line) + "\n")


def read_lines(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The lines of these files, each cell once; a line that was cut off is left out."""
    found = {}
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError):
                line = json.loads(text)
                found[tuple(line.get(name) for name in (*CELL, "shift", "way"))] = line
    return list(found.values())


def work(waiting: Any, store: Path, out: Path, device: str, deadline: float) -> None:
    """A process: trains job after job."""
    import torch

    from bearcat.adaptation import Library
    from bearcat.bench import identify, open_store
    from bearcat.bench.execute import Execution, execute, in_stacks
    from bearcat.report import Result

    torch.set_num_threads(1)
    kept, library, last = open_store(store, create=True), Library(), None
    while time.time() < deadline:
        try:
            part, specs = waiting.get_nowait()
        except queue.Empty:
            return
        begun = time.time()
        if (specs[0].dataset, specs[0].task.target) != last:
            library, last = Library(), (specs[0].dataset, specs[0].task.target)
        try:
            runs = identify(specs, kept, library)
            execution = Execution(kept, runs, lambda text: print(text, flush=True), library=library)
            execute(execution, partial(in_stacks, device=torch.device(device)))
            for spec, run in zip(specs, runs, strict=True):
                if (known := kept.state(run.identity).record) is not None:
                    append(out, line_of(cell(part, spec), Result(run.cell, known, kept.folder(run.identity))))
        except Exception:
            print(f"{part}, {specs[0].cell}: failed", traceback.format_exc(), flush=True)
        took = time.time() - begun
        print(f"{part}: {len(specs)} runs of {specs[0].cell} in {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"), help="lines are appended")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--limit-seconds", type=float, default=1e9)
    chosen = parser.parse_args()
    if unknown := [part for part in chosen.parts if part not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}'; known are {', '.join(PARTS)}")
    deadline, context = time.time() + chosen.limit_seconds - GRACE, get_context("spawn")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process
    done = {tuple(line.get(name) for name in CELL) for line in read_lines([chosen.out])}
    waiting, count = context.Queue(), 0
    for seed in range(SEEDS):
        for part in chosen.parts or PARTS:
            for job in jobs(part, seed, done):
                waiting.put(job)
                count += len(job[1])
        print(f"{count} runs up to seed {seed}", flush=True)
    time.sleep(1)  # the queue's own thread hands over
    given = (waiting, STORE, chosen.out, chosen.device, deadline)
    workers = [context.Process(target=work, args=given, daemon=True) for _ in range(chosen.jobs)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.time() < deadline + GRACE - 5:
        time.sleep(0.5)
    left = [worker for worker in workers if worker.is_alive()]
    for worker in left:
        worker.terminate()
    print(f"{len(read_lines([chosen.out]))} lines; {len(left)} processes were stopped", flush=True)
    waiting.cancel_join_thread()


if __name__ == "__main__":
    main()
