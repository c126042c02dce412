"""The house stays small: lines and words by part, as `[tool.bearcat.budget]` of pyproject.toml allows."""

from __future__ import annotations

import tomllib
from collections import Counter

from tests.commands import ROOT

BUDGET = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bearcat"]["budget"]


def test_every_part_keeps_to_its_budget():
    """A part that outgrows it gives something up, or its budget changes for a reason."""
    source, sizes = ROOT / "src" / "bearcat", Counter[str]()
    for path in source.rglob("*.py"):
        sizes["modules"] += 1
        folder = "." if path.parent == source else path.relative_to(source).parts[0]
        sizes[f"src/{folder}"] += len(path.read_text(encoding="utf-8").splitlines())
    for folder in ("tests", "benchmarks"):
        sizes[folder] = sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))
    sizes["words"] = sum(len(path.read_text("utf-8").split()) for path in (ROOT / "docs").rglob("*.md"))
    allowed = {name: size for name, size in BUDGET.items() if name != "src"}
    allowed |= {f"src/{folder}": size for folder, size in BUDGET["src"].items()}
    assert set(sizes) == set(allowed), "each folder of src/bearcat has a row in [tool.bearcat.budget.src]"
    assert {part: (size, allowed[part]) for part, size in sizes.items() if size > allowed[part]} == {}
