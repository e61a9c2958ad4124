"""Unicode's form of a text, and its words by the rules of published code."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .vocabulary import PAD, SPECIALS, UNK


def normalize_unicode(text: str) -> str:
    """Convert text to Unicode's form NFC, in which an accented letter is one character.

    In the form NFD, which macOS uses in file names, no accented letter would be in the vocabulary.

    Example:
        >>> len('u\u0308'), len(normalize_unicode('u\u0308'))
        (2, 1)
    """
    return unicodedata.normalize('NFC', text)


def ban_words(text: str) -> list[str]:
    """Split a question into words by the rule of the bilinear attention network's code.

    Example:
        >>> ban_words("What is the dog's name, really?")
        ['what', 'is', 'the', 'dog', "'s", 'name', 'really']
    """
    return normalize_unicode(text).lower().replace(',', '').replace('?', '').replace("'s", " 's").split()


def skip_thought_words(text: str) -> list[str]:
    """Split a question into words by the rule of MUTAN's code, whose question encoder is Skip-Thought.

    Example:
        >>> skip_thought_words("What is the dog's T-shirt made of (cotton)?")
        ['what', 'is', 'the', 'dogs', 't', 'shirt', 'made', 'of', 'cotton']
    """
    return _split_without(text, '?!\'"$:@(),.;')


def mcan_words(text: str) -> list[str]:
    """Split a question into words by the rule of MCAN's code.

    Example:
        >>> mcan_words("What's on the dog's T-shirt: #1, $5?")
        ['whats', 'on', 'the', 'dogs', 't', 'shirt', '1', '$5']
    """
    return _split_without(text, '.,\'!?"()*#:;')


def _split_without(text: str, deleted: str) -> list[str]:
    """Split a text at spaces, hyphens and slashes, without some characters."""
    table = {**dict.fromkeys(map(ord, deleted)), ord('-'): ' ', ord('/'): ' '}
    return normalize_unicode(text).lower().translate(table).split()


class _Rule(NamedTuple):
    words: Callable[[str], list[str]]
    max_words: int
    unknown: int  # the number of an unknown word


RULES = {
    'ban': _Rule(ban_words, 14, PAD),
    'mcan': _Rule(mcan_words, 14, UNK),
    'skip-thought': _Rule(skip_thought_words, 26, UNK),
}


def find_rule(tokens: str) -> _Rule:
    """Look up the rule of a kind of tokens, 'ban', 'mcan' or 'skip-thought'."""
    if tokens not in RULES:
        raise ValueError(f'tokens must be one of {", ".join(map(repr, RULES))}; got {tokens!r}')
    return RULES[tokens]


def question_words(texts: Iterable[str], tokens: str) -> list[str]:
    """Sort the words of questions by frequency, then alphabetically. ``tokens`` is a kind of ``RULES``.

    All words of a question count, even words beyond the number of words that a model reads.
    """
    words = find_rule(tokens).words
    counts = Counter(word for text in texts for word in words(text))
    return sorted(counts.keys() - set(SPECIALS), key=lambda word: (-counts[word], word))
