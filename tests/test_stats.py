"""The statistics against twins that count, and numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.bench.stats import ALPHA, compare, holm, signed_rank
from bearcat.report import Result
from tests.made_records import scored
from tests.reference import stats as twin

quick = settings(max_examples=20, deadline=None)
steps = st.integers(-6, 6).map(lambda step: step / 8)  # eighths: exact in binary, and ties are frequent


def grid(values: np.ndarray, seeds: int = 1, names: str = "ABCDEFGH") -> list[Result]:
    """(block, method) → results; consecutive blocks are the seeds of one task."""
    return [
        scored(names[method], f"{block // seeds}→x", block % seeds, float(value), float(1 - value))
        for block, row in enumerate(values)
        for method, value in enumerate(row)
    ]


@given(st.lists(steps, min_size=1, max_size=10))
@quick
def test_the_signed_rank_test_equals_counting_all_signs(differences):
    assert signed_rank(np.array(differences)) == pytest.approx(twin.signed_rank(differences), rel=1e-12)


def test_p_are_adjusted_by_holm():
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])  # 0.01·4, 0.02·3, 0.03·2, 0.06
    assert holm([]) == []


def test_a_comparison_worked_by_hand():
    # A beats B in all six tasks by 1 … 6 hundredths, B beats C likewise by five times that.
    base, apart = np.full(6, 0.4), np.arange(1, 7) / 100
    found = compare(grid(np.stack([base - 10 * apart / 2, base, base + apart], axis=1), names="CBA"), "accuracy")
    assert dict(found.ranks) == {"A": 1.0, "B": 2.0, "C": 3.0}
    assert [(pair.p, round(pair.p_holm, 12)) for pair in found.pairs] == [(2 / 64, 6 / 64)] * 3
    assert {(pair.first, pair.second): pair.difference for pair in found.pairs}["A", "B"] == pytest.approx(0.035)
    assert found.leaders == ("A",)
    assert found.warning  # 3 · 2/64 > 0.05


@given(st.lists(st.lists(steps, min_size=4, max_size=4), min_size=2, max_size=6), st.randoms())
@settings(max_examples=8, deadline=None)
def test_neither_the_order_of_results_nor_the_sign_of_a_score_changes_anything(rows, random):
    results = grid(np.array(rows), seeds=2)
    mixed = list(results)
    random.shuffle(mixed)
    up, down = compare(results, "accuracy"), compare(results, "ece")  # grid makes ece 1 − accuracy
    assert repr(compare(mixed, "accuracy")) == repr(up)
    assert dict(up.ranks) == pytest.approx(dict(down.ranks))
    for pair, other in zip(up.pairs, down.pairs, strict=True):
        assert (pair.p, pair.difference) == (pytest.approx(other.p), pytest.approx(-other.difference))


def test_means_of_tasks_use_all_seeds_and_all_else_only_complete_cells():
    values = np.array([[0.5, 0.6], [0.7, 0.9], [0.4, 0.8], [0.6, 0.7]])
    results = [run for run in grid(values, seeds=2) if not (run.cell.method == "B" and run.cell.task == "1→x")]
    results += [scored("B", "1→x", 1, 0.7), scored("A", "hard", 0, 0.1), scored("C", "0→x", 0, None)]
    found = compare(results, "accuracy")
    assert (tuple(found.ranks), found.tasks, "3 of 5, 2 left out" in found.rule) == (("B", "A"), ("0→x", "1→x"), True)
    assert found.cells["A", "1→x"].mean == pytest.approx(0.5)
    assert found.cells["A", "1→x"].sd == pytest.approx(np.std([0.4, 0.6], ddof=1))
    assert (found.cells["B", "1→x"].mean, found.cells["B", "1→x"].n) == (0.7, 1)
    assert found.averages == pytest.approx({"B": (0.75 + 0.7) / 2, "A": (0.6 + 0.6) / 2})


def test_without_a_complete_cell_there_are_no_ranks():
    found = compare([scored("A", "x", 0, 0.9), scored("B", "x", 1, 0.8)], "accuracy")
    assert (found.tasks, found.leaders, found.pairs) == ((), (), ())
    assert all(map(math.isnan, found.ranks.values()))
    assert found.warning
    assert not compare([], "accuracy").ranks


@pytest.mark.parametrize(("tasks", "possible"), [(1, False), (5, False), (6, True)])
def test_two_methods_need_six_tasks_before_anything_can_be_significant_however_many_seeds(tasks, possible):
    values = np.repeat(np.stack([np.full(tasks, 0.1), np.linspace(0.5, 0.9, tasks)], axis=1), 3, axis=0)
    found = compare(grid(values, seeds=3), "accuracy")
    assert found.pairs[0].p == pytest.approx(min(1, 2.0 ** (1 - tasks)))
    assert (found.pairs[0].p_holm < ALPHA) == possible == (found.warning == "")
