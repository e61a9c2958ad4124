"""The converter that mixes word vectors, against a literal loop over all pairs of positions."""

import json
from collections import Counter

import pytest
import torch

from mmattn.language.vqa import read_word_vectors
from mmattn.language.vqa.questions import Question, write_questions

from ..ops import literal
from .conftest import scripts

(word_mixture,) = scripts('word_mixture')

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
    monkeypatch.setattr(word_mixture, 'CHUNK', chunk)
    vectors = literal.randn(6, 3)
    found = word_mixture.mix(SENTENCES, vectors, plain)
    torch.testing.assert_close(found, literally(SENTENCES, vectors, plain), rtol=0, atol=1e-12)
    assert not found[5].any()
    assert not word_mixture.mix([[0], [1], [1]], vectors[:2], plain).any()


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
    return glove, questions, more, captions


@pytest.mark.parametrize('options', [[], ['--plain-counts']])
def test_the_file_has_the_words_of_the_questions(files, tmp_path, options, capsys):
    glove, questions, more, captions = map(str, files)
    out = tmp_path / 'new' / 'out.txt'
    word_mixture.main([glove, questions, '--more', more, '--captions', captions, '--out', str(out), *options])
    words = ['what', "'s", 'dog', 'that', 'sits', 'a']  # the last two are in no question
    vectors = torch.tensor([[1, 0], [0, 0], [0, 1], [0, 0], [3, 3], [0, 0]]).double()
    mixed = literally([[0, 1, 3, 2], [0], [0, 4], [5, 2, 4]], vectors, bool(options))
    found = read_word_vectors(out, words, 4)
    assert list(found) == ['what', "'s", 'dog', 'that']
    for number, word in enumerate(found):
        torch.testing.assert_close(found[word].double(), torch.cat([vectors, mixed], 1)[number], rtol=1e-5, atol=1e-6)
    assert '4 words with 4 numbers, of 4 sentences with 6 words; 2 are in' in capsys.readouterr().out


@pytest.mark.parametrize(('text', 'names'), [('zebra 1 2\n', 'none of the 4'), ('zebra\n', 'line 1')])
def test_wrong_files(files, tmp_path, text, names):
    files[0].write_text(text, encoding='utf-8')
    with pytest.raises(ValueError, match=rf'glove\.txt.*{names}'):
        word_mixture.main([str(files[0]), str(files[1]), '--out', str(tmp_path / 'out.txt')])
