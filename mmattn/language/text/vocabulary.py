"""The vocabulary of subword symbols. Models read and write the numbers of the symbols."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mmattn.utils.faults import FaultsError

from .text_files import read_lines, split_symbols

BOS, PAD, EOS, UNK = range(4)
SPECIALS = ('<s>', '<pad>', '</s>', '<unk>')


class Vocabulary:
    """Symbols and their numbers. The first four are ``<s>``, ``<pad>``, ``</s>`` and ``<unk>``, numbers 0 to 3.

    Args:
        symbols (sequence of str): the other symbols, number 4 first.

    Example:
        >>> vocabulary = Vocabulary(['a', 'dog', 'cat@@'])
        >>> vocabulary.encode('a dog barks')
        [4, 5, 3, 2]
        >>> vocabulary.decode([4, 5, 3, 2])
        'a dog <unk>'
    """

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = (*SPECIALS, *symbols)
        self._index = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self._index) != len(self.symbols):
            twice = Counter(self.symbols).most_common(1)[0][0]
            raise ValueError(f'symbols contains {twice!r} twice; {", ".join(SPECIALS)} are always in a vocabulary')
        for symbol in symbols:
            if not symbol or {' ', '\t'} & {*symbol}:
                raise ValueError(f'symbols must be non-empty strings without spaces and tabs; got {symbol!r}')

    @classmethod
    def from_file(cls, path: str | Path) -> 'Vocabulary':
        """Read a vocabulary file: one symbol per line, optionally followed by a space and its count.

        Raises a ValueError with the line number if the file is not UTF-8, or if a line is invalid.
        """
        lines: dict[str, int] = {}
        for number, line in enumerate(read_lines(path), 1):
            symbol, _, count = line.partition(' ')
            if not symbol or '\t' in symbol or (count and not count.isdecimal()):
                raise FaultsError(f'{path}, line {number}', f'expected a symbol and its count; got {line!r}')
            if symbol in SPECIALS:
                raise FaultsError(
                    f'{path}, line {number}', f'{", ".join(SPECIALS)} are always in a vocabulary; got {symbol!r}'
                )
            if symbol in lines:
                raise FaultsError(f'{path}, line {number}', f'{symbol!r} is also in line {lines[symbol]}')
            lines[symbol] = number
        return cls(list(lines))

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        """Check whether a symbol is in the vocabulary. The four special symbols, which no text has, are not."""
        return self._index.get(symbol, UNK) > UNK

    def encode(self, line: str) -> list[int]:
        """Convert a line, whose symbols are separated by spaces, to numbers, and append the number of ``</s>``."""
        return [*(self._index.get(symbol, UNK) for symbol in split_symbols(line)), EOS]

    def decode(self, numbers: Iterable[int]) -> str:
        """Convert numbers to a line. Stops at the first ``</s>``, and leaves ``<s>`` and ``<pad>`` out."""
        symbols = []
        for number in numbers:
            if number == EOS:
                break
            if number not in (BOS, PAD):
                symbols.append(self.symbols[number])
        return ' '.join(symbols)
