"""Training data that depend only on the seed and the position in the sample stream, not on workers or interruptions.

The samplers yield each index together with its position in the stream. :class:`SeedAugmentation`, the first transform
of the pipeline, seeds the random number generators from seed and position. A sample therefore does not depend on the
process that loads it, or on earlier samples. Any number of workers, persistent or not, and a resumed run yield the same
images.
"""

import random
from collections.abc import Iterator
from itertools import chain, count, islice, repeat
from typing import Any

import mmengine.dataset
import numpy as np
import torch
from mmengine.runner import BaseLoop, EpochBasedTrainLoop
from torch.utils.data import DataLoader, Sampler, get_worker_info

from mmattn._compat import replace_batch_sampler
from mmattn.registry import DATA_SAMPLERS, TRANSFORMS


class SampleIndex(int):
    """An index into a data set, with the sample's position in the sampler's stream and the sampler's seed.

    It is an ``int`` because an index is all that a ``DataLoader`` passes from the sampler to a worker, and all that
    ``BaseDataset`` passes to its pipeline, as ``sample_idx``. As a tuple, it could not index the data sets of other
    packages, and without position and seed, augmentation would depend on the number of workers, and a resumed run
    would draw other images. ``RepeatDataset`` and ``ConcatDataset`` compute with an index, so ``%`` and ``-`` preserve
    position and seed.
    """

    position: int
    seed: int

    def __new__(cls, index: int, position: int, seed: int) -> 'SampleIndex':
        """Create the integer ``index``."""
        self = super().__new__(cls, index)
        self.position, self.seed = position, seed
        return self

    def __getnewargs__(self) -> tuple[int, int, int]:  # type: ignore[override]
        return int(self), self.position, self.seed

    def __mod__(self, other: int) -> 'SampleIndex':
        return SampleIndex(int(self) % other, self.position, self.seed)

    def __sub__(self, other: int) -> 'SampleIndex':
        return SampleIndex(int(self) - other, self.position, self.seed)


def index_generator(index: int) -> Any:
    """Choose the random numbers of a sample: by seed and position of a :class:`SampleIndex`, otherwise ``random``."""
    return random.Random(f'{index.seed} {index.position}') if isinstance(index, SampleIndex) else random


@DATA_SAMPLERS.register_module()
class InfiniteSampler(mmengine.dataset.InfiniteSampler):
    """mmengine's ``InfiniteSampler`` with the same arguments and order. Each index knows its position in the stream.

    It is for ``IterBasedTrainLoop``. Positions count the stream that all processes share: process ``rank`` of
    ``world_size`` gets the positions ``rank``, ``rank + world_size``, and so on.

    Example:
        >>> sampler = InfiniteSampler(['a', 'b', 'c'], shuffle=False, seed=0)
        >>> [(index, index.position) for index in islice(sampler, 4)]
        [(0, 0), (1, 1), (2, 2), (0, 3)]
    """

    def _indices_of_rank(self) -> Iterator[SampleIndex]:
        return self._indices_from(0)

    def _indices_from(self, start: int) -> Iterator[SampleIndex]:
        positions = count(self.rank + start * self.world_size, self.world_size)
        for index, position in zip(islice(super()._indices_of_rank(), start, None), positions):
            yield SampleIndex(index, position, self.seed)

    def skip(self, num_samples: int) -> None:
        """Continue after the first ``num_samples`` samples of this process, counted from the start of the stream."""
        self.indices = self._indices_from(num_samples)


@DATA_SAMPLERS.register_module()
class DefaultSampler(mmengine.dataset.DefaultSampler):
    """mmengine's ``DefaultSampler`` with the same arguments and order. Each index knows its position in the stream.

    It is for ``EpochBasedTrainLoop``. ``DistSamplerSeedHook``, one of the default hooks, sets the epoch.

    Example:
        >>> sampler = DefaultSampler(['a', 'b', 'c'], shuffle=False, seed=0)
        >>> sampler.set_epoch(1)
        >>> [(index, index.position) for index in sampler]
        [(0, 3), (1, 4), (2, 5)]
    """

    def __iter__(self) -> Iterator[SampleIndex]:
        positions = count(self.epoch * self.total_size + self.rank, self.world_size)
        for index, position in zip(super().__iter__(), positions):
            yield SampleIndex(index, position, self.seed)


@TRANSFORMS.register_module()
class SeedAugmentation:
    """Seed the generators of Python, NumPy and torch for a sample. Must be the first transform of a training pipeline.

    The later transforms then depend only on the sampler's seed and the sample's position. If the pipeline rejects a
    sample, its replacement continues with the same generators.

    In the training process, for example with ``num_workers=0``, the generators keep their state after augmentation.
    ``mmattn.CheckpointHook`` separates the generators of the training steps from this state. Without that hook, dropout
    also depends on seed and position.

    Example:
        >>> seed = TRANSFORMS.build(dict(type='mmattn.SeedAugmentation'))
        >>> index = next(iter(InfiniteSampler(['a', 'b', 'c'], seed=0)))
        >>> _, first = seed(dict(sample_idx=index)), random.random()
        >>> _, second = seed(dict(sample_idx=index)), random.random()
        >>> first == second
        True
    """

    def __init__(self) -> None:
        self._seeded = False

    def __call__(self, results: dict) -> dict:
        """Seed the generators and return ``results`` unchanged.

        An index without a position, as in ``dataset[0]``, does not seed them. In a worker of a ``DataLoader``, it is a
        TypeError: ``results['sample_idx']`` must come from a sampler of mmattn.
        """
        index = results.get('sample_idx')
        if isinstance(index, SampleIndex):
            seeds = np.random.SeedSequence((index.seed, index.position)).generate_state(3).tolist()
            random.seed(seeds[0])
            np.random.seed(seeds[1])
            torch.default_generator.manual_seed(seeds[2])
            self._seeded = True
        elif not self._seeded and get_worker_info() is not None:
            raise TypeError(
                "SeedAugmentation requires train_dataloader.sampler.type='mmattn.InfiniteSampler' (or, by epoch, "
                "'mmattn.DefaultSampler') and a data set that passes the sampler's index to its pipeline as "
                f"results['sample_idx']; it got {type(index).__name__} {index!r}"
            )
        return results


def find_sampler(dataloader: DataLoader) -> Sampler:
    """Get the sampler of a data loader, also if the config defines a batch sampler."""
    return dataloader.batch_sampler.sampler  # type: ignore[union-attr]


class _RestOfEpoch:
    """A batch sampler that skips the first batches of one epoch. Its length includes them."""

    def __init__(self, batch_sampler: Any, batches_done: int) -> None:
        self._batch_sampler, self._batches_done = batch_sampler, batches_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch_sampler, name)

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator:
        done, self._batches_done = self._batches_done, 0  # on the first batch, since a DataLoader calls iter() twice
        yield from islice(self._batch_sampler, done, None)


class _FromHere:
    def __init__(self, loop: BaseLoop) -> None:
        # The batch sampler has skipped the earlier batches, so mmengine need not skip them. mmengine 0.10.7 consumes a
        # batch for every earlier iteration. These batches are empty.
        skips = hasattr(loop.dataloader_iterator, 'skip_iter')
        self._batches = chain(repeat(None, 0 if skips else loop.iter), loop.dataloader)

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def skip_iter(self, num_iters: int) -> None:
        """Do nothing."""


def continue_data(loop: BaseLoop, seed: int | None, batches_done: int = 0) -> bool:
    """Make a resumed training loop continue with the first batch that it has not seen, without loading earlier batches.

    Args:
        loop (BaseLoop): an ``IterBasedTrainLoop`` or ``EpochBasedTrainLoop`` before its first iteration.
        seed (int, optional): seed of the sampler in the interrupted run. None, if unknown, keeps the sampler's seed.
        batches_done (int): for a loop by epoch, the number of batches of its epoch that this process has trained on.
            Defaults to 0.

    Returns:
        bool: False if the sampler is not one of mmattn, or if a batch sampler of the config reads ahead from an
            infinite sampler. Then the data do not continue.
    """
    if isinstance(loop, EpochBasedTrainLoop) and batches_done:
        loader, epoch, run_iter = loop.dataloader, loop.epoch, loop.run_iter
        replace_batch_sampler(loader, _RestOfEpoch(loader.batch_sampler, batches_done))
        loop.run_iter = lambda idx, batch: run_iter(idx + batches_done * (loop.epoch == epoch), batch)
    sampler: Any = find_sampler(loop.dataloader)
    if getattr(loop.dataloader.batch_sampler, 'infinite', False):  # counts batches, whatever its sampler is
        if seed is not None:
            sampler.seed = seed
        loop.dataloader.batch_sampler.skip(loop.iter)
        loop.dataloader_iterator = _FromHere(loop)
        return True
    if not isinstance(sampler, InfiniteSampler | DefaultSampler):
        return False
    if seed is not None:
        sampler.seed = seed
    if isinstance(sampler, InfiniteSampler):
        if loop.dataloader.batch_size is None:
            return False  # a batch sampler of the config may hold indices back, so the position is unknown
        sampler.skip(loop.iter * loop.dataloader.batch_size)
        if not hasattr(loop.dataloader_iterator, 'skip_iter'):
            # mmengine 0.10.7 consumes a batch for every earlier iteration. These are empty and cost nothing.
            loop.dataloader_iterator = chain(repeat(None, loop.iter), loop.dataloader)
    return True
