"""Keeps every figure of README.md and the documents in docs/results.json, and makes the tables from it.

    python benchmarks/evidence_tables.py runs.jsonl              # lines of runs → docs/results.json → tables
    python benchmarks/evidence_tables.py bench-report/*/runs.csv  # runs of the paper's protocol → docs/replication.csv
    python benchmarks/evidence_tables.py                          # docs/results.json → tables and the picture

docs/results.json holds `tables` (header and rows) and `figures` (numbers of a paragraph), each with its version and the
command that makes it. A table is in a document between `<!-- evidence: NAME -->` and `<!-- end -->`, and a
paragraph with figures ends with `<!-- figures: NAME -->`. Lines are those of benchmarks/evidence.py, runs.csv is what
`bearcat bench report` writes. A mean is over tasks, of means over the seeds that all compared methods have; p is of
Wilcoxon's signed-rank test over tasks, as the seeds of a task share its data, adjusted by Holm over all tests of a table.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import draw_result
import numpy as np
import when_cat_pays
from evidence import read_lines
from scipy.stats import spearmanr

from bearcat.bench.stats import holm, signed_rank

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results.json"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- evidence: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Line = dict[str, Any]
Table = dict[str, Any]  # header, rows, of (the version), made_by
TaskMeans = dict[str, dict[str, list[float]]]  # method → task → a value for each seed

CONDITIONS = {
    "hit-sm": "HIT-SM, six tasks between speeds", "cwru": "CWRU, twelve tasks between loads",
    "unimore": "UNIMORE motor currents, no speed", "simulated": "simulated, twelve tasks",
}  # fmt: skip
SPECIMENS = {
    "cwru, other sizes": "CWRU, a damage size left out (three tasks)",
    "hit-sm, other defects": "HIT-SM, other defects at another speed (six tasks)",
    "simulated specimens": "simulated: twelve source bearings a type, four unseen (four tasks)",
    "simulated machines": "simulated: each bearing in a machine of its own (four tasks)",
}
WITNESSES = ("physics alone", "general model alone", "network alone", "diagnose", "diagnosis")
MEASURES = ("missed", "passed", "false_alarms", "type_right", "check", "ece")
IN_SAMPLE = {"cwru": "in-sample", "simulated": "in-sample"}  # where the default recipe was chosen
MADE = "python benchmarks/evidence.py {}"
# The paper's protocol on public benches (grids/replication.toml, grids/in-the-loop.toml): a row of a run.
REPLICATION = ROOT / "docs" / "replication.csv"
RUN = ("dataset", "input", "source", "target", "method", "seed")
SCORES = ("target_accuracy", "target_ece", "target_ece15")
NUMBERS = ("source_accuracy", *SCORES, "pseudo_label_share", "temperature", "at_bound", "collapsed")
BENCHES = {"unimore": "UNIMORE", "hit-sm": "HIT-SM", "cwru": "CWRU"}
CAT, AGAINST = "CAT*-Temperature", ("source-only", "DANN", "DANN*", "AT*")
REPLICATED = (*AGAINST, CAT, "CAT*-CPCS", "CAT*-Vector", "CAT*-Matrix", "CAT*-recordings")
BRIEF = ("source-only", "DANN", "DANN*", "AT*", CAT, "CAT*-recordings")
# Counted in docs/replication.csv by tests/test_evidence.py, the last two rows on UNIMORE's temperatures at a bound.
EXTRA = (
    "1", "15", "26", "0.2", "29", "16", "5",
    "23", "19", "67", "36", "40", "100", "33",
    "30.6", "30.0", "0.7", "22.4", "29.6",
)  # fmt: skip
IN_LOOP = ("AT*", CAT, "CAT*-Temperature, unbounded", "CAT*-CPCS", "CAT*-TransCal")
VERSION = "0.4, result version 9, NVIDIA H200, torch 2.11.0+cu130, bfloat16"


def complete(lines: Sequence[Line], value: Callable[[Line], float | None]) -> TaskMeans:
    """A number of each run by method and task, of the seeds that every method has in every task."""
    found: dict[tuple[str, str, int], float] = {}
    for line in lines:
        if (number := value(line)) is not None:
            found[line["method"], line["task"], line["seed"]] = number
    methods, tasks = {method for method, _, _ in found}, {task for _, task, _ in found}
    seeds = sorted({key[2] for key in found})
    kept = [seed for seed in seeds if all((method, task, seed) in found for method in methods for task in tasks)]
    return {
        method: {task: [found[method, task, seed] for seed in kept] for task in sorted(tasks)} for method in sorted(methods)
    }  # fmt: skip


def mean(values: Mapping[str, Sequence[float]]) -> float:
    return float(np.mean([np.mean(each) for each in values.values()]))


def differences(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> list[Any]:
    return [np.subtract(first[task], second[task]) for task in first]


def p_by_task(apart: Sequence[Any]) -> float:
    return signed_rank(np.array([each.mean() for each in apart]))


def target(name: str) -> Callable[[Line], float | None]:
    return lambda line: line["target"].get(name)


def percent(value: float, decimals: int = 1) -> str:
    """What is not all does not print as 100.0."""
    text = f"{100 * value:.{decimals}f}"
    return f"{100 * value:.{decimals + 1}f}" if text == "100.0" and value < 0.99995 else text


def p_text(p: float) -> str:
    return f"{p:.0e}".replace("e-0", "e-") if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def of_runs(lines: Sequence[Line]) -> str:
    """The version, and what the runs were made on."""
    version = sorted({line["versions"]["bearcat"] for line in lines})
    results = sorted({line["versions"]["result"] for line in lines})
    devices, torch = sorted({line["device"] for line in lines}), sorted({line["versions"]["torch"] for line in lines})
    return f"{'/'.join(version)}, result version {'/'.join(results)}, {'/'.join(devices)}, torch {'/'.join(torch)}"


def bootstrap(means: np.ndarray) -> tuple[float, float]:
    """A 95 % percentile interval for the mean of the tasks' means."""
    resampled = np.random.default_rng(0).integers(len(means), size=(2000, len(means)))
    low, high = np.quantile(means[resampled].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def conditions(lines: Sequence[Line]) -> dict[str, Table]:
    """Balanced accuracy / ECE of each recipe, and whether the default gains."""
    rows, short, tests = [], [], []
    for dataset, words in CONDITIONS.items():
        mine = [line for line in lines if line["part"] == "conditions" and line["dataset"] == dataset]
        right, error = complete(mine, target("balanced_accuracy")), complete(mine, target("ece"))
        if not {"dense-source-only", "match-clusters"} <= right.keys():
            continue
        seeds = len(next(iter(right["match-clusters"].values())))
        apart = differences(right["match-clusters"], right["dense-source-only"])
        tests.append(p_by_task(apart))
        low, high = bootstrap(np.array([each.mean() for each in apart]))
        cells = [f"{percent(mean(right[name]))} / {percent(mean(error[name]))}" for name in right]
        shown = dict(zip(right, cells, strict=True))
        rows.append([
            words, f"{len(apart)} × {seeds}", *(shown.get(name, "–") for name in METHODS),
            f"{100 * np.mean([each.mean() for each in apart]):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})", "",
            IN_SAMPLE.get(dataset, ""),
        ])  # fmt: skip
        short.append([words, shown["dense-source-only"], shown["match-clusters"], "", IN_SAMPLE.get(dataset, "")])
    for row, brief, p in zip(rows, short, holm(tests), strict=True):
        row[-2] = brief[-2] = p_text(p)
    if not rows:
        return {}
    header = ["balanced accuracy / ECE, percent", "tasks × seeds", "not adapted", "**match-clusters** (default)",
              "dense-MCC", "default − not adapted (95 %)", "p", "recipe chosen here"]  # fmt: skip
    heads = ["balanced accuracy / ECE, percent", "not adapted", "adapted (default)", "p", "recipe chosen here"]
    keep = {"of": of_runs(lines), "made_by": MADE.format("conditions")}
    return {
        "conditions": keep | {"header": header, "rows": rows},
        "conditions-short": keep | {"header": heads, "rows": [row for row in short if "simulated" not in row[0]]},
    }


METHODS = ("dense-source-only", "match-clusters", "dense-MCC")


def specimens(lines: Sequence[Line]) -> dict[str, Table]:
    """Recordings right by type, the network alone: mean over tasks and seeds, and the lowest cell."""
    rows, names = [], ("dense-source-only", "match-clusters", "unseen-bearings")
    for dataset, words in SPECIMENS.items():
        mine = [line for line in lines if line["part"] == "specimens" and line["dataset"] == dataset]
        right = complete(mine, lambda line: line["recordings"].get("network alone", {}).get("right"))
        if not set(names) <= right.keys():
            continue
        seeds = len(next(iter(right[names[0]].values())))
        cells = [f"{percent(mean(right[name]))} ({100 * min(map(min, right[name].values())):.1f})" for name in names]
        rows.append([words, *cells, str(seeds)])
    if not rows:
        return {}
    header = ["recordings right by type, percent", "not adapted", "`match-clusters` (default)", "`unseen-bearings`"]
    header.append("seeds")
    return {"specimens": {"of": of_runs(lines), "made_by": MADE.format("specimens"), "header": header, "rows": rows}}


def plant(lines: Sequence[Line]) -> dict[str, Table]:
    """Each witness and the one diagnosis, by shift; cells are a task, a target and a seed."""
    groups: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["part"] != "plant" or not line["recordings"]:
            continue
        shift = line["dataset"].rpartition(" ")[2].replace("machines", "machine")
        if shift == "condition" and line["method"] == "dense-source-only":
            continue
        for witness in line["recordings"]:
            for group in dict.fromkeys(("all", shift, line["dataset"])):
                groups[group][witness].append(line)
    rows, short, tests = [], [], dict[str, float]()
    for group in ("all", "condition", "specimen", "machine"):
        for witness in WITNESSES:
            mine = groups.get(group, {}).get(witness, [])
            cells = [[each for line in mine if (each := line["recordings"][witness].get(measure)) is not None]
                     for measure in MEASURES]  # fmt: skip
            if not mine or not all(cells) or (group != "all" and witness != "diagnosis"):
                continue
            worst = [min if measure == "type_right" else max for measure in MEASURES]
            texts = [
                f"{100 * np.mean(each):.1f} ({100 * pick(each):.0f})" for each, pick in zip(cells, worst, strict=True)
            ]
            rows.append([group, witness, str(len(mine)), *texts])
            if group == "all" and witness != "general model alone":
                if witness != "diagnosis":
                    tests[witness] = p_by_task(_missed_apart(mine, witness))
                plain = [text.partition(" ")[0] for text in texts]
                short.append(["one diagnosis" if witness == "diagnosis" else witness, *plain, ""])
    for row in short:
        adjusted = dict(zip(tests, holm(list(tests.values())), strict=True))
        row[-1] = p_text(adjusted[row[0]]) if row[0] in adjusted else ""
    if not rows:
        return {}
    heads = ["missed", "passed as ok", "false alarms", "type right", "check", "ECE"]
    keep = {"of": of_runs(lines), "made_by": MADE.format("plant")}
    brief = ["", "missed faults", "passed as `ok`", "false alarms", "type right", "`check`", "ECE", "p, missed"]
    return {
        "plant": keep | {"header": ["shift", "witness", "cells", *heads], "rows": rows},
        "plant-short": keep | {"header": brief, "rows": short},
    }


def _missed_apart(lines: Sequence[Line], witness: str) -> list[Any]:
    """Missed faults of a witness less those of the one diagnosis, a value for each task of a dataset."""
    found = defaultdict[tuple[str, str], list[float]](list)
    for line in lines:
        alone, whole = (line["recordings"].get(name, {}).get("missed") for name in (witness, "diagnosis"))
        if alone is not None and whole is not None:
            found[line["dataset"], line["task"].partition(" (")[0]].append(alone - whole)
    return [np.array(values) for values in found.values()]


def read_replication() -> list[Line]:
    """The rows of docs/replication.csv with numbers as such; empty cells are None."""
    with REPLICATION.open(newline="", encoding="utf-8") as file:
        rows: list[Line] = list(csv.DictReader(file))
    for row in rows:
        row["task"] = f"{row['source']}→{row['target']}"
        for name in NUMBERS:
            row[name] = float(row[name]) if row[name] else None
    return rows


def write_replication(paths: Sequence[Path]) -> None:
    """docs/replication.csv from runs.csv of `bearcat bench report`, each run once."""
    found = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                short = [f"{float(row[name]):.5g}" if row[name] else "" for name in NUMBERS[:-2]]
                flags = [str(int(row[name] == "True")) if row[name] else "" for name in NUMBERS[-2:]]
                found[tuple(row[name] for name in RUN)] = [*short, *flags]
    with REPLICATION.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [(*RUN, *NUMBERS), *((*key, *row) for key, row in found.items())]
        )


def replication(rows: Sequence[Line]) -> dict[str, Table]:
    """The paper's protocol: accuracy / ECE of its methods, what CAT* gains with p, and calibrators in the loop."""
    benches: dict[str, list[Line]] = defaultdict(list)
    for row in rows:
        benches[f"{BENCHES[row['dataset']]}, {row['input']}"].append(row)
    frequency = [row for row in rows if row["input"] == "frequency"]
    shared = set.intersection(*({row["method"] for row in frequency if row["dataset"] == name} for name in BENCHES))
    groups = {name: benches[name] for name in sorted(benches, key=lambda name: (name.endswith("time"), name))}
    groups["all, frequency"] = [
        {**row, "task": row["dataset"] + row["task"]} for row in frequency if row["method"] in shared
    ]
    main, gains, loop, tests = [], [], [], list[float]()
    for name, mine in groups.items():
        right, error, fine = (complete(mine, itemgetter(score)) for score in SCORES)
        tasks, seeds = len(right[CAT]), len(next(iter(right[CAT].values())))
        cells = {method: f"{percent(mean(right[method]))} / {percent(mean(error[method]))}" for method in right}
        plain = [row for row in mine if row["method"] in REPLICATED]
        collapsed = sum(row["collapsed"] for row in plain)
        main.append([name, f"{tasks} × {seeds}", *(cells.get(method, "–") for method in REPLICATED),
                     f"{collapsed:.0f} of {len(plain)}"])  # fmt: skip
        if not name.endswith("time"):
            apart = {other: [differences(score[CAT], score[other]) for score in (right, error)] for other in AGAINST}
            tests += [p_by_task(each) for pair in apart.values() for each in pair]
            points = [
                [f"{100 * np.mean([run.mean() for run in each]):+.1f}" for each in pair] for pair in apart.values()
            ]
            gains.append([name, *points])
        for method in IN_LOOP if not name.startswith("all") else ():
            runs = [row for row in mine if row["method"] == method]
            if runs:
                bound = "" if method == "AT*" else f"{sum(row['at_bound'] for row in runs):.0f} of {len(runs)}"
                share = percent(float(np.mean([row["pseudo_label_share"] for row in runs])))
                loop.append([name, method, cells[method], percent(mean(fine[method])), share, bound])
    adjusted = iter(holm(tests))
    for gained in gains:
        gained[1:] = [" / ".join(f"{points} ({p_text(next(adjusted))})" for points in pair) for pair in gained[1:]]
    keep = {"of": VERSION, "made_by": "bearcat bench run grids/replication.toml"}
    heads = ["accuracy / ECE, percent", "tasks × seeds", *REPLICATED, "collapsed runs"]
    short = [0, 1, *(heads.index(method) for method in BRIEF)]
    return {
        "replication": keep | {"header": heads, "rows": main},
        "replication-short": keep | {
            "header": [heads[place] for place in short],
            "rows": [[row[place] for place in short] for row in main if not row[0].endswith("time")],
        },
        "replication-gains": keep | {"header": ["accuracy (p) / ECE (p), points", *AGAINST], "rows": gains},
        "in-the-loop": {
            "of": VERSION, "made_by": "bearcat bench run grids/in-the-loop.toml", "rows": loop,
            "header": ["bench", "in the loop", "accuracy / ECE, percent", "ECE of 15 bins", "windows labelled", "T at a bound"],
        },
    }  # fmt: skip


def pays() -> tuple[dict[str, Table], list[str]]:
    """What CAT* gains over DANN* and AT* by the accuracy of source-only, on our tasks and on the paper's; and numbers of
    its picture: rank correlations over all tasks, and the range of the gain on the hard ones of ours.
    """
    benches = when_cat_pays.read_runs([REPLICATION])
    ours = {f"{bench} {name}": of for bench, tasks in benches.items() for name, of in tasks.items()}
    groups = {"ours, frequency": ours, "the paper's": when_cat_pays.published()}
    rows = []
    for words, tasks in groups.items():
        for low, high in ((0, 40), (40, 70), (70, 101)):
            mine = {name: of for name, of in tasks.items() if low <= of["source-only"][0] < high}
            gains = [
                np.mean([gain for _, gain in when_cat_pays.points(mine, other, score, 0)])
                for other in when_cat_pays.OTHERS
                for score in (0, 1)
            ]
            band = f"below {high} %" if not low else f"{low} to {high} %" if high < 100 else f"{low} % and more"
            rows.append([words, band, str(len(mine)), *(f"{gain:+.1f}" for gain in gains)])
    header = ["tasks", "source-only accuracy", "number", "accuracy over DANN*", "ECE lowered by", "accuracy over AT*",
              "ECE lowered by"]  # fmt: skip
    made = {"of": VERSION, "made_by": "python benchmarks/when_cat_pays.py"}
    hard = [gain for plain, gain in when_cat_pays.points(ours, "DANN*", 0, 0) if plain < 40]
    numbers = [str(sum(map(len, groups.values()))), f"{min(hard):.1f}", f"{max(hard):.1f}"]
    for score in (0, 1):
        every = [point for tasks in groups.values() for point in when_cat_pays.points(tasks, "DANN*", score, 0)]
        rank = spearmanr([plain for plain, _ in every], [gain for _, gain in every])
        numbers += [f"{rank.statistic:.2f}", p_text(rank.pvalue)]
    return {"when-cat-pays": made | {"header": header, "rows": rows}}, numbers


def figures(tables: Mapping[str, Table], more: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The numbers a paragraph about the paper's protocol may have: those of its tables, counts of tasks, and `more`."""
    found = {}
    for name, sources in OF_TABLES.items():
        cells = [cell for source in sources for row in tables[source]["rows"] for cell in row[1:]]
        numbers = {each for cell in cells for each in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", cell)}
        found[name] = {
            "of": VERSION, "made_by": "python benchmarks/evidence_tables.py",
            "numbers": sorted(numbers | {number.strip("-+") for number in more.get(name, ())}),
        }  # fmt: skip
    return found


# Of each named paragraph the tables whose numbers it may have.
OF_TABLES = {
    "replication": ("replication", "replication-gains", "in-the-loop"),
    "when-cat-pays": ("when-cat-pays",),
}


def markdown(table: Table) -> str:
    rows = [table["header"], ["---"] * len(table["header"]), *table["rows"]]
    return "".join("|" + "|".join(_padded(cell) for cell in row) + "|\n" for row in rows)


def _padded(cell: str) -> str:
    return cell if cell == "---" else f" {cell} " if cell else " "


def filled(text: str, tables: Mapping[str, Table]) -> str:
    """A document with its tables as docs/results.json has them."""
    return BLOCK.sub(lambda found: f"{found[1]}{markdown(tables[found[2]])}{found[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="what benchmarks/evidence.py wrote, or runs.csv")
    chosen = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    if runs := [path for path in chosen.files if path.suffix == ".csv"]:
        write_replication(runs)
    table, numbers = pays()
    kept["tables"] |= replication(read_replication()) | table
    kept["figures"] |= figures(kept["tables"], {"when-cat-pays": numbers, "replication": EXTRA})
    if lines := read_lines([path for path in chosen.files if path.suffix != ".csv"]):
        for make in (conditions, specimens, plant):
            kept["tables"] |= make([line for line in lines if line["part"].startswith(make.__name__)] or lines)
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    different = [page for page in PAGES if filled(text := page.read_text(encoding="utf-8"), kept["tables"]) != text]
    for page in different:
        print(f"{page.relative_to(ROOT)}: now has the figures of docs/results.json")
        page.write_text(filled(page.read_text(encoding="utf-8"), kept["tables"]), encoding="utf-8")
    draw_result.main()


if __name__ == "__main__":
    main()
