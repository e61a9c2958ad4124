"""Collect the runs of question (g) of docs/evidence_protocol.md in evidence_g.json, and compare its rows.

python docs/results/score_translations.py de=work_dirs/g_de fr=work_dirs/g_fr long=work_dirs/g_long \
    --data-root de=data/multi30k fr=data/multi30k_fr long=data/multi30k
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmattn.language.translation import ParallelTextDataset
from mmattn.utils import config_path
from mmattn.utils.files import atomic_write, write_text

if TYPE_CHECKING:
    from reproduction.results import Difference, Result

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


def write(path: Path, tests: dict[str, Any]) -> None:
    """Write what :func:`read` reads."""
    arrays, runs_of = {}, {}
    for name, test in tests.items():
        arrays[f'{name}/symbols'] = np.asarray(test['symbols'], np.uint8)
        runs_of[name] = dict(runs={row: {} for row in test['runs']})
        for row, runs in test['runs'].items():
            for seed, run in runs.items():
                arrays[f'{name}/{row}/{seed}'] = np.asarray(run['sentences'], np.uint8)
                runs_of[name]['runs'][row][seed] = {key: run[key] for key in ('metrics', 'curve')}
    with atomic_write(path.with_suffix('.npz')) as aside:
        np.savez_compressed(aside, **arrays)
    write_text(path, json.dumps(runs_of) + '\n')


def results(test: dict[str, Any], row: str, chosen: Callable[[int], bool]) -> dict[str, 'Result']:
    """Return the results of a row by seed, with the scores of the sentences whose number of symbols is chosen."""
    from reproduction.results import STATISTICS, Result

    found = {}
    for seed, run in test['runs'].get(row, {}).items():
        samples = {str(i): [*scores] for i, scores in enumerate(run['sentences']) if chosen(test['symbols'][i])}
        bleu = float(STATISTICS['BLEU'](np.sum([*samples.values()], 0, dtype=float)))
        found[seed] = Result(dict(BLEU=bleu), samples=samples, statistic='BLEU')
    return found


def compare(
    tests: dict[str, Any], names: Sequence[str], ours: str, baseline: str, chosen: Callable[[int], bool] = bool
) -> 'Difference':
    """Return the ``Difference`` of two rows in BLEU, and its interval, over the pairs of a test and a seed.

    The bootstrap draws a sentence for all pairs: the tests of two languages are translations of the same sentences.

    Args:
        tests (dict): what :func:`read` returns.
        names (sequence of str): the tests, such as 'de' and 'fr'.
        ours, baseline (str): the rows.
        chosen (Callable): whether a sentence counts, given the number of symbols of its longer side. Defaults to all.
    """
    from reproduction.results import sampled_difference

    pairs = []
    for name in names:
        ours_by_seed, baseline_by_seed = (results(tests[name], row, chosen) for row in (ours, baseline))
        pairs += [(run, baseline_by_seed[seed]) for seed, run in ours_by_seed.items() if seed in baseline_by_seed]
    return sampled_difference(*zip(*pairs), LEVEL)


def is_longer(symbols: int) -> bool:
    """Tell whether a pair of so many symbols is longer than those of the training of 'long'."""
    return symbols > LIMIT


def collect(work_dir: Path, data_root: Path) -> dict[str, Any]:
    """Collect a test: symbols of the longer side of each sentence, and the runs by row."""
    content = json.loads((work_dir / 'results.json').read_text(encoding='utf-8'))
    dataset = ParallelTextDataset(str(data_root), 'test', test_mode=True)
    order = [content['samples'].index(str(line + 1)) for line in dataset.lines]
    test: dict[str, Any] = dict(symbols=[max(pair) - 1 for pair in dataset.lengths], runs={})
    for row in content['rows']:
        for seed, run in content['runs'][row['configs'][0]].items():
            kept = dict(metrics=run['metrics'], curve=run['curve'], sentences=[run['scores'][i] for i in order])
            test['runs'].setdefault(row['name'], {})[seed] = kept
    return test


def main() -> None:
    """Write ``evidence_g.json`` and ``evidence_g.npz``, and print the primary contrasts and BLEU by length."""
    parser = argparse.ArgumentParser(description='Collect and compare translations of tools/reproduce.py')
    parser.add_argument('work_dirs', nargs='*', metavar='NAME=DIR', help='runs; default: the collected ones')
    parser.add_argument('--data-root', nargs='+', default=[], metavar='NAME=DIR', help='prepared data of the runs')
    args = parser.parse_args()
    sys.path.insert(0, str(config_path().parent / 'tools'))
    folders, roots = (dict(text.split('=', 1) for text in texts) for texts in (args.work_dirs, args.data_root))
    if folders.keys() != roots.keys():
        parser.error('--data-root must name the same tests as the runs')
    path = Path(__file__).with_name('evidence_g.json')
    tests = read(path) if path.exists() else {}  # others than the named ones stay
    for name, folder in folders.items():
        tests[name] = collect(Path(folder), Path(roots[name]))
    if folders:
        write(path, tests)
    for names, chosen in (BOTH, bool), (LONGER, is_longer):
        for baseline in BASELINES:
            if all(name in tests for name in names):
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
