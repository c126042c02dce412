"""What is remembered of a point between recordings: its operating states, what is usual in each, and open alarms.

Short recordings add up to a block of some turns of the shaft before anything is read. A block is compared with the
baseline of its operating state, less what the neighbours on the machine and the same point of sister machines show too;
its p-value adds to the evidence for a change (usual.py). The spectra of the last blocks, pooled, say what the change
is. A line that a neighbour shows louder, or a change while a neighbour is in alarm, is cross-talk: to be checked.

>>> memory = PointMemory("pump 3", "drive end", WatchRule())
>>> memory.observe(snapshot)
>>> memory.assess(beside=[other_points_of_the_machine], sisters=[same_point_of_other_machines]).status.status
'learning'
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.baseline import KNOWN, Baseline
from bearcat.diagnosis.fusion import Witnesses, fuse
from bearcat.diagnosis.general import GeneralEvidence
from bearcat.diagnosis.physics import FAULTS, PhysicsEvidence
from bearcat.diagnosis.points import SHOWN, CrossTalk, Loudness, cross_talk, loudness
from bearcat.diagnosis.quality import stopped
from bearcat.diagnosis.spectra import FEWEST_TURNS
from bearcat.settings import from_plain, to_plain
from bearcat.trust.decision import ALARM, CANNOT_TELL, CHECK, HEALTHY, NO_SIGNAL, SAFE_FAULT, SURE
from bearcat.watch.snapshot import FORGET, LEARNING, Assessment, Block, Event, PointStatus, Pool, Snapshot, line_values
from bearcat.watch.usual import (
    BAND_NAMES,
    LEVEL,
    MARGINS,
    NAMES,
    PERSISTENCE,
    OperatingState,
    Tail,
    WatchRule,
    add_evidence,
    excesses,
    score,
    threshold,
)

GROWN = 6.0  # dB beyond the change at an alarm that are worth a second one, and of all points that are worth a check
STEP, STEP_BANDS, STEP_GROWTH = 1.0, 7, 2.0  # dB, levels and growth in dB of a change that a sensor makes at once
STEP_MOST = 12.0  # dB of such a change: a larger one is an alarm
STEP_BLOCKS = 10  # blocks within which such a change is found
RECENT = 60  # blocks whose changes are kept
MOST_COMMON = 10.0  # dB that other points can explain
CERTAIN = 0.9  # probability of a fault that is an alarm before there is a baseline
NEIGHBOURS, SISTERS = 2, 3  # that must show a change before it is taken for load, speed or weather
FRESH = 1.5  # intervals of a point's recordings that one of another point may be away, to be compared
NAMED = 0.5  # probability of a fault that is named where some fault is probable
DAY = 86400.0
VERSION = 1  # of what is kept
PLAIN = ("orders", "current", "general", "evidence", "onset", "sensor", "claims", "intervals", "block_time", "accepted",
         "question", "swap")  # fmt: skip
MARGIN_VECTOR = np.array([MARGINS[name] for name in NAMES])
LEVELS = np.array([name in (LEVEL, *BAND_NAMES) for name in NAMES])


@dataclass
class OpenAlarm:
    """An alarm that is not forgotten: it is open until it is acknowledged, and remembered until it is over as well."""

    time: float  # when it was raised
    since: float  # when the change began
    change: tuple[float, ...]  # (name,) of NAMES in dB, then, or at the last event of growth or acknowledgement
    acknowledged: float | None = None
    over: bool = False  # the change has gone


@dataclass(frozen=True, eq=False)
class Findings:
    """What a complete block says: by its pooled spectra, and beside other points."""

    physics: PhysicsEvidence | None = None
    fault: str | None = None  # that is named
    confidence: float = 0.0  # in the fault, or that there is any
    probable: float = 0.0  # probability of any fault
    common: Mapping[str, float] | None = None  # dB by which levels rose at most points at once
    borrowed: Mapping[str, CrossTalk] | None = None  # lines that a neighbour shows louder
    owner: str | None = None  # the neighbour
    p_value: float | None = None


class PointMemory:
    """Of one point. Kept in the store as bytes; a snapshot changes it, and what it says depends on nothing else."""

    def __init__(self, machine: str, point: str, rule: WatchRule) -> None:
        self.machine, self.point, self.rule = machine, point, rule
        self.states: list[OperatingState] = []
        self.current = 0  # of the states
        self.orders: dict[str, float] | None = None
        self.block = Block()
        self.pool: Pool | None = None
        self.usual: Baseline | None = None  # fault lines of the baseline
        self.general: dict[str, float] | None = None  # the general model's probabilities, pooled like the spectra
        self.lines: dict[str, Loudness] = {}
        self.recent: list[tuple[float, NDArray[np.float64]]] = []  # (time, change (name,)) of the last blocks
        self.evidence = 0.0
        self.onset: float | None = None  # when the evidence began to grow
        self.alarm: OpenAlarm | None = None
        self.sensor: float | None = None  # since when a sensor seems to be another, or mounted otherwise
        self.swap: tuple[float, ...] = ()  # changes (name,) then
        self.claims = 0  # blocks in a row in which the pooled evidence names a fault
        self.intervals: list[float] = []  # seconds between the last blocks
        self.block_time: float | None = None
        self.question: str | None = None  # what a person should know of the baseline, until it is acknowledged
        self.accepted: list[str] = []  # doubts about recordings that were there while the baseline was learnt
        self.status = PointStatus(
            machine, point, LEARNING, None, None, None, (), None, None, 0, "any", 0, rule.baseline
        )
        self.silent: str | None = None  # why the last recording has no signal
        self.complete = False  # whether the last recording completed a block
        self.notes: list[str] = []  # on the last recording
        self._snapshot: Snapshot | None = None
        self._learnt_now = False

    # What comes in.

    def observe(self, snapshot: Snapshot, healthy: bool | None = None) -> None:
        """Takes one recording in, which must be later than all before; `healthy`: a person says so."""
        self._snapshot, self.complete, self.notes, self._learnt_now = snapshot, False, [], False
        state = self._state_of(snapshot)
        usual = [row["rms"] for each in self.states for row in each.rows if "rms" in row and each.unit == state.unit]
        self.silent = snapshot.no_signal
        if self.silent is None and "rms" in snapshot.values:
            self.silent = stopped(snapshot.values["rms"], usual)
        if self.silent is not None:
            return
        if snapshot.orders is not None:
            self.orders = dict(snapshot.orders)
        self.block.add(snapshot)
        if snapshot.general is not None:
            old = self.general or snapshot.general
            self.general = {
                name: FORGET * old.get(name, 0.0) + (1 - FORGET) * share for name, share in snapshot.general.items()
            }
        if snapshot.turns is not None and snapshot.turns < FEWEST_TURNS and self.block.turns < FEWEST_TURNS:
            return
        row = self._close_block()
        if self.block_time is not None and snapshot.time > self.block_time:
            self.intervals = [*self.intervals, snapshot.time - self.block_time][-50:]
        self.block_time, self.complete = snapshot.time, True
        if (change := self._compare(row)) is not None and not healthy:
            self.recent = [*self.recent, (snapshot.time, change)][-RECENT:]
            if state.learnt or self.evidence > 0:  # what may be a fault is not learnt as usual
                return
        if self.open_alarm is not None and not healthy:
            return
        self.accepted = sorted({*self.accepted, *map(_doubt, snapshot.quality)})
        before = state.learnt
        state.learn(row, snapshot.time, self.rule, bool(healthy))
        self._learnt_now = state.learnt and not before
        if not self._learnt_now:
            return
        if self.pool is not None and self.orders is not None:
            self.usual = Baseline.of([self.pool.physics(self.orders)], KNOWN)
        notes = () if self.usual is None else self.usual.notes
        questions = [note.replace("the healthy recordings", "its baseline") for note in notes]
        if state.moved:
            questions.append(f"levels rose by {state.moved:.0f} dB while its baseline was learnt")
        if (louder := self._above_known(state)) >= GROWN:
            questions.append(f"its baseline at {state.label} is {louder:.0f} dB above that of other operating states")
        if questions and not healthy:
            self.question = f"{questions[0]}; look at the machine, then acknowledge"

    def _compare(self, row: dict[str, float]) -> NDArray[np.float64] | None:
        """The change against the baseline of the operating state; where that is not learnt yet, the change of lines
        and kurtosis, which hardly depend on speed and load, against the best known state. None where there is none.
        """
        if self.state.learnt:
            return self.state.change(row)
        return np.where(LEVELS, np.nan, self.reference.change(row)) if self.reference.learnt else None

    def _above_known(self, state: OperatingState) -> float:
        """dB by which the level of a learnt state is above that of others at least as fast; 0 where there is none."""
        others = [
            other.usual[0]
            for other in self.states
            if other.learnt and other is not state and other.unit == state.unit
            and (other.rpm or 0.0) >= (1 - self.rule.speed_bin) * (state.rpm or 0.0)
        ]  # fmt: skip
        return state.usual[0] - max(others) if others and np.isfinite([state.usual[0], *others]).all() else 0.0

    def _close_block(self) -> dict[str, float]:
        """The measurements of the block, with fault lines that are read in its spectra; the next one begins."""
        block, self.block = self.block, Block()
        row = block.values()
        if block.pool is not None:
            self.pool = block.pool if self.pool is None else self.pool.add(block.pool)
            if self.orders is not None and len(block.rows) > 1:
                found = block.pool.physics(self.orders)
                row |= line_values({name: lines.level for name, lines in found.faults.items()}, found.reference_level)
        return row

    def _state_of(self, snapshot: Snapshot) -> OperatingState:
        """The operating state of a recording; a new one where it fits none."""
        rpm, load, rate, unit = snapshot.rpm, snapshot.values.get("load"), snapshot.rate, snapshot.unit
        rpm, load = _nearest(rpm, self.rule.speeds), _nearest(load, self.rule.loads)
        if self.states:  # what is not said is as it was
            last = self.state
            rpm, load = last.rpm if rpm is None else rpm, last.load if load is None else load
            rate, unit = last.rate if rate is None else rate, last.unit if unit is None else unit
        highest = max([abs(state.load or 0.0) for state in self.states] + [abs(load or 0.0)])
        if rate is not None and self.states and not any(state.same_rate(rate) for state in self.states):
            self.notes.append(f"the sampling rate is {rate:g} Hz now; what is usual is learnt anew")
        if unit is not None and self.states and all(state.unit not in (None, unit) for state in self.states):
            self.notes.append(f"the unit is {unit} now; what is usual is learnt anew")
        for number, state in enumerate(self.states):
            if state.admits(rpm, load, rate, highest, self.rule) and state.unit in (None, unit):
                self.current = number
                if snapshot.no_signal is None:  # which may say less than others
                    state.rpm, state.load = state.rpm or rpm, load if state.load is None else state.load
                    state.rate, state.unit = state.rate or rate, state.unit or unit
                return state
        if snapshot.no_signal is None or not self.states:
            self.states.append(OperatingState(rpm, load, rate, unit))
            self.current = len(self.states) - 1
        return self.states[self.current]

    # What is said.

    @property
    def state(self) -> OperatingState:
        return self.states[self.current]

    @property
    def reference(self) -> OperatingState:
        """The state whose baseline counts: the current one, or the best known while that is learnt."""
        known = [state for state in self.states if state.learnt]
        return self.state if self.state.learnt else max(known, key=lambda state: len(state.rows), default=self.state)

    @property
    def interval(self) -> float:
        """Seconds between blocks."""
        return float(np.median(self.intervals)) if self.intervals else DAY

    @property
    def limit(self) -> float:
        """Of the evidence, from which on a change is an alarm."""
        return threshold(self.interval, self.rule.false_alarms)

    @property
    def compared(self) -> bool:
        """Whether the last recording could be compared with a baseline."""
        return self.complete and bool(self.recent) and self.recent[-1][0] == self.block_time

    @property
    def change(self) -> NDArray[np.float64]:
        """(name,) of NAMES: dB above what is usual, of the last block that was compared."""
        return self.recent[-1][1] if self.recent else np.full(len(NAMES), np.nan)

    @property
    def open_alarm(self) -> OpenAlarm | None:
        """The alarm that nobody acknowledged."""
        own = self.alarm
        return None if own is None or own.acknowledged is not None else own

    def assess(self, beside: Sequence[PointMemory] = (), sisters: Sequence[PointMemory] = ()) -> Assessment:
        """What the last recording means, beside the other points of its machine and the same point of others."""
        from bearcat.watch.status import describe, status_of

        snapshot = self._snapshot
        if snapshot is None:
            raise ValueError("observe a recording first")
        complete = self.silent is None and self.complete
        found = self._find(snapshot.time, beside, sisters) if complete else Findings()
        events = self._update_alarm(snapshot.time, found) if complete else []
        if self.silent is not None and self.status.status != NO_SIGNAL:
            events.append(self._event(snapshot.time, "problem", f"no signal; {self.silent}"))
        if self._learnt_now:
            sentence = f"what is usual was learnt from {self.state.seen} recordings at {self.state.label}"
            more = "" if self.question is None else f"; {self.question}"
            events.append(self._event(snapshot.time, "baseline", f"{sentence}{more}"))
        self.status = status_of(self, snapshot, found)
        said = NO_SIGNAL if self.silent is not None else HEALTHY if found.probable <= SAFE_FAULT else CANNOT_TELL
        return Assessment(
            self.status, self.state.label, found.p_value, self.evidence, self.limit,
            found.fault or said, found.confidence,
            {name: (low, high) for name, (low, high) in self.state.band.items()},
            tuple(replace(event, sentence=describe(event, self.status)) for event in events),
        )  # fmt: skip

    def _find(self, time: float, beside: Sequence[PointMemory], sisters: Sequence[PointMemory]) -> Findings:
        """What the last block says."""
        reach = FRESH * max(self.interval, 60.0)
        near = [other for other in beside if other.block_time is not None and abs(other.block_time - time) <= reach]
        physics = None if self.pool is None or self.orders is None else self.pool.physics(self.orders)
        self.lines = loudness(physics)
        borrowed = {
            fault: line
            for fault, line in cross_talk([self.lines, *(other.lines for other in near)])[0].items()
            if self.lines[fault].excess >= SHOWN
        }
        common = {} if self.alarm is not None else _common(near, sisters, time, reach)
        fault, confidence, probable = self._name(physics, borrowed)
        owner = None
        if fault is None:  # what its own lines name is its own
            owners = [near[line.owner - 1] for line in borrowed.values()] or self._earlier_alarms(near)
            owner = owners[0].point if owners else None
        p_value = self._weigh(common, borrowed, owner is not None) if self.compared else None
        return Findings(physics, fault, confidence, probable, common, borrowed, owner, p_value)

    def _weigh(self, common: Mapping[str, float], borrowed: Mapping[str, CrossTalk], owned: bool) -> float:
        """The p-value of the last block; the evidence takes it in, but does not grow by what a neighbour owns."""
        change = self.own_change(common)
        change[[NAMES.index(fault.replace(" ", "_")) for fault in borrowed]] = np.nan
        state = self.reference
        p_value = 1.0 if state.tail is None else state.tail.p_value(score(change, np.array(state.spreads)))
        before, self.evidence = self.evidence, add_evidence(self.evidence, p_value, self.limit)
        if owned:
            self.evidence = min(self.evidence, before)
        elif self.alarm is not None and not self.state.learnt:  # levels, which raised it, cannot be compared there
            self.evidence = max(self.evidence, before)
        self.onset = None if self.evidence == 0 else self.block_time if before == 0 else self.onset
        return p_value

    def own_change(self, common: Mapping[str, float]) -> NDArray[np.float64]:
        """The last change less what other points show too."""
        return np.asarray(self.change - np.array([common.get(name, 0.0) for name in NAMES]))

    def _name(
        self, physics: PhysicsEvidence | None, borrowed: Mapping[str, CrossTalk]
    ) -> tuple[str | None, float, float]:
        """The fault that the pooled evidence names, how sure that is, and how probable any fault is."""
        if physics is None:
            return None, 0.0, 0.0
        general = None if self.general is None or borrowed else GeneralEvidence(self.general, 1.0, 1)
        for fault in borrowed:
            physics = physics.without_lines(fault)
        baseline = None if self.usual is None else self.usual.compare(physics)
        found = fuse(Witnesses(physics, general, baseline=baseline))
        likeliest, probable = max(FAULTS, key=lambda fault: found[fault]), 1 - found[HEALTHY]
        named = probable >= SURE and found[likeliest] >= NAMED
        self.claims = self.claims + 1 if named else 0
        return (likeliest, found[likeliest], probable) if named else (None, probable, probable)

    def _earlier_alarms(self, near: Sequence[PointMemory]) -> list[PointMemory]:
        """Neighbours in alarm whose change began before and is larger, the first one first: it may be theirs."""
        own = self.alarm.since if self.alarm is not None else self.onset
        dated = [
            (other.alarm.since, other)
            for other in near
            if other.alarm is not None and not other.alarm.over and _largest(other.change) >= _largest(self.change)
        ]
        return [other for since, other in sorted(dated, key=lambda pair: pair[0]) if own is None or since <= own]

    def _update_alarm(self, time: float, found: Findings) -> list[Event]:
        """Raises an alarm, a second where it has grown, and says when it is over."""
        alarm, strong = self.alarm, self.evidence >= self.limit
        if alarm is not None and alarm.over and alarm.acknowledged is not None:
            self.alarm = alarm = None
        if self.evidence == 0:
            self.sensor = None
        if alarm is None and not self.reference.learnt:
            if self.claims >= PERSISTENCE and found.probable >= CERTAIN:  # a fault from the first recording on
                self.alarm = OpenAlarm(time, time, self._level())
                return [self._event(time, "alarm", "alarm")]
            return []
        if alarm is not None and alarm.over and strong:
            alarm.over = False  # it comes again, and nobody has looked yet
        elif alarm is None and strong and found.owner is None:
            if self.sensor is None and self._swapped():
                self.sensor, self.swap = self.onset, self._level()
                return [self._event(time, "sensor", "levels changed at once, and no fault shows")]
            if self.sensor is not None and not self._grows_beyond(self.swap):
                return []
            self.sensor, self.alarm = None, OpenAlarm(time, self.onset or time, self._level())
            return [self._event(time, "alarm", "alarm")]
        if alarm is None or alarm.over or not self.compared:
            return []
        if np.any(np.array(self._level()) >= np.array(alarm.change) + GROWN):
            alarm.change, alarm.acknowledged = tuple(np.fmax(alarm.change, self._level()).tolist()), None
            return [self._event(time, "grown", "the change has grown")]
        if self.evidence < self.limit / 2 and self.reference.learnt:
            alarm.over = True
            return [self._event(time, "over", "the change has gone")]
        return []

    def _level(self) -> tuple[float, ...]:
        """Changes (name,) of the last blocks, by their median; what was not measured counts as 0."""
        rows = [change for _, change in self.recent[-PERSISTENCE:]]
        return tuple(np.median(np.nan_to_num(rows), axis=0).tolist()) if rows else (0.0,) * len(NAMES)

    def _swapped(self) -> bool:
        """Whether levels jumped between two blocks and stayed, without strikes or lines: another sensor or mounting."""
        onset = self.onset or 0.0
        since = np.nan_to_num([change for time, change in self.recent if time >= onset])
        before = np.nan_to_num([change for time, change in self.recent if time < onset][-5:])
        if not PERSISTENCE <= len(since) <= STEP_BLOCKS:
            return False
        jump = since[0] - (np.median(before, axis=0) if len(before) else 0.0)
        moved = np.median(since[-PERSISTENCE:], axis=0) - since[0]
        quiet = not np.any((np.median(since, axis=0) > MARGIN_VECTOR + self.reference.spreads) & ~LEVELS)
        many = int(np.sum(np.abs(jump[LEVELS]) > STEP)) >= STEP_BANDS and np.abs(jump[LEVELS]).max() <= STEP_MOST
        return bool(quiet and many and np.abs(moved[LEVELS]).max() <= STEP_GROWTH)

    def _grows_beyond(self, swap: Sequence[float]) -> bool:
        """Whether a change has grown since a sensor was swapped, or lines or strikes have come."""
        now = np.array(self._level())
        shows = (now > MARGIN_VECTOR + 2 * np.array(self.reference.spreads)) & ~LEVELS
        return bool((now - np.array(swap)).max() > GROWN or shows.any())

    def largest_change(self, common: Mapping[str, float]) -> tuple[str, float] | None:
        """The measurement that exceeds its margin most, and by how many dB it is above what is usual."""
        if not self.compared:
            return None
        change = self.own_change(common)
        beyond = excesses(change, np.array(self.reference.spreads))
        place = int(beyond.argmax())
        if beyond[place] <= 0:
            return None
        return NAMES[place], float(np.nanmedian(change[LEVELS]) if NAMES[place] == LEVEL else change[place])

    def quieter(self) -> float:
        """dB by which the last blocks are below what is usual; 0 where they are not, or fewer than three are known."""
        rows = [change[LEVELS] for _, change in self.recent[-PERSISTENCE:]]
        if len(rows) < PERSISTENCE or not np.isfinite(rows).any(axis=1).all():
            return 0.0
        return max(0.0, -float(max(np.nanmedian(row) for row in rows)))

    def new_doubts(self, snapshot: Snapshot) -> list[str]:
        """What is wrong with a recording that was not so while the baseline was learnt."""
        return [text for text in snapshot.quality if not self.state.learnt or _doubt(text) not in self.accepted]

    # What people do.

    def acknowledge(self, time: float, note: str = "") -> Event:
        """A person has seen the alarm: it does not come again until the change grows, or has gone and comes again."""
        if self.alarm is not None:
            self.alarm.acknowledged, self.alarm.change = time, self._level()
        self.question = None
        was = self.status
        if was.status == ALARM:
            was = replace(was, status=CHECK, since=time)
        self.status = replace(was, alarm=None, acknowledged=time)
        return self._event(time, "acknowledged", note or "acknowledged")

    def relearn(self, time: float, note: str = "") -> Event:
        """The baseline is learnt anew from the next recordings on: after a repair, or with another sensor."""
        was, new = self.status, PointMemory(self.machine, self.point, self.rule)
        vars(self).update(vars(new))
        self.status = replace(
            new.status, time=was.time, since=time, recordings=was.recordings, operating_state=was.operating_state
        )
        return self._event(time, "baseline", note or "what is usual is learnt anew")

    def _event(self, time: float, kind: str, sentence: str) -> Event:
        return Event(self.machine, self.point, time, kind, sentence)

    # How it is kept.

    def to_bytes(self) -> bytes:
        """For the store: plain values as JSON, arrays as they are, a checksum, since wrong values are wrong alarms."""
        from safetensors.numpy import save

        plain: dict[str, Any] = {name: getattr(self, name) for name in PLAIN}
        plain |= {
            "version": VERSION, "machine": self.machine, "point": self.point, "rule": to_plain(self.rule),
            "status": to_plain(self.status), "usual": to_plain(self.usual), "states": [],
            "lines": to_plain(self.lines), "alarm": None if self.alarm is None else asdict(self.alarm),
            "block": {"rows": self.block.rows, "turns": self.block.turns},
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {"times": np.array([time for time, _ in self.recent], dtype=np.float64)}
        arrays["changes"] = np.array([change for _, change in self.recent]).reshape(-1, len(NAMES))
        for number, state in enumerate(self.states):
            names = sorted(set().union(*state.rows))
            plain["states"].append({**to_plain(replace(state, rows=[])), "names": names})
            rows = [[row.get(name, np.nan) for name in names] for row in state.rows]
            arrays[f"state {number}"] = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
        for name, pool in (("pool", self.pool), ("block", self.block.pool)):
            arrays |= {} if pool is None else pool.to_arrays(name)
        content = bytes(save(arrays, metadata={"bearcat": json.dumps(plain)}))
        return content + zlib.crc32(content).to_bytes(4)

    @staticmethod
    def from_bytes(content: bytes) -> PointMemory:
        """Back from `to_bytes`; ValueError where it cannot be one."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content, checksum = content[:-4], content[-4:]
        if zlib.crc32(content).to_bytes(4) != checksum:
            raise ValueError("what is kept of a point is damaged")
        try:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            plain, arrays = json.loads(header["__metadata__"]["bearcat"]), load(content)
            memory = PointMemory(plain["machine"], plain["point"], from_plain(WatchRule, plain["rule"]))
            memory._restore(plain, arrays)
        except (SafetensorError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError("what is kept of a point is damaged") from error
        return memory

    def _restore(self, plain: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in PLAIN:
            setattr(self, name, plain[name])
        self.status = from_plain(PointStatus, plain["status"])
        self.usual = from_plain(Baseline | None, plain["usual"])
        self.lines = {name: from_plain(Loudness, line) for name, line in plain["lines"].items()}
        self.alarm = from_plain(OpenAlarm | None, plain["alarm"])
        self.swap = tuple(self.swap)
        self.recent = list(zip(arrays["times"].tolist(), arrays["changes"], strict=True))
        for number, values in enumerate(plain["states"]):
            names = values.pop("names")
            rows = [
                {name: value for name, value in zip(names, row, strict=True) if value == value}
                for row in arrays[f"state {number}"].tolist()
            ]
            state = OperatingState(**{**values, "rows": rows, "tail": from_plain(Tail | None, values["tail"])})
            self.states.append(replace(state, usual=tuple(state.usual), spreads=tuple(state.spreads)))
        self.pool = Pool.from_arrays("pool", arrays)
        self.block = Block(plain["block"]["rows"], Pool.from_arrays("block", arrays), plain["block"]["turns"])


def _common(near: Sequence[PointMemory], sisters: Sequence[PointMemory], time: float, reach: float) -> dict[str, float]:
    """What neighbours and sisters show too: dB by which levels of bands rose at most points at once."""
    found: dict[str, float] = {}
    for others, fewest in ((near, NEIGHBOURS), (sisters, SISTERS)):
        fresh = [
            other.change
            for other in others
            if other.recent
            and abs(other.recent[-1][0] - time) <= reach
            and other.alarm is None
            and other.sensor is None
        ]
        if len(fresh) >= fewest:
            shared = np.median(np.nan_to_num(fresh), axis=0)
            for name, value in zip(NAMES, shared.tolist(), strict=True):
                if name in BAND_NAMES and value > 0:
                    found[name] = max(found.get(name, 0.0), min(value, MOST_COMMON))
    return found


def _largest(change: NDArray[np.float64]) -> float:
    """The largest of changes in dB, 0 at least."""
    return float(np.nanmax(np.append(change, 0.0)))


def _nearest(value: float | None, given: Sequence[float]) -> float | None:
    """The nearest of what is given; the value itself where nothing is."""
    own = value
    return own if own is None else min(given, key=lambda each: abs(each - own), default=own)


def _doubt(text: str) -> str:
    """A doubt without its numbers, which differ from recording to recording."""
    return re.sub(r"[\d.,]+", "", text)
