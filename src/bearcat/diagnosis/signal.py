"""What a recording's signal says by itself, without a trained model of the machine: quality, physics, general model.

Blocks pass through unchanged, so that a model can read the same stream. What cannot be done is a problem in words,
never an exception: the other witnesses go on.

>>> analysis = SignalAnalysis("monday.wav", rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> for block in analysis.observe(stream.blocks): ...
>>> analysis.finish().physics.state
'outer race'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bearcat.data.recording import Floats
from bearcat.diagnosis.general import GeneralEvidence, GeneralWitness
from bearcat.diagnosis.physics import PhysicsAnalysis, PhysicsEvidence
from bearcat.diagnosis.quality import Quality, QualityCheck
from bearcat.errors import InputError


@dataclass(frozen=True, eq=False)
class SignalEvidence:
    """Of one recording; a witness is None where it could not look, and `problem` says why."""

    physics: PhysicsEvidence | None = None
    general: GeneralEvidence | None = None
    quality: Quality | None = None
    problem: str | None = None
    field: str | None = None  # what is missing: rate, rpm or bearing


class SignalAnalysis:
    """Collects what the witnesses need of one recording. `without` names a dataset whose bench must not be known."""

    def __init__(
        self, recording: str, rate: float | None, rpm: float | None, orders: Mapping[str, float] | None,
        threads: int = 1, without: str | None = None, unit: str | None = None,
    ) -> None:  # fmt: skip
        self.quality = QualityCheck(rate, unit)
        self.problem: InputError | None = None
        self.physics: PhysicsAnalysis | None = None
        self.general: GeneralWitness | None = None
        try:
            self.physics = PhysicsAnalysis(recording, rate, rpm, orders, threads)
            self.general = GeneralWitness(self.physics.rate, self.physics.rpm, self.physics.orders, without)
        except InputError as error:
            self.problem = error if self.physics is None else None  # outside the general model's range is no problem

    def observe(self, blocks: Iterable[Floats]) -> Iterator[Floats]:
        """The blocks unchanged; the witnesses see what passes."""
        for block in self.quality.observe(blocks):
            if self.physics is not None:
                self.physics.spectra.add(block)
            if self.general is not None:
                self.general.add(block)
            yield block

    def finish(self, axes: Sequence[SignalAnalysis] = ()) -> SignalEvidence:
        """What all blocks so far say, with those of further axes of the same point if there are any."""
        every = [self, *axes]
        checked = [each.quality.finish() for each in every]
        alive = [each for each, found in zip(every, checked, strict=True) if found.no_signal is None]
        if not alive:
            return SignalEvidence(quality=checked[0])
        notes = tuple(dict.fromkeys(note for found in checked for note in found.notes))
        quality = Quality(None, notes, float(np.median([found.rms for found in checked])))
        first, *others = alive
        try:
            rest = [each.physics for each in others if each.physics is not None]
            physics = None if first.physics is None else first.physics.finish(rest)
            general = None if physics is None else _mean([each.general.finish() for each in alive if each.general])
            problem = first.problem
        except InputError as error:
            physics, general, problem = None, None, error
        if problem is None:
            return SignalEvidence(physics, general, quality)
        return SignalEvidence(physics, general, quality, str(problem), problem.field)


def _mean(found: Sequence[GeneralEvidence | None]) -> GeneralEvidence | None:
    """The general model's word on a point by that on its axes."""
    known = [each for each in found if each is not None]
    if not known:
        return None
    states = {state: float(np.mean([each.probabilities[state] for each in known])) for state in known[0].probabilities}
    agreement = float(np.mean([each.agreement for each in known]))
    return GeneralEvidence(states, agreement, sum(each.windows for each in known))
