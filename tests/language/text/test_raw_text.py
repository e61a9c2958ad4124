"""What is said about text that a program has changed before, and that nothing is said about raw text."""

import gzip

import pytest

from mmattn.language.text.raw_text import RawTextCheck

from ...requirements import real_data, requires

GERMAN = [
    'Ein Hund läuft.',
    'Zwei Männer, eine Frau.',
    'Sie sagt: „Ja!“',
    'Er fragt (laut): „Wo?“',
    'Sie ist 3,5 m groß.',
]
ENGLISH = ['A dog runs.', 'Two men, a woman.', 'She says “yes!” & “no!”', "He asks: where's it?", 'She is 3.5 m tall.']
PAIRS = [*zip(ENGLISH, GERMAN)] * 10


def said(pairs, languages=('en', 'de')):
    check = RawTextCheck(languages)
    for pair in pairs:
        check(pair)
    return check.warnings('train')


@pytest.mark.parametrize(
    'change',
    [
        lambda line: line.replace("'", '&apos;').replace('&', '&amp;').replace('.', '&#46;'),
        lambda line: line.replace('.', ' .').replace('?', ' ?'),
        lambda line: line.replace(' ', ' @-@ '),
        lambda line: line.replace('a', 'a@@ ').replace('i', 'i@@ '),
        lambda line: f'▁{line}'.replace(' ', ' ▁'),
        lambda line: f'"{line}"',
        lambda line: f'“{line}”',
        lambda line: line.replace('i', '\\"i'),
    ],
)
@pytest.mark.parametrize('side', [0, 1])
@pytest.mark.parametrize('share', [1.0, 0.4])
def test_changed_lines_are_found_by_their_share(change, side, share):
    """On the side where they are. One line among many is no reason."""
    pairs = [
        tuple(change(line) if i == side and n < share * len(PAIRS) else line for i, line in enumerate(pair))
        for n, pair in enumerate(PAIRS)
    ]
    assert pairs != PAIRS
    (warning,) = said(pairs)
    assert warning.startswith(f'train.{("en", "de")[side]}: ')
    assert said([*pairs[:1], *PAIRS[1:]]) == []


def test_cells_with_doubled_quotes():
    quoted = '"He said ""no"" to me."', '"Er sagte ""nein""."'
    warnings = said([*PAIRS, *[quoted] * 3])
    assert [line.split()[:4] for line in warnings] == [[f'train.{code}:', '3', 'of', '53'] for code in ('en', 'de')]


@pytest.mark.parametrize(
    ('header', 'pairs', 'expected'),
    [
        (('english', 'german'), PAIRS, 1),
        (('Source text', 'Target text'), PAIRS, 1),
        (('"src"', '"tgt"'), PAIRS, 1),
        (('en', 'de'), [(str(n), 'Wort') for n in range(50)], 1),
        (('word', 'Wort'), [(str(n), 'Wort') for n in range(50)], 0),  # a dictionary
        (('A dog.', 'Ein Hund.'), PAIRS, 0),
        (('A long title without any end', 'Ein langer Titel ohne ein Ende'), PAIRS, 0),
    ],
)
def test_headers(header, pairs, expected):
    assert len(said([header, *pairs])) == expected


@pytest.mark.parametrize(('length', 'shown'), [(60, 60), (61, 60)])
def test_only_the_start_of_a_long_example_is_shown(length, shown):
    line = 'a @-@ '.ljust(length, 'b')
    (warning,) = said([(line, 'Ja.')] * 9)
    assert repr(line[:shown] + '…' * (length > shown)) in warning


def test_spaces_of_french_are_as_people_write():
    french = 'Vraiment ?', 'Oui !', 'Il dit : « oui » ; voilà.', 'Fin.'
    assert said([(line, 'Ja.') for line in french] * 9, ('fr', 'de')) == []
    assert len(said([(line.replace('.', ' .'), 'Ja.') for line in french] * 9, ('fr', 'de'))) == 1


@requires('multi30k')
def test_raw_captions():
    lines = {
        code: gzip.decompress((real_data('multi30k') / f'val.{code}.gz').read_bytes()).decode().split('\n')[:-1]
        for code in ('en', 'de', 'fr', 'cs')
    }
    for code in ('de', 'fr', 'cs'):
        assert said(zip(lines['en'], lines[code]), ('en', code)) == []
