"""Writes one line for each run behind the tables of docs/results.md.

    BEARCAT_DATA=data bearcat bench run grids/plant-shaped.toml          # also physics.toml and specimen.toml
    BEARCAT_DATA=data python benchmarks/evidence.py plant specimens conditions --out runs.jsonl
    python benchmarks/evidence_tables.py runs.jsonl                       # then: docs/results.json and the tables

The paper's protocol is grids/replication.toml.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recording_scores import witness_scores

from bearcat.adaptation import Library
from bearcat.bench import open_store, results
from bearcat.bench.grid import plan, read_grid

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


def lines_of(part: str) -> list[dict[str, Any]]:
    """The lines of the finished runs of a part."""
    store, library = open_store(STORE), Library()
    specs = plan(read_grid(GRIDS / f"{PARTS[part]}.toml"), None, library)
    runs = [library.identified(spec) for spec in specs]
    finished = {result.folder.name: result for result in results(runs, store)[0]}
    print(f"{part}: {len(finished)} of {len(runs)} runs")
    known = [(spec, finished.get(run.identity)) for spec, run in zip(specs, runs, strict=True)]
    return [line_of(cell(part, spec), result) for spec, result in known if result is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"), help="lines are appended")
    chosen = parser.parse_args()
    with chosen.out.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for part in chosen.parts for line in lines_of(part))


if __name__ == "__main__":
    main()
