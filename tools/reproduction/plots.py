"""The plot of a report: the runs of each method."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from mmattn.utils.files import atomic_write

from .results import Measured


def plot(methods: Sequence[Measured], title: str, with_paper: bool, path: Path) -> None:
    """Draw each seed as a dot, the mean as a bar, and the paper's figure, if it is comparable, as a diamond."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    metric = methods[0].metrics[0]
    drawn, axis = pyplot.subplots(figsize=(7, 1.3 + 0.3 * len(methods)), layout='constrained')
    for row, method in enumerate(methods):
        values = method.values(metric)
        colour = '#4477aa' if method.baseline else '#888888'
        axis.plot(values, [row] * len(values), 'o', color=colour, alpha=0.6)
        axis.plot([statistics.mean(values)], [row], '|', color=colour, markersize=15, markeredgewidth=3)
        for value in (value for row in method.rows for value in [*row.metrics.values()][:1] if with_paper):
            axis.plot([value], [row], 'D', color='#ee6677', markerfacecolor='none')
    axis.set_title(title, fontsize='medium', loc='left')
    axis.grid(axis='x', alpha=0.3)
    axis.set_yticks(range(len(methods)), [method.name for method in methods])
    axis.set_ylim(len(methods) - 0.5, -0.5)
    key = 'dots: seeds, bar: mean, grey: baselines' + (', diamond: paper' if with_paper else '')
    axis.set_xlabel(f'{metric} ({key})')
    with atomic_write(path) as temporary:
        drawn.savefig(temporary, dpi=110)
    pyplot.close(drawn)
