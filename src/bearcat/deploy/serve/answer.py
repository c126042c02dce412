"""Recordings and windows → answers, as the server gives them; independent of HTTP.

>>> served, query = Served(model, AlarmRule.of(model.classes)), PredictQuery(filename="monday.wav")
>>> with Readers(count=2, most=2**29) as readers:
...     answer = answer_file(served, readers, Path("private/1.wav"), query, Deadline(time.monotonic() + 30))
>>> answer.decision, answer.state, answer.confidence
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from bearcat import __version__
from bearcat.data.bearing import BEARINGS, Bearing, find_bearing
from bearcat.data.isolated import Readers
from bearcat.data.recording import Floats
from bearcat.data.stream import UPLOADS
from bearcat.deploy.predict import (
    BATCH,
    FoundRecording,
    WindowPredictions,
    diagnose_found,
    pool_windows,
    predict_windows,
)
from bearcat.deploy.predictor import Predictor
from bearcat.deploy.serve.picture import Folded, Mark, RecordingPicture, marks_of, timeline
from bearcat.diagnosis.recording import AlarmRule, Diagnosis
from bearcat.errors import InputError

FEW_WINDOWS = 1000  # of JSON, whose first mistake is named, however short they are
MOST_WINDOWS = 20_000  # listed one by one
MOST_RATE = 1e9  # Hz
SIZES = (1e-3, 1e5)  # mm, between which the diameters of a bearing lie
MOST_BALLS = 200
Rate = Annotated[float, Field(gt=0, le=MOST_RATE, allow_inf_nan=False)]


def field_error(field: str, problem: str) -> InputError:
    return InputError(f"{field}: {problem}", field)


class PredictQuery(BaseModel):
    """The query of POST /predict, named as the options of `bearcat predict` are."""

    model_config = ConfigDict(extra="forbid")

    filename: str | None = Field(
        None, max_length=255, pattern=r"^[^\x00-\x1f\x7f/\\]+$", examples=["monday.wav"],
        description="The recording's name; its ending says the format (csv, tsv, txt, npy, npz, mat, wav, parquet).",
    )  # fmt: skip
    rate: Rate | None = Field(None, description="In Hz, of a recording that does not say its own.")
    channel: str | None = Field(None, max_length=255, description="The channel, of a recording with several.")
    by: Literal["recording", "window"] = Field("recording", description="window: a line for each window too.")
    picture: bool = Field(False, description="Waveform, spectra and the timeline, in a bounded number of points.")
    rpm: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = Field(
        None, description="Speed of the shaft."
    )
    bearing: str | None = Field(
        None, max_length=100, examples=["6205"], description="A designation, or balls=9,ball=7.94,pitch=39.04 (mm)."
    )

    def geometry(self) -> Bearing | None:
        """The bearing, where it is given; InputError where the text describes none."""
        try:
            found = None if self.bearing is None else find_bearing(self.bearing)
        except InputError as error:
            raise InputError(str(error), "bearing") from error
        sizes = () if found is None else (found.ball_diameter, found.pitch_diameter)
        if found and not (found.balls <= MOST_BALLS and all(SIZES[0] <= size <= SIZES[1] for size in sizes)):
            raise field_error("bearing", f"must have at most {MOST_BALLS} balls, and diameters in mm")
        return found

    def marks(self) -> list[Mark]:
        """The frequencies to mark in the picture."""
        bearing = self.geometry()
        if self.rpm is None and bearing is not None:
            raise field_error("rpm", "is missing; fault frequencies depend on it")
        return [] if self.rpm is None else marks_of(bearing, self.rpm)


class GivenWindows(BaseModel):
    """Windows as recorded: a list of windows, each a list of samples or (several channels) of lists of samples."""

    model_config = ConfigDict(extra="forbid")

    windows: list[list[float]] | list[list[list[float]]] = Field(
        description="(window, sample) or (window, channel, sample), as long as the model's windows."
    )
    rate: Rate | None = Field(None, description="In Hz; must be the model's.")


class Answer(BaseModel):
    """The diagnosis of a recording (docs/serve.md), with its windows and its picture where they are asked for."""

    recording: str | None
    decision: Literal["ok", "check", "alarm"]
    reasons: list[str] = Field(description="Of the decision, most important first.")
    state: str = Field(description="healthy, inner race, outer race, ball, unknown; else the model's own class.")
    label: str = Field(alias="class", description="The model's class, or unknown where the recording is unfamiliar.")
    nearest: str = Field(description="The class it is most like, which confidence and agreement are about.")
    confidence: float = Field(description="Pooled over the windows; calibrated where /model says so.")
    agreement: float = Field(description="The share of windows whose own most likely class is this one.")
    windows: int
    unfamiliar: float | None = Field(description="The share of windows unlike anything the model was adapted to.")
    familiar: bool | None = Field(description="Null where the model cannot tell.")
    line: str | None = Field(description="The strongest fault line, where speed and bearing are known.")
    probabilities: dict[str, float]
    physics: dict[str, Any] | None = Field(
        description="The physics check of a recording whose speed and bearing are known; levels in dB."
    )
    notes: list[str]
    rate: float | None = Field(description="In Hz, at which the model saw it.")
    by_window: list[dict[str, Any]] | None = Field(
        None, description="Of each window: start (sample, at the model's rate), seconds, class, confidence, familiar."
    )
    picture: dict[str, Any] | None = Field(
        None, description="What the page draws: waveform, spectra, marks (levels in dB) and the timeline of windows."
    )


@dataclass(frozen=True)
class Served:
    """The model, and what counts as an alarm of it."""

    model: Predictor
    rule: AlarmRule


@dataclass
class Deadline:
    """Until when a request's work may go on, by time.monotonic(); moved to the past when its client has gone."""

    until: float

    def check(self) -> None:
        if time.monotonic() > self.until:
            raise TimeoutError


class _WindowLog:
    """Collects results of windows as they arrive: lines where they are wanted, a timeline where it is drawn."""

    def __init__(self, served: Served, query: PredictQuery, deadline: Deadline) -> None:
        self.classes, self.deadline = served.model.classes, deadline
        self.lines: list[dict[str, Any]] | None = [] if query.by == "window" else None
        self.timeline = Folded(len(self.classes) + 2, np.add) if query.picture else None

    def add(self, rate: float | None, windows: WindowPredictions) -> None:
        self.deadline.check()
        if self.timeline is not None:
            best = windows.log_probabilities.argmax(axis=1)
            rows = np.zeros((len(best), len(self.classes) + 2))
            rows[np.arange(len(best)), best] = 1
            rows[:, -2] = windows.confidence
            rows[:, -1] = 0 if windows.unfamiliar is None else windows.unfamiliar
            self.timeline.add(rows)
        if self.lines is None:
            return
        if len(self.lines) + len(windows.starts) > MOST_WINDOWS:
            raise field_error("by", f"there are more than {MOST_WINDOWS} windows; ask by recording, or cut it")
        self.lines += windows.rows(self.classes, rate)


def answer_file(served: Served, readers: Readers, path: Path, query: PredictQuery, deadline: Deadline) -> Answer:
    """The answer to an uploaded recording; `path` is never shown; the name shown is that in the query."""
    origin, model, marks = query.filename or path.name, served.model, query.marks()
    log = _WindowLog(served, query, deadline)
    deadline.check()
    with readers.open_stream(path, query.channel, origin, deadline.until) as stream:
        own_rate = stream.rate or query.rate
        picture = RecordingPicture(own_rate) if query.picture else None
        blocks = _timed(stream.blocks, deadline)
        stream = replace(stream, blocks=blocks if picture is None else picture.observe(blocks))
        found = FoundRecording(lambda: stream, origin, query.rpm, query.geometry())
        diagnosis = diagnose_found(
            model, found, query.rate, show=lambda stream, windows: log.add(stream.rate, windows), rule=served.rule
        )
    notes = _assumed_speed(model, query)
    if own_rate is None and marks:
        notes.append(f"{origin}: does not say its sampling rate, so no frequency can be marked; give it as rate")
    rate = model.preparation.rate or model.rate or own_rate
    answer = _answer(diagnosis, origin, rate, notes, log)
    if picture is not None and log.timeline is not None:
        step = model.preparation.step * (1.0 if rate is None else 1 / rate)
        answer.picture = picture.to_dict(marks) | {"timeline": timeline(log.timeline, len(model.classes), step)}
    return answer


def answer_windows(served: Served, body: bytes, query: PredictQuery, deadline: Deadline) -> Answer:
    """The answer to windows given as JSON; they are taken to be of one recording, a step of the model's apart."""
    deadline.check()
    model, log = served.model, _WindowLog(served, query, deadline)
    windows, rate = read_windows(model, body)
    rpm, bearing, step = query.rpm, query.geometry(), model.preparation.step
    batches = (
        predict_windows(model, windows[first : first + BATCH], step * first, rpm, bearing)
        for first in range(0, len(windows), BATCH)
    )
    pooled = pool_windows(model, batches, partial(log.add, rate))
    diagnosis = Diagnosis.by_model("", pooled, model.classes, model.decision.action, served.rule)
    return _answer(diagnosis, None, rate, _assumed_speed(model, query), log)


def _answer(diagnosis: Diagnosis, origin: str | None, rate: float | None, notes: list[str], log: _WindowLog) -> Answer:
    found = diagnosis.to_dict() | {"recording": origin, "rate": rate, "notes": [*diagnosis.notes, *notes]}
    return Answer.model_validate(found | {"by_window": log.lines})


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
            raise field_error(field, f"must have {channels} channel(s), as the model's windows do")
        for channel, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != length:
                raise field_error(field, f"must have {length} samples, as the model's windows do")
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
    if query.rpm is not None or model.rpm is None or "rpm" not in model.needs:
        return []
    return [f"taken to be at {model.rpm:g} rpm, the speed the model was adapted to; give another as rpm"]


def describe_model(served: Served, limits: dict[str, int | float]) -> dict[str, Any]:
    """What the model takes and distinguishes, what to do with it, and what this server accepts."""
    model, decision = served.model, served.model.decision
    return {
        "decision": asdict(decision) | {"sentence": decision.sentence}, "classes": model.classes,
        "alarms": sorted(served.rule.classes), "input": model.input, "length": model.preparation.length,
        "stride": model.preparation.step, "rate": model.preparation.rate or model.rate, "channels": model.channels,
        "pooled_temperature": model.pooled_temperature, "calibrated": model.calibrated,
        "knows_familiar": model.familiarity is not None, "made_by": model.metadata.get("made_by", {}),
        "formats": list(UPLOADS), "bearings": list(BEARINGS), "limits": limits, "bearcat": __version__,
    }  # fmt: skip
