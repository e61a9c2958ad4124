"""From raw text to subword pieces and back, with the Moses tokenizer and byte pair encoding (optional packages)."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

from mmattn.utils.optional import import_optional

from .text_files import read_lines, read_record, split_symbols
from .words import normalize_unicode


def languages() -> list[str]:
    """List the codes of the languages that the tokenizer supports."""
    return sorted(set(import_optional('sacremoses.corpus').NonbreakingPrefixes().available_langs.values()))


def undo_bpe(text: str) -> str:
    """Join the pieces of a segmented line."""
    return re.sub(r'(@@ )|(@@ ?$)', '', text)


class TextProcessor:
    """Tokenizes, lower-cases and segments the lines of one language, and detokenizes them.

    Tokens contain no white space. By default, special characters are not escaped, so tokens stay readable, and text
    that contains ``&quot;`` is restored as it was.

    Args:
        language (str): code of the language, such as ``'en'``. :func:`languages` lists all codes.
        codes (sequence of str, optional): lines of a file of subword-nmt's codes. None: words are not segmented.
        lowercase (bool): lower-case the tokens.
        normalize (bool): before tokenization, normalize punctuation, and replace unprintable characters by spaces.
            Defaults to False.
        aggressive_dashes (bool): split ``a-b`` into ``a @-@ b``, as ``tokenizer.perl -a`` does. Defaults to False.
        escape (bool): replace ``& | < > ' " [ ]`` by entities, as ``tokenizer.perl`` does by default. Use it for models
            that were trained on such text. Defaults to False.
    """

    def __init__(
        self,
        language: str,
        codes: Sequence[str] | None,
        lowercase: bool,
        normalize: bool = False,
        aggressive_dashes: bool = False,
        escape: bool = False,
    ) -> None:
        sacremoses = import_optional('sacremoses')
        if language not in languages():  # sacremoses would take it for English
            raise ValueError(f'language must be one of {", ".join(languages())}; got {language!r}')
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
        tokens = self._tokenizer.tokenize(
            line, aggressive_dash_splits=self.aggressive_dashes, return_str=False, escape=self.escape
        )
        text = ' '.join(tokens)
        return text.lower() if self.lowercase else text

    def segment(self, tokenized: str) -> str:
        """Split the tokens of a line into pieces. Every piece of a token except the last ends in ``@@``."""
        return tokenized if self._bpe is None else self._bpe.segment(tokenized)

    def pieces(self, line: str) -> list[str]:
        """Split a line of raw text into pieces."""
        return split_symbols(self.segment(self.tokenize(line)))

    def detokenize(self, tokenized: str) -> str:
        """Join tokens to text."""
        return self._detokenizer.detokenize(tokenized.split(), unescape=self.escape)


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
