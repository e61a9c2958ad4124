"""The two rules of words, and the words of a vocabulary."""

import pytest

from mmattn.language.text.words import ban_words, question_words, skip_thought_words


@pytest.mark.parametrize(
    ('text', 'ban', 'skip_thought'),
    [
        ("What's this?", "what 's this", 'whats this'),
        ('Red/blue, T-shirt (new): "a"!', 'red/blue t-shirt (new): "a"!', 'red blue t shirt new a'),
        ("  the dogs'  ball; 3.5 $ @home\n", "the dogs' ball; 3.5 $ @home", 'the dogs ball 35 home'),
        ('Cafe\u0301?', 'caf\u00e9', 'caf\u00e9'),  # in one form of Unicode
        ('?', '', ''),
    ],
)
def test_words(text, ban, skip_thought):
    assert ban_words(text) == ban.split()
    assert skip_thought_words(text) == skip_thought.split()


def test_vocabulary_counts_all_words():
    """By frequency, then by the alphabet; also those that no question of the model reaches; none that is reserved."""
    assert question_words(['b a b', 'c ' * 30, 'a <pad> </s>'], 'ban') == ['c', 'a', 'b']
    assert question_words(["b's"], 'ban') == ["'s", 'b']
    assert question_words(["b's"], 'skip-thought') == ['bs']
    with pytest.raises(ValueError, match='tokens'):
        question_words([], 'moses')
