"""The vocabulary and its file: what is read is what was written, symbol by symbol."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmattn.language import Vocabulary
from mmattn.language.text.text_files import read_lines
from mmattn.language.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

ROW_END = '\u2028'  # ends a line for str.splitlines
symbols = st.text(st.characters(exclude_characters=' \r\n', exclude_categories=['Cs']), min_size=1, max_size=4)
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


@pytest.mark.parametrize(
    ('known', 'message'),
    [
        (['a', 'b', 'a'], "'a' twice"),
        (['</s>'], "'</s>' twice; <s>, <pad>, </s>, <unk> are always"),
        (['a', ''], "without spaces; got ''"),
        (['a b'], "without spaces; got 'a b'"),
    ],
)
def test_invalid_symbols(known, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(known)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'a 3\nb 2\na 1\n', r"vocabulary\.txt, line 3: 'a' is also in line 1"),
        (b'a 3\n<unk> 2\n', r"vocabulary\.txt, line 2: <s>, <pad>, </s>, <unk> are always .* '<unk>'"),
        (b'a 3\n\nb 1\n', r"vocabulary\.txt, line 2: expected a symbol and its count; got ''"),
        (b'a 3\nb c\n', r"vocabulary\.txt, line 2: .* got 'b c'"),
        (b'a 3\nb 2 1\n', r"vocabulary\.txt, line 2: .* got 'b 2 1'"),
        (b'a 3\nb 2\n\xff 1\n', r'vocabulary\.txt, line 3: not UTF-8'),
    ],
    ids=['twice', 'special', 'empty', 'no count', 'two counts', 'not UTF-8'],
)
def test_an_invalid_file_is_named_with_the_line(tmp_path, content, message):
    path = tmp_path / 'vocabulary.txt'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Vocabulary.from_file(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere'):
        Vocabulary.from_file(tmp_path / 'nowhere.txt')


def test_lines_end_only_at_line_ends(tmp_path):
    path = tmp_path / 'text'
    lines = [f'a{ROW_END}b', 'c\u0085d\x0be\x0c', '', 'f\rg', ' h ']
    path.write_bytes('\r\n'.join(lines).encode())
    assert read_lines(path) == lines
    path.write_bytes('\n'.join([*lines, '']).encode())
    assert read_lines(path) == lines
    path.write_bytes(b'')
    assert read_lines(path) == []
    path.write_bytes(f'a{ROW_END}b\nc'.encode() + b'\xc3')  # cut within a character
    with pytest.raises(ValueError, match='text, line 2: not UTF-8'):
        read_lines(path)
