"""Batches of sentences of similar lengths, bounded by their number of tokens."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from mmengine.dist import get_dist_info
from torch.utils.data import Sampler

from mmattn.registry import DATA_SAMPLERS
from mmattn.utils.checks import check_count


def token_batches(
    lengths: Sequence[Sequence[int]], max_tokens: int, max_sentences: int | None = None
) -> list[list[int]]:
    """Divide samples into batches of similar lengths.

    Samples are sorted by their lengths, the last column first. A batch is filled while its longest length times its
    number of samples is at most ``max_tokens``.

    Args:
        lengths (sequence of sequence of int): the lengths of each sample, such as ``(source, target)``, in tokens.
        max_tokens (int): bound on the size of a padded batch.
        max_sentences (int, optional): bound on the number of samples of a batch.

    Returns:
        list[list[int]]: the indices of the samples of each batch.

    Raises:
        ValueError: a sample is longer than ``max_tokens``.

    Example:
        >>> token_batches([(3, 4), (9, 8), (4, 4)], max_tokens=10)
        [[0, 2], [1]]
    """
    longest = [max(each) for each in lengths]
    too_long = [index for index, length in enumerate(longest) if length > max_tokens]
    if too_long:
        raise ValueError(
            f'max_tokens must be at least the length of every sentence; got {max_tokens}, but sentence '
            f'{too_long[0]} (counted from 0) has {longest[too_long[0]]} tokens, and {len(too_long) - 1} others are '
            'longer, too: raise max_tokens or lower max_length of the data set'
        )
    batches: list[list[int]] = []
    batch: list[int] = []
    widest = 0
    for index in sorted(range(len(lengths)), key=lambda index: tuple(reversed(lengths[index]))):
        widest = max(widest, longest[index])
        if batch and (widest * (len(batch) + 1) > max_tokens or len(batch) == max_sentences):
            batches.append(batch)
            batch, widest = [], longest[index]
        batch.append(index)
    return [*batches, batch] if batch else batches


@DATA_SAMPLERS.register_module()
class TokenBatchSampler(Sampler):
    """Batch sampler whose batches have similar lengths and a bounded number of tokens.

    The batches are the same in every epoch; with ``shuffle``, their order depends on the seed and the epoch. With
    ``infinite``, for training with ``IterBasedTrainLoop``, an epoch continues with the next one. Process ``rank`` of
    ``world_size`` gets every ``world_size``-th batch. In training (with ``shuffle`` or ``infinite``), all processes get
    equally many, as DistributedDataParallel requires: the incomplete last turn of an epoch is filled from the start of
    its order. Otherwise, no sentence is repeated, so processes may differ.

    Args:
        sampler (Sampler): sampler of the data loader, such as ``mmattn.DefaultSampler``; its data set, seed and
            ``shuffle`` are used. The data set has ``lengths``: the lengths of each sample, in tokens.
        batch_size (int): bound on the number of sentences of a batch.
        max_tokens (int): bound on the longest length of a batch times its number of sentences.
        infinite (bool): continue with the next epoch. Defaults to False.

    Raises:
        TypeError: the sampler has no data set, or its data set has no lengths; or, unless ``infinite``, the sampler has
            no epochs.
        ValueError: a sentence is longer than ``max_tokens``, or there is no sentence.

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
        """The number of batches of this process in an epoch."""
        if self.fills:
            return -(-len(self.batches) // self.world_size)
        return len(range(self.rank, len(self.batches), self.world_size))

    def _epoch(self, epoch: int) -> list[list[int]]:
        """Return the batches of this process in an epoch."""
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
