"""Real recordings for the tests that want them, and a cache and data folder of the test's own."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:  # the process that only hands out tests need not load torch, nor what uses it
    import numpy as np
    from playwright.sync_api import Browser

    from bearcat.data.recording import Recording

# Small tensors gain nothing from a second thread, and a thread that waits for a busy core loses a lot.
os.environ["OMP_NUM_THREADS"] = "1"

# A loaded machine is late, which is no mistake of what is tested.
hypothesis.settings.register_profile("patient", max_examples=50, deadline=None)
hypothesis.settings.load_profile("patient")

REAL = Path(os.environ.get("BEARCAT_DATA") or Path(__file__).parents[2] / "shared" / "data")

BLANK = b'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="300"/>'


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported stays; looking through it again and again takes a twentieth of the time


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine; `make browser` installs it where it can")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def narrow_classifier() -> Iterator[None]:
    """A domain classifier of 64 units instead of 1024, in the loop and in its twin: the same code in less time."""
    from bearcat.cat import networks
    from tests.reference import loop as reference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "DOMAIN_WIDTH", 64)
        patch.setattr(reference, "WIDTH", 64)
        yield


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed but come out blank, for tests that read the page around them: rendering takes its most."""
    from bearcat.report.figures import ReportFigure

    monkeypatch.setattr(ReportFigure, "render", lambda *_: BLANK)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """The folder of a real dataset; the test is skipped, with the reason, where it is not there."""

    def find(name: str) -> Path:
        if not (REAL / name).is_dir():
            pytest.skip(f"no real recordings in {REAL / name}; set BEARCAT_DATA to the folder that holds '{name}'")
        return REAL / name

    return find


@pytest.fixture(scope="session")
def _kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The compiled CPU kernels, where there is a C compiler: seconds that every test and command would spend again."""
    import torch

    from bearcat.errors import InputError
    from bearcat.fast import native

    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch, suppress(InputError):
        patch.setenv("BEARCAT_CACHE", str(folder))
        for kind in (torch.float32, torch.float64):
            native._library(kind)
    return list(folder.glob("native-*"))


@pytest.fixture(autouse=True)
def _own_folders(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, _kernels: list[Path]
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    for file in _kernels:
        (cache / file.name).hardlink_to(file)
    monkeypatch.setenv("BEARCAT_CACHE", str(cache))
    monkeypatch.setenv("BEARCAT_DATA", str(tmp_path_factory.mktemp("data")))


def make_recording(
    signal: np.ndarray | None = None, *, seed: int = 0, samples: int = 4096, label: str | None = "inner",
    domain: str = "a", rate: float | None = 1000.0, origin: str | None = None,
) -> Recording:  # fmt: skip
    """A recording of noise, or of the given samples."""
    import numpy as np

    from bearcat.data.recording import Recording

    if signal is None:
        signal = np.random.default_rng(seed).standard_normal(samples)
    return Recording(
        signal=np.asarray(signal, dtype=np.float32), rate=rate, label=label, domain=domain, channel="1",
        origin=origin or f"{domain}/{label}/{seed}.npy",
    )  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: words → exit status, standard output, standard error."""
    from bearcat.cli import main

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bearcat", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return call
