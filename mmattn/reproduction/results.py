"""Finished runs, and the differences between methods."""

import statistics
from collections.abc import Mapping, Sequence
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
    samples: Mapping[str, float] = {}  # the first metric of each sample of the test, for metrics that are their mean


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
    """Compare two methods by the scores of samples; the interval is that of other seeds and other samples.

    It is the percentile interval of a bootstrap that draws seeds and samples with replacement, both paired. With one
    seed, only samples are drawn.

    Args:
        ours (sequence of mappings): scores by sample, one mapping per seed.
        baseline (sequence of mappings): those of the baseline, in the same order, for the same samples.
        confidence (float): level of the interval, 0 to 1. Defaults to 0.95.
        draws (int): number of draws. Defaults to 2000.

    Raises:
        ValueError: the samples differ, or there is none.

    Example:
        >>> str(sampled_difference([{'a': 50.0, 'b': 100.0}], [{'a': 0.0, 'b': 50.0}]))
        '+50.00 [+50.00, +50.00] *'
    """
    names = list(ours[0])
    if not names or any(set(names) != set(scores) for scores in (*ours, *baseline)):
        raise ValueError('the methods must have scores of the same samples, at least one')
    pairs = np.array([[a[name] - b[name] for name in names] for a, b in zip(ours, baseline, strict=True)])
    generator = np.random.default_rng(0)
    seeds, samples = (generator.multinomial(n, [1 / n] * n, draws) / n for n in pairs.shape)
    low, high = np.quantile(((seeds @ pairs) * samples).sum(1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(float(pairs.mean()), float(low), float(high))


def sampled_differences(methods: list[Measured]) -> dict[str, Difference]:
    """Return :func:`sampled_difference` of every method to its baseline, where both have scores of samples."""
    named = {method.name: [result.samples for result in method.results.values()] for method in methods}
    return {
        method.name: sampled_difference(named[method.name], named[method.baseline])
        for method in methods
        if method.baseline is not None and all((*named[method.name], *named[method.baseline]))
    }


def differences(methods: list[Measured]) -> dict[str, Difference]:
    """Return the difference of every method, except baselines, to its baseline."""
    named = {method.name: method for method in methods}
    metric = methods[0].metrics[0]
    return {
        method.name: difference(method.values(metric), named[method.baseline].values(metric))
        for method in methods
        if method.baseline is not None
    }


def deviation(values: list[float]) -> float | None:
    """Return the sample deviation; None for one value."""
    return statistics.stdev(values) if len(values) > 1 else None
