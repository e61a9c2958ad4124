"""Unicode's form of a text, and its words by the rules of published code."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from mmattn.utils.checks import check_choice

from .vocabulary import PAD, SPECIALS, UNK


def normalize_unicode(text: str) -> str:
    """Convert text to Unicode's form NFC, in which an accented letter is one character.

    In the form NFD, which macOS uses in file names, no accented letter would be in the vocabulary.

    Example:
        >>> len('u\u0308'), len(normalize_unicode('u\u0308'))
        (2, 1)
    """
    return unicodedata.normalize('NFC', text)


def unspaced_script(lines: Iterable[str]) -> str | None:
    """Find the script of text if it is one without spaces between words, by Unicode's name of most of its letters.

    Example:
        >>> unspaced_script(['今天天气很好。']), unspaced_script(['Tokyo 東京'])
        ('CJK', None)
    """
    scripts: Counter[str] = Counter()
    for line in lines:
        for letter in filter(str.isalpha, line):
            scripts['' if letter < '\u0e00' else unicodedata.name(letter, '').split()[0].split('-')[0]] += 1
    unspaced = {name: count for name, count in scripts.items() if name in UNSPACED}
    return max(unspaced, key=lambda name: unspaced[name]) if 2 * sum(unspaced.values()) > scripts.total() else None


def unspaced_fault(texts: Sequence[str]) -> str | None:
    """Explain that texts have no words to read, if their script has no spaces and nobody has added them."""
    script = unspaced_script(texts)
    if script is None:
        return None
    length = len(''.join(texts)) / max(sum(len(text.split()) for text in texts), 1)
    return (
        None
        if length < 6
        else f'text in the script {script} without spaces, such as {texts[0]!r}: divide it into words'
    )


def ban_words(text: str) -> list[str]:
    """Split a question into words by the rule of the bilinear attention network's code.

    Example:
        >>> ban_words("What is the dog's name, really?")
        ['what', 'is', 'the', 'dog', "'s", 'name', 'really']
    """
    return normalize_unicode(text).lower().replace(',', '').replace('?', '').replace("'s", " 's").split()


def split_without(deleted: str, text: str) -> list[str]:
    """Split a text at spaces, hyphens and slashes, without the ``deleted`` characters."""
    table = {**dict.fromkeys(map(ord, deleted)), ord('-'): ' ', ord('/'): ' '}
    return normalize_unicode(text).lower().translate(table).split()


# By the first word of the names of their letters.
UNSPACED = {'BALINESE', 'CJK', 'HIRAGANA', 'JAVANESE', 'KATAKANA', 'KHMER', 'LAO', 'MYANMAR', 'TAI', 'THAI', 'TIBETAN'}


class _Rule(NamedTuple):
    words: Callable[[str], list[str]]
    max_words: int
    unknown: int  # the number of an unknown word


# The published code of the bilinear attention network, of MCAN, and of MUTAN, whose question encoder is Skip-Thought.
RULES = {
    'ban': _Rule(ban_words, 14, PAD),
    'mcan': _Rule(partial(split_without, '.,\'!?"()*#:;'), 14, UNK),
    'skip-thought': _Rule(partial(split_without, '?!\'"$:@(),.;'), 26, UNK),
}


def find_rule(tokens: str) -> _Rule:
    """Look up the rule of a kind of tokens, 'ban', 'mcan' or 'skip-thought'."""
    check_choice('tokens', tokens, RULES)
    return RULES[tokens]


def question_words(texts: Iterable[str], tokens: str) -> list[str]:
    """Sort the words of questions by frequency, then alphabetically. ``tokens`` is a kind of ``RULES``.

    All words of a question count, even words beyond the number of words that a model reads.
    """
    words = find_rule(tokens).words
    counts = Counter(word for text in texts for word in words(text))
    return sorted(counts.keys() - set(SPECIALS), key=lambda word: (-counts[word], word))
