"""Region features from a detector of mmdet, or from the cells of a feature map of any backbone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mmcv
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn._compat import load_weights
from mmattn.engine import read_checkpoint
from mmattn.language.regions.image_regions import Regions, grid_boxes
from mmattn.utils.checks import check_count, check_fraction

from .regions import clip_boxes

SCORE_THR = 0.001  # a box of a lower score is never a region; with 0, the detector would suppress many thousands
POOLED = 7  # side of the pooled maps of a one-stage detector
FINEST = 14  # a box is pooled from the first level of which it covers less than 2 × 14 strides, as in FPN


def prepare_config(model: ConfigDict, max_regions: int) -> None:
    """Change ``model`` of a detector's config in place, so that it returns ``max_regions`` boxes, and no masks."""
    options = model.get('test_cfg') or {}
    options = options.get('rcnn', options)
    if 'score_thr' in options:
        options.score_thr = min(options.score_thr, SCORE_THR)
    if 'max_per_img' in options:
        options.max_per_img = max(options.max_per_img, max_regions)
    if 'mask_head' in model.get('roi_head', {}):
        model.roi_head.update(mask_head=None, mask_roi_extractor=None)


class RegionExtractor:
    """Detect regions in an image, and pool their features.

    The regions are the boxes with the highest scores: all of at least ``score_thr``, but not fewer than
    ``min_regions``, if the detector returns them, and not more than ``max_regions``.

    A two-stage detector pools the features with its own RoI head, a cascade with its last stage. The features are the
    outputs of the last shared fully connected layer, after its ReLU. Without such a layer, they are the mean over the
    positions of the pooled map. For a one-stage detector, features are pooled by RoIAlign from the level of its neck
    that fits the size of the box, as in FPN, and averaged.

    Args:
        model (nn.Module): a detector of mmdet in evaluation mode.
        pipeline (Callable): loads and transforms the image of a dict with ``img_path``, as the test pipeline of a
            config does without annotations.
        min_regions, max_regions (int): smallest and largest number of regions. Default to 10 and 100.
        score_thr (float): from 0 to 1. Defaults to 0.2.
        whole_image (bool): add the whole image as the first region, of class -1 and score 0. Defaults to False.
    """

    def __init__(
        self,
        model: nn.Module,
        pipeline: Callable[[dict], Any],
        min_regions: int = 10,
        max_regions: int = 100,
        score_thr: float = 0.2,
        whole_image: bool = False,
    ) -> None:
        check_count('min_regions', min_regions, 0)
        check_count('max_regions', max_regions, max(1, min_regions))
        check_fraction('score_thr', score_thr)
        self.model: Any = model
        self.pipeline = pipeline
        self.min_regions, self.max_regions, self.score_thr = min_regions, max_regions, score_thr
        self.whole_image = whole_image
        self._extractor: Any = None  # only for a one-stage detector

    def choose(self, scores: Tensor) -> Tensor:
        """Choose the indices of the boxes that become regions, the highest score first."""
        count = max(self.min_regions, int((scores >= self.score_thr).sum()))
        return scores.argsort(descending=True, stable=True)[: min(count, self.max_regions)]

    @torch.no_grad()
    def __call__(self, path: str | Path) -> Regions:
        """Extract the regions of an image, on the CPU. There may be none, if the detector returns no box."""
        batch = pseudo_collate([self.pipeline(dict(img_path=str(path), img_id=0))])
        data = self.model.data_preprocessor(batch, False)
        inputs = data['inputs']
        maps, sample = self._detect(inputs, data['data_samples'])
        height, width = sample.ori_shape[:2]
        instances = sample.pred_instances
        chosen = self.choose(instances.scores)
        boxes, classes, scores = instances.bboxes[chosen], instances.labels[chosen], instances.scores[chosen]
        boxes = clip_boxes(boxes.float(), (width, height))
        if self.whole_image:
            boxes = torch.cat([boxes.new_tensor([[0, 0, width, height]]), boxes])
            classes = torch.cat([classes.new_tensor([-1]), classes])
            scores = torch.cat([scores.new_tensor([0]), scores])
        scale = boxes.new_tensor(sample.scale_factor).repeat(2)
        features = self.pool(maps, boxes * scale, tuple(inputs.shape[-2:])) if len(boxes) else boxes[:, :0]
        return Regions(
            features.float().cpu(), boxes.cpu(), (int(width), int(height)), classes.cpu(), scores.float().cpu()
        )

    def _detect(self, inputs: Tensor, samples: list) -> tuple[Sequence[Tensor], Any]:
        maps: list[Sequence[Tensor]] = []
        source = self.model.neck if getattr(self.model, 'with_neck', False) else self.model.backbone
        handle = source.register_forward_hook(lambda module, args, output: maps.append(output))
        try:
            [sample] = self.model.predict(inputs, samples, rescale=True)
        finally:
            handle.remove()
        return maps[0], sample

    def pool(self, maps: Sequence[Tensor], boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Pool the features of boxes, ``(n, D)``.

        Args:
            maps (sequence of Tensor): feature maps ``(1, C, h, w)`` of the neck, or of the backbone without one.
            boxes (Tensor): left, top, right, bottom ``(n, 4)``, in pixels of the input.
            size (tuple[int, int]): height and width of the input.
        """
        rois = torch.cat([boxes.new_zeros(len(boxes), 1), boxes], 1)
        if not hasattr(self.model, 'roi_head'):
            if self._extractor is None:
                self._extractor = _build_extractor(maps, size).to(boxes.device)
            return self._extractor(maps, rois).mean((2, 3))
        roi_head = self.model.roi_head
        extractor, head = _last(roi_head.bbox_roi_extractor), _last(roi_head.bbox_head)
        x = extractor(maps[: extractor.num_inputs], rois)
        if roi_head.with_shared_head:
            x = roi_head.shared_head(x)
        for convolution in getattr(head, 'shared_convs', ()):
            x = convolution(x)
        layers = getattr(head, 'shared_fcs', ())
        if not len(layers):
            return x.mean((2, 3))
        x = (head.avg_pool(x) if head.with_avg_pool else x).flatten(1)
        for layer in layers:
            x = head.relu(layer(x))
        return x


def _last(part: Any) -> Any:
    return part[-1] if isinstance(part, nn.ModuleList) else part  # parts of a RoI head are lists in cascades


def _build_extractor(maps: Sequence[Tensor], size: tuple[int, int]) -> nn.Module:
    channels = [x.shape[1] for x in maps]
    if len(set(channels)) > 1:
        raise ValueError(f'feature maps must have the same number of channels to pool from one of them; got {channels}')
    strides = [2 ** round(math.log2(size[0] / x.shape[2])) for x in maps]
    return MODELS.build(
        dict(
            type='mmdet.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=POOLED, sampling_ratio=0),
            out_channels=channels[0],
            featmap_strides=strides,
            finest_scale=FINEST * strides[0],
        )
    )


def load_backbone(cfg: Config, checkpoint: str) -> tuple[nn.Module, nn.Module]:
    """Build the backbone of a config and its data preprocessor, and load the weights of the backbone.

    ``model`` of the config has a ``backbone``, as the models of mmseg and mmdet, or is a backbone alone.
    ``data_preprocessor`` is in the model or in the config. ``checkpoint`` is the path or URL of the whole model, whose
    names start with ``backbone.``, or of the backbone alone. Weights of other parts, such as a classifier, are not
    read. Other weights for a part of the backbone raise a RuntimeError that lists the keys. A file that is not a
    checkpoint, or contains objects that may run code, raises a ValueError. The backbone is frozen, and in evaluation
    mode.
    """
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor')
    if not preprocessor:
        raise ValueError('the config must have data_preprocessor, with the mean and std of the pixels; it has none')
    backbone = revert_sync_batchnorm(MODELS.build(cfg.model.get('backbone', cfg.model)))
    content = read_checkpoint(checkpoint)
    state = content.get('state_dict', content)
    prefix = 'backbone.' if any(name.startswith('backbone.') for name in state) else ''
    weights = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    parts = {name.partition('.')[0] for name in backbone.state_dict()}
    load_weights(backbone, {name: x for name, x in weights.items() if name.partition('.')[0] in parts}, checkpoint)
    backbone.requires_grad_(False).eval()  # ``train`` of many backbones returns None
    return backbone, MODELS.build(preprocessor)


class GridExtractor:
    """Compute a feature map of a whole image, and average it in the S × S cells of a grid.

    The image is resized to a square, without keeping its aspect ratio, or keeps its size. A cell is a region. Its box
    is in image pixels.

    Args:
        backbone (nn.Module): in evaluation mode. Returns a feature map ``(1, C, h, w)``, or several, the finest first.
        preprocessor (nn.Module): data preprocessor of mmengine, mmseg or mmdet, for images in BGR order.
        size (int, optional): side of the resized image, in pixels. None keeps the size of each image. Defaults to 448.
        level (int): index of the feature map. Defaults to -1, the last.
        grid (int): cells S per side. Defaults to 7.
        pyramid (bool): the regions are the cells of all grids of 1 to S rows and 1 to S columns, (S (S + 1) / 2)², so
            that boxes have several sizes and shapes. The first is the whole image. Defaults to False.
    """

    def __init__(
        self,
        backbone: nn.Module,
        preprocessor: nn.Module,
        size: int | None = 448,
        level: int = -1,
        grid: int = 7,
        pyramid: bool = False,
    ) -> None:
        if size is not None:
            check_count('size', size)
        check_count('grid', grid)
        self.backbone, self.preprocessor = backbone, preprocessor
        self.size, self.level, self.grid = size, level, grid
        sides = range(1, grid + 1)
        self.grids = [(rows, columns) for rows in sides for columns in sides] if pyramid else [(grid, grid)]

    def __call__(self, path: str | Path) -> Regions:
        """Extract the features of the cells of an image, on the CPU. The file must exist, and OpenCV must decode it."""
        image = mmcv.imread(str(path))  # BGR, turned by its EXIF orientation
        if image is None:
            raise ValueError('unreadable: OpenCV does not decode it')
        resized = image if self.size is None else mmcv.imresize(image, (self.size, self.size))
        features = self.pool(torch.from_numpy(resized.transpose(2, 0, 1).copy()))
        size = image.shape[1], image.shape[0]
        boxes = torch.cat([grid_boxes(size, *grid) for grid in self.grids])
        return Regions(features.float().cpu(), boxes, size)

    @torch.no_grad()
    def pool(self, image: Tensor) -> Tensor:
        """Compute the features of the cells, ``(n, C)``, row by row, of an image ``(3, H, W)``, BGR."""
        inputs: Any = self.preprocessor(dict(inputs=[image]), False)['inputs']
        inputs = inputs if isinstance(inputs, Tensor) else torch.stack([*inputs])
        if inputs.shape[-2:] != image.shape[-2:]:
            raise ValueError(
                'the data preprocessor must not pad images: it pads (height, width) '
                f'{tuple(image.shape[-2:])} to {tuple(inputs.shape[-2:])}; choose another size, or remove its padding'
            )
        maps = self.backbone(inputs)
        maps = [maps] if isinstance(maps, Tensor) else list(maps)
        if not -len(maps) <= self.level < len(maps):
            raise ValueError(
                f'level must be from {-len(maps)} to {len(maps) - 1}, because the backbone has {len(maps)} levels; '
                f'got {self.level}'
            )
        x = maps[self.level]
        if x.dim() != 4 or min(x.shape[2:]) < self.grid:
            raise ValueError(
                f'grid must be at most the sides of the feature map, {tuple(x.shape[2:])}; got {self.grid}: a '
                'finer level or a larger size has more positions'
            )
        return torch.cat([F.adaptive_avg_pool2d(x, grid)[0].flatten(1).T for grid in self.grids])
