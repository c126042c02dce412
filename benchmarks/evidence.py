"""Trains the runs behind the tables of docs/results.md and writes one line per run.

    BEARCAT_DATA=data python benchmarks/evidence.py plant specimens conditions --device cuda --out runs.jsonl
    python benchmarks/evidence_tables.py runs.jsonl      # then: docs/results.json and the tables

The paper's protocol is grids/replication.toml, trained by `bearcat bench run`. Seed by seed, so that results are
comparable whenever time runs out: the same command goes on, and several processes share the store.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

GRIDS = Path(__file__).resolve().parents[1] / "grids"
CELL = ("part", "dataset", "input", "task", "method", "seed")
STORE = Path("bench-store")  # in which the runs are kept
PARTS = {"conditions": "physics", "specimens": "specimen", "plant": "plant-shaped"}  # their grids


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


def read_lines(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The lines of these files, each cell once; a line that was cut off is left out."""
    found = {}
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError):
                line = json.loads(text)
                found[tuple(line.get(name) for name in (*CELL, "shift", "way"))] = line
    return list(found.values())


def train(part: str, seed: int, device: str) -> list[dict[str, Any]]:
    """The lines of the runs of a part with this seed, which are trained where they are missing."""
    import torch

    from bearcat.adaptation import Library
    from bearcat.bench import Execution, execute, in_stacks, open_store, results
    from bearcat.bench.grid import plan, read_grid

    store, lines = open_store(STORE, create=True), list[dict[str, Any]]()
    specs = [spec for spec in plan(read_grid(GRIDS / f"{PARTS[part]}.toml")) if spec.seed == seed]
    for data, group in groupby(specs, key=lambda spec: spec.data):
        planned, library = list(group), Library()  # which keeps the data of one dataset
        runs = [library.identified(spec) for spec in planned]
        execution = Execution(store, runs, library, partial(print, flush=True))
        execute(execution, partial(in_stacks, device=torch.device(device)))
        finished = {result.folder.name: result for result in results(runs, store)[0]}
        known = [(spec, finished.get(run.identity)) for spec, run in zip(planned, runs, strict=True)]
        lines += [line_of(cell(part, spec), result) for spec, result in known if result is not None]
        print(f"{part}, {data}, seed {seed}: {len(finished)} of {len(runs)} runs", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"), help="lines are appended")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    for seed in range(5):
        for part in chosen.parts:
            lines = train(part, seed, chosen.device)
            with chosen.out.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in lines)


if __name__ == "__main__":
    main()
