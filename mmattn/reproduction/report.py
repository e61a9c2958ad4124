"""The report on the runs of a table: a page, a JSON file, plots."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from mmattn.utils.files import write_text

from .plots import by_number, plot, plot_curves, plot_numbers
from .results import Measured, Setup, deviation, differences
from .tables import Row


def write_report(methods: list[Measured], setup: Setup, folder: Path) -> str:
    """Write the report to a folder, and return its page, table.md.

    Further files are results.json, plot.png, curves.png if there were validations, and numbers.png if the settings are
    numbers of training samples.
    """
    write_text(folder / 'results.json', json.dumps(_content(methods, setup), indent=1, ensure_ascii=False) + '\n')
    title = f'{setup.title} on {setup.data}' + (f', not the {setup.whose} protocol' if setup.deviations else '')
    plot(methods, title, bool(setup.table) and setup.published and not setup.deviations, folder / 'plot.png')
    if all(len(result.curve) > 1 for method in methods for result in method.results.values()):
        plot_curves(methods, title, folder / 'curves.png')
    if by_number(methods):
        plot_numbers(methods, title, folder / 'numbers.png')
    text = markdown_page(methods, setup)
    write_text(folder / 'table.md', text)
    return text


def markdown_page(methods: list[Measured], setup: Setup) -> str:
    """Return a page that describes the runs, with the table and an explanation of its columns."""
    metric, seeds = methods[0].metrics[0], list(methods[0].results)
    shrunk = '; '.join(setup.deviations)
    by_sample = any(method.samples for method in methods)
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
        + (f'**Not the {setup.whose} protocol**: {shrunk}.' if shrunk else f'The {setup.whose} protocol.')
        + '\n\n'
        + table(methods, setup.memory)
        + f'\n{statistic}. Parameters and multiply-accumulates of the network in inference, without '
        f'auxiliary heads, for an input of {setup.inputs}. Seconds an iteration: median of the log; MiB: the most '
        f'of all seeds, {setup.memory}. {setup.device}.\n'
    )


def table(methods: list[Measured], memory: str) -> str:
    """Return the Markdown table: paper, ours, difference, cost. ``memory`` names the kind of memory."""
    first, *others = methods[0].metrics
    printed = {f'{next(iter(row.metrics))}, {row.data}' for method in methods for row in method.rows if row.metrics}
    heads = [
        *([f'paper: {" / ".join(sorted(printed))}'] if printed else []),
        *(f'{first}, seed {seed}' for seed in methods[0].results),
        f'{first}, mean',
        'difference to the baseline',
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


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; the first column has no heading."""
    heads = ['', *heads]
    lines = [heads, ['---'] * len(heads), *rows]
    return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def spread(values: list[float]) -> str:
    """Return mean and sample deviation as text; of one value, the value."""
    found = deviation(values)
    return f'{statistics.mean(values):.2f}' + ('' if found is None else f' ± {found:.2f}')


def _content(methods: list[Measured], setup: Setup) -> dict:
    """Return all figures, for JSON."""
    to_baseline = differences(methods)
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
            )
            for method in methods
        ],
    )
