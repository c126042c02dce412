"""What is measured of one point at one time, and what is said of the point then.

>>> snapshots = measure(found, Given(measured=True), time)
>>> snapshots[0].values["rms"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bearcat.diagnosis.spectra import Spectra
from bearcat.trust.decision import ALARM, CHECK, NO_SIGNAL, OK

LEARNING = "learning"
STATUSES = (ALARM, CHECK, NO_SIGNAL, LEARNING, OK)  # of a point, worst first
BANDS = 8
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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One point of a machine at one time."""

    machine: str
    point: str
    time: float  # seconds since 1970, UTC
    recording: str  # file and channel
    digest: str  # of the file's content
    rate: float | None
    unit: str | None
    values: Mapping[str, float]  # by name of MEASUREMENTS; what is not known is not there
    orders: Mapping[str, float] | None  # of the bearing; None: it is not known
    no_signal: str | None = None  # why nothing could be measured
    quality: tuple[str, ...] = ()  # what is wrong with the recording
    spectra: Spectra | None = None  # envelope spectra, for pooling; turns 0: the speed is not known
    envelope: bytes = b""  # the envelope spectrum as it is kept: a byte of quarter dB for each 1/20 order from 0 on
    notes: tuple[str, ...] = ()


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
    """What is known of a point now: a row of the fleet."""

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
    acknowledged: float | None = None  # when the last alarm was


@dataclass(frozen=True, eq=False)
class Assessment:
    """What a point's memory says of one snapshot; it is kept beside the measurements."""

    status: PointStatus
    operating_state: str
    change: Mapping[str, float]  # dB against the baseline, by measurement
    p_value: float | None  # None: still learning, or the snapshot was added to a block that is not complete
    evidence: float  # log of the accumulated evidence for a change; alarm at `threshold`
    threshold: float
    state: str  # the diagnosis of the recording alone, with the pooled spectra
    confidence: float
    band: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # what is usual, lowest and highest
    events: tuple[Event, ...] = ()
