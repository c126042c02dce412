"""A method of bearcat as a scikit-learn classifier of windows.

>>> CATClassifier().fit(Xs, ys, X_target=Xt)           # two arrays
>>> CATClassifier().fit(X, y, sample_domain=domain)    # one array, as skada has it: source ≥ 0, target < 0

Windows are raw (docs/python.md). Importing this changes no setting of scikit-learn; target labels are never read.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from bearcat.cat.arrays import CAT
from bearcat.cat.recipes import Recipe
from bearcat.errors import InputError
from bearcat.methods import unadapted

MASKED = ("-1", "-1.0", "nan")  # skada's labels of windows without one, as text
PREDICT = dict.fromkeys(("sample_domain", "allow_source"), True)  # what metadata routing passes on, if it is on


@dataclass(eq=False, repr=False)
class CATClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The Calibrated Adaptive Teacher, or another method of `bearcat methods`, as a scikit-learn classifier.

    >>> labels = np.array(["inner", "outer"] * 12)
    >>> tones = [np.sin((0.5 if label == "inner" else 1.5) * np.arange(80)) for label in labels]
    >>> model = CATClassifier("DANN", input="frequency", epochs=2, batch_size=8)
    >>> model.fit(tones, labels, X_target=np.roll(tones, 7)).predict_proba(tones).shape
    (24, 2)

    Parameters are those of `bearcat.cat.CAT`, with scikit-learn's names: `batch_size`, `test_share` (of the source,
    held out to calibrate on) and `random_state` (a whole number, a RandomState, or None: another training each time).

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere in scikit-learn.
    method_ : what was trained; the method without its target where fit was given none.
    cat_ : the CAT that was trained: network, curves, calibration, notes.
    """

    __metadata_request__fit: ClassVar[dict[str, bool]] = {"sample_domain": True, "groups": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = PREDICT
    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = PREDICT
    __metadata_request__score: ClassVar[dict[str, bool]] = PREDICT

    method: str | Recipe = "CAT*-Temperature"
    _: KW_ONLY
    input: str | None = None
    encoder: str | nn.Module | None = None
    epochs: int | None = None
    batch_size: int = 64
    test_share: float = 0.2
    random_state: int | np.random.RandomState | None = 0
    device: str = "auto"
    rate: float | None = None

    def fit(
        self, X: Any, y: Any, sample_domain: Any = None, X_target: Any = None, groups: Any = None  # noqa: N803
    ) -> Self:  # fmt: skip
        """Trains on labelled source windows and unlabelled target ones, then calibrates.

        X is (window, samples) or (window, channel, samples). The target is `X_target`, or the rows with a negative
        `sample_domain`; without either, a method without adaptation is trained, with a warning. `groups` names the
        bearing of each row: where a class has two or more, no bearing is both trained and calibrated on.

        >>> model.fit(Xs, ys, X_target=Xt)
        """
        if sample_domain is not None and X_target is not None:
            raise InputError("the target is given twice; use one of X_target and sample_domain")
        X, labels = self._validated(X, reset=True), column_or_1d(y, warn=True)  # noqa: N806
        check_consistent_length(X, labels)
        if sample_domain is not None:
            source = source_rows(sample_domain, labels)
            X, X_target, labels = X[source], None if source.all() else X[~source], labels[source]  # noqa: N806
            groups = None if groups is None else np.asarray(groups)[source]
        assert_all_finite(labels)
        check_classification_targets(labels)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):  # a whole number is the seed itself, as elsewhere in bearcat
            seed = check_random_state(seed).randint(2**31 - 1)
        self.cat_ = CAT(
            self.method, epochs=self.epochs, input=self.input, encoder=self.encoder, batch=self.batch_size,
            held_out=self.test_share, seed=int(seed), device=self.device, rate=self.rate, progress=False,
        )  # fmt: skip
        recipe = self.cat_.recipe()
        self.method_ = self.cat_.name
        if X_target is None and recipe.adapts:
            self.method_, self.cat_.method = unadapted(recipe)
            self.cat_.epochs = self.cat_.encoder = None
            self.cat_.input = self.input or recipe.input
            warnings.warn(f"no target was given, so {self.method_} was trained instead", stacklevel=2)
        self.cat_.fit(X, labels, X_target, groups=groups)
        self.classes_ = self.cat_.classes
        return self

    def predict(self, X: Any, sample_domain: Any = None, allow_source: bool = False) -> NDArray[Any]:  # noqa: N803
        """The most likely class of each window; `sample_domain` and `allow_source` are for skada."""
        probabilities = self.predict_proba(X, sample_domain, allow_source)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def predict_proba(
        self, X: Any, sample_domain: Any = None, allow_source: bool = False  # noqa: ARG002, N803
    ) -> NDArray[np.float64]:  # fmt: skip
        """Calibrated probabilities (window, class), in the order of `classes_`."""
        check_is_fitted(self)
        return self.cat_.predict_proba(self._validated(X))

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, sample_domain: Any = None, allow_source: bool = False  # noqa: ARG002, N803
    ) -> float:  # fmt: skip
        """The accuracy; `sample_domain` and `allow_source` are for skada's scorers."""
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _validated(self, X: Any, reset: bool = False) -> NDArray[np.float32]:  # noqa: N803
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 is refused as infinite
            return np.asarray(validate_data(self, X, dtype=np.float32, reset=reset, allow_nd=True))


def source_rows(sample_domain: Any, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """(row,) whether its domain is a source, whose numbers are not negative."""
    source = np.asarray(column_or_1d(sample_domain) >= 0)
    check_consistent_length(source, labels)
    if not source.any():
        raise InputError("there is no source: every row's domain is negative, a target")
    masked = source & np.isin(labels.astype(str), MASKED)
    if masked.any():
        raise InputError(f"row {masked.argmax()} of X is source but its label is masked; label it or leave it out")
    return source
