"""The one decision, of a model and of a recording: what must hold whatever the evidence; and lists of diagnoses."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.data.channels import Declared
from bearcat.deploy.diagnose import network_evidence
from bearcat.diagnosis.decision import (
    Decision,
    Estimate,
    LabelCheck,
    ModelEvidence,
    PhysicsCheck,
    RecordingEvidence,
    decide,
)
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.physics import FAULTS, STATES, FaultLines, PhysicsEvidence
from bearcat.diagnosis.pooling import Pooled
from bearcat.diagnosis.quality import VibrationSeverity
from bearcat.diagnosis.recording import STATUS, AlarmRule, Diagnoses, Diagnosis, Observation
from bearcat.errors import InputError
from bearcat.findings import Finding, highest
from tests.pooled import decided

often = settings(max_examples=100, deadline=None)
some = settings(max_examples=25, deadline=None)
share = st.floats(0, 1)
estimates = st.lists(share, min_size=3, max_size=3).map(sorted).map(lambda ends: Estimate(ends[1], ends[0], ends[2]))
SHOWN = Finding("model class", "alarm", {"label": "ball", "probability": 0.9})
FOUND = Finding(
    "physics contradicts", "alarm", {"state": "ball", "line": "BSF", "multiple": 2, "hertz": 90.0, "level": 12.0}
)
NO_FAULT = Finding("model contradicts", "check", {"state": "healthy"})
CLIPPED, RESAMPLED = (
    Finding("clipped", "check", {"share": 0.01}),
    Finding("resampled", "remark", {"rate": 1.0, "to": 2.0}),
)
ZONE_D = VibrationSeverity(9.0, "D", declared=Declared("g", 2, "rigid")).finding
words = st.text("abc ÄÖ", min_size=1, max_size=8)


@st.composite
def label_checks(draw) -> LabelCheck:
    recordings = draw(st.integers(1, 60))
    return LabelCheck(recordings, draw(st.integers(0, recordings)), draw(st.integers(1, 4)))


@st.composite
def physics_checks(draw) -> PhysicsCheck:
    compared = draw(st.integers(1, 20))
    contradicted = draw(st.integers(0, compared))
    return PhysicsCheck(compared, contradicted, tuple(map(str, range(draw(st.integers(0, contradicted))))))


@st.composite
def mostly(draw, good, fields):
    """The good evidence with some of its fields drawn: faults come alone as well as together."""
    changed = draw(st.sets(st.sampled_from(sorted(fields)), max_size=draw(st.integers(0, len(fields)))))
    return replace(good, **{name: draw(fields[name]) for name in sorted(changed)})


model_evidence = mostly(
    ModelEvidence(Estimate(0.97, 0.9, 1.0), source=Estimate(1.0, 0.98, 1.0), source_windows=100, classes=4),
    {
        "expected": st.none() | estimates | st.just(Estimate(float("nan"), 0.0, 1.0)) | st.just(Estimate(0.96, 0.7, 0.99)),
        "finite": st.booleans(), "source": st.none() | estimates, "source_windows": st.integers(0, 1000),
        "classes": st.integers(0, 13), "one_class": st.none() | words, "check_models": st.booleans(),
        "calibrated": st.booleans(), "uncertain": st.lists(words, max_size=3).map(tuple),
        "recordings": st.integers(0, 30), "faulty": st.none() | st.integers(0, 30),
        "physics": st.none() | physics_checks(), "labels": st.none() | label_checks(),
    },
)  # fmt: skip

recording_evidence = mostly(
    RecordingEvidence("healthy", 0.99, 0.01, agreement=1.0, familiar=True, model="use"),
    {
        "state": st.sampled_from((*STATES, "unknown", "cannot tell", "no signal", "class 3")),
        "confidence": share | st.just(float("nan")), "fault": share | st.just(float("nan")), "alarming": st.booleans(),
        "min_confidence": st.sampled_from((0.0, 0.8)),
        "agreement": st.none() | share, "familiar": st.none() | st.booleans(), "unfamiliar_alarm": st.booleans(),
        "model": st.none() | st.sampled_from(("use", "check", "do not use")), "supported": st.booleans(),
        "shown": st.just(SHOWN), "contradiction": st.sampled_from((FOUND, NO_FAULT)), "strikes": st.booleans(),
        "observed": st.lists(st.sampled_from((CLIPPED, RESAMPLED)), max_size=2).map(tuple),
    },
)  # fmt: skip


@often
@given(model_evidence)
def test_a_model_is_used_only_where_it_is_expected_to_be_right_or_labels_confirm_it(evidence):
    decision, expected, labels = decide(evidence), evidence.expected, evidence.labels
    if decision.action != "use":
        return
    good = expected is not None and expected.value >= 0.95
    if labels is None:
        assert good
        assert expected.low >= 0.75
        assert evidence.finite
        assert evidence.one_class is None
    else:
        confirmed = good and labels.right == labels.recordings and (labels.recordings >= 3 or expected.low >= 0.75)
        assert labels.rate.low >= 0.75 or confirmed


@often
@given(model_evidence)
def test_the_expected_accuracy_lies_in_its_interval_and_is_missing_only_in_a_refusal(evidence):
    decision = decide(evidence)
    assert decision.action in ("use", "check", "do not use")
    if decision.expected is None:
        assert (decision.action, decision.interval) == ("do not use", None)
    else:
        low, high = decision.interval
        assert 0 <= low <= decision.expected <= high <= 1
    if decision.action != "use":
        assert decision.reasons, "what speaks against it, or what to do"


@often
@given(model_evidence)
def test_labels_that_contradict_a_model_refuse_it_and_better_labels_never_make_it_worse(evidence):
    rank = {"do not use": 0, "check": 1, "use": 2}
    wrong, right = (decide(replace(evidence, labels=LabelCheck(30, count, 3))) for count in (0, 30))
    assert wrong.action == "do not use"
    assert rank[right.action] >= rank[wrong.action]
    assert right.action == "use"
    assert right.expected == 1.0


@often
@given(recording_evidence)
def test_what_is_never_ok(evidence):
    decision = decide(evidence)
    assert decision.action in ("ok", "check", "alarm")
    assert decision.expected == evidence.confidence or evidence.confidence != evidence.confidence
    never_ok = {
        "a model not to be used": evidence.model == "do not use",
        "a witness who sees a fault": evidence.contradiction is not None or evidence.shown is not None,
        "something strikes at no fault line": evidence.strikes,
        "unfamiliar": evidence.familiar is False and evidence.model is not None,
        "anything but health": evidence.state != "healthy",
        "something wrong with the recording": CLIPPED in evidence.observed,
        "little confidence": not evidence.fault <= 0.25,
        "windows that disagree": evidence.agreement is not None and evidence.agreement < 0.7,
    }
    believed = decision.action == "alarm"
    assert decision.action != "ok" or not any(never_ok.values()), never_ok
    assert decision.action == "ok" or any(never_ok.values()) or believed
    if decision.action == "ok":
        assert decision.reasons == ()
    assert len(decision.reasons) <= 2


@often
@given(recording_evidence)
def test_an_alarm_is_a_believed_fault_or_something_unfamiliar(evidence):
    decision = decide(evidence)
    strange = evidence.familiar is False and evidence.model is not None and evidence.unfamiliar_alarm
    believed = evidence.model != "do not use" or evidence.supported
    named = evidence.alarming and any(
        finding is not None and finding.severity == "alarm" for finding in (evidence.shown, evidence.contradiction)
    )
    assert (decision.action == "alarm") == (
        strange or (named and believed and evidence.confidence >= evidence.min_confidence)
    )


@often
@given(recording_evidence)
def test_more_doubt_never_turns_check_into_ok(evidence):
    rank = {"ok": 0, "check": 1, "alarm": 2}
    before = rank[decide(evidence).action]
    for doubt in (
        {"observed": (CLIPPED,)},
        {"familiar": False},
        {"contradiction": FOUND},
        {"strikes": True},
    ):
        assert rank[decide(replace(evidence, **doubt)).action] >= min(before, 1)


# Diagnoses of recordings.

CLASSES = ("healthy", "inner", "outer")


@st.composite
def physics_of(draw) -> PhysicsEvidence:
    shares = np.array([draw(st.floats(0.01, 1)) for _ in STATES])
    faults = {
        name: FaultLines(draw(st.floats(1, 500)), 10.0, tuple(draw(st.lists(st.floats(-9, 40), min_size=3, max_size=3))), 1.0, (0.0, 6000.0))
        for name in FAULTS
    }  # fmt: skip
    state = draw(st.sampled_from((*STATES, "cannot tell")))
    probabilities = dict(zip(STATES, (shares / shares.sum()).tolist(), strict=True))
    return PhysicsEvidence(
        state, max(probabilities.values()), probabilities, (), 12_000.0, 1500.0, 1501.0,
        faults, 3.0, 2.0, 9,
    )  # fmt: skip


@st.composite
def diagnoses(draw) -> Diagnosis:
    name, physics = draw(words), draw(physics_of())
    kind = draw(st.sampled_from(("model", "physics", "unreadable")))
    if kind == "unreadable":
        return decide_together([Observation(name, problem=InputError("is no file"))])[0]
    if kind == "physics":
        return decided(name, Witnesses(physics=physics))
    shares = np.array([draw(st.floats(0.01, 1)) for _ in CLASSES])
    familiar = draw(st.none() | st.booleans())
    pooled = Pooled(
        shares / shares.sum(), draw(share), draw(st.integers(1, 99)), None if familiar is None else 0.5, familiar
    )
    rule = AlarmRule.of(CLASSES, draw(st.none() | st.just(["inner"])), min_confidence=draw(st.sampled_from((0.0, 0.5))))
    action = draw(st.sampled_from(("use", "check", "do not use")))
    network = network_evidence(pooled, CLASSES, Decision(action), draw(st.sampled_from((None, "machine", "condition"))))
    witnesses = Witnesses(draw(st.none() | st.just(physics)), None, network)
    return decided(name, witnesses, rule=rule, observed=(RESAMPLED,))


@some
@given(diagnoses())
def test_a_diagnosis_comes_back_from_plain_values(diagnosis):
    plain = json.loads(json.dumps(diagnosis.to_dict()))
    again = Diagnosis.from_dict(plain)
    assert again.to_dict() == plain == diagnosis.to_dict()
    assert (again.line, again.contradicted, again.row()) == (diagnosis.line, diagnosis.contradicted, diagnosis.row())
    assert again.decision.action == diagnosis.decision.action


@some
@given(diagnoses())
def test_a_diagnosis_agrees_with_itself(diagnosis):
    actions = {"ok": "ok", "remark": "ok", "check": "check", "alarm": "alarm"}
    assert diagnosis.decision.action == actions[highest(diagnosis.findings)]
    assert diagnosis.cells()["decision"] == diagnosis.row()["decision"] == diagnosis.decision.action
    if diagnosis.probabilities:
        assert sum(diagnosis.probabilities.values()) == pytest.approx(1)
        assert diagnosis.confidence in diagnosis.probabilities.values()
    network = diagnosis.witnesses.network
    if network is not None and network.familiar is False:
        assert diagnosis.state == diagnosis.label == "unknown"
    if diagnosis.decision.action == "ok":
        assert diagnosis.state == "healthy"
        assert network is None or network.action != "do not use"
        assert (
            network is None or max(network.states, key=network.states.get) == "healthy" or diagnosis.physics is not None
        )


@some
@given(st.lists(diagnoses(), max_size=8))
def test_counts_summary_table_and_exit_status_agree(found):
    listed = Diagnoses(found)
    counts = listed.counts
    assert sum(counts.values()) == len(listed) == len(found)
    assert counts == {action: sum(each.decision.action == action for each in found) for action in counts}
    shown = Counter(row["decision"] for row in listed.table())
    assert shown == Counter({action: count for action, count in counts.items() if count})
    said = Counter[str]()
    for count, what in re.findall(r"(\d+) (alarm|check|unreadable|ok)", listed.summary):
        said["check" if what == "unreadable" else what] += int(count)
    assert said == shown
    assert listed.summary.startswith(f"{len(found)} recording")
    worst = next((action for action in ("alarm", "check") if counts[action]), "ok")
    assert listed.exit_status == STATUS[worst]
    assert {"ok": 0, "alarm": 1, "check": 3}[worst] == listed.exit_status


def test_a_fault_at_the_edge_of_the_search_for_the_speed_is_to_be_checked():
    found = RecordingEvidence("ball", 0.99, 0.99, alarming=True, wrong_speed=True, shown=SHOWN)
    assert decide(found).action == "check"
    assert decide(replace(found, wrong_speed=False)).action == "alarm"
    assert decide(replace(found, zone=ZONE_D)).action == "alarm"  # whatever the speed
