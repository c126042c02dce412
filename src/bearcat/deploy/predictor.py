"""What every model is, in its folder and in an ONNX file alike; and a recording as the windows of a model.

A model may come from anywhere, so its metadata are read by type and range before anything is built of them. Blocks of
samples are brought to the model's rate and cut into windows, so that a day needs no more memory than a minute.

>>> stream, findings = at_rate_of(model, open_stream(Path("monday.wav")))
>>> pooled = pool(tally_stream(model, stream), model.pooled_temperature, model.familiarity)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.inputs import Input, find_input
from bearcat.data.recording import Floats, Speed, change_rate, cut_samples, rate_ratio, spectral_shape
from bearcat.data.signals import BLOCK
from bearcat.data.stream import Stream
from bearcat.data.windows import Preparation
from bearcat.diagnosis.decision import CHECK, REFUSE, USE, Decision
from bearcat.diagnosis.pooling import Familiarity, Outputs, Tally, tally
from bearcat.errors import InputError, check_range
from bearcat.findings import Finding
from bearcat.settings import from_plain

FORMAT = 3  # of model folders and ONNX files: rises when an old reader would misunderstand a new model
BATCH = 256  # windows handed to the model at once
IN_GRAPH = ("time", "frequency")  # inputs that a graph holds; of all others it takes the values of prepared windows

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Predictor(ABC):
    """What Model and OnnxModel have in common. Of `metadata`, rpm, channel and bearing are of the adapted target."""

    classes: tuple[str, ...]
    preparation: Preparation
    rate: float | None  # of the recordings it was trained on
    metadata: dict[str, Any]  # for people and the card: recipe, task, data, scores, estimates, limits, versions, …
    channels: int = 1
    pooled_temperature: float = 1.0  # of a recording's confidence (bearcat.diagnosis.pooling)
    familiarity: Familiarity | None = None  # what windows of the adapted target look like, where that was fitted
    place: Path | None = None  # which it was read from

    @property
    def input(self) -> str:
        """A row of INPUTS."""
        return self.preparation.input

    @cached_property
    def input_row(self) -> Input:
        """That row, with its settings."""
        return find_input(self.input)

    @property
    def needs(self) -> tuple[str, ...]:
        """What of "rate", "rpm" and "bearing" its input needs."""
        return self.input_row.needs

    @property
    @abstractmethod
    def calibrated(self) -> bool:
        """Whether it has a calibration; one that ended at its bound is none."""

    def outputs(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Outputs:
        """(window, channel, sample) as recorded, at its rate → log-probabilities, logits, features.

        Speed and bearing are for inputs that use them.
        """
        return self.classify(self.input_row.transform(windows, self.sampling_rate, rpm, bearing))

    def classify(self, values: Array) -> Outputs:
        """The outputs of prepared windows (window, channel, point)."""
        raise NotImplementedError

    def log_probabilities(self, windows: Array, rpm: Speed | None = None, bearing: Bearing | None = None) -> Array:
        """The same windows → (window, class), calibrated."""
        return self.outputs(windows, rpm, bearing).log_probabilities

    @property
    def sampling_rate(self) -> float | None:
        """Of the windows it takes, where that is known."""
        return self.preparation.rate or self.rate

    @property
    def rpm(self) -> float | None:
        """The speed of recordings that say none."""
        return self.metadata.get("rpm")

    @property
    def channel(self) -> str | None:
        """The channel which files with several are read by."""
        return self.metadata.get("channel")

    @cached_property
    def bearing(self) -> Bearing | None:
        geometry = self.metadata.get("bearing")
        return None if geometry is None else Bearing(**geometry)

    @property
    def shift(self) -> str | None:
        """From its source to its target: condition, specimen, machine, …; None where that is not known."""
        found = self.metadata.get("shift")
        return found if isinstance(found, str) else None

    @cached_property
    def decision(self) -> Decision:
        """What to do with it, by the run that made it."""
        found: Decision = from_plain(Decision, self.metadata["decision"])
        return found

    def to_dict(self) -> dict[str, Any]:
        """What both formats hold of it in the same way."""
        return {
            "classes": list(self.classes), "channels": self.channels, "preparation": asdict(self.preparation),
            "rate": self.rate, "rpm": self.rpm, "channel": self.channel, "bearing": self.metadata.get("bearing"),
            "pooled_temperature": self.pooled_temperature, "decision": self.metadata["decision"], "shift": self.shift,
        }  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Metadata:
    """What both formats say of a model, by type and range."""

    classes: tuple[str, ...]
    channels: int
    preparation: Preparation
    rate: float | None
    rpm: float | None
    channel: str | None
    bearing: Bearing | None
    pooled_temperature: float
    decision: Decision
    calibrated: bool

    def __post_init__(self) -> None:
        check_range("rate", self.rate, field="rate")
        check_range("rpm", self.rpm, field="rpm")
        low, high = self.decision.interval or (0, 1)
        names = {name.strip() for name in self.classes}
        wrong = {
            "classes": not names or "" in names or len(names) != len(self.classes),
            "channels": self.channels < 1,
            "pooled_temperature": not 0 < self.pooled_temperature < math.inf,
            "decision": self.decision.action not in (USE, CHECK, REFUSE)
            or not (0 <= low <= high <= 1 and 0 <= (self.decision.expected or 0) <= 1),
        }  # fmt: skip
        for name in (name for name, value in wrong.items() if value):
            raise ValueError(f"'{name}' has a value that cannot be")


def read_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Predictor; ValueError or InputError names one that is missing or of a wrong type."""
    known: Metadata = from_plain(Metadata, metadata)
    names = ("classes", "preparation", "rate", "channels", "pooled_temperature")
    return {name: getattr(known, name) for name in names} | {"metadata": metadata}


def check_format(found: int, place: Path) -> None:
    """InputError where another version wrote a model, with what to do."""
    if found != FORMAT:
        writer, advice = ("a newer", "upgrade") if found > FORMAT else ("an older", "train or export it again with")
        raise InputError(f"{place}: was written by {writer} bearcat; {advice} this one")


@contextmanager
def naming(place: Path, problem: str) -> Iterator[None]:
    """Every error is a sentence that begins with the model's place."""
    try:
        yield
    except InputError as error:  # a row that is not in INPUTS or ENCODERS is named without the place
        raise error if str(error).startswith(f"{place}") else InputError(f"{place}: {error}") from error
    except ModuleNotFoundError:  # nothing is wrong with the model
        raise
    except Exception as error:  # damaged files raise nearly every kind
        what = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise InputError(f"{place}: {problem} ({what:.200}); copy or make the model again") from error


def at_rate_of(model: Predictor, stream: Stream, rate: float | None = None) -> tuple[Stream, list[Finding]]:
    """The stream at the model's rate, and what a reader should know; `rate` is of files that do not say theirs."""
    origin, wanted, own = stream.origin, model.sampling_rate, stream.rate or rate
    findings, blocks = list[Finding](), stream.blocks
    if wanted is None and own is not None:
        findings.append(Finding("model without rate", "remark", {"rate": own}))
    elif wanted is not None and own is None:
        if model.preparation.rate is None:
            raise InputError(
                f"{origin}: does not say its sampling rate; give it (the model's is {wanted:g} Hz)", "rate"
            )
        findings.append(Finding("rate assumed", "remark", {"rate": wanted}))  # as in training
    elif wanted is not None and own is not None and own != wanted:
        ratio = rate_ratio(origin, own, wanted)
        blocks = resampled(blocks, ratio.numerator, ratio.denominator)
        findings.append(Finding("resampled", "remark", {"rate": own, "to": wanted}))
        if own < wanted:
            findings.append(Finding("missing frequencies", "remark", {"hertz": own / 2}))
    return Stream(origin, wanted or own, blocks), findings


def tally_stream(model: Predictor, stream: Stream, rpm: float | None = None, bearing: Bearing | None = None) -> Tally:
    """Sums and counts of the windows of a recording of any length, at the model's rate."""
    if model.channels != 1:
        several = f"the model takes {model.channels} channels at once, and a file is read one channel at a time"
        raise InputError(f"{stream.origin}: {several}; call the model in Python", readable=True)
    length, tallies = model.preparation.length, list[Tally]()
    for _, windows in cut_stream(stream.blocks, length, model.preparation.step, BATCH):
        outputs, unfamiliar = model.outputs(windows[:, None], rpm or model.rpm, bearing or model.bearing), None
        if model.familiarity is not None:
            unfamiliar = model.familiarity.unfamiliar(outputs.features, spectral_shape(windows[:, None]))
        tallies.append(tally(outputs.log_probabilities, unfamiliar))
    if not tallies:
        short = f"is shorter than one window of {length} samples"
        raise InputError(f"{stream.origin}: {short}; record for longer", readable=True)
    return reduce(add, tallies)


def cut_stream(blocks: Iterable[Floats], length: int, step: int, batch: int) -> Iterator[tuple[int, Floats]]:
    """Blocks (time,) → (first window's start, windows (≤ batch, length)), as cutting the whole signal would give."""
    held, base = np.empty(0, dtype=np.float32), 0  # base: the sample at which `held` begins; a window's start, or ahead
    skip = 0  # samples still to come that no window wants, where the step is longer than a window
    for block in blocks:
        dropped = min(skip, block.size)
        skip -= dropped
        held = np.concatenate([held, block[dropped:]])
        while held.size >= length:
            count = min((held.size - length) // step + 1, batch)
            yield base, cut_samples(held, length, step)[:count]
            base += count * step
            skip = max(count * step - held.size, 0)
            held = held[count * step :]


def resampled(blocks: Iterable[Floats], up: int, down: int) -> Iterator[Floats]:
    """Blocks at up/down times the rate, as scipy's resample_poly would make them of the whole signal."""
    if up == down:
        yield from blocks
        return
    most = max(up, down)
    # The filter reaches so many samples to both sides; each piece is computed with these neighbours, and pieces begin
    # at multiples of `down`, where a sample before falls on one after.
    reach, step = math.ceil(10 * most / up) + 1, max(BLOCK * down // up, 1)
    held, base, done = np.empty(0, dtype=np.float32), 0, 0  # base: of the input; done: of the output

    def made(until: int) -> Floats:
        first = base // down * up
        return change_rate(held, up, down)[done - first : until - first]

    for piece in (block[start : start + step] for block in blocks for start in range(0, block.size, step)):
        held = np.concatenate([held, piece])
        until = (base + held.size - reach) * up // down
        if until > done:
            yield made(until)
            done = until
            start = max(done * down // up - reach, 0) // down * down
            held, base = held[max(start - base, 0) :], max(start, base)
    if held.size:
        yield made(math.ceil((base + held.size) * up / down))
