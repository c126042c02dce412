"""Findings are data: each kind has its sentence, wording is pinned here alone, and nothing in the program reads it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import bearcat
from bearcat.findings import (
    MOST_REASONS,
    SENTENCES,
    SEVERITIES,
    Finding,
    highest,
    most_severe,
    reasons,
    sentence,
    unique,
)
from bearcat.settings import from_plain, to_plain
from bearcat.watch.alarm import CLAIMLESS

ROOT = Path(bearcat.__file__).parent
LINE = {"state": "outer race", "line": "BPFO", "multiple": 1, "hertz": 107.7, "level": 22.4, "clarity": "strong"}
FAMILY = {
    "order": 3.58, "hertz": 107.3, "level": 15.0, "shaft_multiple": None,
    "bearings": {"outer race": ["6205", "6206", "6207", "6208"], "inner race": [], "ball": []},
}  # fmt: skip
EXAMPLES = [
    ("fault line", LINE, "BPFO 107.7 Hz, 22 dB (strong)"),
    ("fault line", LINE | {"change": 11.0, "by": "quiet majority"}, "BPFO 107.7 Hz, 22 dB (strong, 11 dB above the quiet majority)"),
    ("physics contradicts", LINE | {"multiple": 2}, "physics finds outer race (2 × BPFO 107.7 Hz, 22 dB)"),
    ("physics contradicts", {"state": "healthy"}, "physics finds no fault"),
    (
        "lines of unknown bearing", FAMILY,
        "strikes 3.58 times a turn (107.3 Hz, 15 dB above other orders); explained by outer race of 6205, 6206, …",
    ),
    ("clipped", {"share": 0.0123}, "1.2 % of the samples are clipped; record with less gain"),
    (
        "dead axis", {"axis": "y", "cause": "constant", "value": 0.0},
        "y: the sensor gives no signal: all samples are 0; check sensor and cable",
    ),
    (
        "wrong speed", {"rpm": 1207.0, "level": 57.0, "stated": 600.0, "used": "measured"},
        "the shaft line is at 1207 rpm (57 dB), not at the stated 600 rpm; 1207 rpm is used",
    ),
    (
        "statements differ",
        {"about": "bearing", "stated": "6203", "given": "6205"},
        "its own bearing, 6203, counts, and not the given 6205",
    ),
    ("label recordings", {"labelled": False, "recordings": ["a", "b"]}, "label some recordings, such as a, b"),
    (
        "baseline change",
        {"measurement": "band_4", "title": "", "band": [3.84, 5.12], "decibels": 9.8, "learnt": True},
        "RMS in 3.84–5.12 kHz 10 dB above what is usual",
    ),
    (
        "baseline incomplete", {"recordings": 11, "wanted": 12, "days": 1.5, "of_days": 2.0},
        "baseline: 11 of 12 recordings, 1.5 of 2 days; judged as diagnose does; change is judged after 1 more recording"
        " and 0.5 more days",
    ),
    (
        "doubted baseline", {"doubt": "mains hum", "values": {"hertz": 50.0}},
        "most recordings of its baseline were to be checked: nearly all of the signal is mains hum (50 Hz and"
        " multiples); check cable and grounding; look at the machine, then acknowledge",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "words"), EXAMPLES)
def test_examples_of_wording(kind, values, words):
    assert sentence(Finding(kind, "check", values)) == words


def test_every_kind_that_is_noticed_has_a_sentence_and_every_sentence_a_kind():
    texts = set[str]()
    for path in ROOT.rglob("*.py"):
        if path.name != "findings.py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                    named = {part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)}
                    assert named <= set(SENTENCES), f"{path.name}:{node.lineno}"
                texts |= {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
    assert set(SENTENCES) <= texts
    assert set(CLAIMLESS) <= set(SENTENCES)


def test_findings_come_back_from_json_and_others_are_refused():
    found = (Finding("lines of unknown bearing", "alarm", FAMILY), Finding("no baseline", "remark"))
    assert from_plain(tuple[Finding, ...], json.loads(json.dumps(to_plain(found)))) == found
    for wrong in ({"kind": "weather"}, {"severity": "terrible"}, {"values": 3}):
        with pytest.raises(ValueError, match="cannot be"):
            from_plain(Finding, {"kind": "clipped", "severity": "check", "values": {}} | wrong)


def test_reasons_are_the_most_severe_findings_that_ask_for_a_person():
    remark, check = Finding("no baseline", "remark"), Finding("refused model", "check")
    alarm, other = Finding("fault line", "alarm", LINE), Finding("clipped", "check", {"share": 0.1})
    assert most_severe([remark, check, other, alarm]) == [alarm]
    assert most_severe([remark, check, other]) == [check, other]
    assert len(reasons([check, other, Finding("mains hum", "check", {"hertz": 50.0})])) == MOST_REASONS
    assert [highest(found) for found in ([], [remark], [remark, check], [check, alarm])] == list(SEVERITIES)
    assert unique([check, remark, check.but("remark")]) == (check, remark)


# Nothing compares, cuts or searches a sentence.

PROSE = {
    "what",
    "reason",
    "reasons",
    "note",
    "notes",
    "sentence",
    "sentences",
    "quality",
    "problem",
    "caption",
    "doubt",
}
CUTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "replace", "find", "index",
        "split", "count"}  # fmt: skip
MATCHES = {"match", "fullmatch", "search", "findall", "sub"}


def _is_prose(node: ast.AST) -> bool:
    """Whether a value is a sentence, by the name of the variable or field."""
    if isinstance(node, ast.Call):  # sentence(finding)
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    return (isinstance(node, ast.Attribute) and node.attr in PROSE) or (isinstance(node, ast.Name) and node.id in PROSE)


def _reads_prose(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        texts = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
        searched = any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
        return (searched and _is_prose(node.comparators[-1])) or (texts and any(map(_is_prose, sides)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        cut = node.func.attr in CUTS and _is_prose(node.func.value)
        return cut or (node.func.attr in MATCHES and any(map(_is_prose, node.args)))
    return False


def test_nothing_compares_cuts_or_searches_a_sentence():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _reads_prose(node)
    ]
    cut = re.compile(rf"\b({'|'.join(PROSE)})\s*\.\s*({'|'.join(CUTS)})\s*\(")
    pages = [(path.name, cut.findall(path.read_text(encoding="utf-8"))) for path in ROOT.rglob("*.html")]
    assert found == []
    assert [page for page in pages if page[1]] == []
