"""Forty commands and Python calls on fixed files, run one after the other in this process.

Of what they print, numbers, states and decisions are kept, and the exit status; never a sentence.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.golden.recordings import ORDERS, RATE, RPM, draw, write_all

RECORDING = (
    "recording", "machine", "point", "decision", "state", "class", "confidence", "agreement", "windows", "unfamiliar",
    "familiar", "probabilities", "rms", "masked", "bearing",
)  # fmt: skip
ESTIMATES = ("expected", "window_agreement", "mean_confidence")
SCORES = ("accuracy", "balanced_accuracy", "ece", "ece15", "brier", "nll")
KNOWN = ("--rpm", "1480", "--bearing", "6205")
JSON = ("--format", "json")
BESIDE = ("--healthy", "drawn/healthy.wav")


@dataclass(frozen=True)
class Case:
    """A command, what of its answer is kept, and the real recordings that it wants."""

    name: str
    words: tuple[object, ...]
    keep: Callable[[str], Any] = lambda _: None
    wants: str = ""


def diagnoses(output: str) -> list[dict[str, Any]]:
    """Of what `--format json` prints."""
    return sorted((recording(row) for row in json.loads(output)["recordings"]), key=lambda row: str(row["recording"]))


def recording(row: dict[str, Any]) -> dict[str, Any]:
    """One diagnosis: numbers, names and states."""
    kept = {name: row.get(name) for name in RECORDING}
    kept["recording"] = Path(str(kept["recording"])).name
    witnesses = {name: (row.get(name) or {}).get("state") for name in ("physics", "general")}
    physics, vibration = row.get("physics") or {}, row.get("vibration") or {}
    numbers = {"velocity": vibration.get("velocity"), "zone": vibration.get("zone")}
    return kept | witnesses | numbers | {"fitted_rpm": physics.get("fitted_rpm")}


def record(folder: str) -> Callable[[str], Any]:
    """Of the record that `adapt` has left in a folder."""

    def keep(_: str) -> dict[str, Any]:
        values = json.loads(Path(folder, "record.json").read_text(encoding="utf-8"))
        decision, scores, estimates = values["decision"], values["scores"], values["estimates"]
        rows = sorted((recording(row) for row in values["recordings"]), key=lambda row: str(row["recording"]))
        return {
            "decision": {name: decision[name] for name in ("action", "expected", "interval")},
            "scores": {side: {name: scores[side][name] for name in SCORES} for side in scores},
            "estimates": {name: estimates[name] for name in ESTIMATES},
            "recordings": rows,
            "problems": len(values["problems"]),
            "saved": values["saved"]["adapted"],
        }

    return keep


def points(output: str) -> list[dict[str, Any]]:
    """Of `watch --format json`."""
    names = ("machine", "point", "status", "fault", "confidence", "recordings")
    return sorted(({name: row.get(name) for name in names} for row in json.loads(output)["points"]), key=str)


def scores(folder: str) -> Callable[[str], Any]:
    """Accuracy and ECE of each run in a benchmark's report."""

    def keep(_: str) -> dict[str, Any]:
        with Path(folder, "runs.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        pairs = {tuple(row[name] for name in ("source", "target", "method", "seed")): row for row in rows}
        return {" ".join(key): [float(row["target_accuracy"]), float(row["target_ece"])] for key, row in pairs.items()}

    return keep


SHEET = f"bpfo={ORDERS['outer']},bpfi={ORDERS['inner']}"
OWN = ("--data", "own", "--source", "900rpm", "--target", "1480rpm", "--bearing", "6205", "--epochs", "6")
SIMULATED = ("--set", "seconds=1", "--set", "severities=4", "--set", "faults=inner,outer")
PAPER = ("--input", "time", "--window", "256", "--epochs", "4", "--device", "cpu")


def decided(command: str, name: str, *words: object, wants: str = "") -> Case:
    return Case(name, (command, *words, *JSON), diagnoses, wants)


diagnosing, predicting = partial(decided, "diagnose"), partial(decided, "predict")
WATCH = ("watch", "plant", "--store", "plant.db", "--once", *KNOWN, "--baseline", "15", *JSON)
TRUSTED = ("--rpm", "1200", "--bearing", "6205", "--trust-speed")
SEVERITY = ("--unit", "g", "--group", "2", "--mounting", "rigid")
RIG = ("--data", "rig", "--source", "600rpm", "--target", "1200rpm", "--bearing", "6205", "--epochs", "4")
OF_CWRU = ("cwru", "--rpm", "1797", "--bearing", "6205", "--rate", RATE)
CASES = (
    diagnosing("diagnose", "drawn", *KNOWN),
    diagnosing("diagnose by orders", "drawn", "--rpm", RPM, "--bearing", SHEET),
    diagnosing("diagnose without a speed", "drawn", "--bearing", "6205"),
    diagnosing("diagnose without a bearing", "drawn", "--rpm", RPM),
    diagnosing("diagnose an unknown bearing", "drawn", "--rpm", RPM, "--bearing", "unknown"),
    diagnosing("diagnose at a wrong speed", "drawn", *TRUSTED[:-1]),
    diagnosing("diagnose at a wrong speed that is trusted", "drawn", *TRUSTED),
    diagnosing("diagnose another bearing", "drawn", "--rpm", RPM, "--bearing", "6310"),
    diagnosing("diagnose beside a healthy one", "drawn/faint.wav", "drawn/inner.wav", *KNOWN, *BESIDE),
    diagnosing("diagnose odd files", "odd", *KNOWN),
    diagnosing("diagnose axes", "odd/two-bearings.wav", *KNOWN, "--channels", "together"),
    diagnosing("diagnose channels", "odd/two-bearings.wav", *KNOWN, "--channels", "apart"),
    diagnosing("diagnose severity", "drawn/outer.wav", *KNOWN, *SEVERITY),
    diagnosing("diagnose by two processes", "drawn", *KNOWN, "--jobs", "2"),
    diagnosing("diagnose CWRU", *OF_CWRU, wants="cwru"),
    diagnosing("diagnose HIT-SM", "rig/1200rpm", "--bearing", "6205", "--rpm", "1200", wants="hit-sm"),
    diagnosing("diagnose currents", "unimore", "--rate", "25600", wants="unimore"),
    Case("no such file", ("diagnose", "drawn/missing.wav", *KNOWN)),
    Case("no such bearing", ("diagnose", "drawn", "--rpm", RPM, "--bearing", "no-such-bearing")),
    Case("a broken file alone", ("diagnose", "odd/broken.wav", *KNOWN)),
    Case("a negative speed", ("diagnose", "drawn", "--rpm", "-5", "--bearing", "6205")),
    predicting("the general model", "general", "drawn", *KNOWN),
    predicting("the general model on CWRU", "general", *OF_CWRU, wants="cwru"),
    Case("adapt", ("adapt", *OWN, "--out", "adapted"), record("adapted")),
    Case("adapt simulated", ("adapt", "--epochs", "4", *SIMULATED, "--out", "simulated"), record("simulated")),
    Case("adapt with a reference", ("adapt", *OWN, "--reference", "healthy", "--out", "referred"), record("referred")),
    Case("adapt by CAT*", ("adapt", *OWN[:8], *PAPER, "--method", "CAT*-Temperature", "--out", "cat"), record("cat")),
    Case("adapt HIT-SM", ("adapt", *RIG, "--out", "real"), record("real"), "hit-sm"),
    Case("no such domain", ("adapt", *OWN[:4], "--target", "2000rpm", "--out", "never")),
    Case("no such method", ("adapt", *OWN, "--method", "CAT-Temperatur", "--out", "never")),
    predicting("predict", "adapted/model", "drawn", *KNOWN),
    predicting("predict odd files", "adapted/model", "odd", *KNOWN),
    predicting("predict by CAT*", "cat/model", "drawn", *KNOWN),
    Case("export", ("export", "adapted/model", "--onnx", "adapted.onnx")),
    predicting("predict by the graph", "adapted.onnx", "drawn", *KNOWN),
    Case("check with labels", ("check", "adapted", "--labels", "labels.csv"), record("adapted")),
    Case("watch", WATCH, points),
    Case("watch again", WATCH, points),
    Case("watch IMS", ("watch", "ims", "--store", "ims.db", "--once", "--baseline", "8", *JSON), points, "ims"),
    Case("data check", ("data", "check", "own")),
    Case("bench", ("bench", "run", "grid.toml", "--store", "store")),
    Case("bench report", ("bench", "report", "grid.toml", "--store", "store", "--out", "tables"), scores("tables")),
    Case("report", ("report", "drawn", *KNOWN, "--out", "page.html")),
)

GRID = """\
title = "Golden"
methods = ["source-only", "AT", "CAT-Temperature"]
tasks = ["N15_M07_F10:N09_M07_F10"]
inputs = ["frequency"]
seeds = 2
epochs = 3

[data]
name = "simulated"
settings = { seconds = 1, severities = [4], faults = ["outer"] }

[preparation]
length = 128
"""


def run(folder: Path, real: Path) -> dict[str, Any]:
    """Every case by its name: the exit status and what is kept of the answer."""
    folder.mkdir(exist_ok=True)
    sets = write_all(folder, real)
    (folder / "grid.toml").write_text(GRID, encoding="utf-8")
    (folder / "labels.csv").write_text(_labels(), encoding="utf-8")
    found: dict[str, Any] = {}
    with chdir(folder):
        for case in CASES:
            if case.wants and case.wants not in sets:
                continue
            status, output = call(*case.words)
            found[case.name] = {"status": status}
            if (kept := case.keep(output)) is not None:
                found[case.name]["answer"] = kept
        found |= {name: {"answer": value} for name, value in _python().items()}
    return json.loads(json.dumps(found, default=float))


def call(*words: object) -> tuple[int, str]:
    """Exit status and standard output of a command."""
    from bearcat.cli import main

    output, arguments = io.StringIO(), ["bearcat", *map(str, words)]
    streams = redirect_stdout(output), redirect_stderr(io.StringIO())
    with streams[0], streams[1], patch.object(sys, "argv", arguments), pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), output.getvalue()


def _labels() -> str:
    rows = [f"{state}/{number}.wav,{state}" for state in ("healthy", "inner", "outer") for number in range(2)]
    return "\n".join(["recording,label", *(f"1480rpm/{row}" for row in rows)]) + "\n"


def _python() -> dict[str, Any]:
    """Calls from Python: arrays, the classifier, calibrators, scores, the simulator."""
    import torch

    import bearcat
    from bearcat.cat import Evidence, ece, find_calibrator
    from bearcat.data import Simulated, load

    found: dict[str, Any] = {}
    signal = draw("outer", 31)
    diagnosed = bearcat.diagnose(signal, rate=RATE, rpm=RPM, bearing="6205")
    found["diagnose an array"] = [recording(diagnosis.to_dict()) for diagnosis in diagnosed]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 60, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (1, 60), generator=generator)
    weight = torch.ones(1, 60, dtype=torch.float64)
    for name in ("Temperature", "Vector", "Matrix"):
        fitted = find_calibrator(name).fit(Evidence(source_logits=logits, source_labels=labels))
        found[name] = fitted.apply(logits)[0, :3].tolist()
    found["ece"] = {str(bins): ece(logits.softmax(-1), labels, weight, bins).tolist() for bins in (10, 15)}
    catalogue = Simulated(seconds=1, severities=(4.0,), faults=("inner", "outer", "ball")).catalogue()
    drawn = load(catalogue, [catalogue.domains[0]])
    found["simulator"] = {
        each.origin: [float(np.std(each.signal)), *np.asarray(each.signal[:3], dtype=float).tolist()] for each in drawn
    }
    values = np.stack([draw(state, seed, seconds=0.1) for seed in range(8) for state in ORDERS])[:, :512]
    classes = np.tile(np.arange(len(ORDERS)), 8)
    domains = np.repeat([0, 1], len(values) // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = bearcat.CATClassifier(epochs=3, random_state=0, device="cpu")
        classifier.fit(values, classes, np.where(domains, -1, 1))
    found["classifier"] = classifier.predict_proba(values[:4]).tolist()
    return found
