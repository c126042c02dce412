"""The wheel in an environment of its own: with the declared requirements alone, then with extras."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """What `pip wheel` makes of the tracked files that it needs."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    words = ("wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *words, "-w", "made", "."], cwd=tree, check=True, timeout=120)
    (made,) = (tree / "made").glob("*.whl")
    return made


def required(names: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """These distributions and all that they require, here and now, of those that are installed."""
    found: set[str] = set()
    waiting = [(name, tuple(extras)) for name in names]
    while waiting:
        name, wanted = waiting.pop()
        key = canonicalize_name(name)
        if key in found:
            continue
        try:
            texts = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # such as the GPU's libraries
            continue
        found.add(key)
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((requirement.name, tuple(requirement.extras)))
    return found


def link(folder: Path, names: Iterable[str]) -> None:
    """Links in a venv to these distributions and all that they require."""
    packages = next(folder.glob("lib*/python*/site-packages"))
    for name in required(names):
        for top in {Path(file).parts[0] for file in metadata.files(name) or () if Path(file).parts[0] != ".."}:
            place = Path(str(metadata.distribution(name).locate_file(top)))
            if place.exists() and not (packages / top).exists():
                (packages / top).symlink_to(place)


def variables_of(folder: Path) -> dict[str, str]:
    """The environment variables of a venv's commands."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": str(folder)}


# Commands of the wheel's, separated by a comma, with the status of each.
RUN = """
import sys
from itertools import groupby
from bearcat.cli import main
words = sys.argv[1:]
for split, command in groupby(words, key=lambda word: word == ","):
    if not split:
        sys.argv = ["bearcat", *command]
        try:
            main()
        except SystemExit as stop:
            print("status", stop.code or 0)
"""


def commands(variables: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    """Commands in the venv, one after the other."""
    call = [Path(variables["VIRTUAL_ENV"]) / "bin" / "python", "-c", RUN, *map(str, words)]
    return subprocess.run(call, env=variables, capture_output=True, text=True, timeout=300)


def test_the_wheel_holds_the_package_and_its_files_and_says_its_version(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith(f"bearcat-{PROJECT['version']}-")
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path):
            assert path.relative_to(ROOT / "src").as_posix() in names
    assert not [name for name in names if name.startswith("tests")]


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory) -> dict[str, str]:
    """A venv with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("venv") / "core"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    link(folder, [Requirement(text).name for text in PROJECT["dependencies"]])
    words = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    call = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), *words]
    subprocess.run(call, check=True, timeout=120)
    return variables_of(folder)


def test_core_alone_checks_a_folder_and_names_the_extra_it_lacks(core, tmp_path):
    for domain in ("a", "b"):
        (tmp_path / "mine" / domain / "healthy").mkdir(parents=True)
        np.savetxt(
            tmp_path / "mine" / domain / "healthy" / "x.csv",
            np.random.default_rng(len(domain)).normal(size=2048) + ord(domain),
        )
    check, show = ("data", "check", tmp_path / "mine"), ("data", "show", tmp_path / "mine", "--out", tmp_path / "x.png")
    answer = commands(core, "--version", ",", *check, ",", *show)
    assert re.findall(r"status (\d+)", answer.stdout) == ["0", "0", "2"], answer.stderr
    assert f"bearcat {PROJECT['version']}" in answer.stdout
    assert "2 recordings in 2 domains" in answer.stdout
    assert "pip install 'bearcat[report]'" in answer.stderr
    shutil.copytree(core["VIRTUAL_ENV"], tmp_path / "report", symlinks=True)
    link(tmp_path / "report", [Requirement(text).name for text in PROJECT["optional-dependencies"]["report"]])
    answer = commands(variables_of(tmp_path / "report"), *show)
    assert re.findall(r"status (\d+)", answer.stdout) == ["0"], answer.stderr
    assert (tmp_path / "x.png").is_file()


def test_core_alone_adapts_predicts_and_diagnoses(core, tmp_path):
    from bearcat.data import open_dataset

    settings = {"severities": "4", "faults": "outer", "seconds": "2"}
    for entry in open_dataset("simulated", None, settings).catalogue().only(["0", "1"]).entries:
        place = tmp_path / "mine" / entry.domain / str(entry.label)
        place.mkdir(parents=True)
        np.savez(place / "x.npz", x=entry.read().signal, fs=16_000.0)
    words = ("adapt", "--data", tmp_path / "mine", "--epochs", 2, "--window", 1024, "--out", tmp_path / "out")
    files = [tmp_path / "mine" / entry.domain]
    physics = ("diagnose", *files, "--rpm", 900, "--bearing", "balls=8,ball=6.75,pitch=28.5")
    answer = commands(core, *words, ",", "predict", tmp_path / "out" / "model", *files, ",", *physics)
    first, *others = re.findall(r"status (\d+)", answer.stdout)
    assert first == "0", answer.stderr
    assert [status in ("1", "3") for status in others] == [True, True], answer.stdout + answer.stderr
    assert (tmp_path / "out" / "record.json").is_file()
    assert not (tmp_path / "out" / "report.html").exists()  # an extra
    assert "outer race" in answer.stdout


def test_every_requirement_is_pinned_to_a_version_that_it_allows():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    texts = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    for requirement in map(Requirement, texts):
        if requirement.name != "bearcat":
            version = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), (str(requirement), version)


def test_the_version_is_the_same_everywhere():
    import bearcat
    from bearcat.cli import app

    assert bearcat.__version__ == PROJECT["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, released = re.search(r"^## (\S+) \((\S+)\)$", changelog, re.MULTILINE).groups()
    assert version == PROJECT["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    assert f"\ndate-released: {released}\n" in citation
    assert CliRunner().invoke(app, ["--version"]).output == f"bearcat {version}\n"


def test_a_type_checker_finds_a_misspelt_name_and_a_wrong_type(tmp_path):
    """With the project's own settings and cache, which `make test` has just filled."""
    script = tmp_path / "script.py"
    lines = [
        "import bearcat",
        "from bearcat.calibration import ece",
        "from bearcat.data import find_input",
        "from bearcat.methods import RECIPES, View; from torch import Tensor",
        'bearcat.adpt("a", "b")',
        'bearcat.diagnose("monday.wav", rate="fast")',
        'bearcat.CATClassifier(epochs="three")',
        'bearcat.watch("plant")',
        'find_input("physics").transform([0.0], rmp=900)',
        'RECIPES["DANN"].in_epochs("few")',
        "def loss(view: View) -> Tensor:",
        "    return view.head(view.target_features)",  # strict: no Any
        'ok: bearcat.Diagnoses = bearcat.diagnose("monday.wav", rpm=1480, bearing="6205")',
    ]
    script.write_text("\n".join(lines) + "\n")
    call = [sys.executable, "-m", "mypy", str(script)]
    checked = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert {int(line) for line in re.findall(r"script\.py:(\d+): error", checked.stdout)} == set(range(5, 11)), checked
    assert '"adpt"' in checked.stdout
    assert 'incompatible type "str"' in checked.stdout
