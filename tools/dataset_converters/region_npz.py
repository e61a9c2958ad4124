"""Convert region features in NumPy archives to a store of region features.

    python tools/dataset_converters/region_npz.py features_train.npz [NPZ …] --out-dir data/flickr8k/regions
    python tools/dataset_converters/region_npz.py features_val.npz --id-format 'image{}' --out-dir data/daquar/regions

Each archive has the regions of N images, padded to the largest number n, under these names::

    features or feat            (N, n, D), floating-point, or integers that are multiplied by ``step``
    boxes                       (N, n, 4): left, top, right, bottom, in pixels of ``size``
    image_id or image_ids       (N,), integers or strings
    size or sizes               (N, 2): width and height of the images
    step                        optional: a number, or (D,)
    num_regions                 optional: (N,), numbers of regions that are not padding
    classes or cls              optional: (N, n); the largest number of an unsigned type is none, and becomes -1
    scores or score             optional: (N, n); those of an integer type are divided by its largest number

Several archives become one store; see ``mmattn.language.regions.region_store``. An interrupted run continues with the
same command. All faults of the input are reported together, on stderr, with exit code 1.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import mmattn.utils.command
from mmattn.language.regions.conversion import add_arguments, add_repairs, describe_source, write_store
from mmattn.language.regions.region_archives import image_sizes, read_images
from mmattn.utils.conversion import Fault, run_converter


def check_format(text: str) -> str:
    try:
        different = text.format(1) != text.format(2)
    except (LookupError, AttributeError) as error:
        raise ValueError from error
    if not different:
        raise ValueError
    return text


check_format.__name__ = 'format'  # in the message of argparse


def convert(args: argparse.Namespace) -> None:
    source = describe_source(args.npz, f'--id-format {args.id_format}')
    faults: list[str] = []
    image_sizes(args.npz, faults)
    if faults:
        raise Fault(*faults)
    write_store(args, source, read_images(args.npz, args.id_format), args.npz)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Convert region features in NumPy archives to a store.')
    parser.add_argument('npz', type=Path, nargs='+', help='archive with the regions of images')
    parser.add_argument(
        '--id-format',
        type=check_format,
        default='{}',
        metavar='TEXT',
        help="id of an image in the store, with {} for its image_id, such as 'image{}' (default: %(default)s)",
    )
    add_arguments(parser)
    add_repairs(parser)
    return run_converter(convert, parser, argv, overwrites=False)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
