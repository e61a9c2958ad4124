"""Batches of sentences of different lengths, padded to the longest."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmattn.registry import MODELS

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
        inputs = {
            name: pad_sequence(list(x), batch_first=True, padding_value=PAD) if isinstance(x, Sequence) else x
            for name, x in data['inputs'].items()
        }
        return self.cast_data({**data, 'inputs': inputs})


def padding_mask(tokens: Tensor) -> Tensor | None:
    """Return bool ``(B, L)``, True where a token is padding; None if no token is."""
    mask = tokens == PAD
    return mask if torch.any(mask) else None
