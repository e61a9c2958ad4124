"""Extract region features of images with a detector of mmdet, for captioning and visual question answering.

    python tools/dataset_converters/region_features.py CONFIG CHECKPOINT IMAGES [IMAGES …] --out-dir data/mine/regions

IMAGES are files, or folders that are searched for images, subfolders included. The id of an image in the store is its
file name without suffix, or with ``--image-id last-number`` the number in it, as annotations of COCO have it. The
regions are the detections of the highest scores, and their features are those of the detector's own RoI head, or, for a
one-stage detector, pooled from its neck; see ``mmattn.language.regions.extractors``. Output, see
``mmattn.language.regions.region_store``.

All images are checked first. An interrupted run continues with the same command. All faults of the input are reported
together, on stderr, with exit code 1. An image in which the detector finds nothing is a fault; ``--whole-image`` gives
every image a region.
"""

import argparse
from collections.abc import Sequence

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import nn

import mmattn.utils.command
from mmattn._compat import load_weights
from mmattn.engine import add_config_options, check_checkpoint, inference_pipeline, load_config, read_checkpoint
from mmattn.language.regions.conversion import (
    add_image_arguments,
    checked_images,
    describe_model_source,
    read_images,
    write_store,
)
from mmattn.language.regions.extractors import RegionExtractor, prepare_config
from mmattn.utils.command import COMPILE_OPERATORS, has_mmcv_operators
from mmattn.utils.conversion import Fault, run_converter
from mmattn.utils.devices import check_device


def load_detector(cfg: Config, checkpoint: str, device: torch.device, max_regions: int) -> nn.Module:
    """Build the detector of a config, with the weights of a checkpoint, which must fit."""
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    prepare_config(cfg.model, max_regions)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    load_weights(model, read_checkpoint(checkpoint))
    return model.to(device).eval()


def convert(args: argparse.Namespace) -> None:
    if not has_mmcv_operators():
        raise Fault(
            f'region features require the operators of mmcv, which is installed without them. {COMPILE_OPERATORS}'
        )
    check_checkpoint(args.checkpoint)
    device = check_device(args.device)
    cfg = load_config(args.config, args.cfg_options)
    images = checked_images(args.images, args.image_id)
    model = load_detector(cfg, args.checkpoint, device, args.max_regions)
    options = dict(
        min_regions=args.min_regions,
        max_regions=args.max_regions,
        score_thr=args.score_thr,
        whole_image=args.whole_image,
    )
    extractor = RegionExtractor(model, inference_pipeline(cfg), **options)
    source = describe_model_source(
        'region_features.py', args, [*images.values()], dict(options, image_id=args.image_id)
    )
    write_store(args, source, read_images(images, extractor))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Extract region features of images with a detector of mmdet.')
    parser.add_argument('config', help='path of the config of the detector')
    parser.add_argument('checkpoint', help='path or URL of its checkpoint')
    add_image_arguments(parser)
    parser.add_argument('--min-regions', type=int, default=10, help='default: %(default)s')
    parser.add_argument('--max-regions', type=int, default=100, help='default: %(default)s')
    parser.add_argument(
        '--score-thr', type=float, default=0.2, help='score of further regions than the first (default: %(default)s)'
    )
    parser.add_argument('--whole-image', action='store_true', help='the whole image is the first region, in addition')
    add_config_options(parser)
    return run_converter(convert, parser, argv, overwrites=False)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
