"""Parallel text: what is in the files comes out, pair by pair, and what does not fit is counted or named."""

import json
import logging
import re

import pytest
import torch
from mmengine.registry import DATASETS
from mmengine.structures import BaseDataElement
from torch.utils.data import DataLoader

from mmattn.engine import DefaultSampler
from mmattn.language import TokenBatchSampler
from mmattn.language.text.vocabulary import EOS, UNK
from mmattn.language.translation import ParallelTextDataset, datasets

SYMBOLS = ['ein', 'dog', 'hu@@', 'a', 'nd', '.']
CODES = ['#version: 0.2', 'n d</w>', 'h u']
TRAIN = [
    ('a dog', 'ein hu@@ nd'),
    ('a', 'ein'),
    ('', 'ein'),
    ('a a a a', '.'),
    ('dog', ''),
    ('a dog .', 'xyz hu@@ nd .'),
]
TEST = [('a dog', 'ein hu@@ nd'), ('a a a a a', 'ein'), ('dog\u2028 x', '')]
RAW = [('A dog', 'Ein Hund'), ('A a a a a', 'Ein'), ('dog\u2028 x', ' ')]


def write(folder, name, lines):
    (folder / name).write_bytes(''.join(f'{line}\n' for line in lines).encode())


def write_pairs(folder, split, pairs, languages=('en', 'de')):
    for language, lines in zip(languages, zip(*pairs)):
        write(folder, f'{split}.{language}', lines)


@pytest.fixture
def corpus(tmp_path):
    record = dict(
        source='en',
        target='de',
        lowercase=True,
        moses=dict(aggressive_dashes=True),
        merges=2,
        vocabulary=len(SYMBOLS),
        counts=dict(train=len(TRAIN), test=len(TEST)),
        dropped=0,
        versions={},
    )
    write(tmp_path, 'corpus.json', [json.dumps(record, indent=4)])
    write(tmp_path, 'vocabulary.txt', [f'{symbol} {9 - number}' for number, symbol in enumerate(SYMBOLS)])
    write(tmp_path, 'bpe.codes', CODES)
    write_pairs(tmp_path, 'train', TRAIN)
    write_pairs(tmp_path, 'test', TEST)
    write_pairs(tmp_path, 'test.raw', RAW)
    return tmp_path


@pytest.fixture
def messages(monkeypatch):
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
        assert dataset.lengths[i] == (len(inputs['source']), len(inputs['target']))


def test_training(corpus, messages):
    """Pairs with an empty side and longer ones are left out, and counted; exactly max_length symbols are allowed."""
    dataset = ParallelTextDataset(str(corpus), 'train', max_length=3)
    assert_samples(dataset, [TRAIN[0], TRAIN[1]])
    assert list(dataset[0]) == ['inputs']
    ((level, message),) = messages
    assert level == logging.WARNING
    assert (
        '2 pairs with an empty side and 2 pairs with more than max_length=3 symbols are left out; 2 are left' in message
    )
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
    dataset = ParallelTextDataset(str(corpus), 'train', max_length=1)
    assert_samples(dataset, pairs[:2])
    assert '1 pairs with an empty side and 1 pairs with more than max_length=1' in messages.pop()[1]
    assert_samples(ParallelTextDataset(str(corpus), 'train', num_samples=3, test_mode=True), pairs[:3])


def test_indices_are_those_of_a_sequence(corpus):
    dataset = ParallelTextDataset(str(corpus), 'test', test_mode=True)
    assert dataset[-1]['inputs']['source'].tolist() == numbers(TEST[-1][0])
    assert len(list(dataset)) == len(TEST)
    with pytest.raises(IndexError):
        dataset[len(TEST)]


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


def test_without_published_text(corpus):
    (corpus / 'test.raw.de').unlink()
    sample = ParallelTextDataset(str(corpus), 'test', test_mode=True)[0]['data_samples']
    assert sample.raw_source is None
    assert sample.raw_target is None


def test_the_other_direction(corpus):
    dataset = ParallelTextDataset(str(corpus), 'test', 'de', 'en', num_samples=2, test_mode=True)
    assert_samples(dataset, [pair[::-1] for pair in TEST[:2]])
    assert dataset[0]['data_samples'].raw_target == 'A dog'
    assert (dataset.metainfo['source'], dataset.metainfo['target']) == ('de', 'en')
    for options in (dict(source='de'), dict(target='en')):
        with pytest.raises(ValueError, match='source and target must be different languages'):
            ParallelTextDataset(str(corpus), 'test', **options)


def test_metainfo(corpus):
    assert ParallelTextDataset(str(corpus), 'train').metainfo == dict(
        source='en', target='de', lowercase=True, moses=dict(aggressive_dashes=True), symbols=SYMBOLS, codes=CODES
    )


def test_batches_of_a_data_loader(corpus):
    dataset = ParallelTextDataset(str(corpus), 'test', test_mode=True)
    sampler = TokenBatchSampler(DefaultSampler(dataset, shuffle=False), batch_size=9, max_tokens=8)
    lines = [
        [sample['data_samples'].line for sample in batch]
        for batch in DataLoader(dataset, batch_sampler=sampler, collate_fn=list)
    ]
    assert lines == [[3], [2], [1]] == [[index + 1 for index in batch] for batch in sampler]


def test_files_of_different_length_are_named_with_their_numbers_of_lines(corpus):
    write(corpus, 'train.de', [target for _, target in TRAIN[:4]])
    message = f'{corpus / "train.en"} and {corpus / "train.de"} must have the same number of lines; got 6 and 4'
    with pytest.raises(ValueError, match=re.escape(message)):
        ParallelTextDataset(str(corpus), 'train')


def test_published_text_of_another_length_is_named(corpus):
    write(corpus, 'test.raw.de', ['Ein Hund'])
    with pytest.raises(ValueError, match=r'test\.raw\.en and .*test\.raw\.de must have 3 lines, as .*test\.en'):
        ParallelTextDataset(str(corpus), 'test', test_mode=True)


def test_an_empty_source_of_a_test_is_named(corpus):
    write(corpus, 'test.en', ['a dog', '', ' '])
    with pytest.raises(ValueError, match=r'test\.en: empty lines cannot be translated: 2, 3'):
        ParallelTextDataset(str(corpus), 'test', test_mode=True)
    assert len(ParallelTextDataset(str(corpus), 'test', num_samples=1, test_mode=True)) == 1


def test_nothing_is_left(corpus, messages):
    write_pairs(corpus, 'train', [('', 'ein'), ('a a', 'ein')])
    with pytest.raises(ValueError, match=r'train\.en and .*train\.de have no pair of sentences'):
        ParallelTextDataset(str(corpus), 'train', max_length=1)
    assert len(messages) == 1


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('corpus.json', b'{', r'corpus\.json: not the record of a corpus: JSONDecodeError'),
        ('corpus.json', b'\xff', r'corpus\.json: not the record of a corpus: UnicodeDecodeError'),
        ('corpus.json', b'[1]', r'corpus\.json: not the record of a corpus: TypeError'),
        ('corpus.json', b'{"source": "en", "target": "de"}', r"corpus\.json: .*KeyError\('lowercase'\)"),
        ('vocabulary.txt', b'a 1\nb 1\na 1\n', r"vocabulary\.txt, line 3: 'a' is also in line 1"),
        ('train.de', b'ein\nhu@@ nd\nein\xff\n', r'train\.de, line 3: not UTF-8'),
    ],
)
def test_invalid_files_are_named(corpus, name, content, message):
    (corpus / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ParallelTextDataset(str(corpus), 'train')


@pytest.mark.parametrize('name', ['corpus.json', 'vocabulary.txt', 'bpe.codes', 'train.en', 'train.de'])
def test_missing_files_are_named(corpus, name):
    (corpus / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(corpus / name))):
        ParallelTextDataset(str(corpus), 'train')


def test_a_missing_folder_names_the_converters(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'corpus\.json: no such file; a converter such as tools/dataset_conv'):
        ParallelTextDataset(str(tmp_path / 'nowhere'), 'train')


@pytest.mark.parametrize('option', ['max_length', 'num_samples'])
def test_numbers_are_counts(corpus, option):
    with pytest.raises(ValueError, match=option):
        ParallelTextDataset(str(corpus), 'train', **{option: 0})
    with pytest.raises(TypeError, match=option):
        ParallelTextDataset(str(corpus), 'train', **{option: 2.5})
