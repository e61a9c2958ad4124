"""Compare the rows of question (e) of docs/evidence_protocol.md on heads turned by an angle.

PYTHONPATH=tools python docs/results/score_faces.py
"""

import json
from pathlib import Path

from reproduction.results import Difference, Result, sampled_difference

OURS = 'U-Net-BA, 1/√d'
LEVEL = 1 - 0.05 / 3


def compare(scores: dict[str, dict[str, dict[str, list[int]]]], ours: str, baseline: str, turn: int) -> Difference:
    """Return the ``Difference`` of two rows in overall F1, and its interval, on persons 08 to 15 turned to either side.

    Args:
        scores (dict): by row, seed, and person and angle: twice the true positives, and all predicted and true pixels.
        ours, baseline (str): the rows.
        turn (int): degrees.
    """
    seeds = [seed for seed in scores[ours] if seed in scores[baseline]]
    rows = []
    for name in (ours, baseline):
        samples = (
            {unit: [100 * part, whole] for unit, (part, whole) in scores[name][seed].items() if is_tested(unit, turn)}
            for seed in seeds
        )
        rows.append([Result({}, samples=units) for units in samples])
    return sampled_difference(*rows, LEVEL, units=r'^\d\d')


def f1(run: dict[str, list[int]], turn: int) -> float:
    """Return the overall F1 in percent of one run on persons 08 to 15, turned to either side."""
    parts, wholes = zip(*(sums for unit, sums in run.items() if is_tested(unit, turn)))
    return 100 * sum(parts) / sum(wholes)


def is_tested(unit: str, turn: int) -> bool:
    """Tell whether a person and angle, such as '08, -30', is of the test and turned by ``turn`` degrees."""
    person, angle = map(int, unit.split(','))
    return person >= 8 and abs(angle) == turn


def main() -> None:
    """Print the differences of :func:`compare` between ``OURS`` and all other rows, at each angle."""
    scores = json.loads(Path(__file__).with_name('evidence_e.json').read_text(encoding='utf-8'))
    for baseline in (name for name in scores if name != OURS):
        for turn in (0, 15, 30, 45):
            print(f'{OURS} − {baseline}, turned by {turn}°: {compare(scores, OURS, baseline, turn)}')


if __name__ == '__main__':
    main()
