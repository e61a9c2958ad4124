"""Collect the runs of question (g) of docs/evidence_protocol.md in evidence_g.json, and compare its rows.

python docs/results/score_translations.py de=work_dirs/g_de fr=work_dirs/g_fr long=work_dirs/g_long \
    --data-root de=data/multi30k fr=data/multi30k_fr long=data/multi30k
"""

import argparse
import json
import string
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmattn.language.translation import ParallelTextDataset
from mmattn.utils import config_path
from mmattn.utils.files import write_text

if TYPE_CHECKING:
    from reproduction.results import Difference, Result

DIGITS = string.digits + string.ascii_letters  # of numbers up to 61
LEVEL = 1 - 0.05 / 4
BASELINES = 'SA', 'SA-RPE'
ROWS = *BASELINES, 'Bi-SA'  # of the primary contrasts
BOTH, LONGER = ('de', 'fr'), ('long',)
LIMIT = 12  # symbols on a side, in the training of 'long'


def pack(scores: Sequence[Sequence[int]]) -> str:
    """Write each sentence's matches of 1-grams to 4-grams, and the length of its translation, as five digits."""
    numbers = [number for *matches, length, _ in scores for number in (*matches[:4], length)]
    if max(numbers) >= len(DIGITS):
        raise ValueError(f'a sentence has {max(numbers)} words; at most {len(DIGITS) - 1} can be written')
    return ''.join(DIGITS[number] for number in numbers)


def unpack(text: str, references: Sequence[int]) -> list[list[int]]:
    """Restore the scores that :func:`pack` has written: matches and numbers of n-grams, and both lengths."""
    numbers = [DIGITS.index(digit) for digit in text]
    return [
        [*matches, *(max(0, length - n) for n in range(4)), length, reference]
        for (*matches, length), reference in zip(zip(*[iter(numbers)] * 5), references, strict=True)
    ]


def results(test: dict[str, Any], row: str, chosen: Callable[[int], bool]) -> dict[str, 'Result']:
    """Return the results of a row by seed, with the scores of the sentences whose number of symbols is chosen."""
    from reproduction.results import STATISTICS, Result

    found = {}
    for seed, run in test['runs'].get(row, {}).items():
        sentences = unpack(run['sentences'], test['references'])
        samples = {str(i): scores for i, scores in enumerate(sentences) if chosen(test['symbols'][i])}
        bleu = float(STATISTICS['BLEU'](np.sum([*samples.values()], 0, dtype=float)))
        found[seed] = Result(dict(BLEU=bleu), samples=samples, statistic='BLEU')
    return found


def compare(
    tests: dict[str, Any], names: Sequence[str], ours: str, baseline: str, chosen: Callable[[int], bool] = bool
) -> 'Difference':
    """Return the ``Difference`` of two rows in BLEU, and its interval, over the pairs of a test and a seed.

    The bootstrap draws a sentence for all pairs: the tests of two languages are translations of the same sentences.

    Args:
        tests (dict): the content of ``evidence_g.json``.
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
    """Collect a test: symbols of the longer side and words of the reference by sentence, and the runs by row."""
    content = json.loads((work_dir / 'results.json').read_text(encoding='utf-8'))
    dataset = ParallelTextDataset(str(data_root), 'test', test_mode=True)
    order = [content['samples'].index(str(line + 1)) for line in dataset.lines]
    test: dict[str, Any] = dict(symbols=[max(pair) - 1 for pair in dataset.lengths], references=[], runs={})
    for row in content['rows']:
        for seed, run in content['runs'][row['configs'][0]].items():
            scores = [run['scores'][index] for index in order]
            test['references'] = [score[-1] for score in scores]
            sentences = pack(scores)
            assert unpack(sentences, test['references']) == scores
            kept = {name: run[name] for name in ('metrics', 'curve')}
            test['runs'].setdefault(row['name'], {})[seed] = dict(kept, sentences=sentences)
    return test


def main() -> None:
    """Write ``evidence_g.json``, one run a line, and print the primary contrasts."""
    parser = argparse.ArgumentParser(description='Collect and compare translations of tools/reproduce.py')
    parser.add_argument('work_dirs', nargs='+', metavar='NAME=DIR')
    parser.add_argument('--data-root', nargs='+', required=True, metavar='NAME=DIR')
    args = parser.parse_args()
    sys.path.insert(0, str(config_path().parent / 'tools'))
    roots = dict(text.split('=', 1) for text in args.data_root)
    path = Path(__file__).with_name('evidence_g.json')
    tests = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}  # others than the named ones stay
    for name, folder in (text.split('=', 1) for text in args.work_dirs):
        tests[name] = collect(Path(folder), Path(roots[name]))
    write_text(path, to_text(tests))
    for names, chosen in (BOTH, bool), (LONGER, is_longer):
        for baseline in BASELINES:
            if all(name in tests for name in names):
                print(f'{", ".join(names)}: Bi-SA − {baseline}: {compare(tests, names, "Bi-SA", baseline, chosen)}')


def to_text(tests: dict[str, Any]) -> str:
    """Write tests as JSON, one run a line."""
    parts = []
    for name, test in tests.items():
        rows = (
            f'"{row}": {{\n' + ',\n'.join(f'"{seed}": {_json(run)}' for seed, run in runs.items()) + '\n}'
            for row, runs in test['runs'].items()
        )
        lists = ''.join(f'"{key}": {_json(test[key])},\n' for key in ('symbols', 'references'))
        parts.append(f'"{name}": {{\n{lists}"runs": {{\n' + ',\n'.join(rows) + '\n}}')
    return '{\n' + ',\n'.join(parts) + '\n}\n'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(',', ':'))


if __name__ == '__main__':
    main()
