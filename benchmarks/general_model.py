"""Fits the general model and the states of other benches for `unseen-bearings`; reports both with a bench left out.

    python benchmarks/general_model.py ../shared/data            # the tables of docs/results.md, ten minutes on one core
    python benchmarks/general_model.py ../shared/data --write    # and writes src/bearcat/general
    python benchmarks/general_model.py ../shared/data --left-out # and writes the weights with a bench left out there

The general model distinguishes healthy, inner race, outer race and ball on an axis of bearing orders. It learns from the
recordings of all benches and from simulated machines (`simulated` of benchmarks/diagnose.py: any bearing, speed, rate,
resonances, noise, size). Each bench is left out in turn, so every printed figure is of an unseen bench, without
adaptation. Balls of CWRU are reported separately, because most show no line (docs/diagnose.md).
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from diagnose import recordings as bench_recordings
from diagnose import simulated

from bearcat.adaptation import RunSpec, make_recipe
from bearcat.adaptation.run import run_stack
from bearcat.cat import Temperature, ece
from bearcat.data.benches import BENCHES
from bearcat.data.datasets import Catalogue, Dataset, Entry
from bearcat.data.inputs import Preparation, find_input
from bearcat.data.recording import Recording, resample
from bearcat.data.tasks import Task
from bearcat.data.windows import prepare
from bearcat.deploy.model import Model, save_model
from bearcat.diagnosis.decision import Decision, binomial_interval
from bearcat.diagnosis.fusion import LEFT_OUT
from bearcat.diagnosis.physics import STATES
from bearcat.diagnosis.pooling import pool, tally
from bearcat.errors import InputError
from bearcat.methods.transforms import STATES_FILE
from bearcat.storage import tensor_bytes, write_atomically

RATE, LENGTH, STRIDE = 12_000.0, 8192, 4096
INPUT = "bearing-orders:bands=2"  # two bands show twice the orders of four: up to 5300 rpm of a 6205 at 12 kHz
STATES_INPUT = "bearing-orders"  # with which `unseen-bearings` is better (docs/LOG.md)
ENCODER = "linear"  # on simulated machines a dense one is better, on the bench left out it is worse (docs/LOG.md)
MACHINES, FIRST = 1500, 1000  # simulated machines, and the seed of the first: none of benchmarks/diagnose.py's
MOST = 3.0  # seconds of a simulated machine
TURNS = 8.0  # that a window must hold
FOLDER = STATES_FILE.parent
AXES = 16  # directions of scatter that are kept of a state


@dataclass(frozen=True)
class Known(Dataset):
    """Recordings in memory: labelled in the domain `known`, and once more as the unlabelled `again`."""

    number: int  # of the list in `lists`

    lists: ClassVar[list[Sequence[Recording]]] = []

    def catalogue(self) -> Catalogue:
        entries = []
        for domain, each in ((domain, each) for domain in ("known", "again") for each in self.lists[self.number]):
            read = partial(replace, each, domain=domain)
            identity = f"{each.rpm} {each.bearing} {hashlib.sha256(each.signal.tobytes()).hexdigest()}"
            entries.append(Entry(domain, each.label, each.origin, None, identity, read))
        return Catalogue(("known", "again"), STATES, tuple(entries))


def machine(seed: int) -> Recording | None:
    """A simulated machine at the model's rate; None where its speed is too low or too high for the windows."""
    made = simulated(seed)
    if made.rpm is None or made.bearing is None or made.rpm / 60 * LENGTH / RATE < TURNS:
        return None
    made = resample(made, RATE)
    try:
        find_input(INPUT).check(LENGTH, RATE, made.rpm, made.bearing)
    except InputError:
        return None
    if made.signal.size < LENGTH:
        return None
    return replace(made, signal=made.signal[: int(MOST * RATE)], specimen=made.origin, machine=made.origin)


def benches(folder: Path) -> Iterator[Recording]:
    """All recordings of the benches at the model's rate; origins are unique."""
    for each in bench_recordings(folder):
        yield replace(resample(each, RATE), origin=f"{each.domain} {each.origin}")


def train(known: Sequence[Recording]) -> Model:
    """The model of these recordings, whose confidence is fitted on recordings left out, most of them of other machines."""
    recipe = make_recipe("dense-source-only", INPUT, None, {"encoder": ENCODER, "balance": "true"})
    recipe = replace(recipe, calibration=Temperature(), final=None)
    Known.lists.append(known)
    spec = RunSpec(
        "benches", Known(len(Known.lists) - 1), Task("known", "again"), "dense-source-only", recipe,
        Preparation(INPUT, LENGTH, STRIDE), "recording", 0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        (run,) = run_stack([spec], [Path(place)], torch.device("cpu"), keep_model=True, write=False)
    assert run.model is not None
    return run.model


def diagnose(model: Model, recording: Recording) -> np.ndarray:
    """(state,) probabilities of a recording, pooled over its windows, in the order of STATES."""
    windows = prepare([recording], model.preparation)
    found = pool(tally(model.run(windows.values).log_probabilities), model.pooled_temperature)
    order = [model.classes.index(state) for state in STATES]
    return np.asarray(found.probabilities)[order]


def report(title: str, model: Model, recordings: Sequence[Recording]) -> None:
    for what, some in (("without balls", [each for each in recordings if each.label != "ball"]), ("all", recordings)):
        if what == "all" and len(some) == len([each for each in recordings if each.label != "ball"]):
            continue
        found = np.array([diagnose(model, each) for each in some])
        truth = np.array([STATES.index(str(each.label)) for each in some])
        said = found.argmax(axis=1)
        missed, false = ((said == 0) & (truth > 0)).sum(), ((said > 0) & (truth == 0)).sum()
        print(
            f"| {title} | {what} | {(said == truth).sum()} of {len(some)} | {missed} of {(truth > 0).sum()} |"
            f" {false} of {(truth == 0).sum()} | {100 * float(ece(found, truth, bins=15)):.1f} |",
            flush=True,
        )


def write_states(known: Sequence[Recording]) -> None:
    """states.safetensors: what each state looks like on each bench."""
    tensors: dict[str, torch.Tensor] = {}
    states = []
    for bench in dict.fromkeys(each.domain for each in known):
        windows = prepare([each for each in known if each.domain == bench], Preparation(STATES_INPUT, LENGTH, STRIDE))
        values = windows.values.reshape(len(windows), -1).astype(np.float64)
        values = (values - values.mean(axis=0)) / values.std(axis=0)
        for state in dict.fromkeys(str(label) for label in windows.labels):
            members = values[windows.labels == state]
            mean = members.mean(axis=0)
            _, lengths, axes = np.linalg.svd(members - mean, full_matrices=False)
            axes = axes[:AXES] * (lengths[:AXES, None] / np.sqrt(len(members)))
            rest = np.sqrt(np.maximum((members - mean).var(axis=0) - (axes**2).sum(axis=0), 0))
            states.append([bench, state])
            for name, part in (("mean", mean), ("axes", axes), ("rest", rest)):
                tensors[f"{bench}/{state}/{name}"] = torch.from_numpy(part).half()
    made = {"input": STATES_INPUT, "states": states, "made_by": "benchmarks/general_model.py"}
    write_atomically(STATES_FILE, tensor_bytes(tensors, made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data"), help="holds cwru and hit-sm")
    parser.add_argument("--jobs", type=int, default=1, help="processes that simulate")
    parser.add_argument("--write", action="store_true", help="write the model of all of them to the package")
    parser.add_argument("--left-out", action="store_true", help="write the weights made without each bench, by dataset")
    arguments = parser.parse_args()
    real = list(benches(arguments.folder))
    if arguments.write:
        write_states(real)
    with ProcessPoolExecutor(arguments.jobs) as pool_of:
        seeds = range(FIRST, FIRST + MACHINES)
        made = [each for each in pool_of.map(machine, seeds, chunksize=8) if each is not None]
    print(f"{len(made)} simulated machines, {len(real)} recordings of benches\n")
    print(
        "| left out | types | right | faults called healthy | healthy called faulty | ECE |\n|---|---|---|---|---|---|"
    )
    names = list(dict.fromkeys(each.domain for each in real))
    right, left_out = 0, dict[str, Model]()
    for bench in names:
        model = train([each for each in (*made, *real) if each.domain != bench])
        left_out[BENCHES[bench][1]] = model
        own = [each for each in real if each.domain == bench]
        report(bench, model, own)
        right += sum(STATES[int(diagnose(model, each).argmax())] == each.label for each in own)
    fresh = [each for each in map(machine, range(5000, 5160)) if each is not None]
    report("simulated machines (unseen)", model, fresh)
    if arguments.left_out:
        left_out["across-machines"] = train(made)
        write_left_out(left_out, FOLDER / LEFT_OUT.name)
    if arguments.write:
        save_model(FOLDER, described(train([*made, *real]), right, len(real)))
        print(f"\n{sum(file.stat().st_size for file in FOLDER.iterdir()) / 1e6:.2f} MB in {FOLDER}")


def write_left_out(models: Mapping[str, Model], path: Path) -> None:
    """The weights by the dataset whose benches they were made without."""
    tensors: dict[str, torch.Tensor] = {}
    for name, model in models.items():
        assert model.calibration is not None
        tensors |= {f"{name}/network.{key}": value for key, value in model.network.state_dict().items()}
        tensors |= {f"{name}/calibration.{key}": value for key, value in model.calibration.state().items()}
    write_atomically(path, tensor_bytes(tensors, {"made_by": "benchmarks/general_model.py --left-out"}))


def described(model: Model, right: int, total: int) -> Model:
    """The model, whose recommendation says what it was tested on: recordings of benches that were left out."""
    tested = f"with a test bench left out {right} of {total} recordings are right, most of the others are balls of CWRU"
    decision = Decision("check", right / total, binomial_interval(right, total), (f"made for any machine; {tested}",))
    metadata = model.metadata | {"recipe": "general", "task": "any machine"}
    # Every machine has a spectrum of its own, which would be called unfamiliar.
    return replace(model, metadata=metadata, decision=decision, shift="machine", familiarity=None)


if __name__ == "__main__":
    main()
