"""The scikit-learn face of bearcat.cat.arrays: a recipe as a classifier.

>>> CATClassifier().fit(Xs, ys, X_target=Xt)                       # two arrays
>>> CATClassifier().fit(X, y, domain=names, target="load3")        # one array, domains by name
>>> CATClassifier().fit(X, y, sample_domain=domain)                # skada's: source ≥ 0, target < 0
>>> CATClassifier(window=1024).fit(recordings, labels, X_target=others)      # whole recordings, one label each

Windows are given raw (docs/estimator.md). Importing this changes no setting of scikit-learn's, and target labels are
never read, masked or not.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

import bearcat
from bearcat.cat import arrays
from bearcat.cat.arrays import CutWindows
from bearcat.cat.domains import source_labels, source_rows
from bearcat.cat.recipes import RECIPES, Recipe
from bearcat.data.prepare import Preparation
from bearcat.data.recording import Integers, healthy_class
from bearcat.deploy.model import Model, save_model
from bearcat.diagnosis.accuracy import source_accuracy
from bearcat.diagnosis.decision import ModelEvidence, decide
from bearcat.diagnosis.pooling import pooled_temperature, tally
from bearcat.errors import InputError
from bearcat.settings import to_plain

HANDED_ON = ("sample_domain", "groups", "domain", "target")  # arguments of fit in pipelines and searches


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
    method : a name of `bearcat methods`, or a Recipe. Recipes without a calibrator get a temperature at the end.
    input : a row of INPUTS, what the network is given of a window; None is the method's own.
    window, stride : samples, for X of whole recordings; None where X is windows.
    epochs, batch_size : None is the method's own number of epochs; windows of each domain in a step, at most.
    test_share : of the source, held out to calibrate on.
    random_state : a whole number, a RandomState, or None for another training each time.
    device : "auto", "cpu" or "cuda".
    rate : samples per second, where known. For inputs that use the shaft's speed or the bearing see `bearcat.adapt`.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere in scikit-learn.
    method_name_ : what was trained; "source-only" where fit was given no target.
    fitted_ : the training as `bearcat.cat` has it: network, recipe, curves, notes.
    calibration_, source_accuracy_ : fitted and measured on the source windows that were held out.
    decision_ : a `Decision`, `check` or `do not use`, with reasons; its `sentence` is part of the repr.
    pooled_temperature_ : of recordings' confidence; 1 for windows.
    """

    # What scikit-learn may hand on where its metadata routing is on; nothing is switched on here.
    __metadata_request__fit: ClassVar[dict[str, bool]] = dict.fromkeys(HANDED_ON, True)
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"sample_domain": True, "allow_source": True}
    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = __metadata_request__predict
    __metadata_request__predict_log_proba: ClassVar[dict[str, bool]] = __metadata_request__predict
    __metadata_request__score: ClassVar[dict[str, bool]] = __metadata_request__predict

    method: str | Recipe = "CAT*-Temperature"
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
        return arrays.named_method(self.method, self.input, self.epochs)

    def fit(
        self, X: Any, y: Any, sample_domain: Any = None, X_target: Any = None, groups: Any = None,  # noqa: N803
        domain: Any = None, target: Any = None,
    ) -> Self:  # fmt: skip
        """Trains on labelled source windows and unlabelled target ones, then calibrates.

        X is (window, samples) or (window, channel, samples); with the setting `window`, a list of recordings. y has a
        label for each. Target are `X_target`, the rows whose `domain` is `target`, or those with a negative
        `sample_domain`; with none of these the source alone is learnt from, with a warning. `groups` has a name for
        each row of X, such as its bearing: none is trained on and calibrated on, where each class has two or more.

        >>> model.fit(Xs, ys, X_target=Xt)          # the third argument by its name: by position it is sample_domain
        >>> print(model.decision_.sentence)
        """
        if sum(given is not None for given in (sample_domain, X_target, domain)) > 1:
            raise InputError("the target is given twice; use one of X_target, domain and sample_domain")
        if self.window is None and self.stride is not None:
            raise InputError("stride is for cutting recordings; set window too, or leave stride out")
        arrays.check_whole("batch_size", self.batch_size, 1)
        arrays.check_share("test_share", self.test_share)
        name, recipe = self._named_recipe()
        self._windows = arrays.window_input(self.input or recipe.input, self.rate, recipe.encoder)
        source, adapted, labels = self._read(X, first=True), None, column_or_1d(y, warn=True)
        check_consistent_length(X, labels)
        is_source = source_rows(sample_domain, domain, target, len(labels))
        if is_source is not None:
            (values, row), labels, of_source = source, source_labels(labels, is_source), is_source[source.row]
            source = CutWindows(values[of_source], row[of_source])
            adapted = None if of_source.all() else CutWindows(values[~of_source], row[~of_source])
        elif X_target is not None:
            adapted = self._read(X_target, name="X_target")
        assert_all_finite(labels)
        check_classification_targets(labels)
        if adapted is None:
            if recipe.adapts:
                warnings.warn(f"no target was given, so source-only was trained instead of {name}", stacklevel=2)
            name, recipe = "source-only", replace(RECIPES["source-only"], schedule=recipe.schedule)
        classes, codes = np.unique(labels, return_inverse=True)
        if groups is not None:
            if len(groups) != len(labels):
                raise InputError(f"groups has {len(groups)} names for {len(labels)} rows of X; give one for each")
            groups = np.unique([str(name) for name in column_or_1d(groups)], return_inverse=True)[1]
        self.seed_ = seed_of(self.random_state)
        self.fitted_ = arrays.fit_windows(
            name, recipe, self._windows, source.values, codes, None if adapted is None else adapted.values,
            classes=classes, share=self.test_share, batch=self.batch_size, seed=self.seed_, device=self.device,
            row=source.row, groups=groups,
        )  # fmt: skip
        for note in self.fitted_.notes:
            warnings.warn(note, stacklevel=2)
        self.classes_, self.method_name_, self.calibration_ = classes, name, self.fitted_.calibration
        tested = self.fitted_.tested
        self.source_accuracy_ = float(tested.right.mean())
        self.pooled_temperature_, self._pooled, one_class = 1.0, None, None
        if self.window is not None:
            likely, row, right = tested.log_probabilities, source.row[self.fitted_.held], self.source_accuracy_
            if adapted is not None:
                likely, row = self.fitted_.log_probabilities(adapted.values), adapted.row
                right = float(np.exp(likely.max(axis=1)).mean())
                one_class = _one_fault(classes[likely.argmax(axis=1)], row)
            self.pooled_temperature_ = pooled_temperature(likely, row, right)
            self._pooled = len(np.unique(row))
        self.decision_ = decide(ModelEvidence(
            None, source=source_accuracy(tested), source_windows=len(tested.labels), classes=len(classes),
            one_class=one_class, calibrated=not bool(self.calibration_.at_bound.any()), estimated=False,
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
        prepared = self._read(X)
        likely = self.fitted_.log_probabilities(prepared.values)
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
        (channels, samples), recipe = self.window_shape_, self.fitted_.recipe
        if samples < (least := self._windows.padded(samples)):
            short = f"windows of {samples} samples are shorter than the {least} the network needs and were padded"
            raise InputError(f"{short}, which a model folder cannot tell; use longer windows")
        metadata = {
            "recipe": self.method_name_, "task": "arrays given to fit", "seed": self.seed_, "data": self.fitted_.counts,
            "pooled_recordings": self._pooled, "scores": {"source": {"accuracy": self.source_accuracy_}},
            "versions": {"bearcat": bearcat.__version__, "torch": torch.__version__},
            "decision": to_plain(self.decision_),
        }  # fmt: skip
        save_model(Path(folder), Model(
            network=self.fitted_.network, calibration=self.calibration_, classes=tuple(map(str, self.classes_)),
            preparation=Preparation(input=self._windows.text, length=samples, stride=self.stride),
            rate=rate or self.rate, metadata=metadata, encoder=recipe.encoder, channels=channels,
            calibrator=recipe.final or recipe.calibration or "Temperature", pooled_temperature=self.pooled_temperature_,
        ))  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read(self, X: Any, *, first: bool = False, name: str = "X") -> CutWindows:  # noqa: N803
        """CutWindows windows of X, checked as scikit-learn does. The others must look like the `first` X."""
        if self.window is not None:
            if first:
                self.n_features_in_, self.window_shape_ = self.window, (1, self.window)
            return self._windows.cut(X, self.window, self.stride, name)
        X = arrays.as_array(X, name)  # noqa: N806
        if name == "X":
            with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 is refused as infinite
                X = validate_data(self, X, dtype=np.float32, reset=first, allow_nd=True)  # noqa: N806
        values = arrays.read_windows(X, name)
        if first:
            self.window_shape_ = values.shape[1:]
        elif values.shape[1:] != self.window_shape_:
            shapes = f"has windows of shape {values.shape[1:]}, but the source's have {self.window_shape_}"
            raise InputError(f"{name} {shapes}; cut both to the same length")
        return CutWindows(self._windows.prepare(values), np.arange(len(values)))


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

    method: str | Recipe = field(default="CAT*-Temperature", init=False)  # chosen by the calibrator
    calibrator: str = "Temperature"

    def _named_recipe(self) -> tuple[str, Recipe]:
        return arrays.named_method(f"CAT*-{self.calibrator}", self.input, self.epochs)


def _one_fault(named: np.ndarray, row: Integers) -> str | None:
    """The class given to every window (window,) of several recordings, if there is one and it is a fault."""
    classes = [str(name) for name in np.unique(named)]
    return classes[0] if len(classes) == 1 < len(np.unique(row)) and healthy_class(classes) is None else None


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """A whole number is the seed itself, so that it means the same as elsewhere in bearcat."""
    if not isinstance(random_state, int | np.integer):
        return int(check_random_state(random_state).randint(2**31 - 1))
    arrays.check_whole("random_state", random_state, 0)
    return int(random_state)
