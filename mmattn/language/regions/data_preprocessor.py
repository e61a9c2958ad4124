"""Batches of regions: pad the regions of images to the largest number."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmattn.language.text.batching import TextDataPreprocessor
from mmattn.registry import MODELS


@MODELS.register_module()
class RegionDataPreprocessor(TextDataPreprocessor):
    """Pads the regions of images to the largest number in the batch, and sentences as ``TextDataPreprocessor`` does.

    Lists of ``features``, and their ``boxes`` if there are any, are padded by :func:`pad_regions`, which adds
    ``region_mask``. Other inputs can be tokens of a sentence ``(L)`` or of the K captions of an image ``(K, L)``,
    single numbers, such as an answer, or pictures ``(3, H, W)``, all of one size.

    Example:
        >>> features, boxes = [torch.ones(2, 8), torch.ones(1, 8)], [torch.ones(2, 4), torch.ones(1, 4)]
        >>> batch = dict(inputs=dict(features=features, boxes=boxes, target=[torch.tensor([4, 2]), torch.tensor([2])]))
        >>> inputs = RegionDataPreprocessor()(batch)['inputs']
        >>> {name: tuple(x.shape) for name, x in inputs.items()}
        {'features': (2, 2, 8), 'boxes': (2, 2, 4), 'target': (2, 2), 'region_mask': (2, 2)}
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Pad ``features`` to ``(B, N, D)`` and ``boxes`` to ``(B, N, 4)``, and add ``region_mask`` ``(B, N)``."""
        inputs = data['inputs']
        if not isinstance(inputs.get('features'), Sequence):  # pictures, or padded by pad_collate
            return super().forward(data, training)
        features, boxes, mask = pad_regions(inputs['features'], inputs.get('boxes'))
        regions = dict(features=features, region_mask=mask)
        if boxes is not None:
            regions['boxes'] = boxes
        return super().forward({**data, 'inputs': {**inputs, **regions}}, training)


def pad_regions(
    features: Sequence[Tensor], boxes: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Pad the regions of images to the largest number of regions, at least one.

    Returns features ``(B, N, D)``, boxes ``(B, N, 4)`` or None, and the mask, bool ``(B, N)``, True where padded.
    Padding is 0 in the features. It is ``(0, 0, 1, 1)`` in the boxes, so that the logarithm of a side is finite. There
    is one tensor ``(n, D)``, and one of boxes ``(n, 4)``, per image. n may be 0. Videos have no boxes.
    """
    width = features[0].shape[-1]
    for image, (x, box) in enumerate(zip(features, features if boxes is None else boxes)):
        if x.dim() != 2 or x.shape[1] != width or (boxes is not None and box.shape != (len(x), 4)):
            raise ValueError(
                f'features and boxes must be (n, {width}) and (n, 4); got {tuple(x.shape)} and '
                f'{tuple(box.shape)} for image {image} of the batch'
            )
    counts = torch.tensor([len(x) for x in features], device=features[0].device)
    mask = torch.arange(max(1, int(counts.max())), device=counts.device) >= counts[:, None]
    padded = None
    if boxes is not None:
        padded = _at_least_one(boxes)
        padded[mask] = padded.new_tensor((0, 0, 1, 1))
    return _at_least_one(features), padded, mask


def _at_least_one(rows: Sequence[Tensor]) -> Tensor:
    # one row of zeros makes N at least 1
    return pad_sequence([*rows, rows[0].new_zeros(1, rows[0].shape[1])], batch_first=True)[:-1]
