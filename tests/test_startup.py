"""What is imported: commands start at once, and modules load nothing heavy that they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

import bearcat
from tests.test_artefact import made_model, save_model

# Runs a command that must not load the modules of the first word; its last line is the number of ours that it loads.
CALL = """
import sys
from bearcat.cli import main
heavy = sys.argv.pop(1).split()
try:
    main()
except SystemExit as stop:
    assert stop.code in (None, 0, 1, 3), stop.code
assert not (loaded := set(heavy) & set(sys.modules)), loaded
print("\\n", sum(name.partition(".")[0] == "bearcat" for name in sys.modules))
"""
HEAVY = "torch numpy scipy sklearn matplotlib pandas bearcat.methods bearcat.data bearcat.adaptation bearcat.bench"
SPECTRA = "torch scipy.signal sklearn pandas"  # loading any of them takes longer than a diagnosis
DIAGNOSE = "pump/a/0.wav --rpm 1500 --bearing 6205"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two pumps with two classes, and a model."""
    root = tmp_path_factory.mktemp("start")
    files = [f"{domain}/{label}/{number}.wav" for domain in ("pump", "fan") for label in "ab" for number in range(2)]
    for seed, file in enumerate(files):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        signal = np.random.default_rng(seed).standard_normal(24_000).astype(np.float32)
        wavfile.write(root / file, 12_000, signal)
    save_model(root / "model", made_model("physics:use=band-kurtosis", encoder="dense:widths=16"))
    return root


@pytest.mark.parametrize(
    ("words", "heavy", "most"),
    [
        ("--help", HEAVY, 12),
        ("adapt --help", HEAVY, 12),
        ("methods", "matplotlib pandas", 45),
        (f"diagnose {DIAGNOSE}", SPECTRA, 34),
        (f"predict model {DIAGNOSE}", SPECTRA, 38),
        (f"predict general {DIAGNOSE}", SPECTRA, 38),
        ("adapt --data . --source pump --target fan --epochs 1 --window 1024", "", 65),
    ],
)
def test_a_command_imports_what_it_needs(folder, words, heavy, most):
    call = [sys.executable, "-c", CALL, heavy, *words.split()]
    result = subprocess.run(call, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.splitlines()[-1]) <= most, result.stdout


def test_importing_the_package_loads_nothing():
    code = (
        "import sys, bearcat; dir(bearcat); assert [name for name in sys.modules if 'bearcat' in name] == ['bearcat']"
    )
    source = {"PYTHONPATH": str(Path(bearcat.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | source)
