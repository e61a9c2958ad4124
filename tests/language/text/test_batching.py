"""Token batches: each sentence once, bounded, shared out by processes, and resumed where a run has stopped."""

import shutil
from itertools import count, islice, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import RandomSampler as TorchRandomSampler

from mmattn.engine import DefaultSampler, InfiniteSampler
from mmattn.language import SequenceModel, TextDataPreprocessor, TokenBatchSampler, label_smoothed_loss, token_batches
from mmattn.language.text import batching
from mmattn.language.text.vocabulary import PAD

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


def test_a_sentence_that_is_too_long_is_named():
    with pytest.raises(ValueError, match=r'got 5, but sentence 1 \(counted from 0\) has 7 tokens, and 1 others'):
        token_batches([(3, 4), (7, 2), (2, 2), (1, 6)], 5)
    assert token_batches([(3, 4), (5, 2)], 5) == [[1], [0]]


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


@pytest.mark.parametrize('workers', [0, 1])
def test_data_loader(workers):
    dataset = Sentences()
    loader = DataLoader(dataset, batch_sampler=sampler(dataset), num_workers=workers, collate_fn=list)
    tokens = [[sample['inputs']['source'][0].item() - 4 for sample in batch] for batch in loader]
    assert tokens == list(sampler(dataset))
    assert len(loader) == len(tokens)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: DefaultSampler([1, 2]), 'got DefaultSampler of list'),
        (lambda: TorchRandomSampler([1, 2]), 'got RandomSampler of NoneType'),
    ],
)
def test_a_sampler_without_lengths_is_refused(make, message):
    with pytest.raises(TypeError, match=f'mmattn.DefaultSampler and mmattn.ParallelTextDataset; {message}'):
        TokenBatchSampler(make(), 4, 100)


def test_a_finite_order_requires_epochs():
    dataset = Sentences()
    with pytest.raises(TypeError, match=r'infinite=False requires a sampler with epochs.*got InfiniteSampler'):
        TokenBatchSampler(InfiniteSampler(dataset, seed=0), 4, 100)
    ours = TokenBatchSampler(InfiniteSampler(dataset, seed=3), 100, 20, infinite=True)
    assert list(islice(ours, 20)) == list(islice(sampler(dataset, infinite=True), 20))


@pytest.mark.parametrize('option', ['batch_size', 'max_tokens'])
def test_bounds_are_counts(option):
    with pytest.raises(ValueError, match=option):
        sampler(Sentences(), **{option: 0})
    with pytest.raises(TypeError, match=option):
        sampler(Sentences(), **{option: 2.5})


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match='has no sentence'):
        sampler(Sentences(0), round_up=False)


class Model(SequenceModel):
    """Predicts a token from itself, with dropout, and keeps the tokens that it has seen."""

    def __init__(self):
        super().__init__(TextDataPreprocessor())
        self.embedding, self.output = nn.Embedding(40, 6), nn.Linear(6, 40)
        self.seen = []

    def forward(self, inputs, mode):
        assert mode == 'loss'
        tokens = inputs['source']
        self.seen.append(tokens.tolist())
        tokens = tokens[tokens != PAD]
        x = nn.functional.dropout(self.embedding(tokens), 0.3, self.training)
        return label_smoothed_loss(self.output(x), tokens, 0.1)


names = count()
ITERATIONS = dict(by_epoch=False, max_iters=11)
EPOCHS = dict(by_epoch=True, max_epochs=3)


def train(folder, train_cfg, workers, infinite, resume=False):
    dataset = Sentences(9)
    torch.manual_seed(0)
    runner = Runner(
        Model(),
        str(folder),
        train_dataloader=dict(
            dataset=dataset,
            sampler=dict(type='mmattn.DefaultSampler', shuffle=True, seed=99 if resume else 5),
            batch_sampler=dict(type='mmattn.TokenBatchSampler', max_tokens=25, infinite=infinite),
            batch_size=50,
            num_workers=workers,
            persistent_workers=workers > 0,
        ),
        train_cfg=train_cfg,
        optim_wrapper=dict(type='mmattn.TokenOptimWrapper', optimizer=dict(type='Adam', lr=0.01)),
        param_scheduler=dict(type='mmattn.InverseRootLR', warmup=4, by_epoch=False),
        default_hooks=dict(
            checkpoint=dict(
                type='mmattn.CheckpointHook', by_epoch=train_cfg['by_epoch'], interval=1, max_keep_ckpts=-1
            ),
        ),
        resume=resume,
        randomness=dict(seed=1 + resume),
        experiment_name=f'token batches {next(names)}',
        log_level='ERROR',
    )
    runner.train()
    return runner.model.seen, dict(runner.model.state_dict()), runner.optim_wrapper.state_dict()


@pytest.mark.parametrize('workers', [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ('train_cfg', 'infinite', 'checkpoint'),
    [
        pytest.param(ITERATIONS, True, 'iter_7', id='iterations'),
        pytest.param(ITERATIONS, False, 'iter_7', id='iterations, finite', marks=pytest.mark.slow),
        pytest.param(EPOCHS, False, 'epoch_1', id='epochs', marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed(tmp_path, workers, train_cfg, infinite, checkpoint):
    """From a checkpoint within the second epoch, or after the first, and with another seed in the config."""
    seen, weights, optimizer = train(tmp_path / 'whole', train_cfg, workers, infinite)
    (tmp_path / 'resumed').mkdir()
    path = shutil.copy(tmp_path / 'whole' / f'{checkpoint}.pth', tmp_path / 'resumed')
    (tmp_path / 'resumed/last_checkpoint').write_text(str(path), encoding='utf-8')
    again, resumed_weights, resumed_optimizer = train(tmp_path / 'resumed', train_cfg, workers, infinite, resume=True)
    epoch = len(sampler(Sentences(9), max_tokens=25))
    assert 3 < epoch < 7
    assert again == seen[7 if checkpoint == 'iter_7' else epoch :]
    assert list(weights) == list(resumed_weights)
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)
    moments, resumed_moments = (
        [x for each in o['state'].values() for x in each.values()] for o in (optimizer, resumed_optimizer)
    )
    assert len(moments) == len(resumed_moments) == 9
    assert all(map(torch.equal, moments, resumed_moments))
    assert optimizer['param_groups'] == resumed_optimizer['param_groups']
