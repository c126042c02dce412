"""The house stays small: lines and words by part, as `[tool.bearcat.budget]` of pyproject.toml allows."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BUDGET: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bearcat"][
    "budget"
]
SOURCE = ROOT / "src" / "bearcat"


def lines(folder: Path, pattern: str = "**/*.py") -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob(pattern))


def words(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in folder.glob("**/*.md"))


def sizes() -> dict[str, tuple[int, int]]:
    """What there is of each part, and what is allowed."""
    folders = {path.name for path in SOURCE.iterdir() if any(path.glob("**/*.py"))} | {"."}
    assert folders == set(BUDGET["src"]), "each folder of src/bearcat has a row in [tool.bearcat.budget.src]"
    parts = {"modules": len(list(SOURCE.glob("**/*.py"))), "words": words(ROOT / "docs")}
    parts |= {name: lines(ROOT / name) for name in ("tests", "benchmarks")}
    source = {name: lines(SOURCE, "*.py") if name == "." else lines(SOURCE / name) for name in sorted(folders)}
    return {name: (size, BUDGET[name]) for name, size in parts.items()} | {
        f"src/bearcat/{name}": (size, BUDGET["src"][name]) for name, size in source.items()
    }


@pytest.mark.parametrize("part", sizes())
def test_a_part_keeps_to_its_budget(part: str):
    size, allowed = sizes()[part]
    assert size <= allowed, (
        f"{part} has {size}, {allowed} are allowed: something goes, or the budget changes for a reason"
    )
