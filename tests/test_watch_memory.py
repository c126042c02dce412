"""What a point remembers: evidence for a change, what is usual, and statuses that fail safe."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bearcat.data.datasets.simulate import Simulated
from bearcat.data.stream import Stream
from bearcat.data.vibration import CONDITIONS, Defect, MachinePhysics, simulate
from bearcat.deploy.diagnose import Given
from bearcat.deploy.find import FoundMeasurement, FoundPoint, FoundRecording
from bearcat.findings import Finding
from bearcat.watch.alarm import assess
from bearcat.watch.memory import PointState, acknowledge, observe, relearn
from bearcat.watch.snapshot import Snapshot, measure
from bearcat.watch.usual import PERSISTENCE, OperatingState, Tail, WatchRule, add_evidence, bet, row_of, threshold
from tests.reference import watching as reference

DAY, YEAR = 86400.0, 365.25 * 86400.0
SHARED = Path(__file__).parents[2] / "shared" / "data"
RULE = WatchRule(baseline=12)
RATE = 16_000.0


def values(random, spread=0.3, **changes):
    """Measurements of a healthy recording, scattered; changes in dB by name."""
    levels = {f"band_{number}": 0.1 * number for number in range(1, 9)}
    levels |= {"rms": 0.5, "kurtosis": 3.0, "envelope_kurtosis": 2.2}
    found = {}
    for name, value in levels.items():
        factor = 10 if "kurtosis" in name else 20
        whole = 0.0 if "kurtosis" in name else changes.get("all", 0.0)
        found[name] = value * 10 ** ((spread * random.standard_normal() + changes.get(name, whole)) / factor)
    faults = ("inner_race", "outer_race", "ball")
    lines = {name: 5.0 + random.standard_normal() + changes.get(name, 0.0) for name in faults}
    return found | lines | {"reference": 5.0}


def snapshot(
    random, day, machine="pump", point="1", rpm=1500.0, rate=RATE, unit=None, no_signal=None, quality=(), **changes
):  # fmt: skip
    own = values(random, **changes)
    more = {"turns": 100.0, "no_signal": no_signal, "quality": quality}
    return Snapshot(machine, point, DAY * day, "x.wav", rate, unit, own, None, rpm, **more)


class Point:
    """A point's state over time, with one rule: what `observe` and `assess` give takes its place."""

    def __init__(self, machine, point, rule):
        self.state, self.rule, self.seen = PointState.new(machine, point, rule), rule, None

    def __getattr__(self, name):
        return getattr(self.state, name)

    def observe(self, snapshot):
        self.seen = observe(self.state, snapshot, self.rule)
        self.state = self.seen.state

    def assess(self, beside=(), sisters=()):
        beside, sisters = ([other.state for other in others] for others in (beside, sisters))
        self.state, said = assess(self.seen, self.rule, beside, sisters)
        return said

    def acknowledge(self, time):
        self.state, _ = acknowledge(self.state, time)

    def relearn(self, time):
        self.state, _ = relearn(self.state, time, self.rule)


def run(memory, random, days, beside=(), **changes):
    """Assessments of healthy or changed recordings on these days."""
    found = []
    for day in days:
        memory.observe(snapshot(random, day, memory.machine, memory.point, **changes))
        found.append(memory.assess(beside))
    return found


def events(assessed, *kinds):
    kinds = kinds or ("alarm", "grown", "over", "sensor")
    return [event.kind for each in assessed for event in each.events if event.kind in kinds]


def learnt(seed=0, rule=RULE, machine="pump", point="1"):
    memory, random = Point(machine, point, rule), np.random.default_rng(seed)
    run(memory, random, range(rule.baseline))
    return memory, random


# Evidence.


@pytest.mark.parametrize("p", [1.0, 0.999_99, 0.7, 0.2, 0.01, 1e-4])
def test_a_bet_is_the_integral_that_it_claims_to_be(p):
    assert bet(p) == pytest.approx(reference.bet(p), rel=1e-5)


def test_a_bet_is_worth_one_on_average_where_nothing_changed():
    p = (np.arange(200_000) + 0.5) / 200_000
    assert np.mean([bet(float(each)) for each in p]) == pytest.approx(1.0, abs=0.1)  # the mean has a long tail at 0
    assert np.mean([bet(float(each)) for each in p]) < 1.0


def test_p_values_within_the_baseline_count_its_recordings_and_fall_beyond_it():
    scores = np.random.default_rng(1).standard_normal(40).tolist()
    tail = Tail.of(scores)
    for each in sorted(scores)[:30]:
        assert tail.p_value(each) == pytest.approx(reference.p_value(each, scores))
    beyond = [tail.p_value(tail.begin + step) for step in np.linspace(0.01, 20, 50)]
    assert all(second < first for first, second in itertools.pairwise(beyond))


def test_evidence_is_a_cusum_of_bets():
    random = np.random.default_rng(2)
    p_values, evidence = random.uniform(0.05, 1, size=60).tolist(), 0.0
    for number, p in enumerate(p_values, start=1):
        evidence = add_evidence(evidence, p, limit=1e6)
        assert evidence == pytest.approx(reference.cusum([math.log(bet(each)) for each in p_values[:number]]))


def test_no_alarm_comes_from_less_than_three_recordings_however_loud():
    limit, evidence = threshold(3600.0, 1.0), 0.0
    for number in range(1, PERSISTENCE + 1):
        evidence = add_evidence(evidence, 1e-300, limit)
        assert (evidence >= limit) == (number == PERSISTENCE)


@pytest.mark.parametrize("draw", ["normal", "exponential", "heavy"])
def test_the_stated_rate_of_false_alarms_holds(draw):
    """A false alarm a month is stated, so that 240 point-months can tell."""
    random = np.random.default_rng(3)
    make = {
        "normal": random.standard_normal,
        "exponential": random.standard_exponential,
        "heavy": lambda n: random.standard_t(4, n),
    }[draw]
    rate, alarms, months = 12.0, 0, 240
    limit = threshold(DAY / 8, rate)
    for _ in range(months // 4):
        scores = make(30 + 4 * 30 * 8)
        tail, evidence = Tail.of(scores[:30].tolist()), 0.0
        for each in scores[30:]:
            evidence = add_evidence(evidence, tail.p_value(float(each)), limit)
            if evidence >= limit:
                alarms, evidence = alarms + 1, 0.0
    assert alarms / months < 1


# What is usual.


def test_a_bearing_that_runs_in_is_learnt_once_it_has_settled():
    random, state = np.random.default_rng(5), OperatingState(1500.0)
    for day in range(40):
        if not state.learnt:
            state = state.learn(row_of(values(random, all=12.0 * math.exp(-day / 6))), DAY * day, RULE)
    assert state.learnt
    assert 0 < state.passed < 30
    assert np.nanmax(np.abs(state.change(row_of(values(random)))[1:9])) < 3


# Statuses.


LOUD, FAULT = {"band_4": 6.0, "envelope_kurtosis": 4.0}, {"outer_race": 14.0, "envelope_kurtosis": 5.0}
GONE = {"no_signal": "the sensor gives no signal"}
# What happens from one day to another, the events of that, the status then, and a word of its reasons.
SCENARIOS = {
    "a change is alarmed once, acknowledged, and alarmed again when it grows": [
        (12, 60, {}, [], "ok", ""),
        (60, 70, LOUD, ["alarm"], "alarm", "since"),
        (70, 80, LOUD, [], "check", "acknowledged"),  # it is still there: never ok
        (80, 90, {"band_4": 14.0, "envelope_kurtosis": 9.0}, ["grown"], "alarm", "since"),
    ],
    "an alarm whose cause has gone waits to be acknowledged": [
        (12, 20, {"band_3": 8.0}, ["alarm"], "alarm", "since"), (20, 60, {}, ["over"], "check", "acknowledge it"),
    ],
    "another sensor is to be checked": [(20, 32, {"all": 5.0}, ["sensor"], "check", "baseline")],
    "a fault after another sensor is an alarm all the same": [
        (20, 30, {"all": 5.0}, ["sensor"], "check", "sensor"),
        (30, 45, {"all": 5.0, "kurtosis": 5.0, "outer_race": 12.0}, ["alarm"], "alarm", "since"),
    ],
    "a fault that comes with a new speed is found by its lines and not learnt": [
        (12, 16, {"rpm": 900.0, "all": -8.0, **FAULT}, ["alarm"], "alarm", "since"),
    ],
    "a speed that is no longer stated makes no new baseline": [
        (12, 16, {"rpm": None, "all": 15.0}, ["alarm"], "alarm", "since"),
    ],
    "an open alarm is neither closed nor learnt by another speed": [
        (12, 20, {"band_4": 12.0}, ["alarm"], "alarm", "since"),
        (20, 60, {"rpm": 1200.0, "band_4": 12.0}, [], "alarm", "changed"),
    ],
    "one outlier is no growth, and another cause is": [
        (12, 20, {"band_4": 8.0}, ["alarm"], "alarm", "since"),
        (20, 21, {"band_4": 40.0}, [], "alarm", "since"),
        (22, 30, {"band_4": 8.0, "band_1": 16.0, "kurtosis": 8.0}, ["grown"], "alarm", "since"),
    ],
    "levels that fall are said": [(12, 18, {"all": -25.0}, [], "check", "below")],
    "another sampling rate is said and learnt anew": [(13, 14, {"rate": 2 * RATE}, [], "learning", "rate")],
    "another unit is said": [(18, 19, {"unit": "g"}, [], "ok", ""), (19, 20, {"unit": "m/s²"}, [], "learning", "unit")],
    "no signal does not hide an open alarm, and nothing is learnt from it": [
        (12, 20, {"band_3": 8.0}, ["alarm"], "alarm", "since"),
        (20, 21, {"band_3": 8.0, **GONE}, [], "no signal", "alarm"), (21, 22, {"band_3": 8.0}, [], "alarm", "since"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_what_happens_to_a_point(steps):
    memory, random = learnt()
    for first, last, changes, happened, status, word in steps:
        if word == "acknowledged":
            memory.acknowledge(DAY * (first - 0.5))
            assert (memory.status.status, memory.status.alarm) == ("check", None)
        assert events(run(memory, random, range(first, last), **changes)) == happened
        assert memory.status.status == status
        assert word in " ".join(memory.status.reasons)
        assert (memory.status.alarm is not None) == (memory.open_alarm is not None)
    assert sum(state.learnt for state in memory.states) == 1


def test_a_new_baseline_and_an_acknowledgement_end_it():
    memory, random = learnt()
    run(memory, random, range(20, 32), all=5.0)
    memory.relearn(DAY * 32)
    assert memory.status.status == "learning"
    run(memory, random, range(32, 60), all=5.0)
    assert memory.status.status == "ok"
    run(memory, random, range(60, 70), all=5.0, band_3=13.0)
    assert DAY * 58 <= memory.status.since <= DAY * 61
    run(memory, random, range(70, 110), all=5.0)
    memory.acknowledge(DAY * 110)
    run(memory, random, range(111, 113), all=5.0)
    assert memory.status.status == "ok"


def test_what_all_points_of_a_machine_show_is_load_and_no_alarm():
    made = [learnt(seed, point=str(seed)) for seed in range(4)]
    memories = [memory for memory, _ in made]
    for day in range(12, 30):
        for memory, random in made:
            memory.observe(snapshot(random, day, point=memory.point, all=7.0))
        for memory in memories:
            memory.assess([other for other in memories if other is not memory])
    assert not any(memory.alarm for memory in memories)
    assert {memory.status.status for memory in memories} == {"check"}  # but it is said
    assert "other points" in memories[0].status.reasons[0]


def test_a_change_beside_a_neighbour_in_alarm_is_cross_talk_and_does_not_add_up():
    (first, random), (second, other) = learnt(1, point="1"), learnt(2, point="2")
    for day in range(12, 40):
        first.observe(snapshot(random, day, point="1", band_5=15.0, envelope_kurtosis=6.0))
        second.observe(snapshot(other, day, point="2", band_5=5.0 if day > 15 else 0.0))
        first.assess([second])
        second.assess([first])
    assert first.status.status == "alarm"
    assert second.status.status == "check"
    assert "cross-talk from 1" in second.status.reasons[0]
    first.relearn(DAY * 40)  # repaired, and the neighbour is quiet again
    second.observe(snapshot(other, 41, point="2"))
    second.assess([first])
    assert second.alarm is None
    assert second.status.status == "ok"


def test_operating_states_have_baselines_of_their_own():
    memory, random = Point("pump", "1", RULE), np.random.default_rng(7)
    found = []
    for day in range(80):
        fast = day % 2 == 1
        memory.observe(snapshot(random, day, rpm=1500.0 if fast else 900.0, all=10.0 if fast else 0.0))
        found.append(memory.assess())
    assert not events(found)
    assert [state.label for state in memory.states] == ["900 rpm", "1500 rpm"]
    assert memory.status.status == "ok"
    for day in range(80, 90):
        memory.observe(snapshot(random, day, rpm=900.0, all=10.0))  # loud for this speed
        found.append(memory.assess())
    assert events(found) in (["alarm"], ["sensor"])


def test_doubts_about_a_recording_are_to_be_checked_unless_they_were_always_there():
    always, new = Finding("clipped", "check", {"share": 0.0002}), Finding("dropouts", "check", {"share": 0.01})
    memory, random = Point("pump", "1", RULE), np.random.default_rng(9)
    learning = run(memory, random, range(RULE.baseline), quality=(always,))
    assert {each.status.status for each in learning[:-1]} == {"check"}
    [usual] = run(memory, random, [20], quality=(replace(always, values={"share": 0.0005}),))
    assert usual.status.status == "ok"
    [odd] = run(memory, random, [21], quality=(new,))
    assert odd.status.status == "check"


def test_a_memory_that_is_kept_and_read_again_after_every_recording_says_the_same():
    whole, random = Point("pump", "1", RULE), np.random.default_rng(10)
    parts, again = Point("pump", "1", RULE), np.random.default_rng(10)
    for day in range(40):
        changes = {"band_4": 6.0} if day > 25 else {}
        [first] = run(whole, random, [day], **changes)
        [second] = run(parts, again, [day], **changes)
        assert first.status == second.status
        assert first.evidence == second.evidence
        content = parts.to_bytes()
        parts.state = PointState.from_bytes(content)
        assert parts.to_bytes() == content
    assert whole.to_bytes() == parts.to_bytes()
    for damaged in (b"", content[:50], content[:-10], b"\xff" * 100, content.replace(b"evidence", b"evidencf")):
        with pytest.raises(ValueError, match="."):
            PointState.from_bytes(damaged)
    for place in range(0, len(content), len(content) // 200):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        with pytest.raises(ValueError, match="."):
            PointState.from_bytes(bytes(changed))


# Signals.


def recorded(signals, rpm=1500.0, rate=RATE, bearing=None):
    """A measurement of several points."""
    points = []
    for name, signal in signals.items():
        found = FoundRecording(
            lambda signal=signal, name=name: Stream(f"x#{name}", rate, iter([signal.astype(np.float32)])), f"x#{name}", rpm,
            bearing or Simulated().bearing, "pump", name,
        )  # fmt: skip
        points.append(FoundPoint(found.name, (found,)))
    return FoundMeasurement("x", tuple(points))


def simulated(day, length=0.0, part="outer", seconds=1.0, seed=0):
    defects = (Defect(part, length),) if length else ()
    return simulate(MachinePhysics(), CONDITIONS["N15_M07_F10"], defects, RATE, seconds, seed, f"watch/{day}")


def test_simulated_spalls_grow_until_they_are_alarmed_and_named_and_the_neighbour_is_cross_talk():
    memories = {name: Point("pump", name, WatchRule(baseline=8)) for name in ("1", "2")}
    said = []
    for day in range(26):
        struck, quiet = simulated(day, 0.0 if day < 12 else 0.1 * 1.3 ** (day - 12)), simulated(1000 + day, seed=1)
        for each in measure(
            recorded({"1": struck, "2": quiet + 0.2 * struck}), Given(trust_speed=True), DAY * day, "pump"
        ):
            memories[each.point].observe(each)
        for name, memory in memories.items():
            other = memories["2" if name == "1" else "1"]
            said.append((day, name, memory.assess([other])))
    alarmed = [day for day, name, each in said for event in each.events if event.kind == "alarm" and name == "1"]
    assert alarmed
    assert 12 <= alarmed[0] <= 22
    assert memories["1"].status.status == "alarm"
    assert memories["1"].status.fault == "outer race"
    assert not [event for _, name, each in said for event in each.events if event.kind == "alarm" and name == "2"]
    assert memories["2"].status.status == "check"
    assert "cross-talk" in memories["2"].status.reasons[0]


def test_bursts_of_less_than_three_turns_add_up_until_lines_can_be_read():
    """One burst says nothing of lines; pooled, they show the fault."""
    memory = Point("pump", "1", WatchRule(baseline=8))
    for number in range(120):
        signal = simulated(number, 2.0, seconds=0.1)
        [each] = measure(recorded({"1": signal}), Given(trust_speed=True), 10.0 * number, "pump")
        assert each.turns < 3
        assert "outer_race" not in each.values
        memory.observe(each)
        memory.assess()
    assert memory.status.status in (
        "check",
        "alarm",
    )  # a fault that was there from the first recording on is no baseline
    assert any("outer race" in reason for reason in memory.status.reasons)


# What a second reader found: ways in which a bad machine was called ok.


@pytest.mark.parametrize(("interval", "rule"), [(1800.0, WatchRule(period=7 * DAY)), (DAY, WatchRule(baseline=150))])
def test_long_baselines_come_to_an_end(interval, rule):
    memory, random = Point("pump", "1", rule), np.random.default_rng(11)
    for number in range(400):
        memory.observe(replace(snapshot(random, 0), time=interval * number))
    assert memory.state.state.learnt
    assert len(memory.state.state.rows) <= 200


def test_points_in_alarm_do_not_explain_what_another_shows():
    made = [learnt(seed, point=str(seed)) for seed in range(4)]
    memories = [memory for memory, _ in made]
    for day in range(12, 60):
        for number, (memory, random) in enumerate(made):
            loud = {"band_3": 15.0, "band_4": 15.0} if day > 15 + 10 * number else {}
            memory.observe(snapshot(random, day, point=memory.point, **loud))
        for memory in memories:
            memory.assess([other for other in memories if other is not memory])
    assert all(memory.status.status in ("alarm", "check") for memory in memories)
    assert memories[0].status.status == "alarm"


def test_growth_while_the_baseline_is_learnt_is_a_question_until_it_is_acknowledged():
    memory, random = Point("pump", "1", RULE), np.random.default_rng(13)
    for day in range(60):
        memory.observe(snapshot(random, day, all=0.4 * day))
        memory.assess()
    assert memory.status.status in ("check", "alarm")


def test_a_speed_that_is_never_the_same_is_no_quiet_learning_for_ever():
    memory, random = Point("pump", "1", RULE), np.random.default_rng(14)
    for day in range(80):
        memory.observe(snapshot(random, day, rpm=float(random.uniform(400, 3000))))
        memory.assess()
    assert memory.status.status == "check"


def test_what_sister_machines_show_too_is_weather_and_no_alarm_of_one():
    made = [learnt(seed, machine=f"fan {seed}") for seed in range(4)]
    memories = [memory for memory, _ in made]
    for day in range(12, 40):
        for memory, random in made:
            memory.observe(snapshot(random, day, machine=memory.machine, all=4.5))
        for memory in memories:
            memory.assess(sisters=[other for other in memories if other is not memory])
    assert not any(memory.alarm for memory in memories)
    alone, random = learnt(9)
    assert events(run(alone, random, range(12, 40), all=4.5))  # without them it would have been said
