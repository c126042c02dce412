"""`bearcat.adapt` and `bearcat.diagnose`: one call each, and what they return can be read and used on."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bearcat
from bearcat.adaptation.adapt import Adaptation
from bearcat.data import open_dataset
from bearcat.deploy.model import load_model
from bearcat.diagnosis.decision import PhysicsCheck
from bearcat.errors import InputError
from tests.test_adapt import page_of


def adapt(*places: Path, **words: Any) -> Adaptation:
    """Adapts for few epochs; every class of the source is known from one recording, of which a Python warning warns."""
    with pytest.warns(UserWarning, match="single recording"):
        return bearcat.adapt(*places, **{"window": 1024, "device": "cpu"} | words)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Two pumps in folders that lie apart, and what adapting between them returned."""
    root = tmp_path_factory.mktemp("plant")
    catalogue = open_dataset("simulated", None, {"severities": "4", "faults": "inner", "seconds": "2"}).catalogue()
    for entry in catalogue.only(["0", "1"]).entries:
        known = entry.domain == catalogue.domains[0]
        place = root / "known" / "pump-A" / str(entry.label) if known else root / "new" / "pump-B"
        place.mkdir(parents=True, exist_ok=True)
        np.savez(place / f"{entry.label}.npz", x=entry.read().signal, fs=16_000.0)
    (root / "known" / "notes.csv").write_text("nothing to do with it\n")
    source, target = root / "known" / "pump-A", root / "new" / "pump-B"
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        found = adapt(source, target, out=root / "out", epochs=4)
    return root, found, (output.getvalue(), errors.getvalue())


def test_adapting_two_folders_returns_what_was_found_and_prints_nothing(adapted):
    root, found, printed = adapted
    assert printed == ("", "")
    assert found.record.settings.sources == ("pump-A",)
    assert {each.recording for each in found.recordings} == {"pump-B/healthy.npz", "pump-B/inner-1.npz"}
    text = repr(found)
    assert text.splitlines()[0] == found.recordings.summary
    assert text.count(found.decision.sentence) == 1
    for each in found.recordings:
        (line,) = [line for line in text.splitlines() if line.startswith(each.recording)]
        assert each.decision.action in line.split()
        assert each.state == "cannot tell" or f"{100 * each.confidence:.1f} %" in line
        assert 0 < each.confidence <= 1
    frame = found.recordings.to_frame()
    assert list(frame["recording"]) == [each.recording for each in found.recordings]
    assert list(frame["decision"]) == [each.decision.action for each in found.recordings]
    kept = json.loads((root / "out" / "record.json").read_text())["recordings"]
    assert kept == [each.to_dict() for each in found.recordings]


def test_folders_that_are_none_or_share_a_name_are_refused(tmp_path):
    (tmp_path / "a" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x").mkdir(parents=True)
    with pytest.raises(InputError, match="no such folder"):
        bearcat.adapt(tmp_path / "gone", tmp_path / "a")
    with pytest.raises(InputError, match="must differ"):
        bearcat.adapt(tmp_path / "a" / "x", tmp_path / "b" / "x")


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """Pump A, whose faults somebody labelled the wrong way round; pump B with a fault; pump C, which is healthy."""
    root = tmp_path_factory.mktemp("wrong")
    settings = {"severities": "4", "faults": "inner,outer", "seconds": "2"}
    catalogue = open_dataset("simulated", None, settings).catalogue()
    wrong = {"healthy": "healthy", "inner-1": "outer", "outer-1": "inner"}
    for entry in catalogue.only(["0"]).entries:
        signal, label = entry.read().signal, str(entry.label)
        places = [
            root / "pump-A-1500rpm" / wrong[label],
            root / ("pump-C-1500rpm" if label == "healthy" else "pump-B-1500rpm"),
        ]
        for number, place in enumerate(places):
            place.mkdir(parents=True, exist_ok=True)
            np.savez(place / f"{label}.npz", x=np.roll(signal, 500 * number), fs=16_000.0)
    healthy = np.load(root / "pump-C-1500rpm" / "healthy.npz")["x"]
    np.savez(root / "pump-C-1500rpm" / "later.npz", x=healthy[::-1], fs=16_000.0)
    return root


BEARING = "balls=8,ball=6.75,pitch=28.5"


def test_physics_that_contradicts_the_model_refuses_it_everywhere(plant):
    places = plant / "pump-A-1500rpm", plant / "pump-B-1500rpm"
    found = adapt(*places, out=plant / "out", epochs=20, bearing=BEARING)
    each = {each.recording.rpartition("/")[2]: each for each in found.recordings}["inner-1.npz"]
    assert (each.nearest, each.state, each.physics.state) == ("outer", "inner race", "inner race")
    assert each.decision.action == "alarm"  # a refused model does not count where lines speak
    assert "BPFI" in each.line
    assert found.record.evidence.physics == PhysicsCheck(2, 2, tuple(each.recording for each in found.recordings))
    assert found.decision.action == "do not use"
    assert found.decision.expected is None  # the estimate is what physics contradicts
    assert "outvoted" in {finding.kind for finding in found.decision.findings}
    assert all(each.decision.action != "ok" for each in found.recordings)
    card = (found.model / "README.md").read_text(encoding="utf-8")
    for text in (repr(found), card, page_of(found.folder)):
        assert found.decision.sentence in text
        assert "Recommendation: use" not in text
    assert load_model(found.model).decision == found.decision
    (answer,) = bearcat.diagnose(plant / "pump-B-1500rpm" / "inner-1.npz", model=found)
    assert (answer.nearest, answer.state) == ("outer", "inner race")
    assert answer.decision.action == each.decision.action
