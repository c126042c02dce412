"""Sets that bearing-datasets has built: one of its definitions is imitated, and read as a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bearcat.data import Collection, load, open_dataset
from bearcat.errors import InputError

FAULTS = {"n": "normal", "ib": "inner", "ob": "outer", "tb": "rolling_element"}


@pytest.fixture(scope="module")
def jnu(tmp_path_factory) -> Path:
    return write_collection(tmp_path_factory.mktemp("sets") / "jnu")


def write_collection(root: Path, samples: int = 3000) -> Path:
    """The set `jnu`, shortened: four states at three speeds, 50 kHz, two groups of rows; a current beside it."""
    drawn = np.random.default_rng(0)
    (root / "signals").mkdir(parents=True)
    rows, signals = [], []
    for rpm in (1000, 600, 800):
        for code, fault in FAULTS.items():
            for channel, quantity in (("vibration", "acceleration"), ("motor", "current")):
                rows.append({
                    "dataset": "jnu", "signal_id": f"{code}{rpm}/{channel}", "recording_id": f"{code}{rpm}",
                    "native_label": code, "channel": channel, "sensor_location": "test_bearing", "fs": 50_000,
                    "n_samples": samples, "fault_type": fault, "fault_location": "test_bearing", "sensor_at_fault": True,
                    "quantity": quantity, "unit": "unknown", "speed_rpm": float(rpm), "bearing_model": "6205-2RS",
                    "signal_file": "part-float64.parquet", "signal_row_group": len(signals) // 15,
                    "signal_row": len(signals) % 15,
                })  # fmt: skip
                signals.append(drawn.standard_normal(samples) + len(signals))
    parquet.write_table(pa.Table.from_pylist(rows), root / "metadata.parquet", compression="zstd")
    table = pa.table({"signal_id": [row["signal_id"] for row in rows], "signal": signals})
    parquet.write_table(table, root / "signals" / "part-float64.parquet", row_group_size=15)
    (root / "manifest.json").write_text("{}")
    return root


def test_domains_and_labels_are_columns_and_samples_are_where_the_table_says(jnu):
    dataset = open_dataset(str(jnu))
    assert isinstance(dataset, Collection)
    catalogue = dataset.catalogue()
    assert catalogue.domains == ("600", "800", "1000")
    assert set(catalogue.classes) == set(FAULTS.values())
    recordings = load(catalogue)
    assert len(recordings) == 12
    for recording in recordings:
        assert round(float(recording.signal.mean())) % 2 == 0  # the vibration, not the current beside it
        assert (recording.rate, recording.rpm, recording.label) == (50_000, float(recording.domain), recording.label)
        assert recording.bearing is not None
        assert recording.bearing.balls == 9
    means = [round(float(recording.signal.mean())) for recording in recordings]
    assert means == list(range(0, 24, 2))


def test_the_user_sees_the_mapping_and_may_choose_another(jnu):
    notes = "\n".join(open_dataset(str(jnu)).catalogue().notes)  # which `data check` prints
    assert "speed_rpm: 600 (4), 800 (4), 1000 (4)" in notes
    assert "fault_type: normal (3)" in notes
    assert "left out: motor" in notes
    other = open_dataset(str(jnu), None, {"domain": "native_label", "label": "speed_rpm"}).catalogue()
    assert other.domains == ("n", "ib", "ob", "tb")
    assert set(other.classes) == {"600", "800", "1000"}
    both = open_dataset(str(jnu), None, {"domain": "sensor_location+speed_rpm"}).catalogue()
    assert "test_bearing+600" in both.domains


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"domain": "speed"}, "did you mean 'speed_rpm'"), ({"channel": "vibr"}, "did you mean 'vibration'")],
)
def test_a_wrong_column_or_channel_is_one_sentence(jnu, settings, sentence):
    with pytest.raises(InputError, match=f"metadata.parquet: .*{sentence}"):
        open_dataset(str(jnu), None, settings).catalogue()


def test_a_table_that_leads_elsewhere_is_a_problem(jnu, tmp_path):
    rows = parquet.read_table(jnu / "metadata.parquet").to_pylist()
    (tmp_path / "signals").mkdir()
    for name in ("../../metadata.parquet", "gone.parquet"):
        parquet.write_table(
            pa.Table.from_pylist([row | {"signal_file": name} for row in rows]), tmp_path / "metadata.parquet"
        )
        catalogue = open_dataset(str(tmp_path)).catalogue()
        assert len(catalogue.problems) == 12
        assert not catalogue.entries
