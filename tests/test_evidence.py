"""Figures of README.md and the documents are those of docs/results.json, and none stands there without a name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from bearcat.report.stats import holm, signed_rank

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # scripts that import each other
import evidence  # noqa: E402
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
def test_tables_are_those_of_the_results_file(page):
    text = page.read_text(encoding="utf-8")
    assert evidence_tables.filled(text, RESULTS["tables"]) == text, "python benchmarks/evidence_tables.py"
    for named in re.findall(r"<!-- figures: ([\w-]+) -->", text):
        assert named in RESULTS["figures"]


@pytest.mark.parametrize("page", evidence_tables.PAGES, ids=lambda page: page.name)
def test_figures_of_a_paragraph_are_those_of_the_results_file(page):
    for paragraph in paragraphs(page.read_text(encoding="utf-8")):
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


def test_an_edited_number_is_noticed():
    text = EVIDENCE[1].read_text(encoding="utf-8")
    block = evidence_tables.BLOCK.search(text)
    assert block is not None
    number = re.search(r"\d+\.\d", block[0])
    assert number is not None
    edited = text.replace(number[0], f"{float(number[0]) + 0.1:.1f}", 1)
    assert evidence_tables.filled(edited, RESULTS["tables"]) == text != edited


def test_every_table_names_its_version_and_command_and_the_file_is_small():
    assert evidence_tables.RESULTS.stat().st_size < 200 * 1024
    named = "".join(page.read_text(encoding="utf-8") for page in evidence_tables.PAGES)
    for name, table in RESULTS["tables"].items():
        assert table["of"], name
        assert table["made_by"], name
        assert {len(row) for row in table["rows"]} == {len(table["header"])}, name
        assert f"<!-- evidence: {name} -->" in named, name


def lines(part: str, dataset: str, gains: dict[str, float], seeds: int = 2) -> list[dict[str, object]]:
    """Invented runs of three tasks: a method's score is its gain, better from task to task."""
    made = {"versions": {"bearcat": "1", "result": "1", "torch": "2"}, "device": "cpu"}
    return [
        made | {"part": part, "dataset": dataset, "task": task, "method": method, "seed": seed,
                "target": {"balanced_accuracy": gain + number / 100 + seed / 1000, "ece": 0.1, "macro_f1": gain,
                           "recording_accuracy": 1.0}}
        for method, gain in gains.items() for number, task in enumerate("abc") for seed in range(seeds)
    ]  # fmt: skip


def test_the_table_of_conditions_is_the_slow_twins():
    """Means over tasks of means over seeds; p over tasks, adjusted over the rows of the table."""
    gains = {"hit-sm": {"dense-source-only": 0.5, "match-clusters": 0.7},
             "cwru": {"dense-source-only": 0.8, "match-clusters": 0.75}}  # fmt: skip
    runs = [line for name, gain in gains.items() for line in lines("conditions", name, gain)]
    runs.append(lines("conditions", "cwru", {"match-clusters": 9.0}, 3)[-1])  # a seed that the other method lacks
    table = evidence_tables.conditions(runs)["conditions"]
    first, second = table["rows"]
    assert [row[1] for row in table["rows"]] == ["3 × 2", "3 × 2"]
    assert first[2].startswith(f"{100 * (0.5 + 0.01 + 0.0005):.1f} / 10.0")
    assert first[8].startswith("+20.0")
    assert second[8].startswith("-5.0")
    p = signed_rank(np.array([0.2, 0.2, 0.2]))[0]
    assert first[-2] == second[-2] == evidence_tables.p_text(holm([p, p])[0])
    assert (first[-1], second[-1]) == ("", "in-sample")


def test_every_part_of_the_evidence_plans_runs_and_a_line_is_one(tmp_path):
    for part, selections in evidence.PARTS.items():
        for selection in selections:
            assert (evidence.GRIDS / f"{selection.grid}.toml").exists(), part
    groups = evidence.jobs("paper", 0, set())
    cells = [tuple(evidence.cell(part, spec).values()) for part, group in groups for spec in group]
    assert len(set(cells)) == len(cells) == 3 * (6 + 12)
    assert evidence.jobs("paper", 0, set(cells)) == []
    evidence.append(tmp_path / "runs.jsonl", {"part": "paper", "seed": 0})
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"part": "pap')  # cut off
    assert evidence.read_lines([tmp_path / "runs.jsonl"]) == [{"part": "paper", "seed": 0}]
