"""Bearings never seen: what classical and deep methods make of them, on the same splits (docs/results.md).

    python benchmarks/specimen.py ../shared/data                          # the comparators, two minutes
    python benchmarks/specimen.py ../shared/data --recipes few --seeds 3  # and recipes of the package, on CPU or GPU
    python benchmarks/specimen.py ../shared/data --protocols cwru --window 4096
    python benchmarks/specimen.py ../shared/data --recipes dense-MCC --keep healthy outer   # a target of two types

A fold trains on all recordings of its source and is scored on all of its target, whose labels nothing sees; methods
that adapt are given the target's windows without labels, all of them. A recording is what the mean log-probability of
its windows says. Protocols:

- `cwru`: the source has two damage sizes at all loads, the target the third; healthy at loads 0 and 1 against 2 and 3
  (there is one healthy bearing). Types healthy, inner, ball, outer; 14 recordings a fold.
- `hit-sm`: rig mfs, the source has two sizes of defect at all speeds, the target the third; of each healthy recording
  the first half against the second. Types healthy, inner, outer; 9 recordings a fold.
- `machine`: CWRU (without balls) against HIT-SM's mfs, both ways.
- `simulated`: twelve bearings of each type from the simulator, each in a machine of its own; a third is left out.

Windows of 8192 samples at 12 kHz, which hold 7 turns of HIT-SM's slowest shaft and 20 of CWRU's, overlapping by half.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from bearcat.data.choose import suited_input
from bearcat.data.datasets.benches import BENCHES, CWRU, HITSM
from bearcat.data.datasets.simulate import Simulated
from bearcat.data.prepare import Preparation, prepare
from bearcat.data.recording import Recording, Windows, cut, resample
from bearcat.data.tasks import Split, SplitTask, Task, split_task
from bearcat.methods.known_states import KnownStates
from bearcat.methods.recipe import RECIPES
from bearcat.runs.spec import make_recipe
from bearcat.settings import override
from bearcat.training.evaluate import predict
from bearcat.training.loop import Run, chosen_device, train

RATE = 12_000.0
TYPES = ("healthy", "inner", "ball", "outer")
PARTS = ("log-spectrum", "octave-spectrum", "band-kurtosis", "envelope-orders", "fault-orders", "bearing-orders")
NETWORK_WINDOW = 1024  # samples, for the paper's network
STRENGTH = 0.01  # C of logistic regression: as for the check models of bearcat.trust
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fold:
    """Recordings to learn from and recordings to be recognised; their labels are types, `specimen` the bearing."""

    protocol: str
    name: str
    source: tuple[Recording, ...]
    target: tuple[Recording, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for name in TYPES if any(recording.label == name for recording in self.source))

    @property
    def bench(self) -> str:
        """The target's name among BENCHES, or nothing."""
        machines = {str(recording.machine).split()[0].lower() for recording in self.target}
        return next((name for name in BENCHES if machines & {name.split("-")[0], name.split("-")[-1]}), "")

    @property
    def truth(self) -> list[str]:
        return [str(recording.label) for recording in self.target]


def cwru(folder: Path) -> list[Fold]:
    found: dict[tuple[str, str], list[Recording]] = {}
    for entry in CWRU(root=folder / "cwru").catalogue().entries:
        kind, _, size = str(entry.label).partition("-")
        found.setdefault((size, entry.domain), []).append(
            replace(entry.read(), label="healthy" if kind == "normal" else kind)
        )
    sizes, loads = ("007", "014", "021"), ("load0", "load1", "load2", "load3")
    folds = []
    for left_out in sizes:
        kept = [size for size in sizes if size != left_out]
        source = [replace(each, domain=size) for size in kept for load in loads for each in found[size, load]]
        source += [replace(each, domain=kept[n]) for n, load in enumerate(loads[:2]) for each in found["", load]]
        target = [replace(each, domain=left_out) for load in loads for each in found[left_out, load]]
        target += [replace(each, domain=left_out) for load in loads[2:] for each in found["", load]]
        folds.append(Fold("cwru", f"{int(left_out) / 1000:.3f}″", tuple(source), tuple(target)))
    return folds


@cache
def hit_sm_recordings(folder: Path) -> tuple[tuple[str, Recording], ...]:
    """The rig mfs at 12 kHz: size of the defect (empty where healthy) and recording."""
    kinds = {"IR": "inner", "OR": "outer", "No": "healthy"}
    entries = [entry for entry in HITSM(root=folder / "hit-sm").catalogue().entries if entry.domain.startswith("mfs")]
    named = [(str(entry.label), resample(entry.read(), RATE)) for entry in entries]
    return tuple(
        (label[2:] if label != "Normal" else "", replace(each, label=kinds[label[:2]])) for label, each in named
    )


def hit_sm(folder: Path) -> list[Fold]:
    folds, recordings = [], hit_sm_recordings(folder)
    healthy = [each for size, each in recordings if not size]
    for left_out in ("2", "5", "8"):
        kept = [size for size in ("2", "5", "8") if size != left_out]
        source = [replace(each, domain=size) for size, each in recordings if size in kept]
        target = [replace(each, domain=left_out) for size, each in recordings if size == left_out]
        for number, each in enumerate(healthy):
            middle = each.signal.size // 2
            source.append(replace(each, domain=kept[number % 2], signal=each.signal[:middle]))
            target.append(replace(each, domain=left_out, signal=each.signal[middle:]))
        folds.append(Fold("hit-sm", f"{left_out}°", tuple(source), tuple(target)))
    return folds


def machine(folder: Path) -> list[Fold]:
    entries = CWRU(root=folder / "cwru").catalogue().entries
    kinds = {"normal": "healthy", "inner": "inner", "outer": "outer"}
    one = [
        replace(entry.read(), domain="CWRU", label=kinds[str(entry.label).split("-")[0]])
        for entry in entries
        if str(entry.label).split("-")[0] in kinds
    ]
    other = [replace(each, domain="HIT-SM") for _, each in hit_sm_recordings(folder)]
    pairs = (("CWRU→HIT-SM", one, other), ("HIT-SM→CWRU", other, one))
    return [Fold("machine", name, tuple(source), tuple(target)) for name, source, target in pairs]


def simulated(folder: Path) -> list[Fold]:
    """Twelve bearings of each type in machines of their own, at two conditions; a third of them is left out."""
    del folder
    settings = {"specimens": "12", "groups": "3", "seconds": "3", "conditions": "N15_M07_F10,N09_M07_F10"}
    dataset = override(Simulated(), settings | {"faults": "inner,outer,ball", "rate": "24000"})
    every = [resample(entry.read(), RATE) for entry in dataset.catalogue().entries]
    names = list(dict.fromkeys(each.domain for each in every))
    pairs = [([each for each in every if each.domain != name], name) for name in names]
    return [
        Fold("simulated", name, tuple(source), tuple(each for each in every if each.domain == name))
        for source, name in pairs
    ]


PROTOCOLS: dict[str, Callable[[Path], list[Fold]]] = {
    "cwru": cwru, "hit-sm": hit_sm, "machine": machine, "simulated": simulated,
}  # fmt: skip


# --- features and inputs ----------------------------------------------------------------------------------------------


def hand_made(windows: NDArray[np.float32], rate: float) -> Doubles:
    """The features customary on CWRU, of windows (window, time): statistics of the samples (RMS, peak, skewness,
    kurtosis; crest, shape, impulse and clearance factors) and of the spectrum (mean, deviation, skewness and kurtosis
    of frequency, 16 log band powers), as in Lei, He and Zi 2008 (doi:10.1016/j.eswa.2007.08.072) and later tables;
    with the levels of envelope lines at the bearing's orders (the input `fault-orders`), which Smith and Randall 2015
    (doi:10.1016/j.ymssp.2015.04.021) recommend on these data. `samples` below holds the first twelve alone.
    """
    values = windows.astype(np.float64)
    values = values - values.mean(axis=1, keepdims=True)
    size, power = np.abs(values), np.square(values)
    rms, peak, mean = np.sqrt(power.mean(axis=1)), size.max(axis=1), size.mean(axis=1)
    root = np.sqrt(size).mean(axis=1) ** 2
    scaled = values / rms[:, None]
    columns = [np.log(rms), np.log(peak), (scaled**3).mean(axis=1), (scaled**4).mean(axis=1)]
    columns += [peak / rms, rms / mean, peak / mean, peak / root]
    spectrum = np.square(np.abs(np.fft.rfft(values * np.hanning(values.shape[1]), axis=1)))
    share = spectrum / spectrum.sum(axis=1, keepdims=True)
    frequency = np.linspace(0, rate / 2, spectrum.shape[1])
    centre = share @ frequency
    apart = frequency - centre[:, None]
    width = np.sqrt((share * apart**2).sum(axis=1))
    columns += [centre, width, *((share * (apart / width[:, None]) ** n).sum(axis=1) for n in (3, 4))]
    bands = [np.log(band.sum(axis=1)) for band in np.array_split(share, 16, axis=1)]
    return np.stack([*columns, *bands], axis=1)


class Material:
    """A fold's windows in every representation, each made once: (window, point)."""

    def __init__(self, fold: Fold, length: int) -> None:
        self.fold, self.length, self.stride = fold, length, length // 2
        self.kept: dict[str, tuple[Windows, Windows]] = {}

    def windows(self, text: str, length: int | None = None) -> tuple[Windows, Windows]:
        """Of source and target; `physics` is what the metadata of both allow."""
        length = length or self.length
        if text == "physics":
            text = suited_input(text, [each.info() for each in (*self.fold.source, *self.fold.target)])[0]
        key = f"{text} {length}"
        if key not in self.kept:
            how = Preparation(text, length, length // 2)
            self.kept[key] = prepare(self.fold.source, how), prepare(self.fold.target, how)
        return self.kept[key]

    def recordings(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the recording of each window, of source and target."""
        source, target = self.windows("fault-orders")
        return source.recording, target.recording

    def values(self, text: str) -> tuple[Doubles, Doubles]:
        if text not in ("hand-made", "samples"):
            source, target = (windows.values.reshape(len(windows), -1) for windows in self.windows(text))
            return source.astype(np.float64), target.astype(np.float64)
        made = []
        for recordings, lines in zip((self.fold.source, self.fold.target), self.values("fault-orders"), strict=True):
            parts = [hand_made(cut(each, self.length, self.stride)[:, 0], RATE) for each in recordings]
            features = np.concatenate(parts)
            made.append(features[:, :12] if text == "samples" else np.concatenate([features, lines], axis=1))
        return made[0], made[1]


# --- methods ----------------------------------------------------------------------------------------------------------

Scores = list[Doubles]  # log-probabilities (target window, class) of each seed
Method = Callable[[Material, Sequence[int]], Scores]


def labels_of(material: Material) -> NDArray[np.int64]:
    codes = np.array([material.fold.classes.index(str(each.label)) for each in material.fold.source])
    return codes[material.recordings()[0]]


def scaled(material: Material, text: str, by: str) -> tuple[Doubles, Doubles]:
    """Standardised by the source's statistics, or each domain of the source and the target by its own."""
    source, target = material.values(text)
    if by == "source":
        return tuple((part - source.mean(axis=0)) / (source.std(axis=0) + 1e-9) for part in (source, target))
    names = np.array([each.domain for each in material.fold.source])[material.recordings()[0]]
    source = source.copy()
    for name in set(names):
        own = source[names == name]
        source[names == name] = (own - own.mean(axis=0)) / (own.std(axis=0) + 1e-9)
    return source, (target - target.mean(axis=0)) / (target.std(axis=0) + 1e-9)


def logistic(*inputs: str, by: str = "source") -> Method:
    """Logistic regression, balanced; of several inputs the log-probabilities are added."""

    def method(material: Material, seeds: Sequence[int]) -> Scores:
        del seeds  # nothing is drawn
        total = 0.0
        for text in inputs:
            source, target = scaled(material, text, by)
            model = LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=2000)
            total = total + model.fit(source, labels_of(material)).predict_log_proba(target)
        return [np.asarray(total)]

    return method


def forest(text: str) -> Method:
    def method(material: Material, seeds: Sequence[int]) -> Scores:
        source, target = material.values(text)
        found = []
        for seed in seeds:
            model = RandomForestClassifier(300, class_weight="balanced", random_state=seed, min_samples_leaf=2)
            found.append(np.log(model.fit(source, labels_of(material)).predict_proba(target) + 1e-3))
        return found

    return method


COMPARATORS: dict[str, Method] = {
    "random forest, hand-made features": forest("hand-made"),
    "random forest, statistics of samples and spectrum alone": forest("samples"),
    "logistic regression, hand-made features": logistic("hand-made"),
    **{f"logistic regression, `{name}`": logistic(name) for name in PARTS},
    "logistic regression, `physics`": logistic("physics"),
    "logistic regression, `log-spectrum` + `envelope-orders`": logistic("log-spectrum", "envelope-orders"),
    "logistic regression, `envelope-orders`, each domain by itself": logistic("envelope-orders", by="domain"),
    "logistic regression, `physics`, each domain by itself": logistic("physics", by="domain"),
}
FEW = (
    "dense-source-only",
    "linear-source-only",
    "match-clusters",
    "unseen-bearings",
    "dense-MCC",
    "dense-CAT*-Temperature",
)
NETWORK = ("source-only", "DANN*", "CAT*-Temperature")  # the paper's network: minutes on a GPU, hours on a CPU


def split_of(material: Material, text: str, length: int, seed: int) -> SplitTask:
    """The package's split of the source; all target windows are adapted to and scored."""
    source, target = material.windows(text, length)
    names = tuple(dict.fromkeys(each.domain for each in material.fold.source))
    task = Task(names, target.recordings[0].domain)
    split = split_task(task, source, target, Split("block"), seed)
    every = np.arange(len(target))
    return replace(split, target_train=np.random.default_rng(seed).permutation(every), target_test=every)


def recipe(name: str, epochs: int | None, settings: Mapping[str, str] | None = None, kind: str | None = None) -> Method:
    """A recipe of the package on its own input, or on this physical one, through its trainer; the paper's network has
    windows of 1024 samples. What a recipe knows of other benches is without the bench it is tested on.
    """

    def method(material: Material, seeds: Sequence[int]) -> Scores:
        usual = RECIPES[name].input
        physical, changes = usual != "time", dict(settings or {})
        text, length = (kind or usual, material.length) if physical else ("frequency", NETWORK_WINDOW)
        if RECIPES[name].find(KnownStates) is not None:
            changes["known-states.without"] = material.fold.bench
        made = make_recipe(name, text, None if physical else epochs, changes)
        splits = [split_of(material, text, length, seed) for seed in seeds]
        order = [list(material.fold.classes).index(label) for label in splits[0].classes]
        found = []
        stacks = [[split] for split in splits] if physical else [splits]
        for stack, own in zip(stacks, [[seed] for seed in seeds] if physical else [list(seeds)], strict=True):
            runs = [Run(made, split.training, seed) for split, seed in zip(stack, own, strict=True)]
            trained = train(runs, chosen_device("auto"))
            values = torch.from_numpy(np.ascontiguousarray(stack[0].target.values)).to(trained.finite.device)
            logits = predict(trained.network, values[None].expand(len(runs), *values.shape))[0]
            for scores in logits.log_softmax(dim=-1).cpu().double().numpy():
                row = np.empty_like(scores)
                row[:, order] = scores
                found.append(row)
        return found

    return method


# --- scores and the table ---------------------------------------------------------------------------------------------


def recordings_right(scores: Doubles, recording: NDArray[np.int64], fold: Fold) -> tuple[int, int]:
    """Recordings whose type is right, and faults that are called healthy."""
    pooled = np.array([scores[recording == number].mean(axis=0) for number in range(len(fold.target))])
    said = [fold.classes[code] for code in pooled.argmax(axis=1)]
    right = sum(one == other for one, other in zip(said, fold.truth, strict=True))
    missed = sum(one == "healthy" != other for one, other in zip(said, fold.truth, strict=True))
    return right, missed


def balanced_accuracy(scores: Doubles, recording: NDArray[np.int64], fold: Fold) -> float:
    truth = np.array([fold.classes.index(label) for label in fold.truth])[recording]
    said = scores.argmax(axis=1)
    return float(np.mean([(said[truth == code] == code).mean() for code in np.unique(truth)]))


def rows(protocol: str, folds: Sequence[Fold], methods: Mapping[str, Method], length: int, seeds: int) -> Iterator[str]:
    """The table of a protocol: recordings right by fold and in all, faults called healthy, windows."""
    materials = [Material(fold, length) for fold in folds]
    total = sum(len(fold.target) for fold in folds)
    heads = [f"{fold.name} (of {len(fold.target)})" for fold in folds]
    yield f"\n| {protocol} | {' | '.join(heads)} | all (of {total}) | faults called healthy | balanced accuracy of windows |"
    yield f"|---|{'---|' * (len(folds) + 3)}"
    for name, method in methods.items():
        started, right, missed, windows = time.monotonic(), [], [], []
        for fold, material in zip(folds, materials, strict=True):
            found = method(material, range(seeds))
            recording = material.recordings()[1]
            if len(found[0]) != len(recording):  # windows of another length
                recording = material.windows("frequency", NETWORK_WINDOW)[1].recording
            counts = np.array([recordings_right(scores, recording, fold) for scores in found], dtype=float)
            right.append(counts[:, 0].mean())
            missed.append(counts[:, 1].mean())
            windows.append(100 * np.mean([balanced_accuracy(scores, recording, fold) for scores in found]))
        cells = [f"{count:.3g}" for count in (*right, sum(right), sum(missed))]
        mean = f"{np.mean(windows):.0f} ({' / '.join(f'{value:.0f}' for value in windows)})"
        yield f"| {name} | {' | '.join(cells)} | {mean} |  <!-- {time.monotonic() - started:.0f} s -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data"), help="holds cwru and hit-sm")
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=["cwru", "hit-sm", "machine"])
    parser.add_argument("--window", type=int, default=8192, help="samples at 12 kHz")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40, help="of recipes with the paper's network")
    parser.add_argument("--recipes", nargs="*", default=[], help="names of recipes, or few: those on physical inputs")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of these recipes")
    parser.add_argument("--input", help="of recipes on physical inputs, in place of their own")
    parser.add_argument("--keep", nargs="*", choices=TYPES, default=list(TYPES), help="types that the target holds")
    parser.add_argument("--only", action="store_true", help="leave the comparators out")
    arguments = parser.parse_args()
    settings = dict(text.split("=", 1) for text in arguments.set)
    names = [name for word in arguments.recipes for name in {"few": FEW, "network": NETWORK}.get(word, (word,))]
    methods = ({} if arguments.only else COMPARATORS) | {
        " ".join([f"`{name}`", *filter(None, [arguments.input]), *arguments.set]): recipe(
            name, arguments.epochs, settings, arguments.input
        )
        for name in names
    }
    for protocol in arguments.protocols:
        folds = [
            replace(fold, target=tuple(each for each in fold.target if each.label in arguments.keep))
            for fold in PROTOCOLS[protocol](arguments.folder)
        ]
        for row in rows(protocol, folds, methods, arguments.window, arguments.seeds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
