"""What is made of the results of runs."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from reproduction.report import markdown_page
from reproduction.results import (
    Difference,
    Measured,
    Result,
    Setup,
    bootstrap_interval,
    difference,
    differences,
    mean_iou,
    sampled_difference,
)

pytestmark = pytest.mark.slow


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


def sampled(*samples, statistic='mean'):
    return [Result({}, samples=scores, statistic=statistic) for scores in samples]


@pytest.mark.parametrize(('of_seeds', 'of_images'), [(0, 3), (3, 0)])
def test_interval_over_samples_is_the_wider_of_a_literal_bootstrap_of_images_and_of_students(of_seeds, of_images):
    """Questions of an image are drawn together: here, they agree, so that drawing them alone is too narrow."""
    rng = np.random.default_rng(1)
    images = [f'photo{i}' for i in range(20) for _ in range(i % 4 + 1)]
    names = [f'{image}#{question}' for question, image in enumerate(images)]
    shared = dict(zip(dict.fromkeys(images), rng.normal(20, of_images, 20)))
    ours = [{name: shared[image] + shift for name, image in zip(names, images)} for shift in rng.normal(0, of_seeds, 3)]
    baseline = [{name: float(rng.normal(1, 0.1)) for name in names} for _ in range(3)]
    found = sampled_difference(sampled(*ours), sampled(*baseline))
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
    reversed_order = sampled(*(dict(reversed(scores.items())) for scores in baseline))
    assert sampled_difference(sampled(*ours), reversed_order) == found
    with pytest.raises(ValueError, match='scores of the same samples'):
        sampled_difference(sampled(*ours), sampled(*[{'a': 1.0}] * 3))


def random_counts(rng, statistic, names):
    """Scores of samples as `ByUnit` writes them, whose sums give the statistic."""

    def counts():
        if statistic == 'mean':
            part = int(rng.integers(1, 50))
            return [100 * part, part + int(rng.integers(1, 50))]
        if statistic == 'mIoU':
            intersections = rng.integers(0, 30, 3)
            return [*intersections.tolist(), *(intersections + rng.integers(1, 30, 3)).tolist()]
        totals = rng.integers(5, 20) - np.arange(4)
        matches = rng.integers(1, totals + 1)
        return [*matches.tolist(), *totals.tolist(), int(totals[0]), int(totals[0] + rng.integers(-3, 4))]

    return {name: counts() for name in names}


def metric(statistic, rows):
    """Literally, from the scores of some samples."""
    if statistic == 'mean':
        return sum(row[0] for row in rows) / sum(row[1] for row in rows)
    if statistic == 'mIoU':
        return 100 * statistics.mean(sum(r[c] for r in rows) / sum(r[3 + c] for r in rows) for c in range(3))
    precisions = [sum(r[n] for r in rows) / sum(r[4 + n] for r in rows) for n in range(4)]
    lengths = [sum(r[n] for r in rows) for n in (8, 9)]
    return 100 * statistics.geometric_mean(precisions) * min(1, math.exp(1 - lengths[1] / lengths[0]))


@pytest.mark.parametrize('statistic', ['mean', 'mIoU', 'BLEU'])
def test_pooled_metrics_are_compared_over_units(statistic):
    """The metric of drawn units is that of their sums, not a mean; the first group of the expression names a unit."""
    rng = np.random.default_rng(2)
    names = [f'{person}_{pose}' for person in range(8) for pose in range(3)]
    ours, baseline = ([random_counts(rng, statistic, names) for _ in range(2)] for _ in range(2))
    found = sampled_difference(
        sampled(*ours, statistic=statistic), sampled(*baseline, statistic=statistic), units=r'^(\d+)_'
    )

    def value(scores, drawn):
        return metric(statistic, [scores[name] for name in drawn])

    pairs = [value(a, names) - value(b, names) for a, b in zip(ours, baseline)]
    assert found.mean == pytest.approx(statistics.mean(pairs))
    means = []
    for _ in range(2000):
        drawn = [name for i in rng.integers(8, size=8) for name in names if name.startswith(f'{i}_')]
        seeds = rng.integers(2, size=2)
        means.append(statistics.mean(value(ours[s], drawn) - value(baseline[s], drawn) for s in seeds))
    student = stats.ttest_1samp(pairs, 0).confidence_interval(0.95)
    bootstrap = np.quantile(means, (0.025, 0.975))
    expected = max(student, bootstrap, key=np.ptp)
    assert found[1:] == pytest.approx(tuple(expected), abs=0.1 * float(np.ptp(bootstrap)))


def test_draws_without_anything_to_score_do_not_count():
    """A clip without objects alone; sentences without 4-grams, whose BLEU is 0 as in sacreBLEU."""
    ours, baseline = dict(a=[80.0, 1], b=[0.0, 0]), dict(a=[70.0, 1], b=[0.0, 0])
    assert str(sampled_difference(sampled(ours), sampled(baseline))) == '+10.00 [+10.00, +10.00] *'
    assert str(Difference(1.0, math.nan, math.nan)) == '+1.00 [+nan, +nan]'
    short = dict(a=[2, 1, 0, 0, 3, 2, 1, 0, 3, 3], b=[1, 0, 0, 0, 2, 1, 0, 0, 2, 2])
    long = dict(a=[5, 4, 3, 2, 5, 4, 3, 2, 5, 5], b=[5, 4, 3, 2, 5, 4, 3, 2, 5, 5])
    found = sampled_difference(sampled(long, statistic='BLEU'), sampled(short, statistic='BLEU'))
    assert str(found) == '+100.00 [+100.00, +100.00] *'


def test_a_class_without_pixels_does_not_count():
    assert mean_iou(np.array([3.0, 0, 0, 4, 0, 2])) == 100 * (3 / 4 + 0 / 2) / 2


def test_one_seed_is_compared_over_images():
    """In the report, too; a method without scores of samples has no interval."""

    def measured(name, baseline, samples):
        result = Result(dict(F1=7 / 3), 1.0, None, (), samples)
        return Measured(name, [], baseline, 'config', 0, 0.0, {0: result})

    scores = dict(a=1.0, b=2.0, c=4.0)
    zeros = dict.fromkeys('abc', 0.0)
    new, old, other = measured('new', 'old', scores), measured('old', None, zeros), measured('other', 'old', {})
    found = differences([new, old, other])
    assert found['new'] == sampled_difference(sampled(scores), sampled(zeros))
    assert 1 <= found['new'].low < found['new'].high <= 4
    assert found['other'] == difference([7 / 3], [7 / 3])
    alone = markdown_page([other._replace(baseline=None)], Setup('1', 'data', [], '', '', ''))
    assert not any(sign in alone for sign in '±%')
    page = markdown_page([new, old, other], Setup('1', 'data', [], '', '', ''))
    assert f'| {found["new"]} |' in page
    assert '95 % confidence interval (a bootstrap' in page


def test_runs_of_an_earlier_version_lack_a_metric():
    """The report has the metrics of all runs, whichever seed or method has more."""
    old, new = Result(dict(mIoU=40.0, aAcc=90.0), 1.0), Result(dict(mIoU=42.0, mAcc=60.0, aAcc=92.0), 1.0)
    for results in ({0: old, 1: new}, {0: new, 1: old}):
        mixed = Measured('mixed', [], None, 'config', 0, 0.0, results)
        full = Measured('full', [], 'mixed', 'config', 0, 0.0, dict.fromkeys(results, new))
        assert mixed.metrics == ['mIoU', 'aAcc']
        for methods in ([mixed, full], [full, mixed]):
            page = markdown_page(methods, Setup('1', 'data', [], '', '', ''))
            assert 'mAcc' not in page
            assert '| 91.00 ± 1.41 |' in page
            assert '| 92.00 ± 0.00 |' in page


def coverage(ratio, repetitions, seeds=3, images=250, draws=1000):
    """Simulate how often 95 % intervals contain the true difference, 0, in percent.

    Each image has a difference that all seeds share, and each seed adds one of its own, which deviates ``ratio`` times
    as much as the mean over the images: 0 if all seeds agree, 4 if the seeds decide. The intervals are Student's t over
    the seeds, the bootstrap, and the wider of both. With 2,000 repetitions, these are the figures of docs/reproduce.md.
    """
    generator = np.random.default_rng(0)
    names = [str(image) for image in range(images)]
    zeros = sampled(*[dict.fromkeys(names, 0.0)] * seeds)
    ones = np.ones((seeds, images))
    hits = []
    for _ in range(repetitions):
        pairs = generator.normal(size=images) + generator.normal(0, ratio / images**0.5, (seeds, 1))
        student = difference(pairs.mean(1).tolist(), [0.0] * seeds)[1:]
        bootstrap = bootstrap_interval(np.stack([pairs, ones], -1), np.stack([0 * ones, ones], -1), draws=draws)
        wider = sampled_difference(sampled(*(dict(zip(names, row)) for row in pairs)), zeros, draws=draws)[1:]
        low, high = np.array([student, bootstrap, wider], float).T
        hits.append((low <= 0) & (high >= 0))
    return (100 * np.mean(hits, 0)).tolist()


def test_interval_contains_the_true_difference_as_often_as_it_claims():
    """Three seeds: neither part alone does, Student's if the seeds agree, the bootstrap if they decide."""
    found = {ratio: coverage(ratio, 400, draws=400) for ratio in (0, 1, 4)}
    for *_, wider in found.values():
        assert 92 <= wider <= 98  # 400 differences: three deviations are 3.3
    assert found[0][0] < 5
    assert found[4][1] < 88
