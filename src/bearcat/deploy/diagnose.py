"""Recordings → physical diagnoses: what `bearcat.diagnose` and `bearcat diagnose` do.

>>> import bearcat
>>> found = bearcat.diagnose(["monday.wav", "tuesday.wav"], rpm=1480, bearing="6205")
>>> found                        # a line for each
>>> found[0].reason, found.to_frame()
"""

from __future__ import annotations

from collections import UserList
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing, find_bearing
from bearcat.data.recording import Recording
from bearcat.data.stream import Stream
from bearcat.deploy.predict import FoundRecording, find_recordings
from bearcat.diagnosis.physical import PhysicalDiagnosis, diagnose_physically
from bearcat.errors import InputError

Given = str | Path | NDArray[Any]
COLUMNS = ("recording", "state", "confidence", "fitted_rpm", "band_low", "band_high", "familiar", "reason", "notes")


class PhysicalDiagnoses(UserList[PhysicalDiagnosis]):
    """Diagnoses in the order of the recordings."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no recordings"

    def to_frame(self) -> Any:
        """A pandas data frame, a row for each recording."""
        try:
            import pandas
        except ImportError as error:
            instead = "pip install pandas, or use to_dict of each diagnosis"
            raise InputError(f"a data frame needs pandas; {instead}") from error
        return pandas.DataFrame([row(diagnosis) for diagnosis in self], columns=list(COLUMNS))


def row(diagnosis: PhysicalDiagnosis) -> dict[str, Any]:
    """The COLUMNS of a diagnosis."""
    found = diagnosis.to_dict() | {"notes": "; ".join(diagnosis.notes)}
    return {name: found[name] for name in COLUMNS}


def diagnose(
    files: Given | Sequence[Given],
    *,
    rpm: float | None = None,
    bearing: str | Bearing | None = None,
    orders: Mapping[str, float] | None = None,
    channel: str | None = None,
    rate: float | None = None,
) -> PhysicalDiagnoses:
    """Physical diagnoses of files, folders of them, or arrays (time,), which need their `rate`.

    `orders` (BPFO, BPFI and, if known, BSF and FTF, as multiples of the shaft's speed) stand in for a bearing.
    """
    known = known_orders(bearing, orders)
    given = [files] if isinstance(files, str | Path | np.ndarray) else list(files)
    found = PhysicalDiagnoses()
    for number, each in enumerate(given):
        if isinstance(each, np.ndarray):
            name = f"array {number}" if len(given) > 1 else "array"
            recording = Recording(signal=each, rate=rate, domain="", origin=name)
            found.append(diagnose_physically(Stream(name, rate, iter([recording.signal])), rpm, known))
        else:
            recordings = find_recordings([Path(each)], channel=channel)
            found += [diagnose_recording(recording, rpm, known, rate) for recording in recordings]
    return found


def diagnose_recording(
    found: FoundRecording, rpm: float | None, orders: Mapping[str, float] | None, rate: float | None
) -> PhysicalDiagnosis:
    """The diagnosis of one recording; what is not given may stand in a manifest, the speed in its folder's name."""
    own = orders or (None if found.bearing is None else found.bearing.orders())
    return diagnose_physically(found.open(), rpm or found.rpm, own, rate)


def known_orders(
    bearing: str | Bearing | None, orders: Mapping[str, float | None] | None = None
) -> dict[str, float] | None:
    """Kinematic orders of a bearing, or those given; None where neither is.

    BPFO and BPFI sum to the number of balls, which gives the cage's order, and for a radial load the ball's.
    """
    given = {name: float(value) for name, value in (orders or {}).items() if value is not None}
    if not given:
        return None if bearing is None else (find_bearing(bearing) if isinstance(bearing, str) else bearing).orders()
    if bearing is not None:
        raise InputError("give the bearing or its orders, not both", "bearing")
    for name in ("BPFO", "BPFI"):
        if name not in given:
            raise InputError(f"{name}: is missing; give BPFO and BPFI, as multiples of the shaft's speed", name.lower())
    outer, inner = given["BPFO"], given["BPFI"]
    if not 0 < outer < inner < 100:
        raise InputError(
            f"BPFO {outer:g} and BPFI {inner:g}: must be multiples of the shaft's speed, the inner race's the larger;"
            " divide frequencies by that of the shaft", "bpfo"
        )  # fmt: skip
    ratio = (inner - outer) / (inner + outer)  # ball over pitch diameter
    made = {"FTF": (1 - ratio) / 2, "BSF": (1 - ratio**2) / (2 * ratio)} | given
    for name, value in made.items():
        if not 0 < value < 100:
            raise InputError(f"{name}: must be a multiple of the shaft's speed, not {value:g}", name.lower())
    return made
