"""What a point remembers: evidence for a change, what is usual, and statuses that fail safe."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad

from bearcat.data.recording import Recording
from bearcat.data.simulate import Simulated
from bearcat.data.vibration import CONDITIONS, Defect, MachinePhysics, simulate
from bearcat.deploy.find import FoundMeasurement, Given, found_recording
from bearcat.diagnosis.recording import Measured, Observation
from bearcat.errors import InputError
from bearcat.findings import Finding
from bearcat.settings import WatchRequest
from bearcat.watch import usual
from bearcat.watch.alarm import judge
from bearcat.watch.memory import PointState, acknowledge, relearn, unreadable
from bearcat.watch.snapshot import PointStatus, Snapshot, measure, status_of
from bearcat.watch.store import Packed
from bearcat.watch.usual import DAY, PERSISTENCE, add_evidence, bet

REQUEST = WatchRequest(baseline=12)
RATE = 16_000.0


def values(random, **changes):
    """Measurements of a healthy recording, scattered; changes in dB by name."""
    levels = {f"band_{number}": 0.1 * number for number in range(1, 9)}
    levels |= {"rms": 0.5, "kurtosis": 3.0, "envelope_kurtosis": 2.2}
    found = {"reference": 5.0}
    for name, value in levels.items():
        factor, change = (10, 0.0) if "kurtosis" in name else (20, changes.get("all", 0.0))
        found[name] = value * 10 ** ((0.3 * random.standard_normal() + changes.get(name, change)) / factor)
    lines = ("inner_race", "outer_race", "ball")
    return found | {name: 5.0 + random.standard_normal() + changes.get(name, 0.0) for name in lines}


def snapshot(random, day, rpm=1500.0, rate=RATE, unit=None, no_signal=None, noticed=(), **changes):
    kept = Measured({}, None, rate, None, turns=100.0)
    observation = Observation("x.wav", observed=noticed, no_signal=no_signal, measured=kept)
    levels = values(random, **changes) | ({} if rpm is None else {"rpm": rpm})
    return Snapshot("pump", "1", DAY * day, observation, levels, unit)


class Point:
    """A point's state over time."""

    def __init__(self, request=REQUEST):
        self.state, self.request = PointState(PointStatus("pump", "1")), request

    @property
    def status(self):
        return self.state.status

    def take(self, snapshot):
        """The kinds of the events."""
        states, events, _ = judge({snapshot.point: self.state}, [snapshot], self.request)
        self.state = states[snapshot.point]
        return [event.kind for event in events if event.kind != "problem"]


def kept(state):
    """As it comes out of the store."""
    packed = Packed(PointState)
    return packed.process_result_value(packed.process_bind_param(state, None), None)


def run(memory, random, days, **changes):
    """Kinds of events of healthy or changed recordings on these days."""
    return [kind for day in days for kind in memory.take(snapshot(random, day, **changes))]


def learnt(seed=0):
    memory, random = Point(), np.random.default_rng(seed)
    run(memory, random, range(REQUEST.baseline))
    return memory, random


def test_a_bet_is_the_integral_that_it_claims_to_be_and_worth_one_on_average_where_nothing_changed():
    for p in (1.0, 0.99, 0.7, 0.2, 0.01, 1e-4):
        integral, _ = quad(lambda epsilon, p=p: epsilon * p ** (epsilon - 1), 0, 1)
        assert bet(p) == pytest.approx(integral, rel=1e-5)
    p_values = ((np.arange(200_000) + 0.5) / 200_000).tolist()
    assert 0.9 < np.mean(list(map(bet, p_values))) < 1.0  # the mean has a long tail at 0


def test_p_values_within_the_baseline_count_its_recordings_and_fall_beyond_it():
    scores = np.random.default_rng(1).standard_normal(40)
    for rank, score in enumerate(sorted(scores)[:30]):
        assert usual.p_value(score, scores) == pytest.approx((40 - rank + 1) / 41)
    beyond = [usual.p_value(usual.tail(scores)[0] + step, scores) for step in np.linspace(0.01, 20, 50)]
    assert all(second < first for first, second in itertools.pairwise(beyond))


def test_evidence_is_a_cusum_of_bets():
    random = np.random.default_rng(2)
    p_values, evidence = random.uniform(0.05, 1, size=60).tolist(), 0.0
    logarithms = [math.log(bet(p)) for p in p_values]
    for number, p in enumerate(p_values, start=1):  # the largest sum over all pasts that end now (Page 1954)
        evidence = add_evidence(evidence, p, limit=1e6)
        assert evidence == pytest.approx(max(sum(logarithms[start:number]) for start in range(number + 1)))
    limit = usual.threshold(3600.0, 1.0)
    alone = itertools.accumulate([1e-300] * PERSISTENCE, lambda kept, p: add_evidence(kept, p, limit), initial=0.0)
    assert [kept >= limit for kept in alone] == [False] * PERSISTENCE + [True], "however loud they are"
    for p in p_values:  # three equal recordings, each worth a third, are one
        evidence, together = add_evidence(evidence, p, 1e6), evidence
        for _ in range(3):
            together = add_evidence(together, p, 1e6, correlated=3)
        assert together == pytest.approx(evidence)


def drawn(random, days, failing):
    """Measurements of a point over the days on which it runs: slow wandering, stops, restarts at another level."""
    wander, after, running = np.zeros(8), 0.0, 0
    begin = random.uniform(0.4, 0.6) * days if failing else days
    for day in range(days):
        wander = 0.8 * wander + 0.36 * random.standard_normal(8)
        running -= 1
        if running < -10:
            running, after = int(random.integers(30, 90)), 0.5 * random.standard_normal()
        if running >= 0:
            growth = max(0.0, 20.0 * (day - begin) / (days - begin)) if failing else 0.0
            changes = {f"band_{number + 1}": wander[number] + after for number in range(8)}
            changes["band_5"] += growth
            yield day, changes | {"outer_race": growth, "envelope_kurtosis": growth / 4}


def watched(seed, failing=False):
    """Days of the alarms of a drawn point, which is looked at after each of them; and how many days it was watched."""
    random = np.random.default_rng(seed)
    memory, alarms, last = Point(WatchRequest()), [], 0
    for last, changes in drawn(random, 730, failing):
        if "alarm" in memory.take(snapshot(random, last, **changes)):
            alarms.append(last)
            memory.state, _ = relearn(memory.state, DAY * last)
    return alarms, last


def test_the_stated_rate_of_one_a_year_holds_with_wandering_levels_and_stops_and_failures_are_found():
    alarms, days = zip(*map(watched, range(8)), strict=True)
    assert sum(map(len, alarms)) / (sum(days) / 365.25) <= 1.0
    for seed in range(2):
        found, last = watched(seed, True)
        assert any(day < 0.9 * last for day in found)


def test_a_baseline_takes_recordings_by_their_spacing_and_days_of_running():
    request, random = WatchRequest(), np.random.default_rng(5)
    assert [usual.recordings_of_baseline(request, DAY * days) for days in (90.0, 30.4, 7.0, 0.01)] == [8, 12, 30, 30]
    assert usual.recordings_of_baseline(WatchRequest(baseline=50), DAY) == 50
    state, number = usual.OperatingState(1500.0), 0
    while not state.learnt:  # every ten minutes, with a stop of a week
        time = 600.0 * number + (7 * DAY if number > 20 else 0.0)
        state, number = state.learn(usual.row_of(values(random)), time, request, 600.0), number + 1
    assert 2 * 144 < number <= 2 * 144 + 3


LOUD, FAULT = {"band_4": 5.0, "envelope_kurtosis": 4.0}, {"outer_race": 14.0, "envelope_kurtosis": 5.0}
GONE = {"no_signal": Finding("constant", "check", {"value": 0.0})}
# What happens from one day to another, the events of that, the status then, and a word of its reasons.
SCENARIOS = {
    "a change is alarmed once, acknowledged, and alarmed again when it grows": [
        (12, 60, {}, [], "ok", ""),
        (60, 70, LOUD, ["alarm"], "alarm", "dB"),
        (70, 80, LOUD, [], "check", "acknowledged"),  # it is still there: never ok
        (80, 90, {"band_4": 14.0, "envelope_kurtosis": 9.0}, ["grown"], "alarm", "dB"),
    ],
    "an alarm whose cause has gone waits to be acknowledged": [
        (12, 20, {"band_3": 8.0}, ["alarm"], "alarm", "dB"), (20, 60, {}, ["over"], "check", "acknowledge it"),
    ],
    "a fault that comes with a new speed is found by its lines and not learnt": [
        (12, 16, {"rpm": 900.0, "all": -8.0, **FAULT}, ["alarm"], "alarm", "dB"),
    ],
    "a speed that is no longer stated makes no new baseline": [
        (12, 16, {"rpm": None, "all": 15.0}, ["alarm"], "alarm", "dB"),
    ],
    "an open alarm is neither closed nor learnt by another speed": [
        (12, 20, {"band_4": 12.0}, ["alarm"], "alarm", "dB"),
        (20, 60, {"rpm": 1200.0, "band_4": 12.0}, [], "alarm", "is open"),
    ],
    "one outlier is no growth, and another cause is": [
        (12, 20, {"band_4": 8.0}, ["alarm"], "alarm", "dB"),
        (20, 21, {"band_4": 40.0}, [], "alarm", "dB"),
        (22, 30, {"band_4": 8.0, "band_1": 16.0, "kurtosis": 8.0}, ["grown"], "alarm", "dB"),
    ],
    "levels that stay high are learnt after a new baseline": [
        (20, 32, {"all": 9.0}, ["alarm"], "alarm", "dB"), (32, 60, {"all": 9.0}, [], "ok", "relearnt"),
        (60, 70, {"all": 9.0, "band_3": 17.0}, ["alarm"], "alarm", "dB"),
    ],
    "slow growth is an alarm in the end": [(day, day + 1, {"all": 0.4 * (day - 12)}, None, None, "") for day in range(12, 70)]
    + [(70, 71, {"all": 24.0}, None, "alarm", "dB")],
    "the first recording after a stop does not count, and what stays is an alarm": [
        (90, 91, {"band_3": 8.0, "band_4": 8.0}, [], "ok", ""), (91, 92, {}, [], "ok", ""),
        (140, 150, {"band_3": 8.0}, ["alarm"], "alarm", "dB"),
    ],
    "a small change is to be checked until a line, impulses or 6 dB show that it is a fault's": [
        (12, 50, {"band_4": 4.5}, [], "check", "no clear line"), (50, 60, {"band_4": 9.0}, ["alarm"], "alarm", "dB"),
    ],
    "what a start changes is learnt from the first three": [
        (30, 70, {"band_4": 4.5}, [], "ok", ""), (70, 90, {"band_4": 13.0}, ["alarm"], "alarm", "dB"),
    ],
    "levels that fall are said": [(12, 18, {"all": -25.0}, [], "check", "below")],
    "another sampling rate is learnt anew": [(13, 14, {"rate": 2 * RATE}, [], "ok", "1 of 12 recordings")],
    "another unit is learnt anew": [
        (18, 19, {"unit": "g"}, [], "ok", ""), (19, 20, {"unit": "m/s²"}, [], "ok", "1 of 12 recordings"),
    ],
    "no signal does not hide an open alarm, and nothing is learnt from it": [
        (12, 20, {"band_3": 8.0}, ["alarm"], "alarm", "dB"),
        (20, 21, {"band_3": 8.0, **GONE}, [], "no signal", "alarm"), (21, 22, {"band_3": 8.0}, [], "alarm", "dB"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_what_happens_to_a_point(steps):
    memory, random = learnt()
    for first, last, changes, happened, status, word in steps:
        if word == "acknowledged":
            memory.state, _ = acknowledge(memory.state, DAY * (first - 0.5))
            assert (memory.status.status, memory.status.alarm) == ("check", None)
        if word == "relearnt":
            memory.state, word = relearn(memory.state, DAY * first)[0], ""
        events = run(memory, random, range(first, last), **changes)
        memory.state = kept(memory.state)
        assert happened in (None, events)
        assert status in (None, memory.status.status)
        assert word in " ".join([*memory.status.reasons, memory.status.baseline or ""])
        assert memory.status.status == status_of(memory.status.findings)
        assert (memory.status.alarm is not None) == (memory.state.open_alarm is not None)
    assert sum(state.learnt for state in memory.state.states) == 1


def test_clear_growth_is_an_alarm_before_there_is_a_baseline_and_is_not_learnt():
    memory, random = Point(WatchRequest()), np.random.default_rng(3)
    assert run(memory, random, range(10)) == []
    assert run(memory, random, range(10, 20), band_4=4.0) == [], "which other days may explain"
    assert run(memory, random, range(20, 30), band_4=9.0, outer_race=9.0) == ["alarm"]
    assert memory.status.baseline.startswith("baseline: 20 of 30 recordings")
    assert memory.status.p_value is None


def beside(*changes):
    """Statuses of points of one machine, with changes from day 12 and from day 16 on."""
    made = {str(seed + 1): learnt(seed) for seed in range(len(changes))}
    states = {point: replace(memory.state, status=PointStatus("pump", point)) for point, (memory, _) in made.items()}
    for day in range(12, 30):
        snapshots = []
        for (point, (_, random)), (always, later) in zip(made.items(), changes, strict=True):
            change = always | (later if day > 15 else {})
            snapshots.append(replace(snapshot(random, day, **change), point=point))
        states, _, _ = judge(states, snapshots, REQUEST)
    return [state.status for state in states.values()]


def test_what_all_points_of_a_machine_show_is_load_and_no_alarm():
    statuses = beside(*[({"all": 7.0}, {})] * 4)
    assert [(status.status, status.alarm) for status in statuses] == [("check", None)] * 4
    assert [finding.kind for finding in statuses[0].findings] == ["all points louder"]


def test_what_rose_more_at_a_neighbour_is_cross_talk_whatever_the_status_of_that_is():
    first, second = beside(({"band_5": 15.0, "envelope_kurtosis": 6.0}, {}), ({}, {"band_5": 5.0}))
    assert (first.status, second.status) == ("alarm", "check")
    assert (second.findings[0].kind, second.findings[0].values) == ("levels of neighbour", {"owner": "1"})
    first, second = beside(({"band_5": 15.0}, {}), ({"band_5": 5.0}, {"outer_race": 9.0}))
    assert {first.status, second.status} == {"alarm"}, "an alarm does not hide another bearing's lines"
    assert second.p_value < 0.05


def test_operating_states_have_baselines_of_their_own():
    memory, random, happened = Point(), np.random.default_rng(7), []
    for day in range(80):
        fast = day % 2 == 1
        happened += memory.take(snapshot(random, day, rpm=1500.0 if fast else 900.0, all=10.0 if fast else 0.0))
    assert happened == []
    assert [state.rpm for state in memory.state.states] == [900.0, 1500.0]
    assert memory.status.status == "ok"
    assert run(memory, random, range(80, 90), rpm=900.0, all=10.0) == ["alarm"]  # loud for this speed


def test_doubts_about_a_recording_are_to_be_checked_unless_they_were_always_there():
    always, new = Finding("clipped", "check", {"share": 0.0002}), Finding("dropouts", "check", {"share": 0.01})
    memory, random = Point(), np.random.default_rng(9)
    run(memory, random, range(REQUEST.baseline), noticed=(always,))
    assert memory.status.status == "check", "most recordings of its baseline were"
    memory.state, _ = acknowledge(memory.state, DAY * 15)
    run(memory, random, [20], noticed=(replace(always, values={"share": 0.0005}),))
    assert memory.status.status == "ok"
    run(memory, random, [21], noticed=(new,))
    assert memory.status.status == "check"


def test_a_file_that_cannot_be_read_or_is_refused_is_to_be_checked_and_not_learnt():
    memory, random = learnt()
    memory.state = unreadable(memory.state, DAY * 13, "broken.wav: cannot be read")
    assert (memory.status.status, memory.status.reasons[0]) == ("check", "broken.wav: cannot be read")
    assert unreadable(memory.state, DAY * 5, "old.wav") is memory.state, "a later recording was judged already"
    clipped = Observation("x.wav", problem=InputError("2 % of it are clipped", readable=True))
    refused = replace(snapshot(random, 14, all=30.0), observation=clipped)
    assert memory.take(refused) == []
    assert (memory.status.status, memory.state.state.count) == ("check", REQUEST.baseline)
    assert "clipped" in memory.status.reasons[0]
    run(memory, random, [15])
    assert memory.status.status == "ok"


def measured(signals, time):
    """Snapshots of several points."""
    points = {}
    for name, signal in signals.items():
        stated = {"rate": RATE, "rpm": 1500.0, "bearing": Simulated.bearing, "machine": "pump"}
        origin = f"x#{name}"
        points[origin] = [found_recording(Recording(signal=signal, domain="", origin=origin, **stated))]
    return measure(FoundMeasurement(points), Given(trust_speed=True), time, "pump")


def simulated(day, length=0.0, part="outer", seconds=1.0, seed=0):
    defects = (Defect(part, length),) if length else ()
    return simulate(MachinePhysics(), CONDITIONS["N15_M07_F10"], defects, RATE, seconds, seed, f"watch/{day}")


def test_simulated_spalls_grow_until_they_are_alarmed_and_named_and_the_neighbour_is_cross_talk():
    states, alarmed = {}, []
    for day in range(21):
        struck, quiet = simulated(day, 0.0 if day < 12 else 0.1 * 1.3 ** (day - 12)), simulated(1000 + day, seed=1)
        snapshots = measured({"1": struck, "2": quiet + 0.2 * struck}, DAY * day)
        states, events, _ = judge(states, snapshots, WatchRequest(baseline=8))
        alarmed += [(day, event.point) for event in events if event.kind == "alarm"]
    assert {name for _, name in alarmed} == {"1"}
    assert 12 <= alarmed[0][0] <= 22
    assert (states["1"].status.status, states["1"].status.fault) == ("alarm", "outer race")
    assert (states["2"].status.status, states["2"].status.findings[0].kind) == ("check", "cross-talk")


def test_a_clear_fault_is_an_alarm_at_once_and_keeps_its_name_until_another_was_named_three_times_in_a_row():
    memory, names, happened = Point(WatchRequest()), [], []
    for day, part in enumerate(("outer", "inner", "outer", "inner", "inner", "inner")):
        happened += [memory.take(snapshot) for snapshot in measured({"1": simulated(day, 2.0, part)}, DAY * day)]
        names.append(memory.status.fault)
    assert happened == [["alarm"], *[[]] * 5]
    assert names == [*["outer race"] * 5, "inner race"]
    assert "BPFI" in memory.status.reasons[0]


def test_bursts_of_less_than_three_turns_add_up_until_lines_can_be_read():
    memory = Point(WatchRequest(baseline=8))
    for number in range(24):
        [snapshot] = measured({"1": simulated(number, 2.0, seconds=0.1)}, 10.0 * number)
        assert snapshot.measured.turns < 3
        assert "outer_race" not in snapshot.values
        memory.take(snapshot)
        memory.state = kept(memory.state)
    assert (memory.status.status, memory.status.fault) == ("alarm", "outer race")
