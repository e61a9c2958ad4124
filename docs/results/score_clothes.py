"""Compare the rows of question (j) of docs/evidence_protocol.md, as a whole and by class, and draw label maps.

PYTHONPATH=tools python docs/results/score_clothes.py docs/results/evidence_j_cc.json
PYTHONPATH=tools python docs/results/score_clothes.py work_dirs/evidence_j_cc/results.json --draw docs/clothes.png
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduction.results import Difference, Result, mean_iou, sampled_difference
from reproduction.store import Store

LEVEL = 1 - 0.05 / 3
CONTRASTS = ('Bi-CC, 15', 'stock CC'), ('Bi-CC, 15', 'stock CC, 1/√d'), ('Bi-NL, 15', 'stock NL')
SECONDARY = (
    ('stock CC', 'no attention'),
    ('Bi-CC, 15', 'no attention'),
    ('stock NL', 'no attention'),
    ('Bi-NL, 15', 'no attention'),
    ('Bi-CC, upside down', 'CC, upside down'),
    ('Bi-NL, upside down', 'NL, upside down'),
    ('CC, upside down', 'stock CC'),
    ('Bi-CC, upside down', 'Bi-CC, 15'),
    ('NL, upside down', 'stock NL'),
    ('Bi-NL, upside down', 'Bi-NL, 15'),
    ('CC + RPE', 'stock CC'),
    ('CC + RPE', 'stock CC, 1/√d'),
    ('Bi-CC, 15', 'CC + RPE'),
    ('NL + RPE', 'stock NL'),
    ('Bi-NL, 15', 'NL + RPE'),
    ('Bi-CC', 'Bi-CC, 15'),
    ('Bi-NL', 'Bi-NL, 15'),
    ('CC + RPE', 'Bi-CC'),
    *((f'Bi-{head}, padding {value}', f'Bi-{head}, 15') for head in ('CC', 'NL') for value in ('0', '−∞')),
)
TRAINED = (
    ('Bi-CC, default', 'stock CC'),
    ('Bi-CC, zero_init', 'stock CC'),
    ('Bi-CC, zero_init', 'Bi-CC, default'),
    ('Bi-CC, default', 'stock CC, 1/√d'),
)
CLASSES = 'background', 'hair', 'skin', 'upper', 'outer', 'dress', 'skirt', 'trousers', 'legwear', 'shoes', 'bag'
Rows = dict[str, dict[str, Result]]  # by name and seed


def read(path: Path) -> Rows:
    """Read the rows of a file of tools/reproduce.py: results by name and seed."""
    runs, store = json.loads(path.read_text(encoding='utf-8'))['runs'], Store(path)
    return {
        row['name']: {
            seed: store.get(config, seed, run['steps'], 'iterations') for seed, run in runs.get(config, {}).items()
        }
        for row in store.rows
        for config in row['configs']
    }


def read_all(folder: Path) -> Rows:
    """Read the secondary rows, and the primary ones of the same seeds."""
    primary = read(folder / 'evidence_j_cc.json') | read(folder / 'evidence_j_nl.json')
    same = {name: {seed: run for seed, run in runs.items() if int(seed) < 5} for name, runs in primary.items()}
    return same | read(folder / 'evidence_j_secondary.json')


def of_class(result: Result, name: str) -> Result:
    """Keep the intersections and unions of one class: their mean IoU is its IoU."""
    column = CLASSES.index(name)
    samples = {key: [x[column], x[column + len(CLASSES)]] for key, x in result.samples.items()}
    return result._replace(samples=samples)


def compare(
    rows: Rows, ours: str, baseline: str, name: str = '', seeds: int | None = None, level: float = LEVEL
) -> Difference:
    """Return the ``Difference`` of two rows in mIoU, and its interval.

    Args:
        rows (dict): what :func:`read` returns.
        ours, baseline (str): the rows.
        name (str): a class, whose IoU is compared. Defaults to '', the mean of all.
        seeds (int, optional): the first seeds alone. Defaults to None, all that both rows have.
        level (float): level of the interval. Defaults to that of three primary contrasts.
    """
    common = [seed for seed in rows[ours] if seed in rows[baseline]][:seeds]
    runs = [[rows[row][seed] for seed in common] for row in (ours, baseline)]
    if name:
        runs = [[of_class(run, name) for run in row] for row in runs]
    return sampled_difference(*runs, level)


def pairs(rows: Rows, ours: str, baseline: str) -> list[float]:
    """Return the differences of two rows in mIoU, one per seed that both have."""

    def points(run: Result) -> float:
        return float(mean_iou(np.sum([*run.samples.values()], 0, dtype=float)))

    return [points(run) - points(rows[baseline][seed]) for seed, run in rows[ours].items() if seed in rows[baseline]]


def gain(rows: Rows, ours: str, baseline: str, photograph: str, seed: str) -> float:
    """Return the gain of a photograph by a seed, in points of its own mIoU."""
    scores = [float(mean_iou(np.array(rows[row][seed].samples[photograph]))) for row in (ours, baseline)]
    return scores[0] - scores[1]


def by_mean_gain(rows: Rows, ours: str, baseline: str) -> list[str]:
    """Return the photographs from the least to the largest gain, which is its mean over seeds."""
    common = [seed for seed in rows[ours] if seed in rows[baseline]]
    photographs = rows[ours][common[0]].samples
    return sorted(photographs, key=lambda name: sum(gain(rows, ours, baseline, name, seed) for seed in common))


def label_maps(run: Path, photographs: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the true and the predicted labels of photographs, by the last checkpoint of a run."""
    import torch
    from mmengine.config import Config
    from mmengine.dataset import pseudo_collate
    from mmengine.registry import DATASETS, init_default_scope
    from mmengine.runner import load_checkpoint

    from mmattn.registry import MODELS

    cfg = Config.fromfile(run / 'test_units/config.py')
    init_default_scope('mmseg')
    model, images = MODELS.build(cfg.model).eval(), DATASETS.build(cfg.test_dataloader.dataset)
    load_checkpoint(model, str(next(run.glob('iter_*.pth'))), map_location='cpu', logger='silent')
    found = {}
    for i in range(len(images)):
        photograph = Path(images[i]['data_samples'].img_path).stem
        if photograph in photographs:
            with torch.inference_mode():
                (sample,) = model.test_step(pseudo_collate([images[i]]))
            found[photograph] = tuple(x.data[0].numpy() for x in (sample.gt_sem_seg, sample.pred_sem_seg))
    return [found[photograph] for photograph in photographs]


def draw(path: Path, rows: Rows, target: Path) -> None:
    """Draw the label maps by seed 0 of the photographs with the least, the median and the largest mean gain of Bi-CC.

    Below them is the gain by seed 0: that of the maps that are drawn.
    """
    from mmengine.config import Config
    from PIL import Image

    from mmattn.visualization.panels import Panel, add_legend, arrange
    from reproduction.names import results_key

    ours, baseline = CONTRASTS[0]
    files = {results_key(file): file.stem for file in path.parent.glob('configs/*.py')}
    content = json.loads(path.read_text(encoding='utf-8'))
    runs = {row['name']: path.parent / f'{files[row["configs"][0]]}_seed-0' for row in content['rows']}
    ordered = by_mean_gain(rows, ours, baseline)
    chosen = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    palette = Config.fromfile(Path(__file__).with_name('ccp.py')).metainfo['palette']
    colours = np.array(palette + [[255, 255, 255]] * (256 - len(palette)), np.uint8)  # white: ignored
    maps = {name: label_maps(runs[name], chosen) for name in (baseline, ours)}
    columns = []
    for number, photograph in enumerate(chosen):
        truth = maps[ours][number][0]
        shown = {'truth': truth, 'CC': maps[baseline][number][1], 'Bi-CC': maps[ours][number][1]}
        pictures = [Panel(smaller(colours[labels]), title) for title, labels in shown.items()]
        columns.append(
            Panel(arrange([pictures], gap=4), caption=f'{gain(rows, ours, baseline, photograph, "0"):+.1f} points')
        )
    picture = add_legend(arrange([columns], gap=24, margin=6), dict(zip(CLASSES, palette)))
    Image.fromarray(picture).quantize(32).save(target, optimize=True)


def smaller(picture: np.ndarray) -> np.ndarray:
    """Take every second pixel."""
    return picture[::2, ::2]


def add_runs(results: Path, primary: Path, target: Path) -> None:
    """Copy the rows of ``results`` that ``primary`` does not have into ``target``, with their runs."""
    new, known, store = map(Store, (results, primary, target))
    names = {row['name'] for row in known.rows}
    rows = {row['name']: row for row in store.rows + new.rows if row['name'] not in names}
    runs = json.loads(results.read_text(encoding='utf-8'))['runs']
    for config in (config for row in new.rows if row['name'] in rows for config in row['configs']):
        for seed, run in runs[config].items():
            result = new.get(config, seed, run['steps'], 'iterations')
            assert result is not None
            store.add(config, seed, run['steps'], result)
    store.report(new.setup, [*rows.values()])


def main() -> None:
    """Print contrasts, the primary ones with all seeds and with five, and by class; draw; or write a further file."""
    parser = argparse.ArgumentParser(description='Compare the heads on clothes')
    parser.add_argument('results', type=Path, help='file of tools/reproduce.py; for --draw, in the folder of the runs')
    parser.add_argument('--draw', type=Path, metavar='PNG', help='label maps of three photographs')
    parser.add_argument('--beside', type=Path, metavar='JSON', help='with --add-to: a file whose runs are left out')
    parser.add_argument('--add-to', type=Path, metavar='JSON', help='the file that gets the other runs')
    args = parser.parse_args()
    if args.add_to:
        if args.beside is None:
            parser.error('--add-to requires --beside')
        add_runs(args.results, args.beside, args.add_to)
        return
    rows = read_all(args.results.parent) if args.results.stem == 'evidence_j_secondary' else read(args.results)
    secondary = [pair for pair in SECONDARY + TRAINED if {*pair} <= rows.keys()]
    for ours, baseline in secondary:
        print(f'{ours} − {baseline}: {compare(rows, ours, baseline, level=0.95)}')
    for ours, baseline in () if secondary else CONTRASTS:
        if rows.get(ours) and rows.get(baseline):
            print(f'{ours} − {baseline}: {compare(rows, ours, baseline)}')
            print(f'  seeds 0 to 4: {compare(rows, ours, baseline, seeds=5)}')
            for name in CLASSES:
                print(f'  {name}: {compare(rows, ours, baseline, name, level=0.95)}')
    if args.draw:
        draw(args.results, rows, args.draw)


if __name__ == '__main__':
    main()
