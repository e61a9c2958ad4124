"""The vocabulary and its file, symbol by symbol; the rules of words, and the words of a vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmattn.language import Vocabulary
from mmattn.language.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK
from mmattn.language.text.words import ban_words, find_rule, question_words

symbols = st.text(st.characters(exclude_characters=' \t\r\n', exclude_categories=['Cs']), min_size=1, max_size=4)
vocabularies = st.lists(symbols.filter(lambda symbol: symbol not in SPECIALS), min_size=1, max_size=8, unique=True)
quick = settings(max_examples=100, derandomize=True, deadline=None, database=None)


@given(st.data())
@quick
def test_what_is_decoded_is_what_was_encoded(data):
    """For any symbols, those with U+2028 or a tab included, and any number of spaces between them."""
    known = data.draw(vocabularies)
    line = data.draw(st.lists(st.sampled_from(known), max_size=6))
    spaces = data.draw(st.integers(1, 3))
    vocabulary = Vocabulary(known)
    numbers = vocabulary.encode((' ' * spaces).join(line) + ' ' * (spaces - 1))
    assert numbers == [*(4 + known.index(symbol) for symbol in line), EOS]
    assert vocabulary.decode(numbers) == ' '.join(line)


@given(vocabularies)
@quick
def test_a_file_returns_its_symbols(tmp_path_factory, known):
    path = tmp_path_factory.getbasetemp() / 'vocabulary.txt'
    path.write_bytes(''.join(f'{symbol} {count}\n' for count, symbol in enumerate(known)).encode())
    counted = Vocabulary.from_file(path)
    path.write_bytes('\r\n'.join(known).encode())  # without counts, from Windows, without a line end at the end
    for vocabulary in (counted, Vocabulary.from_file(path)):
        assert vocabulary.symbols == (*SPECIALS, *known)
        assert len(vocabulary) == 4 + len(known)


def test_the_first_four_numbers():
    assert (BOS, PAD, EOS, UNK) == (0, 1, 2, 3)
    assert Vocabulary(['a']).symbols == ('<s>', '<pad>', '</s>', '<unk>', 'a')


def test_unknown_symbols():
    """Each is one <unk>; decoding ends at </s> and omits <s> and <pad>."""
    vocabulary = Vocabulary(['a', 'b'])
    assert vocabulary.encode('x a yy b') == [UNK, 4, UNK, 5, EOS]
    assert vocabulary.encode('') == vocabulary.encode('  ') == [EOS]
    assert vocabulary.decode([BOS, UNK, PAD, 4, EOS, 5]) == '<unk> a'
    assert vocabulary.decode([EOS, 4]) == vocabulary.decode([]) == ''


@pytest.mark.parametrize('symbols', [['a', 'b', 'a'], ['</s>'], ['a', ''], ['a b']])
def test_invalid_symbols(symbols):
    with pytest.raises(ValueError, match=f'{symbols[-1]!r}'):
        Vocabulary(symbols)


@pytest.mark.parametrize(
    ('content', 'line'),
    [
        (b'a 3\nb 2\na 1\n', 3),
        (b'a 3\n<unk> 2\n', 2),
        (b'a 3\n\nb 1\n', 2),
        (b'a 3\nb c\n', 2),
        (b'a 3\nb 2 1\n', 2),
        (b'a 3\nb 2\n\xff 1\n', 3),
    ],
)
def test_an_invalid_file_is_named_with_the_line(tmp_path, content, line):
    (tmp_path / 'vocabulary.txt').write_bytes(content)
    with pytest.raises(ValueError, match=rf'vocabulary\.txt, line {line}'):
        Vocabulary.from_file(tmp_path / 'vocabulary.txt')


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
    assert find_rule('skip-thought').words(text) == skip_thought.split()


def test_vocabulary_counts_all_words():
    """By frequency, then by the alphabet; also those that no question of the model reaches; none that is reserved."""
    assert question_words(['b a b', 'c ' * 30, 'a <pad> </s>'], 'ban') == ['c', 'a', 'b']
    assert question_words(["b's"], 'ban') == ["'s", 'b']
    assert question_words(["b's"], 'skip-thought') == ['bs']
    with pytest.raises(ValueError, match='tokens'):
        question_words([], 'moses')
