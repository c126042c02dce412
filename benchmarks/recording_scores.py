"""Scores recordings as plants count: missed faults, false alarms, types of faults, recordings a person has to check.

Each kind of evidence is scored alone (physics, the general model, the network), then all that needs no network (`bearcat
diagnose`), then the diagnosis in the record. A cell is one run: a method on a task with a target and a seed.
docs/protocol.md defines the counts.

>>> scores = witness_scores(read_result(Path("bearcat-out")))
>>> scores["diagnosis"].missed, scores["diagnosis"].false_alarms
(0.0, 0.04)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bearcat.data.recording import HEALTHY_NAMES
from bearcat.diagnosis.decision import (
    ALARM,
    CANNOT_TELL,
    CHECK,
    HEALTHY,
    OK,
    REFUSE,
    UNKNOWN_STATE,
    Decision,
    decide,
)
from bearcat.diagnosis.judging import UNITED, decide_together
from bearcat.diagnosis.physics import state_of
from bearcat.diagnosis.recording import CLAIMLESS, Diagnosis
from bearcat.findings import SURE
from bearcat.report import Result

PHYSICS, GENERAL, NETWORK = "physics alone", "general model alone", "network alone"
UNTRAINED, DIAGNOSIS = "diagnose", "diagnosis"
BINS = 10  # of the calibration error


@dataclass(frozen=True)
class RecordingScores:
    """Of the labelled recordings of one cell; shares are fractions, None where there is nothing to count."""

    recordings: int
    right: float | None  # healthy called healthy, a fault called by its type, a type unknown to the source `unknown`
    missed: float | None  # of faulty ones: called healthy, or decided `ok`
    passed: float | None  # of faulty ones: decided `ok`, so that nobody looks at them
    false_alarms: float | None  # of healthy ones: called faulty, or decided `alarm`
    type_right: float | None  # of faulty ones
    check: float | None  # decided `check`
    ece: float | None  # of the confidence that the call is right; calls that claim nothing do not count


def score_recordings(
    diagnoses: Sequence[Diagnosis], labels: Mapping[str, str], known: Sequence[str] = ()
) -> RecordingScores:
    """Of the diagnoses whose recordings have labels; `known` are the source's classes; none: physics knows them all."""
    judged = [(each, labels[each.recording]) for each in diagnoses if labels.get(each.recording)]
    truth = np.array([HEALTHY if label.lower() in HEALTHY_NAMES else state_of(label) or label for _, label in judged])
    state = np.array([each.state for each, _ in judged])
    action = np.array([each.decision.action for each, _ in judged])
    alien = np.array([bool(known) and label not in known for _, label in judged], dtype=bool)
    right = (state == truth) | (alien & (state == UNKNOWN_STATE))
    claims = ~np.isin(state, CLAIMLESS)
    faulty = truth != HEALTHY
    called_faulty = (claims | (state == UNKNOWN_STATE)) & (state != HEALTHY)
    confidence = np.array([each.confidence for each, _ in judged])
    return RecordingScores(
        len(judged),
        _share(right),
        _share(((state == HEALTHY) | (action == OK))[faulty]),
        _share((action == OK)[faulty]),
        _share((called_faulty | (action == ALARM))[~faulty]),
        _share(right[faulty]),
        _share(action == CHECK),
        calibration_error(confidence[claims], right[claims]),
    )


def _share(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float | None:
    """ECE of recordings: the mean distance of confidence and accuracy over bins (lowest, highest], by their sizes."""
    if not len(confidence):
        return None
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(place, confidence - right, minlength=BINS)  # sums, so that sizes are in them already
    return float(np.abs(gaps).sum() / len(confidence))


def witness_scores(result: Result) -> dict[str, RecordingScores]:
    """Of each witness of a run; none where its record holds no diagnoses or the target has no labels."""
    record, found = result.record, result.record.recordings
    labels = dict(zip(result.predictions.recording, result.predictions.label, strict=True)) if found else {}
    if not any(labels.get(each.recording) for each in found):
        return {}
    action = decide(replace(record.evidence, physics=None)).action
    plain = [
        replace(each, witnesses=replace(each.witnesses, network=None, baseline=None)) for each in found if each.physics
    ]
    # Each alone is what it would say by itself, in its own words: a network's own confidence, not a fitted one.
    witnesses = {
        PHYSICS: [_alone(each, each.physics.probabilities) for each in found if each.physics is not None],
        GENERAL: [_alone(each, seen.probabilities) for each in found if (seen := each.witnesses.general) is not None],
        NETWORK: [_alone(each, own.states, action) for each in found if (own := each.witnesses.network) is not None],
        UNTRAINED: list(decide_together(plain)),
        # Of the witnesses as they are kept and the fusion as it is now, so that reports of any runs can be compared.
        DIAGNOSIS: list(decide_together(found, record.decision.action)),
    }  # fmt: skip
    return {
        name: score_recordings(diagnoses, labels, record.data.classes if name in (NETWORK, DIAGNOSIS) else ())
        for name, diagnoses in witnesses.items()
        if diagnoses
    }


def _alone(each: Diagnosis, shares: Mapping[str, float], action: str | None = None) -> Diagnosis:
    """What one witness says of a recording, and what its word alone would decide."""
    state = max(shares, key=lambda name: shares[name])
    sure, network = shares[state], each.witnesses.network
    familiar, agreement = (network.familiar, network.agreement) if action and network else (None, None)
    state = UNKNOWN_STATE if familiar is False else CANNOT_TELL if sure < SURE and action is None else state
    strikes = action is None and each.physics is not None and each.physics.strikes
    unsure = state == CANNOT_TELL or strikes or (agreement is not None and agreement < UNITED and state == HEALTHY)
    faulty = state not in (HEALTHY, CANNOT_TELL, UNKNOWN_STATE)
    said = ALARM if state == UNKNOWN_STATE or (faulty and action != REFUSE) else CHECK
    decision = Decision(OK if state == HEALTHY and not unsure and action != REFUSE else said, sure)
    return replace(each, state=state, confidence=sure, probabilities=shares, decision=decision)
