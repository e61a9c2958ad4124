"""Compare the rows of question (g) of docs/evidence_protocol.md, and print BLEU by length.

PYTHONPATH=tools python docs/results/score_translations.py
"""

import json
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.results import STATISTICS, Difference, Result, sampled_difference

LEVEL = 1 - 0.05 / 4
BASELINES = 'SA', 'SA-RPE'
ROWS = *BASELINES, 'Bi-SA'  # of the primary contrasts
BOTH, LONGER = ('de', 'fr'), ('long',)
LENGTHS = 0, 12, 16, 20, 250  # limits of the lengths at which results are printed, in symbols
LIMIT = 12  # symbols on a side, in the training of 'long'


def read(path: Path) -> dict[str, Any]:
    """Read ``evidence_g.json``, and beside it the scores of the sentences: int ``(sentences, 10)`` for each run.

    A sentence has the matches and the numbers of its 1-grams to 4-grams, and the words of translation and reference.
    """
    tests = json.loads(path.read_text(encoding='utf-8'))
    with np.load(path.with_suffix('.npz')) as arrays:
        for name, test in tests.items():
            test['symbols'] = arrays[f'{name}/symbols'].tolist()
            for row, runs in test['runs'].items():
                for seed, run in runs.items():
                    run['sentences'] = arrays[f'{name}/{row}/{seed}'].astype(int)
    return tests


def results(test: dict[str, Any], row: str, chosen: Callable[[int], bool]) -> dict[str, Result]:
    """Return the results of a row by seed, with the scores of the sentences whose number of symbols is chosen."""
    found = {}
    for seed, run in test['runs'].get(row, {}).items():
        samples = {str(i): [*scores] for i, scores in enumerate(run['sentences']) if chosen(test['symbols'][i])}
        bleu = float(STATISTICS['BLEU'](np.sum([*samples.values()], 0, dtype=float)))
        found[seed] = Result(dict(BLEU=bleu), samples=samples, statistic='BLEU')
    return found


def compare(
    tests: dict[str, Any], names: Sequence[str], ours: str, baseline: str, chosen: Callable[[int], bool] = bool
) -> Difference:
    """Return the ``Difference`` of two rows in BLEU, and its interval, over the pairs of a test and a seed.

    The bootstrap draws a sentence for all pairs: the tests of two languages are translations of the same sentences.

    Args:
        tests (dict): what :func:`read` returns.
        names (sequence of str): the tests, such as 'de' and 'fr'.
        ours, baseline (str): the rows.
        chosen (Callable): whether a sentence counts, given the number of symbols of its longer side. Defaults to all.
    """
    pairs = []
    for name in names:
        ours_by_seed, baseline_by_seed = (results(tests[name], row, chosen) for row in (ours, baseline))
        pairs += [(run, baseline_by_seed[seed]) for seed, run in ours_by_seed.items() if seed in baseline_by_seed]
    return sampled_difference(*zip(*pairs), LEVEL)


def is_longer(symbols: int) -> bool:
    """Tell whether a pair of so many symbols is longer than those of the training of 'long'."""
    return symbols > LIMIT


def main() -> None:
    """Print the primary contrasts and BLEU by length."""
    tests = read(Path(__file__).with_name('evidence_g.json'))
    for names, chosen in (BOTH, bool), (LONGER, is_longer):
        for baseline in BASELINES:
            print(f'{", ".join(names)}: Bi-SA − {baseline}: {compare(tests, names, "Bi-SA", baseline, chosen)}')
    for name, test in tests.items():
        for row in filter(test['runs'].get, ROWS):
            by_length = []
            for low, high in pairwise(LENGTHS):
                runs = results(test, row, lambda n, low=low, high=high: low < n <= high).values()
                by_length.append(f'{statistics.mean(run.metrics["BLEU"] for run in runs):.1f} ({low + 1} to {high})')
            print(f'{name}, {row}, mean BLEU by symbols on the longer side: {", ".join(by_length)}')


if __name__ == '__main__':
    main()
