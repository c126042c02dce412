"""The classifiers with skada's own tools, with scikit-learn's checks on the paper's network, and as their page says."""
# ruff: noqa: F811 (fixtures of the everyday tests)

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bearcat import CATClassifier
from tests.test_estimator import QUICK, SHORT, packed, shift  # noqa: F401

with sklearn.config_context():  # skada switches metadata routing on for everybody; put back what was there
    from skada import make_da_pipeline
    from skada.metrics import MixValScorer, PredictionEntropyScorer, SoftNeighborhoodDensity
    from skada.model_selection import StratifiedDomainShuffleSplit

pytestmark = [pytest.mark.usefixtures("narrow_classifier"), *SHORT]
DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_skadas_own_pipeline_gives_the_same(packed, routing):
    X, y, domain = packed
    ours, theirs = (
        make(StandardScaler(), CATClassifier("DANN", **QUICK)).fit(X, y, sample_domain=domain)
        for make in (make_pipeline, make_da_pipeline)
    )
    X, domain = X[domain < 0], domain[domain < 0]
    assert np.allclose(theirs.predict_proba(X, sample_domain=domain), ours.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("scorer", [PredictionEntropyScorer, SoftNeighborhoodDensity, MixValScorer])
def test_a_grid_is_searched_with_skadas_label_free_scorers(packed, routing, scorer):
    X, y, domain = packed
    search = GridSearchCV(
        CATClassifier(**QUICK), {"method": ["source-only", "DANN"]}, scoring=scorer(),
        cv=StratifiedDomainShuffleSplit(n_splits=1, test_size=0.4, random_state=0), error_score="raise",
    ).fit(X, y, sample_domain=domain)  # fmt: skip
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_params_["method"] == ["source-only", "DANN"][int(np.argmax(scores))]
    assert search.best_estimator_.method_ == search.best_params_["method"]
    assert search.predict(X[domain < 0]).shape == (60,)


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    code = "\n".join(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    names = {}
    with sklearn.config_context():  # the page switches metadata routing on
        exec(code, names)
    assert "{'method': " in capsys.readouterr().out
    assert names["model"].method_ == "DANN"
