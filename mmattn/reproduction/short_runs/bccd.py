"""A small Faster R-CNN and its variants with attention on BCCD, with pictures of their detections."""

from pathlib import Path

from mmengine.config import Config
from PIL import Image

from mmattn.utils.files import replace_folder

from ..reproduce import checkpoint
from ..runs import Run, call
from .common import ShortRuns, sheet

STOCK = 'Faster R-CNN (mmdet)'
SHOWN = 4  # number of images in the picture


def draw(runs: list[Run], folder: Path) -> None:
    """Write detections.jpg: the ground truth and the detections of each run on some validation images."""
    rows = [[Image.open(path) for path in drawn(run)[:SHOWN]] for run in runs]
    sheet([list(column) for column in zip(*rows)], [run.method for run in runs], folder / 'detections.jpg')


def drawn(run: Run) -> list[Path]:
    """Return pictures of a finished run's detections next to the ground truth, drawn by tools/test.py."""
    folder = run.folder / 'shown'
    if not folder.is_dir():
        last = checkpoint(run.folder, Config.fromfile(run.config))
        options = ['--cfg-options', 'model.test_cfg.rcnn.score_thr=0.3']
        work_dir = run.folder / 'test'
        with replace_folder(folder) as scratch:
            new = (scratch / 'new').resolve()
            call(run, 1, 'test.py', run.config, last, '--work-dir', work_dir, '--show-dir', new, *options)
    return sorted(folder.rglob('*.png')) + sorted(folder.rglob('*.jpg'))


RUNS = ShortRuns(
    'bccd',
    {
        STOCK: 'attended_residual/faster-rcnn_r50-w16_fpn_1xb8-150_bccd-320x240.py',
        'attn0010': 'attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py',
        'attn0010-dcn': 'attended_residual/faster-rcnn_r50-w16-attn0010-dcn_fpn_1xb8-150_bccd-320x240.py',
        'dynconv13': 'attended_residual/faster-rcnn_r50-w16-dynconv13_fpn_1xb8-150_bccd-320x240.py',
    },
    STOCK,
    draw,
)
