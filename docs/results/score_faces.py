"""Score the heads of question (e) of docs/evidence_protocol.md by person and angle, and compare its rows.

python docs/results/score_faces.py work_dirs/faces --data-root data/fasseg --pretrained mobilenet_v2_imagenet.pth
PYTHONPATH=tools python docs/results/score_faces.py docs/results/evidence_e.json
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import initialize
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import load_checkpoint
from rich.progress import track

from mmattn.registry import METRICS, MODELS
from mmattn.utils import config_path
from mmattn.utils.files import write_text

if TYPE_CHECKING:
    from reproduction.results import Difference

ANGLES = 0, -15, 15, -30, 30, -45, 45  # degrees, clockwise
STEPS = 480
OURS = 'U-Net-BA, 1/√d'
LEVEL = 1 - 0.05 / 3


def turned(pipeline: list[dict], angle: int) -> list[dict]:
    """Insert a rotation before the last step; the corners that it does not fill are black, and ignored."""
    rotation = dict(type='RandomRotate', prob=1.0, degree=(angle, angle))
    return [*pipeline[:-1], *([rotation] if angle else []), pipeline[-1]]


def compare(scores: dict[str, dict[str, dict[str, list[int]]]], ours: str, baseline: str, turn: int) -> 'Difference':
    """Return the ``Difference`` of two rows in overall F1, and its interval, on persons 08 to 15 turned to either side.

    Args:
        scores (dict): by row, seed, and person and angle: twice the true positives, and all predicted and true pixels.
        ours, baseline (str): the rows.
        turn (int): degrees.
    """
    from reproduction.results import Result, sampled_difference

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


def print_differences(scores: dict[str, dict[str, dict[str, list[int]]]]) -> None:
    """Print the differences of :func:`compare` between ``OURS`` and all other rows, at each angle."""
    for baseline in (name for name in scores if name != OURS):
        for turn in (0, 15, 30, 45):
            print(f'{OURS} − {baseline}, turned by {turn}°: {compare(scores, OURS, baseline, turn)}')


def main() -> None:
    """Write ``scores.json`` to the work dir: for each row and seed, the sums of the overall F1 by person and angle."""
    parser = argparse.ArgumentParser(description='Score heads of tools/reproduce.py by person and angle')
    parser.add_argument('work_dir', type=Path, help='folder of the runs, or a file of scores, whose rows are compared')
    parser.add_argument('--data-root', type=Path, help='required for a folder')
    parser.add_argument('--pretrained', type=Path, help='required for a folder')
    parser.add_argument('--splits', nargs='+', default=['val', 'test'], choices=['val', 'test'])
    args = parser.parse_args()
    sys.path.insert(0, str(config_path().parent / 'tools'))
    if args.work_dir.is_file():
        print_differences(json.loads(args.work_dir.read_text(encoding='utf-8')))
        return
    if not (args.data_root and args.pretrained):
        parser.error('--data-root and --pretrained are required')
    from reproduction.names import results_key
    from reproduction.protocol import Protocol, adapt, read_data
    from reproduction.store import Store
    from reproduction.tables import read_tables

    row = next(row for row in read_tables()['4.3'] if row.name == 'U-Net')
    network = dict(small=True, backbone='mobilenet-v2-d8_unet', pretrained=args.pretrained, frozen=True)
    (cfg,) = adapt(row, Protocol('fasseg', STEPS, **network), read_data('fasseg', args.data_root))
    init_default_scope('mmseg')
    preprocessor, backbone = MODELS.build(cfg.model.data_preprocessor), MODELS.build(cfg.model.backbone).eval()
    initialize(backbone.backbone, cfg.model.backbone.backbone.init_cfg)

    path = args.work_dir / 'scores.json'
    done = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    row_names = {row['configs'][0]: row['name'] for row in Store(args.work_dir / 'results.json').rows}
    models = {}
    for checkpoint in sorted(args.work_dir.glob(f'*_seed-*/iter_{STEPS}.pth')):
        config, _, seed = checkpoint.parent.name.rpartition('_seed-')
        file = args.work_dir / 'configs' / f'{config}.py'
        if (key := results_key(file)) not in row_names:
            parser.error(f'{args.work_dir}/results.json has no row of {key}: let tools/reproduce.py end first')
        name = row_names[key]
        if seed not in done.get(name, {}):
            models[name, seed] = MODELS.build(Config.fromfile(file).model)
            load_checkpoint(models[name, seed], str(checkpoint), map_location='cpu', logger='silent')
            models[name, seed].eval()
    metric = METRICS.build(cfg.test_evaluator)
    sums: dict = {key: defaultdict(lambda: [0, 0]) for key in models}
    for angle in ANGLES:
        for split in args.splits:
            dataset = deepcopy(cfg.test_dataloader.dataset)
            dataset.pipeline = turned(list(dataset.pipeline), angle)
            dataset.data_prefix = dict(img_path=f'img_dir/{split}', seg_map_path=f'ann_dir/{split}')
            images = DATASETS.build(dataset)
            metric.dataset_meta = images.metainfo
            for sample in track(images, f'{split}, {angle} degrees', len(images)) if models else ():
                with torch.inference_mode():
                    batch = preprocessor(pseudo_collate([sample]))
                    maps = [x.half().float() for x in backbone(batch['inputs'])]  # as they are stored
                    (sample,) = batch['data_samples']
                    person = re.search(r'personne(\d\d)', sample.img_path)[1]
                    for key, model in models.items():
                        (shown,) = model.predict(maps, [sample])
                        metric.process(None, [shown.to_dict()])
                        counts = metric.count_pixels(metric.results.pop())['overall']
                        total = sums[key][f'{person}, {angle}']
                        total[0] += int(counts[0])
                        total[1] += int(counts[1])
    for (name, seed), scores in sums.items():
        done.setdefault(name, {})[seed] = scores
    rows = (f'"{name}": {json.dumps(runs, separators=(",", ":"))}' for name, runs in done.items())
    write_text(path, '{\n' + ',\n'.join(rows) + '\n}\n')
    if OURS in done and 'test' in args.splits:
        print_differences(done)


if __name__ == '__main__':
    main()
