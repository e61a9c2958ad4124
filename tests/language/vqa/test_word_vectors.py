"""Word vectors of published files fill the embedding before training; faults name the file."""

import gzip
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mmattn.language.text.vocabulary import PAD, UNK
from mmattn.language.vqa import QuestionGRU, WordVectorHook, read_word_vectors

from ..failing import failing

GLOVE = 'the 0.5 -1 2\ndog 1 2 3\n. . 4 5 6\ncat 7 8e-1 9\ndog 0 0 0\n'
SYMBOLS = ['cat', 'unicorn', 'dog']


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / 'glove.txt'
    path.write_text(GLOVE, encoding='utf-8')
    return path


@pytest.fixture
def table(tmp_path):
    """As ``utable.npy`` and ``dictionary.txt``; the dictionary may be shorter."""
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.save(tmp_path / 'utable.npy', rows)
    (tmp_path / 'dictionary.txt').write_text('<eos>\nUNK\ndog\ncat \n', encoding='utf-8')
    return tmp_path / 'utable.npy', tmp_path / 'dictionary.txt', torch.from_numpy(rows)


def fill(hook, symbols=SYMBOLS, dim=3, loaded=False, model=None):
    """Return the embedding before and after the hook."""
    model = QuestionGRU(4 + len(symbols), dim, 2) if model is None else model
    before = [part.weight.clone() for part in model.modules() if isinstance(part, nn.Embedding)]
    dataset = SimpleNamespace(metainfo=dict(symbols=symbols))
    hook.before_train(
        SimpleNamespace(model=model, train_dataloader=SimpleNamespace(dataset=dataset), _has_loaded=loaded)
    )
    return before[0], model.embedding.weight.detach()


@pytest.mark.parametrize('compressed', [False, True])
def test_vectors_of_a_text_file(glove, compressed):
    if compressed:
        path = glove.with_suffix('.txt.gz')
        path.write_bytes(gzip.compress(glove.read_bytes()))
        glove = path
    found = read_word_vectors(glove, ['cat', 'dog', '.', 'no'], 3)
    assert {word: vector.tolist() for word, vector in found.items()} == {
        'dog': [1, 2, 3],
        'cat': pytest.approx([7, 0.8, 9]),
    }


def test_known_words_have_their_vectors_and_others_zero(glove):
    before, after = fill(WordVectorHook(str(glove)))
    assert after[4:].tolist() == [pytest.approx([7, 0.8, 9]), [0, 0, 0], [1, 2, 3]]
    assert not after[[PAD, UNK]].any()
    assert torch.equal(after[[0, 2]], before[[0, 2]])


def test_unknown_words_have_the_vector_of_skip_thought(table):
    file, dictionary, rows = table
    _, after = fill(WordVectorHook(str(file), str(dictionary)))
    assert torch.equal(after[4:], rows[[3, 1, 2]])
    assert torch.equal(after[UNK], rows[1])
    assert not after[PAD].any()


def test_a_checkpoint_keeps_its_vectors():
    before, after = fill(WordVectorHook('no file'), loaded=True)
    assert torch.equal(before, after)


test_models_without_an_embedding_of_the_words = failing(
    (lambda glove: fill(WordVectorHook(str(glove)), model=nn.Linear(2, 2)), 'None'),
    (lambda glove: fill(WordVectorHook(str(glove)), model=QuestionGRU(9, 3, 2)), '9'),
    match=r'glove\.txt: .* got {}',
)


@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('the 0.5 -1\n', 'line 1: .*3 numbers .*got 2'),
        ('the 0.5 -1 2 4\n', 'line 1: .*3 numbers .*got 4'),
        ('a 1 2 3\ndog 1 2\n', 'line 2'),
        ('a 1 2 3\ndog 1 x 3\n', 'line 2'),
        ('a 1 2 3\ndog 1 nan 3\n', 'line 2'),
        ('UNK 1 2 3\n', 'none'),
        ('', 'none'),
    ],
)
def test_wrong_files(glove, text, names):
    glove.write_text(text, encoding='utf-8')
    with pytest.raises(ValueError, match=rf'glove\.txt.*{names}'):
        fill(WordVectorHook(str(glove)))


def test_wrong_tables(table, glove):
    file, dictionary, _ = table
    longer, text = file.with_name('longer.txt'), file.with_name('text.npy')
    longer.write_text('\n'.join('abcdef'), encoding='utf-8')
    text.write_bytes(b'text')
    for arguments, names in (
        ((file, SYMBOLS, 7, dictionary), r'utable\.npy: .*\(5, 3\)'),
        ((file, SYMBOLS, 3, longer), r'6 .*longer\.txt'),
        ((file, SYMBOLS, 3), r'utable\.npy: dictionary'),
        ((glove, SYMBOLS, 3, dictionary), r'glove\.txt: dictionary'),
        ((text, SYMBOLS, 3, dictionary), r'text\.npy'),
    ):
        with pytest.raises(ValueError, match=names):
            read_word_vectors(*arguments)
