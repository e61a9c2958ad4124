"""Label propagation without training: masks are copied from the most similar positions of the reference frames."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_number

from .aggregation import AGGREGATIONS
from .backbone_weights import backbone_maps
from .session import check_settings, segment_clips

POSITIONS_AT_ONCE = 4096  # whose similarities to all positions of the reference are held
EDGE_STRIDE = 2  # of the frames that guide the filter
EDGE_EPSILON = 0.001  # variance of normalised colours


@MODELS.register_module()
class LabelPropagation(BaseModel):
    """Follow objects by the features of a pretrained backbone alone, as a baseline for trained models.

    Every position takes the mean mask of the k most similar positions in the object's reference frame, weighted by the
    softmax of their cosine similarities over ``temperature``. With k = 1, it copies the mask of the most similar
    position. The model has no loss, so ``tools/train.py`` cannot train it.

    Masks are compared with an object's reference frame alone, so errors do not add up. Only where to look for the
    object may depend on the frame before, with ``radius``.

    Args:
        backbone (dict): config of a 2-D backbone of any registry.
        top_k (int): number of positions k, at least 1. Defaults to 1.
        temperature (float): at least 0.001. Defaults to 0.07.
        num_maps (int): how many of the backbone's outputs are compared, the last ones. Unit vectors of each are
            concatenated at the size of the largest map, so the similarity is the mean of their cosine similarities.
            Defaults to 1.
        radius (int, optional): how many cells of the map an object can move in each direction between two successive
            frames, whatever the regular step of the frame numbers is, in YouTube-VOS 5. Positions farther from its last
            predicted mask are background, and are not compared. An object without a predicted mask in the frame before
            is looked for everywhere, and so is every object after a gap, a larger step than the regular one, as with
            ``sampling='sparse'``. Defaults to None, everywhere.
        edge_radius (float, optional): align the edges of an object with those of the frame by a guided filter. The
            radius of its windows, relative to the square root of the object's area. Defaults to None, without a filter.
        aggregation, data_preprocessor, test_cfg, init_cfg: as in :class:`~mmattn.video.SST`.

    Example:
        >>> import numpy as np
        >>> from mmattn.video import ClipSession, Frame
        >>> stages = dict(num_stages=2, out_indices=(1,), strides=(1, 2), dilations=(1, 1))
        >>> model = LabelPropagation(dict(type='mmseg.ResNet', depth=18, **stages)).eval()
        >>> images, mask = np.zeros((3, 32, 48, 3), np.uint8), np.eye(32, 48, dtype=np.uint8)
        >>> frames = [Frame(i, image, mask if i == 0 else None) for i, image in enumerate(images)]
        >>> [ids.shape for _, ids in ClipSession(model).segment(frames)]
        [(32, 48), (32, 48), (32, 48)]
    """

    def __init__(
        self,
        backbone: dict,
        top_k: int = 1,
        temperature: float = 0.07,
        num_maps: int = 1,
        radius: int | None = None,
        edge_radius: float | None = None,
        aggregation: str = 'soft',
        data_preprocessor: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.ClipDataPreprocessor'), init_cfg)
        check_count('top_k', top_k)
        check_number('temperature', temperature, 0.001)
        check_choice('aggregation', aggregation, AGGREGATIONS)
        check_count('num_maps', num_maps)
        if radius is not None:
            check_count('radius', radius)
        if edge_radius is not None:
            check_number('edge_radius', edge_radius, 0.001, 1)
        self.top_k, self.temperature, self.aggregation = top_k, temperature, aggregation
        self.num_maps, self.radius, self.edge_radius = num_maps, radius, edge_radius
        self.uses_previous = radius is not None
        self.backbone = MODELS.build(backbone)
        skip_unused_stages(self.backbone)
        self.test_cfg = check_settings(test_cfg or {})

    def forward(self, inputs: Any, data_samples: list[BaseDataElement], mode: str = 'predict') -> list[BaseDataElement]:
        """Add ``pred_masks`` to samples of whole clips, as :class:`~mmattn.video.SST` does. ``mode`` is 'predict'."""
        if mode != 'predict':
            raise ValueError(f"label propagation is not trained: mode must be 'predict'; got {mode!r}")
        return segment_clips(self, self.test_cfg, data_samples)

    def extract_feat(self, frames: Tensor) -> tuple[Tensor, Tensor | None]:
        """Extract unit vectors ``(N, h, w, C)`` from normalised frames ``(N, 3, H, W)``.

        The second result is None without ``edge_radius``, otherwise the frames that guide the filter,
        ``(N, 3, H / EDGE_STRIDE, W / EDGE_STRIDE)``.
        """
        maps = backbone_maps(self.backbone, frames)[-self.num_maps :]
        if len(maps) < self.num_maps:
            raise ValueError(
                f'num_maps must be at most the number of outputs of the backbone, {len(maps)} (out_indices); '
                f'got {self.num_maps}'
            )
        size = max((x.shape[2:] for x in maps), key=lambda shape: shape.numel())
        vectors = [F.normalize(resize(x, size), dim=1) for x in maps]
        features = torch.cat(vectors, 1) * len(maps) ** -0.5
        return features.permute(0, 2, 3, 1), None if self.edge_radius is None else F.avg_pool2d(frames, EDGE_STRIDE)

    def object_streams(
        self,
        features: Tensor,
        frame_numbers: Tensor,
        reference: Tensor,
        masks: Tensor,
        clip: Tensor,
        previous: Tensor | None = None,
    ) -> Tensor:
        """Compute the share of objects at positions, ``(O, T, h, w, 1)``. Arguments are as in ``ClipNetwork``."""
        if previous is not None and self.radius is not None:
            near = neighbourhood(previous >= 0.5, self.radius)  # (O, h, w)
            shares = torch.stack([masks, torch.zeros_like(masks)], 1)  # the reference frame, and the only other one
            for share, x, mask, b, cells in zip(shares, reference, masks, clip, near):
                share[1][cells] = self._search(features[b, 1][cells], x, mask).to(share.dtype)
            return shares.unsqueeze(-1)
        parts = [self._search(features[b].flatten(0, 2), x, mask) for x, mask, b in zip(reference, masks, clip)]
        return torch.cat(parts).view(len(masks), *features.shape[1:4], 1)

    def _search(self, positions: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        """Compute the shares ``(P)`` of an object at positions ``(P, C)``."""
        k = min(self.top_k, mask.numel())
        shares = []
        for some in positions.split(POSITIONS_AT_ONCE):
            similarities = some @ reference.flatten(0, 1).T
            similarity, cells = similarities.topk(k) if k > 1 else similarities.max(-1, keepdim=True)  # faster
            shares.append(((similarity / self.temperature).softmax(-1) * mask.flatten()[cells]).sum(-1))
        return torch.cat(shares)

    def head(self, stream: Tensor, fine: Tensor | None, size: Sequence[int]) -> Tensor:
        """Turn shares ``(N, h, w, 1)`` into logits of background and foreground, ``(N, 2, *size)``.

        ``fine`` is the second result of :meth:`extract_feat` for these frames.
        """
        share = stream.permute(0, 3, 1, 2)
        if fine is not None and self.edge_radius is not None:
            share = resize(share.float(), fine.shape[2:])
            share = torch.cat([self._align(x, guide.float()) for x, guide in zip(share[:, None], fine[:, None])])
        share = resize(share, size)
        return torch.cat([1 - share, share], 1).clamp(min=1e-6).log()

    def _align(self, share: Tensor, guide: Tensor) -> Tensor:
        """Filter the share of one object, ``(1, 1, H, W)``, where it is not 0, and beside it."""
        radius = max(1, round((self.edge_radius or 0) * float(share.sum()) ** 0.5))
        rows, columns = (share[0, 0].any(axis).nonzero() for axis in (1, 0))
        if not len(rows):
            return share
        margin = 3 * radius  # beyond 2 radii, the result is 0; its means need another one
        box = [slice(max(int(x[0]) - margin, 0), int(x[-1]) + margin + 1) for x in (rows, columns)]
        aligned = torch.zeros_like(share)
        aligned[..., box[0], box[1]] = guided_filter(share[..., box[0], box[1]], guide[..., box[0], box[1]], radius)
        return aligned.clamp(0, 1)


def resize(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Resize maps ``(N, C, h, w)`` bilinearly."""
    return F.interpolate(maps, tuple(size), mode='bilinear', align_corners=False)


def neighbourhood(masks: Tensor, radius: int) -> Tensor:
    """Dilate bool masks ``(O, h, w)`` by ``radius`` cells in each direction. An empty mask becomes the whole map."""
    near = F.max_pool2d(masks.float().unsqueeze(1), 2 * radius + 1, 1, radius).squeeze(1) > 0
    return near | ~masks.any(-1, keepdim=True).any(-2, keepdim=True)


def guided_filter(x: Tensor, guide: Tensor, radius: int, epsilon: float = EDGE_EPSILON) -> Tensor:
    """Align maps with the edges of a picture: around each position, the map becomes a linear function of the colours.

    The filter of He et al. 2013, "Guided image filtering", with a guide of three channels.

    Args:
        x (Tensor): ``(N, 1, H, W)``.
        guide (Tensor): ``(N, 3, H, W)``, the picture.
        radius (int): of the windows, squares of ``2 radius + 1`` positions, which are cut off at the border.
        epsilon (float): variance of a colour, as in ``guide``, below which a window is averaged.

    Returns:
        Tensor: ``(N, 1, H, W)``.
    """

    def mean(maps: Tensor) -> Tensor:
        for kernel, padding in (((side, 1), (radius, 0)), ((1, side), (0, radius))):
            maps = F.avg_pool2d(maps, kernel, 1, padding, count_include_pad=False)
        return maps

    side = 2 * radius + 1
    means = mean(guide)
    covariance = mean(guide * x) - means * mean(x)  # (N, 3, H, W)
    rows, columns = torch.triu_indices(3, 3).tolist()
    products = mean(guide[:, rows] * guide[:, columns]) - means[:, rows] * means[:, columns]
    a, b, c, d, e, f = products.unbind(1)  # the symmetric matrix [[a, b, c], [b, d, e], [c, e, f]]
    a, d, f = a + epsilon, d + epsilon, f + epsilon
    first, second, third = (torch.stack(column, 1) for column in ((a, b, c), (b, d, e), (c, e, f)))
    cofactors = [torch.linalg.cross(*pair, dim=1) for pair in ((second, third), (third, first), (first, second))]
    slope = torch.stack([(x * covariance).sum(1) for x in cofactors], 1) / (first * cofactors[0]).sum(1, keepdim=True)
    offset = mean(x) - (slope * means).sum(1, keepdim=True)
    return (mean(slope) * guide).sum(1, keepdim=True) + mean(offset)


def skip_unused_stages(backbone: nn.Module) -> None:
    """Let a MobileNet of mmseg or mmdet end at its last output. It would compute all stages. Weights are kept."""
    names, outputs = getattr(backbone, 'layers', None), getattr(backbone, 'out_indices', None)
    if isinstance(names, list) and outputs and all(isinstance(x, str) and hasattr(backbone, x) for x in names):
        backbone.layers = names[: max(outputs) + 1]  # type: ignore[assignment]
