"""The scikit-learn face: a recipe as a classifier, trained on labelled source windows and unlabelled target ones.

>>> CATClassifier().fit(Xs, ys, X_target=Xt)                       # two arrays
>>> CATClassifier().fit(X, y, sample_domain=domain)                # skada's: source ≥ 0, target < 0
>>> CATClassifier().fit(Xs, ys, X_target=Xt, groups=specimens)     # no bearing in training and in calibration
>>> CATClassifier(window=1024).fit(recordings, labels, X_target=others)      # whole recordings, one label each

Windows are given raw (docs/estimator.md). Importing this changes no setting of scikit-learn's, and target labels are
never read, masked or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import bearcat
from bearcat.cat import Calibration, Evidence, Temperature
from bearcat.cat.algorithm import Run, Trained, train
from bearcat.cat.evaluate import predict
from bearcat.cat.networks import Network, find_encoder, select_run
from bearcat.cat.recipes import RECIPES, Recipe, find_recipe
from bearcat.data.inputs import INPUTS, find_input
from bearcat.data.prepare import Preparation, prepare
from bearcat.data.recording import Floats, Integers, Recording, RecordingInfo, healthy_class
from bearcat.data.specimens import held_out
from bearcat.data.tasks import Labelled, TrainingData, Unlabelled
from bearcat.deploy.model import Model, save_model
from bearcat.errors import InputError, suggest
from bearcat.fast.device import chosen_device
from bearcat.settings import to_plain, to_text
from bearcat.trust.accuracy import Source
from bearcat.trust.decision import ModelEvidence, decide
from bearcat.trust.estimates import source_accuracy
from bearcat.trust.pooling import pooled_temperature, tally

SPLIT = 30  # a stream of randomness, besides those of the loop
MASKED = ("-1", "-1.0", "nan")  # skada's labels of windows that have none, as text
UNLABELLED = "no_validation"  # what scikit-learn takes for y where there is none


class _Prepared(NamedTuple):
    """Prepared windows (window, channel, time), and which row of X each was cut from."""

    values: Floats
    row: Integers


@dataclass(eq=False, repr=False)
class AdaptedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A recipe of bearcat as a scikit-learn classifier.

    >>> labels = np.array(["inner", "outer"] * 12)
    >>> tones = [np.sin((0.5 if label == "inner" else 1.5) * np.arange(80)) for label in labels]
    >>> model = AdaptedClassifier("DANN", input="frequency", epochs=2, batch_size=8)
    >>> model.fit(tones, labels, X_target=np.roll(tones, 7)).predict_proba(tones).shape
    (24, 2)

    Parameters
    ----------
    recipe : a name of `bearcat methods`, or a Recipe. Recipes without a calibrator get a temperature at the end.
    input : a row of INPUTS, what the network is given of a window; None is the recipe's own.
    window, stride : samples, for X of whole recordings; None where X is windows.
    epochs, batch_size : None is the recipe's own number of epochs; windows of each domain in a step, at most.
    test_share : of the source, held out to calibrate on.
    random_state : a whole number, a RandomState, or None for another training each time.
    device : "auto", "cpu" or "cuda".
    rate : samples per second, where known. For inputs that use the shaft's speed or the bearing see `bearcat.adapt`.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere in scikit-learn.
    recipe_name_, recipe_, input_, seed_ : what was trained; "source-only" where fit was given no target.
    window_shape_, windows_ : (channel, samples) of a window, and how many there were of each kind.
    source_accuracy_ : of the source windows that were held out.
    decision_ : a `Decision`, `check` or `do not use`, with reasons; its `sentence` is part of the repr.
    network_, calibration_, history_ : what predicts, a stack of one; losses and the like, one number an epoch.
    pooled_temperature_, pooled_recordings_ : of recordings' confidence (1 for windows), and how many it was fitted on.
    """

    # What scikit-learn may hand on where its metadata routing is on; nothing is switched on here.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"sample_domain": True, "groups": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"sample_domain": True, "allow_source": True}
    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = __metadata_request__predict
    __metadata_request__predict_log_proba: ClassVar[dict[str, bool]] = __metadata_request__predict
    __metadata_request__score: ClassVar[dict[str, bool]] = __metadata_request__predict

    recipe: str | Recipe = "CAT*-Temperature"
    _: KW_ONLY
    input: str | None = None
    window: int | None = None
    stride: int | None = None
    epochs: int | None = None
    batch_size: int = 64
    test_share: float = 0.2
    random_state: int | np.random.RandomState | None = 0
    device: str = "auto"
    rate: float | None = None

    def _named_recipe(self) -> tuple[str, Recipe]:
        """The recipe for this input and number of epochs, and what to call it."""
        if isinstance(self.recipe, Recipe):
            name, recipe = "custom", self.recipe
        else:
            name = find_recipe(str(self.recipe))
            recipe = RECIPES[name].for_input(self.input or RECIPES[name].input)
        return name, recipe if self.epochs is None else recipe.in_epochs(self.epochs)

    def fit(
        self, X: Any, y: Any, sample_domain: Any = None, X_target: Any = None, groups: Any = None  # noqa: N803
    ) -> Self:  # fmt: skip
        """Trains on labelled source windows and unlabelled target ones, then calibrates.

        X is (window, samples) or (window, channel, samples); with the setting `window`, a list of recordings. y has a
        label for each. Target are the rows with a negative `sample_domain`, or `X_target`; with neither the source
        alone is learnt from. `groups` has a name for each row of X, such as its bearing: none is trained on and
        calibrated on, where each class has two or more of them.

        >>> model.fit(Xs, ys, X_target=Xt)          # the third argument by its name: by position it is sample_domain
        >>> print(model.decision_.sentence)
        """
        if sample_domain is not None and X_target is not None:
            raise InputError("the target is given twice; use either sample_domain or X_target")
        self._check_settings()
        name, recipe = self._named_recipe()
        if sample_domain is None:
            source, labels = self._read(X, y, first=True)
            target = None if X_target is None else self._read(X_target, name="X_target")[0]
        else:
            is_source = source_rows(sample_domain, len(X))
            (values, row), _ = self._read(X, first=True)
            labels, of_source = source_labels(y, is_source), is_source[row]
            source = _Prepared(values[of_source], row[of_source])
            target = None if of_source.all() else _Prepared(values[~of_source], row[~of_source])
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"the source has one class only, '{classes[0]}'; a classifier needs at least two")
        if target is None:
            name, recipe = "source-only", replace(RECIPES["source-only"], schedule=recipe.schedule)
        seed = seed_of(self.random_state)
        random = np.random.default_rng([seed, SPLIT])
        named = None if groups is None else group_codes(groups, len(X))
        held = held_out(codes, source.row, self.test_share, random, named)
        windows, window_codes = source.values, codes.astype(np.int64)[source.row]
        unlabelled = windows[~held] if target is None else target.values
        data = TrainingData(
            classes=tuple(map(str, classes)),
            source_train=Labelled(windows[~held], window_codes[~held]),
            source_test=Labelled(windows[held], window_codes[held]),
            # In random order, since the rows' own may follow their classes; source-only never looks at it.
            target_train=Unlabelled(random.permutation(unlabelled)),
        )
        batch = min(self.batch_size, len(data.source_train), len(data.target_train))
        recipe = replace(recipe, schedule=replace(recipe.schedule, batch=batch))
        trained = train([Run(recipe, data, seed)], chosen_device(self.device))
        if not bool(trained.finite.all()):
            raise InputError("the loss turned NaN or infinite while training; look for extreme values in X")
        self.classes_ = classes
        self.recipe_name_, self.recipe_, self.seed_ = name, recipe, seed
        self.windows_ = {name: len(getattr(data, name)) for name in ("source_train", "source_test", "target_train")}
        self.windows_ |= {"target_train": 0} if target is None else {}
        self.network_, self.calibration_ = _on_cpu(trained, data, recipe.encoder)
        # As training had them: a recipe may have moved the source to where the target lies (methods.standardise).
        said = self._log_probabilities(trained.batches.source_test[0, : len(data.source_test)].cpu().numpy())
        tested = Source(said, data.source_test.labels)
        self.source_accuracy_ = float(tested.right.mean())
        self.pooled_temperature_, self.pooled_recordings_, one_class = 1.0, None, None
        if self.window is not None:
            likely, row, right = said, source.row[held], self.source_accuracy_
            if target is not None:
                likely, row = self._log_probabilities(target.values), target.row
                right = float(np.exp(likely.max(axis=1)).mean())
                one_class = _one_fault(classes[likely.argmax(axis=1)], row)
            self.pooled_temperature_ = pooled_temperature(likely, row, right)
            self.pooled_recordings_ = len(np.unique(row))
        self.history_ = {name: values[:, 0].numpy() for name, values in trained.history.items()}
        self.decision_ = decide(ModelEvidence(
            None, source=source_accuracy(tested), source_windows=len(said), classes=len(classes), one_class=one_class,
            calibrated=not bool(self.calibration_.at_bound.any()), estimated=False,
        ))  # fmt: skip
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803
        decision, text = vars(self).get("decision_"), super().__repr__(N_CHAR_MAX)
        return text if decision is None else f"{text}\n{decision.sentence}"

    def predict(self, X: Any, sample_domain: Any = None, allow_source: bool = False) -> np.ndarray:  # noqa: N803
        """The most likely class of each row of X, a window or a recording; the rest is there for skada."""
        likely = self.predict_log_proba(X, sample_domain, allow_source)
        return np.asarray(self.classes_[likely.argmax(axis=1)])

    def predict_proba(self, X: Any, sample_domain: Any = None, allow_source: bool = False) -> np.ndarray:  # noqa: N803
        """Calibrated probabilities (row, class), in the order of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X, sample_domain, allow_source)))

    def predict_log_proba(
        self, X: Any, sample_domain: Any = None, allow_source: bool = False  # noqa: ARG002, N803
    ) -> np.ndarray:  # fmt: skip
        """Their logarithms. A recording's are its windows' mean over the pooled temperature, made to sum to 1 again."""
        check_is_fitted(self)
        prepared, _ = self._read(X)
        likely = self._log_probabilities(prepared.values)
        if self.window is not None:
            counted = [tally(likely[prepared.row == row]) for row in range(len(X))]
            likely = np.stack([row.sums / row.windows / self.pooled_temperature_ for row in counted])
        return np.asarray(likely - np.logaddexp.reduce(likely, axis=1, keepdims=True))

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None, allow_source: bool = False  # noqa: N803
    ) -> float:  # fmt: skip
        """The share of rows whose class is right."""
        return float(accuracy_score(y, self.predict(X, sample_domain, allow_source), sample_weight=sample_weight))

    def save(self, folder: str | Path, rate: float | None = None) -> None:
        """Writes the model folder the rest of bearcat works with; `rate`, if given, is that of the recordings."""
        check_is_fitted(self)
        if rate is not None and self.rate not in (None, rate):
            raise InputError(f"the classifier was made for {self.rate:g} Hz, not {rate:g}; leave rate out")
        _, samples = self.window_shape_
        if samples < (least := self._points(samples)):
            short = f"windows of {samples} samples are shorter than the {least} the network needs and were padded"
            raise InputError(f"{short}, which a model folder cannot tell; use longer windows")
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: no folder can be made there ({error.strerror}); choose another") from error
        metadata = {
            "recipe": self.recipe_name_, "task": "arrays given to fit", "seed": self.seed_, "data": self.windows_,
            "pooled_recordings": self.pooled_recordings_, "scores": {"source": {"accuracy": self.source_accuracy_}},
            "versions": {"bearcat": bearcat.__version__, "torch": torch.__version__},
            "decision": to_plain(self.decision_),
        }  # fmt: skip
        save_model(folder, Model(
            network=self.network_, calibration=self.calibration_, classes=tuple(map(str, self.classes_)),
            preparation=Preparation(input=self.input_, length=samples, stride=self.stride), rate=rate or self.rate,
            metadata=metadata, encoder=self.recipe_.encoder, channels=self.window_shape_[0],
            calibrator=self.recipe_.final or self.recipe_.calibration or "Temperature",
            pooled_temperature=self.pooled_temperature_,
        ))  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _log_probabilities(self, values: Floats) -> np.ndarray:
        """Calibrated log-probabilities (window, class) of prepared windows."""
        logits, _ = predict(self.network_, torch.from_numpy(values)[None])
        return np.asarray(self.calibration_.apply(logits).double().log_softmax(dim=-1)[0].numpy())

    def _check_settings(self) -> None:
        wanted = str(self.input or self._named_recipe()[1].input)
        chosen, reason = find_input(wanted).suited([RecordingInfo(domain="", origin="X", rate=self.rate)])
        self.input_ = to_text(chosen, INPUTS) if reason else wanted
        for name in ("window", "stride", "epochs", "batch_size"):
            value = getattr(self, name)
            if not (isinstance(value, Integral) or (value is None and name != "batch_size")):
                raise InputError(f"{name} must be a whole number, not {value!r}")
        if not 0 < self.test_share < 1:
            raise InputError(f"test_share must lie between 0 and 1, not {self.test_share:g}")
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.window is None and self.stride is not None:
            raise InputError("stride is for cutting recordings; set window too, or leave stride out")

    def _read(
        self, X: Any, y: Any = UNLABELLED, *, first: bool = False, name: str = "X"  # noqa: N803
    ) -> tuple[_Prepared, Any]:  # fmt: skip
        """Prepared windows of X, and y where given, checked as scikit-learn does. What the `first` X looked like is
        remembered; others must look like it.
        """
        labelled = y is not UNLABELLED
        if self.window is not None:
            if labelled:
                y = column_or_1d(y, warn=True)
                check_consistent_length(X, y)
            if first:
                self.n_features_in_, self.window_shape_ = self.window, (1, self.window)
            return self._cut(X, self.window, name), y
        flat, shape = flattened(X)
        if name != "X" and np.shape(flat)[:1] == (0,):
            raise InputError(f"{name} is empty; leave it out to learn from the source alone")
        if name != "X" and np.ndim(flat) == 2 and (found := shape or (1, np.shape(flat)[1])) != self.window_shape_:
            both = f"{found}, but the source's have {self.window_shape_}"
            raise InputError(f"{name} has windows of shape {both}; cut both to the same length")
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 is refused as infinite
            checked = validate_data(self, flat, y, dtype=np.float32, reset=first)
        values, y = checked if labelled else (checked, y)
        shape = shape or (1, values.shape[1])
        if first:
            self.window_shape_ = shape
        elif shape != self.window_shape_:
            raise InputError(f"windows of shape {shape} were given, but those of fit had {self.window_shape_}")
        return self._windows(values.reshape(-1, *shape)), y

    def _windows(self, values: Floats) -> _Prepared:
        """What the network is given of windows (window, channel, sample). Short ones get zeros behind."""
        samples = values.shape[-1]
        if (least := self._points(samples)) > samples:
            values = np.pad(values, ((0, 0), (0, 0), (0, least - samples)))
        inputs = find_input(self.input_).transform(values, self.rate).astype(np.float32, copy=False)
        return _Prepared(inputs, np.arange(len(inputs)))

    def _points(self, samples: int) -> int:
        """How long a window must be before it is transformed: as it is, or padded to the encoder's shortest."""
        points, shortest = find_input(self.input_).points, find_encoder(self._named_recipe()[1].encoder).shortest
        while points(samples) < shortest:
            samples += 1
        return samples

    def _cut(self, X: Any, window: int, name: str) -> _Prepared:  # noqa: N803
        """The prepared windows of whole recordings."""
        if len(X) == 0 or all(np.ndim(signal) == 0 for signal in X):
            what = "is one signal, or no signals at all" if len(X) else "holds no recordings"
            raise InputError(f"{name} {what}; give a list of signals, each with one axis")
        recordings = [
            Recording(signal=signal, domain="", channel="", rate=self.rate, origin=f"recording {number} of {name}")
            for number, signal in enumerate(X)
        ]
        windows = prepare(recordings, Preparation(input=self.input_, length=window, stride=self.stride))
        return _Prepared(windows.values, windows.recording)


@dataclass(eq=False, repr=False)
class CATClassifier(AdaptedClassifier):
    """The Calibrated Adaptive Teacher, with MCC and SDAT, as a scikit-learn classifier.

    >>> labels = np.array(["inner", "outer"] * 12)
    >>> tones = [np.sin((0.5 if label == "inner" else 1.5) * np.arange(80)) for label in labels]
    >>> model = CATClassifier(input="frequency", epochs=2, batch_size=8, calibrator="Vector")
    >>> model.fit(tones, labels, X_target=np.roll(tones, 7)).predict(tones).shape
    (24,)

    Other parameters and attributes (classes_, n_features_in_, feature_names_in_, …) are those of AdaptedClassifier.

    Parameters
    ----------
    calibrator : "Temperature", "Vector", "Matrix" or "CPCS".
    """

    recipe: str | Recipe = field(default="CAT*-Temperature", init=False)  # chosen by the calibrator
    calibrator: str = "Temperature"

    def _named_recipe(self) -> tuple[str, Recipe]:
        names = [name.removeprefix("CAT*-") for name in RECIPES if name.startswith("CAT*-")]
        if self.calibrator not in names:
            raise InputError(f"unknown calibrator '{self.calibrator}'{suggest(str(self.calibrator), names)}")
        return AdaptedClassifier(f"CAT*-{self.calibrator}", input=self.input, epochs=self.epochs)._named_recipe()


def _one_fault(named: np.ndarray, row: Integers) -> str | None:
    """The class given to every window (window,) of several recordings, if there is one and it is a fault."""
    classes = [str(name) for name in np.unique(named)]
    return classes[0] if len(classes) == 1 < len(np.unique(row)) and healthy_class(classes) is None else None


def _on_cpu(trained: Trained, data: TrainingData, encoder: str) -> tuple[Network, Calibration]:
    """The network that predicts, and its calibration: the recipe's, or a temperature where the recipe has none."""
    calibration = trained.calibration
    if calibration is None:
        logits, _ = predict(trained.network, trained.batches.source_test)
        labels = trained.batches.source_test_labels
        calibration = Temperature().fit(Evidence(source_logits=logits, source_labels=labels))
    network = select_run(trained.network, 0, encoder, *data.source_train.values.shape[1:])
    return network, Calibration.from_state({name: value.cpu() for name, value in calibration.state().items()})


def flattened(X: Any) -> tuple[Any, tuple[int, int] | None]:  # noqa: N803
    """Windows with a channel axis as (window, channel × samples) and their shape; anything else as it is."""
    try:
        axes = np.ndim(X) if isinstance(X, Sequence) else getattr(X, "ndim", 2)
    except ValueError as error:
        raise InputError("the rows of X have different lengths; to cut recordings into windows set window") from error
    if axes != 3:
        return X, None
    values = np.asarray(X)
    rows, channels, samples = values.shape
    if channels > samples:
        given = f"X has the shape {values.shape}, which is {channels} channels of {samples} samples"
        raise InputError(f"{given}; the axes are (window, channel, sample), so give X.transpose(0, 2, 1)")
    return values.reshape(rows, channels * samples), (channels, samples)


def source_rows(sample_domain: Any, rows: int) -> np.ndarray:
    """(row,) bool: source where the domain's number is not negative, as skada has it."""
    domain = np.asarray(sample_domain)
    if domain.ndim > 1:
        given = f"the third argument is sample_domain, a number for each row, and not windows of shape {domain.shape}"
        raise InputError(f"{given}; give the target's windows by name: fit(Xs, ys, X_target=Xt)")
    if domain.shape != (rows,):
        raise InputError(f"sample_domain must hold one whole number for each of {rows} rows, not {domain.shape}")
    if not np.issubdtype(domain.dtype, np.number) or (domain != np.round(domain)).any():
        raise InputError("sample_domain must hold whole numbers: source domains from 0 on, target domains below 0")
    return np.asarray(domain >= 0)


def source_labels(y: Any, is_source: np.ndarray) -> np.ndarray:
    """Labels (row,) of the source; the target's are replaced by one of the source's before anybody looks at them."""
    labels = column_or_1d(y, warn=True)
    check_consistent_length(labels, is_source)
    if not is_source.any():
        raise InputError("sample_domain names no source; source domains are numbered from 0 on, target domains below 0")
    of_source = labels[is_source]
    masked = np.array([str(label) in MASKED for label in of_source])
    if masked.any():
        row = int(np.flatnonzero(is_source)[masked.argmax()])
        raise InputError(f"row {row} of X is source but its label is masked ({labels[row]}); label it or leave it out")
    return np.asarray(np.where(is_source, labels, of_source[0]))


def group_codes(groups: Any, rows: int) -> Integers:
    """The number of each row's group (row of X,)."""
    names = column_or_1d(groups, warn=True)
    if len(names) != rows:
        raise InputError(f"groups must hold one name for each of {rows} rows of X, not {len(names)}")
    return np.unique([str(name) for name in names], return_inverse=True)[1]


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """A whole number is the seed itself, so that it means the same as elsewhere in bearcat."""
    if not isinstance(random_state, int | np.integer):
        return int(check_random_state(random_state).randint(2**31 - 1))
    if random_state < 0:
        raise InputError(f"random_state is a whole number from 0 on, not {random_state}")
    return int(random_state)
