"""Makes src/bearcat/data/bearings.csv: bearings with the numbers of their rolling elements, and where each comes from.

Three kinds of rows:

- PUBLISHED below: test benches' documentation and Timken's frequency coefficients;
- cylindrical roller bearings of NTN-SNR's catalogue: rollers, diameters and frequency factors, which must agree;
- deep groove ball bearings of which catalogues state the basic static load rating alone. ISO 76 makes it of number and
  diameter of the balls, C0 = f0 Z Dw², where balls have sizes of inches / 64, the pitch is taken as the mean of bore and
  outer diameter, and so many balls are filled in as a bearing without a filling slot takes. These are estimates.

CATALOGUES is the folder `mechanical_components/catalogs` of the source distribution of mechanical_components 0.3.4
(Dessia Technologies, on PyPI), which holds the catalogues of NTN-SNR and Schaeffler as tables.

    python benchmarks/bearings.py CATALOGUES [--write]
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).parents[1] / "src/bearcat/data/bearings.csv"
HEADER = ("designation", "type", "bore", "outer", "balls", "ball", "pitch", "angle", "source")
DEEP, CYLINDRICAL, ESTIMATE = "deep groove", "cylindrical", "estimate: C0 of"
TIMKEN = "Timken housed units A-13"
# Of ISO 76, by Dw cos α / Dpw in steps of 0.01.
F0 = (
    14.7, 14.9, 15.1, 15.3, 15.5, 15.7, 15.9, 16.1, 16.3, 16.5, 16.4, 16.1, 15.9, 15.6, 15.4, 15.2, 14.9, 14.7, 14.4,
    14.2, 14.0, 13.7, 13.5, 13.2, 13.0, 12.8, 12.5, 12.3, 12.1, 11.8, 11.6, 11.4, 11.2, 10.9, 10.7, 10.5, 10.3, 10.0,
    9.8, 9.6, 9.4,
)  # fmt: skip
# The angle over which the balls lie side by side when they are filled in: degrees, and its spread over Timken's.
FILLED, SPREAD, FILL = 189.0, 4.5, (177.0, 200.0)
ROUNDED = 0.005  # relative, of a load rating
SERIES = r"(160|60|62|63|64|68|69)(\d\d|/\d\d)"
# Designation, type, bore, outer, balls, ball, pitch, contact angle, source. The first 25 are those that the simulated
# machines of benchmarks/diagnose.py have. Timken's 9105, 205K and 305K are misprints or contradict themselves.
PUBLISHED: tuple[tuple[Any, ...], ...] = (
    ("6203", DEEP, 17, 40, 8, 6.75, 28.5, 0, "CWRU Bearing Data Center"),
    ("6205", DEEP, 25, 52, 9, 7.94, 39.04, 0, "CWRU Bearing Data Center"),
    ("6804", DEEP, 20, 32, 13, 3.5, 25.6, 0, "Nectoux et al. 2012 (PRONOSTIA)"),
    ("UER204", "insert", 20, 47, 8, 7.92, 34.55, 0, "Wang et al. 2018 (XJTU-SY)"),
    ("ZA2115", "double row roller", 49.2, "", 16, 8.407, 71.501, 15.17, "Qiu et al. 2006 (IMS)"),
    ("6004", DEEP, 20, 42, 9, 6.35, 31.0, 0, TIMKEN),
    ("6204", DEEP, 20, 47, 8, 7.938, 33.5, 0, TIMKEN),
    ("6206", DEEP, 30, 62, 9, 9.525, 46.0, 0, TIMKEN),
    ("6207", DEEP, 35, 72, 9, 11.112, 53.5, 0, TIMKEN),
    ("6208", DEEP, 40, 80, 9, 12.7, 60.0, 0, TIMKEN),
    ("6209", DEEP, 45, 85, 9, 12.7, 65.0, 0, TIMKEN),
    ("6210", DEEP, 50, 90, 10, 12.7, 70.0, 0, TIMKEN),
    ("6211", DEEP, 55, 100, 10, 14.288, 77.5, 0, TIMKEN),
    ("6212", DEEP, 60, 110, 10, 15.875, 85.0, 0, TIMKEN),
    ("6303", DEEP, 17, 47, 7, 8.731, 32.0, 0, TIMKEN),
    ("6304", DEEP, 20, 52, 7, 9.525, 36.0, 0, TIMKEN),
    ("6307", DEEP, 35, 80, 8, 14.288, 57.5, 0, TIMKEN),
    ("6308", DEEP, 40, 90, 8, 15.875, 65.0, 0, TIMKEN),
    ("6309", DEEP, 45, 100, 8, 17.462, 72.5, 0, TIMKEN),
    ("6310", DEEP, 50, 110, 8, 19.05, 80.0, 0, TIMKEN),
    ("6311", DEEP, 55, 120, 8, 20.638, 87.5, 0, TIMKEN),
    ("6312", DEEP, 60, 130, 8, 22.225, 95.0, 0, TIMKEN),
    ("6314", DEEP, 70, 150, 8, 25.4, 110.0, 0, TIMKEN),
    ("6315", DEEP, 75, 160, 8, 26.988, 117.5, 0, TIMKEN),
    ("6316", DEEP, 80, 170, 8, 28.575, 125.0, 0, TIMKEN),
    ("6006", DEEP, 30, 55, 11, 7.144, 43.08, 0, TIMKEN),
    ("6202", DEEP, 15, 35, 8, 5.556, 25.4, 0, TIMKEN),
    ("6213", DEEP, 65, 120, 10, 16.669, 92.5, 0, TIMKEN),
    ("6214", DEEP, 70, 125, 10, 17.462, 97.5, 0, TIMKEN),
    ("6306", DEEP, 30, 72, 7, 13.494, 51.0, 0, TIMKEN),
    ("6318", DEEP, 90, 190, 8, 31.75, 140.0, 0, TIMKEN),
    ("608", DEEP, 8, 22, 7, 3.968, 15.016, 0, "measured: pyBearing 1.0.4"),
    ("ER16K", "insert", 25.4, 52, 9, 7.9375, 38.5, 0, "Curtin University (MB ER-16K)"),
    ("7314", "angular contact", 70, 150, 12, 25.4, 110.0, 40, "blog.csdn.net 134879441 (NSK 7314)"),
)


def bore_of(code: str) -> float:
    """Millimetres, of the last digits of a designation."""
    return (
        float(code[1:]) if code.startswith("/") else {"00": 10, "01": 12, "02": 15, "03": 17}.get(code, 5 * int(code))
    )


def cylindrical(folder: Path) -> list[tuple[Any, ...]]:
    """Of NTN-SNR's catalogue, by designation and design (E is the reinforced one); the commonest geometry of each."""
    found, rows = defaultdict[str, Counter[tuple[Any, ...]]](Counter), []
    with (folder / "rules_rlts_SKF.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            match = re.match(r"(NUP|NU|NJ|NF|N)(\d{3,4})(EA?)?", row["name"])
            if match is None or match[3] == "EA" or not row["Z"] or not row["fq_be"] or row["mounting"] == "RNU":
                continue
            millimetres = (round(1000 * float(row[name]), 3) for name in ("d", "D", "Dw", "Dp"))
            bore, outer, roller, pitch = millimetres
            if bore != bore_of(match[2][-2:]):
                print(f"left out: {row['name']}, the bore is {bore:g} mm")
                continue
            balls, outside, inside = int(float(row["Z"])), float(row["fq_be"]), float(row["fq_bi"])
            ratio = roller / pitch
            expected = balls / 2 * (1 - ratio), balls / 2 * (1 + ratio)
            if max(abs(outside - expected[0]), abs(inside - expected[1])) > 0.01:
                print(f"left out: {row['name']}, {balls} rollers of {roller} on {pitch} give {expected}, not {outside}")
                continue
            found["".join(part or "" for part in match.groups())][bore, outer, balls, roller, pitch] += 1
    for name, several in found.items():
        (geometry, _), *others = several.most_common()
        source = "NTN-SNR catalogue"
        if others:
            listed = " and ".join(f"{balls} of {roller:g} mm" for _, _, balls, roller, _ in several)
            source = f"estimate: NTN-SNR catalogue lists {listed}"
            print(f"disagreement: {name}, {source}")
        rows.append((name, CYLINDRICAL, *geometry, 0, source))
    return rows


def estimated(bore: float, outer: float, rating: float) -> tuple[int, float] | None:
    """Number and diameter of the balls that a static load rating in N fits best; None where none does."""
    pitch, fits = (bore + outer) / 2, []
    sizes = {25.4 * number / 64 for number in range(8, 33)} | {25.4 * number / 32 for number in range(16, 97)}
    for ball in sizes:
        for balls in range(5, 60) if ball < pitch / 2 else ():
            filled = (balls - 1) * 2 * math.degrees(math.asin(ball / pitch))
            made = float(np.interp(ball / pitch, np.arange(len(F0)) / 100, F0)) * balls * ball**2
            off = math.log(made / rating)
            if FILL[0] <= filled <= FILL[1] and abs(off) <= 4 * ROUNDED:
                fits.append(((off / ROUNDED) ** 2 + ((filled - FILLED) / SPREAD) ** 2, balls, round(ball, 3)))
    return min(fits)[1:] if fits else None


def load_ratings(folder: Path) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Maker → designation → bore and outer diameter in mm and static load rating in N of deep groove ball bearings."""
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for maker, file in (("NTN", "ntn.json"), ("Schaeffler", "schaeffler.json")):
        for each in json.loads((folder / file).read_text(encoding="utf-8"))["bearings"]:
            match = re.match(SERIES + r"(?!\d)", each["name"])
            if match is None or not each["object_class"].endswith("RadialBallBearing") or each["name"].endswith("SNR"):
                continue
            bore, outer = (round(1000 * each[name], 1) for name in ("d", "D"))
            if bore == bore_of(match[2]) and bore >= 10:
                found[maker][match[1] + match[2]].append((bore, outer, each["C0r"]))
    return {
        maker: {name: Counter(several).most_common(1)[0][0] for name, several in names.items()}
        for maker, names in found.items()
    }


def made(folder: Path) -> list[tuple[Any, ...]]:
    """All rows; what is known of the estimates' error is printed."""
    rows, ratings = [*PUBLISHED, *cylindrical(folder)], load_ratings(folder)
    known = {row[0]: row for row in PUBLISHED if row[1] == DEEP}
    for maker, names in ratings.items():
        errors = []
        for name, (_, _, _, _, balls, ball, pitch, _, _) in ((name, known[name]) for name in known if name in names):
            if (fit := estimated(*names[name])) is not None:
                order = balls / 2 * (1 - ball / pitch)
                errors.append((fit[0] - balls, fit[0] / 2 * (1 - fit[1] / (sum(names[name][:2]) / 2)) / order - 1))
        same = [abs(error) for off, error in errors if off == 0]
        print(
            f"{maker}: {len(same)} of {len(errors)} published bearings get the number of balls that is published, the"
            f" others {Counter(off for off, _ in errors if off)}; BPFO of these is off by {100 * np.median(same):.2f} %"
            f" (median), {100 * max(same):.1f} % (largest)"
        )
    differ = []
    for name in sorted({name for names in ratings.values() for name in names} - set(known)):
        fits = {maker: estimated(*names[name]) for maker, names in ratings.items() if name in names}
        usable = {maker: fit for maker, fit in fits.items() if fit is not None}
        for maker, fit in list(usable.items())[:1]:
            bore, outer, _ = ratings[maker][name]
            other = "".join(
                f", {fit[0]} by {who}'s" for who, fit in list(usable.items())[1:] if fit[0] != usable[maker][0]
            )
            differ += [name] * bool(other)
            if outer <= 400:
                rows.append((name, DEEP, bore, outer, *fit, (bore + outer) / 2, 0, f"{ESTIMATE} {maker}{other}"))
    print(f"{len(differ)} estimates have another number of balls by the other maker's rating: {', '.join(differ)}")
    return rows


if __name__ == "__main__":
    found = made(Path(sys.argv[1]))
    print(len(found), Counter((row[1], str(row[-1])) for row in found))
    if "--write" in sys.argv[2:]:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            written = csv.writer(file, lineterminator="\n")
            written.writerow(HEADER)
            written.writerows([f"{cell:g}" if isinstance(cell, float) else cell for cell in row] for row in found)
