"""A recording by its windows, as the commands pool it; made evidence of physics and of a model; one recording alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bearcat.data.recording import Recording
from bearcat.deploy import examine
from bearcat.deploy.find import FoundMeasurement, FoundUnit, Given
from bearcat.deploy.opened import Predictor, network_evidence, tally_windows
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.fusion import NetworkEvidence, Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.lines import FAULTS, FaultLines
from bearcat.diagnosis.physics import PhysicsEvidence
from bearcat.diagnosis.pooling import Pooled, pool
from bearcat.diagnosis.recording import Diagnoses, Diagnosis, Observation


def pool_windows(model: Predictor, recording: Recording) -> Pooled:
    return pool(tally_windows(model, recording), model.pooled_temperature, model.familiarity)


def by_model(
    recording: str, pooled: Pooled, classes: Sequence[str], action: str, physics: PhysicsEvidence | None = None
) -> Diagnosis:
    network = network_evidence(pooled, classes, Decision(action), "condition")
    return decided(recording, Witnesses(physics, None, network))


def lines_of(
    levels: dict[str, float], usual: float = 3.0, reference: float = 3.0, kurtosis: float = 2.0,
    fitted: float = 1500.0, sidebands: float | None = 8.0,
) -> PhysicsEvidence:  # fmt: skip
    """Three lines of each fault at its level in dB, `usual` where none is given, at a stated speed of 1500 rpm."""
    faults = {
        name: FaultLines(90.0, level, (level,) * 3, sidebands, (0.0, 6000.0))
        for name, level in (dict.fromkeys(FAULTS, usual) | levels).items()
    }
    return PhysicsEvidence((), 12_000.0, 1500.0, fitted, faults, reference, kurtosis, 9)


def model_of(shares: dict[str, float], action: str = "use", shift: str = "condition") -> NetworkEvidence:
    return NetworkEvidence(shares, 1.0, 9, action, shift=shift)


def decided(recording: str, witnesses: Witnesses, **known: Any) -> Diagnosis:
    """One recording, of which this is known."""
    return decide_together([Observation(recording, witnesses, **known)])[0]


def diagnosed(found: FoundMeasurement, given: Given) -> Diagnoses:
    """The points of one measurement."""
    return decide_together(examine([FoundUnit("", lambda: [found])], given))
