"""Token batches: each sentence once, bounded, shared out by processes, and resumed where a run has stopped."""

from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torch.utils.data import RandomSampler as TorchRandomSampler

from mmattn.engine import DefaultSampler, InfiniteSampler
from mmattn.language import TokenBatchSampler, token_batches
from mmattn.language.text import batching

from ..failing import failing

quick = settings(max_examples=150, derandomize=True, deadline=None, database=None)
all_lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=30)


class Sentences(Dataset):
    """Sentences of random lengths, whose tokens are their own numbers."""

    def __init__(self, number=23, longest=9, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = [
            tuple(each) for each in torch.randint(1, longest + 1, (number, 2), generator=generator).tolist()
        ]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return dict(inputs=dict(source=torch.full((self.lengths[index][0],), 4 + index)))


def sampler(dataset, max_tokens=20, batch_size=100, infinite=False, **options):
    options = dict(dict(shuffle=True, seed=3), **options)
    return TokenBatchSampler(DefaultSampler(dataset, **options), batch_size, max_tokens, infinite)


@pytest.fixture
def ranks(monkeypatch):
    """``ranks(world_size, make)``: what ``make()`` returns in each process."""

    def each(world_size, make):
        found = []
        for rank in range(world_size):
            monkeypatch.setattr(batching, 'get_dist_info', lambda rank=rank: (rank, world_size))
            found.append(make())
        return found

    return each


@given(all_lengths, st.integers(12, 60), st.none() | st.integers(1, 5))
@quick
def test_each_sample_once_within_the_bounds(lengths, max_tokens, max_sentences):
    """Sorted by target, then source; a batch ends only because the next sample would exceed a bound."""
    batches = token_batches(lengths, max_tokens, max_sentences)
    order = [index for batch in batches for index in batch]
    assert order == sorted(range(len(lengths)), key=lambda i: (lengths[i][1], lengths[i][0], i))
    sizes = [max(max(lengths[i]) for i in batch) * len(batch) for batch in batches]
    assert max(sizes) <= max_tokens
    assert max(map(len, batches)) <= (max_sentences or len(lengths))
    for batch, following in pairwise(batches):
        larger = [*batch, following[0]]
        assert max(max(lengths[i]) for i in larger) * len(larger) > max_tokens or len(batch) == max_sentences


test_failures = failing(
    (lambda: token_batches([(3, 4), (7, 2), (2, 2), (1, 6)], 5), 'sentence 1 .*7 tokens'),
    (lambda: TokenBatchSampler(DefaultSampler([1, 2]), 4, 100), 'list'),
    (lambda: TokenBatchSampler(TorchRandomSampler([1, 2]), 4, 100), 'RandomSampler'),
    (lambda: TokenBatchSampler(InfiniteSampler(Sentences(), seed=0), 4, 100), 'InfiniteSampler'),
    (lambda: sampler(Sentences(0), round_up=False), 'no sentence'),
    error=(TypeError, ValueError),
)


@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_processes_of_a_test_share_an_epoch(ranks, world_size):
    dataset = Sentences()
    found = ranks(world_size, lambda: sampler(dataset, shuffle=False))
    parts = [list(each) for each in found]
    assert [len(each) for each in found] == [len(part) for part in parts]
    assert sorted(index for part in parts for batch in part for index in batch) == list(range(len(dataset)))


@pytest.mark.parametrize(('world_size', 'max_tokens'), [(1, 20), (2, 20), (3, 20), (2, 30), (5, 9 * 23), (4, 100)])
@pytest.mark.parametrize('infinite', [False, True])
def test_processes_of_a_training_get_equally_many_batches(ranks, world_size, max_tokens, infinite):
    """Together the batches of an epoch, and at its end as many of its first ones as are needed to fill the turn."""
    dataset = Sentences()
    found = ranks(world_size, lambda: sampler(dataset, max_tokens, infinite=infinite))
    size = len(found[0])
    batches = token_batches(dataset.lengths, max_tokens)
    assert [len(each) for each in found] == [-(-len(batches) // world_size)] * world_size

    def batches_of(each):
        if infinite:
            return list(islice(each, 3 * size))
        three = []
        for epoch in range(3):
            each.sampler.set_epoch(epoch)
            three += each
        return three

    parts = [batches_of(each) for each in found]
    assert {len(part) for part in parts} == {3 * size}
    orders = []
    for epoch in range(3):
        turns = zip(*(part[epoch * size : (epoch + 1) * size] for part in parts))
        together = [batch for turn in turns for batch in turn]
        first, fill = together[: len(batches)], together[len(batches) :]
        assert sorted(first) == sorted(batches)
        assert fill == (first * world_size)[: len(fill)]
        orders.append(first)
    if len(batches) > 3:
        assert orders[0] != orders[1] != orders[2] != orders[0]


def test_order_depends_on_seed_and_epoch_only():
    dataset = Sentences()

    def epoch(number, seed=3, **options):
        found = sampler(dataset, seed=seed, **options)
        found.sampler.set_epoch(number)
        torch.manual_seed(number)  # of no importance
        return list(found)

    first = epoch(0)
    assert epoch(0) == first
    assert epoch(1) != first
    assert epoch(0, seed=4) != first
    assert epoch(1, shuffle=False) == epoch(0, shuffle=False) == token_batches(dataset.lengths, 20)
    assert list(islice(sampler(dataset, infinite=True), 2 * len(first))) == [*first, *epoch(1)]
    without_epochs = TokenBatchSampler(InfiniteSampler(dataset, seed=3), 100, 20, infinite=True)
    assert list(islice(without_epochs, 2 * len(first))) == [*first, *epoch(1)]


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('done', [0, 1, 4, 5, 11, 40])
def test_skip_continues(ranks, world_size, done):
    """Within an epoch, at its end, and in later ones; again for each new iterator, as data loaders make several."""
    dataset = Sentences()
    for whole, resumed in ranks(world_size, lambda: [sampler(dataset, infinite=True) for _ in range(2)]):
        resumed.skip(done)
        expected = list(islice(whole, done + 12))[done:]
        assert list(islice(resumed, 12)) == expected
        assert list(islice(resumed, 12)) == expected
