"""Recordings and windows → answers, as the server gives them; independent of HTTP.

>>> served, query = Served(model, alarms={"inner", "outer"}), PredictQuery(filename="monday.wav")
>>> with Readers(count=2, most=2**29) as readers:
...     answer = answer_file(served, readers, Path("private/1.wav"), query, Deadline(time.monotonic() + 30))
>>> answer.label, answer.confidence, answer.familiar
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from bearcat import __version__
from bearcat.data.bearing import BEARINGS, Bearing
from bearcat.data.isolated import Readers
from bearcat.data.recording import Floats
from bearcat.data.stream import UPLOADS
from bearcat.deploy.metadata import Predictor
from bearcat.deploy.predict import (
    BATCH,
    WindowPredictions,
    at_rate_of,
    diagnose_stream,
    diagnose_windows,
    predict_windows,
)
from bearcat.deploy.serve.picture import Folded, Mark, RecordingPicture, marks_of, sums, timeline
from bearcat.diagnosis.physical import SecondOpinion, contradiction
from bearcat.errors import InputError
from bearcat.trust.pooling import Diagnosis

FEW_WINDOWS = 1000  # of JSON, whose first mistake is named, however short they are
MOST_WINDOWS = 20_000  # listed one by one
MOST_RATE = 1e9  # Hz
Rate = Annotated[float, Field(gt=0, le=MOST_RATE, allow_inf_nan=False)]
Length = Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)]


def field_error(field: str, problem: str) -> InputError:
    return InputError(f"{field}: {problem}", field)


GEOMETRY = ("balls", "ball_diameter", "pitch_diameter", "contact_angle")


class PredictQuery(BaseModel):
    """The query of POST /predict. All but `by` is about uploaded recordings."""

    model_config = ConfigDict(extra="forbid")

    filename: str | None = Field(
        None, max_length=255, pattern=r"^[^\x00-\x1f\x7f/\\]+$",
        description="The recording's name; its ending says the format (csv, tsv, txt, npy, npz, mat, wav, parquet).",
        examples=["monday.wav"],
    )  # fmt: skip
    rate: Rate | None = Field(None, description="In Hz, of a recording that does not say its own.")
    channel: str | None = Field(None, max_length=255, description="The channel, of a recording with several.")
    by: Literal["recording", "window"] = Field("recording", description="window: a line for each window too.")
    picture: bool = Field(False, description="Waveform, spectra and the timeline, in a bounded number of points.")
    speed_rpm: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = Field(
        None, description="Of the shaft; for models that need it, and to mark its frequency in the picture."
    )
    balls: Annotated[int, Field(ge=3, le=200)] | None = Field(
        None, description="Of the bearing; with speed and both diameters the picture marks its fault frequencies."
    )
    ball_diameter: Length | None = Field(None, description="In mm.")
    pitch_diameter: Length | None = Field(None, description="In mm.")
    contact_angle: float = Field(0, ge=0, lt=90, allow_inf_nan=False, description="In degrees; 0: a radial load.")

    def bearing(self) -> Bearing | None:
        """The bearing, where it is given; InputError where the parameters describe none."""
        geometry = {name: getattr(self, name) for name in GEOMETRY[:3]}
        missing = [name for name, value in geometry.items() if value is None]
        if len(missing) == 3:
            return None
        if missing:
            raise field_error(missing[0], "is missing; a bearing is balls, ball_diameter and pitch_diameter")
        try:
            return Bearing(**geometry, contact_angle=self.contact_angle)
        except InputError as error:
            raise InputError(str(error), "ball_diameter") from error

    def marks(self) -> list[Mark]:
        """The frequencies to mark in the picture."""
        bearing = self.bearing()
        if self.speed_rpm is None:
            if bearing is not None:
                raise field_error("speed_rpm", "is missing; fault frequencies depend on it")
            return []
        return marks_of(bearing, self.speed_rpm)


class GivenWindows(BaseModel):
    """Windows as recorded: a list of windows, each a list of samples or (several channels) of lists of samples."""

    model_config = ConfigDict(extra="forbid")

    windows: list[list[float]] | list[list[list[float]]] = Field(
        description="(window, sample) or (window, channel, sample), as long as the model's windows.",
        examples=[[[0.1, -0.2, 0.05]]],
    )
    rate: Rate | None = Field(None, description="In Hz; must be the model's.")


class WindowAnswer(BaseModel):
    start: int = Field(description="Its first sample, at the model's rate.")
    seconds: float | None
    label: str = Field(serialization_alias="class")
    confidence: float
    familiar: bool | None


class WaveformAnswer(BaseModel):
    step: float = Field(description="From one value to the next: seconds, or samples where the rate is unknown.")
    low: list[float]
    high: list[float]


class Detail(BaseModel):
    step: float
    values: list[float]


class Curve(BaseModel):
    start: float
    step: float = Field(description="In Hz, or in cycles a sample where the rate is unknown.")
    values: list[float]


class Timeline(BaseModel):
    step: float
    windows: int = Field(description="How many windows a value stands for.")
    label: list[int] = Field(serialization_alias="class", description="The place of the most frequent class.")
    confidence: list[float]
    unfamiliar: list[float]


class MarkAnswer(BaseModel):
    name: str
    multiple: int
    hertz: float
    above: float | None = Field(description="The envelope spectrum there, over the median around it.")


class PictureAnswer(BaseModel):
    rate: float | None
    samples: int
    averaged_seconds: float | None
    waveform: WaveformAnswer
    detail: Detail
    spectrum: Curve
    envelope: Curve
    marks: list[MarkAnswer]
    timeline: Timeline


class PhysicalAnswer(BaseModel):
    """What the orders of the bearing say, without the model (docs/diagnose.md)."""

    state: str = Field(description="healthy, inner race, outer race, ball or cannot tell.")
    confidence: float
    probabilities: dict[str, float]
    reason: str = Field(description="The evidence in words.")
    familiar: bool
    fitted_rpm: float = Field(description="The speed at which the lines fit, within 3 % of the one given.")
    band_low: float = Field(description="In Hz, of the band that shows it best.")
    band_high: float
    contradiction: str | None = Field(description="Where the model says otherwise: how.")


class Answer(BaseModel):
    """A diagnosis. `familiar` is null where the model cannot tell."""

    recording: str | None
    label: str = Field(serialization_alias="class", description="A class, or unknown where it is unfamiliar.")
    nearest: str = Field(description="The class it is most like, which confidence and agreement are about.")
    confidence: float = Field(description="Pooled over the windows; calibrated where /model says so.")
    agreement: float = Field(description="The share of windows whose own most likely class is this one.")
    windows: int
    rate: float | None = Field(description="In Hz, at which the model saw it.")
    unfamiliar: float | None = Field(description="The share of windows that look like nothing the model knows.")
    familiar: bool | None
    alarm: bool = Field(description="A class that is an alarm, or an unfamiliar recording.")
    probabilities: dict[str, float]
    notes: list[str]
    physical: PhysicalAnswer | None = Field(
        default=None, description="Of recordings, where speed and bearing are given."
    )
    by_window: list[WindowAnswer] | None = None
    picture: PictureAnswer | None = None


class ModelDescription(BaseModel):
    """What the model takes and distinguishes, and what this server accepts."""

    classes: list[str]
    alarms: list[str]
    input: str
    length: int
    stride: int
    rate: float | None
    channels: int
    pooled_temperature: float
    calibrated: bool = Field(description="Whether its confidence is.")
    refusal: str | None = Field(
        description="The verdict of the run that made it, where that is not to use it; in every answer's notes too."
    )
    cautions: list[str] = Field(description="What that run found against it; in every answer's notes too.")
    knows_familiar: bool = Field(description="Whether it can tell familiar recordings from others.")
    made_by: dict[str, Any]
    formats: list[str]
    bearings: dict[str, dict[str, int | float]]
    limits: dict[str, int | float]
    bearcat: str


@dataclass(frozen=True)
class Served:
    """The model, and which of its classes are alarms."""

    model: Predictor
    alarms: Collection[str]


@dataclass
class Deadline:
    """Until when a request's work may go on, by time.monotonic(); moved to the past when its client has gone."""

    until: float

    def check(self) -> None:
        if time.monotonic() > self.until:
            raise TimeoutError


class _WindowLog:
    """Collects results of windows as they arrive: lines where they are wanted, a timeline where it is drawn."""

    def __init__(self, served: Served, query: PredictQuery, rate: float | None, deadline: Deadline) -> None:
        self.classes, self.rate, self.deadline = served.model.classes, rate, deadline
        self.lines: list[WindowAnswer] | None = [] if query.by == "window" else None
        self.timeline = Folded(len(self.classes) + 2, sums) if query.picture else None

    def add(self, windows: WindowPredictions) -> None:
        self.deadline.check()
        best = windows.log_probabilities.argmax(axis=1)
        confidence = np.minimum(np.exp(windows.log_probabilities.max(axis=1).astype(np.float64)), 1.0)
        unfamiliar = windows.unfamiliar
        if self.timeline is not None:
            rows = np.zeros((len(best), len(self.classes) + 2))
            rows[np.arange(len(best)), best] = 1
            rows[:, -2] = confidence
            rows[:, -1] = 0 if unfamiliar is None else unfamiliar
            self.timeline.add(rows)
        if self.lines is None:
            return
        if len(self.lines) + len(best) > MOST_WINDOWS:
            raise field_error("by", f"there are more than {MOST_WINDOWS} windows; ask by recording, or cut it")
        self.lines += [
            WindowAnswer(
                start=start, seconds=None if self.rate is None else start / self.rate, label=self.classes[best[number]],
                confidence=float(confidence[number]),
                familiar=None if unfamiliar is None else not bool(unfamiliar[number]),
            )
            for number, start in enumerate(windows.starts.tolist())
        ]  # fmt: skip


def answer_file(served: Served, readers: Readers, path: Path, query: PredictQuery, deadline: Deadline) -> Answer:
    """The answer to an uploaded recording; `path` is never shown; the name shown is that in the query."""
    origin, model = query.filename or path.name, served.model
    marks = query.marks()
    deadline.check()
    with readers.open_stream(path, query.channel, origin, deadline.until) as stream:
        own_rate = stream.rate or query.rate
        picture = RecordingPicture(own_rate) if query.picture else None
        rpm, bearing = query.speed_rpm or model.rpm, query.bearing() or model.bearing
        second = SecondOpinion(origin, own_rate or model.preparation.rate, rpm, bearing)
        blocks = second.observe(_timed(stream.blocks, deadline))
        stream = replace(stream, blocks=blocks if picture is None else picture.observe(blocks))
        stream, note = at_rate_of(model, stream, query.rate)
        log = _WindowLog(served, query, stream.rate, deadline)
        diagnosis = diagnose_stream(model, stream, BATCH, log.add, query.speed_rpm, query.bearing())
    notes = [note] if note else []
    notes += _assumed_speed(model, query)
    if own_rate is None and marks:
        notes.append(f"{origin}: does not say its sampling rate, so no frequency can be marked; give it as rate")
    physical = second.diagnosis()
    doubt = contradiction(physical, model.classes[diagnosis.index])
    notes += filter(None, (second.problem, doubt, *(() if physical is None else physical.notes)))
    answer = _answer(served, diagnosis, origin, stream.rate, notes)
    if physical is not None:
        answer.physical = PhysicalAnswer.model_validate(physical.to_dict() | {"contradiction": doubt})
    answer.by_window = log.lines
    if picture is not None and log.timeline is not None:
        step = model.preparation.step * (1.0 if stream.rate is None else 1 / stream.rate)
        shown = picture.to_dict(marks) | {"timeline": timeline(log.timeline, len(model.classes), step)}
        answer.picture = PictureAnswer.model_validate(shown)
    return answer


def answer_windows(served: Served, body: bytes, query: PredictQuery, deadline: Deadline) -> Answer:
    """The answer to windows given as JSON; they are taken to be of one recording, a step of the model's apart."""
    deadline.check()
    windows, rate = read_windows(served.model, body)
    log, model = _WindowLog(served, query, rate, deadline), served.model
    rpm, bearing, step = query.speed_rpm, query.bearing(), model.preparation.step
    batches = (
        predict_windows(model, windows[first : first + BATCH], step * first, rpm, bearing)
        for first in range(0, len(windows), BATCH)
    )
    diagnosis = diagnose_windows(model, batches, log.add)
    answer = _answer(served, diagnosis, None, rate, _assumed_speed(model, query))
    answer.by_window = log.lines
    return answer


def read_windows(model: Predictor, body: bytes) -> tuple[Floats, float | None]:
    """JSON → windows (window, channel, sample) float32 and their rate; InputError names what does not fit."""
    _check_count(model, body)
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise field_error("body", f"is not JSON ({str(error).split(chr(10))[0]}); send an object") from error
    if not isinstance(given, dict):
        raise field_error("body", 'must be an object such as {"windows": [[0.1, -0.2, …]]}')
    for name in given:
        if name not in GivenWindows.model_fields:
            raise field_error(name[:80], "is no field; there are windows and rate")
    rate, wanted = given.get("rate"), model.preparation.rate or model.rate
    if rate is not None and not (_is_number(rate) and 0 < rate <= MOST_RATE):
        raise field_error("rate", f"must be a number of hertz above 0 and at most {MOST_RATE:g}, or left out")
    if rate is not None and wanted is not None and rate != wanted:
        raise field_error("rate", f"windows must be at the model's {wanted:g} Hz, not {rate:g}; resample them")
    windows = given.get("windows")
    if not isinstance(windows, list) or not windows:
        raise field_error("windows", "must be a list of one window at least")
    _check_windows(windows, model.channels, model.preparation.length)
    with np.errstate(over="ignore"):
        values = np.asarray(windows, dtype=np.float64).astype(np.float32)
    values = values.reshape(-1, model.channels, model.preparation.length)
    infinite = np.flatnonzero(~np.isfinite(values).all(axis=(1, 2)))
    if infinite.size:
        raise field_error(f"windows.{infinite[0]}", "has a value beyond what float32 holds")
    return values, wanted if rate is None else float(rate)


def _check_count(model: Predictor, body: bytes) -> None:
    """Refuses what cannot be windows before it is built: each list or object takes many times its bytes."""
    most = max(FEW_WINDOWS, len(body) // (2 * model.channels * model.preparation.length))  # a digit and a comma each
    many_lists = body.count(b"[") > (1 + model.channels) * most + 1
    if many_lists or body.count(b"{") + body.count(b'"') > FEW_WINDOWS:
        raise field_error("body", f"cannot hold so many windows of {model.preparation.length} samples")


def _check_windows(windows: list[Any], channels: int, length: int) -> None:
    """Names the first place that does not fit; pydantic would describe each, in hundreds of times its bytes."""
    deep = isinstance(windows[0], list) and isinstance(next(iter(windows[0]), None), list)
    for number, window in enumerate(windows):
        field = f"windows.{number}"
        rows = window if deep else [window]
        if not isinstance(rows, list) or len(rows) != channels:
            count = len(rows) if isinstance(rows, list) else "no"
            raise field_error(field, f"has {count} channel(s), the model takes {channels}")
        for channel, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != length:
                count = len(row) if isinstance(row, list) else "no"
                raise field_error(field, f"has {count} samples, the model's windows have {length}")
            for place, value in enumerate(row):
                if not _is_number(value):
                    raise field_error(f"{field}.{channel}.{place}" if deep else f"{field}.{place}", "is no number")


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**1000)


def _timed(blocks: Iterable[Floats], deadline: Deadline) -> Iterator[Floats]:
    for block in blocks:
        deadline.check()
        yield block


def _assumed_speed(model: Predictor, query: PredictQuery) -> list[str]:
    """A note where the model's own speed stands in for one that was not given."""
    if query.speed_rpm is not None or model.rpm is None or "rpm" not in model.needs:
        return []
    return [f"taken to be at {model.rpm:g} rpm, the speed the model was adapted to; give another as speed_rpm"]


def _answer(served: Served, diagnosis: Diagnosis, origin: str | None, rate: float | None, notes: list[str]) -> Answer:
    classes, doubts = served.model.classes, filter(None, (served.model.refusal, *served.model.cautions))
    name = classes[diagnosis.index]
    return Answer(
        recording=origin, label=diagnosis.named(name), nearest=name, confidence=diagnosis.confidence,
        agreement=diagnosis.agreement,
        windows=diagnosis.windows, rate=rate, unfamiliar=diagnosis.unfamiliar, familiar=diagnosis.familiar,
        alarm=diagnosis.is_alarm(classes, served.alarms),
        probabilities=dict(zip(classes, diagnosis.probabilities.tolist(), strict=True)),
        notes=[*doubts, *notes],
    )  # fmt: skip


def _geometry(bearing: Bearing) -> dict[str, int | float]:
    return {name: value for name, value in asdict(bearing).items() if name != "designation"}


def describe_model(served: Served, limits: dict[str, int | float]) -> ModelDescription:
    model = served.model
    return ModelDescription(
        classes=list(model.classes), alarms=sorted(served.alarms), input=model.input,
        length=model.preparation.length, stride=model.preparation.step, rate=model.preparation.rate or model.rate,
        channels=model.channels, calibrated=model.calibrated, pooled_temperature=model.pooled_temperature,
        refusal=model.refusal, cautions=list(model.cautions), knows_familiar=model.familiarity is not None,
        made_by=model.metadata.get("made_by", {}),
        formats=list(UPLOADS), bearings={name: _geometry(bearing) for name, bearing in BEARINGS.items()},
        limits=limits, bearcat=__version__,
    )  # fmt: skip
