"""What the documents show is run: every command of a page, and the site is built."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat, wavfile

from bearcat.data import Simulated
from tests.commands import bearcat, start
from tests.test_docs import COMMANDS, ROOT, is_run
from tests.test_public import NAMES


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """What the pages speak of: recordings of pumps, new files, a trained and exported model, a grid."""
    root = tmp_path_factory.mktemp("world")
    conditions = {"N09_M07_F10": "600rpm", "N15_M01_F10": "1200rpm", "N15_M07_F10": "pump-A-1500rpm",
                  "N15_M07_F04": "pump-B-1500rpm"}  # fmt: skip
    made = Simulated(seconds=1.0, conditions=tuple(conditions), severities=(4.0,), faults=("inner", "outer"))
    for entry in made.catalogue().entries:
        domain, label = conditions[entry.domain], str(entry.label).partition("-")[0]
        place = root / "my-recordings" / domain / ("" if domain.startswith("pump-B") else label)
        place.mkdir(parents=True, exist_ok=True)
        wavfile.write(place / f"{label}.wav", 16_000, entry.read().signal)
    signal = Simulated(seconds=4.0, severities=(4.0,), faults=("outer",)).recording("N15_M07_F10", "outer-1").signal
    for folder in ("", "new-recordings", "archive", "plant"):
        (root / folder).mkdir(exist_ok=True)
        wavfile.write(root / folder / "monday.wav", 16_000, signal)
    np.save(root / "plant" / "friday.npy", signal)  # which does not say its rate
    for machine in ("pump-3", "pump-4"):
        (root / "plant" / machine / "drive-end").mkdir(parents=True)
        wavfile.write(root / "plant" / machine / "drive-end" / "2024-05-01T10-30-00.wav", 16_000, signal)
    np.savetxt(root / "tuesday.csv", np.column_stack([np.arange(16_000) / 16_000, signal[:16_000]]), delimiter=",",
               header="time,acceleration", comments="")  # fmt: skip
    (root / "labels.csv").write_text("recording,label\npump-B-1500rpm/inner.wav,inner\n", encoding="utf-8")
    savemat(root / "monday.mat", {"DE": np.tile(signal, 4), "FE": np.tile(signal, 4)})
    (root / "grids").mkdir()
    grid = (ROOT / "grids" / "smoke.toml").read_text(encoding="utf-8")
    grid = re.sub(r"(?m)^(methods|tasks|seeds|epochs) = .*", "", grid)
    tiny = 'methods = ["source-only"]\ntasks = ["N15_M07_F10:N09_M07_F10"]\nseeds = 1\nepochs = 1\n'
    (root / "grids" / "smoke.toml").write_text(tiny + grid, encoding="utf-8")
    return root


def shortened(words: list[str], number: int) -> list[str]:
    """The same command with few epochs and small windows, into a folder of its own."""
    if words[0] != "adapt":
        return words
    for option in ("--out", "--epochs"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    own = "--data" in words and "simulated" not in words
    small = ["--input", "frequency", "--window", "256"] if own else []
    small += ["--set", "conditions=N15_M07_F10", "--set", "seconds=1"] if "specimens=16" in words else []
    return [*words, *small, "--epochs", "2", "--device", "cpu", "--out", f"out-{number}"]


def test_commands_of_pages_run(world, monkeypatch):
    """One after the other. Pages of runs, which take seconds each, are drawn by other tests."""
    monkeypatch.setenv("HOME", str(world))
    commands = dict.fromkeys(command for page, language, command in COMMANDS if is_run(page, language, command))
    calls = [shlex.split(command)[1:] for command in commands]
    calls.sort(key=lambda words: words[0] != "adapt")  # whose model the others use
    done = set[str]()
    for number, words in enumerate(calls):
        paths = ([word] if "*" not in word else sorted(map(str, world.glob(word))) for word in words)
        words = [str(Path(path).expanduser()) if path.startswith("~") else path for path in chain(*paths)]
        words = shortened(words, number)
        key = re.sub(r" --out \S+", "", " ".join(words)).replace("bearcat-out", "out")
        if key in done:
            continue
        done.add(key)
        if words[0] == "serve":
            assert_serves(words, world)
            continue
        result = bearcat(*words, folder=world, pictures=words[0] != "adapt")
        decides = words[0] in ("predict", "diagnose", "watch")
        assert result.returncode in ((0, 1, 3) if decides else (0,)), (words, result.stderr)
        if words[0] == "adapt" and "pump-A-1500rpm" in words:
            for name in ("out", "bearcat-out"):
                (world / name).symlink_to(world / words[-1])
    assert len(done) >= 20


def assert_serves(words: list[str], world: Path) -> None:
    process = start(*words, "--port", 0, folder=world, output=world / "served", errors=world / "served")
    try:
        deadline = time.monotonic() + 60
        while "http://" not in (said := (world / "served").read_text() if (world / "served").exists() else ""):
            assert process.exitcode is None, said
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.terminate()
        process.join(30)
        assert process.exitcode is not None, "a server that said where it listens ends when it is asked to"
        (world / "served").unlink(missing_ok=True)


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, env=variables, timeout=120)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk)[^"]*\.(?:js|css)', page)
    listed = set(re.findall(r'<h\d id="([\w.]+)"', (tmp_path / "site" / "python.html").read_text(encoding="utf-8")))
    homes = {"bearcat.watch": "bearcat.watch.watching.watch"}  # a module has the same name
    assert {homes.get(name, name) for name in (f"{place}.{name}" for place, name in NAMES)} - listed == set()
