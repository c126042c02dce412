"""Recordings and windows → answers, as the server gives them; independent of HTTP.

>>> served, query = Served(model, AlarmRule.of(model.classes)), PredictQuery(filename="monday.wav")
>>> answer = served.answer_file(Path("private/1.wav"), query, time.monotonic() + 30, most=2**29)
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from bearcat import __version__
from bearcat.data.bearing import BEARINGS, Bearing, asked_bearing
from bearcat.data.isolated import open_upload
from bearcat.data.recording import Floats
from bearcat.data.stream import FORMATS
from bearcat.deploy.find import FoundRecording, alone
from bearcat.deploy.predict import Given, diagnose_measurement
from bearcat.deploy.predictor import Predictor
from bearcat.deploy.windows import BATCH, WindowPredictions, tally_windows
from bearcat.diagnosis.fusion import Witnesses
from bearcat.diagnosis.physics import FAULTS, STATES
from bearcat.diagnosis.pooling import pool
from bearcat.diagnosis.recording import AlarmRule, Diagnosis, network_evidence
from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.ranges import RANGES
from bearcat.report.figures import draw_evidence
from bearcat.sentences import sentence
from bearcat.settings import to_plain

MOST_WINDOWS = 20_000  # listed one by one
RATE, SPEED = RANGES["rate"], RANGES["rpm"]
Rate = Annotated[float, Field(ge=RATE.lowest, le=RATE.highest, allow_inf_nan=False)]
Rpm = Annotated[float, Field(ge=SPEED.lowest, le=SPEED.highest, allow_inf_nan=False)]
REMOVED = {"view": "was removed; picture=true draws the evidence"}  # parameters of earlier versions


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
    picture: bool = Field(
        False, description="Draw the evidence too: `picture` of the answer is a PNG as a data: address."
    )
    rpm: Rpm | None = Field(None, description="Speed of the shaft; measured where it is not given.")
    bearing: str | None = Field(
        None, max_length=100, description="6205, unknown, or balls=9,ball=7.94,pitch=39.04 (mm)."
    )

    def geometry(self) -> tuple[Bearing | None, bool]:
        """The bearing, and whether lines of any are looked for; InputError where the text describes none."""
        try:
            return asked_bearing(self.bearing)
        except InputError as error:
            raise InputError(str(error), "bearing") from error


class GivenWindows(BaseModel):
    """Windows as recorded: a list of windows, each a list of samples or (several channels) of lists of samples."""

    model_config = ConfigDict(extra="forbid")

    windows: list[list[float]] | list[list[list[float]]] = Field(description="As long as the model's windows.")
    rate: Rate | None = Field(None, description="In Hz; must be the model's.")


class Answer(BaseModel):
    """The diagnosis of a recording (docs/serve.md), with its windows and a picture where they are asked for."""

    recording: str | None
    decision: Literal["ok", "check", "alarm"]
    reasons: list[str] = Field(description="Of the decision, most important first.")
    findings: list[dict[str, Any]] = Field(description="All that was noticed: kind, severity and values of each.")
    state: str = Field(description="healthy, inner race, outer race, ball, unknown; else the model's own class.")
    label: str | None = Field(alias="class", description="The model's class that stands for the state, else the state.")
    nearest: str | None = Field(description="The model's likeliest class, which agreement is about.")
    confidence: float = Field(description="That the state is right, by all witnesses together.")
    agreement: float | None = Field(description="The share of windows whose own most likely class is this one.")
    windows: int | None = Field(description="Null where there is no signal to look at.")
    unfamiliar: float | None = Field(description="The share of windows unlike anything the model was adapted to.")
    familiar: bool | None = Field(description="Null where the model cannot tell.")
    line: str | None = Field(description="The strongest fault line, where speed and bearing are known.")
    probabilities: dict[str, float] = Field(description="Of the states, by all witnesses together.")
    severity: str | None = Field(description="faint, clear or strong, and growing; of a fault whose lines are read.")
    physics: dict[str, Any] | None = Field(description="Fault lines in dB, where speed and bearing are known.")
    general: dict[str, Any] | None = Field(description="What the general model says, where it can read the recording.")
    network: dict[str, Any] | None = Field(description="What the served model says, by its own classes.")
    notes: list[str]
    rate: float | None = Field(description="In Hz, at which the model saw it.")
    by_window: list[dict[str, Any]] | None = Field(
        None, description="Of each window: start (sample), seconds, class, …"
    )
    picture: str | None = Field(None, description="The evidence as a PNG, a data: address.")


class _WindowLog:
    """Collects lines of windows as they arrive, where they are wanted."""

    def __init__(self, classes: Sequence[str], query: PredictQuery, until: float) -> None:
        self.classes, self.until = classes, until
        self.lines: list[dict[str, Any]] | None = [] if query.by == "window" else None

    def add(self, rate: float | None, windows: WindowPredictions) -> None:
        check_time(self.until)
        if self.lines is not None:
            if len(self.lines) + len(windows.starts) > MOST_WINDOWS:
                raise field_error("by", f"there are more than {MOST_WINDOWS} windows; ask by recording, or cut it")
            self.lines += windows.rows(self.classes, rate)


@dataclass(frozen=True)
class Served:
    """The model, and what counts as an alarm of it; without a model, fault lines and the general model answer."""

    model: Predictor | None
    rule: AlarmRule

    def answer_file(self, path: Path, query: PredictQuery, until: float, most: int) -> Answer:
        """The answer to an uploaded recording; `path` is never shown; the name shown is that in the query."""
        origin, model, (bearing, search) = query.filename or path.name, self.model, query.geometry()
        if model is None and query.by == "window":
            raise field_error("by", "there are no windows without a model; ask by recording")
        log = _WindowLog(() if model is None else model.classes, query, until)
        check_time(until)
        with open_upload(path, query.channel, origin, until, most) as stream:
            own_rate = stream.rate or query.rate
            stream = replace(stream, blocks=_timed(stream.blocks, until))
            found = FoundRecording(lambda: stream, origin, channel=stream.channel)
            given, rpm = Given(query.rate, query.rpm, bearing, rule=self.rule, search=search), query.rpm
            try:
                rpm, _ = given.rpm_of(found, stream)
                (diagnosis,) = diagnose_measurement(
                    alone(found), model, given, lambda own, windows: log.add(own.rate, windows)
                )
            except InputError as error:
                if model is not None or error.field not in ("rpm", "bearing"):
                    raise
                diagnosis = Diagnosis.undecided(origin, error)  # to be checked
        answer = self._answer(diagnosis, origin, (model and model.sampling_rate) or own_rate, rpm, log)
        if query.picture:
            try:
                check_time(until)
                image = base64.b64encode(draw_evidence(diagnosis).render("png")).decode()
                answer.picture = f"data:image/png;base64,{image}"
            except InputError as error:
                unseen = Finding("no picture", "remark", {"problem": str(error)})
                answer.findings.append(to_plain(unseen))
                answer.notes.append(sentence(unseen))
        return answer

    def answer_windows(self, body: bytes, query: PredictQuery, until: float) -> Answer:
        """The answer to windows given as JSON; they are taken to be of one recording, a step of the model's apart."""
        if (model := self.model) is None:
            raise InputError("windows need a model, and this server has none; send a recording", "content-type")
        log = _WindowLog(model.classes, query, until)
        windows, rate = read_windows(model, body)
        step = model.preparation.step
        batches = ((step * first, windows[first : first + BATCH]) for first in range(0, len(windows), BATCH))
        tallied = tally_windows(model, batches, partial(log.add, rate), query.rpm, query.geometry()[0])
        pooled = pool(tallied, model.pooled_temperature, model.familiarity)
        network = network_evidence(pooled, model.classes, model.decision, model.shift)
        diagnosis = Diagnosis.of("", Witnesses(network=network), self.rule)
        return self._answer(diagnosis, None, rate, query.rpm, log)

    def _answer(
        self, diagnosis: Diagnosis, origin: str | None, rate: float | None, rpm: float | None, log: _WindowLog
    ) -> Answer:
        """With a note where the model's own speed stands in for one that nobody states."""
        usual = self.model and self.model.rpm
        if self.model is not None and rpm is None and usual is not None and "rpm" in self.model.needs:
            diagnosis = diagnosis.remarked([Finding("usual speed", "remark", {"rpm": usual})])
        added = {"recording": origin, "rate": rate, "by_window": log.lines}
        return Answer.model_validate(diagnosis.to_dict() | added)

    def describe(self, limits: dict[str, int | float]) -> dict[str, Any]:
        """What the model takes and distinguishes, what to do with it, and what this server accepts."""
        described: dict[str, Any] = {
            "formats": list(FORMATS), "bearings": list(BEARINGS), "limits": limits, "bearcat": __version__,
            "pictures": find_spec("matplotlib") is not None, "decision": None, "classes": list(STATES),
            "alarms": sorted(FAULTS), "input": None, "length": None, "stride": None, "rate": None, "channels": 1,
            "pooled_temperature": None, "calibrated": True, "knows_familiar": False, "made_by": {},
        }  # fmt: skip
        if (model := self.model) is not None:
            described |= {
                "decision": asdict(model.decision) | {"sentence": model.decision.sentence}, "classes": model.classes,
                "alarms": sorted(self.rule.classes), "input": model.input, "length": model.preparation.length,
                "stride": model.preparation.step, "rate": model.sampling_rate, "channels": model.channels,
                "pooled_temperature": model.pooled_temperature, "calibrated": model.calibrated,
                "knows_familiar": model.familiarity is not None, "made_by": model.metadata.get("made_by", {}),
            }  # fmt: skip
        return described


def read_windows(model: Predictor, body: bytes) -> tuple[Floats, float | None]:
    """JSON → windows (window, channel, sample) float32 and their rate; InputError names the field that does not fit."""
    channels, length, wanted = model.channels, model.preparation.length, model.sampling_rate
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise field_error("body", f"is not JSON ({str(error).split(chr(10))[0]}); send an object") from error
    if not isinstance(given, dict):
        raise field_error("body", 'must be an object such as {"windows": [[0.1, -0.2, …]]}')
    for name in given:
        if name not in GivenWindows.model_fields:
            raise field_error(name[:80], "is no field; there are windows and rate")
    rate = given.get("rate")
    if rate is not None and not RATE.holds(rate):
        raise field_error("rate", f"must be a number {RATE.words}, or left out")
    if rate is not None and wanted is not None and rate != wanted:
        raise field_error("rate", f"windows must be at the model's {wanted:g} Hz, not {rate:g}; resample them")
    try:
        windows = np.array(given.get("windows"))
    except ValueError:  # lists of different lengths
        windows = np.empty(0)
    shape = (-1, channels, length) if channels > 1 or windows.ndim == 3 else (-1, length)
    if windows.dtype.kind not in "fiu" or windows.size == 0 or windows.shape[1:] != shape[1:]:
        raise field_error(
            "windows", f"must be a list of windows of {channels} channel(s) and {length} samples, numbers"
        )
    with np.errstate(over="ignore"):
        values = windows.astype(np.float32).reshape(-1, channels, length)
    if not np.isfinite(values).all():
        raise field_error("windows", "hold a value beyond what float32 holds")
    return values, wanted if rate is None else float(rate)


def check_time(until: float) -> None:
    """TimeoutError where the request has no time left."""
    if time.monotonic() > until:
        raise TimeoutError


def _timed(blocks: Iterable[Floats], until: float) -> Iterator[Floats]:
    """The blocks, until the request has no time left."""
    for block in blocks:
        check_time(until)
        yield block
