"""What is measured of one point at one time, and what is said of the point then; and envelope spectra that add up:
short recordings to a block that can be read, and blocks to a pool that forgets slowly.

>>> [found] = find_measurements([Path("2024-05-01T10-32-39.wav")])
>>> measure(found, Given(bearing=find_bearing("6205")), time=1714559559.0, machine="pump 3")[0].values["rms"]
0.31
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bearcat.data.channels import unit_of
from bearcat.deploy.diagnose import Given, listen
from bearcat.deploy.find import FoundMeasurement
from bearcat.diagnosis.decision import ALARM, CHECK, NO_SIGNAL, OK
from bearcat.diagnosis.physics import DECIBELS, FAULTS, PhysicsEvidence, levels_over_background, physics_evidence
from bearcat.diagnosis.quality import BANDS
from bearcat.diagnosis.signal import SignalEvidence
from bearcat.diagnosis.spectra import TURNS, Spectra
from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.sentences import sentence, sentences

LEARNING = "learning"
STATUSES = (ALARM, CHECK, NO_SIGNAL, LEARNING, OK)  # of a point, worst first
# Of each measurement: its title and its unit; None: the unit of the signal.
MEASUREMENTS: dict[str, tuple[str, str | None]] = {
    "rms": ("RMS", None),
    "velocity": ("velocity RMS, 10–1000 Hz", "mm/s"),
    "kurtosis": ("kurtosis", ""),
    "envelope_kurtosis": ("envelope kurtosis", ""),
    "inner_race": ("inner race lines", "dB"),
    "outer_race": ("outer race lines", "dB"),
    "ball": ("ball lines", "dB"),
    "reference": ("reference lines", "dB"),
    **{f"band_{number}": (f"RMS in band {number} of {BANDS}", None) for number in range(1, BANDS + 1)},
    "rpm": ("speed", "rpm"),
    "load": ("load", ""),
    "temperature": ("temperature", "°C"),
}
FORGET = 0.8  # of a pool that each block leaves


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One point of a machine at one time."""

    machine: str
    point: str
    time: float  # seconds since 1970, UTC
    recording: str  # file and channel
    rate: float | None
    unit: str | None
    values: Mapping[str, float]  # by name of MEASUREMENTS; what is not known is not there
    orders: Mapping[str, float] | None  # of the bearing; None: it is not known
    rpm: float | None  # as measured, or as stated and checked
    turns: float | None = None  # of the shaft; None: the speed is not known
    no_signal: str | None = None  # why nothing could be measured
    quality: tuple[Finding, ...] = ()  # what is wrong with the recording
    general: Mapping[str, float] | None = None  # what the general model says: probabilities of states
    spectra: Spectra | None = None  # envelope spectra with TURNS bins an order, for pooling; None without a speed
    envelope: bytes = b""  # the envelope spectrum as it is kept: a byte of quarter dB for each 1/TURNS order from 0 on
    notes: tuple[str, ...] = ()


def measure(
    found: FoundMeasurement, given: Given, time: float, machine: str, point: str | None = None,
    load: float | None = None, temperature: float | None = None,
) -> list[Snapshot]:  # fmt: skip
    """A snapshot of each point of one file; InputError where none of them can be measured.

    `point` is where all channels of the file were recorded; a file of several points without one has a channel each.
    """
    heard = listen(found, replace(given, measured=True))
    problems = [each.problem for each in heard if each.problem is not None]
    if len(problems) == len(found.points):
        raise problems[0]
    snapshots = []
    for place, each in zip(found.points, heard, strict=True):
        signal, noticed, problem = each.signal, each.noticed, each.problem
        first = place.recordings[0]
        channel = first.point or place.name.rpartition("#")[2] if "#" in place.name or first.point else None
        name = point or channel or "1"
        if point is not None and channel is not None and len(found.points) > 1:
            name = f"{point} {channel}"
        more = {"load": load, "temperature": temperature}
        zone = None if signal.vibration is None else signal.vibration.finding
        remarks = [*noticed, *([zone] if zone is not None and zone.severity == "remark" else [])]
        own = Snapshot(
            first.machine or machine, name, time, place.name, None, unit_of(first.channel or ""), {},
            None, None, notes=sentences(remarks),
        )  # fmt: skip
        snapshots.append(
            _measured(own, signal, more) if problem is None else replace(own, no_signal=_sentence(problem, place.name))
        )
    return snapshots


def _sentence(problem: InputError, name: str) -> str:
    return problem.beside(name)


def _measured(own: Snapshot, signal: SignalEvidence, more: Mapping[str, float | None]) -> Snapshot:
    """The snapshot with what was heard."""
    measured, quality, rpm = signal.measured, signal.quality, None if signal.speed is None else signal.speed.rpm
    values = {name: value for name, value in {"rpm": rpm, **more}.items() if value is not None}
    if quality is not None and quality.no_signal is not None:
        return replace(own, no_signal=sentence(quality.no_signal), values=values | {"rms": quality.rms}, rpm=rpm)
    if measured is None:
        return replace(own, no_signal=str(signal.problem or "nothing could be measured"), values=values, rpm=rpm)
    values |= measured.levels
    if quality is not None:
        values["rms"] = quality.rms
    physics, spectra, envelope = signal.physics, None, b""
    if physics is not None:
        values |= line_values({fault: lines.level for fault, lines in physics.faults.items()}, physics.reference_level)
    if measured.spectra is not None and measured.spectra.turns:
        spectra = on_order_grid(measured.spectra)
        levels = DECIBELS * levels_over_background(spectra).max(axis=0)
        envelope = np.clip(np.round(4 * levels), 0, 255).astype(np.uint8).tobytes()
    return replace(
        own, rate=measured.rate, values=values, orders=measured.orders, rpm=rpm, turns=measured.turns,
        quality=(
            *(quality.findings if quality else ()), *signal.speed_findings,
            *(() if signal.doubt is None else (signal.doubt,)),
        ),
        general=None if signal.general is None else dict(signal.general.probabilities), spectra=spectra,
        envelope=envelope,
    )  # fmt: skip


def line_values(levels: Mapping[str, float], reference: float) -> dict[str, float]:
    """Levels of fault lines as measurements."""
    return {fault.replace(" ", "_"): levels[fault] for fault in FAULTS} | {"reference": reference}


def on_order_grid(spectra: Spectra) -> Spectra:
    """The same with TURNS bins an order, whatever the length of the windows was."""
    if spectra.turns == TURNS:
        return spectra
    bins = spectra.power.shape[1]
    last = (bins - 1) / spectra.turns
    orders, own = np.arange(int(last * TURNS) + 1) / TURNS, np.arange(bins) / spectra.turns
    power = np.array([np.interp(orders, own, row) for row in spectra.power])
    return replace(spectra, power=power, turns=float(TURNS))


@dataclass(frozen=True)
class Event:
    """Something that happened to a point: `kind` is alarm, grown, over, acknowledged, baseline, sensor or problem."""

    machine: str
    point: str
    time: float
    kind: str
    sentence: str
    number: int | None = None  # in the store
    acknowledged: float | None = None  # when a person did


@dataclass(frozen=True)
class PointStatus:
    """What is known of a point now: a row of the fleet.

    >>> Path("plant/pump-3/drive-end").mkdir(parents=True, exist_ok=True)
    >>> noise = np.random.default_rng(0).normal(size=48_000)
    >>> np.savez("plant/pump-3/drive-end/2024-05-01T10-30-00.npz", x=noise, fs=12_000.0)
    >>> fleet = bearcat.watch("plant", "plant.db", rpm=1480, bearing="6205")
    >>> fleet[0].machine, fleet[0].point, fleet[0].recordings
    ('pump-3', 'drive-end', 1)
    """

    machine: str
    point: str
    status: str  # one of STATUSES
    since: float | None  # when the status began; of an alarm, when the change began
    fault: str | None  # inner race, outer race, ball, or None where nothing is named
    confidence: float | None
    reasons: tuple[str, ...]
    evidence: str | None  # the lead evidence in words: BPFO 236.4 Hz, 14 dB
    time: float | None  # of the last recording
    recordings: int
    operating_state: str  # in words: 1480 rpm, load 40
    learnt: int  # recordings in the baseline of this operating state
    wanted: int  # that it needs
    alarm: float | None = None  # when the open alarm was raised, whatever the status is now
    acknowledged: float | None = None  # when a person saw it


@dataclass(frozen=True, eq=False)
class Assessment:
    """What a point's memory says of one snapshot; it is kept beside the measurements."""

    status: PointStatus
    operating_state: str
    p_value: float | None  # None: still learning, or the snapshot was added to a block that is not complete
    evidence: float  # log of the accumulated evidence for a change; alarm at `threshold`
    threshold: float
    state: str  # the diagnosis of the recording alone, with the pooled spectra
    confidence: float
    band: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # what is usual, lowest and highest
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, eq=False)
class Pool:
    """Spectra of the last recordings, older ones with less weight."""

    spectra: Spectra
    weight: float
    rate: float
    rpm: float

    def add(self, other: Pool, forget: float = FORGET) -> Pool:
        """With another one's spectra; only these where the bands are other ones."""
        own, new = self.spectra, other.spectra
        if own.power.shape != new.power.shape or abs(other.rate / self.rate - 1) > 1e-6:
            return other
        old, weight = forget * self.weight, forget * self.weight + 1
        power, kurtosis, loudness = (
            (old * getattr(own, name) + getattr(new, name)) / weight for name in ("power", "kurtosis", "loudness")
        )
        pooled = Spectra(rounded(power), new.turns, own.windows + new.windows, kurtosis, loudness, new.axes)
        return Pool(pooled, weight, other.rate, other.rpm)

    def physics(self, orders: Mapping[str, float]) -> PhysicsEvidence:
        """What physics reads in the spectra."""
        return physics_evidence(self.spectra, self.rate, self.rpm, orders)

    def to_arrays(self, name: str) -> dict[str, NDArray[np.generic]]:
        """For the store, under this name; the power as its logarithm, in two bytes each."""
        own = self.spectra
        numbers = [self.weight, self.rate, self.rpm, own.turns, float(own.windows), float(own.axes)]
        return {
            f"{name}.power": np.log10(own.power).astype(np.float16),
            f"{name}.bands": np.stack([own.kurtosis, own.loudness]), f"{name}.numbers": np.array(numbers),
        }  # fmt: skip

    @staticmethod
    def from_arrays(name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Pool | None:
        """Back from `to_arrays`; None where there is none."""
        if f"{name}.numbers" not in arrays:
            return None
        weight, rate, rpm, turns, windows, axes = arrays[f"{name}.numbers"].tolist()
        power = 10 ** arrays[f"{name}.power"].astype(np.float64)
        kurtosis, loudness = arrays[f"{name}.bands"].astype(np.float64)
        return Pool(Spectra(power, turns, int(windows), kurtosis, loudness, int(axes)), weight, rate, rpm)


def rounded(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """As the store keeps it, so that a restart changes nothing."""
    return np.asarray(10 ** np.log10(np.maximum(power, 1e-30)).astype(np.float16).astype(np.float64))


def pool_of(snapshot: Snapshot) -> Pool | None:
    """Of one recording; None where its speed is not known."""
    own = snapshot.spectra
    if own is None or snapshot.rate is None or snapshot.rpm is None:
        return None
    loudness = np.broadcast_to(own.loudness, own.kurtosis.shape).astype(np.float64)
    spectra = Spectra(rounded(own.power), own.turns, own.windows, own.kurtosis, loudness, own.axes)
    return Pool(spectra, 1.0, snapshot.rate, snapshot.rpm)


@dataclass(frozen=True)
class Block:
    """Recordings that are read together."""

    rows: tuple[Mapping[str, float], ...] = ()
    pool: Pool | None = None
    turns: float = 0.0

    def add(self, snapshot: Snapshot) -> Block:
        new = pool_of(snapshot)
        pool = new if self.pool is None or new is None else self.pool.add(new, forget=1.0)
        return Block((*self.rows, dict(snapshot.values)), pool, self.turns + (snapshot.turns or 0.0))

    def values(self) -> Mapping[str, float]:
        """Medians of the measurements."""
        if len(self.rows) == 1:
            return self.rows[0]
        names = sorted(set().union(*self.rows))
        return {name: float(np.median([row[name] for row in self.rows if name in row])) for name in names}
