"""Terminal, page, record and Python say the same of an adaptation, whatever was found: no two lines contradict."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.adaptation.adapt import Adaptation, decided_record
from bearcat.cli.train import _print_adaptation
from bearcat.diagnosis.decision import UNCLEAR, Estimate, LabelCheck, ModelEvidence, decide
from bearcat.diagnosis.fusion import fuse
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.physics import FAULTS, STATES, FaultLines, PhysicsEvidence
from bearcat.diagnosis.pooling import Pooled
from bearcat.diagnosis.recording import STATUS, Diagnoses
from bearcat.record import Record
from bearcat.report.pages import _counted, _first_sections
from tests.made_records import bare_record
from tests.pooled import by_model

CLASSES = (("healthy", "inner", "outer"), ("normal", "IR-007", "OR-021", "ball"), ("a", "b"), ("healthy", "rub"))
many = settings(max_examples=25, deadline=None)


def made_physics(random: np.random.Generator) -> PhysicsEvidence | None:
    if random.random() < 0.3:
        return None
    likely = random.dirichlet(0.3 * np.ones(len(STATES)))
    state = "cannot tell" if likely.max() < 0.6 else STATES[int(likely.argmax())]
    faults = {
        name: FaultLines(50.0 * (place + 1), 20 * random.random(), (9.0, 8.0, 7.0), None, (0.0, 6000.0))
        for place, name in enumerate(FAULTS)
    }
    return PhysicsEvidence(
        state, float(likely.max()), dict(zip(STATES, likely.tolist(), strict=True)), (),
        16_000.0, 900.0, 901.0, faults, 3.0, 2.0, 9,
    )  # fmt: skip


def made_diagnoses(random: np.random.Generator, classes: tuple[str, ...], action: str) -> Diagnoses:
    healthy = random.random() < 0.3  # of some machines no fault is found at all
    found = []
    for number in range(int(random.integers(1, 36))):
        shares = random.dirichlet(random.choice([0.05, 0.3, 1.0]) * np.ones(len(classes)))
        shares = np.sort(shares)[::-1] if healthy else shares
        unfamiliar = None if random.random() < 0.2 else float(random.random())
        familiar = None if unfamiliar is None else bool(unfamiliar < 0.8)
        windows = int(random.integers(1, 200))
        pooled = Pooled(shares, float(random.random()), windows, unfamiliar, familiar or (familiar and healthy))
        found.append(by_model(f"b/{number}.npy", pooled, classes, action, made_physics(random)))
    return Diagnoses(found)


def made_evidence(random: np.random.Generator, classes: tuple[str, ...], diagnoses: Diagnoses) -> ModelEvidence:
    def estimate() -> Estimate:
        low, value, high = np.sort(random.random(3) ** random.choice([0.05, 1.0])).tolist()
        return Estimate(value, low, high)

    uncertain = tuple(each.recording for each in diagnoses[: int(random.integers(0, 4))])
    return ModelEvidence(
        None if random.random() < 0.1 else estimate(),
        bool(random.random() < 0.95), random.choice([None, estimate()]), int(random.integers(1, 300)), len(classes),
        str(random.choice(classes)) if random.random() < 0.1 else None, bool(random.random() < 0.8),
        bool(random.random() < 0.8), uncertain,
    )  # fmt: skip


def made_record(seed: int) -> Record:
    """The record of an adaptation that found anything; of some the recommended model was compared with labels."""
    random = np.random.default_rng(seed)
    classes = CLASSES[int(random.integers(len(CLASSES)))]
    bare = bare_record()
    diagnoses = made_diagnoses(random, classes, "use")
    bare = replace(bare, data=replace(bare.data, classes=classes), scores=replace(bare.scores, target=None))
    record = decided_record(bare, made_evidence(random, classes, diagnoses), diagnoses)
    if random.random() < 0.3:
        labelled = int(random.integers(1, len(diagnoses) + 1))
        counted = LabelCheck(labelled, int(random.integers(0, labelled + 1)), int(random.integers(1, 4)))
        evidence = replace(record.evidence, labels=counted)
        decision = decide(evidence)
        recordings = tuple(decide_together([each.tempered(1.5) for each in record.recordings], decision.action))
        record = replace(record, evidence=evidence, decision=decision, recordings=recordings)
    return record


def printed(record: Record) -> str:
    """What `bearcat adapt` prints of it."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(io.StringIO()):
        _print_adaptation(Adaptation(Path("out"), record, {}), ())
    return output.getvalue()


def numbers_in(summary: str) -> dict[str, int]:
    """The counts of a sentence such as "14 recordings: 9 alarm, 5 ok."; "recordings" is their number."""
    found = {action: int(number) for number, action in re.findall(r"(\d+) (ok|check|alarm)\b", summary)}
    return found | {"recordings": int(re.match(r"(\d+) recordings?:", summary)[1])}


@many
@given(st.integers(0, 2**32 - 1))
def test_counts_of_recordings_are_the_same_everywhere(seed):
    record = made_record(seed)
    found = Diagnoses(record.recordings)
    actions = [each.decision.action for each in found]
    expected = {action: actions.count(action) for action in ("ok", "check", "alarm") if action in actions}
    expected["recordings"] = len(actions) == sum(expected.values()) and len(actions)
    text, lines = printed(record), repr(Adaptation(Path("out"), record, {})).splitlines()
    (section,) = [section for section in _first_sections(record) if section.tables]
    for summary in (text.splitlines()[0], lines[0], section.decision):
        assert numbers_in(summary) == expected
    headline = {name: int(number) for name, number, _ in _counted(found) if name in ("ok", "check", "alarm")}
    assert {name: number for name, number in headline.items() if number} | {"recordings": len(actions)} == expected
    assert record.evidence.recordings == len(actions)
    rows = [[entry.text for entry in row] for row in section.tables[0].rows]
    place = section.tables[0].header.index("decision")
    assert sorted(row[place] for row in rows) == sorted(actions)
    assert [row[place] for row in rows] == sorted(actions, key=("alarm", "check", "ok").index)  # the worst first
    worst = "alarm" if "alarm" in actions else "check" if "check" in actions else "ok"
    assert found.exit_status == STATUS[worst]
    for number in re.findall(r"(\d+) recordings\b", record.decision.sentence):  # of which some may have been compared
        assert int(number) <= len(actions)


@many
@given(st.integers(0, 2**32 - 1))
def test_a_recording_is_the_same_in_its_row_its_record_and_its_table(seed):
    record = made_record(seed)
    again = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again.to_dict() == record.to_dict()
    assert (again.decision, again.evidence) == (record.decision, record.evidence)
    for each, kept in zip(record.recordings, again.recordings, strict=True):
        row, cells, plain = each.row(), each.cells(), each.to_dict()
        assert row["decision"] == cells["decision"] == plain["decision"] == kept.decision.action
        assert row["confidence"] == plain["confidence"] == kept.confidence == each.decision.expected
        unknown = each.familiar is False
        claimless = unknown or each.state == "cannot tell"
        assert cells["confidence"] == ("" if claimless else f"{100 * each.confidence:.1f} %")
        assert each.state == UNCLEAR or each.confidence in each.probabilities.values()
        assert (each.label == "unknown") == unknown
        assert cells["diagnosis"] == (f"unknown (nearest: {each.nearest})" if unknown else each.label)
        assert kept.cells() == cells
        ok = each.decision.action == "ok"
        assert not (ok and each.decision.reasons)
        assert not (ok and (each.confidence < 0.6 or each.familiar is False or each.label not in ("healthy", "normal")))
        signal = fuse(each.witnesses.of_signal)
        assert not (ok and signal and 1 - signal["healthy"] >= 0.6)
