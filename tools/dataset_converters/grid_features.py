"""Extract grid features of images with a backbone of mmseg, mmdet or another registry, for visual questions.

    python tools/dataset_converters/grid_features.py CONFIG CHECKPOINT IMAGES [IMAGES …] --out-dir data/mine/regions

IMAGES are files, or folders that are searched for images, subfolders included. The id of an image in the store is its
file name without suffix, or with ``--image-id last-number`` the number in it, as annotations of COCO have it. An image
is resized to a square. A feature map of the frozen backbone is averaged in S × S cells, which are the regions, row by
row; see ``common/region_extractors.py``. Output, see ``mmattn.language.regions.region_store``.

``model`` of CONFIG has a ``backbone``, or is one; then, the config also has ``data_preprocessor``. CHECKPOINT is that
of the whole model or of the backbone; heads are neither built nor loaded.

All images are checked first. An interrupted run continues with the same command. All faults of the input are reported
together, on stderr, with exit code 1.

Args:
    size (PIXELS): side of the resized image
    keep_size: do not resize images
    level: feature map of the backbone, from 0; default: -1, the last
    grid (S): cells per side
    pyramid: the cells of all grids of 1 to S rows and columns, for phrase grounding; the first is the whole image
"""

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

from common.conversion import converter
from common.region_extraction import ExtractionOptions, extract_images
from common.region_extractors import GridExtractor, load_backbone
from mmattn.utils.command import run
from mmattn.utils.faults import FaultsError


@converter
def main(
    options: ExtractionOptions,
    *,
    size: int = 448,
    keep_size: bool = False,
    level: int = -1,
    grid: int = 7,
    pyramid: bool = False,
) -> None:
    settings = dict(size=None if keep_size else size, level=level, grid=grid, pyramid=pyramid)

    def load(cfg: Config, device: torch.device) -> GridExtractor:
        init_default_scope(cfg.get('default_scope') or 'mmengine')
        try:
            backbone, preprocessor = load_backbone(cfg, options.checkpoint)
            extractor = GridExtractor(backbone.to(device), preprocessor.to(device), **settings)
            extractor.pool(torch.zeros(3, size, size, dtype=torch.uint8))  # a fault of the options, not of images
        except ValueError as error:
            raise FaultsError(options.config, str(error)) from error
        return extractor

    extract_images('grid_features.py', options, settings, load)


if __name__ == '__main__':
    run(main)
