"""Test benches as domains of one dataset."""

from __future__ import annotations

from collections import Counter

import pytest

from bearcat.data import open_dataset
from bearcat.data.datasets.benches import CWRU_CLASSES, HIT_SM_CLASSES, SHARED, SHARED_CLASSES


def test_every_class_that_is_mapped_exists_and_only_balls_are_left_out():
    assert set(SHARED_CLASSES) <= {*CWRU_CLASSES, *HIT_SM_CLASSES}
    assert {name.partition("-")[0] for name in {*CWRU_CLASSES, *HIT_SM_CLASSES} - set(SHARED_CLASSES)} == {"ball"}
    assert set(SHARED_CLASSES.values()) == set(SHARED)


def test_recordings_keep_their_speed_and_bearing_and_change_domain_and_label(real_data):
    root = real_data("cwru").parent
    catalogue = open_dataset("across-machines", root).catalogue()
    assert catalogue.domains[:2] == ("cwru", "hit-sm-mfs")
    counts = Counter((entry.domain, entry.label) for entry in catalogue.entries if entry.domain != "hit-sm-self")
    assert counts == {
        ("cwru", "healthy"): 4, ("cwru", "inner"): 12, ("cwru", "outer"): 12,
        ("hit-sm-mfs", "healthy"): 3, ("hit-sm-mfs", "inner"): 9, ("hit-sm-mfs", "outer"): 9,
    }  # fmt: skip
    entry = next(entry for entry in catalogue.entries if entry.domain == "hit-sm-mfs" and entry.label == "outer")
    recording = entry.read()
    assert (recording.domain, recording.label, recording.origin) == (entry.domain, entry.label, entry.origin)
    assert recording.rpm == pytest.approx(600)
    assert recording.bearing is not None
