"""What a recording's signal says by itself, without a trained model of the machine: physics and the general model.

Blocks pass through unchanged, so that a model can read the same stream. What cannot be done is a problem in words,
never an exception: the other witnesses go on.

>>> analysis = SignalAnalysis("monday.wav", rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> for block in analysis.observe(stream.blocks): ...
>>> analysis.finish().physics.state
'outer race'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bearcat.data.recording import Floats
from bearcat.diagnosis.general import GeneralEvidence, GeneralWitness
from bearcat.diagnosis.physics import PhysicsAnalysis, PhysicsEvidence
from bearcat.errors import InputError


@dataclass(frozen=True, eq=False)
class SignalEvidence:
    """Of one recording; a witness is None where it could not look, and `problem` says why."""

    physics: PhysicsEvidence | None = None
    general: GeneralEvidence | None = None
    problem: str | None = None
    field: str | None = None  # what is missing: rate, rpm or bearing


class SignalAnalysis:
    """Collects what the witnesses need of one recording. `without` names a dataset whose bench must not be known."""

    def __init__(
        self, recording: str, rate: float | None, rpm: float | None, orders: Mapping[str, float] | None,
        threads: int = 1, without: str | None = None,
    ) -> None:  # fmt: skip
        self._problem: InputError | None = None
        self._physics: PhysicsAnalysis | None = None
        self._general: GeneralWitness | None = None
        try:
            self._physics = PhysicsAnalysis(recording, rate, rpm, orders, threads)
            self._general = GeneralWitness(self._physics.rate, self._physics.rpm, self._physics.orders, without)
        except InputError as error:
            self._problem = error if self._physics is None else None  # outside the general model's range is no problem

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the witnesses see what passes."""
        for block in blocks:
            if self._physics is not None:
                self._physics.spectra.add(block)
            if self._general is not None:
                self._general.add(block)
            yield block

    def finish(self) -> SignalEvidence:
        """What all blocks so far say."""
        physics, general = None, None
        try:
            physics = None if self._physics is None else self._physics.finish()
            general = None if self._general is None or physics is None else self._general.finish()
        except InputError as error:
            self._problem = error
        if (problem := self._problem) is None:
            return SignalEvidence(physics, general)
        return SignalEvidence(physics, general, str(problem), problem.field)
