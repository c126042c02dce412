"""The wheel in an environment of its own: with the declared requirements alone, then with extras."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("core")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def not_required(*extras: str) -> str:
    """The modules that are installed here, but that neither the core nor these extras require."""
    needed, waiting = {"bearcat"}, [*PROJECT["dependencies"], *(f"bearcat[{extra}]" for extra in extras)]
    while waiting:
        need = Requirement(waiting.pop())
        if need.name == "bearcat":
            waiting += [text for extra in need.extras for text in PROJECT["optional-dependencies"][extra]]
        elif (name := canonicalize_name(need.name)) not in needed:
            needed.add(name)
            with suppress(metadata.PackageNotFoundError):  # such as the GPU's libraries
                texts = [(text, Requirement(text).marker) for text in metadata.requires(name) or []]
                waiting += [text for text, marker in texts if marker is None or marker.evaluate({"extra": ""})]
    modules = metadata.packages_distributions()
    return ",".join(name for name, owners in modules.items() if not needed & {*map(canonicalize_name, owners)})


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
from bearcat.cli import main
main()
"""


def test_the_wheel_holds_the_package_and_its_files_and_says_its_version(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith(f"bearcat-{PROJECT['version']}-")
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path):
            assert path.relative_to(ROOT / "src").as_posix() in names
    assert not [name for name in names if name.startswith("tests")]


def test_core_alone_adapts_predicts_and_diagnoses(core, tmp_path):
    from bearcat.data import open_dataset

    settings = {"severities": "4", "faults": "outer", "seconds": "2"}
    for entry in open_dataset("simulated", None, settings).catalogue().only(["0", "1"]).entries:
        place = tmp_path / "mine" / entry.domain / str(entry.label)
        place.mkdir(parents=True)
        np.savez(place / "x.npz", x=entry.read().signal, fs=16_000.0)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-c", WITHOUT, not_required(), *map(str, words)]
        variables = os.environ | {"PYTHONPATH": str(core)}
        return subprocess.run(call, env=variables, cwd=core, capture_output=True, text=True, timeout=300)

    out, target = tmp_path / "out", tmp_path / "mine" / entry.domain
    adapted = run("adapt", "--data", tmp_path / "mine", "--epochs", 2, "--window", 1024, "--out", out)
    assert adapted.returncode == 0, adapted.stderr
    assert ((out / "record.json").exists(), (out / "report.html").exists()) == (True, False)  # pages are an extra
    predicted = run("predict", out / "model", target)
    assert predicted.returncode in (1, 3), predicted.stderr
    diagnosed = run("diagnose", target, "--rpm", 900, "--bearing", "balls=8,ball=6.75,pitch=28.5")
    assert diagnosed.returncode in (1, 3), diagnosed.stderr
    assert "outer race" in diagnosed.stdout


def test_the_demo_needs_no_more_than_it_installs(core, tmp_path):
    for name in ("examples", "grids"):
        (tmp_path / name).symlink_to(ROOT / name)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^\.venv/demo: EXTRA = (\w+)$", makefile, re.MULTILINE)
    target = makefile.partition("\ndemo: ")[2].partition("\n\n")[0]
    calls = re.findall(r"\$\(BIN\)/(bearcat|python) ([^|\n]+)", target)
    for program, words in calls:
        before = ["-c", WITHOUT, not_required(extra)] if program == "bearcat" else []
        variables = os.environ | {"PYTHONPATH": str(core)}
        call = [sys.executable, *before, *words.split()]
        result = subprocess.run(call, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert result.returncode == ("predict" in words), result.stderr
    assert (tmp_path / "demo" / "methods" / "report.html").exists()


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

    assert bearcat.__version__ == PROJECT["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, released = re.search(r"^## (\S+) \((\S+)\)$", changelog, re.MULTILINE).groups()
    assert version == PROJECT["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    assert f"\ndate-released: {released}\n" in citation
