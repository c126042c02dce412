"""A recording by its windows, as the commands pool it; and a model's word as a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bearcat.data.stream import Stream
from bearcat.deploy.predictor import Predictor
from bearcat.deploy.windows import tally_stream
from bearcat.diagnosis.decision import Decision
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.physics import PhysicsEvidence
from bearcat.diagnosis.pooling import Pooled, pool
from bearcat.diagnosis.recording import Diagnosis, network_evidence


def pool_stream(model: Predictor, stream: Stream, *words: Any, **more: Any) -> Pooled:
    return pool(tally_stream(model, stream, *words, **more), model.pooled_temperature, model.familiarity)


def by_model(
    recording: str, pooled: Pooled, classes: Sequence[str], action: str, physics: PhysicsEvidence | None = None
) -> Diagnosis:
    network = network_evidence(pooled, classes, Decision(action), "condition")
    return Diagnosis.of(recording, Witnesses(physics, None, network))
