"""Convert FASSEG's faces at many poses to the layout of mmseg, in the split of our own runs.

    python tools/dataset_converters/fasseg.py FASSEG-repository-master.zip [--out-dir data/fasseg]

The release is a folder, or a zip or tar archive, of https://github.com/massimomauro/FASSEG-repository. It contains, for
each pose from -90 to +90 degrees::

    V3/{Train,Test}_RGB/POSE/personneNN….bmp    photographs
    V3/{Train,Test}_labels/POSE/personneNN….bmp labels as colours; some photographs for testing have none

A random split would have the same person in training and test. This one has persons 01 to 06 in ``train``, 07 in
``val``, and 08 to 15 in ``test``. Output, 256 pixels high::

    OUT/img_dir/{train,val,test}/POSE_personneNN….jpg   quality 95; + and - become p and m
    OUT/ann_dir/{train,val,test}/POSE_personneNN….png   background, skin, hair, eyes, nose, mouth, with a palette

A pixel has the label of the nearest colour. A photograph whose labels have another size is left out, with a warning.
"""

import math
import re
import sys
from pathlib import Path

import numpy as np
from mmengine.config import Config
from PIL import Image

from common.archives import unpack
from common.conversion import OutDir, Overwrite, convert_all, converter, files_below, find
from common.segmentation import (
    Palette,
    check_counts,
    label_colours,
    label_folder,
    read_image,
    save_pair,
    size_text,
)
from mmattn.utils import config_path
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError

COUNTS = {'train': 156, 'val': 26, 'test': 92}  # of our runs
COLOURS = {  # in the order of the labels
    'background': (255, 0, 0),
    'skin': (255, 255, 0),
    'hair': (127, 0, 0),
    'eyes': (0, 0, 255),
    'nose': (0, 255, 255),
    'mouth': (0, 255, 0),
}
PALETTE = Palette(tuple(COLOURS), np.array([*COLOURS.values()]), np.arange(len(COLOURS), dtype=np.uint8))
HEIGHT = 256


def read_labels(path: Path) -> np.ndarray:
    """Return the label of the nearest colour, uint8 of shape (H, W)."""
    mask = read_image(path, 'RGB')
    exact = (label_colours(mask, PALETTE, 0)[0] != 255).mean()
    if exact < 0.9:
        raise FaultsError(path, f'only {exact:.0%} of the pixels have a colour of FASSEG; is it a photograph?')
    return label_colours(mask, PALETTE, math.inf)[0]


def choose_split(path: Path) -> str:
    """Return the split of a photograph by the number of its person."""
    person = re.match(r'personne(\d\d)', path.name)
    if not person:
        raise FaultsError(path, 'the name must begin with the person, such as personne01')
    number = int(person[1])
    return 'train' if number < 7 else 'val' if number == 7 else 'test'


@converter
def main(release: Path, *, out_dir: OutDir = Path('data/fasseg'), overwrite: Overwrite = False) -> None:
    palette = Config.fromfile(config_path('_base_/datasets/fasseg.py')).metainfo.palette
    with label_folder(out_dir, overwrite, [release]) as scratch:
        root = find(unpack(release, scratch), 'V3/Train_RGB').parent
        pairs, splits = [], []
        for part in ('Train', 'Test'):
            images = {
                path.relative_to(root / f'{part}_RGB').with_suffix(''): path
                for path in files_below(root / f'{part}_RGB')
            }
            pairs += [
                (images.get(path.relative_to(root / f'{part}_labels').with_suffix('')), path)
                for path in files_below(root / f'{part}_labels')
                if path.suffix == '.bmp'
            ]

        def convert_pair(pair: tuple[Path | None, Path]) -> None:
            image, mask = pair
            if image is None:
                raise FaultsError(mask, 'no photograph of this name')
            split, labels, pixels = choose_split(mask), read_labels(mask), read_image(image, 'RGB')
            if labels.shape != pixels.shape[:2]:
                print(
                    f'warning: {mask}: {size_text(labels)}, left out: its image has {size_text(pixels)}',
                    file=sys.stderr,
                )
                return
            size = max(1, round(labels.shape[1] * HEIGHT / labels.shape[0])), HEIGHT
            name = f'{mask.parent.name}_{mask.stem}'.replace('+', 'p').replace('-', 'm')
            pixels = np.array(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))
            labels = np.array(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST))
            save_pair(scratch / 'new', Path(split, name), pixels, labels, palette)
            splits.append(split)

        convert_all(pairs, convert_pair).check()
        check_counts(splits, COUNTS, allow_others=True, faults=Faults())


if __name__ == '__main__':
    run(main)
