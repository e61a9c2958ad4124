"""Word vectors of published files fill the embedding before training; faults name the file."""

import gzip
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mmattn.language.text.vocabulary import PAD, UNK
from mmattn.language.vqa import QuestionGRU, WordVectorHook, read_word_vectors, word_vectors
from mmattn.language.vqa.questions import Question, write_questions

from ...ops import literal
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
    paths = {name: file.with_name(name) for name in ('longer.txt', 'text.npy', 'whole.npy')}
    paths['longer.txt'].write_text('\n'.join('abcdef'), encoding='utf-8')
    paths['text.npy'].write_bytes(b'text')
    np.save(paths['whole.npy'], np.zeros((5, 3), np.int64))
    for path, dim, words, names in (
        (file, 7, dictionary, r'utable\.npy: .*\(5, 3\)'),
        (file, 3, paths['longer.txt'], r'6 .*longer\.txt'),
        (file, 3, None, r'utable\.npy: dictionary'),
        (glove, 3, dictionary, r'glove\.txt: dictionary'),
        (paths['text.npy'], 3, dictionary, r'text\.npy'),
        (paths['whole.npy'], 3, dictionary, r'whole\.npy: .*int64'),
    ):
        with pytest.raises(ValueError, match=names):
            read_word_vectors(path, SYMBOLS, dim, words)


test_failures = failing(
    (lambda glove: fill(WordVectorHook(str(glove)), model=nn.Linear(2, 2)), 'glove.txt'),
    (lambda glove: fill(WordVectorHook(str(glove)), model=QuestionGRU(9, 3, 2)), 'glove.txt'),
    (lambda: WordVectorHook('glove.txt', mixture='a.json'), r'mixture .*a\.json'),
    error=(TypeError, ValueError),
)


# Mixtures.

SENTENCES = [[0, 1, 1, 2], [2, 0], [], [3], [1, 3, 1], [0, 4, 2, 2, 0]]


def literally(sentences, vectors, plain):
    df = Counter(i for each in sentences for i in each)
    a = torch.zeros(len(vectors), len(vectors)).double()
    for each in sentences:
        for i, w in enumerate(each):
            for v in each[i + 1 :]:
                a[w, v] += 1 if plain else 1 / df[v]
                a[v, w] += 1 if plain else 1 / df[w]
    sums = a.sum(1, keepdim=True)
    return torch.where(sums > 0, a / sums, 0) @ vectors


@pytest.mark.parametrize('plain', [False, True])
@pytest.mark.parametrize('chunk', [2, 10_000])
def test_the_mixture_is_that_of_all_pairs(plain, chunk, monkeypatch):
    """Word 5 occurs in no sentence, and a word alone in a sentence has no companion there."""
    monkeypatch.setattr(word_vectors, 'CHUNK', chunk)
    vectors = literal.randn(6, 3)
    found = word_vectors.mix_vectors(SENTENCES, vectors, plain)
    torch.testing.assert_close(found, literally(SENTENCES, vectors, plain), rtol=0, atol=1e-12)
    assert not found[5].any()
    assert not word_vectors.mix_vectors([[0], [1], [1]], vectors[:2], plain).any()


@pytest.fixture
def files(tmp_path):
    glove = tmp_path / 'glove.txt'
    glove.write_text('what 1 0\ndog 0 1\nsits 3 3\nzebra 9 9\n', encoding='utf-8')
    questions, more, captions = (tmp_path / f'{name}.json' for name in ('questions', 'more', 'captions'))
    write_questions(questions, [Question(1, '1', "What's, that dog?"), Question(2, '1', 'What?')])
    write_questions(more, [Question(3, '2', 'what sits')])
    images = [dict(id=1, file_name='1.jpg', height=2, width=2)]
    annotations = [dict(image_id=1, id=1, caption='a dog sits')]
    captions.write_text(json.dumps(dict(images=images, annotations=annotations)), encoding='utf-8')
    return [str(path) for path in (glove, questions, more, captions)]


@pytest.mark.parametrize('plain', [False, True])
def test_the_vectors_are_followed_by_the_mixture(files, plain):
    glove, *texts = files
    words = ['what', "'s", 'dog', 'that', 'unicorn', 'sits', 'a']  # the last two are in no question
    vectors = torch.tensor([[1, 0], [0, 0], [0, 1], [0, 0], [0, 0], [3, 3], [0, 0]]).double()
    mixed = literally([[0, 1, 3, 2], [0], [0, 5], [6, 2, 5]], vectors, plain)
    expected = torch.cat([vectors, mixed], 1)[:5].float()
    _, made = fill(WordVectorHook(glove, mixture=texts, plain_counts=plain), words[:5], 4)
    torch.testing.assert_close(made[4:], expected)


@pytest.mark.parametrize(
    ('glove', 'dim', 'more', 'names'),
    [
        ('zebra 1 2\n', 4, [], r'glove\.txt.*none of the 6'),
        ('zebra\n', 4, [], r'glove\.txt.*line 1'),
        ('dog 1 2\n', 5, [], 'word_dim .* 5'),
        ('dog 1 2\n', 4, ['other.json'], r'^\S+other\.json'),
    ],
)
def test_wrong_mixtures(files, tmp_path, glove, dim, more, names):
    Path(files[0]).write_text(glove, encoding='utf-8')
    (tmp_path / 'other.json').write_text('{"annotations": [{"category_id": 1}]}')
    hook = WordVectorHook(files[0], mixture=[*files[1:], *(str(tmp_path / name) for name in more)])
    with pytest.raises(ValueError, match=names):
        fill(hook, ['what', "'s", 'dog', 'that'], dim)
