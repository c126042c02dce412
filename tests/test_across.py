"""Test benches as domains of one dataset."""

from __future__ import annotations

from collections import Counter

import pytest

from bearcat.data import open_dataset


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
