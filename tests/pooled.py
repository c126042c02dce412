"""A recording by its windows, as the commands pool it; a model's word as a diagnosis; and one recording alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bearcat.data.stream import Stream
from bearcat.deploy.ask import tally_stream
from bearcat.deploy.diagnose import evidence_of, measure_points, network_evidence
from bearcat.deploy.find import FoundMeasurement, Given
from bearcat.deploy.opened import Predictor
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.judging import decide_together
from bearcat.diagnosis.physics import PhysicsEvidence
from bearcat.diagnosis.pooling import Pooled, pool
from bearcat.diagnosis.recording import Diagnoses, Diagnosis, Observation


def pool_stream(model: Predictor, stream: Stream, *words: Any, **more: Any) -> Pooled:
    return pool(tally_stream(model, stream, *words, **more), model.pooled_temperature, model.familiarity)


def by_model(
    recording: str, pooled: Pooled, classes: Sequence[str], action: str, physics: PhysicsEvidence | None = None
) -> Diagnosis:
    network = network_evidence(pooled, classes, Decision(action), "condition")
    return decided(recording, Witnesses(physics, None, network))


def decided(recording: str, witnesses: Witnesses, **known: Any) -> Diagnosis:
    """One recording, of which this is known."""
    return decide_together([Observation(recording, witnesses, **known)])[0]


def diagnosed(found: FoundMeasurement, given: Given) -> Diagnoses:
    """The points of one measurement."""
    return decide_together(evidence_of(found, measure_points(found, given), given))
