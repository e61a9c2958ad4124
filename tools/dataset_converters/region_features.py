"""Extract region features of images with a detector of mmdet, for captioning and visual question answering.

    python tools/dataset_converters/region_features.py CONFIG CHECKPOINT IMAGES [IMAGES …] --out-dir data/mine/regions

IMAGES are files, or folders that are searched for images, subfolders included. The id of an image in the store is its
file name without suffix, or with ``--image-id last-number`` the number in it, as annotations of COCO have it. The
regions are the detections of the highest scores, and their features are those of the detector's own RoI head, or, for a
one-stage detector, pooled from its neck; see ``common/region_extractors.py``. Output, see
``mmattn.language.regions.region_store``.

All images are checked first. An interrupted run continues with the same command. All faults of the input are reported
together, on stderr, with exit code 1. An image in which the detector finds nothing is a fault.

Args:
    score_thr: score of further regions than the first
    whole_image: the whole image is the first region, in addition; so every image has one
"""

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope

from common.conversion import converter
from common.region_extraction import ExtractionOptions, extract_images
from common.region_extractors import RegionExtractor, prepare_config
from mmattn._compat import load_weights
from mmattn.engine import inference_pipeline, read_checkpoint
from mmattn.utils.command import COMPILE_OPERATORS, has_mmcv_operators, run
from mmattn.utils.faults import FaultsError


@converter
def main(
    options: ExtractionOptions,
    *,
    min_regions: int = 10,
    max_regions: int = 100,
    score_thr: float = 0.2,
    whole_image: bool = False,
) -> None:
    if not has_mmcv_operators():
        raise FaultsError(
            f'region features require the operators of mmcv, which is installed without them. {COMPILE_OPERATORS}'
        )
    settings = dict(min_regions=min_regions, max_regions=max_regions, score_thr=score_thr, whole_image=whole_image)

    def load(cfg: Config, device: torch.device) -> RegionExtractor:
        init_default_scope(cfg.get('default_scope', 'mmdet'))
        prepare_config(cfg.model, max_regions)
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
        load_weights(model, read_checkpoint(options.checkpoint), options.checkpoint)
        return RegionExtractor(model.to(device).eval(), inference_pipeline(cfg), **settings)

    extract_images('region_features.py', options, settings, load)


if __name__ == '__main__':
    run(main)
