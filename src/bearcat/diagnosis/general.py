"""The general model as a witness: a small linear model of many machines, in numpy, so that a diagnosis starts at once.

It reads the envelopes of two bands at the bearing's own orders (the input `bearing-orders`, docs/inputs.md) and was
trained on test benches and simulated machines (benchmarks/general_model.py). Recordings of a public test bench are
judged by weights that were made without it.

>>> witness = GeneralWitness(rate=51_200, rpm=900, orders=BEARINGS["6205"].orders())
>>> witness.add(block)
>>> witness.finish().probabilities["outer race"]
0.98
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import KINEMATIC
from bearcat.data.physical import WindowSpectra, bearing_orders
from bearcat.data.recording import Floats, change_rate, cut_samples, rate_ratio
from bearcat.diagnosis.pooling import pool, tally
from bearcat.errors import InputError

FOLDER = Path(__file__).parents[1] / "general"
LEFT_OUT = FOLDER / "left-out.safetensors"  # weights made without a bench, by its name
SECONDS = 60.0  # of a recording that are read: more says no more, and the memory stays bounded
FEWEST_TURNS = 6.0  # of the shaft in a window
BATCH = 32  # windows at once
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GeneralEvidence:
    """What the general model says of one recording."""

    probabilities: Mapping[str, float]  # of each state
    agreement: float  # share of windows with the likeliest state
    windows: int

    @property
    def state(self) -> str:
        return max(self.probabilities, key=lambda name: self.probabilities[name])

    @property
    def confidence(self) -> float:
        return max(self.probabilities.values())


@dataclass(frozen=True, eq=False)
class Weights:
    """A linear model of prepared windows (window, point): states, and what gives their log-probabilities."""

    states: tuple[str, ...]
    rate: float
    length: int
    step: int
    bands: int
    multiples: int
    temperature: float
    mean: Doubles  # (point,)
    factor: Doubles  # (point,)
    slope: Doubles  # (state, point), with the calibration
    offset: Doubles  # (state,)

    @staticmethod
    @cache
    def shipped(without: str | None = None) -> Weights:
        """Those that come with the package; `without` names a dataset whose bench shall not be in them."""
        from safetensors.numpy import load_file

        card = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
        tensors = load_file(FOLDER / "weights.safetensors")
        if without is not None:
            others = load_file(LEFT_OUT)
            bench = f"{without}/"
            tensors = {name.removeprefix(bench): value for name, value in others.items() if name.startswith(bench)}
            if not tensors:
                return Weights.shipped()
        found = {name: value[0].astype(np.float64) for name, value in tensors.items()}
        scale = found["calibration.scale"]
        settings = dict(part.split("=") for part in card["preparation"]["input"].split(":")[1:])
        return Weights(
            tuple(card["classes"]), card["rate"], card["preparation"]["length"], card["preparation"]["stride"],
            int(settings["bands"]), int(settings["multiples"]), card["pooled_temperature"],
            found["network.scaling.mean"][0], found["network.scaling.factor"][0],
            found["network.head.weight"] * scale[:, None],
            found["network.head.bias"] * scale + found["calibration.bias"],
        )  # fmt: skip

    def log_probabilities(self, prepared: Floats) -> Doubles:
        """(window, state) of prepared windows (window, point)."""
        scores = ((prepared - self.mean) * self.factor) @ self.slope.T + self.offset
        return np.asarray(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))


class GeneralWitness:
    """Collects a recording for the general model; InputError where its rate or speed is outside what that reads."""

    def __init__(self, rate: float, rpm: float, orders: Mapping[str, float], without: str | None = None) -> None:
        self.weights = Weights.shipped(without)
        wanted, multiples = self.weights, self.weights.multiples
        turns = wanted.length / wanted.rate * rpm / 60
        last = (multiples * max(orders["BPFI"], 2 * orders["BSF"]) + 1) * rpm / 60
        if turns < FEWEST_TURNS or last > wanted.rate / 2 / wanted.bands or rate < wanted.rate:
            problem = "the general model does not read this rate, speed and bearing"
            raise InputError(f"{problem} ({rate:g} Hz, {rpm:g} rpm)", "rpm")
        self.rate, self.rpm, self.orders = rate, rpm, orders
        self._held: list[Floats] = []
        self._samples = 0

    def add(self, block: Floats) -> None:
        room = int(SECONDS * self.rate) - self._samples
        if room > 0:
            self._held.append(block[:room])
            self._samples += len(self._held[-1])

    def finish(self) -> GeneralEvidence | None:
        """What it says; None of a recording that is shorter than a window."""
        wanted, held = self.weights, np.concatenate(self._held) if self._held else np.empty(0, dtype=np.float32)
        if self.rate != wanted.rate and held.size:
            ratio = rate_ratio("recording", self.rate, wanted.rate)
            held = change_rate(held, ratio.numerator, ratio.denominator)
        if held.size < wanted.length:
            return None
        windows = cut_samples(held, wanted.length, wanted.step)
        windows = windows[windows.min(axis=1) < windows.max(axis=1)]
        if not len(windows):
            return None
        turns, orders = self.rpm / 60 * wanted.length / wanted.rate, np.array([self.orders[name] for name in KINEMATIC])
        batches = (windows[first : first + BATCH, None] for first in range(0, len(windows), BATCH))
        parts = [
            bearing_orders(WindowSpectra.of(batch), turns, wanted.bands, wanted.multiples, orders)[:, 0]
            for batch in batches
        ]
        found = pool(tally(wanted.log_probabilities(np.concatenate(parts))), wanted.temperature)
        likely = dict(zip(wanted.states, found.probabilities.tolist(), strict=True))
        return GeneralEvidence(likely, found.agreement, found.windows)
