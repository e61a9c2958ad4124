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

``--align`` maps each face to the mean shape of the training faces by a similarity transform of its landmarks. The
probabilities are warped before the argmax. The resized release contains landmarks (``points``); ``--align FOLDER`` uses
others: ``.txt`` in HELEN's format or iBUG's ``.pts``, in pixels of the release's images.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import mmattn.utils.command
from mmattn.segmentation.conversion import label_folder, read_image
from mmattn.segmentation.face_parsing.conversion import Face, add_arguments, convert_faces, fill_in, read_lists
from mmattn.utils.conversion import Fault, find, run_converter, unpack

LISTS = {'train': ('exemplars.txt', 2000), 'val': ('tuning.txt', 230), 'test': ('testing.txt', 100)}


def read_name(line: str) -> str | None:
    """Return the ID in a line ``number , ID``."""
    match = re.fullmatch(r'\d+\s*,\s*([\w-]+)', line)
    return match and match[1]


def read_probability(path: Path) -> np.ndarray:
    """Return the probability of one label, uint8 of shape (H, W)."""
    label = read_image(path)
    if label.ndim != 2 or label.dtype != np.uint8:
        raise Fault(f'{path}: {label.dtype} of shape {label.shape}, not an 8-bit grey image')
    return label


def convert(args: argparse.Namespace) -> None:
    from mmattn.segmentation.face_parsing import HELENDataset  # late: mmseg prints when it is imported

    classes, palette = HELENDataset.METAINFO['classes'], HELENDataset.METAINFO['palette']
    fill_in(args)
    landmarks = [Path(args.align)] if args.align else []
    with label_folder(args.out_dir, args.overwrite, [args.release, *landmarks]) as scratch:
        root = find(unpack(args.release, scratch), 'exemplars.txt').parent
        listed, faults = read_lists(root, LISTS, read_name, args.allow_other_counts)
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
        points = None if args.align is None else Path(args.align or root / 'points')
        convert_faces(faces, faults, read_probability, palette, scratch / 'new', points, args)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Convert HELEN to the layout of mmseg.')
    parser.add_argument('release', type=Path, help='folder or archive SmithCVPR2013_dataset_resized')
    parser.add_argument('--out-dir', type=Path, default=Path('data/helen'), help='default: %(default)s')
    parser.add_argument(
        '--align',
        nargs='?',
        const='',
        metavar='LANDMARKS',
        help='align the faces by the landmarks in this folder; without a value, by the landmarks of the release',
    )
    add_arguments(parser, size=512)
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
