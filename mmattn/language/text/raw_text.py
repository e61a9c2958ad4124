"""Looks at text before it is tokenized: is it as people write it, or has a program changed it already?"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .published_text import Pair
from .subwords import TextProcessor, language_names

LEAST = 3  # lines
SHOWN = 60  # characters of an example
# What programs write and people do not: entities, backslashes, and the marks of tokenizers and of subwords.
MARKS = re.compile(r"""&(?:\#\w+|[A-Za-z]+\d*);|\\["'nrtu]|(?<!\S)@\S@(?!\S)|@@(?!\S)|(?<!\S)[▁￭]|-[LR][RSC]B-""")
END = re.compile(r'(\s?)(?<![.,?!;:])[.,?!;:)\]}。，、！？；：）।॥](?=\s|$)')
FRENCH_END = re.compile(r'(\s?)(?<![.,])[.,)\]}](?=\s|$)')  # other punctuation has a space before
TITLE = re.compile(r'\S+( \S+){0,2}')


class _Kind(NamedTuple):
    share: float  # above which it is said
    what: str
    why: str


KINDS = dict(
    marks=_Kind(0.02, 'contain {}', 'a program has escaped, tokenized or segmented them'),
    spaces=_Kind(0.05, 'have a space before punctuation', 'they seem to be tokenized already'),
    quotes=_Kind(0.3, 'are in quotes', 'a spreadsheet may have added them'),
    doubled=_Kind(0.01, 'are in quotes with doubled quotes inside', 'a spreadsheet has added them'),
)


class RawTextCheck:
    """Counts lines of parallel text that are not raw text. Call it with each pair, then read :meth:`warnings`.

    Example:
        >>> check = RawTextCheck(('en', 'de'))
        >>> for _ in range(3):
        ...     check(('A dog .', 'Ein Hund.'))
        >>> check.warnings('train')
        ["train.en: 3 of 3 lines have a space before punctuation, such as 'A dog .': they seem to be tokenized ..."]
    """

    def __init__(self, languages: Pair) -> None:
        self.languages = languages
        self.first: Pair | None = None
        self.count = self.titles = 0
        self.counts: Counter[tuple[int, str]] = Counter()
        self.examples: dict[tuple[int, str], tuple[str, str]] = {}

    def __call__(self, pair: Pair) -> None:
        """Count a pair of lines."""
        self.first = self.first or pair
        self.count += 1
        self.titles += all(map(_is_title, pair))
        for side, line in enumerate(pair):
            for kind, part in self._kinds(line.strip(), self.languages[side]):
                self.counts[side, kind] += 1
                self.examples.setdefault((side, kind), (line, part))

    @staticmethod
    def _kinds(line: str, language: str) -> Iterable[tuple[str, str]]:
        if mark := MARKS.search(line):
            yield 'marks', mark[0]
        ends = (FRENCH_END if language == 'fr' else END).findall(line)
        if ends:
            yield 'ends', ''
        if any(ends):
            yield 'spaces', ''
        if len(line) > 1 and _is_quote(line[0]) and _is_quote(line[-1]):
            yield 'quotes', ''
            if line[0] == '"' and '""' in line[1:-1]:
                yield 'doubled', ''

    def warnings(self, split: str, said: Iterable[tuple[int, str]] = ()) -> list[str]:
        """Describe what is frequent, one line per language and kind, except ``said``, and a first line that is none."""
        lines = []
        for side, kind in self.frequent():
            if (side, kind) not in said:
                total = self.counts[side, 'ends'] if kind == 'spaces' else self.count
                (line, part), about = self.examples[side, kind], KINDS[kind]
                lines.append(
                    f'{split}.{self.languages[side]}: {self.counts[side, kind]:,} of {total:,} lines '
                    f'{about.what.format(part)}, such as {_cut(line)!r}: {about.why}; give them as they were published'
                )
        if self.first is not None and self._starts_with_header(self.first):
            lines.append(f'{split}: the first pair, {self.first[0]!r} and {self.first[1]!r}, looks like a header')
        return lines

    def frequent(self) -> list[tuple[int, str]]:
        """List side (0 or 1) and kind of what is frequent."""
        return [
            (side, kind)
            for side in range(2)
            for kind, about in KINDS.items()
            if self.counts[side, kind] >= LEAST
            and self.counts[side, kind] > about.share * (self.counts[side, 'ends'] if kind == 'spaces' else self.count)
        ]

    def _starts_with_header(self, pair: Pair) -> bool:
        named = all(
            set(re.split(r'[\W\d_]+', cell.lower())) & language_names(language)
            for cell, language in zip(pair, self.languages)
        )
        return all(map(_is_title, pair)) and self.count > 1 and (named or self.titles < max(2, 0.05 * self.count))


def _is_quote(character: str) -> bool:
    return character in '"\'`' or unicodedata.category(character) in ('Pi', 'Pf') or character in '„‚「」『』'


def _is_title(line: str) -> bool:
    return bool(TITLE.fullmatch(line.strip().strip('"'))) and line.strip().strip('"')[-1:].isalnum()


def _cut(line: str) -> str:
    return line if len(line) <= SHOWN else f'{line[:SHOWN]}…'


def restoring_warnings(split: str, texts: Sequence[TextProcessor], pairs: Iterable[tuple[Pair, Pair]]) -> list[str]:
    """Count the held-out lines that detokenizing their tokens does not restore. ``pairs`` are raw text and tokens."""
    lines = []
    pairs = list(pairs)
    for side, text in enumerate(texts):
        changed = [(raw[side], tokens[side]) for raw, tokens in pairs if not text.restores(raw[side], tokens[side])]
        if changed:
            before, after = changed[0][0], text.detokenize(changed[0][1])
            lines.append(
                f'{split}.{text.language}: {len(changed):,} of {len(pairs):,} lines are not restored when their tokens '
                f'are joined, so a perfect translation has a sacreBLEU below 100, such as {_cut(before)!r}, which '
                f'becomes {_cut(after)!r}'
            )
    return lines
