"""The record of a run: what is written is read back, and what is damaged or foreign is refused in one sentence."""

from __future__ import annotations

import json

import pytest

from bearcat.record import Record
from bearcat.report import Cell
from tests.made_records import made_diagnosis, made_result, sealed

CELL = Cell("rig", "time", "a→b", "CAT*-Temperature", 3)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_record_is_read_as_it_was_written(tmp_path, labelled):
    made = made_result(tmp_path / "run", CELL, labelled=labelled, recordings=[made_diagnosis("x").to_dict()])
    read = Record.read(tmp_path / "run")
    assert read.to_dict() == made.record.to_dict()
    assert read.recordings[0].decision == made_diagnosis("x").decision
    assert (read.scores.target is None) == (not labelled)
    assert read.seed == 3
    written = json.loads((tmp_path / "run" / "record.json").read_text())
    assert written["estimates"]["expected"]["value"] == read.decision.expected
    assert Record.from_dict(written).to_dict() == read.to_dict()


@pytest.mark.parametrize(
    ("entry", "value"),
    [("seed", "three"), ("failed", 1), ("scores", {"source": None}), ("estimates", []), ("data", {"classes": "ab"}),
     ("settings", {"recipe": {}}), ("warnings", None), ("calibration", {"temperature": True, "at_bound": True})],
)  # fmt: skip
def test_a_foreign_record_is_refused_though_its_checksum_fits(tmp_path, entry, value):
    made_result(tmp_path / "run", CELL)
    sealed(tmp_path / "run", {entry: value})
    with pytest.raises(ValueError, match="cannot be read as the record of a run") as error:
        Record.read(tmp_path / "run")
    assert "record.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_record_that_was_cut_or_changed_is_damaged_and_one_that_is_missing_missing(tmp_path):
    made_result(tmp_path / "run", CELL)
    path = tmp_path / "run" / "record.json"
    text = path.read_text()
    for damaged in (text[:500], text.replace('"seed": 3', '"seed": 4'), "[]", "{}"):
        path.write_text(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            Record.read(tmp_path / "run")
    path.write_text(text)
    (tmp_path / "run" / "curves.csv").unlink()
    with pytest.raises(ValueError, match=r"curves\.csv: is damaged or missing"):
        Record.read(tmp_path / "run")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        Record.read(tmp_path / "run")
