"""The one decision, of a model and of a recording: what must hold whatever the evidence; and lists of diagnoses."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.data.channels import Declared
from bearcat.deploy.opened import network_evidence
from bearcat.diagnosis.decision import UNCLEAR, Decision, Estimate, LabelCheck, ModelEvidence, PhysicsCheck, decide
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.lines import FAULTS, LineFamily, explained
from bearcat.diagnosis.physics import KNOWN, BaselineEvidence
from bearcat.diagnosis.pooling import Pooled
from bearcat.diagnosis.quality import VibrationSeverity
from bearcat.diagnosis.recording import AlarmRule, Diagnoses, Diagnosis, Observation
from bearcat.errors import InputError
from bearcat.findings import TESTED, Finding, highest, most_severe
from tests.pooled import decided, lines_of, model_of

often = settings(max_examples=100, deadline=None)
some = settings(max_examples=25, deadline=None)
share = st.floats(0, 1)
estimates = st.lists(share, min_size=3, max_size=3).map(sorted).map(lambda ends: Estimate(ends[1], ends[0], ends[2]))
CLIPPED = Finding("clipped", "check", {"share": 0.01})
BORROWED = Finding("cross-talk", "check", {"fault": "ball", "decibels": 9.0, "owner": "2"})
RESAMPLED = Finding("resampled", "remark", {"rate": 1.0, "to": 2.0})
DECLARED = Declared("g", 2, "rigid")
words = st.text("abc ÄÖ", min_size=1, max_size=8)


counts = st.integers(1, 30).flatmap(lambda number: st.tuples(st.just(number), st.integers(0, number)))
label_checks = st.builds(lambda numbers, classes: LabelCheck(*numbers, classes), counts, st.integers(1, 4))
physics_checks = counts.map(lambda numbers: PhysicsCheck(numbers[0], tuple(map(str, range(numbers[1])))))


@st.composite
def mostly(draw, good, fields):
    """The good evidence with some of its fields drawn: faults come alone as well as together."""
    changed = draw(st.sets(st.sampled_from(sorted(fields)), max_size=draw(st.integers(0, len(fields)))))
    return replace(good, **{name: draw(fields[name]) for name in sorted(changed)})


model_evidence = mostly(
    ModelEvidence(Estimate(0.97, 0.9, 1.0), source=Estimate(1.0, 0.98, 1.0), source_windows=100, classes=4),
    {
        "expected": st.none() | estimates | st.just(Estimate(0.96, 0.7, 0.99)),
        "finite": st.booleans(), "source": st.none() | estimates, "source_windows": st.integers(0, 1000),
        "classes": st.integers(0, 13), "one_class": st.none() | words, "shift": st.none() | st.sampled_from(sorted(TESTED)),
        "calibrated": st.booleans(), "uncertain": st.lists(words, max_size=3).map(tuple),
        "physics": st.none() | physics_checks, "labels": st.none() | label_checks,
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


CLASSES = ("healthy", "inner", "outer")
levels = st.lists(st.floats(-9, 40), min_size=3, max_size=3).map(lambda found: dict(zip(FAULTS, found, strict=True)))
physics_of = st.builds(lines_of, levels, kurtosis=st.sampled_from((2.0, 5.0)))


@st.composite
def diagnoses(draw) -> Diagnosis:
    name, physics = draw(words), draw(physics_of)
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
    rule = AlarmRule(draw(st.sampled_from(((), ("inner",)))), draw(st.sampled_from((0.01, 0.3, 0.9))))
    action = draw(st.sampled_from(("use", "check", "do not use")))
    network = network_evidence(pooled, CLASSES, Decision(action), draw(st.sampled_from((None, "machine", "condition"))))
    witnesses = Witnesses(draw(st.none() | st.just(physics)), None, network)
    return decided(name, witnesses, rule=rule, observed=draw(st.sampled_from(((RESAMPLED,), (CLIPPED,)))))


@some
@given(diagnoses())
def test_a_diagnosis_comes_back_from_plain_values(diagnosis):
    plain = json.loads(json.dumps(diagnosis.to_dict()))
    again = Diagnosis.from_dict(plain)
    assert again.to_dict() == plain == diagnosis.to_dict()
    assert (again.line, again.row()) == (diagnosis.line, diagnosis.row())
    if diagnosis.problem is not None:
        assert decide_together([again])[0].to_dict() == plain
    assert again.decision.action == diagnosis.decision.action


@some
@given(diagnoses())
def test_a_diagnosis_agrees_with_itself(diagnosis):
    actions = {"ok": "ok", "remark": "ok", "check": "check", "alarm": "alarm"}
    assert diagnosis.decision.action == actions[highest(diagnosis.findings)]
    assert diagnosis.cells()["decision"] == diagnosis.row()["decision"] == diagnosis.decision.action
    if diagnosis.probabilities:
        assert sum(diagnosis.probabilities.values()) == pytest.approx(1)
        fault = 1 - diagnosis.probabilities.get("healthy", 0.0)
        named = diagnosis.state in diagnosis.probabilities
        sure = fault if diagnosis.state == UNCLEAR else max(diagnosis.probabilities.values())
        assert diagnosis.confidence == (diagnosis.probabilities[diagnosis.state] if named else pytest.approx(sure))
    network = diagnosis.witnesses.network
    if network is not None and network.familiar is False:
        assert diagnosis.state == diagnosis.label == "unknown"
    assert {f.severity for f in most_severe(diagnosis.findings)} <= {diagnosis.decision.action}
    if diagnosis.decision.action == "ok":
        assert diagnosis.state == "healthy"
        assert diagnosis.probabilities["healthy"] >= 0.85
        assert CLIPPED not in diagnosis.findings
        assert network is None or (network.action != "do not use" and network.agreement >= 0.7)
    if diagnosis.decision.action == "alarm" and diagnosis.state != "unknown":
        assert diagnosis.state != "cannot tell"
        assert diagnosis.confidence >= (0.9 if diagnosis.state == UNCLEAR else 0.6)
        trusted = network is not None and network.action != "do not use"
        assert trusted or max(line for fault in diagnosis.physics.faults.values() for line in fault.lines) >= 11.5


@some
@given(st.lists(diagnoses(), max_size=8))
def test_counts_summary_table_and_exit_status_agree(found):
    listed = Diagnoses(found)
    counts = listed.counts
    assert counts == {
        action: sum(each.decision.action == action for each in found) for action in ("ok", "check", "alarm")
    }
    assert Counter(row["decision"] for row in listed.table()) == +Counter(counts)
    assert listed.summary.startswith(f"{len(found)} recording")
    worst = next((action for action in ("alarm", "check") if counts[action]), "ok")
    assert listed.exit_status == {"ok": 0, "alarm": 1, "check": 3}[worst]


HEALTHY_MODEL, FAULTY_MODEL = {"healthy": 0.99, "outer": 0.01}, {"healthy": 0.01, "outer": 0.99}
GROWING = BaselineEvidence(dict.fromkeys(FAULTS, 8.0), dict.fromkeys(FAULTS, 3.0), 0.0, KNOWN)
FAMILY = LineFamily(3.6, 90.0, 20.0, None, explained(3.6))


@pytest.mark.parametrize(
    ("known", "state", "action"),
    [
        ({"physics": lines_of({"outer race": 20.0})}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 11.0})}, "outer race", "check"),  # by faint lines alone
        ({"physics": lines_of({"outer race": 11.0}), "baseline": GROWING}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 11.0}), "network": model_of(FAULTY_MODEL)}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 11.0}), "network": model_of(FAULTY_MODEL, "do not use")}, "outer race", "check"),
        ({"physics": lines_of({"outer race": 20.0}), "network": model_of(HEALTHY_MODEL, "do not use")}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 20.0}), "network": model_of(HEALTHY_MODEL)}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 20.0}, fitted=1546.0)}, "outer race", "check"),  # at the edge of the search
        ({"physics": lines_of({"outer race": 20.0, "inner race": 20.0})}, UNCLEAR, "alarm"),
        ({"physics": lines_of({"outer race": 13.0}), "rule": AlarmRule(prior=0.001)}, "healthy", "ok"),
        ({"physics": lines_of({"outer race": 13.0}), "rule": AlarmRule(prior=0.02)}, "cannot tell", "check"),
        ({"physics": lines_of({"outer race": 13.0}), "rule": AlarmRule(prior=0.3)}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 8.0})}, "cannot tell", "check"),
        ({"physics": lines_of({})}, "healthy", "ok"),
        ({"physics": lines_of({}), "network": model_of(HEALTHY_MODEL, "do not use")}, "healthy", "check"),
        ({"network": model_of(FAULTY_MODEL)}, "outer race", "alarm"),
        ({"physics": lines_of({"outer race": 24.0}), "network": replace(model_of(HEALTHY_MODEL), familiar=False)}, "unknown", "alarm"),
        ({"network": model_of(FAULTY_MODEL, "do not use")}, "outer race", "check"),
        ({"network": model_of({"healthy": 0.2, "outer": 0.8})}, "cannot tell", "check"),
        ({"family": FAMILY}, UNCLEAR, "alarm"),
        ({"family": replace(FAMILY, shaft_multiple=4)}, "cannot tell", "check"),
        ({"family": replace(FAMILY, level=1.0)}, "cannot tell", "check"),
        ({"physics": lines_of({}), "vibration": VibrationSeverity(9.0, "C", declared=DECLARED)}, "healthy", "check"),
        ({"physics": lines_of({}), "vibration": VibrationSeverity(9.0, "D", declared=DECLARED)}, "severe vibration", "alarm"),
        ({"vibration": VibrationSeverity(9.0, "D", declared=DECLARED)}, "severe vibration", "alarm"),
        ({"network": model_of(HEALTHY_MODEL), "vibration": VibrationSeverity(9.0, "D", declared=DECLARED)}, "severe vibration", "alarm"),
        ({"network": model_of(HEALTHY_MODEL), "family": FAMILY}, UNCLEAR, "alarm"),
        ({"physics": lines_of({}), "observed": (BORROWED,)}, "cannot tell", "check"),
        ({"physics": lines_of({}), "observed": (CLIPPED,)}, "healthy", "check"),
    ],
)  # fmt: skip
def test_the_rule_for_alarms(known, state, action):
    witnesses = {name: known.pop(name) for name in ("physics", "network", "baseline") if name in known}
    found = decided("a", Witnesses(**witnesses), **known)
    assert (found.state, found.decision.action) == (state, action)
    if action == "alarm":  # diagnosis, confidence and reason agree with it
        assert found.cells()["diagnosis"].partition(" (")[0] not in ("healthy", "cannot tell")
        assert "the model says healthy" not in found.sentence
        assert (found.state == "severe vibration") == ("ISO 20816-3" in found.sentence)
