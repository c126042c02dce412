"""The published datasets: real CWRU and HIT-SM files, and files built like Paderborn's."""

from __future__ import annotations

import io
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import io as scipy_io

from bearcat.data import BEARINGS, CWRU, HITSM, Paderborn, load, open_dataset
from bearcat.data.benches import PAPER
from bearcat.data.datasets import CONDITIONS
from bearcat.data.simulate import Simulated
from bearcat.errors import InputError

NOISE = np.random.default_rng(0).standard_normal(2000)


def paderborn_file(name: str, order: int = 0, without: str | None = None) -> bytes:
    """A file of the published structure: a struct named like the file, channels with Name and Data among others."""
    sizes = {"force": 40, "phase_current_1": 2000, "phase_current_2": 2000, "speed": 40, "torque": 40}
    sizes |= {"vibration_1": 2000}
    channels = [(title, NOISE[None, :size] + place) for place, (title, size) in enumerate(sizes.items())]
    channels = [channel for channel in channels[order:] + channels[:order] if channel[0] != without]
    listed = np.zeros((1, len(channels)), dtype=[(field, object) for field in ("Raster", "Data", "Name", "Unit")])
    for column, (title, samples) in enumerate(channels):
        listed[0, column] = ("HostService", samples, title, "")
    buffer = io.BytesIO()
    scipy_io.savemat(buffer, {name: {"Info": {"Date": "today"}, "Y": listed}}, do_compression=bool(order % 3))  # type: ignore[arg-type]
    return buffer.getvalue()


def layout(root: Path) -> Path:
    """The dataset as people have it on disk, half of it in one flat folder."""
    for number, (bearing, condition) in enumerate(product(PAPER, CONDITIONS)):
        name = f"{condition}_{bearing}_1"
        folder = root if number >= 26 else root / bearing
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.mat").write_bytes(paderborn_file(name, number % 6))
    return root


def test_paderborn_is_found_however_it_lies(tmp_path):
    catalogue = Paderborn(root=layout(tmp_path / "pu")).catalogue()
    assert (catalogue.domains, catalogue.classes, catalogue.problems) == (CONDITIONS, PAPER, ())
    recordings = load(catalogue)
    assert len(recordings) == 52
    for recording in recordings:  # whatever the order of channels in the file
        assert (recording.rate, recording.channel, recording.bearing) == (64_000, "vibration_1", BEARINGS["6203"])
        assert recording.rpm == (900 if recording.domain.startswith("N09") else 1500)
        np.testing.assert_allclose(recording.signal, (NOISE + 5).astype(np.float32))
    assert (recordings[0].domain, recordings[0].label) == ("N15_M07_F10", "KA04")


def test_paderborn_names_what_is_missing_packed_or_wrong(tmp_path):
    root = layout(tmp_path)
    gone, cut_short, other = (f"N15_M07_F10_{bearing}_1.mat" for bearing in ("KA04", "KA16", "KA22"))
    (root / "KA04" / gone).unlink()
    (root / "KA16" / cut_short).write_bytes(b"MATLAB 5.0" + bytes(50))
    (root / "KA22" / other).write_bytes(paderborn_file(other[:-4], without="vibration_1"))
    scipy_io.savemat(root / "KA30" / "N15_M07_F10_KA30_1.mat", {"x": NOISE})
    assert not Paderborn(root=root).catalogue().notes
    (root / "KA04.rar").write_bytes(b"Rar!")
    catalogue = Paderborn(root=root).catalogue()
    assert "unrar x" in catalogue.notes[0]
    with pytest.raises(InputError, match=f"{gone}: missing"):
        load(catalogue)
    entries = {(entry.domain, entry.label): entry for entry in catalogue.entries}
    for bearing, sentence in [
        ("KA16", r"KA16/.*KA16_1\.mat: cannot be read"),
        ("KA22", r"KA22/.*KA22_1\.mat: .*vibration_1"),
        ("KA30", r"KA30/.*KA30_1\.mat: has no 'vibration_1', only x"),
    ]:
        with pytest.raises(InputError, match=sentence):
            entries["N15_M07_F10", bearing].read()


def test_cwru_real_files_are_complete(real_data):
    catalogue = CWRU(root=real_data("cwru")).catalogue()
    recordings = load(catalogue)
    assert len(recordings) == 40
    assert not catalogue.problems
    assert catalogue.domains == ("load0", "load1", "load2", "load3")
    assert {recording.rate for recording in recordings} == {12_000}
    speeds = {recording.origin: recording.rpm for recording in recordings}
    assert speeds["237.mat"] == scipy_io.loadmat(real_data("cwru") / "237.mat")["X237RPM"].item()
    assert speeds["100.mat"] == 1730, "the load's nominal speed, where the file does not say its own"
    first = scipy_io.loadmat(real_data("cwru") / "97.mat")["X097_DE_time"].ravel()
    np.testing.assert_array_equal(recordings[0].signal, first.astype(np.float32))
    assert (recordings[13].domain, recordings[13].label, recordings[13].origin) == ("load1", "outer-007", "131.mat")


def test_cwru_normal_recordings_at_48_khz_are_brought_to_12(tmp_path):
    tone = np.sin(2 * np.pi * 1000 * np.arange(240_000) / 48_000)
    for number, samples in ((97, tone), (98, tone[::4]), (105, tone)):
        scipy_io.savemat(tmp_path / f"{number}.mat", {f"X{number:03}_DE_time": samples[:, None]})
    normal, faulty, at_12_khz = (entry.read() for entry in CWRU(root=tmp_path).catalogue().entries)
    assert {recording.rate for recording in (normal, faulty, at_12_khz)} == {12_000}
    assert (normal.signal.size, faulty.signal.size, at_12_khz.signal.size) == (60_000, 240_000, 60_000)
    assert int(np.abs(np.fft.rfft(normal.signal)).argmax()) == 5000  # still 1 kHz


def test_cwru_takes_the_variable_of_the_files_number(tmp_path):
    scipy_io.savemat(tmp_path / "99.mat", {"X098_DE_time": np.zeros(2000), "X099_DE_time": np.arange(2000.0)})
    scipy_io.savemat(tmp_path / "100.mat", {"X099_DE_time": np.zeros(2000)})
    entries = CWRU(root=tmp_path).catalogue().entries
    assert entries[0].read().signal[5] == 5
    with pytest.raises(InputError, match=r"100\.mat: .*'X100_DE_time', only X099_DE_time"):
        entries[1].read()


def test_hit_sm_real_files_are_complete_and_a_missing_rig_is_fine(real_data):
    catalogue = HITSM(root=real_data("hit-sm")).catalogue()
    recordings = load(catalogue)
    assert len(recordings) == 21
    assert catalogue.domains == ("mfs-600", "mfs-900", "mfs-1200")
    assert {(recording.rate, recording.signal.size) for recording in recordings} == {(51_200, 262_144)}
    assert {recording.rpm for recording in recordings} == {600, 900, 1200}
    assert not catalogue.problems


def test_hit_sm_names_what_is_wrong(tmp_path):
    for rig, state, speed in product(
        ("mfs", "self"), ("Normal", "IR2", "IR5", "IR8", "OR2", "OR5", "OR8"), (600, 900, 1200)
    ):
        (tmp_path / rig).mkdir(exist_ok=True)
        scipy_io.savemat(tmp_path / rig / f"{state}_{speed}.mat", {"data": NOISE[:, None]})
    (tmp_path / "self" / "OR5_900.mat").unlink()
    scipy_io.savemat(tmp_path / "self" / "OR8_900.mat", {"a": NOISE, "b": NOISE})
    catalogue = HITSM(root=tmp_path).catalogue()
    assert (len(catalogue.domains), len(catalogue.entries)) == (6, 41)
    assert [problem.origin for problem in catalogue.problems] == ["self/OR5_900.mat"]
    assert len(load(catalogue, ["mfs-600"])) == 7  # a problem in one domain does not stop another
    wrong = next(entry for entry in catalogue.entries if entry.origin == "self/OR8_900.mat")
    with pytest.raises(InputError, match=r"self/OR8_900\.mat: .*2 channels \(a, b\)"):
        wrong.read()
    with pytest.raises(InputError, match="none of .*mfs.*self"):
        HITSM(root=tmp_path / "self").catalogue()


def test_benches_as_machines_keep_speed_and_bearing_and_change_domain_and_label(real_data):
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
    assert (recording.rpm, str(recording.bearing)) == (600, "6205")


def test_domains_go_by_name_or_index_and_the_nearest_is_suggested():
    catalogue = Simulated(seconds=0.1).catalogue()
    assert catalogue.only(["3", "N15_M07_F10"]).domains == ("N15_M07_F04", "N15_M07_F10")
    with pytest.raises(InputError, match="'N15_M07_F11'.*'N15_M07_F10'"):
        catalogue.only(["N15_M07_F11"])
    with pytest.raises(InputError, match="unknown domain '4'"):
        catalogue.only(["4"])


def test_an_unknown_dataset_suggests_the_nearest_and_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="'cwro'; .*'cwru'"):
        open_dataset("cwro")
    with pytest.raises(InputError, match="no such folder; .*bearcat data fetch cwru"):
        CWRU(root=tmp_path / "nowhere").catalogue()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        CWRU(root=tmp_path / "file").catalogue()
    with pytest.raises(InputError, match="no such folder"):
        open_dataset("folder").catalogue()
