"""The statistics against scipy, statsmodels, scikit-posthocs, twins that count, and numbers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.errors import InputError
from bearcat.record import DomainScores, Scores
from bearcat.report.results import Cell, Result
from bearcat.report.stats import ALPHA, bootstrap, cliques, compare, friedman, holm, ranks, signed_rank
from tests.made_records import bare_record
from tests.reference import stats as twin

quick = settings(max_examples=30, deadline=None)


def result(method: str, task: str, seed: int, accuracy: float | None, ece: float | None = 0.1) -> Result:
    scores = None if accuracy is None and ece is None else DomainScores(accuracy, ece, ece)
    record = replace(bare_record(), scores=Scores(None, scores), seed=seed)
    return Result(Cell("simulated", "time", task, method, seed), record, Path(f"{method}-{task}-{seed}"))


def grid(values: np.ndarray, seeds: int = 1, names: str = "ABCDEFGH") -> list[Result]:
    """(block, method) → results; consecutive blocks are the seeds of one task."""
    return [
        result(names[method], f"{block // seeds}→x", block % seeds, float(value), float(1 - value))
        for block, row in enumerate(values)
        for method, value in enumerate(row)
    ]


steps = st.integers(-6, 6).map(lambda step: step / 8)  # eighths: exact in binary, and ties are frequent


# Wilcoxon


def test_the_signed_rank_test_of_a_hand_worked_example():
    # |d| ranks: 1→1, 2→2, 3→3, 4→4, 5→5; the only negative one has rank 1. Sums as small as 1: {} and {1}, 2 of 32,
    # and as many at the other end.
    p, effect = signed_rank(np.array([-1.0, 2, 3, 4, 5]))
    assert p == 4 / 32
    assert effect == (14 - 1) / 15


def test_zeros_are_ranked_and_then_left_out():
    # Pratt: |d| = 0, 0, 1, 2 has ranks 1.5, 1.5, 3, 4; the sums over signs of 3 and 4 are 0, 3, 4, 7.
    p, effect = signed_rank(np.array([0.0, 0, -1, 2]))
    assert p == 1.0
    assert effect == pytest.approx((4 - 3) / 7)


@given(st.lists(steps, min_size=1, max_size=10))
@quick
def test_the_signed_rank_test_equals_counting_all_signs_with_ties_and_zeros(differences):
    p, _ = signed_rank(np.array(differences))
    assert p == pytest.approx(twin.signed_rank(differences), rel=1e-12)


@pytest.mark.parametrize("n", [6, 12, 30, 50])
def test_without_ties_it_is_scipys_exact_test(n):
    differences = np.random.default_rng(n).normal(0.3, size=n)
    expected = scipy.stats.wilcoxon(differences, method="exact", zero_method="pratt")
    assert signed_rank(differences)[0] == pytest.approx(expected.pvalue, rel=1e-9)


def test_with_many_differences_ties_and_zeros_it_is_scipys_normal_approximation():
    differences = np.random.default_rng(0).integers(-4, 6, size=400) / 8
    expected = scipy.stats.wilcoxon(differences, method="asymptotic", zero_method="pratt", correction=False)
    assert signed_rank(differences)[0] == pytest.approx(expected.pvalue, rel=1e-9)


def test_the_counted_distribution_and_the_normal_one_nearly_meet_where_one_takes_over():
    differences = np.random.default_rng(1).integers(-5, 6, size=200) / 8
    expected = scipy.stats.wilcoxon(differences, method="asymptotic", zero_method="pratt")
    assert signed_rank(differences)[0] == pytest.approx(expected.pvalue, abs=0.003)


def test_differences_equal_but_for_rounding_tie():
    first, second = np.float32([0.85, 0.75, 0.30, 0.6]), np.float32([0.80, 0.70, 0.35, 0.6])
    differences = (first.astype(float) - second.astype(float)).astype(float)
    assert len(set(np.abs(differences[:3]))) > 1, "rounding shows"
    assert signed_rank(differences) == signed_rank(np.array([1.0, 1, -1, 0]))


def test_no_difference_at_all_is_p_one_and_no_effect():
    assert signed_rank(np.zeros(7)) == (1.0, 0.0)


@given(st.lists(steps, min_size=1, max_size=12))
@quick
def test_turning_the_pair_round_keeps_p_and_turns_the_effect(differences):
    p, effect = signed_rank(np.array(differences))
    turned, opposite = signed_rank(-np.array(differences))
    assert turned == pytest.approx(p)
    assert opposite == pytest.approx(-effect)
    assert -1 <= effect <= 1


# Holm

chances = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holm_of_a_hand_worked_example():
    # 0.01·4, 0.02·3, max(0.03·2, 0.06), max(0.04·1, 0.06)
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


@given(chances)
@settings(deadline=None, max_examples=10)  # statsmodels takes 50 ms a call
def test_holm_is_statsmodels(p):
    from statsmodels.stats.multitest import multipletests

    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


@given(chances)
@quick
def test_holm_never_lowers_a_p_keeps_their_order_and_stays_at_most_one(p):
    adjusted = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    for first, other in combinations(range(len(p)), 2):
        if p[first] < p[other]:
            assert adjusted[first] <= adjusted[other]


@given(st.lists(st.integers(0, 64).map(lambda step: step / 64), min_size=1, max_size=10))
@quick
def test_adjusted_p_at_most_the_level_is_what_holms_procedure_rejects(p):
    level = 1 / 16
    assert [adjusted <= level for adjusted in holm(p)] == twin.holm_rejects(p, level)


# Ranks and Friedman


@given(st.lists(st.lists(steps, min_size=4, max_size=4), min_size=1, max_size=6))
@quick
def test_ranks_are_those_of_counting(rows):
    expected = [[twin.rank(row, place) for place in range(4)] for row in rows]
    assert ranks(np.array(rows)).tolist() == expected


@given(st.lists(st.lists(steps, min_size=4, max_size=4), min_size=2, max_size=8))
@quick
def test_friedmans_test_is_scipys_with_ties(rows):
    values = np.array(rows)
    found = friedman(ranks(values))
    if all(len(set(row)) == 1 for row in rows):
        assert (found.statistic, found.p) == (0.0, 1.0)
        assert "tie" in found.reason
    else:
        expected = scipy.stats.friedmanchisquare(*values.T)
        assert found.statistic == pytest.approx(expected.statistic, abs=1e-9)
        assert found.p == pytest.approx(expected.pvalue, abs=1e-9)


def test_friedmans_test_says_why_it_does_not_exist():
    assert friedman(np.ones((5, 2))).p is None
    assert "three methods" in friedman(np.ones((5, 2))).reason
    assert "two blocks; there is one" in friedman(np.ones((1, 3))).reason


# Cliques


@given(st.integers(1, 7), st.data())
@quick
def test_cliques_are_the_longest_runs_of_neighbours_without_a_differing_pair(n, data):
    ordered = "ABCDEFG"[:n]
    pairs = [frozenset(pair) for pair in combinations(ordered, 2)]
    different = {pair for pair in pairs if data.draw(st.booleans())}
    found = cliques(ordered, different)
    assert len(set(found)) == len(found)
    assert set(found) == twin.cliques(ordered, different)


def test_cliques_overlap_where_the_tests_say_so():
    assert cliques("ABCD", {frozenset("AC"), frozenset("AD")}) == (("A", "B"), ("B", "C", "D"))


# Bootstrap


def test_the_interval_is_that_of_a_plain_bootstrap_where_each_task_has_one_seed():
    values = np.random.default_rng(3).normal(0.7, 0.1, size=30)
    expected = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert bootstrap([np.array([value]) for value in values]) == pytest.approx(tuple(expected), abs=0.004)


def test_seeds_that_resemble_each_other_do_not_narrow_the_interval():
    tasks = np.random.default_rng(4).normal(0.7, 0.1, size=8)
    alone = bootstrap([np.array([value]) for value in tasks])
    repeated = bootstrap([np.full(5, value) for value in tasks])
    assert repeated == pytest.approx(alone, abs=0.005)


def test_tasks_with_unequal_numbers_of_seeds_count_alike():
    low, high = bootstrap([np.zeros(50), np.ones(2)])
    assert (low, high) == (0.0, 1.0)
    assert bootstrap([np.zeros(3), np.zeros(1)]) == (0.0, 0.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(150):
        centres = random.normal(0.5, 0.1, size=12)
        low, high = bootstrap([random.normal(centre, 0.05, size=5) for centre in centres])
        hits += low <= 0.5 <= high
    assert 0.85 <= hits / 150 <= 0.99  # percentile intervals of a dozen tasks are somewhat narrow


def test_a_single_value_has_no_interval():
    assert all(map(math.isnan, bootstrap([np.array([0.5])])))


# Comparisons


def test_a_comparison_worked_by_hand():
    # A beats B in all six blocks by 1 … 6 hundredths, B beats C likewise by ten times that.
    base = np.full(6, 0.4)
    steps = np.arange(1, 7) / 100
    found = compare(grid(np.stack([base - 10 * steps / 2, base, base + steps], axis=1), names="CBA"), "accuracy")
    assert found.methods == ("A", "B", "C")
    assert tuple(found.ranks.values()) == (1.0, 2.0, 3.0)
    assert [pair.p for pair in found.pairs] == [2 / 64] * 3
    assert [pair.p_holm for pair in found.pairs] == pytest.approx([6 / 64] * 3)
    assert [pair.effect for pair in found.pairs] == [1.0] * 3
    assert found.pair("B", "A").difference == pytest.approx(0.035)
    assert found.friedman.statistic == pytest.approx(12.0)
    assert (found.best, found.equivalent) == ("A", ("B", "C"))
    assert found.cliques == (("A", "B", "C"),)
    assert "nothing can be significant" in found.warning  # 3 · 2/64 > 0.05


def test_a_clear_winner_stands_alone():
    random = np.random.default_rng(0)
    values = random.uniform(0.4, 0.6, size=(20, 1)) + np.array([0, 0, 0.2]) + random.normal(0, 0.01, size=(20, 3))
    found = compare(grid(values, seeds=5), "accuracy")
    assert (found.best, found.equivalent, found.warning) == ("C", (), "")
    assert found.cliques == (tuple(sorted("AB", key=found.methods.index)),)
    assert found.pair("A", "C").low > 0.15
    assert found.pair("A", "C").significant


def test_pairwise_tests_are_those_of_scikit_posthocs():
    import scikit_posthocs  # here, because it takes every worker two seconds

    values = np.random.default_rng(2).normal(size=(20, 4)) + np.array([0, 0.2, 0.8, 1.6])
    found = compare(grid(values), "accuracy")
    table = scikit_posthocs.posthoc_wilcoxon(list(values.T), method="exact", zero_method="pratt", p_adjust="holm")
    for first, other in combinations(range(4), 2):
        expected = table.iloc[first, other]
        assert found.pair("ABCD"[first], "ABCD"[other]).p_holm == pytest.approx(expected, rel=1e-9)
    assert any(pair.significant for pair in found.pairs)
    assert not all(pair.significant for pair in found.pairs)


def test_lower_is_better_for_ece():
    values = np.random.default_rng(1).integers(0, 9, size=(12, 3)) / 16  # grid makes ece 1 − accuracy
    up, down = compare(grid(values), "accuracy"), compare(grid(values), "ece")
    assert list(up.ranks.items()) == list(down.ranks.items())
    for pair, other in zip(up.pairs, down.pairs, strict=True):
        assert (pair.p, pair.effect) == (other.p, other.effect)
        assert pair.difference == pytest.approx(-other.difference)


@given(st.lists(st.lists(steps, min_size=4, max_size=4), min_size=2, max_size=8), st.randoms())
@quick
def test_the_order_of_results_changes_nothing(rows, random):
    results = grid(np.array(rows), seeds=2)
    mixed = list(results)
    random.shuffle(mixed)
    assert repr(compare(mixed, "accuracy")) == repr(compare(results, "accuracy"))


@given(st.permutations("ABCD"), st.integers(0, 5))
@settings(deadline=None, max_examples=10)
def test_the_names_of_methods_change_nothing(names, seed):
    values = np.random.default_rng(seed).normal(size=(9, 4))
    plain, renamed = compare(grid(values), "accuracy"), compare(grid(values, names=names), "accuracy")
    new = dict(zip("ABCD", names, strict=True))
    assert [new[method] for method in plain.methods] == list(renamed.methods)
    for pair in plain.pairs:
        other = renamed.pair(new[pair.first], new[pair.second])
        assert (other.p, other.effect) == (pair.p, pair.effect)
        assert other.p_holm == pytest.approx(pair.p_holm)


def test_means_use_all_seeds_and_ranks_only_complete_cells():
    values = np.array([[0.5, 0.6], [0.7, 0.9], [0.4, 0.8], [0.6, 0.7]])
    results = [run for run in grid(values, seeds=2) if not (run.cell.method == "B" and run.cell.task == "1→x")]
    results += [result("B", "1→x", 1, 0.7)]
    found = compare(results, "accuracy")
    assert found.blocks_used == 3
    assert "3 of 4, 1 left out" in found.rule
    assert found.cells["A", "1→x"].mean == pytest.approx(0.5)
    assert found.cells["A", "1→x"].sd == pytest.approx(np.std([0.4, 0.6], ddof=1))
    assert (found.cells["B", "1→x"].mean, found.cells["B", "1→x"].n) == (0.7, 1)
    assert math.isnan(found.cells["B", "1→x"].sd)
    assert found.averages["B"].mean == pytest.approx((0.75 + 0.7) / 2)


def test_averages_are_over_tasks_that_every_method_has():
    results = [result("A", "easy", 0, 0.9), result("A", "hard", 0, 0.3), result("B", "easy", 0, 0.8)]
    found = compare(results, "accuracy")
    assert found.averaged_tasks == ("easy",)
    assert found.averages["A"].mean == 0.9
    assert found.best == "A"


def test_a_method_without_scores_is_left_out():
    results = [result("A", "x", 0, 0.9), result("B", "x", 0, None, None), result("C", "x", 0, math.nan)]
    found = compare(results, "accuracy")
    assert found.methods == ("A",)
    assert (found.best, found.equivalent, found.pairs, found.cliques) == ("A", (), (), ())


def test_without_a_complete_cell_there_are_no_ranks_and_the_warning_says_so():
    found = compare([result("A", "x", 0, 0.9), result("B", "x", 1, 0.8)], "accuracy")
    assert (found.blocks_used, found.best, found.pairs, found.cliques) == (0, None, (), ())
    assert all(map(math.isnan, found.ranks.values()))
    assert "no tests" in found.warning
    assert compare([], "accuracy").methods == ()


def test_all_methods_equal_everywhere_share_the_middle_rank():
    found = compare(grid(np.full((8, 3), 0.5)), "accuracy")
    assert set(found.ranks.values()) == {2.0}
    assert {pair.p_holm for pair in found.pairs} == {1.0}
    assert found.friedman.p == 1.0
    assert found.cliques == (("A", "B", "C"),)


@pytest.mark.parametrize(("blocks", "possible"), [(1, False), (5, False), (6, True)])
def test_two_methods_need_six_blocks_before_anything_can_be_significant(blocks, possible):
    values = np.stack([np.full(blocks, 0.1), np.linspace(0.5, 0.9, blocks)], axis=1)
    found = compare(grid(values), "accuracy")
    assert found.pairs[0].p == pytest.approx(min(1, 2.0 ** (1 - blocks)))
    assert (found.pairs[0].p_holm < ALPHA) == possible == (found.warning == "")


def test_over_tasks_the_means_of_tasks_are_the_blocks():
    values = np.random.default_rng(7).normal(size=(24, 3))
    by_task = values.reshape(8, 3, 3).mean(axis=1)
    found, expected = compare(grid(values, seeds=3), "accuracy", over="tasks"), compare(grid(by_task), "accuracy")
    assert found.blocks_used == 8
    assert found.methods == expected.methods
    for pair, other in zip(found.pairs, expected.pairs, strict=True):
        assert (pair.p, pair.p_holm) == (other.p, other.p_holm)
        assert pair.difference == pytest.approx(other.difference)


def test_results_that_do_not_belong_together_are_refused():
    first = result("A", "x", 0, 0.5)
    other = Result(Cell("cwru", "time", "x", "A", 0), first.record, Path("other"))
    with pytest.raises(InputError, match="one dataset and input"):
        compare([first, other], "accuracy")
    with pytest.raises(InputError, match="two results of A on x with seed 0"):
        compare([first, first], "accuracy")
    with pytest.raises(InputError, match="did you mean 'accuracy'"):
        compare([first], "acuracy")
