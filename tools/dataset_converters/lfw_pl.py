"""Convert LFW-PL, the part labels of Kae et al. (2013), to the layout of mmseg.

    python tools/dataset_converters/lfw_pl.py --images lfw-funneled.tgz --labels parts_lfw_funneled_gt_images.tgz \\
        --lists FOLDER [--out-dir data/lfw_pl]

Images and labels are folders, or tar or zip archives::

    IMAGES/NAME/NAME_0001.jpg
    LABELS/NAME_0001.ppm                        hair pure red, skin pure green, background pure blue
    LISTS/parts_train.txt, LISTS/parts_validation.txt, LISTS/parts_test.txt
                                                1,500, 500 and 927 lines ``NAME number``

Output::

    OUT/img_dir/{train,val,test}/NAME_0001.jpg  unchanged; with --align, compressed again
    OUT/ann_dir/{train,val,test}/NAME_0001.png  0 background, 1 skin, 2 hair, with a palette
    OUT/alignment.json                          with --align: transforms, to map predictions back

Args:
    images: folder or archive lfw-funneled
    labels: folder or archive parts_lfw_funneled_gt_images
    lists: folder with parts_train.txt and the other two
    align (LANDMARKS): map each face to the mean shape of the training faces by a similarity transform of its landmarks
        in this folder: ``NAME_0001.pts`` in iBUG's format, or ``NAME_0001.txt`` with one ``x , y`` per line. The
        release contains none
    size: side of the images with ``--align``, in pixels; default: 250
"""

import re
from pathlib import Path

import numpy as np

from common.archives import unpack
from common.conversion import AllowOtherCounts, OutDir, Overwrite, converter, find
from common.face_parsing import Face, Margin, alignment_options, convert_faces, read_lists
from common.segmentation import label_folder, read_image
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError

LISTS = {'train': ('parts_train.txt', 1500), 'val': ('parts_validation.txt', 500), 'test': ('parts_test.txt', 927)}


def read_name(line: str) -> str | None:
    """Return the image's name in a line ``NAME number``."""
    match = re.fullmatch(r'([\w.-]+)\s+(\d+)', line)
    return match and f'{match[1]}_{int(match[2]):04}'


def read_colors(path: Path) -> np.ndarray:
    """Return one-hot labels, 0 or 255, uint8 of shape (H, W, 3): the blue, green and red channels."""
    label = read_image(path, 'RGB')[..., ::-1]
    other = (np.sort(label) != (0, 0, 255)).any(-1)
    if other.any():
        raise FaultsError(
            path,
            f'{other.sum()} pixels are not pure red, green or blue, the first is '
            f'{",".join(map(str, label[other][0, ::-1]))}',
        )
    return label


@converter
def main(
    *,
    images: Path,
    labels: Path,
    lists: Path,
    out_dir: OutDir = Path('data/lfw_pl'),
    align: Path | None = None,
    size: int | None = None,
    margin: Margin = None,
    allow_other_counts: AllowOtherCounts = False,
    overwrite: Overwrite = False,
) -> None:
    from mmattn.segmentation.face_parsing import LFWPLDataset  # late: mmseg prints when it is imported

    size, margin = alignment_options(align, size, margin, 250)
    sources = [images, labels, lists, *([align] if align else [])]
    with label_folder(out_dir, overwrite, sources) as scratch:
        photographs = find(unpack(images, scratch), '[!._]*_[0-9]*.jpg').parent.parent
        masks = find(unpack(labels, scratch), '[!._]*_[0-9]*.ppm').parent
        faults = Faults()
        listed = read_lists(lists, LISTS, read_name, allow_other_counts, faults)
        faces = [
            Face(split, name, location, photographs / name.rpartition('_')[0] / f'{name}.jpg', (masks / f'{name}.ppm',))
            for split, name, location in listed
        ]
        convert_faces(
            faces, faults, read_colors, LFWPLDataset.METAINFO['palette'], scratch / 'new', align, size, margin
        )


if __name__ == '__main__':
    run(main)
