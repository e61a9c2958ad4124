"""Draw docs/evidence.png and docs/segmentation_heads.png from docs/results.

python docs/results/facades/plots.py
"""

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / 'tools/misc'), str(ROOT / 'tools')]
from write_figures import figures, read  # noqa: E402

SCALED, SCALED_C = 'U-Net-BA, 1/√d', 'U-Net-BA, content logits times 1/√d'
LONGER = 'BLEU, long, longer than 12 symbols'


class Contrast(NamedTuple):
    """A row of the picture: its label, the source, metric, rows and level of its figures, the paper's difference."""

    label: str
    source: str
    metric: str
    names: str
    level: str
    paper: float | None = None
    dots: str = 'seeds'


def turned(baseline: str, angle: int) -> Contrast:
    """Return U-Net-BA with 1/√d beside another network, on the faces of new people."""
    pose = 'turned' if angle else 'upright'
    label = f'eight new people, {pose}: {SCALED} − {baseline}'
    return Contrast(label, 'evidence_e', f'F1, {angle}°', f'{SCALED} − {baseline}', '98.3 %')


def videos(names: str) -> Contrast:
    """Return two rows on videos, with photographs in the training."""
    return Contrast(f'with photographs: {names}', 'evidence_h', 'J&F, by clip', names, '98.75 %', None, 'clips')


def translation(label: str, metric: str, baseline: str, paper: float | None = None) -> Contrast:
    """Return Bi-SA beside another attention."""
    names = f'Bi-SA − {baseline}'
    return Contrast(f'{label}: {names}', 'evidence_g', metric, names, '98.75 %', paper, 'pairs')


CONTRASTS = {
    'Faces, overall F1': [
        turned('U-Net', 0),
        *(turned(baseline, 30) for baseline in ('U-Net', 'narrow U-Net', 'equal weights')),
        Contrast(
            f'one person, upright: {SCALED} − U-Net',
            'evidence_c',
            'overall, validation at 480',
            f'{SCALED_C} − U-Net',
            '98.3 %',
        ),
        Contrast(f'one person, turned: {SCALED} − U-Net', 'evidence_c', 'overall', f'{SCALED_C} − U-Net', '98.3 %'),
        Contrast(
            'one person, upright: U-Net-BA − U-Net',
            'evidence_c',
            'overall, validation at 480',
            'U-Net-BA − U-Net',
            '99.2 %',
            0.6,
        ),
        Contrast('one person, turned: U-Net-BA − U-Net', 'evidence_c', 'overall', 'U-Net-BA − U-Net', '99.2 %'),
    ],
    'Clothes, mIoU': [
        Contrast('Bi-CC, 15 − CC', 'evidence_j: CC', 'mIoU', 'Bi-CC, 15 − stock CC', '98.3 %', 1.07),
        Contrast('Bi-CC, 15 − CC, 1/√d', 'evidence_j: CC', 'mIoU', 'Bi-CC, 15 − stock CC, 1/√d', '98.3 %'),
        Contrast('Bi-NL, 15 − NL', 'evidence_j: NL', 'mIoU', 'Bi-NL, 15 − stock NL', '98.3 %', 0.82),
    ],
    'Façades, mIoU': [
        Contrast('Bi-CC − CC', 'facades', 'mIoU', 'Bi-CC − CC', '98.75 %', 1.07),
        Contrast('Bi-CC − CC + RPE', 'facades', 'mIoU', 'Bi-CC − CC + RPE', '98.75 %', 0.53),
        Contrast('Bi-NL − NL', 'facades', 'mIoU', 'Bi-NL − NL', '98.75 %', 0.82),
        Contrast('Bi-NL − NL + RPE', 'facades', 'mIoU', 'Bi-NL − NL + RPE', '98.75 %', 0.49),
    ],
    'Streets, mIoU': [
        Contrast('Bi-CC − CC', 'evidence_a', 'mIoU', 'Bi-CC − CC', '99.2 %', 1.07),
        Contrast('Bi-NL − NL', 'evidence_a', 'mIoU', 'Bi-NL − NL', '99.2 %', 0.82),
        Contrast('small receptive field: CC − no attention', 'evidence_f', 'mIoU', 'CC − no attention', '95 %'),
        Contrast('small receptive field: NL − no attention', 'evidence_f', 'mIoU', 'NL − no attention', '95 %'),
    ],
    'Translation, BLEU': [
        translation('German, French', 'BLEU, de and fr', 'SA', 0.84),
        translation('German, French', 'BLEU, de and fr', 'SA-RPE', 0.44),
        translation('longer than in the training', LONGER, 'SA'),
        translation('longer than in the training', LONGER, 'SA-RPE'),
    ],
    'Videos, J&F': [
        *(videos(f'SST (Grid) − {other}') for other in ('label propagation', 'first mask')),
        *(videos(f'SST (Strided) − {other}') for other in ('label propagation', 'first mask')),
        Contrast(
            'six clips: SST (Strided) − SST (Grid)',
            'evidence_d',
            'J&F, by fold and seed',
            'SST (Strided) − SST (Grid)',
            '99.2 %',
            1.6,
            'folds and seeds',
        ),
    ],
}
HEADS = {
    'CC': '#9ecae1',
    'CC + RPE': '#4292c6',
    'Bi-CC': '#08519c',
    'NL': '#fdae6b',
    'NL + RPE': '#f16913',
    'Bi-NL': '#a63603',
}
SETS = {
    'evidence_j: secondary': 'clothes: position should help',
    'facades': 'façades: chosen by somebody else',
    'evidence_a': 'streets',
}


def draw_contrasts(path: Path) -> None:
    """Draw all differences with their intervals, a panel per task."""
    shares = [len(rows) + 0.8 for rows in CONTRASTS.values()]
    fig, axes = plt.subplots(len(CONTRASTS), 1, figsize=(9, 11.6), height_ratios=shares)
    for ax, (title, rows) in zip(axes, CONTRASTS.items()):
        names = []
        for y, row in enumerate(rows):
            ours, other = (read(row.source)['rows'][name]['scores'][row.metric] for name in row.names.split(' − '))
            pairs = [ours[key] - other[key] for key in ours if key in other]
            mean, low, high = figures(f'{row.metric} | {row.names} | {row.level}', row.source)
            colour = '#888888' if low < 0 < high else '#3a6ea5'
            ax.plot([low, high], [y, y], color=colour, lw=2)
            ax.plot(pairs, [y] * len(pairs), 'o', color=colour, alpha=0.45, ms=4.5)
            ax.plot([mean], [y], '|', color=colour, ms=12, mew=3)
            if row.paper is not None:
                ax.plot([row.paper], [y], 'D', mfc='none', mec='#d9534f', ms=6.5)
            names.append(f'{row.label}  ({len(pairs)} {row.dots})')
        ax.axvline(0, color='#333333', lw=1, zorder=0)
        ax.set_yticks(range(len(rows)), names)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_title(title, loc='left', fontsize=9.5)
        ax.grid(axis='x', alpha=0.3)
    legend = (
        'dot: one seed, pair, clip or fold; bar: mean; line: interval; grey: contains 0; diamond: paper, on its data'
    )
    fig.text(0.5, 0.005, f'difference in points ({legend})', ha='center', fontsize=8.5)
    fig.tight_layout(rect=(0, 0.015, 1, 1))
    fig.savefig(path, dpi=100)


def draw_heads(path: Path) -> None:
    """Draw what each head gains over no attention, a panel per data set, with the seconds of its step."""
    fig, axes = plt.subplots(1, len(SETS), figsize=(10.5, 2.6), sharey=True)
    rows = read('facades')['rows']
    for ax, (source, title) in zip(axes, SETS.items()):
        for y, (head, colour) in enumerate(HEADS.items()):
            mean, low, high = figures(f'mIoU | {head} − no attention | 95 %', source)
            ax.plot([low, high], [y, y], color=colour, lw=2.5)
            ax.plot([mean], [y], 'o', color=colour, ms=7)
        ax.axvline(0, color='#333333', lw=1, zorder=0)
        ax.set_title(title, fontsize=9.5, loc='left')
        ax.grid(axis='x', alpha=0.3)
        ax.set_xlabel('mIoU above no attention, 95 %')
    axes[0].set_yticks(range(len(HEADS)), [f'{head}, {rows[head]["seconds"]:.2f} s' for head in HEADS])
    axes[0].set_ylim(len(HEADS) - 0.5, -0.5)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


if __name__ == '__main__':
    matplotlib.use('Agg')
    plt.rcParams.update({'font.size': 8.5})
    draw_contrasts(ROOT / 'docs/evidence.png')
    draw_heads(ROOT / 'docs/segmentation_heads.png')
