"""One diagnosis from all witnesses: the fused probabilities, baselines, and what must never be called healthy."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import wavfile

import bearcat
from bearcat.data.bearing import BEARINGS
from bearcat.deploy.opened import open_model
from bearcat.diagnosis.fusion import FEATURES, FOLDER, GeneralEvidence, Witnesses, fuse, general_evidence, names_of
from bearcat.diagnosis.judging import beside_healthy, decide_together, physics_check
from bearcat.diagnosis.physics import KNOWN, STATES, Baseline, known_baseline, quiet_baselines, shipped
from bearcat.diagnosis.recording import Observation
from bearcat.settings import to_plain
from tests.golden.recordings import RATE, RPM, draw
from tests.pooled import decided, lines_of, model_of
from tests.reference import fusion as reference
from tests.test_decision import levels

quick = settings(max_examples=60, deadline=None)
BEARING = BEARINGS["6205"]
physics_of = partial(lines_of, usual=4.0, reference=4.0, kurtosis=2.1, sidebands=None)
shares = st.lists(st.floats(1e-6, 1), min_size=4, max_size=4).map(lambda found: [each / sum(found) for each in found])


def named(numbers: list[float]) -> dict[str, float]:
    return dict(zip(STATES, numbers, strict=True))


@st.composite
def witnesses(draw) -> Witnesses:
    lines = st.builds(lines_of, levels, reference=st.floats(0, 15), kurtosis=st.floats(1, 50))
    physics, usual = draw(st.none() | lines), draw(st.none() | lines)
    general = GeneralEvidence(named(draw(shares))) if physics and draw(st.booleans()) else None
    shift, network = draw(st.sampled_from(("condition", "machine"))), None
    if physics is None or draw(st.booleans()):
        network = model_of(named(draw(shares)), shift=shift)
    baseline = Baseline.of([usual], KNOWN).compare(physics) if physics is not None and usual is not None else None
    return Witnesses(physics, general, network, baseline)


@quick
@given(witnesses())
def test_fusion_agrees_with_its_slow_twin(found):
    plain = json.loads(json.dumps({name: to_plain(getattr(found, name)) for name in ("general", "baseline")}))
    network = found.network and {"shares": found.network.states, "shift": found.network.shift}
    weights = shipped()["+".join(found.present)]
    physics = found.physics and found.physics.to_dict()
    expected = reference.fused(weights, physics, plain["general"], network, plain["baseline"])
    assert fuse(found, prior=0.5) == pytest.approx(expected, abs=1e-9)


def test_every_set_of_witnesses_has_coefficients_and_evidence_never_counts_against_itself():
    tables = [shipped(), shipped("cwru"), shipped("hit-sm"), shipped("across-machines")]
    for table in tables:
        for present in ("physics", "physics+general", "network", "physics+network", "physics+general+network"):
            for name in (present, f"{present}+baseline") if "physics" in present else (present,):
                lines, others = names_of([each for each in FEATURES if each in name.split("+")])
                key = "+".join(each for each in FEATURES if each in name.split("+"))
                assert set(table[key]) == {*lines, *others}
                assert all(value >= 0 for feature, value in table[key].items() if feature != "one")
    assert len({json.dumps(table, sort_keys=True) for table in tables}) == 4, "a bench left out changes them"


def test_a_line_that_was_always_there_is_no_alarm_and_a_new_one_is():
    lines = physics_of({"outer race": 14.0})
    usual = [physics_of({"outer race": 13.0})] * 5
    fresh = [physics_of({"outer race": 3.0})] * 5
    always = decided("a", Witnesses(lines, baseline=known_baseline(usual, lines)))
    new = decided("a", Witnesses(lines, baseline=known_baseline(fresh, lines)))
    assert always.decision.action != "alarm"
    assert (new.decision.action, new.state) == ("alarm", "outer race")
    assert new.severity == "clear, growing"
    assert "lines of baseline" not in {finding.kind for finding in new.findings}


def test_known_good_recordings_speak_for_all_of_their_point_and_it_is_said_what_they_changed():
    lines = Witnesses(physics_of({"outer race": 15.0}), network=model_of({"healthy": 0.9, "outer": 0.1}))
    found = [Observation(name, lines, "pump", "DE") for name in ("good", "a", "b")] + [Observation("c", lines, "other")]
    beside = beside_healthy(found, {"good"})
    assert len(physics_check(found).missed) == 4
    assert physics_check(beside).missed == ("c",)
    for each in decide_together(beside)[:3]:
        assert each.decision.action != "alarm"
        (said,) = (finding for finding in each.findings if finding.kind == "lines of baseline")
        assert said.values["levels"] == {"outer race": pytest.approx(15)}
        assert said.values["without"] == "outer race"


def test_a_quiet_majority_is_a_baseline_and_a_faulty_one_is_not():
    calm, loud = physics_of({}), physics_of({"outer race": 15.0})
    found = quiet_baselines([calm] * 5 + [loud], [True] * 5 + [False], ["pump"] * 6)
    assert found[5].change["outer race"] == pytest.approx(11)
    assert quiet_baselines([loud] * 5 + [calm], [False] * 5 + [True], ["pump"] * 6) == [None] * 6
    assert quiet_baselines([calm] * 6, [True] * 6, list("abcdef")) == [None] * 6
    other = replace(calm, rpm=2 * calm.rpm)
    assert quiet_baselines([calm] * 3 + [other], [True] * 4, ["pump"] * 4) == [None] * 4


@quick
@given(witnesses())
def test_witnesses_who_disagree_are_never_healthy(found):
    diagnosis = decided("a", found)
    if found.network is None or found.physics is None:
        return
    signal, model = fuse(replace(found, network=None)), found.network.states
    for heard in (signal, model):
        if max(heard.values()) >= 0.6 and max(heard, key=heard.get) != "healthy":
            assert diagnosis.state != "healthy"
            assert diagnosis.decision.action != "ok"


def test_the_general_model_in_numpy_is_the_one_in_torch():
    signal = draw("outer", 3, seconds=3.5)
    found = general_evidence(signal, RATE, RPM, BEARING)
    model = open_model(FOLDER)
    windows = np.lib.stride_tricks.sliding_window_view(signal, 8192)[::4096][:, None]
    log = model.outputs(windows, RPM, BEARING).log_probabilities.astype(np.float64)
    pooled = np.exp(log.mean(axis=0) / model.pooled_temperature)
    expected = dict(zip(model.classes, (pooled / pooled.sum()).tolist(), strict=True))
    assert found.probabilities == pytest.approx(expected, abs=2e-4)


def diagnosed(folder, channels: str, *signals: np.ndarray) -> bearcat.Diagnoses:
    """Of one file with these channels, each as loud as it is."""
    wavfile.write(folder / "two.wav", RATE, np.stack(signals, axis=1))
    return bearcat.diagnose([folder / "two.wav"], rpm=RPM, bearing="6205", channels=channels)


def test_a_fault_on_any_axis_is_an_alarm_a_dead_axis_is_said_and_a_louder_neighbour_hides_nothing(tmp_path):
    healthy, outer = draw("healthy", 3), draw("outer", 3)
    for axes in ((healthy, outer), (outer, healthy)):
        (found,) = diagnosed(tmp_path, "together", *axes)
        assert (found.decision.action, found.state) == ("alarm", "outer race")
    (found,) = diagnosed(tmp_path, "together", healthy, 0 * healthy)
    assert found.decision.action == "check"
    assert "dead axis" in {finding.kind for finding in found.findings}
    both = diagnosed(tmp_path, "apart", outer, 0.2 * draw("outer", 5))
    assert both.exit_status == 1
    assert all(each.state != "healthy" and each.decision.action != "ok" for each in both)


def test_a_stopped_machine_is_far_below_its_healthy_recordings_not_below_loud_faults():
    def made(name, lines, rms):
        return Observation(name, Witnesses(physics_of(lines)), "pump", rms=rms, machine_stated=True)

    usual, quiet = [made(f"{number}", {}, 1.0) for number in range(4)], made("quiet", {}, 0.01)
    *_, stopped = decide_together([*usual, quiet])
    assert (stopped.state, stopped.decision.action) == ("no signal", "check")
    faults = [made(f"{number}", {"outer race": 25.0}, 1.0) for number in range(4)]
    *_, healthy = decide_together([*faults, quiet])
    assert healthy.state == "healthy"
    *_, faulty = decide_together([*usual, made("faulty", {"outer race": 25.0}, 0.001)])
    assert (faulty.state, faulty.decision.action) == ("outer race", "alarm")
    *_, other = decide_together([replace(each, machine_stated=False) for each in (*usual, quiet)])
    assert other.state == "healthy"  # of one folder, which says nothing of the machine
