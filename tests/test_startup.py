"""Commands that need no network start at once: torch stays where it is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "pandas")
ASKED = """
import sys
FORBIDDEN = sys.argv.pop(1).split(",")
from bearcat.cli import main
sys.argv = ["bearcat", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
loaded = {name for name in FORBIDDEN if name in sys.modules}
print(f"\\n{sorted(loaded)}")
"""


@pytest.mark.parametrize(
    ("words", "forbidden"),
    [
        (("--help",), (*HEAVY, "bearcat.methods", "bearcat.data", "bearcat.adaptation", "bearcat.bench")),
        (("adapt", "--help"), (*HEAVY, "bearcat.methods", "bearcat.data", "bearcat.adaptation", "bearcat.bench")),
        (("methods",), ("torch", "scipy", "sklearn", "matplotlib", "pandas")),
    ],
)
def test_help_and_methods_load_nothing_heavy(words, forbidden):
    call = [sys.executable, "-c", ASKED, ",".join(forbidden), *words]
    result = subprocess.run(call, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [("diagnose",), ("predict", "model"), ("predict", "general")])
def test_diagnosing_starts_without_torch_and_without_most_of_scipy(tmp_path, words):
    """Whatever diagnoses a recording would wait for them longer than for the diagnosis."""
    from scipy.io import wavfile

    from tests.test_artefact import made_model, save_model

    save_model(tmp_path / "model", made_model("log-spectrum:bands=20", encoder="dense:widths=16"))
    signal = np.random.default_rng(0).standard_normal(24_000).astype(np.float32)
    wavfile.write(tmp_path / "a.wav", 12_000, signal)
    call = [
        sys.executable,
        "-c",
        ASKED.replace("not ended.code", "ended.code in (0, 1, 3)"),
        "torch,scipy.signal,sklearn,pandas",
    ]
    words = [*words, "a.wav", "--rpm", "1500", "--bearing", "6205"]
    result = subprocess.run([*call, *words], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "[]"


COUNTED = """
import sys
from bearcat.cli import main
try:
    main()
except SystemExit as ended:
    assert ended.code in (0, 1, 3), ended.code
print(f"\\n{sum(name.partition('.')[0] == 'bearcat' for name in sys.modules)}")
"""


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (40, ("diagnose", "pump/a/0.wav", "--rpm", "1500", "--bearing", "6205")),
        (89, ("adapt", "--data", ".", "--source", "pump", "--target", "fan", "--epochs", "1", "--window", "1024")),
    ],
)
def test_commands_import_few_modules(tmp_path, most, words):
    from scipy.io import wavfile

    files = [f"{domain}/{label}/{number}.wav" for domain in ("pump", "fan") for label in "ab" for number in range(2)]
    for seed, file in enumerate(files):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        signal = np.random.default_rng(seed).standard_normal(24_000).astype(np.float32)
        wavfile.write(tmp_path / file, 12_000, signal)
    call = [sys.executable, "-c", COUNTED, *words]
    result = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.splitlines()[-1]) <= most, result.stdout
