"""Recordings and windows → answers, as the server gives them; nothing here knows of HTTP.

>>> served = Served(model, alarms={"inner", "outer"})
>>> answer = answer_file(served, Path("private/1.wav"), Asked(filename="monday.wav"), until=time.monotonic() + 30)
>>> answer.label, answer.confidence, answer.familiar
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from bearcat.data.bearing import Bearing
from bearcat.data.recording import Floats
from bearcat.deploy.predict import BATCH, Predictor, Seen, at_rate_of, diagnose_stream, look_at, open_stream
from bearcat.deploy.serve.picture import Folded, Mark, Picture, marks_of, sums, timeline
from bearcat.errors import InputError
from bearcat.trust.pooling import Diagnosis, Tally, diagnose, tally

MOST_WINDOWS = 20_000  # told one by one
MOST_RATE = 1e9  # Hz


class OutOfTimeError(Exception):
    """The request's time is over."""


class FieldError(InputError):
    """What is wrong with one field of what was asked."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


class Asked(BaseModel):
    """The query of POST /predict. All but `by` is about uploaded recordings."""

    model_config = ConfigDict(extra="forbid")

    filename: str | None = Field(
        None, max_length=255, pattern=r"^[^\x00-\x1f\x7f/\\]+$",
        description="The recording's name; its ending says the format (csv, tsv, txt, npy, npz, mat, wav, parquet).",
        examples=["monday.wav"],
    )  # fmt: skip
    rate: float | None = Field(
        None, gt=0, le=MOST_RATE, allow_inf_nan=False, description="In Hz, of a recording that does not say its own."
    )
    channel: str | None = Field(None, max_length=255, description="The channel, of a recording with several.")
    by: Literal["recording", "window"] = Field("recording", description="window: a line for each window too.")
    picture: bool = Field(False, description="Waveform, spectra and the timeline, in a bounded number of points.")
    speed_rpm: float | None = Field(
        None, gt=0, le=1e6, allow_inf_nan=False, description="Of the shaft; marks its frequency in the picture."
    )
    balls: int | None = Field(
        None,
        ge=3,
        le=200,
        description="Of the bearing; with speed and both diameters the picture marks its fault frequencies.",
    )
    ball_diameter: float | None = Field(None, gt=0, le=1e5, allow_inf_nan=False, description="In mm.")
    pitch_diameter: float | None = Field(None, gt=0, le=1e5, allow_inf_nan=False, description="In mm.")
    contact_angle: float = Field(0, ge=0, lt=90, allow_inf_nan=False, description="In degrees; 0: a radial load.")

    def marks(self) -> list[Mark]:
        """The frequencies to mark; FieldError where what is given does not describe a bearing that turns."""
        geometry = {name: getattr(self, name) for name in ("balls", "ball_diameter", "pitch_diameter")}
        missing = [name for name, value in geometry.items() if value is None]
        if len(missing) == 3:
            return [] if self.speed_rpm is None else marks_of(None, self.speed_rpm)
        if missing:
            raise FieldError(
                missing[0], f"{missing[0]}: is missing; a bearing is balls, ball_diameter and pitch_diameter"
            )
        if self.speed_rpm is None:
            raise FieldError("speed_rpm", "speed_rpm: is missing; fault frequencies depend on it")
        try:
            bearing = Bearing(**geometry, contact_angle=self.contact_angle)
        except InputError as error:
            raise FieldError("ball_diameter", str(error)) from error
        return marks_of(bearing, self.speed_rpm)


class GivenWindows(BaseModel):
    """Windows as recorded: a list of windows, each a list of samples or (several channels) of lists of samples."""

    model_config = ConfigDict(extra="forbid")

    windows: list[list[float]] | list[list[list[float]]] = Field(
        description="(window, sample) or (window, channel, sample), as long as the model's windows.",
        examples=[[[0.1, -0.2, 0.05]]],
    )
    rate: float | None = Field(None, gt=0, le=MOST_RATE, allow_inf_nan=False, description="In Hz; must be the model's.")


class WindowAnswer(BaseModel):
    start: int = Field(description="Its first sample, at the model's rate.")
    seconds: float | None
    label: str = Field(serialization_alias="class")
    confidence: float
    familiar: bool | None


class Waveform(BaseModel):
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
    waveform: Waveform
    detail: Detail
    spectrum: Curve
    envelope: Curve
    marks: list[MarkAnswer]
    timeline: Timeline


class Answer(BaseModel):
    """A diagnosis. `familiar` is null where the model cannot tell."""

    recording: str | None
    label: str = Field(serialization_alias="class")
    confidence: float = Field(description="Pooled over the windows; calibrated where /model says so.")
    agreement: float = Field(description="The share of windows whose own most likely class is this one.")
    windows: int
    rate: float | None = Field(description="In Hz, at which the model saw it.")
    unfamiliar: float | None = Field(description="The share of windows that look like nothing the model knows.")
    familiar: bool | None
    alarm: bool = Field(description="A class that is an alarm, or an unfamiliar recording.")
    probabilities: dict[str, float]
    notes: list[str]
    by_window: list[WindowAnswer] | None = None
    picture: PictureAnswer | None = None


@dataclass(frozen=True)
class Served:
    """The model, which of its classes are alarms, whether its confidence is calibrated, and how it came to be."""

    model: Predictor
    alarms: Collection[str]
    calibrated: bool | None = None  # None: a file of before does not say
    made_by: Mapping[str, Any] = field(default_factory=dict)


class _Ledger:
    """What is kept of the windows while they go by: lines where they are asked for, a strip where it is drawn."""

    def __init__(self, served: Served, asked: Asked, rate: float | None, until: float) -> None:
        self.classes, self.rate, self.until = served.model.classes, rate, until
        self.lines: list[WindowAnswer] | None = [] if asked.by == "window" else None
        self.strip = Folded(len(self.classes) + 2, sums) if asked.picture else None

    def show(self, seen: Seen) -> None:
        in_time(self.until)
        best = seen.log_probabilities.argmax(axis=1)
        confidence = np.minimum(np.exp(seen.log_probabilities.max(axis=1).astype(np.float64)), 1.0)
        strange = seen.unfamiliar
        if self.strip is not None:
            rows = np.zeros((len(best), len(self.classes) + 2))
            rows[np.arange(len(best)), best] = 1
            rows[:, -2] = confidence
            rows[:, -1] = 0 if strange is None else strange
            self.strip.add(rows)
        if self.lines is None:
            return
        if len(self.lines) + len(best) > MOST_WINDOWS:
            raise FieldError("by", f"by: there are more than {MOST_WINDOWS} windows; ask by recording, or cut it")
        self.lines += [
            WindowAnswer(
                start=start, seconds=None if self.rate is None else start / self.rate, label=self.classes[best[number]],
                confidence=float(confidence[number]), familiar=None if strange is None else not bool(strange[number]),
            )
            for number, start in enumerate(seen.starts.tolist())
        ]  # fmt: skip


def answer_file(served: Served, path: Path, asked: Asked, until: float) -> Answer:
    """The answer to an uploaded recording; `path` is not told to anybody, its name is that of `asked`."""
    origin = asked.filename or path.name
    marks = asked.marks()
    try:
        in_time(until)
        with distrusted(origin):
            stream = open_stream(path, asked.channel)
        own = stream.rate or asked.rate
        picture = Picture(own) if asked.picture else None
        blocks = _timed(_distrusted_blocks(stream.blocks, origin), until)
        blocks = blocks if picture is None else picture.watching(blocks)
        stream, note = at_rate_of(served.model, replace(stream, origin=origin, blocks=blocks), asked.rate)
        ledger = _Ledger(served, asked, stream.rate, until)
        diagnosis = diagnose_stream(served.model, stream, show=ledger.show)
    except FieldError:
        raise
    except InputError as error:
        sentence = str(error).replace(str(path), origin)
        field = next((name for words, name in _ABOUT.items() if words in sentence), "file")
        raise FieldError(field, _for_http(sentence)) from error
    notes = [_for_http(note)] if note else []
    if own is None and marks:
        notes.append(f"{origin}: does not say its sampling rate, so no frequency can be marked; give it as rate")
    answer = _answer(served, diagnosis, origin, stream.rate, notes)
    answer.by_window = ledger.lines
    if picture is not None and ledger.strip is not None:
        second = 1.0 if stream.rate is None else 1 / stream.rate
        strip = timeline(ledger.strip, len(served.model.classes), served.model.preparation.step * second)
        answer.picture = PictureAnswer.model_validate(picture.drawn(marks) | {"timeline": strip})
    return answer


def answer_windows(served: Served, body: bytes, asked: Asked, until: float) -> Answer:
    """The answer to windows given as JSON; they are taken to be of one recording, a step of the model's apart."""
    in_time(until)
    windows, rate = read_windows(served.model, body)
    ledger, model = _Ledger(served, asked, rate, until), served.model
    nothing = None if model.familiarity is None else 0
    counted = Tally(np.zeros(len(model.classes)), np.zeros(len(model.classes), dtype=np.int64), nothing)
    for at in range(0, len(windows), BATCH):
        part = windows[at : at + BATCH]
        seen = look_at(model, part, model.preparation.step * np.arange(at, at + len(part), dtype=np.int64))
        ledger.show(seen)
        counted += tally(seen.log_probabilities, seen.unfamiliar)
    answer = _answer(served, diagnose(counted, model.pooled_temperature, model.familiarity), None, rate, [])
    answer.by_window = ledger.lines
    return answer


def read_windows(model: Predictor, body: bytes) -> tuple[Floats, float | None]:
    """JSON → windows (window, channel, sample) float32 and their rate; FieldError names what does not fit."""
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise FieldError("body", f"body: is not JSON ({str(error).split(chr(10))[0]}); send an object") from error
    if not isinstance(given, dict):
        raise FieldError("body", 'body: must be an object such as {"windows": [[0.1, -0.2, …]]}')
    for name in given:
        if name not in GivenWindows.model_fields:
            raise FieldError(name[:80], f"{name[:80]}: is no field; there are windows and rate")
    if "windows" not in given:
        raise FieldError("windows", "windows: is missing; give a list of windows")
    rate = _rate(given.get("rate"))
    wanted = model.preparation.rate or model.rate
    if rate is not None and wanted is not None and rate != wanted:
        raise FieldError("rate", f"rate: windows must be at the model's {wanted:g} Hz, not {rate:g}; resample them")
    windows = given["windows"]
    first = windows[0] if isinstance(windows, list) and windows else None
    deep = isinstance(first, list) and bool(first) and isinstance(first[0], list)
    checked = _numbers(_CHANNELS if deep else _WINDOWS, windows)
    if not checked:
        raise FieldError("windows", "windows: is an empty list; give one window at least")
    channels, length = model.channels, model.preparation.length
    for number, one in enumerate(checked):
        rows: list[Any] = one if deep else [one]
        field = f"windows.{number}"
        if len(rows) != channels:
            raise FieldError(field, f"{field}: has {len(rows)} channel(s), the model takes {channels}")
        for row in rows:
            if len(row) != length:
                raise FieldError(field, f"{field}: has {len(row)} samples, the model's windows have {length}")
    with np.errstate(over="ignore"):
        values = np.asarray(checked, dtype=np.float64).astype(np.float32).reshape(-1, channels, length)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=(1, 2)))
    if bad.size:
        raise FieldError(f"windows.{bad[0]}", f"windows.{bad[0]}: has a value beyond what float32 holds")
    return values, rate if rate is not None else wanted


def in_time(until: float) -> None:
    if time.monotonic() > until:
        raise OutOfTimeError


# The first mistake is told, and no other looked for: pydantic's account of one takes hundreds of times its bytes.
_Row = Annotated[list[float], FailFast()]
_Rows = Annotated[list[_Row], FailFast()]
_WINDOWS: TypeAdapter[list[Any]] = TypeAdapter(_Rows)
_CHANNELS: TypeAdapter[list[Any]] = TypeAdapter(Annotated[list[_Rows], FailFast()])


def _numbers(kind: TypeAdapter[list[Any]], windows: Any) -> list[Any]:
    try:
        return kind.validate_python(windows, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(["windows", *map(str, first["loc"])])
        raise FieldError(field, f"{field}: {lower_first(first['msg'])}") from error


def _rate(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MOST_RATE:
        raise FieldError("rate", f"rate: must be a number of hertz above 0 and at most {MOST_RATE:g}, or left out")
    return float(given)


def lower_first(words: str) -> str:
    """pydantic's remarks begin sentences; ours stand behind the field's name."""
    return words[:1].lower() + words[1:]


@contextmanager
def distrusted(origin: str) -> Iterator[None]:
    """Readers meet bytes here that nobody vouches for, and fail in more ways than they know of themselves."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise FieldError(
            "file",
            f"{origin}: cannot be read ({type(error).__name__}); the file is damaged, cut short or of another format",
        ) from error


def _distrusted_blocks(blocks: Iterator[Floats], origin: str) -> Iterator[Floats]:
    while True:
        with distrusted(origin):
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _timed(blocks: Iterable[Floats], until: float) -> Iterator[Floats]:
    for block in blocks:
        in_time(until)
        yield block


def _for_http(sentence: str) -> str:
    """A sentence for the command line, for somebody who sends requests."""
    for option, words in _OPTIONS.items():
        sentence = sentence.replace(option, words)
    return sentence


_ABOUT = {"--channel": "channel", "has no channel": "channel", "--rate": "rate"}
_OPTIONS = {
    "with --channel": "with the parameter channel",
    "with --rate": "with the parameter rate",
    "--rate": "the parameter rate,",
    "predict reads one channel of a file": "of an uploaded file one is read; send windows as JSON",
}


def _answer(served: Served, diagnosis: Diagnosis, origin: str | None, rate: float | None, notes: list[str]) -> Answer:
    classes, refusal = served.model.classes, served.model.refusal
    name = classes[diagnosis.index]
    return Answer(
        recording=origin, label=name, confidence=diagnosis.confidence, agreement=diagnosis.agreement,
        windows=diagnosis.windows, rate=rate, unfamiliar=diagnosis.unfamiliar, familiar=diagnosis.familiar,
        alarm=diagnosis.is_alarm(classes, served.alarms),
        probabilities=dict(zip(classes, diagnosis.probabilities.tolist(), strict=True)),
        notes=notes if refusal is None else [refusal, *notes],
    )  # fmt: skip
