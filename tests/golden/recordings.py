"""Small recordings on which the golden commands run: drawn by a few lines of numpy, and cuts of real ones.

The drawing is written out here, so that no change of the simulator moves it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat, savemat, wavfile
from scipy.signal import lfilter

RATE, RPM = 12_000, 1480.0
ORDERS = {"inner": 5.4152, "outer": 3.5848, "ball": 4.7135}  # of a 6205, multiples of the shaft
CWRU = {"97": "healthy", "105": "inner", "118": "ball", "130": "outer", "100": "healthy-3", "108": "inner-3"}
HIT_SM = ("Normal", "IR5", "OR5")


def draw(state: str, seed: int, rpm: float = RPM, seconds: float = 2.0, strength: float = 2.5) -> NDArray[np.float32]:
    """Noise, a line at the shaft's speed and, for a fault, decaying strikes at its line with a little slip."""
    generator = np.random.default_rng(seed)
    samples, shaft = int(seconds * RATE), rpm / 60
    time = np.arange(samples) / RATE
    signal = 0.1 * generator.standard_normal(samples) + 0.3 * np.sin(2 * np.pi * shaft * time)
    if state in ORDERS:
        period = 1 / (ORDERS[state] * shaft)
        moments = np.cumsum(period * (1 + 0.01 * generator.standard_normal(int(seconds / period) + 2)))
        strikes = np.zeros(samples)
        places = (moments * RATE).astype(int)
        places = places[places < samples]
        load = 1 + 0.8 * np.cos(2 * np.pi * shaft * places / RATE) if state == "inner" else 1.0
        strikes[places] = load
        ring = np.exp(-800 * time[:200]) * np.sin(2 * np.pi * 3100 * time[:200])
        signal += strength * 0.3 * lfilter(ring, [1.0], strikes)
    return signal.astype(np.float32)


def write_all(folder: Path, real: Path) -> set[str]:
    """Writes every recording below a folder; the names of the real sets that were there to be cut."""
    _drawn(folder / "drawn")
    _odd(folder / "odd")
    _domains(folder / "own")
    _watched(folder / "plant")
    sets = set()
    if (real / "cwru").is_dir():
        sets.add("cwru")
        (folder / "cwru").mkdir()
        for number, name in CWRU.items():
            values = loadmat(real / "cwru" / f"{number}.mat")
            signal = next(value for key, value in values.items() if key.endswith("DE_time"))
            savemat(folder / "cwru" / f"{name}.mat", {f"X{int(number):03d}_DE_time": signal[: 4 * RATE]})
    if (real / "hit-sm").is_dir():
        sets.add("hit-sm")
        for rpm in (600, 1200):
            for state in HIT_SM:
                values = loadmat(real / "hit-sm" / "mfs" / f"{state}_{rpm}.mat")
                signal = next(value for key, value in values.items() if not key.startswith("__"))
                path = folder / "rig" / f"{rpm}rpm" / state / "1.wav"
                path.parent.mkdir(parents=True)
                wavfile.write(path, 51_200, np.ravel(signal)[: 2 * 51_200].astype(np.float32))
    if (real / "unimore").is_dir():
        sets.add("unimore")
        (folder / "unimore").mkdir()
        for name in ("M3_D1_R1_T1", "M3_D1_R2_T3"):
            np.save(folder / "unimore" / f"{name}.npy", np.load(real / "unimore" / f"{name}.npy")[:51_200])
    if (real / "ims").is_dir():
        sets.add("ims")
        _ims(folder / "ims", real / "ims")
    return sets


def _wav(path: Path, signal: NDArray[np.float32], rate: int = RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, signal)


def _drawn(folder: Path) -> None:
    for seed, state in enumerate(("healthy", "inner", "outer", "ball")):
        _wav(folder / f"{state}.wav", draw(state, seed))
    _wav(folder / "faint.wav", draw("outer", 7, strength=0.25))


def _odd(folder: Path) -> None:
    good = draw("outer", 11)
    _wav(folder / "clipped.wav", np.clip(2 * good, -0.8, 0.8))
    _wav(folder / "dead.wav", np.zeros(RATE, dtype=np.float32))
    _wav(folder / "short.wav", good[:200])
    _wav(folder / "good.wav", good)
    _wav(folder / "two-bearings.wav", np.stack([draw("healthy", 12), draw("inner", 13)], axis=1))
    (folder / "broken.wav").write_bytes(b"RIFF\x00\x00")
    (folder / "text.csv").write_text("time,level\n0,one\n", encoding="utf-8")


def _domains(folder: Path) -> None:
    for domain, rpm in (("900rpm", 900.0), ("1480rpm", RPM)):
        for place, state in enumerate(("healthy", "inner", "outer")):
            for number in range(2):
                seed = 100 + 10 * place + number + (50 if rpm == RPM else 0)
                _wav(folder / domain / state / f"{number}.wav", draw(state, seed, rpm))
    (folder / "bad").mkdir()
    (folder / "bad" / "empty.csv").write_text("", encoding="utf-8")


def _watched(folder: Path) -> None:
    start = datetime(2024, 5, 1, tzinfo=UTC)
    for number in range(30):
        moment = f"{start + timedelta(days=number):%Y-%m-%dT%H-%M-%S}"
        faulty = "inner" if number > 20 else "healthy"
        _wav(folder / "pump" / "DE" / f"{moment}.wav", draw("healthy", 200 + number, seconds=0.8))
        _wav(folder / "fan" / "NDE" / f"{moment}.wav", draw(faulty, 300 + number, seconds=0.8, strength=1.5))


def _ims(folder: Path, real: Path) -> None:
    lines = (real / "manifest.csv").read_text(encoding="utf-8").splitlines()
    files = sorted(real.glob("*.flac"))[::10]
    names = {file.name for file in files}
    folder.mkdir()
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    kept = [line for line in lines[1:] if any(name in line for name in names)]
    (folder / "manifest.csv").write_text("\n".join([lines[0], *kept]) + "\n", encoding="utf-8")
