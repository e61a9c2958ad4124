"""Parallel text: what is in the files comes out, pair by pair, and what does not fit is counted or named."""

import json
import logging
import tracemalloc

import pytest
import torch
from mmengine.registry import DATASETS
from mmengine.structures import BaseDataElement

from mmattn.language.text.vocabulary import EOS, UNK
from mmattn.language.translation import ParallelTextDataset, datasets

SYMBOLS = ['ein', 'dog', 'hu@@', 'a', 'nd', '.']
CODES = ['#version: 0.2', 'n d</w>', 'h u']
TRAIN = [('a dog', 'ein hu@@ nd'), ('a', 'ein'), ('', 'ein'), ('a a a a', '.'), ('dog', '')]
TRAIN += [('a dog .', 'xyz hu@@ nd .')]
TEST = [('a dog', 'ein hu@@ nd'), ('a a a a a', 'ein'), ('dog\u2028 x', '')]
RAW = [('A dog', 'Ein Hund'), ('A a a a a', 'Ein'), ('dog\u2028 x', ' ')]


def write(folder, name, lines):
    (folder / name).write_bytes(''.join(f'{line}\n' for line in lines).encode())


def write_pairs(folder, split, pairs, languages=('en', 'de')):
    for language, lines in zip(languages, zip(*pairs)):
        write(folder, f'{split}.{language}', lines)


@pytest.fixture
def corpus(tmp_path):
    record = dict(source='en', target='de', lowercase=True, moses=dict(aggressive_dashes=True), counts={}, versions={})
    write(tmp_path, 'corpus.json', [json.dumps(record, indent=4)])
    write(tmp_path, 'vocabulary.txt', [f'{symbol} {9 - number}' for number, symbol in enumerate(SYMBOLS)])
    write(tmp_path, 'bpe.codes', CODES)
    write_pairs(tmp_path, 'train', TRAIN)
    write_pairs(tmp_path, 'test', TEST)
    write_pairs(tmp_path, 'test.raw', RAW)
    return tmp_path


@pytest.fixture
def messages(monkeypatch):
    """The messages with their levels."""
    found = []
    monkeypatch.setattr(datasets, 'print_log', lambda message, logger, level: found.append((level, message)))
    return found


def numbers(line):
    return [4 + SYMBOLS.index(symbol) if symbol in SYMBOLS else UNK for symbol in line.split(' ') if symbol] + [EOS]


def assert_samples(dataset, pairs):
    assert len(dataset) == len(dataset.lengths) == len(pairs)
    for i, pair in enumerate(pairs):
        inputs = dataset[i]['inputs']
        assert [inputs[side].tolist() for side in ('source', 'target')] == [numbers(line) for line in pair]
        assert {x.dtype for x in inputs.values()} == {torch.int64}
        assert tuple(dataset.lengths[i]) == (len(inputs['source']), len(inputs['target']))


def test_training(corpus, messages):
    """Pairs with an empty side and longer ones are left out, and counted; exactly max_length symbols are allowed."""
    dataset = ParallelTextDataset(str(corpus), 'train', max_length=3)
    assert_samples(dataset, [TRAIN[0], TRAIN[1]])
    assert list(dataset[0]) == ['inputs']
    assert dataset.metainfo == dict(
        source='en', target='de', lowercase=True, moses=dict(aggressive_dashes=True), symbols=SYMBOLS, codes=CODES
    )
    [(level, message)] = messages
    assert level == logging.WARNING
    assert '2 pairs with an empty side and 2 pairs with more' in message
    assert f'{corpus / "train.en"} and {corpus / "train.de"}' in message
    messages.clear()
    assert_samples(ParallelTextDataset(str(corpus), 'train', max_length=4), [TRAIN[i] for i in (0, 1, 3, 5)])
    assert '2 pairs with an empty side and 0 pairs' in messages.pop()[1]
    assert_samples(ParallelTextDataset(str(corpus), 'train', num_samples=2), TRAIN[:2])
    assert messages == []


def test_only_spaces_separate_symbols(corpus, messages):
    """As in the vocabulary: a line with a no-break space is one symbol, and not empty."""
    pairs = [('a\u00a0dog', 'ein'), ('\u00a0', '\u2003'), ('a a', 'ein'), ('  ', 'ein')]
    write_pairs(corpus, 'train', pairs)
    assert_samples(ParallelTextDataset(str(corpus), 'train', max_length=1), pairs[:2])
    assert '1 pairs with an empty side and 1 pairs with more than max_length=1' in messages.pop()[1]


def test_tests_keep_every_pair(corpus, messages):
    """Long ones, an empty target, and a source with a line separator, which ends no line."""
    dataset = DATASETS.build(
        dict(type='mmattn.ParallelTextDataset', data_root=str(corpus), split='test', max_length=2, test_mode=True)
    )
    assert_samples(dataset, TEST)
    assert messages == []
    for i, (pair, raw) in enumerate(zip(TEST, RAW)):
        sample = dataset[i]['data_samples']
        assert isinstance(sample, BaseDataElement)
        assert sample.line == i + 1
        assert (sample.source, sample.target) == pair
        assert (sample.raw_source, sample.raw_target) == raw
    assert_samples(ParallelTextDataset(str(corpus), 'test', num_samples=1, test_mode=True), TEST[:1])


def test_chosen_pairs_in_their_order(corpus, messages):
    """Of those, training leaves out what does not fit, and texts and line numbers of tests are those of the pair."""
    dataset = ParallelTextDataset(str(corpus), 'train', indices=[5, 2, -5, 0], max_length=3)
    assert_samples(dataset, [TRAIN[1], TRAIN[0]])
    assert '1 pairs with an empty side and 1 pairs' in messages.pop()[1]
    assert_samples(ParallelTextDataset(str(corpus), 'train', num_samples=5, indices=-4), [TRAIN[1], TRAIN[3]])
    dataset = ParallelTextDataset(str(corpus), 'test', indices=[2, 0], test_mode=True)
    assert_samples(dataset, [TEST[2], TEST[0]])
    samples = [dataset[i]['data_samples'] for i in (0, 1, -1)]
    assert [(sample.line, sample.source, sample.raw_target) for sample in samples] == [
        (3, TEST[2][0], RAW[2][1]),
        (1, TEST[0][0], RAW[0][1]),
        (1, TEST[0][0], RAW[0][1]),
    ]


@pytest.mark.parametrize('size', [2**16, 2**16 + 1])
def test_the_last_symbol_of_a_large_vocabulary(corpus, size):
    write(corpus, 'vocabulary.txt', map(str, range(size - 4)))
    write_pairs(corpus, 'train', [('0', str(size - 5))])
    inputs = ParallelTextDataset(str(corpus), 'train')[0]['inputs']
    assert (inputs['source'].tolist(), inputs['target'].tolist()) == ([4, EOS], [size - 1, EOS])


def test_the_memory_of_a_large_corpus(corpus):
    """Two bytes per symbol and little more, also while it is read."""
    count, symbols = 2000, 40
    write_pairs(corpus, 'train', [('dog ' * symbols, 'ein ' * symbols)] * count)
    ParallelTextDataset(str(corpus), 'test', test_mode=True)  # what the first one imports
    tracemalloc.start()
    try:
        dataset = ParallelTextDataset(str(corpus), 'train')
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(dataset) == count
    assert 4 * symbols * count < kept < peak < (4 * symbols + 150) * count


def test_the_other_direction_and_without_published_text(corpus):
    dataset = ParallelTextDataset(str(corpus), 'test', 'de', 'en', num_samples=2, test_mode=True)
    assert_samples(dataset, [pair[::-1] for pair in TEST[:2]])
    assert dataset[0]['data_samples'].raw_target == 'A dog'
    assert (dataset.metainfo['source'], dataset.metainfo['target']) == ('de', 'en')
    (corpus / 'test.raw.de').unlink()
    sample = ParallelTextDataset(str(corpus), 'test', test_mode=True)[0]['data_samples']
    assert sample.raw_source is sample.raw_target is None


@pytest.mark.parametrize(
    ('name', 'content', 'options', 'names'),
    [
        ('corpus.json', b'{"source": "en", "target": "de"}', {}, r'^/.+/corpus\.json: .*lowercase'),
        ('vocabulary.txt', b'a 1\nb 1\na 1\n', {}, 'vocabulary.txt, line 3'),
        ('train.de', b'ein\nhu@@ nd\nein\xff\n', {}, 'train.de, line 3'),
        ('train.de', b'ein\n' * 4, {}, 'train.en and .*train.de .*6 and 4'),
        ('train.de', b'\n' * 6, {}, 'train.en and .*train.de'),  # nothing is left
        ('test.raw.de', b'Ein Hund\n', dict(split='test', test_mode=True), 'test.raw.en and .*test.raw.de'),
        ('test.en', b'a dog\n\n \n', dict(split='test', test_mode=True), 'test.en: .*2, 3'),
        (None, None, dict(source='de'), 'source and target'),
        (None, None, dict(max_length=0), 'max_length'),
        (None, None, dict(num_samples=2.5), 'num_samples'),
    ],
)
def test_failures(corpus, name, content, options, names):
    if content is not None:
        (corpus / name).write_bytes(content)
    with pytest.raises((OSError, TypeError, ValueError), match=names):
        ParallelTextDataset(**dict(data_root=str(corpus), split='train') | options)
