"""How often intervals from three seeds contain the true difference: a simulation.

    python tools/benchmarks/interval_coverage.py

Each image has a difference between two methods that all seeds share, and each seed adds one of its own. The second is
'ratio' times as large as the standard error of the first: 0 if all seeds agree, 4 if the seeds decide. Prints how many
of the intervals contain the true difference, in percent; 95 is the level that they claim.
"""

import argparse

from mmattn.utils.command import run

import numpy as np
from mmattn.reproduction.report import markdown
from mmattn.reproduction.results import bootstrap_interval, difference, sampled_difference

RULES = (
    "Student's t over the seeds",
    'bootstrap of seeds and images',
    'the wider of both, `sampled_difference`',
)
RATIOS = 0, 1, 2, 4


def coverage(
    ratio: float, repetitions: int = 2000, seeds: int = 3, images: int = 250, draws: int = 1000
) -> list[float]:
    """Return, for each rule, how many of its 95 % intervals contain the true difference, 0, in percent."""
    generator = np.random.default_rng(0)
    names = [str(image) for image in range(images)]
    baseline = [dict.fromkeys(names, 0.0)] * seeds
    hits = []
    for _ in range(repetitions):
        pairs = generator.normal(size=images) + generator.normal(0, ratio / images**0.5, (seeds, 1))
        student = difference(pairs.mean(1).tolist(), [0.0] * seeds)[1:]
        bootstrap = bootstrap_interval(pairs, np.ones(images), draws=draws)
        wider = sampled_difference([dict(zip(names, row)) for row in pairs], baseline, draws=draws)[1:]
        low, high = np.array([student, bootstrap, wider], float).T
        hits.append((low <= 0) & (high >= 0))
    return (100 * np.mean(hits, 0)).tolist()


def main() -> None:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(description='Coverage of the intervals of tools/reproduce.py')
    parser.add_argument('--repetitions', type=int, default=2000, help='differences per ratio; default: %(default)s')
    args = parser.parse_args()
    columns = zip(*(coverage(ratio, args.repetitions) for ratio in RATIOS))
    rows = [[rule, *(f'{value:.1f}' for value in values)] for rule, values in zip(RULES, columns)]
    print(markdown([f'ratio {ratio}' for ratio in RATIOS], rows))


if __name__ == '__main__':
    run(main)
