"""`bearcat adapt` as plants need it: type labels, short recordings, mostly healthy targets; recordings counted.

    python benchmarks/candidates.py DATA                            # HIT-SM by type, cuts of 2.5 s, all six pairs
    python benchmarks/candidates.py DATA --bench cwru --mix full    # CWRU's twelve load tasks by type
    python benchmarks/candidates.py DATA --labels state --cut 0     # condition shifts: one recording of each class

Each cell is one run of the default, with all candidates, as a user gets it; nothing is chosen by target labels. Printed
are the recordings of the target that the recommended model and the unadapted network diagnose rightly, the healthy ones
that are called faulty, what was recommended, all candidates with their scores, and the seconds it took.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import torch

from bearcat.data.recording import healthy_class
from bearcat.data.tasks import Mix, Split
from bearcat.diagnosis.recording import Diagnosis
from bearcat.record import Record
from bearcat.runs.adapt import adapt
from bearcat.runs.plan import Wishes, make_plan

MIXES = {
    "full": Mix(), "healthy only": Mix(keep=("healthy",)), "healthy and one fault": Mix(recordings=(("healthy", 99), ("rest", 1))),
    "no inner": Mix(without=("inner",)), "faults at 5 %": Mix(share=(("healthy", 1.0), ("rest", 0.05))),
}  # fmt: skip
BENCHES = {
    "hit-sm": (("mfs-600", "mfs-900", "mfs-1200"), {"length": 16384, "stride": 4096}),
    "cwru": (("load0", "load1", "load2", "load3"), {"length": 4096, "stride": 2048}),
}


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
    print(
        "target | pair | seed | recommended | not adapted | false alarms | which | seconds, of the processor | scores"
    )
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for mix in chosen.mix or list(MIXES):
        for pair in list(permutations(domains, 2))[:: chosen.every]:
            for seed in range(chosen.seeds):
                row = cell(chosen, pair, MIXES[mix], seed, preparation)
                for place, number in enumerate(row.counts):
                    totals[mix][place] += number
                print(f"{mix} | {'→'.join(pair)} | {seed} | {row}", flush=True)
    for mix, (right, total, alarms, healthy) in totals.items():
        print(f"{mix}: {right} of {total} recordings right ({100 * right / total:.1f} %), {alarms} of {healthy} healthy"
              " ones called faulty")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Of one cell; counts: recordings right, all, healthy ones called faulty, all healthy ones."""

    counts: tuple[int, int, int, int]
    unadapted: str
    seconds: tuple[float, float]
    record: Record

    def __str__(self) -> str:
        right, total, alarms, healthy = self.counts
        scores = ", ".join(f"{each.name} {100 * each.score:.0f}" for each in self.record.candidates)
        which = self.record.saved.recipe if self.record.saved else ""
        took = f"{self.seconds[0]:.1f}, {self.seconds[1]:.1f}"
        return f"{right} of {total} | {self.unadapted} | {alarms} of {healthy} | {which} | {took} | {scores}"


def cell(chosen: argparse.Namespace, pair: tuple[str, str], mix: Mix, seed: int, preparation: dict[str, Any]) -> Row:
    wishes = Wishes(
        chosen.bench, chosen.data / chosen.bench, (pair[0],), pair[1], seed=seed, settings={"label_by": chosen.labels},
        mix=mix, device="cpu",
    )  # fmt: skip
    started = time.monotonic(), time.process_time()
    plan = make_plan(wishes)
    changed = replace(plan.spec.preparation, **preparation, cut=chosen.cut or None)
    specs = [
        replace(spec, preparation=replace(changed, input=spec.preparation.input), split=Split("block"))
        for spec in (plan.spec, *plan.candidates)
    ]
    plan = replace(plan, spec=specs[0], candidates=tuple(specs[1:]))
    with tempfile.TemporaryDirectory() as folder:
        found = adapt(plan, Path(folder) / "out")
    took = time.monotonic() - started[0], time.process_time() - started[1]
    split = plan.library.split(plan.library.identified(plan.spec))
    truth = {info.origin: info.label for info in split.target.recordings}
    recordings = found.record.recordings
    healthy = [each for each in recordings if truth[each.recording] == healthy_class(split.classes)]
    right, alarms = correct(recordings, truth), len(healthy) - correct(healthy, truth)
    other = found.beside.get(plan.spec.recipe.unadapted()[0])
    unadapted = "–" if other is None else str(correct(other.recordings, truth))
    return Row((right, len(recordings), alarms, len(healthy)), unadapted, took, found.record)


def correct(recordings: Iterable[Diagnosis], truth: Mapping[str, str | None]) -> int:
    return sum(truth[each.recording] == each.nearest for each in recordings)


if __name__ == "__main__":
    main()
