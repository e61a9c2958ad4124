"""BLEU and ROUGE-L against pycocoevalcap and printed figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.rouge.rouge import Rouge

from mmattn.language.captioning import caption_bleu, rouge_l

from .test_cider import HYPOTHESES, REFERENCES, split


def theirs(metric, hypotheses, references, **options):
    """The score of the corpus and those of the captions."""
    results = {i: [' '.join(words)] for i, words in enumerate(hypotheses)}
    truth = {i: [' '.join(words) for words in captions] for i, captions in enumerate(references)}
    return metric.compute_score(truth, results, **options)


def test_printed_figures():
    words, references = [text.split() for text in HYPOTHESES], split(REFERENCES)
    np.testing.assert_allclose(caption_bleu(words, references)[0][:3], [1, 0.852803, 0.648499], rtol=0, atol=5e-7)
    assert np.mean([rouge_l(*pair) for pair in zip(words, references)]) == pytest.approx(0.893766, abs=5e-7)


captions = st.lists(st.sampled_from('abcd'), max_size=7)


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


def test_precision_and_recall_may_be_of_different_references():
    """P = 2/2 of the first, R = 1/1 of the second: a score of 1 that neither alone reaches."""
    words, first, second = ['a', 'b'], ['a', 'b', 'c', 'd'], ['b']
    assert rouge_l(words, [first, second]) == pytest.approx(1)
    assert max(rouge_l(words, [first]), rouge_l(words, [second])) < 0.8
