"""bearcat beside skada, like for like: the same arrays, splits, network, optimiser, epochs and batches.

    BEARCAT_DATA=../shared/data python benchmarks/skada_side_by_side.py --out skada.jsonl
    python benchmarks/skada_side_by_side.py --read skada.jsonl        # the table; benchmarks/evidence.py keeps it
    python benchmarks/skada_side_by_side.py --only "hit-sm, specimen, MCC" --seeds 40 --out mcc.jsonl

Both libraries train a dense network of 256 and 128 units on 384 source windows and 384 target windows without labels,
50 epochs of Adam at 0.001 in batches of 64 and 64, and are scored on the target's held-out windows. Three columns:
skada with its own losses and weights (1 for each), bearcat with those weights from the first step on (`same`), and
bearcat with its recipe's own weights, ramp and schedule (`recipe`). skada gets bearcat's domain classifier, because its
own ends in a softmax over one output, which is 1 for every window: it learns nothing. Seconds are those of the
processor, one thread; skada 0.6.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bearcat.adaptation.spec import Library, RunSpec
from bearcat.cat.algorithm import Run, train
from bearcat.cat.evaluate import predict
from bearcat.cat.ingredient import View
from bearcat.cat.losses import Adversarial, Confusion
from bearcat.cat.recipes import RECIPES, Recipe, Schedule
from bearcat.data import Preparation, Split, Task, open_dataset
from bearcat.data.tasks import Labelled, TrainingData, Unlabelled
from bearcat.methods.alignments import CovarianceMatching, Transport, covariance

WINDOWS, TESTED, EPOCHS, BATCH, SEEDS = 384, 1000, 50, 64, 5
WIDTHS = (256, 128)
AT_ONCE = 1e9  # a slope with which a ramp is 1 from the second step on
CONSTANT = Schedule(epochs=EPOCHS, batch=BATCH, drops=(), align_from=0, label_from=0)
OWN = Schedule(batch=BATCH).scaled(EPOCHS)
METHODS = ("source-only", "CORAL", "DANN", "MCC", "DeepJDOT")
LENGTH = Preparation(length=1024, input="frequency")
TASKS: tuple[tuple[str, str, dict[str, str], Task, Split], ...] = (
    ("cwru, condition", "cwru", {}, Task("load0", "load3"), Split("block")),
    ("hit-sm, condition", "hit-sm", {}, Task("mfs-600", "mfs-1200"), Split("block")),
    ("cwru, specimen", "cwru", {"domain_by": "size"}, Task(("size007", "size014"), "size021"), Split("specimen")),
    ("hit-sm, specimen", "hit-sm", {"label_by": "type"}, Task("mfs-600", "mfs-1200"), Split("specimen")),
)


class FeatureCovariance(CovarianceMatching):
    """CORAL of features instead of logits, as in skada."""

    def loss(self, view: View) -> torch.Tensor:
        source = covariance(view.source_features, view.source_present)
        gap = source - covariance(view.target_features, view.target_present)
        return view.ramp * (gap.square().sum(dim=(1, 2)) / (4 * gap.shape[1] ** 2))


def same(method: str) -> Recipe:
    """skada's loss and weight, from the first step to the last."""
    ingredients = {
        "source-only": (),
        "CORAL": (FeatureCovariance(slope=AT_ONCE),),
        "DANN": (Adversarial(reduction="sum of means", slope=AT_ONCE),),
        "MCC": (Confusion(temperature=1.0),),
        "DeepJDOT": (Transport(features=1.0, slope=AT_ONCE),),
    }[method]
    return Recipe(ingredients, schedule=CONSTANT)


def own(method: str) -> Recipe:
    """The recipe of this name with its own weights and schedule; MCC, which has no recipe alone, as in DANN*."""
    return Recipe((Confusion(),) if method == "MCC" else RECIPES[method].ingredients, schedule=OWN)


@dataclass(frozen=True, eq=False)
class Arrays:
    """What both libraries are given: windows (window, point) scaled by the source, and labels of source and test."""

    classes: tuple[str, ...]
    source: np.ndarray
    labels: np.ndarray
    target: np.ndarray
    test: np.ndarray
    truth: np.ndarray

    def training(self) -> TrainingData:
        """As bearcat's loop takes it; calibration is not used, so the source's test windows are its first ones."""
        source, target = self.source[:, None], self.target[:, None]
        held = Labelled(source[:BATCH], self.labels[:BATCH])
        return TrainingData(self.classes, Labelled(source, self.labels), held, Unlabelled(target))


def arrays(spec: RunSpec, library: Library) -> Arrays:
    """Of a task and seed: so many windows of each side, drawn from the seed, and the held-out ones of the target."""
    split, random = library.split(spec), np.random.default_rng([spec.seed, 7])
    source, target = split.training.source_train, split.training.target_train
    held, truth = split.held_back.target_test, split.held_back.target_test_labels
    chosen = random.permutation(len(source))[:WINDOWS]
    goal = random.permutation(len(target))[:WINDOWS]
    tested = random.permutation(np.flatnonzero(truth >= 0))[:TESTED]
    values = np.asarray(source.values)[chosen].reshape(len(chosen), -1)
    mean, scale = values.mean(axis=0), values.std(axis=0) + 1e-6

    def scaled(windows: Any, places: np.ndarray) -> np.ndarray:
        flat = np.asarray(windows.values)[places].reshape(len(places), -1)
        return np.ascontiguousarray((flat - mean) / scale, dtype=np.float32)

    return Arrays(
        split.classes, scaled(source, chosen), np.asarray(source.labels)[chosen], scaled(target, goal),
        scaled(held, tested), truth[tested],
    )  # fmt: skip


def scored(said: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Accuracy, and the share of windows that the commonest class is given: 1 where all get one class."""
    return float((said == truth).mean()), float(np.bincount(said).max() / len(said))


def bearcats(recipe: Recipe, data: list[Arrays], seeds: list[int]) -> tuple[list[tuple[float, float]], float]:
    """Scores on the target of runs trained together, and the processor's seconds that took."""
    recipe = replace(recipe, encoder=f"dense:widths={','.join(map(str, WIDTHS))}", balance=False)
    start = time.process_time()
    runs = [Run(recipe, each.training(), seed) for each, seed in zip(data, seeds, strict=True)]
    trained = train(runs, torch.device("cpu"))
    seconds = time.process_time() - start
    found = []
    for number, each in enumerate(data):
        values = torch.from_numpy(each.test)[None, :, None].expand(len(data), -1, -1, -1)
        said = predict(trained.network, values)[0][number].argmax(dim=-1).numpy()
        found.append(scored(said, each.truth))
    return found, seconds


class Net(nn.Module):
    """The dense network of bearcat in torch's own layers."""

    def __init__(self, points: int, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(points, WIDTHS[0]), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(WIDTHS[0], WIDTHS[1]), nn.ReLU(), nn.Dropout(0.5),
        )  # fmt: skip
        self.head = nn.Linear(WIDTHS[1], classes)

    def forward(self, values: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:  # noqa: ARG002
        found: torch.Tensor = self.head(self.encoder(values))
        return found


class Domains(nn.Module):
    """bearcat's domain classifier behind skada's gradient reversal."""

    def __init__(self) -> None:
        super().__init__()
        wide = 1024
        self.layers = nn.Sequential(
            nn.Linear(WIDTHS[1], wide), nn.ReLU(), nn.Dropout(0.5), nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(wide, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, features: torch.Tensor, sample_weight: Any = None) -> torch.Tensor:  # noqa: ARG002
        from skada.deep.modules import GradientReversalLayer

        found: torch.Tensor = self.layers(GradientReversalLayer.apply(features, 1.0)).squeeze(1)
        return found


def skadas(method: str, data: Arrays, seed: int) -> tuple[tuple[float, float], float]:
    """Scores on the target and seconds of training."""
    from skada import deep

    torch.manual_seed(seed)
    module = Net(data.source.shape[1], len(data.classes))
    given: dict[str, Any] = {
        "optimizer": torch.optim.Adam, "lr": CONSTANT.rate, "optimizer__weight_decay": CONSTANT.weight_decay,
        "max_epochs": EPOCHS, "batch_size": BATCH, "train_split": None, "verbose": 0,
    }  # fmt: skip
    makers = {
        "source-only": lambda: deep.SourceOnly(module, **given),
        "CORAL": lambda: deep.DeepCoral(module, "encoder", **given),
        "DANN": lambda: deep.DANN(module, "encoder", domain_classifier=Domains(), **given),
        "MCC": lambda: deep.MCC(module, "encoder", **given),
        "DeepJDOT": lambda: deep.DeepJDOT(module, "encoder", **given),
    }
    net = makers[method]()
    values = np.concatenate([data.source, data.target])
    labels = np.concatenate([data.labels, np.full(len(data.target), -1)]).astype(np.int64)
    domains = np.concatenate([np.ones(len(data.source)), np.full(len(data.target), -2)]).astype(np.int64)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(values, labels, sample_domain=domains)
    seconds = time.process_time() - start
    said = net.predict(data.test, sample_domain=np.full(len(data.test), -2))
    return scored(said, data.truth), seconds


def specs() -> Iterator[tuple[str, RunSpec]]:
    for shift, name, settings, task, split in TASKS:
        dataset = open_dataset(name, None, settings)
        yield shift, RunSpec(name, dataset, task, "source-only", RECIPES["source-only"], LENGTH, split)


def measure(out: Path, seeds: int, only: str) -> None:
    """A line for each library, method, task and seed; lines that are there are kept. bearcat's seeds are trained together,
    which changes no result, and seed 0 once more alone, for the time.
    """
    torch.set_num_threads(1)
    library = Library()
    done = {key(line) for line in read(out)}

    def wanted(way: str, method: str, shift: str, seed: int) -> bool:
        return (way, method, shift, seed) not in done

    def write(way: str, method: str, shift: str, seed: int, scores: tuple[float, float], seconds: float) -> None:
        line = {"part": "skada", "way": way, "method": method, "dataset": shift, "seed": seed}
        accuracy, commonest = (round(score, 5) for score in scores)
        line |= {"accuracy": accuracy, "commonest": commonest, "seconds": round(seconds, 3)}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def data(spec: RunSpec, seed: int) -> Arrays:
        return arrays(library.identified(replace(spec, seed=seed)), library)

    units = [(shift, spec, method) for shift, spec in specs() for method in METHODS if only in f"{shift}, {method}"]
    for shift, spec, method in units:
        rows = [("same", method, same(method)), ("recipe", method, own(method))]
        for way, name, recipe in rows:
            if wanted(way, name, shift, 0):
                found, seconds = bearcats(recipe, [data(spec, seed) for seed in range(seeds)], list(range(seeds)))
                for seed, scores in enumerate(found):
                    write(way, name, shift, seed, scores, seconds / seeds)
        if wanted("alone", method, shift, 0):
            (scores,), seconds = bearcats(same(method), [data(spec, 0)], [0])
            write("alone", method, shift, 0, scores, seconds)
    for seed in range(seeds):
        for shift, spec, method in units:
            if wanted("skada", method, shift, seed):
                write("skada", method, shift, seed, *skadas(method, data(spec, seed), seed))


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("way", "method", "dataset", "seed"))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def print_table(path: Path) -> None:
    groups: dict[tuple[str, str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for line in read(path):
        scores = 100 * line["accuracy"], 100 * line.get("commonest", np.nan), line["seconds"] or np.nan
        groups[line["dataset"], line["method"], line["way"]].append(scores)
    for (shift, method, way), found in sorted(groups.items()):
        accuracy, commonest, seconds = np.mean(found, axis=0)
        spread = np.std([each[0] for each in found])
        said = f"{accuracy:8.1f} ± {spread:4.1f}   one class {commonest:5.1f}"
        print(f"{shift:18}{method:26}{way:8}{len(found):4}{said}{seconds:8.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("skada.jsonl"), help="lines are appended")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help='what has this in its name, such as "hit-sm, specimen, MCC"')
    parser.add_argument("--read", type=Path)
    chosen = parser.parse_args()
    if chosen.read is None:
        measure(chosen.out, chosen.seeds, chosen.only)
    print_table(chosen.read or chosen.out)


if __name__ == "__main__":
    main()
