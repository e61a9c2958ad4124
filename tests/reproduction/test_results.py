"""What is made of the results of runs."""

import math
import statistics
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from reproduction import plots
from reproduction.plots import by_number, plot_costs, plot_numbers
from reproduction.report import Contrast, compare_contrasts, contrast_table, find_contrasts, markdown_page
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
    unseal,
)
from reproduction.store import Store
from reproduction.tables import read_tables
from reproduction.task import ProtocolError

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


def test_a_sealed_result_gets_the_metric_of_its_samples():
    first = Result({'J&F': 60.0, 'J': 50.0}, 1.0, 10.0, [(5, 20.0)], dict(a=[60.0, 1]))
    assert unseal(first) is first
    sealed = first._replace(metrics={}, statistic='mIoU', samples=dict(a=[3, 0, 6, 0], b=[1, 5, 2, 10]))
    assert unseal(sealed) == sealed._replace(metrics=dict(mIoU=50.0))  # 4 of 8 and 5 of 10 pixels


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


def contrast(name, ours, baseline):
    return Contrast(*(Measured(n, [], None, 'config', 0, 0.0, v) for n, v in ((name, ours), ('old', baseline))))


def test_contrasts_have_intervals_for_their_number_and_for_the_last_validation():
    """Bonferroni: two contrasts have intervals of 97.5 % each."""
    ours, old = (
        {s: Result(dict(F1=v), curve=[(1, 0.0), (9, v + s)]) for s, v in enumerate(values)}
        for values in ((71.0, 72.1, 73.0), (70.0, 71.0, 72.5))
    )
    pairs = [1.0, 1.1, 0.5]
    compared = compare_contrasts([contrast('new', ours, old)], 0.975, None, True)
    assert list(compared) == ['new − old', 'new − old, last validation']
    for interval, by_seed in compared.values():
        assert by_seed == pytest.approx(pairs)
        assert interval[1:] == pytest.approx(tuple(stats.ttest_1samp(pairs, 0).confidence_interval(0.975)))
    text = contrast_table(compared, 'F1', 0.975)
    assert '97.5 % interval' in text
    assert '| +1.00, +1.10, +0.50 |' in text
    assert list(compare_contrasts([contrast('new', ours, old)], 0.95, None, False)) == ['new − old']
    assert find_contrasts(['Bi-CC - CC'], ['CC', 'Bi-CC']) == [('Bi-CC', 'CC')]
    for wrong in ('Bi-CC', 'Bi-CC - NL', 'Bi-CC-CC'):
        with pytest.raises(ProtocolError, match=r"'OURS - BASELINE' of CC; Bi-CC; got"):
            find_contrasts([wrong], ['CC', 'Bi-CC'])


def test_plot_over_numbers_of_questions(tmp_path):
    """Each method has its three numbers in ascending order; the settings of other tables are not numbers."""

    def measured(table):
        result = {0: Result(dict(accuracy=50.0), 1.0, None)}
        rows = read_tables()[table]
        return [Measured(f'{row.name}, {row.setting}', [row], None, 'config', 0, 0.0, result) for row in rows]

    found = by_number(measured('easy-vqa'))
    assert list(found) == ['Concat', 'BAN-2', 'MUTAN', 'FG']
    assert all(list(by_questions) == [2410, 9643, 38575] for by_questions in found.values())
    assert by_number(measured('2')) == by_number(measured('coco-qa')) == {}
    plot_numbers(measured('easy-vqa'), 'title', tmp_path / 'numbers.svg')
    drawn = (tmp_path / 'numbers.svg').read_text(encoding='utf-8')
    for text in ('9,643', 'FG', 'questions in training', 'title'):
        assert drawn.count(f'<!-- {text} -->') == 1


@pytest.fixture
def points(monkeypatch):
    """Points of a plot by marker, in the order in which they are drawn; labels; and points of the lines."""
    drawn = {}

    @contextmanager
    def drawing(*args):
        with original(*args) as axis:
            yield axis
            for line in axis.lines:
                drawn.setdefault(line.get_marker(), []).extend(zip(*map(list, line.get_data())))
            drawn['labels'] = [text.get_text() for text in axis.texts]

    original = plots.drawing
    monkeypatch.setattr(plots, 'drawing', drawing)
    return drawn


RESULTS = Path(__file__).parents[2] / 'docs' / 'results'


@pytest.mark.parametrize(('kind', 'column', 'unit'), [('parameters', 'parameters', 1e6), ('MACs', 'macs', 1e9)])
def test_plot_over_costs_has_the_figures_of_the_results(points, kind, column, unit, tmp_path):
    """Of a published table: each mean and seed at the cost of its row, cheapest first, and the line of the best."""
    store, table = Store(RESULTS / 'table_4.2.json'), {row.name: row for row in read_tables()['4.2']}
    rows = sorted(store.rows, key=lambda row: row[column])
    assert len(rows) == 10
    methods = []
    for row in store.rows:
        columns = row['baseline'], row['configs'][0], row['parameters'], row['macs']
        by_seed = {seed: store.get(row['configs'][0], seed, 240, 'iterations') for seed in range(3)}
        methods.append(Measured(row['name'], [table[row['name']]], *columns, by_seed))
    plot_costs(methods, kind, 'title', True, tmp_path / 'plot.png')
    values = {method.name: method.values('mIoU') for method in methods}
    means = [(row[column] / unit, statistics.mean(values[row['name']])) for row in rows]
    assert points['o'] == means
    assert points['.'] == [(row[column] / unit, value) for row in rows for value in values[row['name']]]
    assert points['labels'] == [row['name'][0] for row in rows]
    best = [y for (_, y) in means]
    assert points['None'] == [point for i, point in enumerate(means) if i == 0 or point[1] > max(best[:i])]
    assert 'D' not in points  # the paper's costs are of the block alone


@pytest.mark.parametrize(
    ('table', 'kind', 'setting', 'expected'),
    [
        ('2', 'MACs', 'detection, regular', {'w/o': (213.7, 36.4), '1111': (281.4, 38.8), '0110': (253.6, 38.8)}),
        ('2', 'MACs', 'segmentation, regular', {'w/o': (449.5, 71.9), '1111': (1112.1, 76.7), '0110': (814.0, 76.6)}),
        ('3', 'MACs', 'detection', {'0100, n_k = 13': (222.7, 38.5), 'dynamic, n_k = 31': (352.9, 37.9)}),
        ('ban-2', 'parameters', '', {'Unitary': (31.9, 64.59), 'BAN-4': (44.8, 65.81), 'BAN-4 concat': (51.1, 64.71)}),
    ],
)
def test_the_papers_points_are_its_figures_over_its_costs(points, table, kind, setting, expected, tmp_path):
    """As printed in the study's Tables 2 and 3 and in BAN's Table 2; a row without both numbers has no point."""
    rows = [row for row in read_tables()[table] if row.setting == setting]
    methods = [
        Measured(row.name, [row], None, 'config', number, 1e9 * number, {0: Result(dict(metric=float(number)), 1.0)})
        for number, row in enumerate(rows)
    ]
    plot_costs(methods, kind, 'title', True, tmp_path / 'plot.png')
    both = [row for row in rows if row.metrics and kind in row.costs]
    assert points['D'] == [(row.costs[kind], next(iter(row.metrics.values()))) for row in both]
    found = dict(zip((row.name.partition(':')[0] for row in both), points['D']))
    assert {name: found[name] for name in expected} == expected
    assert len(points['o']) == len(rows)
    points.clear()
    plot_costs(methods, kind, 'title', False, tmp_path / 'plot.png')
    assert 'D' not in points
