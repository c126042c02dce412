"""Figures of README.md and the documents are those of docs/results.json, and none stands there without a name."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # scripts that import each other
import evidence_tables  # noqa: E402

RESULTS = json.loads(evidence_tables.RESULTS.read_text(encoding="utf-8"))
EVIDENCE = [ROOT / "README.md", ROOT / "docs" / "results.md"]  # of which every figure has a name
NUMBER = re.compile(r"(?<![\w.#/])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\w)")
# Versions, and lengths of recordings and windows, are no results.
EXEMPT = re.compile(r"`[^`]*`|\(http\S*\)|Python [\d.]+ to [\d.]+|version [\d.]+|BY-NC [\d.]+|[\d.]+ (s|inch|kHz)\b")
MEASURED = re.compile(r"\d\.\d|\d %|\d+ of \d+")  # in a sentence: a share, or a number with a decimal


def paragraphs(text: str) -> list[str]:
    """Paragraphs and list items, without code, tables and pictures."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(#|!\[).*$", "", evidence_tables.BLOCK.sub("", text), flags=re.MULTILINE)
    return re.split(r"\n\s*\n|\n(?=- )", text)


@pytest.mark.parametrize("page", evidence_tables.PAGES, ids=lambda page: page.name)
def test_tables_and_figures_of_paragraphs_are_those_of_the_results_file(page):
    text = page.read_text(encoding="utf-8")
    assert evidence_tables.filled(text, RESULTS["tables"]) == text, "python benchmarks/evidence_tables.py"
    for paragraph in paragraphs(text):
        for name in re.findall(r"<!-- figures: ([\w-]+) -->", paragraph):
            said = NUMBER.findall(re.sub(r"<!--.*?-->|\(\S*\)|`[^`]*`", "", paragraph))
            assert set(said) <= set(RESULTS["figures"][name]["numbers"]), paragraph


@pytest.mark.parametrize("page", EVIDENCE, ids=lambda page: page.name)
def test_no_figure_stands_without_a_name(page):
    text = page.read_text(encoding="utf-8")
    outside = evidence_tables.BLOCK.sub("", text)
    assert not re.findall(r"^\|[-| :]+\|$", outside, re.MULTILINE), "a table without <!-- evidence: NAME -->"
    for paragraph in paragraphs(text):
        assert "<!-- figures:" in paragraph or not MEASURED.search(EXEMPT.sub("", paragraph)), paragraph


def test_every_table_names_its_version_and_command_and_the_file_is_small():
    assert evidence_tables.RESULTS.stat().st_size < 200 * 1024
    named = "".join(page.read_text(encoding="utf-8") for page in evidence_tables.PAGES)
    for name, table in RESULTS["tables"].items():
        assert all((table["of"], table["made_by"])), name
        assert {len(row) for row in table["rows"]} == {len(table["header"])}, name
        assert f"<!-- evidence: {name} -->" in named, name


def test_tables_of_the_papers_protocol_are_those_of_its_runs():
    made = evidence_tables.replication(evidence_tables.read_replication())
    table, numbers = evidence_tables.pays()
    for name, found in (made | table).items():
        assert found == RESULTS["tables"][name], "python benchmarks/evidence_tables.py"
    more = {"when-cat-pays": numbers, "replication": evidence_tables.EXTRA}
    for name, found in evidence_tables.figures(RESULTS["tables"], more).items():
        assert found == RESULTS["figures"][name]


def test_counts_beside_the_tables_are_those_of_the_runs():
    rows = evidence_tables.read_replication()
    collapsed = Counter(row["method"] for row in rows if row["input"] == "frequency" and row["collapsed"])
    assert collapsed == {"source-only": 29, "DANN": 4, "DANN*": 16, "AT*": 5, "CAT*-Temperature": 5}
    cwru = [row for row in rows if row["dataset"] == "cwru"]
    scores = {(row["method"], row["task"], row["seed"]): (row["target_accuracy"], row["target_ece"]) for row in cwru}
    pairs = [(value, scores["CAT*-Temperature", *cell]) for (name, *cell), value in scores.items() if name == "AT*"]
    assert sum(plain == calibrated for plain, calibrated in pairs) == 26
    unbounded = [row["temperature"] for row in cwru if row["method"] == "CAT*-Temperature, unbounded"]
    assert round(float(np.median(unbounded)), 1) == 0.2


def test_where_unimores_temperature_is_at_its_bound_the_teacher_is_at_chance_on_the_source():
    rows = [row for row in evidence_tables.read_replication() if row["dataset"] == "unimore" and row["input"] != "time"]
    at = {(row["task"], row["seed"]): row["target_ece"] for row in rows if row["method"] == "AT*"}
    runs = [row for row in rows if row["method"] == "CAT*-Temperature"]
    assert sum(row["source_accuracy"] < 0.4 for row in runs) == 36
    bound, others = ([row for row in runs if row["at_bound"] == flag] for flag in (1, 0))
    assert {row["temperature"] for row in bound} == {100}
    assert {round(100 * row["source_accuracy"]) for row in bound} == {33, 34, 36}
    groups = [row for row in bound if not row["collapsed"]], [row for row in bound if row["collapsed"]], others
    assert [len(group) for group in groups] == [19, 4, 67]
    calibrated = [np.mean([row["target_ece"] for row in group]) for group in groups]
    plain = [np.mean([at[row["task"], row["seed"]] for row in group]) for group in groups]
    assert [f"{100 * error:.1f}" for error in calibrated] == ["30.6", "0.7", "22.4"]
    assert [f"{100 * error:.1f}" for error in (plain[0], plain[2])] == ["30.0", "29.6"]
