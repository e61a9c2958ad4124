"""Samplers that can go on, indices that seed augmentation, and loops that continue at a sampler's position."""

import copy
import pickle
import random
from itertools import islice
from types import SimpleNamespace

import mmengine.dataset
import numpy as np
import pytest
import torch
from mmengine.runner import EpochBasedTrainLoop
from torch.utils.data import DataLoader

from mmattn.engine import DefaultSampler, InfiniteSampler, SeedAugmentation, data_sampling
from mmattn.engine.data_sampling import SampleIndex, continue_data, find_sampler


@pytest.mark.parametrize(('rank', 'world_size'), [(0, 1), (1, 3)])
def test_samplers(monkeypatch, rank, world_size):
    """The stock order, the positions of the stream that the processes share, and skipping."""
    monkeypatch.setattr(mmengine.dataset.sampler, 'get_dist_info', lambda: (rank, world_size))
    data = range(7)
    stock, ours = (list(islice(kind(data, seed=3), 30)) for kind in (mmengine.dataset.InfiniteSampler, InfiniteSampler))
    assert ours == stock
    assert [(index.position, index.seed) for index in ours] == [(rank + i * world_size, 3) for i in range(30)]
    sampler = InfiniteSampler(data, seed=3)
    sampler.skip(11)
    skipped = list(islice(sampler, 19))
    assert [(index, index.position) for index in skipped] == [(index, index.position) for index in ours[11:]]
    stock, ours = (kind(data, seed=3) for kind in (mmengine.dataset.DefaultSampler, DefaultSampler))
    for epoch in range(2):
        stock.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(stock)
        first = epoch * (7 if world_size == 1 else 9) + rank
        assert [index.position for index in ours] == [first + i * world_size for i in range(len(ours))]


@pytest.mark.parametrize(
    'move',
    [lambda index: pickle.loads(pickle.dumps(index)), copy.deepcopy, lambda index: (index - 3) % 7],
    ids=['pickle', 'deepcopy', 'data set wrappers'],
)
def test_an_index_keeps_its_position(move):
    index = move(SampleIndex(5, 11, 42))
    assert index in (2, 5)
    assert (index.position, index.seed) == (11, 42)


def draw(transform, index):
    transform(dict(sample_idx=index))
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_seed_augmentation():
    """Position and seed decide, the index does not; a replacement of a rejected sample goes on where that one was."""
    seed = SeedAugmentation()
    indices = SampleIndex(0, 5, 1), 3, SampleIndex(0, 5, 2), SampleIndex(0, 6, 1), SampleIndex(2, 5, 1), 4
    expected, replacement, *others, again, replaced_again = (draw(seed, index) for index in indices)
    assert (again, replaced_again) == (expected, replacement)
    assert len({*expected, *replacement, *others[0], *others[1]}) == 12


@pytest.mark.parametrize('index', [3, None])
def test_without_one_of_our_samplers(monkeypatch, index):
    """An index of the user's own seeds nothing. A worker tells the sampler that it needs, until it has met one.

    An index of another kind then replaces a rejected sample.
    """
    states = []
    for _ in range(2):
        random.seed(0)
        states.append(draw(SeedAugmentation(), index)[0])
    assert states == [random.Random(0).random()] * 2
    monkeypatch.setattr(data_sampling, 'get_worker_info', object)
    seed = SeedAugmentation()
    with pytest.raises(TypeError, match=rf'mmattn\.InfiniteSampler.* {index}'):
        draw(seed, index)
    draw(seed, SampleIndex(0, 5, 1))
    draw(seed, index)


class Rectangles(torch.utils.data.Dataset):
    """Seven wide and seven tall images, as mmdet's sampler by aspect ratio asks for."""

    def __len__(self):
        return 14

    def get_data_info(self, index):
        return dict(width=2 + index % 2, height=2 + (index + 1) % 2)


@pytest.mark.parametrize('sampler_class', [DefaultSampler, InfiniteSampler])
def test_the_sampler_behind_a_batch_sampler_is_found(sampler_class):
    """By epoch its seed is the interrupted run's again; an infinite one behind a batch sampler cannot go on."""
    from mmdet.datasets import AspectRatioBatchSampler

    def loop(seed):
        sampler = sampler_class(Rectangles(), shuffle=True, seed=seed)
        loader = DataLoader(Rectangles(), batch_sampler=AspectRatioBatchSampler(sampler, 2))
        return SimpleNamespace(dataloader=loader, iter=3)

    first, resumed = loop(5), loop(6)
    assert find_sampler(first.dataloader).seed == 5
    went_on = continue_data(resumed, find_sampler(first.dataloader).seed)
    assert went_on == (sampler_class is DefaultSampler)
    if went_on:
        assert list(resumed.dataloader.batch_sampler) == list(first.dataloader.batch_sampler)
        assert list(loop(6).dataloader.batch_sampler) != list(first.dataloader.batch_sampler)


class Batches(torch.utils.data.BatchSampler):
    """Counts the batches that it skips, as ours by tokens do."""

    infinite, skipped = True, 0

    def skip(self, count):
        self.skipped += count

    def __iter__(self):
        yield from ([number] for number in range(self.skipped, 100))


@pytest.mark.parametrize('counts_batches', [False, True])
@pytest.mark.parametrize('skips', [False, True])
def test_an_infinite_loop_goes_on_where_it_was(counts_batches, skips):
    """mmengine skips batches by itself in some versions, and takes one for each earlier iteration in others."""

    def loop(seed):
        sampler = InfiniteSampler(range(7), shuffle=True, seed=seed)
        options = (
            dict(batch_sampler=Batches(sampler, 2, False)) if counts_batches else dict(sampler=sampler, batch_size=2)
        )
        loader = DataLoader(torch.arange(100), **options)
        iterator = SimpleNamespace(skip_iter=None) if skips else None
        return SimpleNamespace(dataloader=loader, dataloader_iterator=iterator, iter=3)

    first, kept, resumed = loop(5), loop(6), loop(6)
    assert continue_data(resumed, 5)
    assert continue_data(kept, None)
    assert [find_sampler(each.dataloader).seed for each in (first, kept, resumed)] == [5, 6, 5]
    batches = resumed.dataloader_iterator
    if skips and not counts_batches:
        assert batches.skip_iter is None  # as it was
        batches = iter(resumed.dataloader)
    if not skips:
        assert [next(batches) for _ in range(3)] == [None] * 3
    found = [batch.tolist() for batch in islice(batches, 4)]
    assert found == ([[3], [4], [5], [6]] if counts_batches else [x.tolist() for x in islice(first.dataloader, 3, 7)])


class StartedLoop(EpochBasedTrainLoop):
    """A loop by epoch that has trained on some batches, and notes those that it is given."""

    def __init__(self, loader, epoch):
        self.dataloader, self._epoch, self._iter, self.seen = loader, epoch, 0, []

    def run_iter(self, idx, batch):
        self.seen.append((idx, batch.tolist()))

    def run_rest(self):
        for idx, batch in enumerate(self.dataloader):
            self.run_iter(idx, batch)
        self._epoch += 1


@pytest.mark.parametrize('batches_done', [0, 2])
def test_a_resumed_epoch_has_its_other_batches_and_the_next_has_all(batches_done):
    def started(seed):
        sampler = DefaultSampler(range(7), shuffle=True, seed=seed)
        sampler.set_epoch(3)
        return StartedLoop(DataLoader(torch.arange(7), batch_size=2, sampler=sampler), epoch=3)

    first, resumed = started(5), started(6)
    assert continue_data(resumed, 5, batches_done)
    assert len(resumed.dataloader) == 4  # which progress is counted by
    first.run_rest()
    resumed.run_rest()
    assert resumed.seen == first.seen[batches_done:]
    del first.seen[:], resumed.seen[:]
    first.run_rest()
    resumed.run_rest()
    assert resumed.seen == first.seen
    assert [idx for idx, _ in resumed.seen] == [0, 1, 2, 3]
