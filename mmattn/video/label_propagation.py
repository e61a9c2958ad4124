"""Label propagation without training: masks are copied from the most similar positions of the reference frames."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_number

from .aggregation import AGGREGATIONS
from .backbone_weights import backbone_maps
from .session import check_settings, segment_clips

POSITIONS_AT_ONCE = 4096  # whose similarities to all positions of the reference are held


@MODELS.register_module()
class LabelPropagation(BaseModel):
    """Follow objects by the features of a pretrained backbone alone, as a baseline for trained models.

    Every position takes the mean mask of the k most similar positions in the object's reference frame, weighted by the
    softmax of their cosine similarities over ``temperature``. With k = 1, it copies the mask of the most similar
    position. The model has no loss, so ``tools/train.py`` cannot train it.

    Args:
        backbone (dict): config of a 2-D backbone of any registry. Its last output is used.
        top_k (int): number of positions k, at least 1. Defaults to 1.
        temperature (float): at least 0.001. Defaults to 0.07.
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
        aggregation: str = 'soft',
        data_preprocessor: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.ClipDataPreprocessor'), init_cfg)
        check_count('top_k', top_k)
        check_number('temperature', temperature, 0.001)
        check_choice('aggregation', aggregation, AGGREGATIONS)
        self.top_k, self.temperature, self.aggregation = top_k, temperature, aggregation
        self.backbone = MODELS.build(backbone)
        self.test_cfg = check_settings(test_cfg or {})

    def forward(self, inputs: Any, data_samples: list[BaseDataElement], mode: str = 'predict') -> list[BaseDataElement]:
        """Add ``pred_masks`` to samples of whole clips, as :class:`~mmattn.video.SST` does. ``mode`` is 'predict'."""
        if mode != 'predict':
            raise ValueError(f"label propagation is not trained: mode must be 'predict'; got {mode!r}")
        return segment_clips(self, self.test_cfg, data_samples)

    def extract_feat(self, frames: Tensor) -> tuple[Tensor, None]:
        """Extract unit vectors ``(N, h, w, C)`` from normalised frames ``(N, 3, H, W)``. The second result is None."""
        return F.normalize(backbone_maps(self.backbone, frames)[-1], dim=1).permute(0, 2, 3, 1), None

    def object_streams(
        self, features: Tensor, frame_numbers: Tensor, reference: Tensor, masks: Tensor, clip: Tensor
    ) -> Tensor:
        """Compute the share of objects at positions, ``(O, T, h, w, 1)``. Arguments are as in ``ClipNetwork``."""
        k = min(self.top_k, masks[0].numel())
        shares = []
        for x, mask, b in zip(reference.flatten(1, 2), masks.flatten(1), clip):
            for positions in features[b].flatten(0, 2).split(POSITIONS_AT_ONCE):
                similarity, cells = (positions @ x.T).topk(k)
                shares.append(((similarity / self.temperature).softmax(-1) * mask[cells]).sum(-1))
        return torch.cat(shares).view(len(masks), *features.shape[1:4], 1)

    def head(self, stream: Tensor, fine: None, size: Sequence[int]) -> Tensor:
        """Turn shares ``(N, h, w, 1)`` into logits of background and foreground, ``(N, 2, *size)``."""
        share = F.interpolate(stream.permute(0, 3, 1, 2), tuple(size), mode='bilinear', align_corners=False)
        return torch.cat([1 - share, share], 1).clamp(min=1e-6).log()
