"""The direction of dependencies, read from the imports."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import bearcat

ROOT = Path(bearcat.__file__).parent
# Each layer may import from itself and from those above it. docs/design.md shows the same list.
LAYERS = [
    {"errors"},
    {"findings"},
    {"settings", "storage"},
    {"data"},
    {"diagnosis"},
    {"record"},
    {"cat", "methods", "fast"},  # ingredients act on the state of a training
    {"deploy", "watch", "report"},  # the page of watched machines is a view of their store
    {"adaptation", "estimator"},
    {"bench"},
    {"cli", "api"},
]
# Inside data/: the same rule, and datasets are strangers to each other.
DATA_LAYERS = [
    {"bearing", "channels", "recording", "physical", "signals", "vibration"},
    {"datasets", "inputs"},
    {"windows", "formats"},
    {"tasks"},
    {"manifest"},
    {"benches"},
    {"simulate"},
    {"folder"},
    {"choose"},
    {"__init__"},
]


def imported(path: Path) -> set[str]:
    """The bearcat modules a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] == "bearcat"}


def layer_of(name: str, layers: list[set[str]]) -> int:
    matches = [number for number, names in enumerate(layers) if name in names]
    assert len(matches) == 1, f"{name} has no place in the layers"
    return matches[0]


@pytest.mark.parametrize(("package", "layers"), [("bearcat", LAYERS), ("bearcat.data", DATA_LAYERS)])
def test_imports_point_upwards_only(package, layers):
    folder = ROOT.parent / package.replace(".", "/")
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).with_suffix("").parts[0]
        for other in imported(path) - {"bearcat"} if name != "__init__" else ():  # whose imports are for type checkers
            if f"{other}.".startswith(f"{package}."):
                part = other.removeprefix(package).lstrip(".").partition(".")[0] or "__init__"
                assert layer_of(part, layers) <= layer_of(name, layers), f"{path.name} imports {other}"


def test_no_source_file_can_execute_what_it_reads():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {getattr(node, "module", "") or ""}
                if names <= {"joblib", "Parallel", "delayed", "parallel_config"}:
                    continue  # processes, and no files
                assert not names & {"pickle", "marshal", "shelve", "dill", "joblib"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile", "__import__"}, path
            if isinstance(node, ast.keyword):
                value = isinstance(node.value, ast.Constant) and node.value.value
                assert (node.arg, value) not in {("allow_pickle", True), ("weights_only", False)}, path


def test_no_class_name_is_used_twice():
    trees = (ast.parse(path.read_text()) for path in ROOT.rglob("*.py"))
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
