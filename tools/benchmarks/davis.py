"""Train SST, grid and strided, on clips of DAVIS in the same short budget; score them beside what knows nothing.

    DAVIS_240P_ROOT=… python tools/benchmarks/davis.py [--seeds 0 1] [--work-dir work_dirs/davis] [--jobs 1]

Every row is a config of the package, trained by tools/train.py. Its last checkpoint is scored on each validation clip,
and once more with an empty reference mask, which tells what it does without knowing the object. Beside them: the first
mask, repeated. Interrupted, the command goes on where it stopped; finished runs are not repeated. It leaves in the work
dir table.md, and by the runs of the first seed overlays.jpg with some frames, truth and predictions, predictions.png
with the predictions alone, and scene.jpg with what the same models do on a scene of a ball that is drawn here.
"""

import json
import os
from pathlib import Path

import mmattn.utils.command

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import init_default_scope
from mmengine.runner import load_checkpoint
from mmengine.structures import PixelData
from PIL import Image
from short_runs import ROOT, Run, arguments, each, markdown, runs, sheet, spread, train
from torch import nn

from mmattn.registry import DATASETS, MODELS
from mmattn.utils.files import write_text
from mmattn.video import PALETTE, ClipSession, Frame, VOSMetric, read_mask
from mmattn.video.overlay import draw_overlay
from mmattn.video.similarity import region_similarity

METHODS: dict[str, tuple[str, list[str]]] = {
    'SST, grid': ('sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py', []),
    'SST, strided': ('sst/sst-strided_r18-d8-half_1xb4-400_davis-240p.py', []),
}
SHOWN = (0.2, 0.5, 0.95)  # of a clip


def config(run: Run) -> Config:
    """Return the run's config."""
    return Config.fromfile(ROOT / 'configs' / run.config)


def clips(run: Run) -> list:
    """Return the validation clips, as the model takes them."""
    return [item['data_samples'] for item in DATASETS.build(config(run).val_dataloader.dataset)]


def scores(samples: list) -> dict[str, dict[str, float]]:
    """Return J&F, J and F of each clip and of all, in percent."""
    found = {}
    for name, some in [('all', samples), *((sample.clip, [sample]) for sample in samples)]:
        metric = VOSMetric()
        metric.process(None, [sample.to_dict() for sample in some])
        found[name] = metric.evaluate(len(some))
    return found


def trained(run: Run) -> nn.Module:
    """Return the model of a finished run."""
    cfg = config(run)
    model = MODELS.build(cfg.model).eval()
    checkpoint = run.folder / f'iter_{cfg.train_cfg.max_iters}.pth'
    load_checkpoint(model, str(checkpoint), map_location='cpu', strict=True)
    return model


def predict(run: Run, blind: bool) -> list:
    """Return the validation clips with the predictions of a finished run, or those with an empty reference mask."""
    model = trained(run)
    if blind:
        for part in filter(None, (model.expand_mask_project, model.appearance)):
            part.register_forward_pre_hook(lambda _, inputs: (*inputs[:-1], torch.zeros_like(inputs[-1])))
    return [model.test_step(pseudo_collate([dict(data_samples=sample)]))[0] for sample in clips(run)]


def results(run: Run, jobs: int) -> dict[str, dict]:
    """Train if need be; return the scores with the mask and without, kept in the run's folder."""
    train(run, jobs, 'JF', config(run).train_cfg.max_iters)
    path = run.folder / 'scores.json'
    if not path.exists():
        found = {}
        for name, blind in (('given', False), ('blind', True)):
            samples = predict(run, blind)
            found[name] = scores(samples)
            if not blind:
                np.savez_compressed(
                    run.folder / 'predictions.npz',
                    **{sample.clip: sample.pred_masks.data.numpy() for sample in samples},
                )
        write_text(path, json.dumps(found))
    return json.loads(path.read_text(encoding='utf-8'))


def ball(length: int = 16, size: tuple[int, int] = (206, 366)) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw a striped ball that rolls, grows and passes behind a post: frames, uint8 BGR, and its masks."""
    clip = []
    y, x = np.mgrid[: size[0], : size[1]]
    meadow = np.random.default_rng(0).normal(0, 12, size) + 25 * np.sin(x / 23) * np.cos(y / 17)
    for time in np.linspace(0, 1, length):
        dy, dx = y - 150 + 60 * np.sin(np.pi * time), x - 50 - 250 * time
        turned = np.cos(5 * time) * dx + np.sin(5 * time) * dy
        mask = np.hypot(dy, dx) < 22 + 10 * time
        frame = np.stack([70 + meadow, 130 + meadow - y / 6, 90 + meadow], -1)
        frame[mask] = np.where(np.sin(turned / 4) > 0, 220, 60)[mask, None] * [0.3, 0.5, 1.0]
        post = abs(x - 190) < 7
        frame[post] = 150, 150, 155
        clip.append((cv2.GaussianBlur(frame, (3, 3), 0).clip(0, 255).astype(np.uint8), (mask & ~post).astype(np.uint8)))
    return clip


def draw_scene(todo: list[Run], path: Path) -> None:
    """Have the models of some runs follow the ball, and draw what they find."""
    clip = ball()
    rows = [[(frame, mask) for frame, mask in clip]]
    for run in todo:
        frames = (Frame(i, frame, mask if i == 0 else None) for i, (frame, mask) in enumerate(clip))
        rows.append([(frame.image, ids) for frame, ids in ClipSession(trained(run)).segment(frames)])
    names = ['truth', *(run.method for run in todo)]
    shown = [round(share * (len(clip) - 1)) for share in (0, *SHOWN)]
    sheet(
        [[Image.fromarray(np.ascontiguousarray(draw_overlay(*row[i], 0.5)[..., ::-1])) for row in rows] for i in shown],
        names,
        path,
    )
    for name, row in zip(names[1:], rows[1:]):
        found = [100 * region_similarity(ids > 0, mask > 0) for (_, ids), (_, mask) in zip(row[1:], clip[1:])]
        print(f'{name}, the drawn ball: J {np.mean(found):.1f}')


def draw(todo: list[Run], work_dir: Path) -> None:
    """Write the pictures of some runs."""
    overlays, predictions = [], []
    for sample in clips(todo[0]):
        found = [np.load(run.folder / 'predictions.npz')[sample.clip] for run in todo]
        for position in (round(share * (len(sample.frames) - 1)) for share in SHOWN):
            frame = sample.frames[position]
            truth = read_mask(sample.mask_paths[position], sample.single_object)
            overlays.append(
                [
                    Image.fromarray(np.ascontiguousarray(draw_overlay(frame, ids, 0.5)[..., ::-1]))
                    for ids in (truth, *(ids[position] for ids in found))
                ]
            )
            predictions.append([Image.fromarray(PALETTE[ids[position]]) for ids in found])
    names = [run.method for run in todo]
    sheet(overlays, ['truth', *names], work_dir / 'overlays.jpg')
    sheet(predictions, names, work_dir / 'predictions.png')


def main() -> None:
    """Run what is missing, then write table and pictures."""
    args = arguments('Short trainings on DAVIS', 'work_dirs/davis', [0, 1])
    data = Path(os.environ.get('DAVIS_240P_ROOT', 'data/davis_240p'))
    if not (data / 'ImageSets').is_dir():
        raise SystemExit(f'no clips in {data}: set DAVIS_240P_ROOT to the folder with JPEGImages and ImageSets')
    init_default_scope('mmengine')
    todo = runs(METHODS, args.seeds, args.work_dir)
    found = [*each(lambda run: results(run, args.jobs), todo, args.jobs)]
    repeated = clips(todo[0])
    for sample in repeated:
        sample.pred_masks = PixelData(data=sample.given[0].expand(len(sample.frames), -1, -1))
    names = [sample.clip for sample in repeated]
    rows = []
    for method in METHODS:
        for title, kind in ((method, 'given'), (f'{method}, empty reference mask', 'blind')):
            of_seeds = [result[kind] for run, result in found if run.method == method]
            rows.append(
                [
                    title,
                    *(' / '.join(f'{score[name]["JF"]:.1f}' for score in of_seeds) for name in names),
                    *(spread([score['all'][key] for score in of_seeds]) for key in ('JF', 'J', 'F')),
                ]
            )
    first = scores(repeated)
    rows.append(
        [
            'the first mask, repeated',
            *(f'{first[name]["JF"]:.1f}' for name in names),
            *(f'{first["all"][key]:.2f}' for key in ('JF', 'J', 'F')),
        ]
    )
    seeds = ', '.join(map(str, args.seeds))
    text = markdown([*(f'J&F of {name}, seeds {seeds}' for name in names), 'J&F of both', 'J', 'F'], rows)
    print(text)
    (args.work_dir / 'table.md').write_text(text, encoding='utf-8')
    draw(todo[: len(METHODS)], args.work_dir)
    draw_scene(todo[: len(METHODS)], args.work_dir / 'scene.jpg')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
