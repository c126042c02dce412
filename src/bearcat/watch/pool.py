"""Envelope spectra that add up: short recordings to a block that can be read, and blocks to a pool that forgets slowly.

>>> pool = pool_of(snapshot).add(pool_of(next_snapshot))
>>> pool.physics(orders).state
'outer race'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bearcat.diagnosis.physics import PhysicsEvidence, physics_evidence
from bearcat.diagnosis.spectra import Spectra
from bearcat.watch.snapshot import Snapshot

FORGET = 0.8  # of a pool that each block leaves


@dataclass(frozen=True, eq=False)
class Pool:
    """Spectra of the last recordings, older ones with less weight."""

    spectra: Spectra
    weight: float
    rate: float
    rpm: float

    def add(self, other: Pool, forget: float = FORGET) -> Pool:
        """With another one's spectra; only these where the bands are other ones."""
        own, new = self.spectra, other.spectra
        if own.power.shape != new.power.shape or abs(other.rate / self.rate - 1) > 1e-6:
            return other
        old, weight = forget * self.weight, forget * self.weight + 1
        power, kurtosis, loudness = (
            (old * getattr(own, name) + getattr(new, name)) / weight for name in ("power", "kurtosis", "loudness")
        )
        pooled = Spectra(rounded(power), new.turns, own.windows + new.windows, kurtosis, loudness, new.axes)
        return Pool(pooled, weight, other.rate, other.rpm)

    def physics(self, orders: Mapping[str, float]) -> PhysicsEvidence:
        """What physics reads in the spectra."""
        return physics_evidence(self.spectra, self.rate, self.rpm, orders)

    def to_arrays(self, name: str) -> dict[str, NDArray[np.generic]]:
        """For the store, under this name; the power as its logarithm, in two bytes each."""
        own = self.spectra
        numbers = [self.weight, self.rate, self.rpm, own.turns, float(own.windows), float(own.axes)]
        return {
            f"{name}.power": np.log10(own.power).astype(np.float16),
            f"{name}.bands": np.stack([own.kurtosis, own.loudness]), f"{name}.numbers": np.array(numbers),
        }  # fmt: skip

    @staticmethod
    def from_arrays(name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Pool | None:
        """Back from `to_arrays`; None where there is none."""
        if f"{name}.numbers" not in arrays:
            return None
        weight, rate, rpm, turns, windows, axes = arrays[f"{name}.numbers"].tolist()
        power = 10 ** arrays[f"{name}.power"].astype(np.float64)
        kurtosis, loudness = arrays[f"{name}.bands"].astype(np.float64)
        return Pool(Spectra(power, turns, int(windows), kurtosis, loudness, int(axes)), weight, rate, rpm)


def rounded(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """As the store keeps it, so that a restart changes nothing."""
    return np.asarray(10 ** np.log10(np.maximum(power, 1e-30)).astype(np.float16).astype(np.float64))


def pool_of(snapshot: Snapshot) -> Pool | None:
    """Of one recording; None where its speed is not known."""
    own = snapshot.spectra
    if own is None or snapshot.rate is None or snapshot.rpm is None:
        return None
    loudness = np.broadcast_to(own.loudness, own.kurtosis.shape).astype(np.float64)
    spectra = Spectra(rounded(own.power), own.turns, own.windows, own.kurtosis, loudness, own.axes)
    return Pool(spectra, 1.0, snapshot.rate, snapshot.rpm)


@dataclass
class Block:
    """Recordings that are read together."""

    rows: list[dict[str, float]] = field(default_factory=list)
    pool: Pool | None = None
    turns: float = 0.0

    def add(self, snapshot: Snapshot) -> None:
        self.rows.append(dict(snapshot.values))
        self.turns += snapshot.turns or 0.0
        new = pool_of(snapshot)
        self.pool = new if self.pool is None or new is None else self.pool.add(new, forget=1.0)

    def values(self) -> dict[str, float]:
        """Medians of the measurements."""
        if len(self.rows) == 1:
            return self.rows[0]
        names = sorted(set().union(*self.rows))
        return {name: float(np.median([row[name] for row in self.rows if name in row])) for name in names}
