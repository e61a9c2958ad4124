"""What is made of the results of runs."""

import runpy
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from reproduction.plots import by_number, plot_numbers
from reproduction.report import markdown_page
from reproduction.results import Measured, Result, Setup, difference, differences, sampled_difference
from reproduction.tables import read_tables

TOOL = Path(__file__).parents[2] / 'tools/benchmarks/interval_coverage.py'


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


@pytest.mark.parametrize(('of_seeds', 'of_images'), [(0, 3), (3, 0)])
def test_interval_over_samples_is_the_wider_of_a_literal_bootstrap_of_images_and_of_students(of_seeds, of_images):
    """Questions of an image are drawn together: here, they agree, so that drawing them alone is too narrow."""
    rng = np.random.default_rng(1)
    images = [f'photo{i}' for i in range(20) for _ in range(i % 4 + 1)]
    names = [f'{image}#{question}' for question, image in enumerate(images)]
    shared = dict(zip(dict.fromkeys(images), rng.normal(20, of_images, 20)))
    ours = [{name: shared[image] + shift for name, image in zip(names, images)} for shift in rng.normal(0, of_seeds, 3)]
    baseline = [{name: float(rng.normal(1, 0.1)) for name in names} for _ in range(3)]
    found = sampled_difference(ours, baseline)
    pairs = [{name: a[name] - b[name] for name in names} for a, b in zip(ours, baseline)]
    by_seed = [statistics.mean(scores.values()) for scores in pairs]
    assert found.mean == pytest.approx(statistics.mean(by_seed))
    means = []
    for _ in range(2000):
        drawn = [name for i in rng.integers(20, size=20) for name in names if name.startswith(f'photo{i}#')]
        means.append(statistics.mean(pairs[s][name] for s in rng.integers(3, size=3) for name in drawn))
    bootstrap = np.quantile(means, (0.025, 0.975))
    student = stats.ttest_1samp(by_seed, 0).confidence_interval(0.95)
    expected = bootstrap if of_images else student
    assert np.ptp(expected) == max(np.ptp(bootstrap), np.ptp(student))
    # Two bootstraps of 2,000 draws differ by a few hundredths of their width.
    assert found[1:] == pytest.approx(tuple(expected), abs=0.1 if of_images else 1e-9)
    assert sampled_difference(ours, [dict(reversed(scores.items())) for scores in baseline]) == found
    with pytest.raises(ValueError, match='scores of the same samples'):
        sampled_difference(ours, [{'a': 1.0}] * 3)


def test_one_seed_is_compared_over_images():
    """In the report, too; a method without scores of samples has no interval."""

    def measured(name, baseline, samples):
        return Measured(name, [], baseline, '', 0, 0.0, {0: Result(dict(F1=7 / 3), 1.0, None, (), samples)})

    scores = dict(a=1.0, b=2.0, c=4.0)
    zeros = dict.fromkeys('abc', 0.0)
    new, old, other = measured('new', 'old', scores), measured('old', None, zeros), measured('other', 'old', {})
    found = differences([new, old, other])
    assert found['new'] == sampled_difference([scores], [zeros])
    assert 1 <= found['new'].low < found['new'].high <= 4
    assert found['other'] == difference([7 / 3], [7 / 3])
    page = markdown_page([new, old, other], Setup('', 'data', [], '', '', ''))
    assert f'| {found["new"]} |' in page
    assert 'its 95 % confidence interval (a bootstrap of the test images, not corrected' in page


def test_interval_contains_the_true_difference_as_often_as_it_claims():
    """Three seeds: neither part alone does, Student's if the seeds agree, the bootstrap if they decide."""
    coverage = runpy.run_path(str(TOOL))['coverage']
    found = {ratio: coverage(ratio, 400, draws=400) for ratio in (0, 1, 2, 4)}
    for *_, wider in found.values():
        assert 92 <= wider <= 98  # 400 differences: three deviations are 3.3
    assert found[0][0] < 5
    assert found[4][1] < 88


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
