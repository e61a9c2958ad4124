"""Grid features from a backbone: an image is divided into cells, each of which is a region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mmcv
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn._compat import load_weights
from mmattn.engine import check_checkpoint
from mmattn.utils.checks import check_count

from .region_store import Regions, grid_boxes


def load_backbone(cfg: Config, checkpoint: str) -> tuple[nn.Module, nn.Module]:
    """Build the backbone of a config and its data preprocessor, and load the weights of the backbone.

    Args:
        cfg (Config): ``model`` is a model with a ``backbone``, such as one of mmseg or mmdet, or a backbone alone.
            ``data_preprocessor`` is that of the model, or of the config.
        checkpoint (str): path or URL, of the whole model, whose names start with ``backbone.``, or of the backbone
            alone. Weights of other parts are not read, such as those of a classifier.

    Returns:
        tuple[nn.Module, nn.Module]: backbone, frozen and in evaluation mode, and data preprocessor.

    Raises:
        OSError: the checkpoint does not exist.
        RuntimeError: a part of the backbone has other weights in the checkpoint; the message lists the keys.
        ValueError: the file is not a checkpoint, or contains objects that may run code; or the config has no data
            preprocessor.
    """
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor')
    if not preprocessor:
        raise ValueError('the config must have data_preprocessor, with the mean and std of the pixels; it has none')
    backbone = revert_sync_batchnorm(MODELS.build(cfg.model.get('backbone', cfg.model)))
    check_checkpoint(checkpoint)
    found = CheckpointLoader.load_checkpoint(checkpoint, 'cpu')
    found = found.get('state_dict', found)
    prefix = 'backbone.' if any(name.startswith('backbone.') for name in found) else ''
    weights = {name.removeprefix(prefix): x for name, x in found.items() if name.startswith(prefix)}
    parts = {name.partition('.')[0] for name in backbone.state_dict()}
    load_weights(backbone, {name: x for name, x in weights.items() if name.partition('.')[0] in parts})
    backbone.requires_grad_(False).eval()  # ``train`` of many backbones returns None
    return backbone, MODELS.build(preprocessor)


class GridExtractor:
    """Compute a feature map of a whole image, and average it in the S × S cells of a grid.

    The image is resized to a square, without its aspect ratio. A cell is a region; its box is in pixels of the image.

    Args:
        backbone (nn.Module): returns a feature map ``(1, C, h, w)``, or several, from the finest to the coarsest; in
            evaluation mode.
        preprocessor (nn.Module): data preprocessor of mmengine, mmseg or mmdet, for images in BGR order.
        size (int): side of the resized image, in pixels. Defaults to 448.
        level (int): index of the feature map. Defaults to -1, the last.
        grid (int): cells S per side. Defaults to 7.
        pyramid (bool): the regions are the cells of all grids of 1 to S rows and 1 to S columns, (S (S + 1) / 2)², so
            that boxes have several sizes and shapes; the first is the whole image. Defaults to False.

    Raises:
        TypeError: ``size`` or ``grid`` is not an integer.
        ValueError: ``size`` or ``grid`` is below 1; or, for an image, the preprocessor pads it, there is no such level,
            or its map has fewer positions than the grid.

    Example:
        >>> from mmengine.model import ImgDataPreprocessor
        >>> extractor = GridExtractor(nn.Conv2d(3, 8, 4, stride=4), ImgDataPreprocessor(), size=32, grid=4)
        >>> extractor.pool(torch.zeros(3, 32, 32)).shape
        torch.Size([16, 8])
    """

    def __init__(
        self,
        backbone: nn.Module,
        preprocessor: nn.Module,
        size: int = 448,
        level: int = -1,
        grid: int = 7,
        pyramid: bool = False,
    ) -> None:
        check_count('size', size)
        check_count('grid', grid)
        self.backbone, self.preprocessor = backbone, preprocessor
        self.size, self.level, self.grid = size, level, grid
        sides = range(1, grid + 1)
        self.grids = [(rows, columns) for rows in sides for columns in sides] if pyramid else [(grid, grid)]

    def __call__(self, path: str | Path) -> Regions:
        """Return the cells of an image and their features, on the CPU.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: OpenCV cannot decode it.
        """
        image = mmcv.imread(str(path))  # BGR, turned by its EXIF orientation
        if image is None:
            raise ValueError('unreadable: OpenCV does not decode it')
        resized = mmcv.imresize(image, (self.size, self.size))
        features = self.pool(torch.from_numpy(resized.transpose(2, 0, 1).copy()))
        size = image.shape[1], image.shape[0]
        boxes = torch.cat([grid_boxes(size, *grid) for grid in self.grids])
        return Regions(features.float().cpu(), boxes, size)

    @torch.no_grad()
    def pool(self, image: Tensor) -> Tensor:
        """Return the features of the cells, ``(n, C)``, row by row, for a resized image ``(3, size, size)``, BGR."""
        inputs: Any = self.preprocessor(dict(inputs=[image]), False)['inputs']
        inputs = inputs if isinstance(inputs, Tensor) else torch.stack([*inputs])
        if inputs.shape[-2:] != image.shape[-2:]:
            raise ValueError(
                f'size must be one that the data preprocessor does not pad; it pads {self.size} to {inputs.shape[-1]}'
            )
        maps = self.backbone(inputs)
        maps = [maps] if isinstance(maps, Tensor) else list(maps)
        if not -len(maps) <= self.level < len(maps):
            raise ValueError(
                f'level must be from {-len(maps)} to {len(maps) - 1}, those of the backbone; got {self.level}'
            )
        found = maps[self.level]
        if found.dim() != 4 or min(found.shape[2:]) < self.grid:
            raise ValueError(
                f'grid must be at most the sides of the feature map, {tuple(found.shape[2:])}; got {self.grid}: a '
                'finer level or a larger size has more positions'
            )
        return torch.cat([F.adaptive_avg_pool2d(found, grid)[0].flatten(1).T for grid in self.grids])
