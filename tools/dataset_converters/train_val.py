"""Split converted images into training and validation, and write a config for them."""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from conversion import Fault

PARTS = ('train', 'val')
CONFIG = """\
# Written by tools/dataset_converters/color_labels.py; train with tools/train.py. The model is small and starts from
# scratch, for a first try on a CPU. For a full training, use another config as _base_, such as
# 'mmattn::bi_cc/bi-cc_r50-d8_1xb8-4k_camvid-360x360.py'.
_base_ = ['mmattn::bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py']
metainfo = dict(classes={classes!r}, palette={palette!r})
dataset = dict(data_root='{{{{ fileDirname }}}}', metainfo=metainfo, img_suffix={suffix!r})
train_dataloader = dict(dataset=dataset)
val_dataloader = dict(dataset=dataset)
test_dataloader = val_dataloader
model = dict(decode_head=dict(num_classes={count}), auxiliary_head=dict(num_classes={count}))
work_dir = {work_dir!r}
"""


def choose_validation(classes: Mapping[Path, Collection[int]], fraction: float, seed: int) -> set[Path]:
    """Choose images for validation by a hash of their names. Training keeps at least one image of every class.

    Args:
        classes (mapping): name of an image → its classes.
        fraction (float): share of the images for validation, in (0, 1). At least one image is chosen, and one is not.
        seed (int): seed of the choice.

    Raises:
        Fault: there are fewer than two images, or every image is the only one of some class.
    """
    if len(classes) < 2:
        raise Fault(f'--val-fraction: training and validation require one image each; got {len(classes)}')
    count = min(max(1, round(fraction * len(classes))), len(classes) - 1)
    left = Counter(label for labels in classes.values() for label in labels)
    chosen: set[Path] = set()
    for name in sorted(classes, key=lambda name: hashlib.sha256(f'{seed} {name.as_posix()}'.encode()).digest()):
        if len(chosen) < count and all(left[label] > 1 for label in classes[name]):
            chosen.add(name)
            left.subtract(classes[name])
    if not chosen:
        raise Fault('--val-fraction: every image has a class that no other image has, so training requires all of them')
    if len(chosen) < count:
        print(f'{len(chosen)} instead of {count} images are for validation: training requires an image of every class')
    return chosen


def divide(source: Path, target: Path, validation: Collection[Path]) -> None:
    """Move ``source/{img_dir,ann_dir}/NAME.*`` to ``target/{img_dir,ann_dir}/{train,val}/NAME.*``."""
    for kind in ('img_dir', 'ann_dir'):
        for path in [path for path in (source / kind).rglob('*') if path.is_file()]:
            relative = path.relative_to(source / kind)
            moved = target / kind / PARTS[relative.with_suffix('') in validation] / relative
            moved.parent.mkdir(parents=True, exist_ok=True)
            path.rename(moved)


def config_text(name: str, suffix: str, classes: Sequence[str], palette: Sequence[Sequence[int]]) -> str:
    """Return a config for the data in its own folder, in the layout of :func:`divide`.

    Args:
        name (str): name of the work dir.
        suffix (str): suffix of the images, such as '.jpg'.
        classes (sequence of str): names of the classes, in the order of their labels.
        palette (sequence): colours of the classes, RGB.
    """
    return CONFIG.format(
        classes=tuple(classes), palette=palette, suffix=suffix, count=len(classes), work_dir=f'work_dirs/{name}'
    )
