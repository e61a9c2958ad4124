"""Evidence for the papers' claims: primary contrasts, decided by intervals whose level is fixed in advance."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from .plots import drawing
from .report import markdown
from .results import Difference, deviation, difference

LEVEL = 0.05  # of a family of contrasts together: the primary ones, or those of a follow-up
POWER = 0.8


class Contrast(NamedTuple):
    """A claim of a paper: one method is better than another.

    Attributes:
        question (str): what is compared, in words.
        ours, baseline (str): names of the two methods.
        paper (float, optional): difference that the paper prints, in points, above 0. None if it prints none.
        on (str): on which data, if the question has several contrasts of the methods. Defaults to ''.
        validation (bool): whether the metric is that of the last validation, not of the test. Defaults to False.
        planned (int): number of pairs of the protocol, one per seed, or per seed and fold, 2 or more; with fewer, there
            is no verdict. Defaults to 2.
        values (tuple): the metric by seed, of ours and of the baseline; empty if it is not run yet.
    """

    question: str
    ours: str
    baseline: str
    paper: float | None
    on: str = ''
    validation: bool = False
    planned: int = 2
    values: tuple[Mapping[int, float], Mapping[int, float]] = ({}, {})

    def name(self) -> str:
        """Return the names of the methods, and the data."""
        return f'{self.ours} − {self.baseline}' + (f', {self.on}' if self.on else '')

    def pairs(self) -> list[tuple[float, float]]:
        """Return the values of both methods for each seed, by ascending seed.

        Raises:
            ValueError: the methods have different seeds.
        """
        ours, baseline = self.values
        if ours.keys() != baseline.keys():
            raise ValueError(
                f'{self.ours} and {self.baseline} must have the same seeds; got {sorted(ours)} and {sorted(baseline)}'
            )
        return [(ours[seed], baseline[seed]) for seed in sorted(ours)]


class Finding(NamedTuple):
    """What the runs say about a contrast.

    Attributes:
        difference (Difference): mean difference, and its interval, corrected for the number of contrasts.
        detectable (float or None): the smallest true difference that is found with a power of 80 %.
        verdict (str): 'confirmed', 'refuted', 'undecided', 'not run', or how many of the planned pairs have run.
    """

    difference: Difference | None
    detectable: float | None
    verdict: str


def detectable(deviation: float, seeds: int, level: float = LEVEL, power: float = POWER) -> float:
    """Return the smallest true difference that a two-sided paired t test finds with a given power.

    Args:
        deviation (float): standard deviation of the paired differences, at least 0.
        seeds (int): number of pairs, at least 2.
        level (float): level of the test, 0 to 1. Defaults to 0.05.
        power (float): probability of finding it, ``level`` to 1. Defaults to 0.8.

    Raises:
        ValueError: there are fewer than two pairs.

    Example:
        >>> round(detectable(1.0, 10), 2)
        1.0
        >>> round(detectable(1.0, 3), 2)
        3.26
    """
    if seeds < 2:
        raise ValueError(f'seeds must be at least 2; got {seeds}')
    limit = stats.t.ppf(1 - level / 2, seeds - 1)

    # Quantiles of the estimated deviation, for a true deviation of 1; SciPy's noncentral t fails in the far tails.
    spread = np.sqrt(stats.chi2.ppf((np.arange(2000) + 0.5) / 2000, seeds - 1) / (seeds - 1))

    def lack(shift: float) -> float:
        found = stats.norm.sf(limit * spread - shift) + stats.norm.cdf(-limit * spread - shift)
        return float(found.mean()) - power

    return deviation * float(optimize.brentq(lack, 0, 3 * limit + 3)) / seeds**0.5


def required_seeds(deviation: float, difference: float, count: int, least: int = 6, most: int = 100) -> int | None:
    """Return the smallest number of pairs that finds a difference with a power of 80 %.

    Args:
        deviation (float): standard deviation of the paired differences, at least 0.
        difference (float): the true difference, above 0.
        count (int): number of contrasts of the family, as in :func:`find`.
        least, most (int): limits of the number, 2 or more. Default to 6 and 100.

    Returns:
        int or None: None if ``most`` are too few.

    Example:
        >>> required_seeds(1.0, 1.0, 1)
        10
    """
    numbers = range(least, most + 1)
    return next((n for n in numbers if detectable(deviation, n, LEVEL / count) <= difference), None)


def find(contrast: Contrast, count: int) -> Finding:
    """Decide a contrast.

    It is confirmed if its interval is above 0, refuted if it is below 0, and undecided if it includes 0. Intervals have
    the level 1 − 0.05 / ``count`` (Bonferroni), so that all verdicts of a family are free of error with a probability
    of 95 %.

    Args:
        contrast (Contrast): with the values of its runs.
        count (int): number of contrasts of its family.

    Raises:
        ValueError: the methods have different seeds.

    Example:
        >>> values = {0: 71.0, 1: 72.1, 2: 73.0}, {0: 70.0, 1: 71.0, 2: 72.0}
        >>> contrast = Contrast('A', 'new', 'old', 0.5, values=values)
        >>> finding = find(contrast, 2)
        >>> str(finding.difference), finding.verdict
        ('+1.03 [+0.83, +1.24] *', 'confirmed')
    """
    pairs = contrast.pairs()
    if len(pairs) < 2:
        return Finding(None, None, 'not run')
    ours, baseline = (list(each) for each in zip(*pairs))
    level = LEVEL / count
    found = difference(ours, baseline, 1 - level)
    spread = deviation([a - b for a, b in pairs])
    assert found.low is not None
    assert found.high is not None
    assert spread is not None  # there are two seeds or more
    if len(pairs) < contrast.planned:
        verdict = f'{len(pairs)} of {contrast.planned} pairs'
    elif found.low <= 0 <= found.high:
        verdict = 'undecided'
    else:
        verdict = 'confirmed' if found.mean > 0 else 'refuted'
    return Finding(found, detectable(spread, len(pairs), level), verdict)


def evidence_table(contrasts: Sequence[Contrast], count: int) -> str:
    """Return contrasts of a family as a Markdown table.

    Args:
        contrasts (list[Contrast]): the contrasts.
        count (int): number of all contrasts of the family, see :func:`find`.

    Raises:
        ValueError: the methods of a contrast have different seeds.
    """
    rows = []
    for contrast in contrasts:
        finding = find(contrast, count)
        rows.append(
            [
                contrast.question,
                contrast.name(),
                '–' if contrast.paper is None else f'{contrast.paper:+.2f}',
                '–' if finding.difference is None else str(finding.difference).removesuffix(' *'),
                str(len(contrast.values[0])),
                '–' if finding.detectable is None else f'{finding.detectable:.2f}',
                finding.verdict,
            ]
        )
    interval = f'{100 * (1 - LEVEL / count):.1f} % interval'
    heads = ['contrast', 'paper', f'here, {interval}', 'pairs', 'detectable with 80 % power', 'verdict']
    return markdown(heads, rows)


def plot_contrasts(contrasts: Mapping[str, Sequence[Contrast]], counts: Mapping[str, int], path: Path) -> None:
    """Draw the paired differences by seed, their mean, its corrected interval, and the paper's difference.

    Args:
        contrasts (dict[str, list[Contrast]]): contrasts by the kind of runs; those that are not run are left out.
        counts (dict[str, int]): number of all contrasts of each kind, see :func:`find`.
        path (Path): the image.
    """
    lines = [
        (f'{contrast.name()}\n{kind}, {len(contrast.values[0])} pairs', contrast, found)
        for kind, some in contrasts.items()
        for contrast in some
        if (found := find(contrast, counts[kind]).difference) is not None
    ]
    with drawing(path, 'Paired differences by seed, in points', (7, 1.3 + 0.5 * len(lines)), 'x') as axis:
        for place, (_, contrast, found) in enumerate(lines):
            pairs = [ours - baseline for ours, baseline in contrast.pairs()]
            axis.plot(pairs, [place] * len(pairs), 'o', color='#4477aa', alpha=0.5)
            axis.plot([found.low, found.high], [place, place], '-', color='#4477aa', linewidth=2)
            axis.plot([found.mean], [place], '|', color='#4477aa', markersize=15, markeredgewidth=3)
            if contrast.paper is not None:
                axis.plot([contrast.paper], [place], 'D', color='#ee6677', markerfacecolor='none')
        axis.axvline(0, color='#888888', linewidth=1)
        axis.set_yticks(range(len(lines)), [name for name, *_ in lines])
        axis.set_ylim(len(lines) - 0.5, -0.5)
        axis.set_xlabel('dots: pairs, bar: mean,\nline: corrected interval, diamond: paper')
