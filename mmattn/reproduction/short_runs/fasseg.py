"""mmseg's U-Net, ours and U-Net-BA on FASSEG, scored on upright and rotated images, with pictures."""

from pathlib import Path

import numpy as np
from mmengine.config import Config
from PIL import Image

from mmattn.segmentation.face_parsing import FaceParsingInferencer

from ..reproduce import checkpoint
from ..results import Result
from ..runs import Run, scores, test
from ..task import length
from .common import ShortRuns, sheet

STOCK = 'U-Net (mmseg UNet)'
ANGLES = (30, -30)  # degrees, clockwise
SHOWN = (0, 7, 13, 19)  # indices of the validation images in the pictures


def examine(run: Run, result: Result, jobs: int) -> dict[str, Result]:
    """Add F1 of each class, and overall F1 on rotated images, which training does not contain; in percent."""
    cfg = Config.fromfile(run.config)
    last = checkpoint(run.folder, cfg)
    found = scores(run, jobs, last, 'overall', length(cfg)[0])
    classes = {name.removeprefix('F1.'): value for name, value in found.items() if name.startswith('F1.')}
    turned = [test_turned(run, jobs, last, angle) for angle in ANGLES]
    metrics = {**result.metrics, **classes, f'overall, turned by ±{ANGLES[0]}°': sum(turned) / len(turned)}
    return {run.method: result._replace(metrics=metrics)}


def test_turned(run: Run, jobs: int, last: Path, angle: int) -> float:
    """Return overall F1 of a run's last checkpoint on rotated images and labels."""
    cfg = Config.fromfile(run.config)
    cfg.test_dataloader.dataset.pipeline.insert(-1, dict(type='RandomRotate', prob=1.0, degree=(angle, angle)))
    folder = run.folder / f'rotated_{angle}'
    folder.mkdir(exist_ok=True)
    cfg.dump(folder / 'config.py')
    return test(run._replace(config=folder / 'config.py', folder=folder), jobs, last, files=False)['overall']


def draw(runs: list[Run], folder: Path) -> None:
    """Write photos.png: images, labels and predictions, upright and rotated; and predictions.png: only predictions."""
    cfg = Config.fromfile(runs[0].config)
    data = cfg.val_dataloader.dataset
    photos = sorted(Path(data.data_root, data.data_prefix.img_path).iterdir())
    palette = np.array(data.metainfo.palette, np.uint8).tobytes()
    turned = folder / 'turned'
    turned.mkdir(exist_ok=True)
    columns: list[list[Image.Image]] = []
    inputs = []
    for photo in (photos[i] for i in SHOWN if i < len(photos)):
        for angle in (0, ANGLES[0]):
            truth = Image.open(Path(data.data_root, data.data_prefix.seg_map_path, f'{photo.stem}.png'))
            truth.putpalette(palette)
            pair = [Image.open(photo), truth.convert('RGB')]
            columns.append([image.rotate(-angle, Image.Resampling.BILINEAR) for image in pair])
            inputs.append(turned / f'{photo.stem}_{angle}.png')
            columns[-1][0].save(inputs[-1])
    for run in runs:
        last = checkpoint(run.folder, cfg)
        inferencer = FaceParsingInferencer(str(run.config), str(last), device='cpu', show_progress=False)
        for column, path in zip(columns, inferencer(inputs, folder / 'predicted' / run.folder.name)):
            column.append(Image.open(path).convert('RGB'))
    names = ['image', 'label', *(run.method for run in runs)]
    sheet(columns, names, folder / 'photos.png')
    sheet([column[2:] for column in columns], names[2:], folder / 'predictions.png')


RUNS = ShortRuns(
    'fasseg',
    {
        STOCK: 'unet_ba/mmseg-unet_s5-d16-w24_1xb8-480_fasseg-192x160.py',
        'U-Net, UNetBAHead of convolutions': 'unet_ba/unet_r18-d8-half_1xb8-480_fasseg-192x160.py',
        'U-Net-BA, UNetBAHead': 'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py',
    },
    STOCK,
    draw,
    examine,
)
