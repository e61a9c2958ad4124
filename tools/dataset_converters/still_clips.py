"""Make clips of one frame from photographs with masks, to train SST on more objects than your videos show.

    python tools/dataset_converters/still_clips.py --images data/camvid/img_dir/train \\
        --masks data/camvid/ann_dir/train --objects 8 9 10 --out-dir data/stills

Image and mask have the same name, with any suffix, in the same subfolder. The masks are label maps or index masks.
Every connected region of a value in ``--objects`` becomes an object, the largest first::

    IMAGES/train/NAME.jpg       OUT/JPEGImages/train_NAME/00000.jpg     unchanged
    MASKS/train/NAME.png        OUT/Annotations/train_NAME/00000.png    ids 1, 2, … of the objects, 0 elsewhere

Photographs without an object are left out.

``mmattn.VideoFolderDataset`` reads OUT. In training, ``SampleClip`` repeats the frame, ``ClipRandomAffine(drift=1)``
moves the scene, and ``ClipCopyPaste`` moves objects of other photographs over it.

Args:
    objects (VALUE[,VALUE]): values of objects; with commas, such as ``1,3,4``, they are one object where they
        touch. Default: every value except 0 and 255
    min_area: smallest share of the photograph of an object
    max_objects: most objects of a photograph
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np

from common.conversion import OutDir, Overwrite, convert_all, converter, output_folder
from common.segmentation import copy_image, find_pairs
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError
from mmattn.video.frame_files import SUFFIXES, read_frame
from mmattn.video.masks import VOID, read_mask, write_mask

FOLDERS = 'JPEGImages', 'Annotations'


def find_objects(mask: np.ndarray, groups: Sequence[Sequence[int]], min_area: float, max_objects: int) -> np.ndarray:
    """Number the connected regions of a mask.

    Args:
        mask (np.ndarray): uint8 of shape (H, W), the values of the file.
        groups (sequence): values that make one object where they touch. Empty: every value except 0 and 255.
        min_area (float): smallest share of the image, 0 to 1. Smaller regions are background.
        max_objects (int): the most objects; the smallest regions of more are background.

    Returns:
        np.ndarray: uint8 of shape (H, W), 1 for the largest region, then 2, and so on.
    """
    groups = groups or [[value] for value in np.unique(mask).tolist() if value not in (0, VOID)]
    regions = []
    for values in groups:
        count, numbers, stats, _ = cv2.connectedComponentsWithStats(np.isin(mask, values).astype(np.uint8))
        areas = stats[:, cv2.CC_STAT_AREA]
        regions += [(areas[i], numbers == i) for i in range(1, count) if areas[i] >= min_area * mask.size]
    ids = np.zeros(mask.shape, np.uint8)
    for number, (_, region) in enumerate(sorted(regions, key=lambda pair: -pair[0])[:max_objects], 1):
        ids[region] = number
    return ids


def parse_values(text: str) -> list[int]:
    """Parse values of masks, 1 to 254, such as ``1,3,4``; void pixels, 255, are read as 0."""
    values = [int(value) for value in text.split(',')]
    if not all(0 < value < VOID for value in values):
        raise ValueError
    return values


@converter
def main(
    *,
    images: Path,
    masks: Path,
    out_dir: OutDir,
    objects: Annotated[list[list[int]], dict(type=parse_values)] = [],
    min_area: float = 0.002,
    max_objects: int = 5,
    overwrite: Overwrite = False,
) -> None:
    if not 0 <= min_area < 1:
        raise FaultsError(f'--min-area must be at least 0 and below 1; got {min_area}')
    if not 1 <= max_objects < VOID:
        raise FaultsError(f'--max-objects must be 1 to {VOID - 1}; got {max_objects}')
    with output_folder(out_dir, overwrite, [images, masks], FOLDERS) as scratch:
        faults = Faults()
        image_paths, mask_paths = find_pairs(images, masks, SUFFIXES, faults)
        clips = {'_'.join(name.parts): name for name in image_paths if name in mask_paths}
        if len(clips) < sum(name in mask_paths for name in image_paths):
            faults.add(images, 'two photographs have one clip: a/b.jpg and a_b.jpg are both a_b')
        frames, annotations = (scratch / 'new' / name for name in FOLDERS)
        written: list[int] = []

        def convert_pair(clip: str) -> None:
            image, path = image_paths[clips[clip]], mask_paths[clips[clip]]
            try:
                mask, size = read_mask(path), read_frame(image).shape[:2]
            except ValueError as error:
                raise FaultsError(str(error)) from error
            if mask.shape != size:
                raise FaultsError(path, f'{mask.shape[1]}×{mask.shape[0]}, but {image} is {size[1]}×{size[0]}')
            ids = find_objects(mask, objects, min_area, max_objects)
            if ids.any() and not faults:
                write_mask(annotations / clip / '00000.png', ids)
                copy_image(image, frames / clip / f'00000{image.suffix.lower()}')
                written.append(int(ids.max()))

        faults.include(convert_all([*clips], convert_pair))
        if not faults and not written:
            faults.add(masks, 'no mask shows an object')
        faults.check()
    print(f'{len(written)} clips with {sum(written)} objects; {len(clips) - len(written)} photographs show none')


if __name__ == '__main__':
    run(main)
