"""Real recordings for the tests that want them, and a cache and data folder of the test's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from bearcat.data.recording import Recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Small tensors gain nothing from a second thread, and a thread that waits for a busy core loses a lot.
os.environ["OMP_NUM_THREADS"] = "1"  # for commands the tests start
torch.set_num_threads(1)

REAL = Path(os.environ.get("BEARCAT_DATA") or Path(__file__).parents[2] / "shared" / "data")

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


# Their fixtures (trained and exported models, servers, drawn pages) cost more than most of their tests.
TOGETHER = ("test_serve", "test_page", "test_adapt", "test_predict")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, so that no worker is left with one of them when the other has nothing to do.

    Tests that share costly fixtures run in one worker, or each worker would make the fixtures.
    """
    for item in items:
        if item.path.stem in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))

    def late(item: pytest.Item) -> tuple[bool, bool]:
        return item.path.stem not in TOGETHER, item.get_closest_marker("slow") is None

    items.sort(key=late)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine; `make browser` installs it where it can")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """The folder of a real dataset; the test is skipped, with the reason, where it is not there."""

    def find(name: str) -> Path:
        if not (REAL / name).is_dir():
            pytest.skip(f"no real recordings in {REAL / name}; set BEARCAT_DATA to the folder that holds '{name}'")
        return REAL / name

    return find


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEARCAT_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("BEARCAT_DATA", str(tmp_path_factory.mktemp("data")))


def make_recording(
    signal: np.ndarray | None = None, *, seed: int = 0, samples: int = 4096, label: str | None = "inner",
    domain: str = "a", rate: float | None = 1000.0, origin: str | None = None,
) -> Recording:  # fmt: skip
    """A recording of noise, or of the given samples."""
    if signal is None:
        signal = np.random.default_rng(seed).standard_normal(samples)
    return Recording(
        signal=np.asarray(signal, dtype=np.float32), rate=rate, label=label, domain=domain, channel="1",
        origin=origin or f"{domain}/{label}/{seed}.npy",
    )  # fmt: skip
