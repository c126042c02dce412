"""CAT on arrays: labelled source windows and unlabelled target ones; no file, grid or record.

>>> model = CAT(epochs=40).fit(X_source, y_source, X_target)
>>> model.predict_proba(X_target)        # calibrated, in the order of model.classes
>>> model.curves["pseudo_label_share"]   # a number for each epoch

`fit_windows` is the training behind it and behind the scikit-learn classifiers (bearcat.estimator).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import count
from numbers import Integral
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.calibration import Calibration, Evidence, ReliabilityBins, reliability_bins
from bearcat.cat.evaluate import predict, watcher
from bearcat.cat.networks import ENCODERS, Encoder, Network, find_encoder, select_run
from bearcat.cat.progress import training_progress
from bearcat.cat.recipes import RECIPES, Recipe, find_recipe
from bearcat.cat.scaling import Temperature
from bearcat.data.inputs import INPUTS, find_input
from bearcat.data.prepare import Preparation, prepare
from bearcat.data.recording import Floats, Integers, Recording, RecordingInfo, Windows
from bearcat.data.splits import held_out
from bearcat.data.tasks import HeldBack, Labelled, TrainingData, Unlabelled
from bearcat.diagnosis.accuracy import Source
from bearcat.errors import InputError
from bearcat.fast.device import chosen_device
from bearcat.settings import to_text

SPLIT = 30  # a stream of randomness, apart from those of the loop
FEWEST_TARGET = 10  # windows; of fewer a batch has no statistics worth the name
_numbers = count(1)


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
    """

    method: str | Recipe = "CAT*-Temperature"
    _: KW_ONLY
    epochs: int | None = None  # every phase is scaled to them; None: the method's own, 300 in the paper
    input: str | None = None  # time, frequency, …: a row of INPUTS; None: the method's own
    # A name (cnn, dense:widths=64,32, …), or a module that makes (batch, feature) of windows (batch, channel, point):
    # a copy of it is trained, from the weights that it has. None: the method's own.
    encoder: str | nn.Module | None = field(default=None, repr=False)
    batch: int = 64  # windows of each domain in a step, at most
    held_out: float = 0.2  # share of the source's windows that the calibrator is fitted on
    seed: int = 0
    device: str = "auto"
    rate: float | None = None  # samples per second, for inputs that need it
    progress: bool = True  # a bar on a terminal, a line a minute in a log
    _fitted: Fitted | None = field(default=None, init=False, repr=False)
    _shape: tuple[int, ...] = field(default=(), init=False, repr=False)  # (channel, sample) of a raw window

    def fit(self, X_source: Any, y_source: Any, X_target: Any = None, y_target: Any = None) -> Self:  # noqa: N803
        """Trains, then calibrates on a share of the source. `y_target` is for curves of accuracy and ECE only."""
        _check_settings(self)
        name, recipe = named_method(self.method, self.input, self.epochs)
        source = read_windows(X_source, "X_source")
        classes, codes = np.unique(read_labels(y_source, "y_source", len(source)), return_inverse=True)
        if X_target is None and recipe.adapts:
            what = f"{name} learns from an unlabelled target, and without one it is not {name}"
            raise InputError(f"X_target: {what}; give its windows, or use method='source-only'", "X_target")
        target = None if X_target is None else read_windows(X_target, "X_target")
        target_codes = None
        if target is not None and target.shape[1:] != source.shape[1:]:
            shapes = f"has windows of shape {target.shape[1:]}, but those of X_source have {source.shape[1:]}"
            raise InputError(f"X_target {shapes}; cut both to the same length", "X_target")
        if y_target is not None and target is None:
            raise InputError("y_target was given without X_target; give both, or leave y_target out", "y_target")
        target_codes = (
            None if target is None or y_target is None else _codes(y_target, "y_target", len(target), classes)
        )
        with encoder_name(self.encoder) as encoder:
            recipe = recipe if encoder is None else replace(recipe, encoder=encoder)
            windows = window_input(self.input or recipe.input, self.rate, recipe.encoder)
            self._fitted = fit_windows(
                name, recipe, windows, windows.prepare(source), codes,
                None if target is None else windows.prepare(target),
                classes=classes, share=self.held_out, batch=self.batch, seed=self.seed, device=self.device,
                progress=self.progress, target_codes=target_codes,
            )  # fmt: skip
        self._shape = source.shape[1:]
        for note in self.notes:
            warnings.warn(note, stacklevel=2)
        return self

    @property
    def fitted(self) -> Fitted:
        """What `fit` left."""
        if self._fitted is None:
            raise InputError("this CAT is not trained yet; call fit first")
        return self._fitted

    @property
    def classes(self) -> NDArray[Any]:
        """The labels of the source, sorted."""
        return self.fitted.classes

    @property
    def curves(self) -> dict[str, NDArray[np.float32]]:
        """A number for each epoch, NaN before it existed: `loss_…`, `temperature`, `pseudo_label_share` and, where
        `y_target` was given, `target_accuracy`, `target_ece`, `target_ece_uncalibrated` and `pseudo_label_accuracy`.
        """
        return self.fitted.curves

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before the result is called by the method's name."""
        return self.fitted.notes

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most likely class of each window."""
        return np.asarray(self.classes[self.predict_proba(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Calibrated probabilities (window, class), in the order of `classes`."""
        return np.asarray(np.exp(self.fitted.log_probabilities(self._prepared(X))))

    def features(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """What the encoder makes of each window, (window, feature), such as for t-SNE."""
        return self.fitted.outputs(self._prepared(X))[1].numpy()

    def reliability(self, X: Any, y: Any, bins: int = 10) -> ReliabilityBins[NDArray[Any]]:  # noqa: N803
        """Mean confidence, accuracy and share of the windows by bin of confidence, for a reliability diagram."""
        likely = self.predict_proba(X)
        return reliability_bins(likely, _codes(y, "y", len(likely), self.classes), bins=bins)

    def _prepared(self, X: Any) -> Floats:  # noqa: N803
        fitted, values = self.fitted, read_windows(X, "X")
        if values.shape[1:] != self._shape:
            raise InputError(f"X has windows of shape {values.shape[1:]}, but those of fit had {self._shape}", "X")
        return fitted.windows.prepare(values)


class CutWindows(NamedTuple):
    """CutWindows windows (window, channel, point), and the row, such as a recording, that each was cut from."""

    values: Floats
    row: Integers


@dataclass(frozen=True, eq=False)
class WindowInput:
    """How raw windows (window, channel, sample) become what the network is given."""

    text: str  # a row of INPUTS
    rate: float | None
    shortest: int  # points that the encoder can take

    def padded(self, samples: int) -> int:
        """How long a window must be before it is transformed: as it is, or padded to the encoder's shortest."""
        while find_input(self.text).points(samples) < self.shortest:
            samples += 1
        return samples

    def prepare(self, values: Floats) -> Floats:
        """The windows as the input has them; short ones get zeros behind."""
        missing = self.padded(values.shape[-1]) - values.shape[-1]
        values = np.pad(values, ((0, 0), (0, 0), (0, missing))) if missing else values
        return find_input(self.text).transform(values, self.rate).astype(np.float32, copy=False)

    def cut(self, signals: Any, length: int, stride: int | None, name: str) -> CutWindows:
        """The windows of whole recordings, a list of signals."""
        if len(signals) == 0 or all(np.ndim(signal) == 0 for signal in signals):
            what = "is one signal, or no signals at all" if len(signals) else "holds no recordings"
            raise InputError(f"{name} {what}; give a list of signals, each with one axis", name)
        recordings = [
            Recording(signal=signal, domain="", channel="", rate=self.rate, origin=f"recording {number} of {name}")
            for number, signal in enumerate(signals)
        ]
        windows = prepare(recordings, Preparation(input=self.text, length=length, stride=stride))
        return CutWindows(windows.values, windows.recording)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a training on arrays leaves: a network on the CPU that predicts, and how the training went."""

    name: str
    recipe: Recipe
    windows: WindowInput
    classes: NDArray[Any]
    network: Network
    calibration: Calibration
    curves: dict[str, NDArray[np.float32]]
    notes: tuple[str, ...]
    held: NDArray[np.bool_]  # (source window,) kept from training, for calibration
    tested: Source  # predictions of these and their classes
    counts: dict[str, int]  # windows: source_train, source_test, target_train

    def outputs(self, values: Floats) -> tuple[Tensor, Tensor]:
        """Logits (window, class) and features (window, feature) of prepared windows."""
        logits, features = predict(self.network, torch.from_numpy(values)[None])
        return logits[0], features[0]

    def log_probabilities(self, values: Floats) -> NDArray[np.float64]:
        """Calibrated log-probabilities (window, class) of prepared windows."""
        logits = self.calibration.apply(self.outputs(values)[0])
        return logits.double().log_softmax(dim=-1).numpy()


def fit_windows(
    name: str, recipe: Recipe, windows: WindowInput, source: Floats, codes: Integers, target: Floats | None, *,
    classes: NDArray[Any], share: float, batch: int, seed: int, device: str, row: Integers | None = None,
    groups: Integers | None = None, progress: bool = False, target_codes: Integers | None = None,
) -> Fitted:  # fmt: skip
    """Trains a method on prepared windows. `codes` and `groups` are of rows, such as recordings, and `row` says which
    each source window is cut from. Target codes go into the curves and nowhere else.
    """
    if len(classes) < 2:
        raise InputError(f"the source has one class only, '{classes[0]}'; a classifier needs at least two")
    if target is not None and len(target) < FEWEST_TARGET:
        few = f"holds {len(target)} window{'s' * (len(target) != 1)}"
        raise InputError(f"X_target {few}; a training needs at least {FEWEST_TARGET}", "X_target")
    row = np.arange(len(source)) if row is None else row
    random = np.random.default_rng([seed, SPLIT])
    held = held_out(codes, row, share, random, groups)
    window_codes = codes.astype(np.int64)[row]
    unlabelled = source[~held] if target is None else target
    order = random.permutation(len(unlabelled))  # rows may follow their classes
    data = TrainingData(
        classes=tuple(map(str, classes)),
        source_train=Labelled(source[~held], window_codes[~held]),
        source_test=Labelled(source[held], window_codes[held]),
        target_train=Unlabelled(unlabelled[order]),
    )
    batch = min(batch, len(data.source_train), len(data.target_train))
    recipe = replace(recipe, schedule=replace(recipe.schedule, batch=batch))
    on, watch = chosen_device(device), None
    if target is not None and target_codes is not None:
        zeros = np.zeros(len(target), dtype=np.int64)
        windows_with_labels = Windows(values=target, recording=zeros, start=zeros, span=target.shape[-1], recordings=())
        watch = watcher([HeldBack(windows_with_labels, target_codes, target_codes[order])], on)
    bar = training_progress(name, recipe.schedule.epochs) if progress else nullcontext()
    with bar as show:
        trained = train([Run(recipe, data, seed)], on, watch, progress=show)
    if not bool(trained.finite.all()):
        raise InputError("the loss turned NaN or infinite while training; look for extreme values in X")
    curves = {key: values[:, 0].numpy() for key, values in trained.history.items()}
    for score in [key.removesuffix("_student") for key in curves if key.endswith("_student")]:
        student = curves.pop(f"{score}_student")
        teacher = curves.pop(f"{score}_teacher", np.full_like(student, np.nan))
        curves[score] = np.where(np.isnan(teacher), student, teacher)
    calibration, network = _on_cpu(trained, data, recipe.encoder)
    counts = {part: len(getattr(data, part)) for part in ("source_train", "source_test", "target_train")}
    counts |= {"target_train": 0} if target is None else {}
    # As training had them: a method may have moved the source to where the target lies (methods.before_training).
    tested = predict(network, trained.batches.source_test[:, : len(data.source_test)].cpu())[0]
    said = calibration.apply(tested).double().log_softmax(dim=-1)[0].numpy()
    return Fitted(
        name, recipe, windows, classes, network, calibration, curves, _notes(name, recipe, curves), held,
        Source(said, data.source_test.labels), counts,
    )  # fmt: skip


def _on_cpu(trained: Trained, data: TrainingData, encoder: str) -> tuple[Calibration, Network]:
    """The calibration, a temperature where the method has none, and the network that predicts."""
    calibration = trained.calibration
    if calibration is None:
        logits, _ = predict(trained.network, trained.batches.source_test)
        labels = trained.batches.source_test_labels
        calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
    network = select_run(trained.network, 0, encoder, *data.source_train.values.shape[1:])
    return Calibration.from_state({name: value.cpu() for name, value in calibration.state().items()}), network


def _notes(name: str, recipe: Recipe, curves: dict[str, NDArray[np.float32]]) -> tuple[str, ...]:
    """That the calibrator changed nothing, if so: the method is then the one without it."""
    temperature = curves.get("temperature", np.empty(0))
    known = temperature[~np.isnan(temperature)]  # there is none where a calibrator is more than a temperature
    if recipe.calibration is None or not len(known) or (known != 1).any():
        return ()
    plain = replace(RECIPES[name], calibration=None, final=None) if name in RECIPES else None
    twin = next((other for other, row in RECIPES.items() if row == plain), "the same method without a calibrator")
    return (f"{name} equals {twin} here: T = 1 in all epochs",)


@dataclass(frozen=True, eq=False)
class GivenModule(Encoder):
    """A user's module as encoder; each training has a copy of it."""

    module: nn.Module

    def build(self, runs: int, channels: int, points: int, dropout: float) -> nn.Module:  # noqa: ARG002
        return copy.deepcopy(self.module)


@contextmanager
def encoder_name(encoder: str | nn.Module | None) -> Iterator[str | None]:
    """The encoder's name; a module is a row of ENCODERS while it is trained."""
    if not isinstance(encoder, nn.Module):
        yield encoder
        return

    name = f"{type(encoder).__name__}-{next(_numbers)}"
    ENCODERS[name] = cast("type[Encoder]", partial(GivenModule, encoder))
    try:
        yield name
    finally:
        del ENCODERS[name]


def named_method(method: str | Recipe, kind: str | None, epochs: int | None) -> tuple[str, Recipe]:
    """A method for this input and number of epochs, and what to call it; a Recipe is used as it is, in its epochs."""
    if isinstance(method, Recipe):
        name, recipe = "custom", method
    else:
        try:
            name = find_recipe(str(method))
        except InputError as error:
            raise InputError(f"method: {error}", "method") from error
        recipe = RECIPES[name].for_input(kind or RECIPES[name].input)
    if epochs is not None:
        check_whole("epochs", epochs, 1)
        return name, recipe.in_epochs(epochs)
    schedule = recipe.schedule
    begins = {each.name: each.start(schedule) for each in recipe.ingredients}
    begins |= {} if recipe.calibration is None else {"calibration": schedule.calibrate_from}
    for part, epoch in begins.items():
        if epoch >= schedule.epochs:
            late = f"'{part}' would begin in epoch {epoch} of {schedule.epochs}, which is never"
            raise InputError(f"method: {late}; give epochs, to which every phase is scaled", "epochs")
    return name, recipe


def window_input(kind: str, rate: float | None, encoder: str) -> WindowInput:
    """The input of this name, without what it could only make of a speed or bearing."""
    chosen, reason = find_input(kind).suited([RecordingInfo(domain="", origin="X", rate=rate)])
    return WindowInput(to_text(chosen, INPUTS) if reason else kind, rate, find_encoder(encoder).shortest)


def as_array(values: Any, name: str) -> Any:
    """Lists as an array; anything else as it is."""
    try:
        return np.asarray(values) if isinstance(values, Sequence) else values
    except ValueError as error:
        what = f"the windows of {name} have different lengths; cut them to one length"
        raise InputError(f"{what} (CATClassifier does it, with window)", name) from error


def read_windows(values: Any, name: str) -> Floats:
    """Windows (window, channel, sample) in float32."""
    array = np.asarray(as_array(values, name))
    if array.ndim not in (2, 3) or 0 in array.shape or array.dtype.kind not in "biuf":
        given = f"{name} is an array of shape {array.shape} and type {array.dtype}"
        raise InputError(f"{given}; give numbers, (window, sample) or (window, channel, sample)", name)
    if array.ndim == 3 and array.shape[1] > array.shape[2]:
        given = f"{name} has the shape {array.shape}, which is {array.shape[1]} channels of {array.shape[2]} samples"
        raise InputError(f"{given}; the axes are (window, channel, sample), so give {name}.transpose(0, 2, 1)", name)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 is refused as infinite
        found = array.reshape(len(array), -1, array.shape[-1]).astype(np.float32, copy=False)
    broken = ~np.isfinite(found).all(axis=(1, 2))
    if broken.any():
        raise InputError(
            f"{name} holds NaN or infinite numbers, first in window {broken.argmax()}; leave them out", name
        )
    return found


def read_labels(values: Any, name: str, windows: int) -> NDArray[Any]:
    """Labels (window,), strings or whole numbers."""
    labels = np.asarray(values)
    if labels.shape != (windows,):
        raise InputError(
            f"{name} has the shape {labels.shape}, but there are {windows} windows; give a label for each", name
        )
    for window, label in enumerate(labels.tolist()):
        if not isinstance(label, str | int) and not (isinstance(label, float) and label.is_integer()):
            raise InputError(f"{name}: {label!r:.40} (window {window}) is no string and no whole number", name)
    if labels.dtype.kind == "O" and any(isinstance(label, str) for label in labels.tolist()):
        return labels.astype(str)
    return labels.astype(np.int64) if labels.dtype.kind in "Of" else labels


def _codes(values: Any, name: str, windows: int, classes: NDArray[Any]) -> Integers:
    """Labels (window,) as places in `classes`."""
    labels = read_labels(values, name, windows)
    places = {label: number for number, label in enumerate(classes.tolist())}
    for window, label in enumerate(labels.tolist()):
        if label not in places:
            raise InputError(f"{name}: {label!r:.40} (window {window}) is no class of the source; leave it out", name)
    return np.array([places[label] for label in labels.tolist()], dtype=np.int64)


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuses what is no whole number from `least` on."""
    if not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r:.40}", name)


def check_share(name: str, value: float) -> None:
    """Refuses what does not lie between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, not {value:g}", name)


def _check_settings(model: CAT) -> None:
    check_whole("batch", model.batch, 1)
    check_whole("seed", model.seed, 0)
    check_share("held_out", model.held_out)
    if not isinstance(model.encoder, str | nn.Module | None):
        raise InputError("encoder: give the name of an encoder or a torch module, not a class or a function", "encoder")
