"""The report on the runs of a table: a page, a JSON file, plots."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mmattn.utils.files import write_text

from .plots import by_number, plot, plot_contrasts, plot_costs, plot_curves, plot_numbers
from .results import Difference, Measured, Setup, compare, deviation, difference, differences
from .rows import Row
from .store import Store
from .task import ProtocolError


class Contrast(NamedTuple):
    """Two rows that are compared, in addition to the comparison of each row with its baseline."""

    ours: Measured
    baseline: Measured

    @property
    def name(self) -> str:
        return f'{self.ours.name} − {self.baseline.name}'


def find_contrasts(texts: Sequence[str], names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the two rows of each contrast, ``OURS - BASELINE``."""
    pairs = []
    for text in texts:
        ours, _, baseline = (part.strip() for part in text.partition(' - '))
        for name in (ours, baseline):
            if name not in names:
                raise ProtocolError(f"--contrasts must be 'OURS - BASELINE' of {'; '.join(names)}; got '{text}'")
        pairs.append((ours, baseline))
    return pairs


def write_report(
    methods: list[Measured],
    contrasts: list[Contrast],
    family: int | None,
    setup: Setup,
    store: Store,
    has_validation: bool = False,
    over: str | None = None,
) -> str:
    """Write the report beside the file of the store, and return its page, table.md.

    Further files are plot.png, contrasts.png if there are contrasts, curves.png if there were validations, and
    numbers.png if the settings are numbers of training samples.

    Args:
        methods (list[Measured]): the rows.
        contrasts (list[Contrast]): further comparisons of them.
        family (int, optional): number of contrasts whose intervals are corrected together; None: these.
        setup (Setup): the runs.
        store (Store): gets setup and rows.
        has_validation (bool): the contrasts are also for the last validation, on other data than the test. Defaults
            to False.
        over (str, optional): plot.png is over this cost, one of plots.COSTS. Defaults to None: one line per row.
    """
    folder = store.path.parent
    store.report(setup._asdict(), rows_of_store(methods, setup))
    title = f'{setup.title} on {setup.data}' + (f', not the {setup.whose} protocol' if setup.deviations else '')
    with_paper = setup.published and setup.comparable
    if over is None:
        plot(methods, title, with_paper, folder / 'plot.png')
    else:
        plot_costs(methods, over, title, with_paper, folder / 'plot.png')
    plot_curves(methods, title, folder / 'curves.png')
    if by_number(methods):
        plot_numbers(methods, title, folder / 'numbers.png')
    text = markdown_page(methods, setup)
    if contrasts:
        level = 1 - 0.05 / (family or len(contrasts))
        compared = compare_contrasts(contrasts, level, setup.units, has_validation)
        plot_contrasts(compared, title, folder / 'contrasts.png')
        text += f'\n{contrast_table(compared, methods[0].metrics[0], level)}'
    write_text(folder / 'table.md', text)
    return text


def compare_contrasts(
    contrasts: Sequence[Contrast], level: float, units: str | None, has_validation: bool
) -> dict[str, tuple[Difference, list[float]]]:
    """Return the difference of each contrast, and its paired differences by seed, in the test and last validation."""
    compared = {}
    for contrast in contrasts:
        metric = contrast.ours.metrics[0]
        pairs = [a - b for a, b in zip(contrast.ours.values(metric), contrast.baseline.values(metric), strict=True)]
        compared[contrast.name] = compare(contrast.ours, contrast.baseline, level, units), pairs
        ours, baseline = contrast.ours.last_validations(), contrast.baseline.last_validations()
        if has_validation and ours and baseline:
            pairs = [a - b for a, b in zip(ours, baseline, strict=True)]
            compared[f'{contrast.name}, last validation'] = difference(ours, baseline, level), pairs
    return compared


def contrast_table(compared: dict[str, tuple[Difference, list[float]]], metric: str, level: float) -> str:
    heads = [f'difference in {metric}, {100 * level:.1f} % interval', 'by seed']
    rows = ([name, str(mean), ', '.join(f'{pair:+.2f}' for pair in pairs)] for name, (mean, pairs) in compared.items())
    return markdown(heads, rows)


def markdown_page(methods: list[Measured], setup: Setup) -> str:
    """Return a page that describes the runs, with the table and an explanation of its columns."""
    metric, seeds = methods[0].metrics[0], list(methods[0].results)
    by_sample = any(result.samples for method in methods for result in method.results.values())
    interval = f"Student's t, {len(seeds) - 1} degrees of freedom"
    if by_sample:
        samples = 'test images' if setup.units is None else 'units of the test set'
        interval = f'a bootstrap of the {samples}'
        if len(seeds) > 1:
            interval = f"the wider of Student's t over the seeds and a bootstrap of seeds and {samples}"
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
                str(to_baseline.get(method.name, 'baseline' if method.is_trained else 'not trained')),
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
