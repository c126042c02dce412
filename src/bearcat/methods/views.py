"""Weak and strong views of target windows: the teacher labels the weak view, the student learns the strong one.

An ingredient that stands before self-training changes what the teacher is shown, one behind it what the student and all
losses read. Draws belong to the run (models.stacked.Randomness).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bearcat.errors import InputError
from bearcat.methods.ingredient import Ingredient

if TYPE_CHECKING:
    from bearcat.data.inputs import Input
    from bearcat.training.batches import Batch
    from bearcat.training.state import TrainingState


@dataclass(frozen=True)
class StrongView(Ingredient):
    """A composition of changes, each drawn for each window; 0 leaves one out."""

    name = "strong"
    begins = "labels"
    resample: float = 0.02  # the speed is drawn within ± this share
    shift: float = 1.0  # the start is drawn within this share of the window, which is taken as a circle
    stop: float = 0.1  # share of the band that is taken out, at a place that is drawn
    scale: float = 0.2  # the amplitude is drawn within ± this share
    snr: float = 15.0  # dB, of the noise that is added
    mask: float = 0.1  # share of the window that is set to 0, at a place that is drawn

    def __post_init__(self) -> None:
        for name in ("resample", "shift", "stop", "scale", "mask"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"setting '{self.name}.{name}' must lie between 0 and 1, not {getattr(self, name):g}")

    def for_input(self, kind: Input) -> StrongView:
        """Shift and band-stop are for samples in time; where points are lines of a spectrum, masking stops bands."""
        from bearcat.data.inputs import Waveform

        return self if isinstance(kind, Waveform) else replace(self, shift=0.0, stop=0.0)

    def start_step(self, state: TrainingState, batch: Batch) -> Batch:
        import torch

        from bearcat.methods import perturbations

        state.randomness.next()
        windows, draws = batch.target, state.randomness
        with torch.no_grad():
            if self.resample or self.shift:
                windows = perturbations.moved(windows, draws, self.resample, self.shift)
            if self.stop:
                windows = perturbations.band_stopped(windows, draws, self.stop)
            if self.scale:
                windows = perturbations.scaled(windows, draws, self.scale)
            if self.snr:
                windows = perturbations.noisy(windows, draws, self.snr)
            if self.mask:
                windows = perturbations.masked(windows, draws, self.mask)
            return replace(batch, both=torch.cat([batch.source, windows], dim=1))


@dataclass(frozen=True)
class WeakView(StrongView):
    """A little noise."""

    name = "weak"
    resample: float = 0.0
    shift: float = 0.0
    stop: float = 0.0
    scale: float = 0.0
    snr: float = 30.0
    mask: float = 0.0
