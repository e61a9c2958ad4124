"""What is made of the results of runs."""

import statistics

import numpy as np
import pytest
from scipy import stats

from mmattn.reproduction.plots import by_number, plot_numbers
from mmattn.reproduction.results import Measured, Result, difference, sampled_difference
from mmattn.reproduction.tables import read_tables


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


def test_interval_over_samples_is_that_of_a_literal_bootstrap():
    rng = np.random.default_rng(1)
    ours, baseline = (
        [{f'{i}': float(x) for i, x in enumerate(row)} for row in rng.normal(m, 3, (3, 40))] for m in (2, 1)
    )
    found = sampled_difference(ours, baseline)
    pairs = [[a[name] - b[name] for name in a] for a, b in zip(ours, baseline)]
    assert found.mean == pytest.approx(statistics.mean(map(statistics.mean, pairs)))
    means = []
    for _ in range(2000):
        seeds, samples = rng.integers(3, size=3), rng.integers(40, size=40)
        means.append(statistics.mean(pairs[s][i] for s in seeds for i in samples))
    # Two bootstraps of 2,000 draws differ by a few hundredths of their width.
    assert found[1:] == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.1)
    assert sampled_difference(ours, [dict(reversed(scores.items())) for scores in baseline]) == found
    with pytest.raises(ValueError, match='scores of the same samples'):
        sampled_difference(ours, [{'a': 1.0}] * 3)


def test_plot_over_numbers_of_questions(tmp_path):
    """Each method has its three numbers in ascending order; the settings of other tables are not numbers."""

    def measured(table):
        return [
            Measured(f'{row.name}, {row.setting}', [row], None, '', 0, 0.0, {0: Result(dict(accuracy=50.0), 1.0, None)})
            for row in read_tables()[table]
        ]

    methods = measured('easy-vqa')
    found = by_number(methods)
    assert list(found) == ['Concat', 'BAN-2', 'MUTAN', 'FG']
    for name, by_questions in found.items():
        assert [(number, method.name) for number, method in by_questions.items()] == [
            (number, f'{name}, {number:,} questions') for number in (2410, 9643, 38575)
        ]
    assert by_number(measured('2')) == by_number(measured('coco-qa')) == {}
    plot_numbers(methods, 'title', tmp_path / 'numbers.svg')
    drawn = (tmp_path / 'numbers.svg').read_text(encoding='utf-8')
    for text in ('9,643', 'FG', 'questions in training', 'title'):
        assert drawn.count(f'<!-- {text} -->') == 1
