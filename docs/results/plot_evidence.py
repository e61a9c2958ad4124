"""Draw the differences of docs/evidence.md from the files in this folder.

PYTHONPATH=tools python docs/results/plot_evidence.py
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import score_clothes
import score_translations
from score_faces import OURS, compare, f1

from reproduction.results import Difference, difference

FOLDER = Path(__file__).parent
SCALED = 'U-Net-BA, content logits times 1/√d'


class Contrast(NamedTuple):
    """A row of the picture: label, what a dot is, differences in points, their interval, the paper's difference."""

    name: str
    dots: str
    pairs: list[float]
    interval: Difference
    paper: float | None = None


def by_seed(file: str, ours: str, baseline: str, metric: str = 'overall') -> list[float]:
    """Return the differences of two rows, one per seed that both have; 'curve' is the last validation."""
    content = json.loads((FOLDER / f'{file}.json').read_text(encoding='utf-8'))
    configs = {row['name']: row['configs'][0] for row in content['rows']}
    ours_runs, baseline_runs = (content['runs'][configs[name]] for name in (ours, baseline))

    def score(run: dict) -> float:
        return run['curve'][-1][1] if metric == 'curve' else run['metrics'][metric]

    return [score(run) - score(baseline_runs[seed]) for seed, run in ours_runs.items() if seed in baseline_runs]


def by_fold(file: str, ours: str, baseline: str) -> list[float]:
    """Return the differences of two rows in J&F, one per fold and seed."""
    content = json.loads((FOLDER / f'{file}.json').read_text(encoding='utf-8'))
    folds = {row['name']: [content['runs'][config] for config in row['configs']] for row in content['rows']}
    return [
        fold[seed]['metrics']['J&F'] - baseline_fold[seed]['metrics']['J&F']
        for fold, baseline_fold in zip(folds[ours], folds[baseline])
        for seed in fold
    ]


def by_clip(file: str, row: str) -> dict[str, float]:
    """Return the score of each clip, the mean over seeds, in the fold that tests it."""
    content = json.loads((FOLDER / f'{file}.json').read_text(encoding='utf-8'))
    configs = next(item['configs'] for item in content['rows'] if item['name'] == row)
    runs = [run for config in configs for run in content['runs'][config].values()]
    return {
        clip: statistics.mean(run['scores'][index][0] for run in runs if run['scores'][index] is not None)
        for index, clip in enumerate(content['samples'])
    }


def contrasts() -> dict[str, list[Contrast]]:
    """Return the contrasts by the title of their panel."""

    def paired(name: str, pairs: list[float], family: int, paper: float | None = None, dots: str = 'seeds') -> Contrast:
        interval = difference(pairs, [0.0] * len(pairs), 1 - 0.05 / family)
        return Contrast(name, f'{len(pairs)} {dots}', pairs, interval, paper)

    def clips(ours: str, baseline: str) -> Contrast:
        ours_scores, baseline_scores = by_clip('evidence_h', ours), by_clip('evidence_h', baseline)
        pairs = [score - baseline_scores[clip] for clip, score in ours_scores.items()]
        return paired(f'with photographs: {ours} − {baseline}', pairs, 4, dots='clips')

    def new_people(baseline: str, turn: int) -> Contrast:
        scores = json.loads((FOLDER / 'evidence_e.json').read_text(encoding='utf-8'))
        pairs = [f1(run, turn) - f1(scores[baseline][seed], turn) for seed, run in scores[OURS].items()]
        name = f'eight new people, {"turned" if turn else "upright"}: {OURS} − {baseline}'
        return Contrast(name, f'{len(pairs)} seeds', pairs, compare(scores, OURS, baseline, turn))

    def on_clothes(
        name: str, rows: score_clothes.Rows, ours: str, baseline: str, paper: float | None = None
    ) -> Contrast:
        pairs = score_clothes.pairs(rows, ours, baseline)
        return Contrast(name, f'{len(pairs)} seeds', pairs, score_clothes.compare(rows, ours, baseline), paper)

    def translations(
        name: str, names: Sequence[str], chosen: Callable[[int], bool], baseline: str, paper: float | None = None
    ) -> Contrast:
        tests = score_translations.read(FOLDER / 'evidence_g.json')
        pairs = []
        for test in names:
            ours, theirs = (score_translations.results(tests[test], row, chosen) for row in ('Bi-SA', baseline))
            pairs += [run.metrics['BLEU'] - theirs[seed].metrics['BLEU'] for seed, run in ours.items()]
        interval = score_translations.compare(tests, names, 'Bi-SA', baseline, chosen)
        return Contrast(f'{name}: Bi-SA − {baseline}', f'{len(pairs)} pairs', pairs, interval, paper)

    of_cc, of_nl = (score_clothes.read(FOLDER / f'evidence_j_{kind}.json') for kind in ('cc', 'nl'))
    faces = ('upright', 'curve', 0.6), ('turned', 'overall', None)
    return {
        'Faces, overall F1': [
            new_people('U-Net', 0),
            *(new_people(baseline, 30) for baseline in ('U-Net', 'narrow U-Net', 'equal weights')),
            *(
                paired(f'one person, {pose}: U-Net-BA, 1/√d − U-Net', by_seed('evidence_c', SCALED, 'U-Net', key), 3)
                for pose, key, _ in faces
            ),
            *(
                paired(
                    f'one person, {pose}: U-Net-BA − U-Net', by_seed('evidence_c', 'U-Net-BA', 'U-Net', key), 6, paper
                )
                for pose, key, paper in faces
            ),
        ],
        'Streets, mIoU': [
            paired('Bi-CC − CC', by_seed('evidence_a', 'Bi-CC', 'CC', 'mIoU'), 6, 1.07),
            paired('Bi-NL − NL', by_seed('evidence_a', 'Bi-NL', 'NL', 'mIoU'), 6, 0.82),
            paired('small receptive field: CC − no attention', by_seed('evidence_f', 'CC', 'no attention', 'mIoU'), 1),
            paired('small receptive field: NL − no attention', by_seed('evidence_f', 'NL', 'no attention', 'mIoU'), 1),
        ],
        'Clothes, mIoU': [
            on_clothes('Bi-CC − CC', of_cc, *score_clothes.CONTRASTS[0], 1.07),
            on_clothes('Bi-CC − stock CC, 1/√d', of_cc, *score_clothes.CONTRASTS[1]),
            on_clothes('Bi-NL − NL', of_nl, *score_clothes.CONTRASTS[2], 0.82),
        ],
        'Translation, BLEU': [
            translations('German, French', score_translations.BOTH, bool, 'SA', 0.84),
            translations('German, French', score_translations.BOTH, bool, 'SA-RPE', 0.44),
            translations('longer than in the training', score_translations.LONGER, score_translations.is_longer, 'SA'),
            translations(
                'longer than in the training', score_translations.LONGER, score_translations.is_longer, 'SA-RPE'
            ),
        ],
        'Videos, J&F': [
            *(
                clips(ours, baseline)
                for ours in ('SST (Grid)', 'SST (Strided)')
                for baseline in ('label propagation', 'first mask')
            ),
            paired(
                'six clips: SST (Strided) − SST (Grid)',
                by_fold('evidence_d', 'SST (Strided)', 'SST (Grid)'),
                6,
                1.6,
                'folds and seeds',
            ),
        ],
    }


def main() -> None:
    """Draw docs/evidence.png."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    panels = contrasts()
    heights = [len(rows) for rows in panels.values()]
    size = 9, 1.5 + 0.36 * sum(heights)
    figure, axes = pyplot.subplots(len(panels), figsize=size, height_ratios=heights, layout='constrained')
    for axis, (title, rows) in zip(axes, panels.items()):
        for row, (_, _, pairs, interval, paper) in enumerate(rows):
            colour = '#888888' if interval.low <= 0 <= interval.high else '#4477aa'
            axis.plot(pairs, [row] * len(pairs), 'o', color=colour, alpha=0.4, markersize=4)
            axis.plot([interval.low, interval.high], [row, row], '-', color=colour, linewidth=2)
            axis.plot([interval.mean], [row], '|', color=colour, markersize=12, markeredgewidth=3)
            if paper is not None:
                axis.plot([paper], [row], 'D', color='#ee6677', markerfacecolor='none')
        axis.axvline(0, color='#444444', linewidth=1)
        axis.set_yticks(range(len(rows)), [f'{name}  ({dots})' for name, dots, *_ in rows], fontsize='small')
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_title(title, fontsize='medium', loc='left')
        axis.grid(axis='x', alpha=0.3)
    key = 'dot: one seed, pair, clip or fold, bar: mean, line: interval, grey: contains 0, diamond: paper'
    figure.supxlabel(f'difference in points ({key})', fontsize='medium')
    figure.savefig(FOLDER.parent / 'evidence.png', dpi=100)


if __name__ == '__main__':
    main()
