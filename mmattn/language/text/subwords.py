"""From raw text to subword pieces and back, with the Moses tokenizer and byte pair encoding (optional packages)."""

import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from mmattn.utils.optional import import_optional

from .text_files import read_lines, read_record, split_symbols
from .words import normalize_unicode

JOIN = '￭'  # before a token that follows the one before without a space
SPACES = re.compile(r'\s+')
CONTROL = re.compile('[\x00-\x08\x0e-\x1b\x7f]')  # without those that are spaces
WORDS = re.compile(r'\w+|[^\w\s]')
JOINERS = '\u200c\u200d'  # zero-width, within words and emoji


def languages() -> list[str]:
    """List the codes of the languages that the tokenizer supports."""
    return sorted(set(import_optional('sacremoses.corpus').NonbreakingPrefixes().available_langs.values()))


def undo_bpe(text: str) -> str:
    """Join the pieces of a segmented line."""
    return re.sub(r'(@@ )|(@@ ?$)', '', text)


def unmark(tokenized: str) -> str:
    """Remove the marks of ``joins`` from a line of tokens, see :class:`TextProcessor`."""
    return ' '.join(filter(None, (token.removeprefix(JOIN).lstrip() for token in split_symbols(tokenized))))


class TextProcessor:
    """Tokenizes, lower-cases and segments the lines of one language, and detokenizes them.

    Tokens contain no spaces. By default, special characters are not escaped, so tokens stay readable, and text
    that contains ``&quot;`` is restored as it was.

    The rules of Moses for detokenizing restore plain text. They do not restore typographic quotes and apostrophes,
    dashes, or the marks of most scripts. With ``joins``, tokens say where spaces were, so any text is restored, up to
    the number of spaces in a row.

    Args:
        language (str): code of the language, such as ``'en'``. :func:`languages` lists all codes.
        codes (sequence of str, optional): lines of a file of subword-nmt's codes. None: words are not segmented.
        lowercase (bool): lower-case the tokens.
        normalize (bool): before tokenization, normalize punctuation, and replace unprintable characters by spaces.
            Defaults to False.
        aggressive_dashes (bool): split ``a-b`` into ``a @-@ b``, as ``tokenizer.perl -a`` does. Defaults to False.
        escape (bool): replace ``& | < > ' " [ ]`` by entities, as ``tokenizer.perl`` does by default. Use it for models
            that were trained on such text. Defaults to False.
        joins (bool): begin a token with ``￭`` if no space is before it, or with the space before it if it is another
            than U+0020, such as the no-break space in French. Combining marks stay with their letter. Excludes the
            three options before. Defaults to False.

    Example:
        >>> text = TextProcessor('en', None, lowercase=False, joins=True)
        >>> text.tokenize('“Don’t,” he said.'), text.detokenize('“ ￭Don ￭’t ￭, ￭” he said ￭.')
        ('“ ￭Don ￭’t ￭, ￭” he said ￭.', '“Don’t,” he said.')
    """

    def __init__(
        self,
        language: str,
        codes: Sequence[str] | None,
        lowercase: bool,
        normalize: bool = False,
        aggressive_dashes: bool = False,
        escape: bool = False,
        joins: bool = False,
    ) -> None:
        sacremoses = import_optional('sacremoses')
        if language not in languages():  # sacremoses would take it for English
            raise ValueError(f'language must be one of {", ".join(languages())}; got {language!r}')
        if joins and (normalize or aggressive_dashes or escape):
            raise ValueError('joins excludes normalize, aggressive_dashes and escape, which change the text')
        self.joins = joins
        self.language = language
        self.lowercase = lowercase
        self.aggressive_dashes = aggressive_dashes
        self.escape = escape
        self._normalizer = sacremoses.MosesPunctNormalizer(language) if normalize else None
        self._tokenizer = sacremoses.MosesTokenizer(language)
        self._detokenizer = sacremoses.MosesDetokenizer(language)
        self._bpe = None
        if codes is not None:
            check_codes(codes)
            self._bpe = import_optional('subword_nmt.apply_bpe').BPE(io.StringIO('\n'.join(codes)))

    @classmethod
    def from_corpus(cls, folder: str | Path, language: str) -> 'TextProcessor':
        """Create the processor for one of the two languages of a prepared corpus, with the options of the corpus.

        ``folder`` is the output of a converter of parallel text, with ``corpus.json`` and ``bpe.codes``. Raises a
        ValueError if the corpus does not have this language, or if a file is invalid.
        """
        record = read_record(folder)
        pair = record['source'], record['target']
        if language not in pair:
            raise ValueError(f'language must be one of {", ".join(pair)}, the languages of {folder}; got {language!r}')
        codes = read_lines(Path(folder, 'bpe.codes'))
        try:
            return cls(language, codes, record['lowercase'], **record['moses'])
        except ValueError as error:
            raise ValueError(f'{folder}: {error}') from error

    def tokenize(self, line: str) -> str:
        """Split a line of raw text into tokens, normalized to NFC, and join the tokens with single spaces."""
        line = normalize_unicode(line)
        if self._normalizer is not None:
            line = self._normalizer.normalize(line)
            if not line.isprintable():
                line = ''.join(character if character.isprintable() else ' ' for character in line)
        if self.joins:
            text = self._mark_joins(line)
        else:
            text = ' '.join(self._split(line))
        return text.lower() if self.lowercase else text

    def _split(self, line: str) -> list[str]:
        return self._tokenizer.tokenize(
            line, aggressive_dash_splits=self.aggressive_dashes, return_str=False, escape=self.escape
        )

    def _mark_joins(self, line: str) -> str:
        line = SPACES.sub(_one_space, CONTROL.sub('', line)).strip().replace(JOIN, '■')
        plain = line.replace('’', "'")  # Moses knows the apostrophe of typewriters alone
        starts = find_starts(plain, self._split(plain)) or [match.start() for match in WORDS.finditer(plain)]
        starts = [i for i in starts if not _within_word(line, i)]
        tokens = [line[start:end].rstrip() for start, end in zip(starts, [*starts[1:], None])]
        before = (line[i - 1] for i in starts[1:])
        marks = ['', *('' if x == ' ' else x if x.isspace() else JOIN for x in before)]
        return ' '.join(mark + token for mark, token in zip(marks, tokens))

    def segment(self, tokenized: str) -> str:
        """Split the tokens of a line into pieces. Every piece of a token except the last ends in ``@@``."""
        return tokenized if self._bpe is None else self._bpe.segment(tokenized)

    def pieces(self, line: str) -> list[str]:
        """Split a line of raw text into pieces."""
        return split_symbols(self.segment(self.tokenize(line)))

    def detokenize(self, tokenized: str) -> str:
        """Join tokens to text."""
        if self.joins:
            tokens = split_symbols(tokenized)
            return ''.join(
                token[1:] if token[0] == JOIN else token if token[0].isspace() else f' {token}' for token in tokens
            ).strip()
        return self._detokenizer.detokenize(tokenized.split(), unescape=self.escape)


def _one_space(run: re.Match[str]) -> str:
    """Choose a special space, such as the no-break space, or else a plain one."""
    return next((x for x in run[0] if x != ' ' and unicodedata.category(x) == 'Zs'), ' ')


def find_starts(line: str, tokens: Sequence[str]) -> list[int] | None:
    """Find where the tokens of a line start. None if the line is not made of the tokens and single spaces."""
    starts, end = [], 0
    for token in tokens:
        end += line[end : end + 1].isspace()
        if not line.startswith(token, end):
            return None
        starts.append(end)
        end += len(token)
    return starts if end == len(line) else None


def _within_word(line: str, i: int) -> bool:
    """Check whether a combining mark or a joiner ties character ``i`` to the one before."""
    before, after = line[i - 1 : i], line[i]
    if not before or before.isspace():
        return False
    is_mark = [x in JOINERS or unicodedata.category(x)[0] == 'M' for x in (before, after)]
    return is_mark[1] or before in JOINERS or (is_mark[0] and after.isalnum())


def check_codes(codes: Sequence[str]) -> None:
    """Check the lines of a file of codes. With an invalid line, subword-nmt would end the process."""
    has_version = bool(codes) and codes[0].startswith('#version:')
    if has_version and codes[0].split()[-1] not in ('0.1', '0.2'):
        raise ValueError(f'codes must be of version 0.1 or 0.2; got {codes[0]!r} in line 1')
    for number, line in enumerate(codes, 1):
        symbols = line.split(' ')
        if not (number == 1 and has_version) and (len(symbols) != 2 or not all(symbols)):
            raise ValueError(f'codes must have two symbols per line, separated by a space; line {number} is {line!r}')
    if len(codes) == has_version:
        raise ValueError('codes must have at least one merge; got none')
