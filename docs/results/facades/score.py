"""Print the mean mIoU of each row, and the contrasts, after the last run.

PYTHONPATH=tools python docs/results/facades/score.py work_dirs/facades/results.json
"""

import argparse
import sys
from pathlib import Path

from run import ROWS, SEEDS

from reproduction.results import Result, bootstrap_interval, difference, mean_iou, sampled_difference, sums_by_unit
from reproduction.store import Store

# The level of each: 95 %, shared by the four primary ones.
CONTRASTS = {
    ('bi-cc', 'cc'): 0.9875,
    ('bi-nl', 'nl'): 0.9875,
    ('bi-cc', 'cc-rpe'): 0.9875,
    ('bi-nl', 'nl-rpe'): 0.9875,
    ('cc', 'no-attention'): 0.95,
    ('nl', 'no-attention'): 0.95,
    ('bi-cc', 'bi-nl'): 0.95,
}
DRAWS = 10_000


def compare(ours: list[Result], baseline: list[Result], level: float) -> str:
    """Return the mean difference with the wider interval, then by Student's t, by the bootstrap, and each pair."""
    sums = sums_by_unit(ours, baseline)
    first, second = (mean_iou(x.sum(1)) for x in sums)
    by_seed = ' '.join(f'{pair:+.2f}' for pair in first - second)
    low, high = bootstrap_interval(*sums, mean_iou, level, DRAWS)
    return (
        f'{sampled_difference(ours, baseline, level, DRAWS)} at {100 * level:g} %; over seeds '
        f'{difference(first.tolist(), second.tolist(), level)}; over seeds and photographs [{low:+.2f}, {high:+.2f}]; '
        f'by seed {by_seed}'
    )


def main() -> None:
    """Print rows and contrasts, if all runs are there."""
    parser = argparse.ArgumentParser(description='Compare the rows on facades')
    parser.add_argument('results', type=Path)
    parser.add_argument('--seeds', nargs='+', type=int, default=SEEDS)
    parser.add_argument('--iters', type=int, default=600)
    args = parser.parse_args()
    store = Store(args.results)
    rows = {name: [store.get(name, seed, args.iters, 'iterations') for seed in args.seeds] for name in ROWS}
    if missing := [f'{name} {seed}' for name in ROWS for seed, run in zip(args.seeds, rows[name]) if run is None]:
        sys.exit(f'score.py: the test is read after the last run; missing: {", ".join(missing)}')
    for name, runs in rows.items():
        scores = [run.metrics['mIoU'] for run in runs]
        print(f'{name}: {sum(scores) / len(scores):.2f}; by seed {" ".join(f"{score:.2f}" for score in scores)}')
    for (ours, baseline), level in CONTRASTS.items():
        print(f'{ours} − {baseline}: {compare(rows[ours], rows[baseline], level)}')


if __name__ == '__main__':
    main()
