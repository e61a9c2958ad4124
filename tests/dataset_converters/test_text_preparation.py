"""The preparation of parallel text, against the same computed with plain lists."""

import gzip
import io
import json
import re
import signal
from collections import Counter
from itertools import product

import pytest

from common import text_preparation as preparation
from common.published_text import find_files, find_pairs, iter_pairs, read_segments
from common.text_preparation import CorpusWriter, Limits, learn_codes, map_pairs, prepare_corpus, prepare_test
from mmattn.language.text.annotation_files import read_json
from mmattn.language.text.subwords import TextProcessor, undo_bpe
from mmattn.language.text.text_files import iter_lines, read_lines
from mmattn.language.text.vocabulary import Vocabulary
from mmattn.utils import progress
from mmattn.utils.faults import Faults

from ..language.failing import failing
from ..language.files import content

PAIRS = [
    ('A dog runs.', 'Ein Hund läuft.'),
    ('The dogs run, and the dog barks.', 'Die Hunde laufen, und der Hund bellt.'),
    ('', 'leer'),
    ("A man's hat.", 'Der Hut eines Mannes.'),
    ('Men run.', 'Männer\u2028laufen.'),
    ('A man runs and runs and runs.', 'Ein Mann läuft.'),
    ('The hat.', 'Der Hut.'),
] * 3
TEST = [('A dog\u2028barks…', 'Ein Hund bellt…'), ('Empty.', '')]


def write(path, lines, end='\n'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(''.join(f'{line}{end}' for line in lines).encode())
    return path


# Published files.


@pytest.mark.parametrize('end', ['\n', '\r\n'])
@pytest.mark.parametrize('last', ['', 'without end'])
def test_lines_end_at_line_feeds_only(tmp_path, end, last):
    lines = ['a\u2028b', '', 'c\x85d\x0b\x1c', 'e\rf', ' ü ']
    path = write(tmp_path / 'a.en', lines, end)
    with path.open('ab') as file:
        file.write(last.encode())
    compressed = tmp_path / 'a.en.gz'
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    assert [*iter_lines(path)] == [*iter_lines(compressed)] == read_lines(path) == [*lines, last][: 6 if last else 5]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    """Only at the start of a file; elsewhere, it is a character."""
    path = tmp_path / 'a.en'
    path.write_text('\ufeffa dog\n\ufeffa cat\n', encoding='utf-8')
    assert read_lines(path) == ['a dog', '\ufeffa cat']
    path.write_text('\ufeff{"a": "\ufeff"}', encoding='utf-8')
    assert read_json(path) == {'a': '\ufeff'}


def test_segments(tmp_path):
    path = tmp_path / 'a.xml'
    write(path, ['<doc>', '<seg id="1"> R&amp;D &lt;b&gt; &amp;lt; </seg>', '<seg id="2"></seg>', '<seg id=3>c</seg>'])
    assert read_segments(path) == ['R&D <b> &lt;', '', 'c']


def test_files_are_found_in_subfolders(tmp_path):
    deep, near = write(tmp_path / 'a/b/x.en', ['1']), write(tmp_path / 'c/x.en', ['2'])
    packed = write(tmp_path / 'a/y.en.gz', [])
    faults = Faults()
    assert find_files(tmp_path, ['x.en', 'y.en'], faults) == {'x.en': near, 'y.en': packed}
    assert not faults
    near.unlink()
    assert find_files(tmp_path, ['x.en', 'z.en', 'x.de'], faults) == {'x.en': deep}
    assert faults.by_path == {str(tmp_path): [f'no {name} or {name}.gz in it' for name in ('z.en', 'x.de')]}
    assert find_pairs(tmp_path, ['x', 'y'], ('en', 'de'), faults) == {}
    assert 'no y.de or y.de.gz in it' in faults.by_path[str(tmp_path)]


# Steps.


def test_limits():
    for a, b, longest, ratio in product(range(5), range(5), (None, 2, 3), (None, 1.5)):
        dropped = a < 1 or b < 1
        dropped |= longest is not None and (a > longest or b > longest)
        dropped |= ratio is not None and not dropped and (a / b > ratio or b / a > ratio)
        assert Limits(longest, ratio).allow((' '.join('a' * a), ' '.join('b' * b))) == (not dropped)


def test_codes_are_those_of_subword_nmt():
    from subword_nmt.learn_bpe import learn_bpe

    text = [line.lower() for pair in PAIRS for line in pair]
    words = Counter(word for line in text for word in line.split())
    codes = learn_codes(words, 1000)
    assert learn_codes(words, 7) == codes[:8]  # after the version
    output = io.StringIO()
    learn_bpe([' '.join(line.split()) for line in text], output, 1000)
    assert output.getvalue().splitlines() == codes
    assert len(codes) < 1000
    assert learn_codes({'ab': 2}, 5)[1:] == ['a b</w>']  # the shortest words that have a pair


# The corpus.


def tokens_of(pairs, lowercase=True, **options):
    both = [TextProcessor(language, None, lowercase, **options) for language in ('en', 'de')]
    return [tuple(text.tokenize(line) for text, line in zip(both, pair)) for pair in pairs]


def segments_of(tokens, codes):
    text = TextProcessor('en', codes, lowercase=True)
    return [tuple(map(text.segment, pair)) for pair in tokens]


def check_corpus(folder, train, val, test, codes, raw):
    """``train`` and so on: the expected pieces, raw: the expected raw text of val and test."""
    for split, pairs in dict(train=train, val=val, test=test).items():
        for side, language in enumerate(('en', 'de')):
            assert read_lines(folder / f'{split}.{language}') == [pair[side] for pair in pairs]
    for split, pairs in raw.items():
        for side, language in enumerate(('en', 'de')):
            assert read_lines(folder / f'{split}.raw.{language}') == [pair[side] for pair in pairs]
    assert read_lines(folder / 'bpe.codes') == codes
    counted = Counter(piece for pair in train for line in pair for piece in line.split(' ') if piece)
    lines = read_lines(folder / 'vocabulary.txt')
    assert lines == [f'{piece} {n}' for piece, n in sorted(counted.items(), key=lambda item: (-item[1], item[0]))]
    vocabulary = Vocabulary.from_file(folder / 'vocabulary.txt')
    assert len(vocabulary) == len(counted) + 4
    for pair in train:
        assert [vocabulary.decode(vocabulary.encode(line)) for line in pair] == [*pair]


def test_a_corpus_with_a_validation_set(tmp_path):
    val = [('Dogs bark.', 'Hunde bellen.')]
    record, warnings = prepare_corpus(
        tmp_path / 'new', ('en', 'de'), iter(PAIRS), iter(TEST), val, merges=20, lowercase=True
    )
    tokens = [pair for pair in tokens_of(PAIRS) if all(pair)]
    codes = learn_codes(Counter(word for pair in tokens_of(PAIRS) for line in pair for word in line.split()), 20)
    train, held_out, test = (segments_of(each, codes) for each in (tokens, tokens_of(val), tokens_of(TEST)))
    check_corpus(tmp_path / 'new', train, held_out, test, codes, dict(val=val, test=TEST))
    assert warnings == ['test: empty lines are kept: 2']
    assert record == read_json(tmp_path / 'new/corpus.json')
    assert record['counts'] == dict(train=18, val=1, test=2)
    assert [record[key] for key in ('source', 'target', 'lowercase', 'merges', 'dropped')] == ['en', 'de', True, 20, 3]
    assert [path.name for path in tmp_path.iterdir()] == ['new']
    assert b'\r' not in b''.join(content(tmp_path / 'new').values())
    text = TextProcessor.from_corpus(tmp_path / 'new', 'de')
    assert ' '.join(text.pieces(PAIRS[0][1])) == train[0][1]
    assert undo_bpe(train[0][1]) == 'ein hund läuft .'


def test_validation_pairs_are_taken_after_the_limits_on_tokens(tmp_path):
    """And before those on pieces."""
    limits, piece_limits = Limits(8, 1.5), Limits(12, 2.5)
    record, _ = prepare_corpus(
        tmp_path / 'new',
        ('en', 'de'),
        PAIRS,
        TEST,
        merges=20,
        lowercase=False,
        moses=dict(escape=True),
        validate_every=4,
        token_limits=limits,
        piece_limits=piece_limits,
        test_tokens=(str.upper, str.lower),
    )
    tokens = tokens_of(PAIRS, lowercase=False, escape=True)
    allowed = [(raw, pair) for raw, pair in zip(PAIRS, tokens) if limits.allow(pair)]
    codes = learn_codes(
        Counter(w for i, (_, pair) in enumerate(allowed, 1) if i % 4 for line in pair for w in line.split()), 20
    )
    segmented = [(raw, *segments_of([pair], codes)) for raw, pair in allowed]
    val = [each for each in segmented[3::4] if piece_limits.allow(each[1])]
    train = [each for i, each in enumerate(segmented, 1) if i % 4 and piece_limits.allow(each[1])]
    upper = [(a.upper(), b.lower()) for a, b in TEST]
    check_corpus(
        tmp_path / 'new',
        [pieces for _, pieces in train],
        [pieces for _, pieces in val],
        segments_of(upper, codes),
        codes,
        dict(val=[raw for raw, _ in val], test=TEST),
    )
    assert record['counts'] == dict(train=len(train), val=len(val), test=2)
    assert record['dropped'] == len(PAIRS) - len(train) - len(segmented[3::4])
    assert 0 < len(train) < len(segmented) - len(segmented[3::4])
    assert len(val) > 0
    assert record['moses'] == dict(escape=True)


def test_processes_write_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, 'CHUNK', 4)
    for workers in (1, 2):
        options = dict(merges=20, lowercase=True, validate_every=5, workers=workers)
        prepare_corpus(tmp_path / f'{workers}', ('en', 'de'), PAIRS, TEST, **options)
    assert content(tmp_path / '1') == content(tmp_path / '2')


def handler_of(name):
    return signal.getsignal(signal.Signals[name]).name


def test_a_process_leaves_ctrl_c_to_its_parent_and_can_be_ended():
    """Also where the parent itself, as the converters, takes the signal that ends it for an error."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ((_, found),) = map_pairs((handler_of, handler_of), [('SIGINT', 'SIGTERM')], workers=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found == ('SIG_IGN', 'SIG_DFL')


def test_reserved_symbols_are_not_in_the_vocabulary(tmp_path):
    writer = CorpusWriter(tmp_path / 'new', ('en', 'de'))
    writer.write_training([('a <unk> b', '<s> a')])
    writer.finish(['a b'], lowercase=False)
    assert read_lines(tmp_path / 'new/vocabulary.txt') == ['a 2', 'b 1']
    assert writer.warnings == ['train: contains <s>, <unk>, which models use for other purposes']


def prepare(folder, **change):
    options = dict(languages=('en', 'de'), train=PAIRS, test=PAIRS[:2], val=PAIRS[:2], merges=5, lowercase=True)
    return prepare_corpus(folder / 'new', **options | change)


def test_exchanged_and_equal_sides_are_warnings(tmp_path):
    _, warnings = prepare(tmp_path / 'a', train=[pair[::-1] for pair in PAIRS if pair[0]], merges=20)
    assert warnings == ['train: en looks like de, and de like en']
    _, warnings = prepare(tmp_path / 'b', train=[(english, english) for english, _ in PAIRS], merges=20)
    assert warnings == ['train: source and target are equal in 18 of 21 pairs']  # three are empty


@pytest.mark.parametrize('change', [lambda line: line.replace('.', ' .'), lambda line: line.replace("'", '&apos;')])
@pytest.mark.parametrize('side', [0, 1])
def test_text_that_is_tokenized_already_is_a_warning(tmp_path, change, side):
    """Of the training, and of a later test set. One line among many is no reason."""
    line = "The men's dog runs."
    raw = [(line, line)] * 3
    changed = [tuple(change(text) if i == side else text for i, text in enumerate(pair)) for pair in raw]
    _, warnings = prepare(tmp_path / 'one', train=[*PAIRS, *changed[:1]])
    assert warnings == []
    _, [warning] = prepare(tmp_path / 'more', train=[*PAIRS, *changed])
    assert warning.startswith('train: ')
    assert '12%' in warning
    _, warnings = prepare_test(tmp_path / 'test', tmp_path / 'one/new', changed)
    assert '100%' in warnings[0]
    _, warnings = prepare_test(tmp_path / 'raw', tmp_path / 'one/new', raw)
    assert '%' not in ''.join(warnings)


def test_a_new_test_set_of_other_symbols(tmp_path):
    prepare(tmp_path)
    _, [warning] = prepare_test(tmp_path / 'other', tmp_path / 'new', [('Жук', 'Ein Hund.')])
    assert re.fullmatch(rf'test: \d of \d+ symbols are not in the vocabulary of {tmp_path / "new"}', warning)
    with pytest.raises(ValueError, match=r'test: .*: 1'):
        prepare_test(tmp_path / 'none', tmp_path / 'new', [('', 'x')])
    assert not (tmp_path / 'none').exists()


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch, capfd):
    monkeypatch.setattr(progress, 'SECONDS', 0)
    assert len([*map_pairs((str.lower, str.upper), [('A', 'b')] * 3, description='tokenizing', total=3)]) == 3
    assert capfd.readouterr().err.splitlines() == [f'tokenizing: {number} of 3' for number in range(3)]
    learn_codes({'aab': 3, 'ab': 1}, merges=1)
    assert re.match(r'learning BPE: +0%.*\n', capfd.readouterr().err)
    monkeypatch.setattr(progress, 'SECONDS', 10)
    assert len([*map_pairs((str.lower, str.upper), [('A', 'b')] * 3, description='tokenizing')]) == 3
    assert capfd.readouterr().err == ''


def new_test(folder, pairs=PAIRS[:1], **record):
    """Prepare a corpus, change its record, and prepare a new test set for it."""
    prepare(folder)
    content = read_json(folder / 'new/corpus.json')
    (folder / 'new/corpus.json').write_text(json.dumps(content | record), encoding='utf-8')
    return prepare_test(folder / 'other', folder / 'new', pairs)


def test_an_escaped_character_of_two_halves_is_read(tmp_path):
    (tmp_path / 'a.json').write_text('["\\ud83d\\ude00 \\u00e9"]')
    assert read_json(tmp_path / 'a.json') == ['\U0001f600 é']


def test_fewer_merges_than_asked_for_are_a_warning(tmp_path):
    prepare(tmp_path / 'all', merges=1000)
    most = len(read_lines(tmp_path / 'all/new/bpe.codes')) - 1  # without the version
    for more in (0, 1):
        _, warnings = prepare(tmp_path / f'{more}', merges=most + more)
        assert [bool(re.search(f'{most} of {most + 1} BPE', text)) for text in warnings] == [True] * more


@pytest.fixture
def path(tmp_path):
    """``path(name, content)`` writes a file, and returns its path."""

    def write_bytes(name, content):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write_bytes


test_failures = failing(
    (lambda path: read_lines(path('bad.en', b'gut\n\xc3\xbcbel\n\xfc\n')), 'bad.en, line 3'),
    (lambda path: read_lines(path('cut.en.gz', gzip.compress(b'one\ntwo\n')[:-9])), 'cut.en.gz: .*after line'),
    (lambda path: read_lines(path('plain.en.gz', b'one\n')), 'plain.en.gz: .*line 0'),
    (lambda path: read_segments(path('a.xml', b'<seg id="1">a</seg>\n<seg id="2">b\n')), 'a.xml, line 2'),
    (lambda path: [*map_pairs((str, str), iter_pairs(*[path('a', b'a\n\xff\n')] * 2), workers=2)], 'line 2'),
    (lambda: learn_codes({'ab': 1}, 10), 'twice'),
    (lambda tmp_path: new_test(tmp_path, []), 'test'),
    (lambda tmp_path: new_test(tmp_path, lowercase='yes'), 'corpus.json: .*yes'),
    (lambda tmp_path: new_test(tmp_path, moses=dict(escape=1)), 'corpus.json: .*escape'),
    (lambda tmp_path: new_test(tmp_path, target='../de'), r'corpus.json: .*\.\./de'),
    (lambda path: read_json(path('half.json', b'["\\ud83d"]')), 'half.json'),
    (lambda tmp_path: prepare(tmp_path, validate_every=2), 'val and validate_every'),
    (lambda tmp_path: prepare(tmp_path, val=None), 'val and validate_every'),
    (lambda tmp_path: prepare(tmp_path, languages=('en', 'xx')), 'language'),
    (lambda tmp_path: prepare(tmp_path, val=[]), 'val'),
    (lambda tmp_path: prepare(tmp_path, test=[]), 'test'),
    (lambda tmp_path: prepare(tmp_path, piece_limits=Limits(1)), 'train'),
    (lambda tmp_path: prepare(tmp_path, val=PAIRS), '^val: .*: 3, 10, 17$'),
    (lambda path: prepare(path('new/a', b'').parents[1]), 'new'),
    error=(OSError, ValueError),
)
