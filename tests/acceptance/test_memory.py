"""Files far larger than the memory that reading them takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import wavfile

from tests.test_artefact import made_model, save_model
from tests.test_formats import write_24_bits
from tests.test_serve import noise

MEMORY = """
import re, sys
from pathlib import Path
from bearcat.data.isolated import open_stream
from bearcat.deploy.find import Given
from bearcat.deploy.opened import at_rate_of, cut_stream, open_model
from tests.pooled import pool_stream
model = open_model(Path(sys.argv[1]))
for path in map(Path, sys.argv[2:]):
    stream, _ = at_rate_of(model, open_stream(path), 24000)
    windows = sum(len(windows) for _, windows in cut_stream(stream.blocks, 256, 256, 256))
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
    print(path.name, windows, peak)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of one program's memory is asked of /proc")
def test_files_far_larger_than_the_memory_they_need(tmp_path):
    """16 MB (of text 9, of 24 bits 12) at another rate than the model's take no more memory than short files.

    getrusage will not do: the peak it tells begins with that of the process which started this one.
    """

    save_model(tmp_path / "model", made_model())

    def write(path: Path, signal: np.ndarray) -> None:
        kind = path.name.partition(".")[2]
        if kind == "npy":
            np.save(path, signal)
        elif kind == "csv":
            path.write_text("\n".join(f"{value:.5f}" for value in signal[: 2**16].tolist() * (signal.size >> 16)))
        elif kind == "mat":
            with h5py.File(path, "w") as file:
                file["vibration"] = signal[None]
        elif kind == "24.wav":
            write_24_bits(path, (signal * 1e5).astype(np.int32), 24_000)
        else:
            wavfile.write(path, 24_000, signal)

    kinds = ("npy", "wav", "24.wav", "csv", "mat")
    paths = {}
    for name, samples in (("short", 2**19), ("long", 2**22)):
        for kind in kinds:
            paths[f"{name}.{kind}"] = samples // 4 if kind == "csv" else samples
            write(tmp_path / f"{name}.{kind}", np.resize(noise(2**16), paths[f"{name}.{kind}"]))
    order = [*list(paths)[: len(kinds)], *paths]  # short ones twice, for what libraries take when they are loaded
    call = [sys.executable, "-c", MEMORY, str(tmp_path / "model"), *(str(tmp_path / name) for name in order)]
    result = subprocess.run(call, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert {name: int(windows) for name, windows, _ in rows} == {
        name: samples // 512 for name, samples in paths.items()
    }
    usual = int(rows[2 * len(kinds) - 1][2])
    for name, _, peak in rows[2 * len(kinds) :]:
        assert (tmp_path / name).stat().st_size > 2**23
        assert int(peak) - usual < 8 * 1024, name  # kB
    for name in paths:
        (tmp_path / name).unlink()
