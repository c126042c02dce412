"""Figures that others published, to stand beside ours. They are data of the package: `published/*.csv`, in percent.

- `paper.csv`: Forest and Fink 2024 (doi 10.3390/s24237539), Paderborn; `table` is the label of its table. Means over
  five seeds at the last epoch. An ablation's rows that repeat another table are kept once. Its averages are kept as
  printed; three (AT, AT+MCC and CAT-Temperature) are a tenth below the mean of their tasks. Reports take the mean.
- `udtl.csv`: the UDTL benchmark (Zhao et al., IEEE Transactions on Instrumentation and Measurement 70, 2021), Paderborn
  and CWRU; its "Basis" is our source-only. All its methods are kept, though only two are ours.
- `authors-code.csv`: the paper's published code run on HIT-SM, one seed; ECE with 15 bins.

`method` is our name and empty where no recipe of ours is the same thing; `published_name` is theirs.

>>> published_figures("cwru", "time", "accuracy")[0].scores["DANN", "load0→load1"]
0.9994
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

# Label, file, the rows of task scores, and a sentence on whose figures they are.
SOURCES: tuple[tuple[str, str, Mapping[str, str], str], ...] = (
    ("paper", "paper.csv", {"quantity": "task"}, "Forest and Fink 2024, mean of five seeds at the last epoch"),
    ("UDTL", "udtl.csv", {"epoch": "last", "over_seeds": "mean"}, "Zhao et al. 2021, mean of seeds at the last epoch"),
    ("authors' code", "authors-code.csv", {}, "the paper's published code, seed 42 alone"),
)


@dataclass(frozen=True)
class Published:
    """What one publication says of one dataset, input and score, as fractions."""

    label: str
    citation: str
    scores: Mapping[tuple[str, str], float]  # (our method, our task)


def published_figures(dataset: str, kind: str, metric: str) -> list[Published]:
    """All there is for a dataset's name, an input, and a score as records name it; often nothing."""
    found = []
    for label, name, wanted, citation in SOURCES:
        text = (files("bearcat.report") / "published" / name).read_text(encoding="utf-8")
        place = (dataset, kind, metric)
        rows = [row for row in csv.DictReader(text.splitlines()) if row["method"]]
        rows = [row for row in rows if (row["dataset"], row["input"], row["metric"]) == place]
        scores = {
            (row["method"], f"{row['source']}→{row['target']}"): float(row["value"]) / 100
            for row in rows
            if wanted.items() <= row.items()
        }
        if scores:
            found.append(Published(label, f"{label}: {citation}", scores))
    return found
