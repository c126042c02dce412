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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """What one publication says of one dataset, input and score, as fractions."""

    label: str
    told: str  # one sentence: whose figures, and over what
    scores: Mapping[tuple[str, str], float]  # (our method, our task)
    ranks: Mapping[str, float] = field(default_factory=dict)  # average rank among the methods named here


def published_figures(dataset: str, kind: str, metric: str) -> list[Published]:
    """All there is for a dataset's name, "time" or "frequency", and a score as records name it; often nothing."""
    found = [_paper(dataset, kind, metric), _udtl(dataset, kind, metric), _authors_code(dataset, kind, metric)]
    return [one for one in found if one.scores]


def _paper(dataset: str, kind: str, metric: str) -> Published:
    rows = list(_rows("paper.csv", dataset, kind, metric))
    ranks = {row["method"]: float(row["value"]) for row in rows if row["quantity"] == "average rank"}
    told = "paper: Forest and Fink 2024, mean of five seeds at the last epoch"
    return Published("paper", told, _scores(row for row in rows if row["quantity"] == "task"), ranks)


def _udtl(dataset: str, kind: str, metric: str) -> Published:
    rows = _rows("udtl.csv", dataset, kind, metric)
    wanted = (row for row in rows if (row["epoch"], row["over_seeds"]) == ("last", "mean"))
    return Published("UDTL", "UDTL: Zhao et al. 2021, mean over seeds at the last epoch", _scores(wanted))


def _authors_code(dataset: str, kind: str, metric: str) -> Published:
    rows = _rows("authors-code.csv", dataset, kind, metric)
    return Published("authors' code", "authors' code: the paper's published code, seed 42 alone", _scores(rows))


def _scores(rows: Iterator[dict[str, str]]) -> dict[tuple[str, str], float]:
    return {
        (row["method"], f"{row['source']}→{row['target']}"): float(row["value"]) / 100 for row in rows if row["method"]
    }


def _rows(name: str, dataset: str, kind: str, metric: str) -> Iterator[dict[str, str]]:
    text = (files("bearcat.report") / "published" / name).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if (row["dataset"], row["input"], row["metric"]) == (dataset, kind, metric):
            yield row
