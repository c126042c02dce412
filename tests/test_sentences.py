"""Findings are data: each kind has its sentence, wording is pinned here alone, and nothing in the program reads it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import bearcat
from bearcat import findings
from bearcat.findings import SENTENCES, SEVERITIES, Finding, highest, most_severe, reasons, sentence, unique
from bearcat.settings import from_plain, to_plain
from bearcat.watch.alarm import CLAIMLESS

ROOT = Path(bearcat.__file__).parent
LINE = {"state": "outer race", "line": "BPFO", "multiple": 1, "hertz": 107.7, "level": 22.4, "clarity": "strong"}
FAMILY = {
    "order": 3.58, "hertz": 107.3, "level": 15.0, "shaft_multiple": None,
    "bearings": {"outer race": ["6205", "6206"], "inner race": [], "ball": []},
}  # fmt: skip
EXAMPLES = [
    ("fault line", LINE | {"change": 11.0, "by": "quiet majority"}, "BPFO 107.7 Hz, 22 dB (strong, 11 dB above the quiet majority)"),
    (
        "lines of unknown bearing", FAMILY,
        "strikes 3.58 times a turn (107.3 Hz, 15 dB above other orders); explained by outer race of 6205, 6206",
    ),
    (
        "dead axis", {"axis": "y", "cause": "constant", "value": 0.0},
        "y: the sensor gives no signal: all samples are 0; check sensor and cable",
    ),
    (
        "wrong speed", {"rpm": 1207.0, "level": 57.0, "stated": 600.0, "corrected": 1207.0},
        "the shaft line is at 1207 rpm (57 dB), not at the stated 600 rpm; 1207 rpm is used",
    ),
    (
        "statements differ",
        {"about": "bearing", "stated": "6203", "given": "6205"},
        "its own bearing, 6203, counts, and not the given 6205",
    ),
    (
        "baseline change",
        {"measurement": "band_4", "title": "", "band": [3.84, 5.12], "decibels": 9.8, "learnt": True},
        "RMS in 3.84–5.12 kHz 10 dB above what is usual",
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
    assert sentence(Finding("weather", "check")) == "weather", "of another version"
    for wrong in ({"severity": "terrible"}, {"values": 3}):
        with pytest.raises(ValueError, match="severity|values"):
            from_plain(Finding, {"kind": "clipped", "severity": "check", "values": {}} | wrong)


def test_reasons_are_the_most_severe_findings_that_ask_for_a_person():
    remark, check = Finding("no baseline", "remark"), Finding("refused model", "check")
    alarm, other = Finding("fault line", "alarm", LINE), Finding("clipped", "check", {"share": 0.1})
    assert most_severe([remark, check, other, alarm]) == [alarm]
    assert most_severe([remark, check, other]) == [check, other]
    assert len(reasons([check, other, Finding("mains hum", "check", {"hertz": 50.0})])) == findings.MOST_REASONS
    assert [highest(found) for found in ([], [remark], [remark, check], [check, alarm])] == list(SEVERITIES)
    assert unique([check, remark, check.but("remark")]) == (check, remark)


# Where a program would read a sentence: `reason.startswith(…)`, `sentence(finding) == "…"`, `"…" in note`.
PROSE = r"(what|reasons?|notes?|sentences?|quality|problem|caption|doubt)\b(\([^()]*\)|\[[^\]]*\])*"
CUTS = "startswith|endswith|removeprefix|removesuffix|r?partition|replace|find|index|split|count"
READS = re.compile(rf"\b{PROSE}\s*(\.({CUTS})\(|[!=]= [\"'])|[\"'] (not )?in [\w.]*\b{PROSE}")


def test_nothing_compares_cuts_or_searches_a_sentence():
    for wrong in ('row.reason.startswith("physics")', 'sentence(finding) == "clipped"', '"hum" not in self.notes'):
        assert READS.search(wrong)
    files = [*ROOT.rglob("*.py"), *ROOT.rglob("*.html")]
    found = [(path.name, READS.search(path.read_text(encoding="utf-8"))) for path in files]
    assert [read for read in found if read[1]] == []
