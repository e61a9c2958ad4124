"""CIDEr-D against pycocoevalcap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.cider.cider_scorer import CiderScorer

from mmattn.language.captioning import CiderD

from ..failing import failing

REFERENCES = [
    ['a cat sits on a mat', 'the cat is on the mat'],
    ['a dog runs', 'the dog is running fast'],
    ['two birds fly', 'birds in the sky'],
]
HYPOTHESES = ['a cat on a mat', 'a dog runs fast', 'birds fly in the sky']


def split(references):
    return [[text.split() for text in captions] for captions in references]


def theirs(hypotheses, references):
    scorer = CiderScorer()
    for hypothesis, captions in zip(hypotheses, references):
        scorer += (' '.join(hypothesis), [' '.join(caption) for caption in captions])
    return scorer.compute_score()[1]


@pytest.mark.parametrize(
    ('references', 'is_zero'),
    [
        ([['a b', 'b a'], ['a b', 'b a']], True),  # each n-gram is in all images
        ([['a b c d'], ['b a', 'c a d']], False),  # all words are, but not all pairs
        ([['a b', 'a c'], ['a b', 'a c']], True),
        ([['a b c'], ['a b', 'b c']], False),  # all pairs are, but not the one of three words
    ],
)
def test_only_n_grams_that_some_image_lacks_count(references, is_zero):
    cider = CiderD(split(references))
    assert cider.is_zero == is_zero
    whole = [captions[0].split() for captions in references]
    assert (cider.score(whole, range(len(whole))) == 0).all() == is_zero


captions = st.lists(st.sampled_from('abcd'), max_size=7)
images = st.tuples(captions, st.lists(captions, min_size=1, max_size=3))


@pytest.mark.slow
@given(st.lists(images, min_size=1, max_size=6))
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
def test_equal_to_pycocoevalcap(pairs):
    """Repeated words, words and n-grams of no reference, empty captions, images with one reference, one image."""
    hypotheses, references = map(list, zip(*pairs))
    hypotheses = [[*words, *('x' * (len(words) % 3))] for words in hypotheses]
    expected = theirs(hypotheses, references) if any(map(any, references)) else np.zeros(len(pairs))
    found = CiderD(references).score(hypotheses, range(len(pairs)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_a_batch_of_some_images_with_several_hypotheses():
    """Frequencies are of all references, repeated words are clipped, numbers are words, the batch has no effect."""
    images = [2, 0, 0, 2, 2, 2]
    hypotheses = [text.split() for text in ('birds birds fly', 'a cat', 'the dog is on a mat', 'x x x', '', 'birds')]
    found = CiderD(split(REFERENCES)).score(hypotheses, images)
    expected = [theirs([words] * 3, split(REFERENCES))[image] for words, image in zip(hypotheses, images)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert found[3] == found[4] == 0
    numbers = {}
    number = [[[numbers.setdefault(w, 7 * len(numbers)) for w in c] for c in each] for each in split(REFERENCES)]
    coded = [[numbers.setdefault(word, 7 * len(numbers)) for word in words] for words in hypotheses]
    cider = CiderD(number)
    assert (cider.score(coded, images) == found).all()
    assert [cider.score([words], [image])[0] for words, image in zip(coded, images)] == pytest.approx(found, abs=1e-14)
    assert cider.score([], []).shape == (0,)


test_failures = failing(
    (lambda: CiderD([]), 'none of any image'),
    (lambda: CiderD([[['a']], [], [['b']], []]), r'\[1, 3\]'),
    *(
        (lambda images=images: CiderD(split(REFERENCES)).score([['a'], ['b']], images), 'images')
        for images in ([0], [0, 3], [-1, 0])
    ),
)
