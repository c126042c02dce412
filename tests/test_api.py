"""`bearcat.adapt` and `bearcat.diagnose`: one call each, and what they return can be read and used on."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bearcat
from bearcat.data import open_dataset
from bearcat.deploy.model import load_model
from bearcat.errors import InputError


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
    found = bearcat.adapt(source, target, out=root / "out", epochs=4, window=1024, device="cpu")
    return root, found


def test_adapting_two_folders_returns_what_was_found(adapted, capsys):
    root, found = adapted
    assert capsys.readouterr().out == ""
    assert found.record.settings.sources == ("pump-A",)
    assert {row["recording"] for row in found.recordings} == {"pump-B/healthy.npz", "pump-B/inner-1.npz"}
    text = repr(found)
    assert text.splitlines()[0] == "pump-A → pump-B by match-clusters"
    for row in found.recordings:
        assert f"{row['recording']}" in text
        assert 0 < row["confidence"] <= 1
    assert found.verdict in text
    frame = found.to_frame()
    assert list(frame["recording"]) == [row["recording"] for row in found.recordings]
    assert json.loads((root / "out" / "record.json").read_text())["recordings"] == list(found.record.recordings)


def test_the_page_and_the_terminal_begin_with_the_targets_recordings(adapted, capsys):
    from bearcat.cli.train import adapt

    root, _ = adapted
    page = (root / "out" / "report.html").read_text(encoding="utf-8")
    assert page.index("<h2>Decision and recordings") < page.index("<h2>For researchers")
    assert page.index("pump-B/inner-1.npz") < page.index("<h2>For researchers")
    adapt(
        str(root), source=["pump-A"], target="pump-B", settings=["folders=known/pump-A,new/pump-B"], epochs=4,
        window=1024, device="cpu", out=root / "out",
    )  # fmt: skip
    assert "pump-B/inner-1.npz" in capsys.readouterr().out


def test_adapting_needs_neither_pictures_nor_page(adapted, monkeypatch, tmp_path):
    """The extra `report` may be missing."""
    monkeypatch.setattr("bearcat.runs.record.find_spec", lambda _: None)
    root, _ = adapted
    places = root / "known" / "pump-A", root / "new" / "pump-B"
    found = bearcat.adapt(*places, out=tmp_path / "out", epochs=1, window=1024, device="cpu")
    assert {path.name for path in found.folder.iterdir()} >= {"record.json", "model"}
    assert not (found.folder / "report.html").exists()


def test_a_model_diagnoses_files_folders_and_arrays_as_it_did_the_target(adapted):
    root, found = adapted
    expected = {row["recording"].rpartition("/")[2]: row for row in found.recordings}
    for model in (found, root / "out" / "model"):
        again = bearcat.diagnose(root / "new" / "pump-B", model=model)
        assert len(again) == 2
        for row in again:
            before = expected[row["recording"].rpartition("/")[2]]
            assert (row["class"], row["windows"]) == (before["class"], before["windows"])
            assert row["confidence"] == pytest.approx(before["confidence"], abs=1e-5)
            assert row["familiar"] == before["familiar"]
    samples = np.load(root / "new" / "pump-B" / "inner-1.npz")["x"]
    (row,) = bearcat.diagnose(samples, model=found, rate=16_000.0)
    assert row["class"] == expected["inner-1.npz"]["class"]
    assert "inner-1" in repr(bearcat.diagnose([root / "new" / "pump-B" / "inner-1.npz"], model=found))


def test_without_a_model_physics_answers(adapted):
    root, found = adapted
    for model in (None, adapted):
        with pytest.raises(InputError, match="rpm must be a positive number, not 0"):
            bearcat.diagnose(np.ones(4096), model=model, rate=16_000, rpm=0, bearing="6205")
    with pytest.raises(InputError, match="leave model or orders out"):
        bearcat.diagnose("x.wav", model=found, orders={"BPFO": 3.0, "BPFI": 5.0})
    answers = bearcat.diagnose(root / "new" / "pump-B", rpm=900, bearing="6203")
    assert len(answers) == 2
    assert len(answers.to_frame()) == 2


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


def test_physics_that_contradicts_the_diagnosis_is_named_everywhere(plant, capsys):
    found = bearcat.adapt(
        plant / "pump-A-1500rpm", plant / "pump-B-1500rpm", out=plant / "out", epochs=20, window=1024, device="cpu",
        bearing=BEARING,
    )  # fmt: skip
    rows = {row["recording"].rpartition("/")[2]: row for row in found.recordings}
    assert (rows["inner-1.npz"]["class"], rows["inner-1.npz"]["physics"]) == ("outer", "inner race")
    assert rows["inner-1.npz"]["line"].startswith("BPFO") or "× BPFO" in rows["inner-1.npz"]["line"]
    opinion = found.record.decision.second_opinion
    assert "BPFI" in opinion["sentence"] + opinion["contradicted"][1]["reason"]
    assert "such as" in opinion["sentence"]
    card = (found.model / "README.md").read_text(encoding="utf-8")
    for text in (repr(found), card, (found.folder / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")):
        assert "orders contradict the model on 2 of 2" in text
        assert "Do not use this model: the bearing's orders name other faults" in text
    assert found.record.decision.action == "do not use"
    assert "Do not use" in load_model(found.model).refusal
    (answer,) = bearcat.diagnose(plant / "pump-B-1500rpm" / "inner-1.npz", model=found)
    assert (answer["class"], answer["physics"]) == ("outer", "inner race")


def test_a_target_that_may_be_all_healthy_is_named_everywhere(plant, capsys):
    found = bearcat.adapt(
        plant / "pump-A-1500rpm", plant / "pump-C-1500rpm", out=plant / "healthy", epochs=20, window=1024, device="cpu",
        bearing=BEARING, reference="healthy.npz", progress=True,
    )  # fmt: skip
    printed = capsys.readouterr().out
    page, card = ((found.folder / name).read_text(encoding="utf-8") for name in ("report.html", "model/README.md"))
    for text in (printed, page, card, json.dumps(json.loads((found.model / "model.json").read_text())["cautions"])):
        assert "may be all healthy" in text
    assert found.record.settings.values["mix"]["reference"] == "healthy.npz"
    assert found.saved.decision.sentence == found.verdict
