"""Training data that depend on the seed and the position in the stream alone, not on workers or on interruptions.

The samplers hand out each index together with its position in the stream; :class:`SeedAugmentation`, first in the
pipeline, seeds the random number generators from it. Which process loads a sample, and what it loaded before, no
longer matters: any number of workers, persistent or not, gives the same images, and so does a resumed run.
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

    The arithmetic by which ``RepeatDataset`` and ``ConcatDataset`` find the index in their parts keeps both.
    """

    position: int
    seed: int

    def __new__(cls, index: int, position: int, seed: int) -> 'SampleIndex':
        """Make the integer ``index``."""
        self = super().__new__(cls, index)
        self.position, self.seed = position, seed
        return self

    def __getnewargs__(self) -> tuple[int, int, int]:  # type: ignore[override]
        return int(self), self.position, self.seed

    def __mod__(self, other: int) -> 'SampleIndex':
        return SampleIndex(int(self) % other, self.position, self.seed)

    def __sub__(self, other: int) -> 'SampleIndex':
        return SampleIndex(int(self) - other, self.position, self.seed)


@DATA_SAMPLERS.register_module()
class InfiniteSampler(mmengine.dataset.InfiniteSampler):
    """mmengine's ``InfiniteSampler``, same arguments and order, whose indices know their positions in the stream.

    For ``IterBasedTrainLoop``. The positions are those of the stream that all processes share: process ``rank`` of
    ``world_size`` gets ``rank``, ``rank + world_size``, and so on.
    """

    def _indices_of_rank(self) -> Iterator[SampleIndex]:
        return self._indices_from(0)

    def _indices_from(self, start: int) -> Iterator[SampleIndex]:
        positions = count(self.rank + start * self.world_size, self.world_size)
        for index, position in zip(islice(super()._indices_of_rank(), start, None), positions):
            yield SampleIndex(index, position, self.seed)

    def skip(self, num_samples: int) -> None:
        """Go on behind the first ``num_samples`` of this process, counted from the start of the stream."""
        self.indices = self._indices_from(num_samples)


@DATA_SAMPLERS.register_module()
class DefaultSampler(mmengine.dataset.DefaultSampler):
    """mmengine's ``DefaultSampler``, same arguments and order, whose indices know their positions in the stream.

    For ``EpochBasedTrainLoop``; ``DistSamplerSeedHook``, one of the default hooks, tells it the epoch.
    """

    def __iter__(self) -> Iterator[SampleIndex]:
        positions = count(self.epoch * self.total_size + self.rank, self.world_size)
        for index, position in zip(super().__iter__(), positions):
            yield SampleIndex(index, position, self.seed)


@TRANSFORMS.register_module()
class SeedAugmentation:
    """Seed Python's, NumPy's and torch's generators for this sample; the first transform of a training pipeline.

    What the later transforms draw from these generators then depends on the sampler's seed and the sample's position
    alone. A sample that replaces one that the pipeline rejected goes on with the generators of that one.

    In the process that trains, as with ``num_workers=0``, the generators are left where the augmentation ends:
    ``mmattn.CheckpointHook`` keeps the generators of the training steps apart from this; without that hook, dropout
    is a function of the seed and the position, too.
    """

    def __init__(self) -> None:
        self._seeded = False

    def __call__(self, results: dict) -> dict:
        """Seed the generators and return ``results`` as they are.

        An index without a position is that of ``dataset[0]``, say, and seeds nothing.

        Raises:
            TypeError: in a worker of a ``DataLoader``, ``results['sample_idx']`` comes from none of our samplers.
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
                "SeedAugmentation needs train_dataloader.sampler.type='mmattn.InfiniteSampler' (or, by epoch, "
                "'mmattn.DefaultSampler') and a data set that hands the sampler's index to its pipeline as "
                f"results['sample_idx']; it got {type(index).__name__} {index!r}"
            )
        return results


def sampler_of(dataloader: DataLoader) -> Sampler:
    """Return the sampler whose indices a data loader takes, also through a batch sampler of the config's own."""
    return dataloader.batch_sampler.sampler  # type: ignore[union-attr]


class _RestOfEpoch:
    """A batch sampler that leaves out, once, the first batches of an epoch; they count in its length."""

    def __init__(self, batch_sampler: Any, batches_done: int) -> None:
        self._batch_sampler, self._batches_done = batch_sampler, batches_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch_sampler, name)

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator:
        done, self._batches_done = self._batches_done, 0  # at the first batch: a DataLoader calls iter() twice
        yield from islice(self._batch_sampler, done, None)


def continue_data(loop: BaseLoop, seed: int | None, batches_done: int = 0) -> bool:
    """Have a resumed training loop go on with the first batch that it has not trained on, without loading the others.

    Args:
        loop (BaseLoop): an ``IterBasedTrainLoop`` or ``EpochBasedTrainLoop`` before its first iteration.
        seed (int, optional): the seed that the interrupted run's sampler had; None, if that is not known, leaves the
            sampler its own.
        batches_done (int): where the loop goes by epoch, batches of its epoch that this process has trained on.
            Defaults to 0.

    Returns:
        bool: whether it does; False if the sampler is not one of ours, or runs on behind a batch sampler of the
            config's own.
    """
    if isinstance(loop, EpochBasedTrainLoop) and batches_done:
        loader, epoch, run_iter = loop.dataloader, loop.epoch, loop.run_iter
        replace_batch_sampler(loader, _RestOfEpoch(loader.batch_sampler, batches_done))
        loop.run_iter = lambda idx, batch: run_iter(idx + batches_done * (loop.epoch == epoch), batch)
    sampler = sampler_of(loop.dataloader)
    if not isinstance(sampler, InfiniteSampler | DefaultSampler):
        return False
    if seed is not None:
        sampler.seed = seed
    if isinstance(sampler, InfiniteSampler):
        if loop.dataloader.batch_size is None:
            return False  # a batch sampler of the config's own holds some back: nobody knows the position
        sampler.skip(loop.iter * loop.dataloader.batch_size)
        if not hasattr(loop.dataloader_iterator, 'skip_iter'):
            # mmengine 0.10.7 takes a batch from it for every iteration behind: empty ones here, which cost nothing.
            loop.dataloader_iterator = chain(repeat(None, loop.iter), loop.dataloader)
    return True
