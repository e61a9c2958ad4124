"""Finished runs, and the differences between methods."""

import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from .tables import Row


class Setup(NamedTuple):
    """The runs: table, data, differences from the paper's protocol, input size, machine."""

    table: str  # '' if it is not a table of a paper
    data: str
    deviations: list[str]
    inputs: str  # width×height, or numbers of tokens
    device: str
    memory: str  # the kind of memory that is measured
    published: bool = True  # the table has figures of a paper

    @property
    def title(self) -> str:
        """The title of the report."""
        return f'Table {self.table}' if self.table else 'Short runs'

    @property
    def whose(self) -> str:
        """The owner of the protocol, in the possessive."""
        return "paper's" if self.table and self.published else "configs'"


class Result(NamedTuple):
    """A finished run: metrics in percent by name, the first of which is compared, and the cost of training."""

    metrics: dict[str, float]
    seconds: float | None  # median time of an iteration; None if nothing was trained
    memory: float | None  # peak in MiB; None if it was not recorded
    curve: Sequence[Sequence[float]] = ()  # validations during training: iteration or epoch, first metric
    samples: Mapping[str, float] = {}  # the first metric by IMAGE or IMAGE#SAMPLE, if it is their mean


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
        """The names of the metrics; methods are compared by the first."""
        return list(next(iter(self.results.values())).metrics)

    def values(self, metric: str) -> list[float]:
        """Return a metric for all seeds."""
        return [result.metrics[metric] for result in self.results.values()]

    @property
    def samples(self) -> list[Mapping[str, float]]:
        """The scores of samples for all seeds; [] if a seed has none."""
        scores = [result.samples for result in self.results.values()]
        return scores if all(scores) else []


class Difference(NamedTuple):
    """Mean of paired differences, and the limits of its confidence interval, which are None for one pair."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f'{self.mean:+.2f}'
        star = '' if self.low <= 0 <= self.high else ' *'
        return f'{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]{star}'


def difference(ours: list[float], baseline: list[float], confidence: float = 0.95) -> Difference:
    """Compare two methods seed by seed, by Student's t; one seed gives no interval.

    Args:
        ours (list[float]): one value per seed.
        baseline (list[float]): one value per seed, in the same order.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.

    Raises:
        ValueError: the methods differ in their number of seeds, or have none.

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


def sampled_difference(
    ours: Sequence[Mapping[str, float]],
    baseline: Sequence[Mapping[str, float]],
    confidence: float = 0.95,
    draws: int = 2000,
) -> Difference:
    """Compare two methods by the scores of samples. The interval is for other seeds and other images.

    It is the wider of two intervals: Student's t over the seeds, and a bootstrap that draws seeds and images with
    replacement. All samples of an image, such as its questions, are drawn together. With one seed, only images are
    drawn. ``tools/benchmarks/interval_coverage.py`` simulates how often the interval contains the true difference.

    Args:
        ours (sequence of mappings): scores by sample, one mapping per seed. A sample is called ``IMAGE``, or
            ``IMAGE#SAMPLE`` if an image has several.
        baseline (sequence of mappings): scores of the baseline, in the same order, for the same samples.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.
        draws (int): number of draws. Defaults to 2000.

    Raises:
        ValueError: the samples differ, or there is none.

    Example:
        >>> str(sampled_difference([{'1#a': 50.0, '1#b': 100.0}], [{'1#a': 0.0, '1#b': 50.0}]))
        '+50.00 [+50.00, +50.00] *'
    """
    names = list(ours[0])
    if not names or any(set(names) != set(scores) for scores in (*ours, *baseline)):
        raise ValueError('the methods must have scores of the same samples, at least one')
    pairs = np.array([[a[name] - b[name] for name in names] for a, b in zip(ours, baseline, strict=True)])
    images = np.unique([name.partition('#')[0] for name in names], return_inverse=True)[1]
    sums = np.array([np.bincount(images, row) for row in pairs])
    over_seeds = difference(pairs.mean(1).tolist(), [0.0] * len(pairs), confidence)
    intervals = [bootstrap_interval(sums, np.bincount(images), confidence, draws)]
    if over_seeds.low is not None and over_seeds.high is not None:
        intervals.append((over_seeds.low, over_seeds.high))
    return Difference(over_seeds.mean, *max(intervals, key=lambda limits: limits[1] - limits[0]))


def bootstrap_interval(
    sums: np.ndarray, counts: np.ndarray, confidence: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """Return the percentile interval of a mean over samples, drawing seeds and images with replacement.

    Args:
        sums (np.ndarray): sum of each image's samples, of shape ``(seeds, images)``.
        counts (np.ndarray): number of each image's samples, of shape ``(images,)``.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.
        draws (int): number of draws. Defaults to 2000.
    """
    seeds, images = _drawn(*sums.shape, draws)
    means = (seeds @ sums * images).sum(1) / (images @ counts)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@lru_cache(1)
def _drawn(seeds: int, images: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each seed, and how often each image is drawn; every interval has the same draws."""
    generator = np.random.default_rng(0)
    return generator.multinomial(seeds, [1 / seeds] * seeds, draws) / seeds, generator.multinomial(
        images, [1 / images] * images, draws
    )


def differences(methods: list[Measured]) -> dict[str, Difference]:
    """Return the difference of every method, except baselines, to its baseline: by samples where both have scores."""
    named = {method.name: method for method in methods}
    metric = methods[0].metrics[0]
    result = {}
    for ours in methods:
        if ours.baseline is not None:
            baseline = named[ours.baseline]
            if ours.samples and baseline.samples:
                result[ours.name] = sampled_difference(ours.samples, baseline.samples)
            else:
                result[ours.name] = difference(ours.values(metric), baseline.values(metric))
    return result


def deviation(values: list[float]) -> float | None:
    """Return the sample deviation; None for one value."""
    return statistics.stdev(values) if len(values) > 1 else None
