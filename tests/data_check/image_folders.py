"""Small folders of images and masks, and a config of their data set."""

from types import SimpleNamespace
from zlib import crc32

import numpy as np
from mmengine.config import Config
from PIL import Image

CLASSES = 2
SIZE = (40, 48)  # height, width


def write(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def add(root, name, image_size=SIZE, suffix='.png', labels=None, part='train'):
    """Write an image and its mask."""
    rng = np.random.default_rng(crc32(f'{part}/{name}'.encode()))
    write(root / 'img_dir' / part / f'{name}{suffix}', rng.integers(0, 255, (*image_size, 3)).astype(np.uint8))
    mask = rng.integers(0, CLASSES, SIZE).astype(np.uint8)
    mask[0, :2] = 255
    if labels is not None:
        mask = mask.astype(np.uint16 if max(labels) > 255 else np.uint8)
        mask[1, : len(labels)] = labels
    write(root / 'ann_dir' / part / f'{name}.png', mask)


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def data_set(root, part='train', **options):
    return {
        'type': 'BaseSegDataset',
        'data_root': str(root),
        'img_suffix': '.png',
        'metainfo': dict(classes=[f'class {i}' for i in range(CLASSES)]),
        'data_prefix': dict(img_path=f'img_dir/{part}', seg_map_path=f'ann_dir/{part}'),
        'pipeline': [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')],
        **options,
    }


class FakeRunner:
    """What the hook wants of a Runner."""

    def __init__(self, work_dir, train, val=None, test=None, model=None, val_evaluator=None):
        self.work_dir = str(work_dir)
        self.optim_wrapper = SimpleNamespace(param_groups=[dict(lr=0.1)])
        self.train_loop, self.val_loop, self.hooks = SimpleNamespace(max_iters=1, max_epochs=1), None, []
        parts = dict(train=train, val=val, test=test)
        loaders = {f'{part}_dataloader': dict(dataset=cfg) for part, cfg in parts.items() if cfg}
        self.cfg = Config(dict(model=model, val_evaluator=val_evaluator, **loaders))


def labels(root, *values, part='train'):
    """Replace all masks of a part: each has the same values."""
    for path in (root / 'ann_dir' / part).iterdir():
        write(path, np.resize(np.uint8(values), SIZE))
