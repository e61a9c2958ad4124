"""The report on the runs of a table: statistics, a Markdown table, a plot."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from mmattn.utils.files import atomic_write, write_text

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


def write_report(methods: list[Measured], setup: Setup, folder: Path) -> str:
    """Write results.json, plot.png, table.md and, if there were validations, curves.png; return the table's page."""
    write_text(folder / 'results.json', json.dumps(_content(methods, setup), indent=1, ensure_ascii=False) + '\n')
    title = f'{setup.title} on {setup.data}' + (f', not the {setup.whose} protocol' if setup.deviations else '')
    plot(methods, title, bool(setup.table) and setup.published and not setup.deviations, folder / 'plot.png')
    if all(len(result.curve) > 1 for method in methods for result in method.results.values()):
        plot_curves(methods, title, folder / 'curves.png')
    text = markdown_page(methods, setup)
    write_text(folder / 'table.md', text)
    return text


def markdown_page(methods: list[Measured], setup: Setup) -> str:
    """Return a page that describes the runs, with the table and an explanation of its columns."""
    metric, seeds = methods[0].metrics[0], list(methods[0].results)
    shrunk = '; '.join(setup.deviations)
    if len(seeds) == 1:
        statistic = (
            f'One seed: no deviation and no confidence interval. Difference in {metric} to the baseline of this seed. '
        )
    else:
        statistic = (
            f'Mean ± sample deviation over the seeds. Difference in {metric} to the baseline, paired by seed, with its '
            f"95 % confidence interval (Student's t, {len(seeds) - 1} degrees of freedom, not corrected for the number "
            'of rows); * marks intervals off zero. '
        )
    if sampled_differences(methods):
        statistic += (
            'The next column has the 95 % interval over '
            + ('seeds and samples of the test' if len(seeds) > 1 else 'samples of the test')
            + ' (bootstrap, 2,000 draws). '
        )
    return (
        f'**{setup.title}** on {setup.data}, seed{"s"[: len(seeds) > 1]} {", ".join(map(str, seeds))}. '
        + (f'**Not the {setup.whose} protocol**: {shrunk}.' if shrunk else f'The {setup.whose} protocol.')
        + '\n\n'
        + table(methods, setup.memory)
        + f'\n{statistic}Parameters and multiply-accumulates of the network in inference, without '
        f'auxiliary heads, for an input of {setup.inputs}. Seconds an iteration: median of the log; MiB: the most '
        f'of all seeds, {setup.memory}. {setup.device}.\n'
    )


def table(methods: list[Measured], memory: str) -> str:
    """Return the Markdown table: paper, ours, difference, cost. ``memory`` names the kind of memory."""
    first, *others = methods[0].metrics
    printed = {f'{next(iter(row.metrics))}, {row.data}' for method in methods for row in method.rows if row.metrics}
    by_sample = sampled_differences(methods)
    heads = [
        *([f'paper: {" / ".join(sorted(printed))}'] if printed else []),
        *(f'{first}, seed {seed}' for seed in methods[0].results),
        f'{first}, mean',
        'difference to the baseline',
        *(['over samples'] if by_sample else []),
        *others,
        'M parameters',
        'G MACs',
        's an iteration',
        'MiB',
    ]
    to_baseline = differences(methods)
    rows = []
    for method in methods:
        seconds = [result.seconds for result in method.results.values() if result.seconds is not None]
        memories = [result.memory for result in method.results.values() if result.memory is not None]
        rows.append(
            [
                method.name,
                *([of_paper(method.rows)] if printed else []),
                *(f'{value:.2f}' for value in method.values(first)),
                spread(method.values(first)),
                str(to_baseline.get(method.name, 'baseline')),
                *([str(by_sample.get(method.name, '–'))] if by_sample else []),
                *(spread(method.values(metric)) for metric in others),
                f'{method.parameters / 1e6:.3f}',
                f'{method.macs / 1e9:.3f}',
                f'{statistics.median(seconds):.3g}' if seconds else '–',
                f'{max(memories):.0f}' if memories else '–',
            ]
        )
    return markdown(heads, rows)


def of_paper(rows: list[Row]) -> str:
    """Return the paper's figure for each setting that a method represents, as text."""
    figures = [(next(iter(row.metrics.values()), None), row.setting) for row in rows]
    return (
        ' / '.join(
            f'{value:g}' + (f' ({setting})' if len(figures) > 1 else '')
            for value, setting in figures
            if value is not None
        )
        or '–'
    )


def plot(methods: list[Measured], title: str, with_paper: bool, path: Path) -> None:
    """Draw each seed as a dot, the mean as a bar, and the paper's figure, if it is comparable, as a diamond."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    metric = methods[0].metrics[0]
    figure, axis = pyplot.subplots(figsize=(7, 1.3 + 0.3 * len(methods)), layout='constrained')
    for place, method in enumerate(methods):
        values = method.values(metric)
        colour = '#4477aa' if method.baseline else '#888888'
        axis.plot(values, [place] * len(values), 'o', color=colour, alpha=0.6)
        axis.plot([statistics.mean(values)], [place], '|', color=colour, markersize=15, markeredgewidth=3)
        for value in (value for row in method.rows for value in [*row.metrics.values()][:1] if with_paper):
            axis.plot([value], [place], 'D', color='#ee6677', markerfacecolor='none')
    axis.set_yticks(range(len(methods)), [method.name for method in methods])
    axis.invert_yaxis()
    key = 'dots: seeds, bar: mean, grey: baselines' + (', diamond: paper' if with_paper else '')
    axis.set_xlabel(f'{metric} ({key})')
    axis.set_title(title, fontsize='medium', loc='left')
    axis.grid(axis='x', alpha=0.3)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
    pyplot.close(figure)


def plot_curves(methods: list[Measured], title: str, path: Path) -> None:
    """Draw the validations of each method: their mean over the seeds as a line, each seed as thin line."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout='constrained')
    for number, method in enumerate(methods):
        style: dict[str, Any] = dict(color=f'C{number % 10}', linestyle=('-', '--', ':')[number // 10 % 3])
        curves = [result.curve for result in method.results.values()]
        for curve in curves if len(curves) > 1 else ():
            axis.plot(*zip(*curve), **style, linewidth=0.5, alpha=0.6)
        mean = [(points[0][0], statistics.mean(value for _, value in points)) for points in zip(*curves)]
        axis.plot(*zip(*mean), **style, linewidth=2, label=method.name)
    axis.set_xlabel('training (thick: mean, thin: seeds)')
    axis.set_ylabel(f'{methods[0].metrics[0]} on the validation split')
    axis.set_title(title, fontsize='medium', loc='left')
    axis.grid(alpha=0.3)
    axis.legend(fontsize='small', ncols=1 + len(methods) // 10)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
    pyplot.close(figure)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; the first column has no heading."""
    heads = ['', *heads]
    lines = [heads, ['---'] * len(heads), *rows]
    return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def spread(values: list[float]) -> str:
    """Return mean and sample deviation as text; of one value, the value."""
    found = deviation(values)
    return f'{statistics.mean(values):.2f}' + ('' if found is None else f' ± {found:.2f}')


def deviation(values: list[float]) -> float | None:
    """Return the sample deviation; None for one value."""
    return statistics.stdev(values) if len(values) > 1 else None


def _content(methods: list[Measured], setup: Setup) -> dict:
    """Return all figures, for JSON."""
    to_baseline, by_sample = differences(methods), sampled_differences(methods)
    return dict(
        **setup._asdict(),
        rows=[
            dict(
                name=method.name,
                config=method.config,
                baseline=method.baseline,
                paper=[dict(setting=row.setting, data=row.data, metrics=row.metrics) for row in method.rows],
                parameters=method.parameters,
                macs=method.macs,
                seeds={
                    seed: {key: value for key, value in result._asdict().items() if key != 'samples'}
                    for seed, result in method.results.items()
                },
                mean={name: statistics.mean(method.values(name)) for name in method.metrics},
                deviation={name: deviation(method.values(name)) for name in method.metrics},
                difference=to_baseline[method.name]._asdict() if method.baseline else None,
                difference_over_samples=by_sample[method.name]._asdict() if method.name in by_sample else None,
            )
            for method in methods
        ],
    )
