"""The plots of a report: the runs of each method, also over its cost, validations in training, numbers of samples."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mmattn.utils.files import atomic_write

from .results import Difference, Measured


@contextmanager
def figure(path: Path, size: tuple[float, float], columns: int = 1) -> Iterator[Any]:
    """Yield the axes of a new figure, an array of ``columns``, which is then written to a file.

    Args:
        path (Path): the file; its suffix is the format.
        size (tuple): width and height in inches.
        columns (int): number of axes side by side. Defaults to 1.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, columns, figsize=size, layout='constrained', squeeze=False)
    yield axes[0]
    with atomic_write(path) as temporary:
        drawn.savefig(temporary, dpi=110)
    pyplot.close(drawn)


@contextmanager
def drawing(
    path: Path, title: str, size: tuple[float, float] = (7, 4.5), grid: Literal['x', 'y', 'both'] = 'both'
) -> Iterator[Any]:
    """Yield the axes of a new figure with a title; ``grid`` is the axis with grid lines."""
    with figure(path, size) as (axis,):
        yield axis
        axis.set_title(title, fontsize='medium', loc='left')
        axis.grid(axis=grid, alpha=0.3)


def plot(methods: Sequence[Measured], title: str, with_paper: bool, path: Path) -> None:
    """Draw each seed as a dot, the mean as a bar, and the paper's figure, if it is comparable, as a diamond."""
    metric = methods[0].metrics[0]
    with drawing(path, title, (7, 1.3 + 0.3 * len(methods)), 'x') as axis:
        for row, method in enumerate(methods):
            values = method.values(metric)
            colour = '#4477aa' if method.baseline else '#888888'
            axis.plot(values, [row] * len(values), 'o', color=colour, alpha=0.6)
            axis.plot([statistics.mean(values)], [row], '|', color=colour, markersize=15, markeredgewidth=3)
            for value in (value for row in method.rows for value in [*row.metrics.values()][:1] if with_paper):
                axis.plot([value], [row], 'D', color='#ee6677', markerfacecolor='none')
        axis.set_yticks(range(len(methods)), [method.name for method in methods])
        axis.set_ylim(len(methods) - 0.5, -0.5)
        key = 'dots: seeds, bar: mean, grey: baselines' + (', diamond: paper' if with_paper else '')
        axis.set_xlabel(f'{metric} ({key})')


COSTS = {'parameters': 'M parameters', 'MACs': 'G multiply-accumulates'}


def cost(method: Measured, kind: str) -> float:
    """Return one of COSTS of a method."""
    return method.parameters / 1e6 if kind == 'parameters' else method.macs / 1e9


def plot_costs(methods: Sequence[Measured], kind: str, title: str, with_paper: bool, path: Path) -> None:
    """Draw the mean of each trained method over its cost, each seed as a thin dot, and a colour per setting.

    A line joins the methods of a setting that no cheaper one equals. The paper's figures with a printed cost are
    diamonds.
    """
    metric = methods[0].metrics[0]
    settings: dict[str, list[Measured]] = {}
    for method in sorted((method for method in methods if method.is_trained), key=lambda method: cost(method, kind)):
        settings.setdefault(method.rows[0].setting, []).append(method)
    with drawing(path, title, (8, 5)) as axis:
        for number, (setting, group) in enumerate(settings.items()):
            style: dict[str, Any] = dict(color=f'C{number % 10}')
            best: list[tuple[float, float]] = []
            for method in group:
                values = method.values(metric)
                point = cost(method, kind), statistics.mean(values)
                axis.plot([point[0]] * len(values), values, '.', **style, markersize=4, alpha=0.5)
                axis.plot(*point, 'o', **style)
                label = method.rows[0].name.partition(':')[0]
                axis.annotate(label, point, (4, 3), textcoords='offset points', fontsize='x-small')
                if not best or point[1] > best[-1][1]:
                    best.append(point)
                for row in method.rows if with_paper else ():
                    if kind in row.costs and row.metrics:
                        paper = row.costs[kind], next(iter(row.metrics.values()))
                        axis.plot(*paper, 'D', color='#888888', markerfacecolor='none')
            axis.plot(*zip(*best), '-', **style, linewidth=1, alpha=0.6, label=setting)
        axis.margins(x=0.1)
        axis.set_xlabel(COSTS[kind] + ' (line: best for its cost' + (', diamonds: paper)' if with_paper else ')'))
        axis.set_ylabel(f'{metric} (discs: mean, dots: seeds)')
        if len(settings) > 1:
            axis.legend(fontsize='small')


def plot_contrasts(compared: Mapping[str, tuple[Difference, list[float]]], title: str, path: Path) -> None:
    """Draw the paired differences by seed as dots, their mean as a bar, and the interval as a line."""
    with drawing(path, title, (7, 1.3 + 0.4 * len(compared)), 'x') as axis:
        for row, (interval, pairs) in enumerate(compared.values()):
            axis.plot(pairs, [row] * len(pairs), 'o', color='#4477aa', alpha=0.5)
            if interval.low is not None:
                axis.plot([interval.low, interval.high], [row, row], '-', color='#4477aa', linewidth=2)
            axis.plot([interval.mean], [row], '|', color='#4477aa', markersize=15, markeredgewidth=3)
        axis.axvline(0, color='#888888', linewidth=1)
        axis.set_yticks(range(len(compared)), [*compared])
        axis.set_ylim(len(compared) - 0.5, -0.5)
        axis.set_xlabel('difference (dots: seeds, bar: mean, line: interval)')


def plot_pair(baseline: Measured, ours: Measured, difference: Difference, title: str, over: str, path: Path) -> None:
    """Draw the runs of two methods, with a line between those of one seed, and their difference with its interval.

    ``over`` says what the interval is over.
    """
    metric = ours.metrics[0]
    values = baseline.values(metric), ours.values(metric)
    with figure(path, (8.5, 3.6), 2) as (runs, gap):
        for pair in zip(*values):
            runs.plot([0, 1], pair, 'o-', color='#888888', alpha=0.6, linewidth=1)
        means = [*map(statistics.mean, values)]
        runs.plot([0, 1], means, '_', color='#4477aa', markersize=30, markeredgewidth=3)
        runs.set_xlim(-0.4, 1.4)
        runs.set_xticks([0, 1], [baseline.name, ours.name], fontsize='small')
        runs.set_ylabel(metric)
        runs.set_title(f'{title}\nlines: seeds, bars: means', fontsize='small', loc='left')
        pairs = [second - first for first, second in zip(*values)]
        gap.axhline(0, color='#888888', linewidth=1)
        if difference.low is not None:
            gap.plot([0, 0], [difference.low, difference.high], '-', color='#4477aa', linewidth=2)
        gap.plot([0], [difference.mean], '_', color='#4477aa', markersize=30, markeredgewidth=3)
        gap.plot([0.15] * len(pairs), pairs, 'o', color='#888888', alpha=0.6)
        gap.set_xlim(-0.5, 0.65)
        gap.set_xticks([])
        gap.set_title(f'difference, dots: seeds, bar: mean\nline: 95 % interval {over}', fontsize='small', loc='left')
        for axis in (runs, gap):
            axis.grid(axis='y', alpha=0.3)


def plot_curves(methods: Sequence[Measured], title: str, path: Path) -> None:
    """Draw the validations of each method: their mean over the seeds as a line, each seed as thin line.

    There is no plot without several validations of all trained methods. Ensembles are not validated.
    """
    methods = [method for method in methods if method.is_trained and not any(row.members for row in method.rows)]
    if not methods or any(len(result.curve) < 2 for method in methods for result in method.results.values()):
        return
    with drawing(path, title) as axis:
        for number, method in enumerate(methods):
            style: dict[str, Any] = dict(color=f'C{number % 10}', linestyle=('-', '--', ':')[number // 10 % 3])
            curves = [result.curve for result in method.results.values()]
            for curve in curves if len(curves) > 1 else ():
                axis.plot(*zip(*curve), **style, linewidth=0.5, alpha=0.6)
            mean = [(points[0][0], statistics.mean(value for _, value in points)) for points in zip(*curves)]
            axis.plot(*zip(*mean), **style, linewidth=2, label=method.name)
        axis.set_xlabel('training (thick: mean, thin: seeds)')
        axis.set_ylabel(f'{methods[0].metrics[0]} on the validation split')
        axis.legend(fontsize='small', ncols=1 + len(methods) // 10)


def by_number(methods: Sequence[Measured]) -> dict[str, dict[int, Measured]]:
    """Return the methods of each name by the number in their settings ('2,410 questions'); {} without numbers."""
    named: dict[str, dict[int, Measured]] = {}
    for method in methods:
        for row in method.rows:
            number = row.setting.partition(' ')[0].replace(',', '')
            if not number.isdecimal():
                return {}
            named.setdefault(row.name, {})[int(number)] = method
    return named


def plot_numbers(methods: Sequence[Measured], title: str, path: Path) -> None:
    """Draw the methods of :func:`by_number` over this number: their means as a line, seeds as dots."""
    metric, words = methods[0].metrics[0], methods[0].rows[0].setting.partition(' ')[2]
    with drawing(path, title) as axis:
        for row, (name, group) in enumerate(by_number(methods).items()):
            style: dict[str, Any] = dict(color=f'C{row % 10}')
            values = {number: method.values(metric) for number, method in group.items()}
            axis.plot([*values], [*map(statistics.mean, values.values())], **style, label=name)
            for number, dots in values.items():
                axis.plot([number] * len(dots), dots, 'o', **style, markersize=4, alpha=0.6)
        axis.set_xscale('log')
        axis.set_xticks([*group], [f'{number:,}' for number in group])
        axis.minorticks_off()
        axis.set_xlabel(f'{words} in training')
        axis.set_ylabel(f'{metric} (line: mean, dots: seeds)')
        axis.legend(fontsize='small')
