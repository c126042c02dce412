"""What a model says of recordings it should not know, and of those it should: alarms, and confidence of recordings.

    python benchmarks/alarm.py --data cwru --root data/cwru --task load2:load1 --third load3 --without inner-021

One class is left out of source and target altogether, and the last quarter of every target recording; the model is
adapted to the rest. Then it is asked about that quarter (false alarms), the left-out class in the target's condition
(an unknown fault) and the known classes in a third condition (drift). A recording here is a piece of `--piece` windows
in a row. Which score rang is told for windows: each has a third of the rate. The second table is about the confidence
of recordings: mean confidence, share right and ECE of the same pieces, pooled at temperature 1, at the one a model is
given, and by the product of its windows' probabilities. docs/trust.md has what came out.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bearcat.calibration import ece
from bearcat.data import Preparation, Recording, Split, Task, Windows, load, open_dataset, prepare, split_task
from bearcat.data.recording import spectrum
from bearcat.diagnose import diagnose, pooled_temperature, tally
from bearcat.evaluate import predict
from bearcat.recipe import RECIPES, recipe_named
from bearcat.train import Run, Trained, train
from bearcat.trust import Familiarity, fit_familiarity

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Asked:
    """Some windows, in the order of time, as the model sees them."""

    windows: Windows
    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    log_probabilities: Array

    @property
    def spectra(self) -> NDArray[np.float32]:
        values = np.asarray(self.windows.values)
        return spectrum(values) if values.shape[-1] == self.windows.span else values

    def scores(self, known: Familiarity) -> Array:
        return known.scores(self.logits, self.features, self.spectra)

    def pieces(self, size: int) -> list[NDArray[np.int64]]:
        """Places of `size` windows in a row of one recording."""
        found = []
        for number in range(len(self.windows.recordings)):
            mine = np.flatnonzero(self.windows.recording == number)
            mine = mine[np.argsort(self.windows.start[mine])]
            found += [mine[at : at + size] for at in range(0, len(mine) - size + 1, size)]
        return found


def parsed() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True)
    options.add_argument("--root", type=Path)
    options.add_argument("--task", required=True, help="SOURCE:TARGET")
    options.add_argument("--third", required=True, help="a domain that is neither")
    options.add_argument("--without", required=True, help="the class that is left out")
    options.add_argument("--recipe", default="CAT*-Temperature")
    options.add_argument("--input", default="frequency")
    options.add_argument("--epochs", type=int, default=40)
    options.add_argument("--windows", type=int, default=80, help="of each recording at most")
    options.add_argument("--piece", type=int, default=10, help="windows that make a recording")
    options.add_argument("--seed", type=int, default=0)
    return options.parse_args()


def look(trained: Trained, windows: Windows) -> Asked:
    logits, features = predict(trained.network, torch.from_numpy(np.ascontiguousarray(windows.values))[None])
    calibration = trained.calibration
    final = logits if calibration is None else calibration.apply(logits)
    return Asked(windows, logits[0].numpy(), features[0].numpy(), final[0].double().log_softmax(-1).numpy())


def alarm_row(name: str, asked: Asked, known: Familiarity, size: int) -> str:
    scores = asked.scores(known)
    limits = (known.energy_limit, known.distance_limit, known.shape_limit)
    parts = [float(np.mean(one > limit)) for one, limit in zip(scores, limits, strict=True)]
    strange, pieces = known.beyond(scores), asked.pieces(size)
    rung = sum(known.alarm(int(strange[one].sum()), len(one)) for one in pieces)
    cells = [f"{100 * strange.mean():.0f} %", *(f"{100 * one:.0f} %" for one in parts), f"{rung} of {len(pieces)}"]
    return f"| {name} | {' | '.join(cells)} |"


def pooled_row(name: str, asked: Asked, labels: NDArray[np.int64], temperature: float, size: int) -> str:
    cells = []
    for one in (1.0, temperature, 1 / size):
        places = asked.pieces(size)
        found = [diagnose(tally(asked.log_probabilities[place]), one) for place in places]
        truth = np.array([labels[place[0]] for place in places])
        sure = np.stack([each.probabilities for each in found])
        right = float(np.mean(sure.argmax(axis=1) == truth))
        cells += [f"{100 * sure.max(axis=1).mean():.0f} / {100 * right:.0f} / {100 * float(ece(sure, truth)):.0f}"]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    told = parsed()
    source, target = told.task.split(":")
    catalogue = open_dataset(told.data, told.root).catalogue()
    preparation = Preparation(input=told.input)

    def domain(name: str, unknown: bool = False, first: float = 0.0, last: float = 1.0) -> Windows:
        """A part of every recording of the classes that are kept, or of the one that is not."""

        def part(one: Recording) -> Recording:
            windows = min(told.windows, one.signal.shape[-1] // preparation.length)
            start, stop = (preparation.length * round(share * windows) for share in (first, last))
            return replace(one, signal=one.signal[..., start:stop])

        recordings = [one for one in load(catalogue, [name]) if (one.label == told.without) == unknown]
        return prepare([part(one) for one in recordings], preparation)

    known_source, known_target = domain(source), domain(target, last=0.75)
    split = split_task(Task(source, target), known_source, known_target, Split("block"), told.seed)
    numbered = [
        replace(one, values=np.arange(len(one), dtype=np.float32)[:, None, None])
        for one in (known_source, known_target)
    ]
    places = split_task(Task(source, target), numbered[0], numbered[1], Split("block"), told.seed).training
    started = time.monotonic()
    recipe = RECIPES[recipe_named(told.recipe)].for_input(told.input).in_epochs(told.epochs)
    trained = train([Run(recipe, split.training, told.seed)], torch.device("cpu"))
    learnt = look(trained, known_target[places.target_train.values[:, 0, 0].astype(np.int64)])
    held = look(trained, split.held_back.target_test)
    known = fit_familiarity(
        learnt.features, learnt.spectra, held.logits, held.features, held.spectra, held.windows.recording
    )
    of_source = look(trained, known_source[places.source_test.values[:, 0, 0].astype(np.int64)])
    temperature = pooled_temperature(
        of_source.log_probabilities, split.training.source_test.labels, of_source.windows.recording
    )
    later, third = look(trained, domain(target, first=0.75)), look(trained, domain(told.third))
    print(
        f"\n{told.data}, {source} → {target} without {told.without}, {told.recipe}, {told.input} input, {told.epochs} epochs,"
        f" seed {told.seed}, {time.monotonic() - started:.0f} s; limits set for {100 * known.rate:.1f} % of windows,"
        f" {100 * known.recording_limit:.1f} % unfamiliar windows in the strangest held-out recording\n"
    )
    print(
        f"| windows | unfamiliar | energy | distance | shape | recordings of {told.piece} alarmed |\n|---|---|---|---|---|---|"
    )
    print(alarm_row(f"{target}, later", later, known, told.piece))
    print(alarm_row(f"{target}, {told.without}", look(trained, domain(target, unknown=True)), known, told.piece))
    print(alarm_row(f"{told.third}, known classes", third, known, told.piece))
    print(alarm_row(f"{source}, held out", of_source, known, told.piece))
    print(
        f"\n| confidence / right / ECE in % | temperature 1 | {temperature:.2f}, as saved | product |\n|---|---|---|---|"
    )
    codes = {label: number for number, label in enumerate(split.training.classes)}
    for name, asked in ((f"{target}, later", later), (f"{told.third}", third)):
        labels = np.array([codes[str(label)] for label in asked.windows.labels])
        print(pooled_row(name, asked, labels, temperature, told.piece))


if __name__ == "__main__":
    main()
