"""Beam search against every sentence, and against the same rules in plain Python, one hypothesis after another."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmattn.language import Hypothesis, LengthPenalty, beam_search
from mmattn.language.models.generation import largest
from mmattn.language.text.vocabulary import BOS, EOS, PAD, UNK

from ..failing import failing

settings_of = dict(derandomize=True, deadline=None, database=None)


class Model:
    """Log-probabilities that depend on the sentence and on all earlier tokens; few different ones if ``values`` is set.

    ``step`` notes the number of hypotheses of each call.
    """

    def __init__(self, seed, vocabulary, values=None):
        self.seed, self.vocabulary, self.values = seed, vocabulary, values
        self.found, self.calls = {}, []

    def log_p(self, sentence, history):
        key = sentence, tuple(history)
        if key not in self.found:
            generator = random.Random(f'{self.seed} {key}')
            if self.values is None:
                logits = torch.tensor([generator.gauss(0, 1.5) for _ in range(self.vocabulary)], dtype=torch.float64)
                self.found[key] = logits.log_softmax(0).tolist()
            else:
                self.found[key] = [generator.choice(self.values) for _ in range(self.vocabulary)]
        return self.found[key]

    def step(self, tokens, state):
        self.calls.append(len(tokens))
        rows = [(sentence, (*history, token)) for (sentence, history), token in zip(state.rows, tokens.tolist())]
        return torch.tensor([self.log_p(*row) for row in rows], dtype=torch.float64), State(rows)

    def search(self, sentences, **options):
        self.calls = []
        state = State([(sentence, ()) for sentence in sentences])
        return beam_search(self.step, state, len(sentences), **options)


class State:
    def __init__(self, rows):
        self.rows = rows

    def reorder(self, index):
        return State([self.rows[i] for i in index.tolist()])


def literally(model, sentence, beam, max_length, length_penalty, banned=(), first=BOS):
    """The rules, for one sentence; also the number of steps."""
    hypotheses, finished = [((), 0.0)], []
    for length in itertools.count(1):
        candidates = []
        for words, score in hypotheses:
            log_p = model.log_p(sentence, (first, *words))
            for token in range(model.vocabulary):
                if token != PAD and token not in banned and (token == EOS or len(words) < max_length):
                    candidates.append((score + log_p[token], words, token))
        best = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * beam]  # stable: the lower index first
        for score, words, token in best[:beam]:
            if token == EOS and len(finished) < beam:
                finished.append(Hypothesis(list(words), score / length_penalty(length)))
        hypotheses = [((*words, token), score) for score, words, token in best if token != EOS][:beam]
        if len(finished) == beam or not hypotheses:
            return sorted(finished, key=lambda hypothesis: -hypothesis.score), length


PENALTIES = [LengthPenalty(alpha) for alpha in (0, 0.5, 1, 1.5)] + [LengthPenalty(0.6, 'gnmt')]
TIES = (-0.5, -1.0, -1.5)  # their sums are exact


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(4, 8),
    beam=st.integers(1, 5),
    limits=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    penalty=st.sampled_from(PENALTIES),
    values=st.sampled_from([None, TIES]),
    banned=st.sampled_from([(), (UNK,), (BOS, UNK)]),
    first=st.sampled_from([BOS, EOS]),
)
@settings(max_examples=300, **settings_of)
def test_search_follows_its_rules(seed, vocabulary, beam, limits, penalty, values, banned, first):
    """For a batch of sentences; its size at each step is that of the sentences that are not done."""
    model = Model(seed, vocabulary, values)
    sentences = range(len(limits))
    options = dict(beam=beam, length_penalty=penalty, banned=banned, first=first)
    found = model.search(sentences, max_length=limits, **options)
    expected, steps = zip(*(literally(model, each, max_length=limits[each], **options) for each in sentences))
    assert found == list(expected)
    widths = [1]
    while len(widths) < max(steps):
        widths.append(min(beam, widths[-1] * vocabulary))
    assert model.calls == [width * sum(n > t for n in steps) for t, width in enumerate(widths)]
    alone = [model.search([each], max_length=limits[each], **options)[0] for each in sentences]
    assert alone == found


@pytest.mark.parametrize('penalty', PENALTIES, ids=str)
@pytest.mark.parametrize('seed', [0, 1])
def test_a_wide_beam_finds_every_sentence(seed, penalty):
    """V = 5, at most 4 tokens: all sentences of <s>, <unk> and 4, the best first.

    Those with the same transitions in another order have the same score but for rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(5, 5, generator=generator, dtype=torch.float64).log_softmax(1)

    found = beam_search(
        lambda tokens, state: (table[tokens], state), Constant(), 1, beam=5**4, max_length=4, length_penalty=penalty
    )[0]
    scores = {}
    for length in range(5):
        for words in itertools.product((BOS, UNK, 4), repeat=length):
            path = [BOS, *words, EOS]
            scores[words] = sum(table[a, b].item() for a, b in itertools.pairwise(path)) / penalty(length + 1)
    assert len(found) == len(scores) == 1 + 3 + 9 + 27 + 81
    assert tuple(found[0].tokens) == max(scores, key=scores.get)
    assert {tuple(words): pytest.approx(score, rel=1e-12) for words, score in found} == scores
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


class Constant:
    def reorder(self, index):
        return self


def constant(probabilities, **options):
    log_p = torch.tensor(probabilities, dtype=torch.float64).log()
    return beam_search(lambda tokens, state: (log_p.expand(len(tokens), -1), state), Constant(), 1, **options)[0]


@pytest.mark.parametrize('probabilities', [[math.nan] * 4, [0.0, 0.0, 0.0, 1.0]])
def test_a_search_without_an_end_is_an_error(probabilities):
    with pytest.raises(FloatingPointError, match='NaN'):
        constant(probabilities, beam=2, max_length=3)


def test_only_the_end_at_the_largest_length():
    """Its probability counts although it is small; sentences of one batch may have different largest lengths."""
    assert constant([0.0, 0.0, 1e-6, 0.4, 0.6], beam=1, max_length=4, length_penalty=LengthPenalty(0)) == [
        Hypothesis([4, 4, 4, 4], pytest.approx(4 * math.log(0.6) + math.log(1e-6), rel=1e-12))
    ]
    log_p = torch.tensor([0.0, 0.0, 1e-6, 0.4, 0.6]).log()
    for limits in ([3, 1, 0], torch.tensor([3, 1, 0])):
        found = beam_search(
            lambda tokens, state: (log_p.expand(len(tokens), -1), state), Constant(), 3, beam=1, max_length=limits
        )
        assert [hypotheses[0].tokens for hypotheses in found] == [[4, 4, 4], [4], []]


def test_largest_of_many_equal_entries():
    values = torch.zeros(3, 100_000)
    values[1, 70_000], values[2, 80_000], values[2, 90_000] = 1, 2, 3
    found, index = largest(values, 5)
    assert index.tolist() == [[0, 1, 2, 3, 4], [70_000, 0, 1, 2, 3], [90_000, 80_000, 0, 1, 2]]
    assert found.tolist() == [[0] * 5, [1, 0, 0, 0, 0], [3, 2, 0, 0, 0]]


def test_penalties():
    assert LengthPenalty()(7) == 7
    assert LengthPenalty(0.5)(9) == 3
    assert LengthPenalty(0)(9) == LengthPenalty(0, 'gnmt')(9) == 1
    assert LengthPenalty(0.6, 'gnmt')(1) == 1
    assert LengthPenalty(2, 'gnmt')(7) == 4


SEARCH = [0.0, 0.0, 0.5, 0.5]


test_failures = failing(
    (lambda: constant(SEARCH, beam=2, max_length=[3, 4]), 'max_length'),
    (lambda: constant(SEARCH, beam=2, max_length=3, banned=[UNK, EOS]), 'banned'),
)
