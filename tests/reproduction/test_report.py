"""What is made of the results of runs."""

import statistics

import pytest
from scipy import stats

from mmattn.reproduction.report import difference


def test_difference_is_the_paired_t_interval():
    ours, baseline = [30.1, 28.2, 33.3, 29.0], [29.0, 27.5, 30.0, 29.4]
    found = difference(ours, baseline)
    expected = stats.ttest_rel(ours, baseline)
    assert found.mean == pytest.approx(statistics.mean(a - b for a, b in zip(ours, baseline)))
    assert found[1:] == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert ('*' in str(found)) == (expected.pvalue < 0.05)
    assert str(difference([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])) == '+1.00 [+1.00, +1.00] *'
    assert difference([1.0], [2.0]) == (-1.0, None, None)
    assert str(difference([1.0], [2.0])) == '-1.00'
    with pytest.raises(ValueError, match='one seed or more; got none'):
        difference([], [])
