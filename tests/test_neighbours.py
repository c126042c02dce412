"""A recording that does not belong with the others is named; those that merely vary are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from bearcat.data import Folder, Preparation, Task
from bearcat.data.choose import Requested, choose_settings
from bearcat.data.recording import Recording
from bearcat.data.survey import odd_recordings, portrait, survey


def vibration(seed: int, gain: float = 1.0, resonance: float = 0.3) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(8192)
    ringing = lfilter([1], [1, -1.8 * np.cos(np.pi * resonance), 0.81], noise)
    return (gain * (ringing + 0.1 * noise)).astype(np.float32)


def recordings(count: int = 6, label: str | None = "inner", domain: str = "a") -> list[Recording]:
    """Alike, but for gains that differ by 20 dB."""
    return [
        Recording(signal=vibration(seed, 10 ** (seed % 3 / 2)), rate=8000.0, label=label, domain=domain, origin=f"{seed}.npy")
        for seed in range(count)
    ]  # fmt: skip


def changed(kind: str, recording: Recording) -> Recording:
    signal = recording.signal
    return {
        "rate": lambda: replace(recording, rate=4000.0),
        "level": lambda: replace(recording, signal=signal / 1000),
        "spectrum": lambda: replace(recording, signal=vibration(9, resonance=0.9)),
        "does not change": lambda: replace(recording, signal=np.full(8192, 0.5)),
        "clipped": lambda: replace(recording, signal=signal.clip(-2 * signal.std(), 2 * signal.std())),
    }[kind]()


KINDS = ("rate", "level", "spectrum", "does not change", "clipped")


def sentences(found: list[Recording]) -> list[str]:
    return odd_recordings([portrait(recording, recording.signal) for recording in found])


def test_recordings_that_merely_vary_are_not_named():
    assert sentences(recordings()) == []
    assert sentences(recordings(2)) == []


@pytest.mark.parametrize("label", ["inner", None])
@pytest.mark.parametrize("kind", KINDS)
def test_the_one_that_differs_is_named(kind, label):
    found = recordings(label=label)
    found[3] = changed(kind, found[3])
    named = sentences(found)
    assert [sentence for sentence in named if not sentence.startswith("3.npy:")] == []
    word = {"rate": "is at 4000 Hz", "level": "dB below"}.get(kind, kind)
    assert any(word in sentence for sentence in named)


def test_two_machines_in_one_domain_are_not_a_mistake():
    found = recordings(8)
    for number in range(4, 8):
        found[number] = replace(changed("level", found[number]), rate=4000.0)
    assert sentences(found) == []


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """Two domains of six recordings each; 600rpm/inner/3 is at another rate, 1200rpm/2 is far too quiet."""
    root = tmp_path_factory.mktemp("plant")
    for domain in ("600rpm", "1200rpm"):
        for seed in range(6):
            label = "" if domain == "1200rpm" else ("healthy", "inner")[seed % 2]
            gain, rate = (0.001, 8000) if (domain, seed) == ("1200rpm", 2) else (1, 8000)
            rate = 4000 if (domain, seed) == ("600rpm", 3) else rate
            place = root / domain / label
            place.mkdir(parents=True, exist_ok=True)
            np.savez(place / f"{seed}.npz", x=vibration(seed + 10 * (domain == "1200rpm"), gain), fs=rate)
    return root


def test_check_and_adapt_name_them_and_the_odd_rate_does_not_decide_for_all(plant):
    folder = Folder(plant)
    notes = survey(folder.catalogue(), Preparation(length=256, rate=8000.0)).notes
    for name, word in (("600rpm/inner/3.npz", "is at 4000 Hz"), ("1200rpm/2.npz", "dB below")):
        assert any(note.startswith(name) and word in note for note in notes)
    chosen = choose_settings(folder, folder.catalogue(), Task("600rpm", "1200rpm"), Requested(input="time"))[2]
    assert chosen.preparation.rate == 8000
    for name in ("600rpm/inner/3.npz", "1200rpm/2.npz"):
        assert any(warning.startswith(name) for warning in chosen.warnings)
