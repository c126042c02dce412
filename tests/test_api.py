"""`bearcat.adapt` and `bearcat.diagnose`: one call each, and what they return can be read and used on."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

import bearcat
from bearcat.data import open_dataset
from bearcat.deploy.model import load_model
from bearcat.diagnosis.decision import PhysicsCheck
from bearcat.errors import InputError
from tests.test_adapt import page_of

BEARING = "balls=8,ball=6.75,pitch=28.5"


# Every class of the source is known from one recording.
pytestmark = pytest.mark.filterwarnings("ignore:.*single recording")
SHORT = {"window": 1024, "device": "cpu"}


def test_adapting_two_folders_returns_a_result_and_prints_nothing(tmp_path):
    catalogue = open_dataset("simulated", None, {"severities": "4", "faults": "inner", "seconds": "2"}).catalogue()
    for entry in catalogue.only(["0", "1"]).entries:
        source = entry.domain == catalogue.domains[0]
        place = tmp_path / "known" / "pump-A" / str(entry.label) if source else tmp_path / "new" / "pump-B"
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / f"{entry.label}.npz", x=entry.read().signal, fs=16_000.0)
    (tmp_path / "known" / "notes.csv").write_text("nothing to do with it\n")
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        adapted = bearcat.adapt(
            tmp_path / "known" / "pump-A", tmp_path / "new" / "pump-B", out=tmp_path / "out", epochs=4, **SHORT
        )  # fmt: skip
    assert (output.getvalue(), errors.getvalue()) == ("", "")
    assert adapted.record.settings.sources == ("pump-A",)
    recordings, text = adapted.recordings, repr(adapted)
    assert text.splitlines()[0] == recordings.summary
    assert text.count(adapted.decision.sentence) == 1
    frame = recordings.to_frame()
    assert list(frame["recording"]) == ["pump-B/healthy.npz", "pump-B/inner-1.npz"]
    assert list(frame["decision"]) == [diagnosis.decision.action for diagnosis in recordings]
    written = json.loads((tmp_path / "out" / "record.json").read_text())["recordings"]
    assert written == [diagnosis.to_dict() for diagnosis in recordings]


def test_folders_that_are_none_or_share_a_name_are_refused(tmp_path):
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x").mkdir(parents=True)
    with pytest.raises(InputError, match="no such folder"):
        bearcat.adapt(tmp_path / "gone", tmp_path / "a")
    with pytest.raises(InputError, match="must differ"):
        bearcat.adapt(tmp_path / "a" / "x", tmp_path / "b" / "x")


def test_physics_that_contradicts_the_model_refuses_it_everywhere(tmp_path):
    """The faults of pump A are labelled the wrong way round; pump B has both."""
    settings = {"severities": "4", "faults": "inner,outer", "seconds": "2"}
    wrong = {"healthy": "healthy", "inner-1": "outer", "outer-1": "inner"}
    source, target = tmp_path / "pump-A-1500rpm", tmp_path / "pump-B-1500rpm"
    for entry in open_dataset("simulated", None, settings).catalogue().only(["0"]).entries:
        places = [source / wrong[str(entry.label)], *([] if entry.label == "healthy" else [target])]
        for number, place in enumerate(places):
            place.mkdir(parents=True, exist_ok=True)
            np.savez(place / f"{entry.label}.npz", x=np.roll(entry.read().signal, 500 * number), fs=16_000.0)
    adapted = bearcat.adapt(source, target, out=tmp_path / "out", epochs=20, bearing=BEARING, **SHORT)
    (inner,) = [diagnosis for diagnosis in adapted.recordings if diagnosis.recording.endswith("inner-1.npz")]
    assert (inner.nearest, inner.state, inner.physics.state) == ("outer", "inner race", "inner race")
    assert inner.decision.action == "alarm"  # a refused model does not count where lines speak
    assert "BPFI" in inner.line
    names = tuple(diagnosis.recording for diagnosis in adapted.recordings)
    assert adapted.record.evidence.physics == PhysicsCheck(2, names)
    assert adapted.decision.action == "do not use"
    assert adapted.decision.expected is None  # the estimate is what physics contradicts
    assert "outvoted" in {finding.kind for finding in adapted.decision.findings}
    assert all(diagnosis.decision.action != "ok" for diagnosis in adapted.recordings)
    assert adapted.decision.sentence in page_of(adapted.folder)
    assert load_model(adapted.model).decision == adapted.decision
    (again,) = bearcat.diagnose(target / "inner-1.npz", model=adapted)
    assert (again.nearest, again.state, again.decision.action) == ("outer", "inner race", inner.decision.action)
