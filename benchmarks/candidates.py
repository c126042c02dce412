"""`bearcat adapt` as plants need it: type labels, short recordings, mostly healthy targets; recordings counted.

    python benchmarks/candidates.py DATA                            # HIT-SM by type, cuts of 2.5 s, all six pairs
    python benchmarks/candidates.py DATA --bench cwru --mix full    # CWRU's twelve load tasks by type
    python benchmarks/candidates.py DATA --labels state --cut 0     # condition shifts: one recording of each class

Each cell is one run of the default, with all candidates, as a user gets it; nothing is chosen by target labels. Printed
are the recordings of the target that the recommended model, the recipe itself and the unadapted network diagnose
rightly, the healthy ones that are called faulty, what was recommended, and the seconds it took.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import torch

from bearcat.data.recording import healthy_class
from bearcat.data.tasks import Mix, Split
from bearcat.diagnosis.recording import Diagnosis
from bearcat.record import Record
from bearcat.runs.adapt import adapt
from bearcat.runs.plan import Wishes, make_plan

MIXES = {
    "full": Mix(), "healthy only": Mix(keep=("healthy",)), "healthy and one fault": Mix(recordings=(("rest", 1),)),
    "no inner": Mix(without=("inner",)), "faults at 5 %": Mix(share=(("healthy", 1.0), ("rest", 0.05))),
}  # fmt: skip
BENCHES = {
    "hit-sm": (("mfs-600", "mfs-900", "mfs-1200"), {"length": 16384, "stride": 4096}),
    "cwru": (("load0", "load1", "load2", "load3"), {"length": 4096, "stride": 2048}),
}
SIMULATED = {"severities": "0.3,1.0,3.0", "faults": "inner,outer"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--bench", choices=BENCHES, default="hit-sm")
    parser.add_argument("--labels", choices=("type", "state", "size"), default="type")
    parser.add_argument("--cut", type=float, default=2.5, help="seconds of a recording; 0 leaves them whole")
    parser.add_argument("--mix", choices=MIXES, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only each so many-th pair")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    domains, preparation = BENCHES[chosen.bench]
    print("target | pair | seed | recommended | the recipe | not adapted | false alarms | which | seconds")
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for mix in chosen.mix or list(MIXES):
        for pair in list(permutations(domains, 2))[:: chosen.every]:
            for seed in range(chosen.seeds):
                row = cell(chosen, pair, MIXES[mix], seed, preparation)
                right, alarms, total, healthy = row[:4]
                for place, number in enumerate((right, total, alarms, healthy)):
                    totals[mix][place] += number
                print(f"{mix} | {'→'.join(pair)} | {seed} | {right} of {total} | {row[4]} | {row[5]} |"
                      f" {alarms} of {healthy} | {row[6]} | {row[7]:.1f}", flush=True)  # fmt: skip
    for mix, (right, total, alarms, healthy) in totals.items():
        print(f"{mix}: {right} of {total} recordings right ({100 * right / total:.1f} %), {alarms} of {healthy} healthy"
              " ones called faulty")  # fmt: skip


def cell(
    chosen: argparse.Namespace, pair: tuple[str, str], mix: Mix, seed: int, preparation: dict[str, int]
) -> tuple[int, int, int, int, int, str, str, float]:
    """Recordings right, false alarms, recordings, healthy ones; right by the recipe, right not adapted, what was
    recommended, seconds.
    """
    settings = {"label_by": chosen.labels}
    wishes = Wishes(
        chosen.bench, chosen.data / chosen.bench, (pair[0],), pair[1], seed=seed, settings=settings, mix=mix, device="cpu"
    )
    started = time.monotonic()
    plan = make_plan(wishes)
    changed = replace(plan.spec.preparation, **preparation, cut=chosen.cut or None)
    specs = [
        replace(spec, preparation=replace(changed, input=spec.preparation.input), split=Split("block"))
        for spec in (plan.spec, *plan.candidates)
    ]
    plan = replace(plan, spec=specs[0], candidates=tuple(specs[1:]))
    with tempfile.TemporaryDirectory() as folder:
        found = adapt(plan, Path(folder) / "out")
    seconds = time.monotonic() - started
    truth = {info.origin: info.label for info in plan.library.split(plan.library.identified(plan.spec)).target.recordings}
    record = found.record
    name, _ = plan.spec.recipe.unadapted()
    right = sum(map(lambda each: truth[each.recording] == each.nearest, record.recordings))
    healthy = [each for each in record.recordings if truth[each.recording] == healthy_class(record.data.classes)]
    others = [found.beside.get(each) for each in (name,)]
    return (
        right, sum(each.nearest != truth[each.recording] for each in healthy), len(record.recordings), len(healthy),
        -1, *(str(count(other, truth)) for other in others), record.saved.recipe if record.saved else "", seconds,
    )  # fmt: skip


def count(record: Record | None, truth: dict[str, str | None]) -> int | str:
    found: tuple[Diagnosis, ...] = () if record is None else record.recordings
    return sum(truth[each.recording] == each.nearest for each in found) if found else "as the recipe"


if __name__ == "__main__":
    main()
