"""The one place where recordings are decided: each by all its witnesses, and beside the others of its point.

A fault is named, and an alarm, from a probability SURE of that fault on; as a fault of unclear type, from CERTAIN of
any fault on. It is to be checked where faint lines are all that shows it. What nobody can tell is never an alarm.

>>> [diagnosis.decision.action for diagnosis in decide_together([Observation("monday.wav", Witnesses(physics)), other])]
['ok', 'alarm']
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace

from bearcat.diagnosis.decision import (
    CANNOT_TELL,
    HEALTHY,
    NO_SIGNAL,
    OF_RECORDING,
    REFUSE,
    SEVERE,
    UNCLEAR,
    UNKNOWN_STATE,
    Decision,
    PhysicsCheck,
)
from bearcat.diagnosis.fusion import Witnesses, fuse, state_of_class
from bearcat.diagnosis.lines import FAULTS
from bearcat.diagnosis.physics import KNOWN, PhysicsEvidence, known_baseline, quiet_baselines, state_of, usual_lines
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.recording import Diagnoses, Diagnosis, Observation
from bearcat.findings import GROWN, SURE, Finding, highest, reasons, unique

CERTAIN = 0.9  # probability of any fault from which on it is an alarm whose type is unclear
SAFE_FAULT = 0.15  # probability of a fault above which a recording is not called healthy: a missed fault costs more
UNITED = 0.7  # share of a recording's windows that must agree before it is called ok
AS_IMPULSIVE = 1.2  # times the kurtosis of known good recordings, up to which it is as usual


def decide_together(evidence: Sequence[Observation], action: str | None = None) -> Diagnoses:
    """A diagnosis of each, beside the others of its point: whether the machine stands still, and against the quiet
    majority at its speed where there is one. With `action` that is the decision on the model. Diagnoses are evidence
    too, and are decided anew.
    """
    observed = [_by_model(recording, action) for recording in evidence]
    alone = [_decided(recording) for recording in observed]
    quiet = [
        diagnosis.state == HEALTHY and highest(_noticed(diagnosis)[0]) not in ("check", "alarm") for diagnosis in alone
    ]
    observed = _standing(observed, quiet)
    lines = [None if recording.no_signal is not None else recording.physics for recording in observed]
    baselines = quiet_baselines(lines, quiet, [recording.where for recording in observed])
    diagnoses = []
    for recording, baseline in zip(observed, baselines, strict=True):
        if baseline is not None and recording.witnesses.baseline is None:
            recording = replace(recording, witnesses=replace(recording.witnesses, baseline=baseline))
        diagnoses.append(_decided(recording))
    return Diagnoses(diagnoses)


def beside_healthy(evidence: Sequence[Observation], healthy: Collection[str]) -> list[Observation]:
    """The same, where recordings of these names are known to be healthy: their lines are usual for their point."""
    usual = defaultdict[tuple[str | None, str | None], list[PhysicsEvidence]](list)
    for recording in evidence:
        if recording.recording in healthy and recording.physics is not None:
            usual[recording.where].append(recording.physics)
    beside = []
    for recording in evidence:
        physics, witnesses = recording.physics, recording.witnesses
        baseline = None if physics is None else known_baseline(usual[recording.where], physics)
        beside.append(replace(recording, witnesses=replace(witnesses, baseline=baseline or witnesses.baseline)))
    return beside


def physics_check(evidence: Sequence[Observation]) -> PhysicsCheck | None:
    """Where physics and the model differ; None where no recording could be compared. Faint lines, and lines that
    healthy recordings of the point have too, say nothing against a model.
    """
    compared, missed = 0, list[str]()
    for recording in evidence:
        physics = recording.physics
        if physics is None or physics.state == CANNOT_TELL or state_of(str(recording.nearest)) is None:
            continue
        compared += 1
        differs = physics.state != state_of(str(recording.nearest))
        if differs and physics.state in FAULTS and physics.clarity(physics.state) != "faint":
            baseline = recording.witnesses.baseline
            if baseline is None or baseline.by != KNOWN or baseline.change[physics.state] >= GROWN:
                missed.append(recording.recording)
    return PhysicsCheck(compared, tuple(missed)) if compared else None


def _by_model(recording: Observation, action: str | None) -> Observation:
    network = recording.witnesses.network
    if network is None or action is None:
        return recording
    return replace(recording, witnesses=replace(recording.witnesses, network=replace(network, action=action)))


def _decided(recording: Observation) -> Diagnosis:
    """The diagnosis: the state that all witnesses together speak for, and the highest severity of what was found."""
    if recording.no_signal is not None:
        silent = replace(recording, witnesses=Witnesses(), drawing=None)
        return _diagnosis(silent, NO_SIGNAL, [recording.no_signal])
    if (problem := recording.problem) is not None:  # a person must look at it
        values = {"problem": problem.beside(recording.recording)}
        finding = Finding("not diagnosed" if problem.readable else "unreadable", "check", values)
        return _diagnosis(recording, finding.kind, [finding])
    witnesses, prior = recording.witnesses, recording.rule.prior
    network, physics = witnesses.network, witnesses.physics
    probabilities = fuse(witnesses.fused, prior=prior)
    state = _likeliest(probabilities)
    of_signal = {} if network is None or physics is None else fuse(replace(witnesses, network=None), prior=prior)
    contradiction, strikes = _contradiction(state, witnesses, of_signal), _strikes(witnesses) and not recording.masked
    if state == HEALTHY and (contradiction is not None or recording.masked or strikes):
        state = CANNOT_TELL  # any fault finding prevents `ok`
    by_family = recording.family is not None and recording.family.finding.severity == "alarm"
    by_family = by_family and state in (HEALTHY, CANNOT_TELL)
    if by_family:
        state = UNCLEAR  # lines of a bearing that nobody named, of which no model knows
    label = None
    if network is not None:
        classes = [name for name in network.probabilities if state_of_class(name) == state]
        label = max(classes, key=lambda name: network.probabilities[name], default=state)
        if network.familiar is False:
            state = label = UNKNOWN_STATE
            contradiction = _contradiction(state, witnesses, of_signal)
    confidence = probabilities.get(state, max(probabilities.values(), default=0.0))
    if state == UNCLEAR and probabilities:
        confidence = 0.0 if by_family else 1 - probabilities.get(HEALTHY, 0.0)
    noticed, unlike = _noticed(recording)
    findings = [*_findings(recording, state, label, contradiction, strikes), *noticed, *unlike]
    if state != HEALTHY and highest(findings) in ("ok", "remark"):
        findings.append(Finding("not enough evidence", "check"))
    if state in (HEALTHY, CANNOT_TELL) and highest(findings) == "alarm":  # by the zone of ISO 20816-3 alone
        state, label = SEVERE, None if label is None else SEVERE
    return _diagnosis(recording, state, findings, confidence, probabilities, label)


def _diagnosis(
    recording: Observation, state: str, findings: Sequence[Finding], confidence: float = 0.0,
    probabilities: Mapping[str, float] | None = None, label: str | None = None,
) -> Diagnosis:  # fmt: skip
    observed, findings = {field.name: getattr(recording, field.name) for field in fields(Observation)}, unique(findings)
    decision = Decision(OF_RECORDING[highest(findings)], reasons=reasons(findings), findings=findings)
    return Diagnosis(
        **observed, decision=decision, state=state, confidence=confidence,
        probabilities=probabilities or {}, label=label,
    )  # fmt: skip


def _findings(
    recording: Observation, state: str, label: str | None, contradiction: Finding | None, strikes: bool
) -> Iterator[Finding]:
    """What the witnesses find, the most telling first."""
    witnesses, network = recording.witnesses, recording.network
    zone = None if recording.vibration is None else recording.vibration.finding
    if zone is not None and zone.severity == "alarm":
        yield zone
    if state == UNKNOWN_STATE:
        yield Finding("unfamiliar", "alarm")
    if recording.family is not None:
        yield recording.family.finding
    fault = _fault_finding(state, witnesses)
    if fault is not None:
        yield fault if _believed(recording, state, label) else fault.but("check")
    if contradiction is not None:
        yield contradiction
    if network is not None and network.action == REFUSE:
        yield Finding("refused model", "check")
    if strikes and state == CANNOT_TELL:
        yield Finding("impulsive without line", "check")
    if zone is not None and zone.severity != "alarm":
        yield zone
    yield from _usual_lines(recording, state)
    if network is not None and state in (HEALTHY, CANNOT_TELL) and not network.agreement >= UNITED:
        yield Finding("windows disagree", "check", {"agreement": network.agreement})


def _usual_lines(recording: Observation, state: str) -> Iterator[Finding]:
    """Lines that known good recordings show already, and what would be said without these recordings."""
    baseline, fused = recording.witnesses.baseline, recording.witnesses.fused
    if baseline is None or baseline.by != KNOWN:
        return
    lines = usual_lines(baseline.usual)
    alone = _likeliest(fuse(replace(fused, baseline=None), prior=recording.rule.prior))
    if lines or alone != state:
        values = {"levels": lines, "of": f"the {KNOWN}"} | ({"without": alone} if alone != state else {})
        yield Finding("lines of baseline", "remark", values)


def _believed(recording: Observation, state: str, label: str | None) -> bool:
    """Whether a fault that is shown is an alarm: not by faint lines alone, nor by lines at the edge of the search for
    the speed, nor by a model that is not to be used, nor where its class was not asked for.
    """
    network, physics, baseline = recording.network, recording.physics, recording.witnesses.baseline
    if network is not None and label in network.probabilities and not recording.rule.includes(str(label)):
        return False
    usable = recording.witnesses.usable_network
    if physics is None:
        return usable is not None
    if usable is not None and 1 - usable.states.get(HEALTHY, 0.0) >= SURE:
        return True
    fault = state if state in FAULTS else physics.likeliest_fault
    grown = baseline is not None and baseline.by == KNOWN and baseline.change[fault] >= GROWN
    return (grown or physics.clarity(fault) != "faint") and not (usable is None and physics.at_edge)


def _noticed(recording: Observation) -> tuple[list[Finding], list[Finding]]:
    """What was noticed of the recording, and what physics never met. Where a usable model decides, a speed that was not
    found does not matter, and the second are remarks.
    """
    physics, by_signal = recording.physics, recording.witnesses.usable_network is None
    observed = [finding for finding in recording.observed if by_signal or finding.kind != "speed not found"]
    unlike = () if physics is None else physics.findings
    return observed, [finding if by_signal else finding.but("remark") for finding in unlike]


def _likeliest(probabilities: Mapping[str, float]) -> str:
    """The state that these probabilities are enough for; CANNOT_TELL where they are not."""
    fault = 1 - probabilities.get(HEALTHY, 0.0)
    if not probabilities:
        return CANNOT_TELL
    if fault <= SAFE_FAULT:
        return HEALTHY
    faults = [state for state in probabilities if state != HEALTHY]
    likeliest = max(faults, key=lambda state: probabilities[state], default=CANNOT_TELL)
    if probabilities.get(likeliest, 0.0) >= SURE:
        return likeliest
    return UNCLEAR if fault >= CERTAIN else CANNOT_TELL


def _fault_finding(state: str, witnesses: Witnesses) -> Finding | None:
    """What shows a fault: its line where there is one, else the class that the model names."""
    physics, network, baseline = witnesses.physics, witnesses.network, witnesses.baseline
    if state in (*FAULTS, UNCLEAR) and physics is not None:
        fault = state if state in FAULTS else physics.likeliest_fault
        values = {"state": fault, **physics.strongest_line(fault), "clarity": physics.clarity(fault)}
        if baseline is not None and baseline.change[fault] >= GROWN:
            clarity = f"{values['clarity']}, growing"
            values |= {"clarity": clarity, "change": baseline.change[fault], "by": baseline.by}
        return Finding("fault line", "alarm", values)
    named = network is not None and state_of_class(network.nearest) != HEALTHY
    if state not in (HEALTHY, CANNOT_TELL, UNKNOWN_STATE) and network is not None and named:
        return Finding("model class", "alarm", {"label": network.nearest, "probability": network.confidence})
    return None


def _contradiction(state: str, witnesses: Witnesses, signal: Mapping[str, float]) -> Finding | None:
    """A witness that says otherwise; None where they agree. `signal`: what those without the model say."""
    network, physics = witnesses.network, witnesses.physics
    if network is None or physics is None or (network.action == REFUSE and state != UNKNOWN_STATE):
        return None
    model = network.states
    by_signal, by_model = (max(states, key=lambda name: states[name]) for states in (signal, model))
    if by_signal not in (state, HEALTHY) and signal[by_signal] >= SURE:
        clear = state == UNKNOWN_STATE and physics.clarity(by_signal) != "faint"
        values = {"state": by_signal, **physics.strongest_line(by_signal)}
        return Finding("physics contradicts", "alarm" if clear else "check", values)
    if state not in (HEALTHY, UNKNOWN_STATE) and by_signal == HEALTHY and signal[by_signal] >= SURE:
        return Finding("physics contradicts", "check", {"state": HEALTHY})
    if state not in (UNKNOWN_STATE, UNCLEAR) and by_model != state and model[by_model] >= SURE:
        return Finding("model contradicts", "check", {"state": by_model})
    return None


def _strikes(witnesses: Witnesses) -> bool:
    """Whether something strikes at no line of the bearing, which it did not always do."""
    physics, baseline = witnesses.physics, witnesses.baseline
    usual = baseline is not None and baseline.by == KNOWN and baseline.impulsive <= math.log(AS_IMPULSIVE)
    return physics is not None and physics.strikes and not usual


def _shows_fault(recording: Observation) -> bool:
    """Whether the signal itself shows a fault, or may."""
    probabilities, physics = fuse(replace(recording.witnesses, network=None)), recording.physics
    named = recording.family is not None or (physics is not None and physics.state in FAULTS)
    return named or (bool(probabilities) and 1 - probabilities[HEALTHY] > SAFE_FAULT)


def _standing(observed: Sequence[Observation], quiet: Sequence[bool]) -> list[Observation]:
    """No signal where a recording is far quieter than the healthy ones of its point, and shows no fault. Files that
    only lie in one folder may be of several machines and are not compared.
    """
    usual = defaultdict[tuple[str | None, str | None], list[float]](list)
    for recording, calm in zip(observed, quiet, strict=True):
        if recording.rms is not None and calm and recording.machine_stated:
            usual[recording.where].append(recording.rms)
    standing = []
    for recording in observed:
        if recording.rms is not None and recording.machine_stated and recording.no_signal is None:
            still = stopped(recording.rms, usual[recording.where])
            if still is not None and not _shows_fault(recording):
                recording = replace(recording, no_signal=still)
        standing.append(recording)
    return standing
