"""Tokenization and BPE: tokens and pieces written by hand, and text that is restored."""

import pickle
import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmattn.language.text.subwords import TextProcessor, languages, undo_bpe, unmark

from ..failing import failing
from ..files import write_json

CODES = ['#version: 0.2', 't h', 'th e</w>', 'a b', 'ab a', 'a b</w>', 'e r', 'b a</w>']


@pytest.mark.slow
@given(st.text())
@settings(deadline=None)
def test_undone_bpe_returns_the_tokens_of_any_text(line):
    for escape in (False, True):
        text = TextProcessor('de', CODES, lowercase=True, escape=escape)
        tokens = text.tokenize(line)
        assert tokens.split() == [token for token in tokens.split(' ') if token]  # no white space but spaces
        assert undo_bpe(text.segment(tokens)) == tokens
        assert text.pieces(line) == text.segment(tokens).split()


@pytest.mark.slow
@given(st.text())
@settings(deadline=None)
def test_joins_restore_any_text(line):
    text = TextProcessor('en', CODES, lowercase=False, joins=True)
    tokens = text.tokenize(line)
    assert undo_bpe(text.segment(tokens)) == tokens
    expected = re.sub('[\\x00-\\x08\\x0e-\\x1b\\x7f]', '', unicodedata.normalize('NFC', line)).replace('￭', '■')
    assert re.sub(r'\s+', ' ', text.detokenize(tokens)) == ' '.join(expected.split())


WEB = [
    '“Don’t,” he said—twice…',
    '„Tak” — ‚ja‘, »nein« ’s avonds',
    'L’élève dit\u00a0: «\u00a0oui\u00a0»\u202f; 1\u202f250,50\u00a0€ ? non !',
    '3,5 % von 10 m², 25 °C; 5′ 3″ ±½ ≥ 1–2',
    'यह है। ৫০% “ছাড়”। क्\u200dया॥',
    '他说：“今天（很好）！”——《书》、10%。',
    'قَالَ: «أَهْلًا»، ٥٠٪؟ می\u200cخواهم 👩\u200d👧 👍🏽 ☎️!',
    """'n' "x" ``y'' 10:30 a@b.c http://x.y/z?q=1#t &amp; @-@ @@ a@@ x\\y DOTMULTI """.strip(),
]


@pytest.mark.parametrize('codes', [('en', 'fr', 'zh'), pytest.param(None, marks=pytest.mark.slow)])
def test_joins_restore_the_typography_of_the_web_in_every_language(codes):
    for language in codes or languages():
        text = TextProcessor(language, None, lowercase=False, joins=True)
        assert text.detokenize(text.tokenize(' '.join(WEB))) == ' '.join(WEB)


@pytest.mark.parametrize(
    ('line', 'tokens'),
    [
        ('“Don’t,” he said.', '“ ￭Don ￭’t ￭, ￭” he said ￭.'),
        ('non\u00a0! cafe\u0301', 'non \u00a0! caf\u00e9'),
        ('क्\u200dया है।', 'क्\u200dया है ￭।'),
        ('a ￭b \t c', 'a ■ ￭b c'),
        ('A dog \x02 runs\x00.', 'A dog runs ￭.'),
        ('\x02 A\tdog\x0bruns\x1cup\x1ffast\x7f \x7f', 'A dog runs up fast'),
        ('non \x02\u00a0\x02 !', 'non \u00a0!'),
        ('', ''),
    ],
)
def test_joins(line, tokens):
    text = TextProcessor('en', None, lowercase=False, joins=True)
    assert text.tokenize(line) == tokens
    assert unmark(tokens).split(' ') == [token.strip('￭\u00a0') for token in tokens.split(' ')]


@pytest.mark.parametrize('ending', ['', '@@', '@@ '])
def test_undo_bpe_at_the_end_of_a_line(ending):
    assert undo_bpe(f'a@@ b c{ending}') == 'ab c'


@pytest.mark.parametrize(
    ('language', 'line', 'tokens'),
    [
        ('en', "Mr. Smith's e-mail, sent at 5,300 km (in the U.S.): wow!", None),
        ('en', 'Wait... "No", they said; don\'t!', 'Wait ... " No " , they said ; don \'t !'),
        ('de', 'Das z.B. kostet 3,50 Euro, oder?', 'Das z.B. kostet 3,50 Euro , oder ?'),
        ('fr', "L'homme n'est pas l'ami d'Anne.", "L' homme n' est pas l' ami d' Anne ."),
        ('cs', 'Pes běží po trávě.', 'Pes běží po trávě .'),
    ],
)
def test_tokens_and_back(language, line, tokens):
    text = TextProcessor(language, None, lowercase=False)
    found = text.tokenize(line)
    assert found == (tokens or "Mr. Smith 's e-mail , sent at 5,300 km ( in the U.S. ) : wow !")
    assert text.detokenize(found) == line
    assert text.segment(found) == found
    assert TextProcessor(language, None, lowercase=True).tokenize(line) == found.lower()


def test_one_form_of_unicode():
    text = TextProcessor('de', None, lowercase=True)
    assert text.tokenize('Gru\u0308\u00dfe') == text.tokenize('Gr\u00fc\u00dfe') == 'gr\u00fc\u00dfe'


def test_special_characters():
    """Neither they nor the entities of the text are changed, unless requested."""
    plain, escaped = (TextProcessor('en', None, lowercase=False, escape=escape) for escape in (False, True))
    assert plain.tokenize('R&D [a|b] <i>') == 'R & D [ a | b ] < i >'
    assert escaped.tokenize('R&D [a|b] <i>') == 'R &amp; D &#91; a &#124; b &#93; &lt; i &gt;'
    assert escaped.detokenize('R &amp; D') == plain.detokenize('R & D') == 'R & D'
    assert plain.detokenize('a &quot; b') == 'a &quot; b'
    assert plain.tokenize('a\u2028b\x85c\u00a0d\te') == 'a b c d e'
    assert plain.tokenize('a@b@@c') == 'a @ b @ @ c'


def test_dashes_and_punctuation():
    text = TextProcessor('fr', None, lowercase=False, normalize=True, aggressive_dashes=True)
    assert text.tokenize('un « porte-clé »…\u00ad') == 'un " porte @-@ clé " ...'
    assert text.detokenize('un porte @-@ clé') == 'un porte-clé'
    assert TextProcessor('fr', None, lowercase=False).tokenize('« porte-clé »') == '« porte-clé »'


def test_a_pickled_processor_is_the_same():
    text = TextProcessor('en', CODES, lowercase=True, normalize=True)
    assert pickle.loads(pickle.dumps(text)).pieces('The “abba” there') == text.pieces('The “abba” there')


@pytest.fixture
def corpus(tmp_path):
    record = dict(source='en', target='de', lowercase=True, moses=dict(aggressive_dashes=True))
    write_json(tmp_path / 'corpus.json', record)
    (tmp_path / 'bpe.codes').write_text('\n'.join(CODES) + '\n', encoding='utf-8')
    return tmp_path


def test_the_processor_of_a_corpus(corpus):
    text = TextProcessor.from_corpus(corpus, 'de')
    assert text.language == 'de'
    expected = TextProcessor('de', CODES, lowercase=True, aggressive_dashes=True).pieces('The Ab-Aba')
    assert text.pieces('The Ab-Aba') == expected == ['the', 'ab', '@@@', '-@@', '@', 'ab@@', 'a']


def with_file(corpus, name, text):
    (corpus / name).write_text(text, encoding='utf-8')
    return TextProcessor.from_corpus(corpus, 'de')


def segmenter(codes, language='en'):
    return TextProcessor(language, codes, lowercase=False)


test_failures = failing(
    (lambda corpus: TextProcessor.from_corpus(corpus, 'fr'), "'fr'"),
    (lambda corpus: with_file(corpus, 'bpe.codes', 'a b c\n'), 'line 1'),
    (lambda corpus: with_file(corpus, 'corpus.json', '{}'), 'corpus.json'),
    (lambda: segmenter(None, 'xx'), 'language'),
    (lambda: TextProcessor('en', None, False, escape=True, joins=True), 'joins'),
    (lambda: segmenter(['#version: 0.2']), 'at least one merge'),
    (lambda: segmenter(['#version: 0.3', 'a b']), 'line 1'),
    (lambda: segmenter(['a b', '']), 'line 2'),  # the first version has no header
    (lambda: segmenter(['#version: 0.2', 'a b', 'a  b']), 'line 3'),
)


@pytest.mark.parametrize(('package', 'codes'), [('sacremoses', None), ('subword_nmt', CODES)])
def test_a_missing_package_is_named(monkeypatch, package, codes):
    for name in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition('.')[0] == package:
                raise ModuleNotFoundError(f'No module named {package!r}', name=package)

    monkeypatch.setattr(sys, 'meta_path', [Missing(), *sys.meta_path])
    with pytest.raises(ImportError, match=rf'{package}.*mmattn\[language\]'):
        segmenter(codes)
