"""Train mmseg's U-Net, ours and U-Net-BA on FASSEG in the same short budget; score them upright and rotated; draw.

    FASSEG_ROOT=… python tools/benchmarks/fasseg.py [--seeds 0 1] [--work-dir work_dirs/fasseg] [--jobs 1]

Every row is a config of the package, trained by tools/train.py and scored on the validation images after the last
iteration, then by tools/test.py on the same images turned by 30 degrees to either side, which training never saw.
Interrupted, the command goes on where it stopped; finished runs and tests are not repeated. It leaves in the work dir
table.md, photos.png with some images, labels and predictions, and predictions.png with the predictions alone.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import mmattn.utils.command

import numpy as np
from mmengine.config import Config
from PIL import Image
from short_runs import ROOT, Run, arguments, call, each, markdown, runs, sheet, spread, train

import mmattn.registry
from mmattn.segmentation.face_parsing import FaceParsingInferencer

ITERATIONS = 480
RUN = f'1xb8-{ITERATIONS}_fasseg-192x160.py'
METHODS: dict[str, tuple[str, list[str]]] = {
    'U-Net (mmseg UNet)': (f'unet_ba/mmseg-unet_s5-d16-w24_{RUN}', []),
    'U-Net, UNetBAHead of convolutions': (f'unet_ba/unet_r18-d8-half_{RUN}', []),
    'U-Net-BA, UNetBAHead': (f'unet_ba/unet-ba_r18-d8-half_{RUN}', []),
}
COLUMNS = ('skin', 'hair', 'eyes', 'nose', 'mouth', 'background')
ANGLES = (30, -30)  # degrees, clockwise
SHOWN = (0, 7, 13, 19)  # validation images in the pictures


def config(run: Run, angle: int = 0) -> Config:
    """Return the run's config, its test images and labels turned."""
    cfg = Config.fromfile(ROOT / 'configs' / run.config)
    if angle:
        turn = dict(type='RandomRotate', prob=1.0, degree=(angle, angle))
        cfg.test_dataloader.dataset.pipeline.insert(-1, turn)
    return cfg


def test_rotated(run: Run, jobs: int, angle: int) -> dict:
    """Return the metrics of a run's last checkpoint on turned images."""
    folder = run.folder / f'rotated_{angle}'
    made = checkpoint(run).stat().st_mtime
    if not any(path.stat().st_mtime > made for path in folder.glob('*/*.json')):
        folder.mkdir(exist_ok=True)
        config(run, angle).dump(folder / 'config.py')
        call(run, jobs, 'test.py', folder / 'config.py', checkpoint(run), '--work-dir', folder)
    return json.loads(max(folder.glob('*/*.json')).read_text(encoding='utf-8'))  # their folders are called by the time


def checkpoint(run: Run) -> Path:
    """Return the last checkpoint of a finished run."""
    return run.folder / f'iter_{ITERATIONS}.pth'


def results(run: Run, jobs: int) -> dict[str, float]:
    """Return a run's scores in percent: F1 a class, overall, accuracy, and overall of turned images."""
    found = train(run, jobs, 'overall', ITERATIONS)
    rotated = [test_rotated(run, jobs, angle)['overall'] for angle in ANGLES]
    return {
        **{name: found[f'F1.{name}'] for name in COLUMNS},
        'accuracy': found['accuracy'],
        'overall': found['overall'],
        'rotated': sum(rotated) / len(rotated),
    }


def draw(todo: list[Run], out: Path) -> None:
    """Draw some images and their predictions, upright and turned, by every method's run of the first seed."""
    data = config(todo[0]).val_dataloader.dataset
    photos = sorted(Path(data.data_root, data.data_prefix['img_path']).iterdir())
    labels = Path(data.data_root, data.data_prefix['seg_map_path'])
    palette = np.array(data.metainfo['palette'], np.uint8).tobytes()
    turned = out / 'turned'
    turned.mkdir(exist_ok=True)
    columns: list[list[Image.Image]] = []
    for i in SHOWN:
        for angle in (0, ANGLES[0]):
            truth = Image.open(labels / f'{photos[i].stem}.png')
            truth.putpalette(palette)
            pair = [Image.open(photos[i]), truth.convert('RGB')]
            columns.append([image.rotate(-angle, Image.Resampling.BILINEAR) for image in pair])
            columns[-1][0].save(turned / f'{i}_{angle}.png')
    for run in todo:
        inferencer = FaceParsingInferencer(config(run), str(checkpoint(run)), device='cpu', show_progress=False)
        written = inferencer(
            [turned / f'{i}_{angle}.png' for i in SHOWN for angle in (0, ANGLES[0])],
            out / 'predicted' / run.folder.name,
        )
        for column, path in zip(columns, written):
            column.append(Image.open(path).convert('RGB'))
    names = ['image', 'label', *(run.method for run in todo)]
    sheet(columns, names, out / 'photos.png')
    sheet([column[2:] for column in columns], names[2:], out / 'predictions.png')


def main() -> None:
    """Run what is missing, then write table and pictures."""
    args = arguments('Short trainings on FASSEG', 'work_dirs/fasseg', [0, 1])
    data = Path(os.environ.get('FASSEG_ROOT', 'data/fasseg'))
    if not (data / 'img_dir').is_dir():
        raise SystemExit(f'no FASSEG in {data}: set FASSEG_ROOT to the folder with img_dir and ann_dir')
    todo = runs(METHODS, args.seeds, args.work_dir)
    scores: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, found in each(lambda run: results(run, args.jobs), todo, args.jobs):
        for name, value in found.items():
            scores[run.method][name].append(value)
    heads = [*COLUMNS, 'accuracy', 'overall', 'overall, turned by ±30°']
    text = markdown(heads, ([method, *map(spread, columns.values())] for method, columns in scores.items()))
    print(text)
    (args.work_dir / 'table.md').write_text(text, encoding='utf-8')
    draw(todo[: len(METHODS)], args.work_dir)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
