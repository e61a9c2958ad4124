"""The report on the runs of a table: a page, a JSON file, plots."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from mmattn.utils.files import write_text

from .plots import by_number, plot, plot_curves, plot_numbers
from .results import Measured, Setup, deviation, differences, sampled_differences
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
