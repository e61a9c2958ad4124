"""Finished runs, and the differences between methods."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from .rows import Row

# The score of a sample: a number, or numerators and denominators that are added over samples.
Score = float | Sequence[float]


class Setup(NamedTuple):
    """The runs: table, data, differences from the paper's protocol, input size, machine."""

    table: str
    data: str
    deviations: list[str]
    inputs: str  # width×height, or numbers of tokens
    device: str
    memory: str  # the kind of memory that is measured
    published: bool = True  # the table has figures of a paper
    units: str | None = None  # samples with the same match of this regular expression are drawn together
    choices: Sequence[str] = ()  # settings that the source does not state, by the place that was searched
    comparable: bool = True  # the paper's network, data and length; only settings of the configs may differ

    @property
    def protocol(self) -> str:
        listed = '; '.join(self.deviations)
        text = f'**Not the {self.whose} protocol**: {listed}.' if listed else f'The {self.whose} protocol.'
        return text + ''.join(f' {choice[0].upper()}{choice[1:]}.' for choice in self.choices)

    @property
    def title(self) -> str:
        return f'Table {self.table}'

    @property
    def whose(self) -> str:
        return "paper's" if self.published else "configs'"


class Result(NamedTuple):
    """A finished run: metrics in percent by name, the first of which is compared, and the cost of training."""

    metrics: dict[str, float]
    seconds: float | None = None  # median time of an iteration
    memory: float | None = None  # peak in MiB; None if it was not recorded
    curve: Sequence[Sequence[float]] = ()  # validations during training: iteration or epoch, first metric
    samples: Mapping[str, Score] = {}  # scores by IMAGE or IMAGE#SAMPLE, of which the first metric is the statistic
    statistic: str = 'mean'  # a key of STATISTICS
    deviations: Sequence[str] | None = None  # the differences from the paper's protocol; None: not known


def shared_metrics(results: Sequence[Result]) -> list[str]:
    """Return the names of the metrics that all runs have; an earlier version may have stored fewer."""
    return [name for name in results[0].metrics if all(name in result.metrics for result in results)]


class Measured(NamedTuple):
    """A row of the report: its name, the rows of the paper that it represents, its baseline's name, its config.

    ``parameters`` and ``macs`` (multiply-accumulates) are those of the network in inference, for one input.
    """

    name: str
    rows: list[Row]
    baseline: str | None
    config: str
    parameters: int
    macs: float
    results: dict[int, Result]  # by seed

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that all runs have; methods are compared by the first."""
        return shared_metrics([*self.results.values()])

    def values(self, metric: str) -> list[float]:
        return [result.metrics[metric] for result in self.results.values()]


class Difference(NamedTuple):
    """Mean of paired differences, and the limits of its confidence interval, which are None for one pair."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f'{self.mean:+.2f}'
        star = ' *' if self.low > 0 or self.high < 0 else ''
        return f'{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]{star}'


def difference(ours: list[float], baseline: list[float], confidence: float = 0.95) -> Difference:
    """Compare two methods seed by seed, by Student's t; one seed gives no interval.

    Args:
        ours (list[float]): one value per seed.
        baseline (list[float]): one value per seed, in the same order.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.

    Example:
        >>> str(difference([71.0, 72.0, 73.0], [70.0, 71.0, 72.5]))
        '+0.83 [+0.12, +1.55] *'
    """
    pairs = [a - b for a, b in zip(ours, baseline, strict=True)]
    if not pairs:
        raise ValueError('a difference requires one seed or more; got none')
    mean = statistics.mean(pairs)
    if len(pairs) == 1:
        return Difference(mean, None, None)
    # ttest_rel has no interval for equal differences
    reach = float(stats.t.interval(confidence, len(pairs) - 1)[1] * stats.sem(pairs))
    return Difference(mean, mean - reach, mean + reach)


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return numerator / denominator, given ``(…, 2)``: a mean over samples, or F1 of pooled pixels."""
    return sums[..., 0] / sums[..., 1]


def mean_iou(sums: np.ndarray) -> np.ndarray:
    """Return the mean IoU in percent, given intersections and unions of all classes, ``(…, 2 · classes)``.

    Classes without pixels do not count.
    """
    intersections, unions = np.split(sums, 2, -1)
    present = unions > 0
    return 100 * (intersections / np.where(present, unions, 1)).sum(-1) / present.sum(-1)


def bleu(sums: np.ndarray) -> np.ndarray:
    """Return corpus BLEU-4, given matches (4) and numbers (4) of n-grams, and both lengths, ``(…, 10)``.

    As in sacreBLEU, it is 0 without n-grams of some order.
    """
    matches, numbers = sums[..., :4], sums[..., 4:8]
    with np.errstate(divide='ignore', invalid='ignore'):
        precisions = np.log(matches / np.where(numbers > 0, numbers, 1)).mean(-1)
        return 100 * np.exp(precisions + np.minimum(0, 1 - sums[..., 9] / sums[..., 8]))


# From sums over samples to the metric.
STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = dict(mean=ratio, mIoU=mean_iou, BLEU=bleu)


def sampled_difference(
    ours: Sequence[Result],
    baseline: Sequence[Result],
    confidence: float = 0.95,
    draws: int = 2000,
    units: str | None = None,
) -> Difference:
    """Compare two methods by the scores of samples. The interval is for other seeds and other units of the test set.

    It is the wider of two intervals: Student's t over the seeds, and a bootstrap that draws seeds and units with
    replacement. A unit is an image or a clip; all its samples, such as its questions, are drawn together. With one
    seed, only units are drawn. ``tests/reproduction/test_results.py`` simulates how often the interval contains the
    true difference.

    Args:
        ours (sequence of Result): results with samples, one per seed. A sample is called ``UNIT``, or ``UNIT#SAMPLE``
            if a unit has several.
        baseline (sequence of Result): the baseline's, in the same order, for the same samples.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.
        draws (int): number of draws. Defaults to 2000.
        units (str, optional): regular expression; names with the same match, or the same first group of it, are one
            unit. Defaults to None, the part of the name before ``#``.

    Example:
        >>> ours, baseline = Result({}, samples={'1#a': 50.0, '1#b': 100.0}), Result({}, samples={'1#a': 0, '1#b': 50})
        >>> str(sampled_difference([ours], [baseline]))
        '+50.00 [+50.00, +50.00] *'
    """
    our_sums, baseline_sums = sums_by_unit(ours, baseline, units)
    statistic = STATISTICS[ours[0].statistic]
    pairs = statistic(our_sums.sum(1)) - statistic(baseline_sums.sum(1))
    over_seeds = difference(pairs.tolist(), [0.0] * len(pairs), confidence)
    intervals = [bootstrap_interval(our_sums, baseline_sums, statistic, confidence, draws)]
    if over_seeds.low is not None and over_seeds.high is not None:
        intervals.append((over_seeds.low, over_seeds.high))
    return Difference(over_seeds.mean, *max(intervals, key=lambda limits: limits[1] - limits[0]))


def sums_by_unit(
    ours: Sequence[Result], baseline: Sequence[Result], units: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums over each unit's samples for both methods, ``(seeds, units, columns)``."""
    names = list(ours[0].samples)
    if not names or any(set(names) != set(result.samples) for result in (*ours, *baseline)):
        raise ValueError('the methods must have scores of the same samples, at least one')
    numbers = np.unique([unit_name(name, units) for name in names], return_inverse=True)[1]
    first, second = (
        np.stack([_sum_by_unit([result.samples[name] for name in names], numbers) for result in results])
        for results in (ours, baseline)
    )
    return first, second


def unit_name(sample: str, units: str | None) -> str:
    """Return the unit of a sample, see :func:`sampled_difference`; a name without a match is its own unit."""
    if units is None:
        return sample.partition('#')[0]
    match = re.search(units, sample)
    return sample if match is None else match[match.re.groups and 1]


def _sum_by_unit(scores: Sequence[Score], numbers: np.ndarray) -> np.ndarray:
    """Return the sums of scores over the samples of each unit, ``(units, columns)``; a number is one of one."""
    rows = np.array(scores, float)
    if rows.ndim == 1:
        rows = np.stack([rows, np.ones(len(rows))], -1)
    return np.stack([np.bincount(numbers, column) for column in rows.T], -1)


def bootstrap_interval(
    ours: np.ndarray,
    baseline: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = ratio,
    confidence: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Return the percentile interval of a mean difference over seeds, drawing seeds and units with replacement.

    Args:
        ours, baseline (np.ndarray): sums over each unit's samples, of shape ``(seeds, units, columns)``.
        statistic (Callable): from sums, ``(…, columns)``, to the metric. Defaults to :func:`ratio`.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.
        draws (int): number of draws. Defaults to 2000.
    """
    seeds, units = _drawn(*ours.shape[:2], draws)
    pairs = statistic(units @ ours) - statistic(units @ baseline)  # (seeds, draws)
    means = (seeds * pairs.T).sum(1)
    means = means[np.isfinite(means)]  # a draw may have nothing to score, such as clips without objects
    if not len(means):
        return math.nan, math.nan
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@lru_cache(1)
def _drawn(seeds: int, units: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each seed, and how often each unit is drawn; every interval has the same draws."""
    generator = np.random.default_rng(0)
    of_seeds, of_units = (generator.multinomial(n, [1 / n] * n, draws).astype(float) for n in (seeds, units))
    return of_seeds / seeds, of_units


def compare(ours: Measured, baseline: Measured, units: str | None = None) -> Difference:
    """Return the difference of two methods in the first metric: by samples where both have scores."""
    our_results, baseline_results = [*ours.results.values()], [*baseline.results.values()]
    if all(result.samples for result in our_results + baseline_results):
        return sampled_difference(our_results, baseline_results, units=units)
    metric = ours.metrics[0]
    return difference(ours.values(metric), baseline.values(metric))


def differences(methods: list[Measured], units: str | None = None) -> dict[str, Difference]:
    """Return the difference of every method, except baselines, to its baseline."""
    named = {method.name: method for method in methods}
    return {
        method.name: compare(method, named[method.baseline], units) for method in methods if method.baseline is not None
    }


def deviation(values: list[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None
