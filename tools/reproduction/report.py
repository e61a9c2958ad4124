"""The report on the runs of a table: a page, a JSON file, a plot."""

import statistics
from collections.abc import Iterable
from typing import Any

from mmattn.utils.files import write_text

from .plots import plot
from .results import Measured, Setup, deviation, differences
from .rows import Row
from .store import Store


def write_report(methods: list[Measured], setup: Setup, store: Store) -> str:
    """Write the report beside the file of the store, which gets setup and rows, and return its page, table.md."""
    folder = store.path.parent
    store.report(setup._asdict(), rows_of_store(methods, setup))
    title = f'{setup.title} on {setup.data}' + (f', not the {setup.whose} protocol' if setup.deviations else '')
    plot(methods, title, setup.published and setup.comparable, folder / 'plot.png')
    text = markdown_page(methods, setup)
    write_text(folder / 'table.md', text)
    return text


def markdown_page(methods: list[Measured], setup: Setup) -> str:
    """Return a page that describes the runs, with the table and an explanation of its columns."""
    metric, seeds = methods[0].metrics[0], list(methods[0].results)
    by_sample = any(result.samples for method in methods for result in method.results.values())
    interval = f"Student's t, {len(seeds) - 1} degrees of freedom"
    if by_sample:
        interval = 'a bootstrap of the test images'
        if len(seeds) > 1:
            interval = "the wider of Student's t over the seeds and a bootstrap of seeds and test images"
    if len(seeds) == 1:
        statistic = 'One seed: no deviation' + ('. ' if by_sample else ' and no confidence interval. ')
    else:
        statistic = 'Mean ± sample deviation over the seeds. '
    statistic += f'Difference in {metric} to the baseline, paired by seed'
    if by_sample or len(seeds) > 1:
        statistic += (
            f', with its 95 % confidence interval ({interval}, not corrected for the number of rows); * marks '
            'intervals off zero'
        )
    return (
        f'**{setup.title}** on {setup.data}, seed{"s"[: len(seeds) > 1]} {", ".join(map(str, seeds))}. '
        + setup.protocol
        + '\n\n'
        + table(methods, setup)
        + f'\n{statistic}. Parameters and multiply-accumulates of the network in inference, without '
        f'auxiliary heads, for an input of {setup.inputs}. Seconds an iteration: median of the log; MiB: the most '
        f'of all seeds, {setup.memory}. {setup.device}.\n'
    )


def table(methods: list[Measured], setup: Setup) -> str:
    """Return the Markdown table: paper, ours, difference, cost."""
    first, *others = methods[0].metrics
    rest = [name for name in others if all(name in method.metrics for method in methods)]
    printed = {f'{next(iter(row.metrics))}, {row.data}' for method in methods for row in method.rows if row.metrics}
    heads = [
        *([f'paper: {" / ".join(sorted(printed))}'] if printed else []),
        *(f'{first}, seed {seed}' for seed in methods[0].results),
        f'{first}, mean',
        'difference to the baseline',
        *rest,
        'M parameters',
        'G MACs',
        's an iteration',
        'MiB',
    ]
    to_baseline = differences(methods, setup.units)
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
                *(spread(method.values(metric)) for metric in rest),
                f'{method.parameters / 1e6:.3f}' if method.parameters else '–',
                f'{method.macs / 1e9:.3f}' if method.macs else '–',
                f'{statistics.median(seconds):.3g}' if seconds else '–',
                f'{max(memories):.0f}' if memories else '–',
            ]
        )
    return markdown(heads, rows)


def of_paper(rows: list[Row]) -> str:
    """Return the paper's figure for each setting that a method represents, as text."""
    figures = [(next(iter(row.metrics.values())), row.setting) for row in rows if row.metrics]
    return ' / '.join(f'{value:g}' + (f' ({setting})' if len(rows) > 1 else '') for value, setting in figures) or '–'


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; the first column has no heading."""
    heads = ['', *heads]
    lines = [heads, ['---'] * len(heads), *rows]
    return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def spread(values: list[float]) -> str:
    """Return mean and sample deviation as text; of one value, the value."""
    sample = deviation(values)
    return f'{statistics.mean(values):.2f}' + ('' if sample is None else f' ± {sample:.2f}')


def rows_of_store(methods: list[Measured], setup: Setup) -> list[dict[str, Any]]:
    to_baseline = differences(methods, setup.units)
    return [
        dict(
            name=method.name,
            configs=[method.config],
            baseline=method.baseline,
            paper=[dict(setting=row.setting, data=row.data, metrics=row.metrics) for row in method.rows],
            parameters=method.parameters,
            macs=method.macs,
            seeds={seed: result.metrics for seed, result in method.results.items()},
            mean={name: statistics.mean(method.values(name)) for name in method.metrics},
            deviation={name: deviation(method.values(name)) for name in method.metrics},
            difference=to_baseline[method.name]._asdict() if method.baseline else None,
        )
        for method in methods
    ]
