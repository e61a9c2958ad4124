"""Convert HELEN with the part labels of Smith et al. (2013) to the layout of mmseg.

    python tools/dataset_converters/helen.py SmithCVPR2013_dataset_resized.zip [--out-dir data/helen]
    python tools/dataset_converters/helen.py SmithCVPR2013_dataset_resized.zip --align --out-dir data/helen_aligned

The release is a folder, or a zip or tar archive. It contains::

    images/ID.jpg
    labels/ID/ID_lblXX.png                      XX = 00…10, the probability of a label in 8 bits
    exemplars.txt, tuning.txt, testing.txt      2,000, 230 and 100 lines ``number , ID``: train, val and test

Output::

    OUT/img_dir/{train,val,test}/ID.jpg         unchanged; with --align, compressed again
    OUT/ann_dir/{train,val,test}/ID.png         the most probable label, 0…10, with a palette
    OUT/alignment.json                          with --align: transforms, to map predictions back

Args:
    align (LANDMARKS): map each face to the mean shape of the training faces by a similarity transform of its landmarks,
        those of the resized release (``points``) or, with a value, those in a folder: ``.txt`` in HELEN's format or
        iBUG's ``.pts``, in pixels of the release's images. The probabilities are warped before the argmax
    size: side of the images with ``--align``, in pixels; default: 512
"""

import re
from pathlib import Path
from typing import Annotated

import numpy as np

from common.archives import unpack
from common.conversion import AllowOtherCounts, OutDir, Overwrite, converter, find
from common.face_parsing import Face, Margin, alignment_options, convert_faces, read_lists
from common.segmentation import label_folder, read_image
from mmattn.utils.command import run
from mmattn.utils.faults import Faults, FaultsError

LISTS = {'train': ('exemplars.txt', 2000), 'val': ('tuning.txt', 230), 'test': ('testing.txt', 100)}


def read_name(line: str) -> str | None:
    """Return the ID in a line ``number , ID``."""
    match = re.fullmatch(r'\d+\s*,\s*([\w-]+)', line)
    return match and match[1]


def read_probability(path: Path) -> np.ndarray:
    """Return the probability of one label, uint8 of shape (H, W)."""
    label = read_image(path)
    if label.ndim != 2 or label.dtype != np.uint8:
        raise FaultsError(path, f'{label.dtype} of shape {label.shape}, not an 8-bit grey image')
    return label


@converter
def main(
    release: Path,
    *,
    out_dir: OutDir = Path('data/helen'),
    align: Annotated[str | None, dict(nargs='?', const='')] = None,
    size: int | None = None,
    margin: Margin = None,
    allow_other_counts: AllowOtherCounts = False,
    overwrite: Overwrite = False,
) -> None:
    from mmattn.segmentation.face_parsing import HELENDataset  # late: mmseg prints when it is imported

    classes, palette = HELENDataset.METAINFO['classes'], HELENDataset.METAINFO['palette']
    size, margin = alignment_options(align, size, margin, 512)
    landmarks = [Path(align)] if align else []
    with label_folder(out_dir, overwrite, [release, *landmarks]) as scratch:
        root = find(unpack(release, scratch), 'exemplars.txt').parent
        faults = Faults()
        listed = read_lists(root, LISTS, read_name, allow_other_counts, faults)
        faces = [
            Face(
                split,
                name,
                location,
                root / 'images' / f'{name}.jpg',
                tuple(root / 'labels' / name / f'{name}_lbl{i:02}.png' for i in range(len(classes))),
            )
            for split, name, location in listed
        ]
        points = None if align is None else Path(align or root / 'points')
        convert_faces(faces, faults, read_probability, palette, scratch / 'new', points, size, margin)


if __name__ == '__main__':
    run(main)
