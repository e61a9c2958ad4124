"""The caption metric: BLEU and ROUGE-L, in one process and several, with Java and without, and its files."""

import json
import math
import os
import random
import shutil
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pycocoevalcap
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.evaluator import Evaluator
from mmengine.structures import BaseDataElement
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.rouge.rouge import Rouge

from mmattn.language.captioning import CaptionMetric, caption_bleu, caption_metric, caption_words, rouge_l
from mmattn.language.captioning.caption_metric import meteor, ptb_words

from ...requirements import requires
from ..failing import failing
from ..files import read_json
from .test_cider import HYPOTHESES, REFERENCES

SYMBOLS = sorted({word for text in HYPOTHESES for word in text.split()})
META = dict(symbols=SYMBOLS)
IDS = ['42', '7', 'x_9']
FIGURES = {'BLEU-1': 100, 'BLEU-2': 85.2803, 'BLEU-3': 64.8499, 'ROUGE-L': 89.3766, 'CIDEr-D': 348.1955}


def sample(image_id, text, captions):
    tokens = [4 + SYMBOLS.index(word) for word in text.split()]
    return BaseDataElement(metainfo=dict(image_id=image_id), pred_tokens=[*tokens, 2, 5], captions=captions)


SAMPLES = [
    sample(name, text, [f'{caption.capitalize()}.' for caption in captions])
    for name, text, captions in zip(IDS, HYPOTHESES, REFERENCES)
]


def evaluate(samples=SAMPLES, **options):
    evaluator = Evaluator(CaptionMetric(**{'use_meteor': False, 'tokenizer': 'simple', **options}))
    evaluator.dataset_meta = META
    for start in range(0, len(samples), 2):
        evaluator.process(samples[start : start + 2])
    return evaluator.evaluate(len({each.image_id for each in samples}))


@pytest.fixture
def messages(logged):
    return logged(caption_metric)


@pytest.mark.parametrize('tokenizer', ['simple', pytest.param('PTB', marks=requires('java'))])
def test_figures_and_files(tokenizer, tmp_path, messages):
    found = evaluate(tokenizer=tokenizer, output_dir=str(tmp_path))
    assert {name: found[name] for name in FIGURES} == pytest.approx(FIGURES, abs=5e-5)
    assert set(found) == {*FIGURES, 'BLEU-4'}
    numbers = [42, 7, 'x_9']
    assert read_json(tmp_path / 'captions.json') == [
        dict(image_id=number, caption=text) for number, text in zip(numbers, HYPOTHESES)
    ]
    record = read_json(tmp_path / 'scores.json')
    assert record['tokenizer'] == tokenizer
    each = record['scores']
    assert list(each) == IDS
    assert all(set(values) == set(found) for values in each.values())
    assert [each[name]['CIDEr-D'] for name in IDS] == pytest.approx([338.0718, 368.1794, 338.3352], abs=5e-5)
    assert np.mean([each[name]['ROUGE-L'] for name in IDS]) == pytest.approx(found['ROUGE-L'])
    assert any(repr(tokenizer) in message for message in messages)


def test_absent_figures_are_named_and_never_0(monkeypatch, messages):
    """Without pycocoevalcap, and without Java."""
    monkeypatch.setitem(sys.modules, 'pycocoevalcap', None)
    assert 'METEOR' not in evaluate(tokenizer='auto', use_meteor=True)
    assert any(message.startswith('METEOR is absent: pycocoevalcap') for message in messages)
    with pytest.raises(ImportError, match='pycocoevalcap'):
        CaptionMetric(tokenizer='PTB')
    monkeypatch.undo()
    monkeypatch.setenv('PATH', '')
    with pytest.raises(FileNotFoundError, match='java'):
        CaptionMetric(tokenizer='PTB')


@pytest.mark.parametrize('number', [1, 2])
def test_cider_that_would_be_0_for_every_caption_is_no_figure(number, messages):
    """In one image, or in images with equal references: no n-gram tells an image apart."""
    samples = [sample(name, HYPOTHESES[0], REFERENCES[0]) for name in IDS[:number]]
    found = evaluate(samples)
    assert math.isnan(found['CIDEr-D'])
    assert found['BLEU-1'] > 0
    assert any('save_best' in message for message in messages)
    samples = [sample('a', HYPOTHESES[0], ['a cat', 'a dog']), sample('b', HYPOTHESES[0], ['a dog a', 'cat'])]
    assert evaluate(samples)['CIDEr-D'] >= 0  # their bigrams differ


def test_captions_without_words_have_the_empty_word():
    """As in the evaluation of COCO."""
    assert [rouge_l([], [[]]), rouge_l([], [['a']]), rouge_l(['a'], [[]])] == [1, 0, 0]


def test_without_references_there_are_captions_but_no_figures(tmp_path, messages):
    """As for the test set of a server."""
    samples = [sample(each.image_id, text, []) for each, text in zip(SAMPLES, HYPOTHESES)]
    assert evaluate(samples, output_dir=str(tmp_path)) == {}
    assert len(read_json(tmp_path / 'captions.json')) == 3
    assert messages == ['no figures: 3 images without references, such as 42']


@requires('java')
def test_words_are_those_of_pycocoevalcap():
    """Also of captions with line breaks, without a word and with letters outside ASCII, in both forms of Unicode."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    texts = ["A man's T-shirt (white), 3 o'clock…", '', ' . ', 'Café "x" — don\u2019t\nstop', 'two\u2028lines']
    found = ptb_words([unicodedata.normalize('NFD', text) for text in texts])
    plain = [' '.join(text.split()) for text in texts]
    expected = PTBTokenizer().tokenize({i: [dict(caption=text)] for i, text in enumerate(plain)})
    assert [' '.join(words) for words in found] == [expected[i][0] for i in range(len(texts))]
    assert found[0][:4] == ['a', 'man', "'s", 't-shirt']
    assert ptb_words([]) == []


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ("A man's T-shirt, (white).", "a man's t-shirt white"),
        ('Stop! -- now; "yes": no? ... - \' `x`', 'stop now yes no x'),
        ('two\nlines', 'two lines'),
        ('A cafe\u0301', 'a caf\u00e9'),  # in one form of Unicode
        ('.', ''),
    ],
)
def test_our_own_words(text, words):
    assert caption_words(text) == words.split()


@requires('java')
@pytest.mark.slow
@pytest.mark.parametrize('language', ['en', 'de'])
def test_meteor(monkeypatch, language):
    """By METEOR's own program, also where numbers have a comma; its separator may be in a caption."""
    monkeypatch.setenv('JAVA_TOOL_OPTIONS', f'-Duser.language={language} -Duser.language.format={language}')
    hypotheses = [*HYPOTHESES, '', 'a ||| b', 'a man is riding a horse']
    references = [*REFERENCES, ['a cat'], ['a b', 'b a'], ['a man rides a ||| horse', 'someone on horseback']]
    each = [0.3899751238, 0.4870450256, 0.4522316327, 0.0, 1.0, 0.4398732861]
    assert meteor(hypotheses, references) == (pytest.approx(0.4179504813, abs=1e-9), pytest.approx(each, abs=1e-9))
    score = meteor(HYPOTHESES, REFERENCES)[0]
    assert evaluate(tokenizer='PTB', use_meteor=True)['METEOR'] == pytest.approx(100 * score, abs=1e-9)


@pytest.mark.slow
@requires('java')
@requires('flickr8k')
def test_published_figures(flickr8k):
    """BLEU-1, BLEU-4, ROUGE-L and CIDEr-D of a random training caption for each of the 500 validation images.

    The draw is that of ``random.Random(0)``, found among three seeds; the figures are published to three decimals.
    """
    import gzip

    images = json.loads(gzip.decompress((flickr8k / 'dataset_flickr8k.json.gz').read_bytes()))['images']
    captions = {Path(image['filename']).stem: [each['raw'] for each in image['sentences']] for image in images}
    order = {name: np.load(flickr8k / f'features_{name}.npz')['image_id'].astype(str) for name in ('train', 'val')}
    generator = random.Random(0)
    train = [captions[name] for name in order['train']]
    drawn = [generator.choice(generator.choice(train)) for _ in order['val']]
    symbols = sorted({word for text in drawn for word in text.split()})
    number = {word: 4 + i for i, word in enumerate(symbols)}
    evaluator = Evaluator(CaptionMetric('PTB', use_meteor=False))
    evaluator.dataset_meta = dict(symbols=symbols)
    for name, text in zip(order['val'], drawn):
        tokens = [number[word] for word in text.split()]
        evaluator.process([BaseDataElement(image_id=str(name), pred_tokens=tokens, captions=captions[name])])
    found = evaluator.evaluate(500)
    names = ('BLEU-1', 'BLEU-4', 'ROUGE-L', 'CIDEr-D')
    assert [found[name] / 100 for name in names] == pytest.approx([0.304, 0.011, 0.226, 0.035], abs=5e-4)


def theirs(metric, hypotheses, references, **options):
    """The score of the corpus and those of the captions."""
    results = {i: [' '.join(words)] for i, words in enumerate(hypotheses)}
    truth = {i: [' '.join(words) for words in captions] for i, captions in enumerate(references)}
    return metric.compute_score(truth, results, **options)


captions = st.lists(st.sampled_from('abcd'), max_size=7)


@pytest.mark.slow
@given(st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=1, max_size=5))
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
def test_equal_to_pycocoevalcap(pairs):
    """Empty captions, ties of the closest length, repeated words; corpus and each caption."""
    hypotheses, references = map(list, zip(*pairs))
    corpus, each = caption_bleu(hypotheses, references)
    expected, expected_each = theirs(Bleu(4), hypotheses, references, verbose=0)
    np.testing.assert_allclose(corpus, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(each.T, expected_each, rtol=1e-12, atol=1e-12)
    rouge = [rouge_l(*pair) for pair in pairs]
    np.testing.assert_allclose(rouge, theirs(Rouge(), hypotheses, references)[1], rtol=1e-12, atol=1e-12)


@requires('java')
def test_spice_is_the_mean_over_images_of_the_package(tmp_path, monkeypatch):
    """The scorer of pycocoevalcap runs; its program, whose models are a large download, is replaced by recall."""
    package = tmp_path / 'pycocoevalcap'
    package.mkdir()
    installed = Path(pycocoevalcap.__path__[0])
    for path in installed.iterdir():
        if path.name != 'spice':
            (package / path.name).symlink_to(path)
    (package / 'spice').mkdir()
    for path in (*(installed / 'spice').glob('*.py'), installed / 'spice' / 'spice-1.0.jar'):
        shutil.copy(path, package / 'spice')  # the scorer writes beside itself
    monkeypatch.setattr(pycocoevalcap, '__path__', [str(package)])
    for name in [name for name in sys.modules if name.startswith('pycocoevalcap.spice')]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FileNotFoundError, match=r'python -m pycocoevalcap\.spice\.get_stanford_models'):
        CaptionMetric('PTB', use_spice=True)
    (package / 'spice' / 'lib').mkdir()
    for name in ('stanford-corenlp-3.6.0.jar', 'stanford-corenlp-3.6.0-models.jar'):
        (package / 'spice' / 'lib' / name).touch()
    java = tmp_path / 'java'
    java.write_text(JAVA.format(sys.executable, shutil.which('java')), encoding='utf-8')
    java.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    figures = evaluate(tokenizer='PTB', use_spice=True, output_dir=str(tmp_path))
    expected = {name: recall(text, captions) for name, text, captions in zip(IDS, HYPOTHESES, REFERENCES)}
    assert figures['SPICE'] == pytest.approx(sum(expected.values()) / 3, abs=1e-9)
    scores = read_json(tmp_path / 'scores.json')['scores']
    assert {name: each['SPICE'] for name, each in scores.items()} == pytest.approx(expected, abs=1e-9)


def recall(text, captions):
    words = {word for caption in captions for word in caption.split()}
    return 100 * len(words & {*text.split()}) / len(words)


JAVA = """#!{}
import json, os, sys
if '-cp' in sys.argv:  # the tokenizer
    os.execv('{}', sys.argv)
given, out = sys.argv[4], sys.argv[sys.argv.index('-out') + 1]
items = []
for item in json.load(open(given)):
    words = set(' '.join(item['refs']).split())
    f = len(words & set(item['test'].split())) / len(words)
    items.append(dict(image_id=item['image_id'], scores=dict(All=dict(f=f))))
json.dump(items[::-1], open(out, 'w'))
"""


@pytest.fixture
def java(tmp_path, monkeypatch):
    """A program that has not enough memory."""
    (tmp_path / 'java').write_text('#!/bin/sh\necho out of memory >&2\nexit 1\n', encoding='utf-8')
    (tmp_path / 'java').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    return tmp_path / 'java'


test_failures = failing(
    (lambda: CaptionMetric(tokenizer='ptb'), 'tokenizer'),
    (lambda: caption_bleu([['a']] * 2, [[['a']], []]), 'references'),
    (lambda: rouge_l(['a'], []), 'references'),
    (lambda: CaptionMetric('simple', use_spice=True), 'use_spice'),
    (lambda java: CaptionMetric(output_dir=str(java / 'out')), 'java/out'),
    (lambda java: ptb_words(['a dog']), 'PTBTokenizer .*out of memory'),
    (lambda java: meteor(['a dog'], [['a dog']]), 'METEOR .*out of memory'),
    error=(OSError, RuntimeError, ValueError),
)
