"""Batches of sentences: group samples of similar lengths, and pad them to the longest."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.dist import get_dist_info
from mmengine.model import BaseDataPreprocessor
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler

from mmattn.registry import DATA_SAMPLERS, FUNCTIONS, MODELS
from mmattn.utils.checks import check_count

from .vocabulary import PAD


def token_batches(
    lengths: Sequence[Sequence[int]], max_tokens: int, max_sentences: int | None = None
) -> list[list[int]]:
    """Divide samples into batches of similar lengths. Returns a list of indices per batch.

    ``lengths`` has a row per sample, such as ``(source, target)``, in tokens. Samples are sorted by their lengths, the
    last column first. A batch is filled while it has at most ``max_sentences`` samples, and its longest length times
    its number of samples is at most ``max_tokens``. No sample may be longer than ``max_tokens``.

    Example:
        >>> token_batches([(3, 4), (9, 8), (4, 4)], max_tokens=10)
        [[0, 2], [1]]
    """
    if not len(lengths):
        return []
    rows = np.asarray(lengths)
    longest = rows.max(1)
    if len(too_long := np.flatnonzero(longest > max_tokens)):
        raise ValueError(
            f'max_tokens must be at least the length of every sentence; got {max_tokens}, but sentence '
            f'{too_long[0]} (counted from 0) has {longest[too_long[0]]} tokens, and {len(too_long) - 1} others are '
            'longer, too: raise max_tokens or lower max_length of the data set'
        )
    order = np.lexsort(rows.T)
    batches: list[list[int]] = []
    start = widest = 0
    for end, length in enumerate(longest[order].tolist()):
        widest = max(widest, length)
        if end > start and (widest * (end - start + 1) > max_tokens or end - start == max_sentences):
            batches.append(order[start:end].tolist())
            start, widest = end, length
    return [*batches, order[start:].tolist()]


@DATA_SAMPLERS.register_module()
class TokenBatchSampler(Sampler):
    """Batch sampler that groups sentences of similar lengths and bounds the number of tokens of a batch.

    The batches are the same in every epoch. With ``shuffle``, their order depends on the seed and the epoch. Process
    ``rank`` of ``world_size`` gets every ``world_size``-th batch. In training (with ``shuffle`` or ``infinite``), all
    processes get equally many batches, as DistributedDataParallel requires. The incomplete last turn of an epoch is
    filled from the start of its order. Otherwise, no sentence is repeated, and the processes may get different numbers
    of batches.

    Args:
        sampler (Sampler): sampler of the data loader, such as ``mmattn.DefaultSampler``. Its data set, seed and
            ``shuffle`` are used. The data set must have ``lengths``, the lengths of its samples in tokens.
        batch_size (int): bound on the number of sentences of a batch.
        max_tokens (int): bound on the longest length of a batch times its number of sentences.
        infinite (bool): after an epoch, continue with the next one, for ``IterBasedTrainLoop``. Defaults to False.

    Example:
        >>> from mmattn.engine import DefaultSampler
        >>> class Sentences(list):
        ...     lengths = [(3,), (9,), (4,)]
        >>> sampler = DefaultSampler(Sentences('abc'), shuffle=False)
        >>> list(TokenBatchSampler(sampler, batch_size=100, max_tokens=10))
        [[0, 2], [1]]
    """

    def __init__(self, sampler: Any, batch_size: int, max_tokens: int, infinite: bool = False) -> None:
        check_count('batch_size', batch_size)
        check_count('max_tokens', max_tokens)
        dataset = getattr(sampler, 'dataset', None)
        if dataset is None or not hasattr(dataset, 'lengths'):
            raise TypeError(
                'TokenBatchSampler requires a sampler with a data set that has lengths, such as mmattn.DefaultSampler '
                f'and mmattn.ParallelTextDataset; got {type(sampler).__name__} of {type(dataset).__name__}'
            )
        if not infinite and not hasattr(sampler, 'epoch'):
            raise TypeError(
                'infinite=False requires a sampler with epochs, such as mmattn.DefaultSampler; got '
                f'{type(sampler).__name__}'
            )
        if not len(dataset.lengths):
            raise ValueError(f'{type(dataset).__name__} has no sentence')
        self.sampler = sampler
        self.infinite = infinite
        self.fills = infinite or sampler.shuffle  # all processes make the same number of steps
        self.batches = token_batches(dataset.lengths, max_tokens, batch_size)
        self.rank, self.world_size = get_dist_info()
        self._skipped = 0

    def __len__(self) -> int:
        if self.fills:
            return -(-len(self.batches) // self.world_size)
        return len(range(self.rank, len(self.batches), self.world_size))

    def _epoch(self, epoch: int) -> list[list[int]]:
        order = torch.arange(len(self.batches))
        if self.sampler.shuffle:
            generator = torch.Generator().manual_seed(self.sampler.seed + epoch)
            order = torch.randperm(len(self.batches), generator=generator)
        if self.fills:
            order = order.repeat(2 if len(order) >= self.world_size else self.world_size)
            order = order[: len(self) * self.world_size]
        return [self.batches[index] for index in order[self.rank :: self.world_size].tolist()]

    def skip(self, num_batches: int) -> None:
        """Continue after the first ``num_batches`` batches of this process, counted from the start of training."""
        self._skipped = num_batches

    def __iter__(self) -> Iterator[list[int]]:
        if not self.infinite:
            yield from self._epoch(self.sampler.epoch)
            return
        epoch, done = divmod(self._skipped, len(self))
        while True:
            yield from islice(self._epoch(epoch), done, None)
            epoch, done = epoch + 1, 0


@MODELS.register_module()
class TextDataPreprocessor(BaseDataPreprocessor):
    """Pads sentences on the right with ``<pad>``, and moves them to the device of the model.

    All data preprocessors of language have the arguments of mmengine's ``BaseDataPreprocessor``.

    Example:
        >>> batch = dict(inputs=dict(source=[torch.tensor([4, 2]), torch.tensor([5, 6, 2])]))
        >>> TextDataPreprocessor()(batch)['inputs']['source']
        tensor([[4, 2, 1],
                [5, 6, 2]])
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Pad every list of sentences to one int64 tensor ``(B, L)``."""
        inputs = {name: _padded(x) if isinstance(x, Sequence) else x for name, x in data['inputs'].items()}
        return self.cast_data({**data, 'inputs': inputs})


def _padded(rows: Sequence[Tensor]) -> Tensor:
    if rows[0].dim() in (0, 3):  # numbers, or pictures (3, H, W)
        if shapes := {tuple(x.shape) for x in rows} - {tuple(rows[0].shape)}:
            raise ValueError(f'pictures of a batch must have one size; got {tuple(rows[0].shape)} and {min(shapes)}')
        return torch.stack(list(rows))
    if rows[0].dim() == 1:  # sentences (L) → (B, L)
        return pad_sequence(list(rows), batch_first=True, padding_value=PAD)
    # (K, L) → (B, K, L)
    return pad_sequence([x.T for x in rows], batch_first=True, padding_value=PAD).mT


@FUNCTIONS.register_module()
def pad_collate(
    samples: Sequence[dict], preprocessor: str = 'mmattn.RegionDataPreprocessor', _scope_: str | None = None
) -> dict:
    """Collate samples, and pad them as the data preprocessor of the model does, which then leaves them unchanged.

    Use it as ``collate_fn`` of a data loader to pad in the worker, on the CPU. A batch then has a few tensors. Without
    it, a batch has several tensors per sample, and their transfer to the main process takes longer than reading them.

    Args:
        samples (sequence of dict): samples of a data set with ``inputs`` and ``data_samples``.
        preprocessor (str): type of the data preprocessor of the model, such as 'mmattn.PhraseDataPreprocessor'.
            Defaults to 'mmattn.RegionDataPreprocessor'.
        _scope_ (str, optional): not used. mmengine adds it to a config with ``_base_ = 'mmattn::…'``.

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


def padding_mask(tokens: Tensor) -> Tensor | None:
    """Mark padding: bool ``(B, L)``, True where a token is padding. Returns None if no token is padding."""
    mask = tokens == PAD
    return mask if mask.is_meta or torch.any(mask) else None  # the values of a meta tensor are unknown
