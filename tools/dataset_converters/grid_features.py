"""Extract grid features of images with a backbone of mmseg, mmdet or another registry, for visual questions.

    python tools/dataset_converters/grid_features.py CONFIG CHECKPOINT IMAGES [IMAGES …] --out-dir data/mine/regions

IMAGES are files, or folders that are searched for images, subfolders included. The id of an image in the store is its
file name without suffix, or with ``--image-id last-number`` the number in it, as annotations of COCO have it. An image
is resized to a square of --size pixels, or keeps its size with ``--keep-size``; a feature map of the frozen backbone is
averaged in the S × S cells of --grid, which are the regions, row by row; see ``mmattn.language.regions.extractors``.
With ``--pyramid``, the regions are the cells of all grids of 1 to S rows and 1 to S columns; the first is the whole
image. Output, see ``mmattn.language.regions.region_store``.

``model`` of CONFIG has a ``backbone``, or is one; then, the config also has ``data_preprocessor``. CHECKPOINT is that
of the whole model or of the backbone; heads are neither built nor loaded.

All images are checked first. An interrupted run continues with the same command. All faults of the input are reported
together, on stderr, with exit code 1.
"""

import argparse
from collections.abc import Sequence

import torch
from mmengine.registry import init_default_scope

import mmattn.utils.command
from mmattn.engine import add_config_options, check_checkpoint, load_config
from mmattn.language.regions.conversion import (
    add_image_arguments,
    checked_images,
    describe_model_source,
    read_images,
    write_store,
)
from mmattn.language.regions.extractors import GridExtractor, load_backbone
from mmattn.utils.conversion import Fault, run_converter
from mmattn.utils.devices import check_device


def convert(args: argparse.Namespace) -> None:
    check_checkpoint(args.checkpoint)
    device = check_device(args.device)
    cfg = load_config(args.config, args.cfg_options)
    images = checked_images(args.images, args.image_id)
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    size = None if args.keep_size else args.size
    options = dict(size=size, level=args.level, grid=args.grid, pyramid=args.pyramid)
    try:
        backbone, preprocessor = load_backbone(cfg, args.checkpoint)
        extractor = GridExtractor(backbone.to(device), preprocessor.to(device), **options)
        extractor.pool(torch.zeros(3, args.size, args.size, dtype=torch.uint8))  # a fault of the options, not of images
    except ValueError as error:
        raise Fault(f'{args.config}: {error}') from error
    source = describe_model_source('grid_features.py', args, [*images.values()], dict(options, image_id=args.image_id))
    write_store(args, source, read_images(images, extractor))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Extract grid features of images with a backbone.')
    parser.add_argument('config', help='path of the config of a model with a backbone, or of a backbone')
    parser.add_argument('checkpoint', help='path or URL of its checkpoint')
    add_image_arguments(parser)
    parser.add_argument(
        '--size', type=int, default=448, metavar='PIXELS', help='side of the resized image; default: %(default)s'
    )
    parser.add_argument('--keep-size', action='store_true', help='do not resize images')
    parser.add_argument(
        '--level', type=int, default=-1, help='feature map of the backbone, from 0; default: %(default)s, the last'
    )
    parser.add_argument('--grid', type=int, default=7, metavar='S', help='cells per side; default: %(default)s')
    parser.add_argument(
        '--pyramid', action='store_true', help='the cells of all grids of 1 to S rows and columns, for phrase grounding'
    )
    add_config_options(parser)
    return run_converter(convert, parser, argv, overwrites=False)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
