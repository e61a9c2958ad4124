"""Verdicts, corrected intervals and detectable differences, against simulation and literal formulas."""

import numpy as np
import pytest
from scipy import stats

from mmattn.reproduction.evidence import Contrast, detectable, evidence_table, find

SEEDS = range(6)


def contrast(differences, paper=0.5, baseline=70.0):
    values = {seed: baseline + seed for seed in range(len(differences))}
    ours = {seed: values[seed] + d for seed, d in enumerate(differences)}
    return Contrast('A', 'new', 'old', paper, values=(ours, values))


@pytest.mark.parametrize(('seeds', 'level'), [(3, 0.05), (8, 0.05), (8, 0.01)])
def test_the_detectable_difference_is_found_with_its_power(seeds, level):
    """20,000 experiments: the standard error of the share is 0.003."""
    shift = detectable(2.0, seeds, level)
    drawn = np.random.default_rng(0).normal(shift, 2.0, (20_000, seeds))
    p = stats.ttest_1samp(drawn, 0, axis=1).pvalue
    assert abs((p < level).mean() - 0.8) < 0.012


def test_more_seeds_a_lower_level_and_no_deviation():
    assert detectable(1.0, 20) < detectable(1.0, 10) < detectable(1.0, 10, level=0.01)
    assert detectable(0.0, 3) == 0
    with pytest.raises(ValueError, match='seeds must be at least 2; got 1'):
        detectable(1.0, 1)


def test_the_interval_is_that_of_all_contrasts_together():
    differences = np.array([0.2, 0.9, 0.4, 1.1, 0.7, 0.6])
    finding = find(contrast(differences), 5)
    reach = stats.t.ppf(1 - 0.05 / 5 / 2, 5) * differences.std(ddof=1) / 6**0.5
    assert finding.difference == pytest.approx(
        (differences.mean(), differences.mean() - reach, differences.mean() + reach)
    )
    assert finding.detectable == pytest.approx(detectable(differences.std(ddof=1), 6, 0.01))


@pytest.mark.parametrize(
    ('differences', 'paper', 'verdict'),
    [
        ([1.0, 1.1, 0.9], 0.5, 'confirmed'),
        ([-1.0, -1.1, -0.9], 0.5, 'refuted'),
        ([1.0, 1.1, 0.9], None, 'confirmed'),
        ([1.0, -1.1, 0.9], 0.5, 'undecided'),
        ([1.0], 0.5, 'not run'),
        ([], 0.5, 'not run'),
    ],
)
def test_verdicts(differences, paper, verdict):
    assert find(contrast(differences, paper), 1).verdict == verdict


def test_there_is_no_verdict_before_the_last_seed():
    some = contrast([1.0, 1.1, 0.9])
    assert find(some._replace(planned=3), 1) == find(some, 1)
    finding = find(some._replace(planned=4), 1)
    assert finding == find(some, 1)._replace(verdict='3 of 4 pairs')


def test_what_one_contrast_decides_two_may_not():
    differences = [1.0, 0.3, 0.9, 0.4]
    assert find(contrast(differences), 1).verdict == 'confirmed'
    assert find(contrast(differences), 10).verdict == 'undecided'


def test_other_seeds_are_an_error():
    with pytest.raises(ValueError, match=r'new and old must have the same seeds; got \[0\] and \[0, 1\]'):
        find(Contrast('A', 'new', 'old', 0.5, values=({0: 1.0}, {0: 1.0, 1: 2.0})), 1)


def test_the_table():
    lines = evidence_table([contrast([1.0, 1.1, 0.9]), contrast([], None)], 2).splitlines()
    assert lines[0] == '|  | contrast | paper | here, 97.5 % interval | pairs | detectable with 80 % power | verdict |'
    assert lines[2] == '| A | new − old | +0.50 | +1.00 [+0.64, +1.36] | 3 | 0.46 | confirmed |'
    assert lines[3] == '| A | new − old | – | – | 0 | – | not run |'
