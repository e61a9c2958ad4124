"""What the runs of two configs say: a sentence to quote, and how many seeds or samples would decide."""

import math
import statistics
from bisect import bisect_left
from typing import NamedTuple

from scipy import stats

from .report import spread
from .results import STATISTICS, Difference, Measured, bootstrap_interval, sums_by_unit

POWER = 0.8  # of a number of seeds that would decide
MOST_SEEDS = 1000


class Verdict(NamedTuple):
    """What the runs of two configs say."""

    names: tuple[str, str]
    metric: str
    values: tuple[list[float], list[float]]
    gap: Difference
    units: int  # of the test; 0 if it has no scores of samples
    reach_of_units: float  # half of the interval for other units, with these seeds

    @classmethod
    def of(cls, baseline: Measured, ours: Measured, gap: Difference, units: str | None) -> 'Verdict':
        metric = ours.metrics[0]
        results = [*ours.results.values()], [*baseline.results.values()]
        count, reach = 0, 0.0
        if all(result.samples for part in results for result in part):
            sums = sums_by_unit(*results, units)
            statistic = STATISTICS[results[0][0].statistic]
            low, high = bootstrap_interval(*sums, statistic, draw_seeds=False)
            count, reach = sums[0].shape[1], (high - low) / 2
        return cls(
            (baseline.name, ours.name), metric, (baseline.values(metric), ours.values(metric)), gap, count, reach
        )

    @property
    def over(self) -> str:
        """What the interval is over."""
        parts = ['seeds'] * (len(self.values[0]) > 1) + ['samples of the test'] * (self.units > 0)
        return f'over {" and ".join(parts)}'

    @property
    def is_decided(self) -> bool:
        return self.gap.low is not None and self.gap.high is not None and (self.gap.low > 0 or self.gap.high < 0)

    def sentence(self) -> str:
        """Return the sentence to quote."""
        seeds = len(self.values[0])
        first, second = map(spread, self.values)
        state = 'no interval' if self.gap.low is None else f'95 % interval {self.gap.low:+.2f} to {self.gap.high:+.2f}'
        if self.gap.low is not None:
            state += f' {self.over}'
        result = 'is undecided' if not self.is_decided else 'is better' if self.gap.mean > 0 else 'is worse'
        counted = f'{seeds} seed{"s" * (seeds > 1)}' + (f', {self.units} samples of the test' if self.units else '')
        return (
            f'**{self.names[1]} against {self.names[0]} {result}**: {self.gap.mean:+.2f} points of {self.metric} '
            f'({state}), {second} against {first} ({"mean ± deviation of " * (seeds > 1)}{counted}).'
        )

    def advice(self) -> str:
        """Return what would decide, if the true difference is the one seen."""
        seeds = len(self.values[0])
        if seeds == 1:
            return 'One seed says nothing of others. Run the command with --seeds 5.'
        needed = self.seeds_needed()
        given = 'If the true difference is the one seen'
        if self.is_decided:
            return f'{given}, {needed or seeds} seeds find it with a probability of 80 %; you have {seeds}.'
        if needed is not None and needed > seeds:
            return f'{given}, {needed} seeds would find it with a probability of 80 %; you have {seeds}.'
        samples = self.samples_needed()
        if needed is None and samples is not None:
            return (
                f'{given}, more seeds alone would not find it with a probability of 80 %: the test has '
                f'{self.units} samples, and would need about {samples}.'
            )
        if needed is None:
            return f'{given}, {MOST_SEEDS:,} seeds would not find it: what you would gain is small.'
        return f'{given}, {needed} seeds would find it with a probability of 80 %; these {seeds} did not. Add some.'

    def samples_needed(self) -> int | None:
        """Return how many samples the test needs if its size is the limit, however many seeds there are."""
        deviation = self.reach_of_units / stats.norm.ppf(0.975)
        share = abs(self.gap.mean) / (stats.norm.ppf(0.975) + stats.norm.ppf(POWER))
        if not self.units or self.gap.mean == 0 or deviation <= share:
            return None
        return math.ceil(self.units * (deviation / share) ** 2)

    def seeds_needed(self) -> int | None:
        """Return the smallest number of seeds that finds a difference as large as the one seen with :data:`POWER`.

        Both intervals count: Student's t over the seeds, and that for other seeds and units of the test. None if no
        number up to :data:`MOST_SEEDS` does.
        """
        mean = abs(self.gap.mean)
        deviation = statistics.stdev(second - first for first, second in zip(*self.values))
        of_units = self.reach_of_units / stats.norm.ppf(0.975)

        def decides(number: int) -> bool:
            limit = stats.t.ppf(0.975, number - 1)
            power = stats.nct.sf(limit, number - 1, mean / deviation * math.sqrt(number)) if deviation else 1.0
            spread_of_both = math.hypot(of_units, deviation / math.sqrt(number))
            return power >= POWER and mean >= spread_of_both * (stats.norm.ppf(0.975) + stats.norm.ppf(POWER))

        if mean == 0 or not decides(MOST_SEEDS):
            return None
        return 2 + bisect_left(range(2, MOST_SEEDS), True, key=decides)
