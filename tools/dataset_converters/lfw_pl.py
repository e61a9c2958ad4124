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

``--align LANDMARKS`` maps each face to the mean shape of the training faces by a similarity transform of its landmarks:
``NAME_0001.pts`` in iBUG's format, or ``NAME_0001.txt`` with one ``x , y`` per line. The release contains no landmarks.
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
        raise Fault(
            f'{path}: {other.sum()} pixels are not pure red, green or blue, the first is '
            f'{",".join(map(str, label[other][0, ::-1]))}'
        )
    return label


def convert(args: argparse.Namespace) -> None:
    from mmattn.segmentation.face_parsing import LFWPLDataset  # late: mmseg prints when it is imported

    fill_in(args)
    sources = [args.images, args.labels, args.lists, *([args.align] if args.align else [])]
    with label_folder(args.out_dir, args.overwrite, sources) as scratch:
        images = find(unpack(args.images, scratch), '[!._]*_[0-9]*.jpg').parent.parent
        labels = find(unpack(args.labels, scratch), '[!._]*_[0-9]*.ppm').parent
        listed, faults = read_lists(args.lists, LISTS, read_name, args.allow_other_counts)
        faces = [
            Face(split, name, location, images / name.rpartition('_')[0] / f'{name}.jpg', (labels / f'{name}.ppm',))
            for split, name, location in listed
        ]
        convert_faces(faces, faults, read_colors, LFWPLDataset.METAINFO['palette'], scratch / 'new', args.align, args)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Convert LFW-PL to the layout of mmseg.')
    parser.add_argument('--images', type=Path, required=True, help='folder or archive lfw-funneled')
    parser.add_argument('--labels', type=Path, required=True, help='folder or archive parts_lfw_funneled_gt_images')
    parser.add_argument('--lists', type=Path, required=True, help='folder with parts_train.txt and the other two')
    parser.add_argument('--out-dir', type=Path, default=Path('data/lfw_pl'), help='default: %(default)s')
    parser.add_argument(
        '--align', type=Path, metavar='LANDMARKS', help='align the faces by the landmarks in this folder'
    )
    add_arguments(parser, size=250)
    return run_converter(convert, parser, argv)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
