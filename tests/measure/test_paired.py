"""Paired comparison against an independent implementation."""

import pytest

from conveyor.measure.paired import mean_and_deviation, probability_better, verdict


@pytest.mark.parametrize(
    "differences", [[0.1, 0.3], [1.0, 1.2, 0.7], [-0.3, 0.4, 0.1, 0.2], [-1.0, -2.0, -1.5, -1.1, -0.2], [0.5, -0.5]]
)
def test_the_probability_is_that_of_a_paired_t_test(differences: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats", reason="the independent implementation comes with an extra")
    expected = 1 - stats.ttest_1samp(differences, 0.0, alternative="greater").pvalue
    assert probability_better(differences) == pytest.approx(expected, abs=1e-9)


def test_what_has_no_spread() -> None:
    assert mean_and_deviation([2.0]) == (2.0, None)
    assert probability_better([1.0]) is None
    assert probability_better([0.0, 0.0]) == 0.5
    assert probability_better([0.25, 0.25]) == 1.0


def test_the_answer_names_the_better_one() -> None:
    assert verdict("A", "B", 0.03, 4).startswith("B is probably better than A: 97.0 % sure")
    assert verdict("A", "B", 0.995, 4).startswith("A is clearly better than B")
    assert "not clearly" in verdict("A", "B", 0.7, 2)
    assert "one seed" in verdict("A", "B", None, 1)
