"""The one place where recordings are decided: each by all its witnesses, and beside the others of its point.

>>> [each.decision.action for each in decide_together([Observation("monday.wav", Witnesses(physics)), other])]
['ok', 'alarm']
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from bearcat.diagnosis.comparison import KNOWN, quiet_baselines
from bearcat.diagnosis.decision import (
    CANNOT_TELL,
    HEALTHY,
    NO_SIGNAL,
    REFUSE,
    UNKNOWN_STATE,
    Decision,
    PhysicsCheck,
    RecordingEvidence,
    decide,
    to_be_checked,
)
from bearcat.diagnosis.fusion import Witnesses, fuse, state_of_class
from bearcat.diagnosis.physics import FAULTS, state_of
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.recording import (
    UNDECIDED,
    AlarmRule,
    Diagnoses,
    Diagnosis,
    Observation,
    clarity_of,
)
from bearcat.findings import GROWN, IMPULSIVE, SAFE_FAULT, SURE, Finding, unique


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the witnesses of one recording say together."""

    state: str
    confidence: float
    probabilities: Mapping[str, float]
    label: str | None = None
    contradiction: Finding | None = None
    strikes: bool = False  # at no line of the bearing


def decide_together(
    evidence: Sequence[Observation], action: str | None = None, expected: float | None = None
) -> Diagnoses:
    """A diagnosis of each, beside the others of its point: whether the machine stands still, and against the quiet
    majority at its speed where there is one. With `action` that is the decision on the model, with its expected
    accuracy. Diagnoses are evidence too, and are decided anew.
    """
    every = [_by_model(each, action, expected) for each in evidence]
    judged = [_judge(each) for each in every]
    quiet = [
        found.state == HEALTHY and not _strikes(each.witnesses) and not _flawed(each)
        for each, found in zip(every, judged, strict=True)
    ]
    every = _standing(every, quiet)
    lines = [None if each.no_signal is not None else each.physics for each in every]
    usual = quiet_baselines(lines, quiet, [each.where for each in every])
    diagnoses = []
    for each, found, baseline in zip(every, judged, usual, strict=True):
        if baseline is not None and each.witnesses.baseline is None:
            each = replace(each, witnesses=replace(each.witnesses, baseline=baseline))
            found = _judge(each)
        diagnoses.append(_decided(each, found))
    return Diagnoses(diagnoses)


def physics_check(evidence: Sequence[Observation]) -> PhysicsCheck | None:
    """Where physics and the model differ; None where no recording could be compared."""
    compared = [
        each for each in evidence
        if each.physics is not None and each.physics.state != CANNOT_TELL and state_of(str(each.nearest))
    ]  # fmt: skip
    differing = [each for each in compared if each.contradicted]
    missed = tuple(each.recording for each in differing if each.physics and each.physics.state != HEALTHY)
    return PhysicsCheck(len(compared), len(differing), missed) if compared else None


def _by_model(each: Observation, action: str | None, expected: float | None) -> Observation:
    network = each.witnesses.network
    if network is None or action is None:
        return each
    network = replace(network, action=action, expected=expected)
    return replace(each, witnesses=replace(each.witnesses, network=network))


def _judge(each: Observation) -> Judgement:
    """The state that all witnesses together speak for, and which of them says otherwise."""
    if each.no_signal is not None or each.problem is not None or _kept(each):
        return Judgement(NO_SIGNAL, 0.0, {})
    witnesses = each.witnesses
    network, physics = witnesses.network, witnesses.physics
    found = fuse(witnesses.fused)
    state = _likeliest(found)
    of_signal = {} if network is None or physics is None else fuse(witnesses.of_signal)
    contradiction, strikes = _contradiction(state, witnesses, of_signal), _strikes(witnesses) and not each.masked
    if state == HEALTHY and (contradiction is not None or each.masked):
        state = CANNOT_TELL  # any fault finding prevents `ok`
    if state in FAULTS and found[state] < SURE and physics is not None and physics.kurtosis > IMPULSIVE:
        state, strikes = CANNOT_TELL, True  # impulsive, no matching fault line
    confidence, label = found[state] if state in found else max(found.values(), default=0.0), None
    if network is not None:
        classes = [name for name in network.probabilities if state_of_class(name) == state]
        label = max(classes, key=lambda name: network.probabilities[name], default=state)
        if network.familiar is False:
            state = label = UNKNOWN_STATE
            contradiction = _contradiction(state, witnesses, of_signal)
    return Judgement(state, confidence, found, label, contradiction, strikes)


def _decided(each: Observation, judged: Judgement) -> Diagnosis:
    """The diagnosis: the highest severity of what was found."""
    if (kept := _kept(each)) is not None:
        return kept
    if each.no_signal is not None:
        return _diagnosis(replace(each, witnesses=Witnesses()), to_be_checked(each.no_signal), NO_SIGNAL)
    if each.problem is not None:  # a person must look at it
        values = {"problem": each.problem.beside(each.recording)}
        readable = each.problem.readable
        finding = Finding("not diagnosed", "check", values) if readable else Finding("unreadable", "check", values)
        return _diagnosis(each, to_be_checked(finding), finding.kind)
    witnesses, state, found = each.witnesses, judged.state, judged.probabilities
    network, physics, contradiction = witnesses.network, witnesses.physics, judged.contradiction
    rule = each.rule or AlarmRule.of([] if network is None else list(network.probabilities))
    known = network is not None and judged.label in network.probabilities
    faulty = state not in (HEALTHY, CANNOT_TELL, UNKNOWN_STATE)
    faulty = faulty or (contradiction is not None and contradiction.severity == "alarm")
    decision = decide(RecordingEvidence(
        state, judged.confidence, 1 - found.get(HEALTHY, 0.0) if found else 0.0,
        alarming=faulty and (not known or judged.label in rule.classes), min_confidence=rule.min_confidence,
        agreement=None if network is None else network.agreement,
        familiar=None if network is None else network.familiar,
        unfamiliar_alarm=rule.unfamiliar, model=None if network is None else network.action,
        supported=physics is not None or network is None,
        shown=_shown(state, witnesses), contradiction=contradiction, strikes=judged.strikes, observed=_noticed(each),
        wrong_speed=_alone(each) and physics is not None and physics.at_edge and state in FAULTS,
        family=None if each.family is None else each.family.finding,
        zone=None if each.vibration is None else each.vibration.finding,
    ))  # fmt: skip
    return _diagnosis(each, decision, state, judged.confidence, found, judged.label)


def _diagnosis(each: Observation, decision: Decision, state: str, *rest: Any) -> Diagnosis:
    own = dict(zip(("confidence", "probabilities", "label"), rest, strict=False))
    return Diagnosis(
        **{field.name: getattr(each, field.name) for field in fields(Observation)},
        decision=decision,
        state=state,
        **own,
    )


def _kept(each: Observation) -> Diagnosis | None:
    """A diagnosis, read from a file, of a recording that could not be used."""
    return each if isinstance(each, Diagnosis) and each.state in UNDECIDED else None


def _alone(each: Observation) -> bool:
    """Whether the signal decides, as no model can be used."""
    return each.witnesses.network is None or each.witnesses.network.action == REFUSE


def _observed(each: Observation) -> list[Finding]:
    """What was noticed of the recording; that no speed was found matters where the signal decides."""
    return [finding for finding in each.observed if finding.kind != "speed not found" or _alone(each)]


def _noticed(each: Observation) -> tuple[Finding, ...]:
    """The same, and what physics never met, which is a remark where a model decides."""
    unlike = () if each.physics is None else each.physics.findings
    return unique((*_observed(each), *(found if _alone(each) else found.but("remark") for found in unlike)))


def _flawed(each: Observation) -> bool:
    """Whether something is wrong with the recording, or missing."""
    return any(finding.severity in ("check", "alarm") for finding in _observed(each))


def _likeliest(found: Mapping[str, float]) -> str:
    """The state that these probabilities are enough for; CANNOT_TELL where they are not."""
    fault = 1 - found.get(HEALTHY, 0.0)
    if found and fault <= SAFE_FAULT:
        return HEALTHY
    faults = [state for state in found if state != HEALTHY]
    return max(faults, key=lambda state: found[state], default=HEALTHY) if found and fault >= SURE else CANNOT_TELL


def _shown(state: str, witnesses: Witnesses) -> Finding | None:
    """What shows a fault: its line where there is one, else the class that the model names."""
    physics, network, baseline = witnesses.physics, witnesses.network, witnesses.baseline
    if state in FAULTS and physics is not None:
        values = {"state": state, **physics.strongest_line(state), "clarity": clarity_of(state, witnesses)}
        if baseline is not None and baseline.change[state] >= GROWN:
            values |= {"change": baseline.change[state], "by": baseline.by}
        return Finding("fault line", "alarm", values)
    if state not in (HEALTHY, CANNOT_TELL, UNKNOWN_STATE) and network is not None:
        values = {"label": network.nearest, "probability": max(network.probabilities.values())}
        return Finding("model class", "alarm", values)
    return None


def _contradiction(state: str, witnesses: Witnesses, signal: Mapping[str, float]) -> Finding | None:
    """A witness that says otherwise; None where they agree. `signal`: what those without the model say."""
    network, physics = witnesses.network, witnesses.physics
    if network is None or physics is None or (network.action == REFUSE and state != UNKNOWN_STATE):
        return None
    model = network.states
    heard = max(signal, key=lambda name: signal[name])
    said = max(model, key=lambda name: model[name])
    if heard != state and heard != HEALTHY and signal[heard] >= SURE:
        return Finding("physics contradicts", "alarm", {"state": heard, **physics.strongest_line(heard)})
    if state not in (HEALTHY, UNKNOWN_STATE) and heard == HEALTHY and signal[heard] >= SURE:
        return Finding("physics contradicts", "alarm", {"state": HEALTHY})
    if state != UNKNOWN_STATE and said != state and model[said] >= SURE:
        return Finding("model contradicts", "check", {"state": said})
    return None


def _strikes(witnesses: Witnesses) -> bool:
    """Whether something strikes at no line of the bearing, which it did not always do."""
    physics, baseline = witnesses.physics, witnesses.baseline
    usual = baseline is not None and baseline.by == KNOWN and baseline.impulsive <= math.log(1.2)
    return physics is not None and physics.strikes and not usual


def _shows_fault(each: Observation) -> bool:
    """Whether the signal itself shows a fault, or may."""
    found = fuse(each.witnesses.of_signal)
    named = each.family is not None or (each.physics is not None and each.physics.state in FAULTS)
    return named or (bool(found) and 1 - found[HEALTHY] > SAFE_FAULT)


def _standing(every: Sequence[Observation], quiet: Sequence[bool]) -> list[Observation]:
    """No signal where a recording is far quieter than the healthy ones of its point, and shows no fault. Files that
    only lie in one folder may be of several machines and are not compared.
    """
    found, usual = list(every), defaultdict[tuple[str | None, str | None], list[float]](list)
    for each, calm in zip(every, quiet, strict=True):
        if each.rms is not None and calm and each.machine_stated:
            usual[each.where].append(each.rms)
    for number, each in enumerate(every):
        if each.rms is None or not each.machine_stated or each.no_signal is not None or _shows_fault(each):
            continue
        if still := stopped(each.rms, usual[each.where]):
            found[number] = replace(each, no_signal=still)
    return found
