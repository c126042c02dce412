"""CAT on arrays: labelled source windows and unlabelled target ones; no file, grid or record.

>>> model = CAT(epochs=40).fit(X_source, y_source, X_target)
>>> model.predict_proba(X_target)        # calibrated, in the order of model.classes
>>> model.curves["pseudo_label_share"]   # a number for each epoch

The scikit-learn classifier (bearcat.estimator) is another face of it.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.calibration import Calibration, ReliabilityBins, reliability_bins
from bearcat.cat.networks import Encoder, Network, find_encoder, predict, select_run
from bearcat.cat.recipes import RECIPES, Recipe, find_recipe
from bearcat.cat.scaling import Temperature
from bearcat.cat.state import training_progress, unchanged, watcher
from bearcat.data.inputs import find_input
from bearcat.data.recording import Floats, Integers, RecordingInfo, Windows
from bearcat.data.tasks import HeldBack, Labelled, TrainingData, Unlabelled
from bearcat.data.windows import held_out
from bearcat.errors import InputError, naming_place, suggest
from bearcat.fast.device import chosen_device

SPLIT = 30  # a stream of randomness, apart from those of the loop
FEWEST_TARGET = 10  # windows; of fewer a batch has no statistics worth the name


@dataclass(eq=False)
class CAT:
    """The Calibrated Adaptive Teacher, or another method of `bearcat methods`, on arrays.

    Windows are given raw, (window, sample) or (window, channel, sample); labels are strings or whole numbers.

    >>> random = np.random.default_rng(0)
    >>> labels = np.array(["inner", "outer"] * 12)
    >>> tones = [np.sin((0.5 if label == "inner" else 1.5) * np.arange(80)) for label in labels]
    >>> model = CAT("DANN", input="frequency", epochs=2, batch=8).fit(tones, labels, np.roll(tones, 7))
    >>> model.predict_proba(tones).shape, sorted(model.curves)
    ((24, 2), ['loss_alignment', 'loss_supervised'])

    `fit` leaves `classes` (the labels of the source, sorted), `network` (on the CPU), `calibration`, `notes` (what to
    know before the result is called by the method's name) and `curves`, a number for each epoch, NaN before it existed:
    `loss_…`, `temperature`, `pseudo_label_share` and, where `y_target` was given, `target_accuracy`, `target_ece`,
    `target_ece_uncalibrated` and `pseudo_label_accuracy`.
    """

    method: str | Recipe = "CAT*-Temperature"
    _: KW_ONLY
    epochs: int | None = None  # every phase is scaled to them; None: the method's own, 300 in the paper
    input: str | None = None  # time, frequency, …: a row of INPUTS; None: the method's own
    # An encoder, its name (cnn, dense:widths=64,32, …), or a module that makes (batch, feature) of windows (batch,
    # channel, point): a copy of it is trained, from the weights that it has. None: the method's own.
    encoder: Encoder | str | nn.Module | None = field(default=None, repr=False)
    batch: int | None = None  # windows of each domain in a step, at most; None: the method's
    held_out: float = 0.2  # share of the source's windows that the calibrator is fitted on
    seed: int = 0
    device: str = "auto"
    rate: float | None = None  # samples per second, for inputs that need it
    progress: bool = True  # a line on a terminal, a line a minute in a log
    _network: Network | None = field(default=None, init=False, repr=False)

    def fit(
        self, X_source: Any, y_source: Any, X_target: Any = None, y_target: Any = None, groups: Any = None,  # noqa: N803
        *, domain: Any = None, target: Any = None,
    ) -> Self:  # fmt: skip
        """Trains, then calibrates on a share of the source. `y_target` is for curves of accuracy and ECE only. `groups`
        has a name for each source window, such as its bearing: none is trained on and calibrated on, where each class
        has two or more.

        For source and target in one array, `domain` has a name for each window, and `target` is the name of the domain
        to adapt to: fit(X, y, domain=domain, target="load3"). All other domains are the source. Labels of the target
        are not read.
        """
        if domain is not None or target is not None:
            if X_target is not None or y_target is not None:
                raise InputError("the target is given twice; give X_target, or domain and target", "target")
            X_source, y_source, X_target, groups = split_domains(X_source, y_source, groups, domain, target)  # noqa: N806
        recipe, source = self.recipe(), read_windows(X_source, "X_source")
        self.window_shape = source.shape[1:]
        self.classes, codes = np.unique(read_labels(y_source, "y_source", len(source)), return_inverse=True)
        if len(self.classes) < 2:
            raise InputError(f"the source has one class only, '{self.classes[0]}'; a classifier needs at least two")
        if X_target is not None:
            X_target = read_windows(X_target, "X_target", self.window_shape)  # noqa: N806
            if len(X_target) < FEWEST_TARGET:
                few = f"X_target holds {len(X_target)} window{'s' * (len(X_target) != 1)}"
                raise InputError(f"{few}; a training needs at least {FEWEST_TARGET}", "X_target")
        elif recipe.adapts:
            what = f"{self.name} learns from an unlabelled target, and without one it is not {self.name}"
            raise InputError(f"X_target: {what}; give its windows, or use method='source-only'", "X_target")
        if groups is not None:
            groups = np.unique(read_labels(groups, "groups", len(source)).astype(str), return_inverse=True)[1]

        # The input without what it could only make of a speed or bearing.
        info = RecordingInfo(domain="", origin="X", rate=self.rate)
        self._input = find_input(self.input or recipe.input).suited([info])
        self._shortest = recipe.encoder.shortest
        source, random = self._prepared(source), np.random.default_rng([self.seed, SPLIT])
        held = held_out(codes, self.held_out, random, groups)
        unlabelled = source[~held] if X_target is None else self._prepared(X_target)
        order = random.permutation(len(unlabelled))  # rows may follow their classes
        data = TrainingData(
            tuple(map(str, self.classes)), Labelled(source[~held], codes[~held]), Labelled(source[held], codes[held]),
            Unlabelled(unlabelled[order]),
        )  # fmt: skip
        batch = min(self.batch or recipe.schedule.batch, len(data.source_train), len(data.target_train))
        recipe = replace(recipe, schedule=replace(recipe.schedule, batch=batch))
        if recipe.calibration is None and recipe.final is None:
            recipe = replace(recipe, final=Temperature())
        device, watch = chosen_device(self.device), None
        if X_target is not None and y_target is not None:
            truth, zeros = self._codes(y_target, "y_target", len(X_target)), np.zeros(len(X_target), dtype=np.int64)
            windows = Windows(unlabelled, recording=zeros, start=zeros, span=X_target.shape[-1], recordings=())
            watch = watcher([HeldBack(windows, truth, truth[order])], device)
        bar = training_progress(self.name, recipe.schedule.epochs) if self.progress else nullcontext()
        with bar as show:
            trained = train([Run(recipe, data, self.seed)], device, watch, progress=show)
        if not bool(trained.finite.all()):
            raise InputError("the loss turned NaN or infinite while training; look for extreme values in X")
        self._keep(trained, recipe, data)
        for note in self.notes:
            warnings.warn(note, stacklevel=2)
        return self

    def _keep(self, trained: Trained, recipe: Recipe, data: TrainingData) -> None:
        """The network and its calibration on the CPU, curves and notes."""
        self._network = select_run(trained.network, 0, recipe.encoder, *data.source_train.values.shape[1:])
        self.calibration = cast("Calibration", trained.calibration).changed(Tensor.cpu)
        curves = {key: values[:, 0].numpy() for key, values in trained.history.items()}
        for score in [key.removesuffix("_student") for key in curves if key.endswith("_student")]:
            student = curves.pop(f"{score}_student")
            teacher = curves.pop(f"{score}_teacher", np.full_like(student, np.nan))
            curves[score] = np.where(np.isnan(teacher), student, teacher)
        self.curves: dict[str, NDArray[np.float32]] = curves
        self.notes = unchanged(self.name, recipe, trained.history, 0)

    @property
    def network(self) -> Network:
        """The one whose predictions are reported."""
        if self._network is None:
            raise InputError("this CAT is not trained yet; call fit first")
        return self._network

    def outputs(self, X: Any) -> tuple[Tensor, Tensor]:  # noqa: N803
        """Logits (window, class), not calibrated, and features (window, feature)."""
        network = self.network
        values = self._prepared(read_windows(X, "X", self.window_shape))
        logits, features = predict(network, torch.from_numpy(values)[None])
        return logits[0], features[0]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most likely class of each window."""
        likely = self.predict_proba(X)
        return np.asarray(self.classes[likely.argmax(axis=1)])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Calibrated probabilities (window, class), in the order of `classes`."""
        logits, _ = self.outputs(X)
        return self.calibration.apply(logits).double().softmax(dim=-1).numpy()

    def features(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """What the encoder makes of each window, (window, feature), such as for t-SNE."""
        return self.outputs(X)[1].numpy()

    def reliability(self, X: Any, y: Any, bins: int = 10) -> ReliabilityBins[NDArray[Any]]:  # noqa: N803
        """Mean confidence, accuracy and share of the windows by bin of confidence, for a reliability diagram."""
        likely = self.predict_proba(X)
        return reliability_bins(likely, self._codes(y, "y", len(likely)), bins=bins)

    def recipe(self) -> Recipe:
        """The method for this input, encoder and number of epochs; a Recipe is used as it is, in its epochs."""
        for name, value, least in (("batch", self.batch, 1), ("seed", self.seed, 0), ("epochs", self.epochs, 1)):
            if value is not None and (not isinstance(value, Integral) or value < least):
                raise InputError(f"{name} must be a whole number from {least} on, not {value!r:.40}", name)
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out must lie between 0 and 1, not {self.held_out:g}", "held_out")
        if isinstance(self.method, Recipe):
            self.name, recipe = "custom", self.method
        else:
            with naming_place("method"):
                self.name = find_recipe(str(self.method))
            recipe = RECIPES[self.name].for_input(self.input or RECIPES[self.name].input)
        if self.encoder is not None:
            recipe = replace(recipe, encoder=find_encoder(self.encoder))
        return recipe.checked(self.epochs)

    def _prepared(self, values: Floats) -> Floats:
        """The windows as the input has them; what is too short for the encoder gets zeros behind."""
        samples = values.shape[-1]
        whole = next(length for length in count(samples) if self._input.points(length) >= self._shortest)
        values = np.pad(values, ((0, 0), (0, 0), (0, whole - samples)))
        return self._input.transform(values, self.rate).astype(np.float32, copy=False)

    def _codes(self, values: Any, name: str, windows: int) -> Integers:
        """Labels (window,) as places in `classes`."""
        places = {label: number for number, label in enumerate(self.classes.tolist())}
        labels = read_labels(values, name, windows).tolist()
        for window, label in enumerate(labels):
            if label not in places:
                what = f"{label!r:.40} (window {window}) is no class of the source"
                raise InputError(f"{name}: {what}; leave it out", name)
        return np.array([places[label] for label in labels], dtype=np.int64)


def read_windows(values: Any, name: str, shape: tuple[int, ...] | None = None) -> Floats:
    """Windows (window, channel, sample) in float32, of this shape (channel, sample) if one is given."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"the windows of {name} have different lengths; cut them to one length", name) from error
    if array.ndim not in (2, 3) or 0 in array.shape or array.dtype.kind not in "biuf":
        described = f"{name} is an array of shape {array.shape} and type {array.dtype}"
        raise InputError(f"{described}; give numbers, (window, sample) or (window, channel, sample)", name)
    if array.ndim == 3 and array.shape[1] > array.shape[2]:
        found = f"{name} has the shape {array.shape}, which is {array.shape[1]} channels of {array.shape[2]} samples"
        raise InputError(f"{found}; the axes are (window, channel, sample), so give {name}.transpose(0, 2, 1)", name)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 is refused as infinite
        windows = array.reshape(len(array), -1, array.shape[-1]).astype(np.float32, copy=False)
    if shape is not None and windows.shape[1:] != shape:
        raise InputError(f"{name} has windows of shape {windows.shape[1:]}, but those of X_source have {shape}", name)
    if (broken := ~np.isfinite(windows).all(axis=(1, 2))).any():
        first = f"first in window {broken.argmax()}"
        raise InputError(f"{name} holds NaN or infinite numbers, {first}; leave them out", name)
    return windows


def split_domains(
    X: Any, y: Any, groups: Any, domain: Any, target: Any  # noqa: N803
) -> tuple[Floats, NDArray[Any], Floats, NDArray[Any] | None]:  # fmt: skip
    """Windows and labels of the source, windows of the target, and groups of the source."""
    if domain is None or target is None:
        raise InputError("domain and target belong together; give both, or X_target", "domain")
    windows = read_windows(X, "X_source")
    domains = read_labels(domain, "domain", len(windows)).astype(str)
    names = np.unique(domains).tolist()
    if str(target) not in names:
        raise InputError(f"target: unknown domain '{target}'{suggest(str(target), names)}", "target")
    if len(names) == 1:
        raise InputError(f"domain: every window is of the target '{target}'; add windows of another domain", "domain")
    source = domains != str(target)
    labels = checked_length(y, "y_source", len(windows))[source]
    groups = None if groups is None else checked_length(groups, "groups", len(windows))[source]
    return windows[source], labels, windows[~source], groups


def checked_length(values: Any, name: str, windows: int) -> NDArray[Any]:
    """As an array (window,); InputError where its length is another."""
    array = np.asarray(values)
    if array.shape != (windows,):
        shape = f"has the shape {array.shape}, but there are {windows} windows"
        raise InputError(f"{name} {shape}; give one for each", name)
    return array


def read_labels(values: Any, name: str, windows: int) -> NDArray[Any]:
    """Labels (window,), strings or whole numbers."""
    labels = checked_length(values, name, windows)
    for window, label in enumerate(labels.tolist()):
        if not isinstance(label, str | int) and not (isinstance(label, float) and label.is_integer()):
            raise InputError(f"{name}: {label!r:.40} (window {window}) is no string and no whole number", name)
    return np.array([label if isinstance(label, str) else int(label) for label in labels.tolist()])
