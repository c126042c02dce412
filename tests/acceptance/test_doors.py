"""Sixty recordings and more through six doors: cuts of public benches where they are here, drawn ones and broken ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import REAL
from tests.golden.recordings import ORDERS, RATE, RPM, _wav, draw, write_all
from tests.test_doors import BEARING, adapt_and_predict, compare, watched

QUERIES = {
    "drawn": {"rpm": RPM, "bearing": BEARING}, "odd": {"rpm": RPM, "bearing": BEARING},
    "more": {"bearing": BEARING}, "cwru": {"rpm": 1797, "bearing": BEARING, "rate": RATE},
    "rig": {"rpm": 1200, "bearing": BEARING}, "unimore": {"rate": 25_600, "rpm": 1500}, "ims": {"rpm": 2000},
}  # fmt: skip
MOST = 20  # of one folder


def flat(folder: Path, out: Path) -> Path:
    """The recordings of a folder and those below it, side by side."""
    out.mkdir(parents=True)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.csv"]
    for number, path in enumerate(files[:: max(1, len(files) // MOST)][:MOST]):
        shutil.copy(path, out / f"{number}-{path.name}")
    return out


def test_sixty_recordings_through_six_doors(tmp_path):
    made, compared = tmp_path / "made", 0
    made.mkdir()
    write_all(made, REAL)
    for seed in range(30):
        state = ("healthy", *ORDERS)[seed % 4]
        _wav(made / "more" / f"{state}-{seed}.wav", draw(state, 400 + seed, 700.0 + 60 * seed, 1.0, 0.3 + seed / 10))
    for name, source, target in (("own", "900rpm", "1480rpm"), ("rig", "600rpm", "1200rpm")):
        if (made / name).is_dir():
            shutil.copytree(made / name / source, tmp_path / name / source)
            flat(made / name / target, tmp_path / name / target)
            adapt_and_predict(tmp_path / name, tmp_path / f"{name}-out", source, target, "--bearing", BEARING)
    for name, query in QUERIES.items():
        if (made / name).is_dir():
            folder = flat(made / name, tmp_path / "flat" / name)
            compared += compare(folder, tmp_path / "own-out" / "model", **query)
    assert compared >= (60 if REAL.is_dir() else 30)
    watched(tmp_path / "plant", sorted((tmp_path / "flat" / "drawn").iterdir()), **QUERIES["drawn"])
