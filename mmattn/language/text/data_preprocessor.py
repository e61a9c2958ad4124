"""Batches of sentences of different lengths, and of images with different numbers of regions, padded to the longest."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseDataPreprocessor
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmattn.registry import FUNCTIONS, MODELS

from .vocabulary import PAD


@MODELS.register_module()
class TextDataPreprocessor(BaseDataPreprocessor):
    """Pad sentences on the right with ``<pad>``, and move them to the device of the model.

    Args:
        non_blocking (bool): as in mmengine's ``BaseDataPreprocessor``. Defaults to False.

    Example:
        >>> batch = dict(inputs=dict(source=[torch.tensor([4, 2]), torch.tensor([5, 6, 2])]))
        >>> TextDataPreprocessor()(batch)['inputs']['source']
        tensor([[4, 2, 1],
                [5, 6, 2]])
    """

    def __init__(self, non_blocking: bool = False) -> None:
        super().__init__(non_blocking)

    def forward(self, data: dict, training: bool = False) -> dict:
        """Return the batch with each list of sentences as one int64 tensor ``(B, L)``."""
        inputs = {name: _padded(x) if isinstance(x, Sequence) else x for name, x in data['inputs'].items()}
        return self.cast_data({**data, 'inputs': inputs})


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Return sentences ``(L)`` as ``(B, L)``, or several of each sample, ``(K, L)``, as ``(B, K, L)``; stack numbers
    ``()`` and pictures ``(3, H, W)``.
    """
    if rows[0].dim() in (0, 3):
        if shapes := {tuple(x.shape) for x in rows} - {tuple(rows[0].shape)}:
            raise ValueError(f'pictures of a batch must have one size; got {tuple(rows[0].shape)} and {min(shapes)}')
        return torch.stack(list(rows))
    if rows[0].dim() == 1:
        return pad_sequence(list(rows), batch_first=True, padding_value=PAD)
    return pad_sequence([x.T for x in rows], batch_first=True, padding_value=PAD).mT


@MODELS.register_module()
class RegionDataPreprocessor(TextDataPreprocessor):
    """Pad the regions of images to the largest number in the batch, and sentences as ``TextDataPreprocessor`` does.

    The inputs ``features``, if there are any, and ``boxes`` are padded by :func:`pad_regions`, which adds
    ``region_mask``. Other inputs are tensors of numbers, such as the tokens of a sentence, or of the K captions of an
    image, ``(K, L)``; single numbers, such as an answer; and pictures ``(3, H, W)``, all of one size.

    Args:
        non_blocking (bool): as in mmengine's ``BaseDataPreprocessor``. Defaults to False.

    Example:
        >>> features, boxes = [torch.ones(2, 8), torch.ones(1, 8)], [torch.ones(2, 4), torch.ones(1, 4)]
        >>> batch = dict(inputs=dict(features=features, boxes=boxes, target=[torch.tensor([4, 2]), torch.tensor([2])]))
        >>> inputs = RegionDataPreprocessor()(batch)['inputs']
        >>> {name: tuple(x.shape) for name, x in inputs.items()}
        {'features': (2, 2, 8), 'boxes': (2, 2, 4), 'target': (2, 2), 'region_mask': (2, 2)}
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Return the batch, padded: ``features`` ``(B, N, D)``, ``boxes`` ``(B, N, 4)``, ``region_mask`` ``(B, N)``."""
        inputs = data['inputs']
        if not isinstance(inputs.get('features'), Sequence):  # pictures, or padded by pad_collate
            return super().forward(data, training)
        features, boxes, mask = pad_regions(inputs['features'], inputs.get('boxes'))
        found = (
            dict(features=features, region_mask=mask)
            if boxes is None
            else dict(features=features, boxes=boxes, region_mask=mask)
        )
        return super().forward({**data, 'inputs': {**inputs, **found}}, training)


@FUNCTIONS.register_module()
def pad_collate(
    samples: Sequence[dict], preprocessor: str = 'mmattn.RegionDataPreprocessor', _scope_: str | None = None
) -> dict:
    """Collate samples, and pad them as the data preprocessor of the model does, which then leaves them as they are.

    As ``collate_fn`` of a data loader, it pads in the worker. A batch then has a few tensors instead of several per
    sample, whose transfer to the main process takes longer than reading them.

    Args:
        samples (sequence of dict): samples of a data set, each with ``inputs`` and ``data_samples``.
        preprocessor (str): type of the data preprocessor of the model, such as 'mmattn.PhraseDataPreprocessor'.
            Defaults to 'mmattn.RegionDataPreprocessor'.
        _scope_ (str, optional): not used; mmengine adds it to a config with ``_base_ = 'mmattn::…'``.

    Returns:
        dict: the batch, on the CPU, with the shapes that the data preprocessor returns.

    Raises:
        KeyError: the type is unknown.
        ValueError: pictures differ in size, or regions in width or in number from their boxes.

    Example:
        >>> samples = [dict(inputs=dict(question=torch.tensor(words))) for words in ([4, 2], [5, 6, 2])]
        >>> pad_collate(samples)['inputs']['question']
        tensor([[4, 2, 1],
                [5, 6, 2]])
    """
    return _preprocessor(preprocessor)(pseudo_collate(samples))


@lru_cache(maxsize=2)
def _preprocessor(name: str) -> BaseDataPreprocessor:
    return MODELS.build(dict(type=name))


def pad_regions(
    features: Sequence[Tensor], boxes: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Pad the regions of images to the largest number of them, at least one.

    Args:
        features (sequence of Tensor): one ``(n, D)`` per image; n may be 0: all are padding.
        boxes (sequence of Tensor, optional): one ``(n, 4)`` per image; None for features without boxes, such as those
            of a video.

    Returns:
        tuple[Tensor, Tensor | None, Tensor]: features ``(B, N, D)``, 0 where padded; boxes ``(B, N, 4)``,
        ``(0, 0, 1, 1)`` where padded, so that the logarithm of a side is finite, or None; and the mask, bool
        ``(B, N)``, True where padded.

    Raises:
        ValueError: an image has another number of boxes than of features, or features of another width than the others.

    Example:
        >>> _, boxes, mask = pad_regions([torch.ones(1, 8), torch.ones(2, 8)], [torch.zeros(1, 4), torch.zeros(2, 4)])
        >>> boxes[0]
        tensor([[0., 0., 0., 0.],
                [0., 0., 1., 1.]])
        >>> mask
        tensor([[False,  True],
                [False, False]])
    """
    if not features or (boxes is not None and len(features) != len(boxes)):
        raise ValueError(
            'features and boxes must have one tensor per image, at least one; got '
            f'{len(features)} and {None if boxes is None else len(boxes)}'
        )
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
    """Return tensors ``(n, D)`` as ``(B, N, D)``, 0 where padded, with N ≥ 1."""
    return pad_sequence([*rows, rows[0].new_zeros(1, rows[0].shape[1])], batch_first=True)[:-1]


def padding_mask(tokens: Tensor) -> Tensor | None:
    """Return bool ``(B, L)``, True where a token is padding; None if no token is."""
    mask = tokens == PAD
    return mask if mask.is_meta or torch.any(mask) else None  # the values of a meta tensor are unknown
