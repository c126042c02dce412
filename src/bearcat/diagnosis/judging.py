"""The one place where recordings are decided: each by all its witnesses, and beside the others of its point.

A fault is named, and an alarm, from a probability SURE of that fault on; as a fault of unclear type, from CERTAIN of
any fault on. It is to be checked where faint lines are all that shows it. What nobody can tell is never an alarm.

>>> [each.decision.action for each in decide_together([Observation("monday.wav", Witnesses(physics)), other])]
['ok', 'alarm']
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from bearcat.diagnosis.decision import (
    CANNOT_TELL,
    HEALTHY,
    NO_SIGNAL,
    OK,
    REFUSE,
    UNCLEAR,
    UNKNOWN_STATE,
    Decision,
    PhysicsCheck,
    by_findings,
)
from bearcat.diagnosis.fusion import Witnesses, fuse, state_of_class
from bearcat.diagnosis.lines import FAULTS
from bearcat.diagnosis.physics import KNOWN, known_baseline, quiet_baselines, state_of
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.recording import (
    UNDECIDED,
    AlarmRule,
    Diagnoses,
    Diagnosis,
    Observation,
    clarity_of,
)
from bearcat.findings import (
    CERTAIN,
    GROWN,
    PRIOR,
    SAFE_FAULT,
    SURE,
    UNITED,
    USUAL_LINE,
    Finding,
    unique,
)


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
    quiet = [found.state == HEALTHY and not _flawed(each) for each, found in zip(every, judged, strict=True)]
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


def beside_healthy(evidence: Sequence[Observation], healthy: Collection[str]) -> list[Observation]:
    """The same, where recordings of these names are known to be healthy: their lines are usual for their point."""
    known = [each for each in evidence if each.recording in healthy and each.physics is not None]
    found = []
    for each in evidence:
        same = [other.physics for other in known if other.where == each.where and other.physics is not None]
        baseline = None if each.physics is None else known_baseline(same, each.physics)
        witnesses = each.witnesses if baseline is None else replace(each.witnesses, baseline=baseline)
        found.append(replace(each, witnesses=witnesses))
    return found


def physics_check(evidence: Sequence[Observation]) -> PhysicsCheck | None:
    """Where physics and the model differ; None where no recording could be compared. Faint lines, and lines that
    healthy recordings of the point have too, say nothing against a model.
    """
    compared = [
        each for each in evidence
        if each.physics is not None and each.physics.state != CANNOT_TELL and state_of(str(each.nearest))
    ]  # fmt: skip
    differing = [each for each in compared if each.contradicted]
    missed = tuple(
        each.recording for each in differing
        if each.physics and each.physics.state in FAULTS and _is_clear(each.physics.state, each.witnesses)
    )  # fmt: skip
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
    prior = PRIOR if each.rule is None else each.rule.prior
    found = fuse(witnesses.fused, prior=prior)
    state = _likeliest(found)
    of_signal = {} if network is None or physics is None else fuse(witnesses.of_signal, prior=prior)
    contradiction, strikes = _contradiction(state, witnesses, of_signal), _strikes(witnesses) and not each.masked
    if state == HEALTHY and (contradiction is not None or each.masked or strikes):
        state = CANNOT_TELL  # any fault finding prevents `ok`
    if state == CANNOT_TELL and each.family is not None and each.family.finding.severity == "alarm":
        state = UNCLEAR  # lines of a bearing that nobody named
    label = None
    if network is not None:
        classes = [name for name in network.probabilities if state_of_class(name) == state]
        label = max(classes, key=lambda name: network.probabilities[name], default=state)
        if network.familiar is False:
            state = label = UNKNOWN_STATE
            contradiction = _contradiction(state, witnesses, of_signal)
    confidence = found.get(state, max(found.values(), default=0.0))
    if state == UNCLEAR and found:
        confidence = 1 - found.get(HEALTHY, 0.0)
    return Judgement(state, confidence, found, label, contradiction, strikes)


def _decided(each: Observation, judged: Judgement) -> Diagnosis:
    """The diagnosis: the highest severity of what was found."""
    if (kept := _kept(each)) is not None:
        return kept
    if each.no_signal is not None:
        return _diagnosis(replace(each, witnesses=Witnesses()), by_findings([each.no_signal]), NO_SIGNAL)
    if each.problem is not None:  # a person must look at it
        values = {"problem": each.problem.beside(each.recording)}
        readable = each.problem.readable
        finding = Finding("not diagnosed", "check", values) if readable else Finding("unreadable", "check", values)
        return _diagnosis(each, by_findings([finding]), finding.kind)
    decision = by_findings([*_findings(each, judged), *_noticed(each)], judged.confidence)
    if judged.state != HEALTHY and decision.action == OK:
        decision = by_findings([*decision.findings, Finding("not enough evidence", "check")], judged.confidence)
    return _diagnosis(each, decision, judged.state, judged.confidence, judged.probabilities, judged.label)


def _findings(each: Observation, judged: Judgement) -> Iterator[Finding]:
    """What the witnesses find, the most telling first."""
    witnesses, state = each.witnesses, judged.state
    network, contradiction = witnesses.network, judged.contradiction
    zone = None if each.vibration is None else each.vibration.finding
    if zone is not None and zone.severity == "alarm":
        yield zone
    if state == UNKNOWN_STATE:
        yield Finding("unfamiliar", "alarm")
    if each.family is not None:
        yield each.family.finding
    shown = _shown(state, witnesses)
    if shown is not None:
        yield shown if _believed(each, judged) else shown.but("check")
    if contradiction is not None:
        yield contradiction
    if network is not None and network.action == REFUSE:
        yield Finding("refused model", "check")
    if judged.strikes and state == CANNOT_TELL:
        yield Finding("impulsive without line", "check")
    if zone is not None and zone.severity != "alarm":
        yield zone
    yield from _usual_lines(each, judged)
    if network is not None and state in (HEALTHY, CANNOT_TELL) and not network.agreement >= UNITED:
        yield Finding("windows disagree", "check", {"agreement": network.agreement})


def _usual_lines(each: Observation, judged: Judgement) -> Iterator[Finding]:
    """Lines that known good recordings show already, and what would be said without these recordings."""
    baseline, fused = each.witnesses.baseline, each.witnesses.fused
    if baseline is None or baseline.by != KNOWN:
        return
    shown = {fault: level for fault, level in baseline.usual.items() if level >= USUAL_LINE}
    alone = _likeliest(fuse(replace(fused, baseline=None), prior=PRIOR if each.rule is None else each.rule.prior))
    if shown or alone != judged.state:
        values = {"levels": shown, "of": f"the {KNOWN}"} | ({"without": alone} if alone != judged.state else {})
        yield Finding("lines of baseline", "remark", values)


def _believed(each: Observation, judged: Judgement) -> bool:
    """Whether a fault that is shown is an alarm: not by faint lines alone, nor by lines at the edge of the search for
    the speed, nor by a model that is not to be used, nor where its class was not asked for.
    """
    network, physics, baseline = each.witnesses.network, each.witnesses.physics, each.witnesses.baseline
    rule = each.rule or AlarmRule.of([] if network is None else list(network.probabilities))
    if network is not None and judged.label in network.probabilities and judged.label not in rule.classes:
        return False
    counted = None if network is None or network.action == REFUSE else network
    if physics is None:
        return counted is not None
    if counted is not None and 1 - counted.states.get(HEALTHY, 0.0) >= SURE:
        return True
    fault = judged.state if judged.state in FAULTS else physics.likeliest_fault
    grown = baseline is not None and baseline.by == KNOWN and baseline.change[fault] >= GROWN
    return (grown or physics.clarity(fault) != "faint") and not (counted is None and physics.at_edge)


def _is_clear(fault: str, witnesses: Witnesses) -> bool:
    """Whether lines of a fault are more than faint, and more than what healthy recordings of the point have."""
    physics, baseline = witnesses.physics, witnesses.baseline
    usual = baseline is not None and baseline.by == KNOWN and baseline.change[fault] < GROWN
    return physics is not None and physics.clarity(fault) != "faint" and not usual


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
    likeliest = max(faults, key=lambda state: found[state], default=CANNOT_TELL)
    if found.get(likeliest, 0.0) >= SURE:
        return likeliest
    return UNCLEAR if found and fault >= CERTAIN else CANNOT_TELL


def _shown(state: str, witnesses: Witnesses) -> Finding | None:
    """What shows a fault: its line where there is one, else the class that the model names."""
    physics, network, baseline = witnesses.physics, witnesses.network, witnesses.baseline
    if state in (*FAULTS, UNCLEAR) and physics is not None:
        fault = state if state in FAULTS else physics.likeliest_fault
        values = {"state": fault, **physics.strongest_line(fault), "clarity": clarity_of(state, witnesses)}
        if baseline is not None and baseline.change[fault] >= GROWN:
            values |= {"change": baseline.change[fault], "by": baseline.by}
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
    if heard not in (state, HEALTHY) and signal[heard] >= SURE:
        clear = state == UNKNOWN_STATE and physics.clarity(heard) != "faint"
        return Finding(
            "physics contradicts", "alarm" if clear else "check", {"state": heard, **physics.strongest_line(heard)}
        )
    if state not in (HEALTHY, UNKNOWN_STATE) and heard == HEALTHY and signal[heard] >= SURE:
        return Finding("physics contradicts", "check", {"state": HEALTHY})
    if state not in (UNKNOWN_STATE, UNCLEAR) and said != state and model[said] >= SURE:
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
