"""Faults of what a user gave: one collector, one error that lists them by place, and lists of many names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeVar

SHOWN = 20  # lines of a message
T = TypeVar('T')


def shorten(items: Iterable[object], most: int = SHOWN) -> list[str]:
    """List the first items, and the number of the others.

    Example:
        >>> ', '.join(shorten('abcde', most=2))
        'a, b, … and 3 more'
    """
    texts = [*map(str, items)]
    return texts if len(texts) <= most else [*texts[:most], f'… and {len(texts) - most:,} more']


class FaultsError(ValueError):
    """What is wrong with files, folders or options that a user gave.

    Args:
        place (str, Path or mapping): a file, or another place, or a mapping of places to their faults. Without reasons,
            it is a fault that names its place itself.
        *reasons (str): what is wrong there.

    Attributes:
        by_path (dict): place → faults. The place '' has the faults that name theirs.

    Example:
        >>> print(FaultsError('a.json', 'image 7: no caption', 'image 9: no caption'))
        a.json: 2 faults:
          image 7: no caption
          image 9: no caption
    """

    def __init__(self, place: object, *reasons: str) -> None:
        super().__init__(place, *reasons)  # so that it can be pickled
        self.by_path: dict[str, list[str]] = (
            dict(place) if isinstance(place, Mapping) else {str(place): [*reasons]} if reasons else {'': [str(place)]}
        )

    def lines(self, most: int | None = None) -> list[str]:
        """List the faults with their places, at most ``most`` of a place and the number of the others."""
        shown = {place: shorten(texts, most or len(texts)) for place, texts in self.by_path.items()}
        return [f'{place}: {text}' if place else text for place, texts in shown.items() for text in texts]

    def __str__(self) -> str:
        lines, (place, *others) = self.lines(), self.by_path
        if len(lines) == 1:
            return lines[0]
        if place and not others:
            return '\n  '.join([f'{place}: {len(lines):,} faults:', *shorten(self.by_path[place])])
        return '\n  '.join([f'{len(lines):,} faults:', *shorten(lines)])


class Faults:
    """Collects faults by place, each once, so that one error lists them all.

    Args:
        place (str or Path): the place of the first faults.
        reasons (iterable of str): the first faults. Defaults to none.

    Example:
        >>> faults = Faults()
        >>> with faults.catch('a.txt'):
        ...     number = int('three')
        >>> faults.add('b.txt', 'empty')
        >>> faults.check()
        Traceback (most recent call last):
        mmattn.utils.faults.FaultsError: 2 faults:
          a.txt: invalid literal for int() with base 10: 'three'
          b.txt: empty
    """

    def __init__(self, place: object = '', reasons: Iterable[str] = ()) -> None:
        self._reasons: dict[str, dict[str, None]] = {}
        self.add(place, *reasons)

    def add(self, place: object, *reasons: str) -> None:
        """Add what is wrong at a place, or nothing. The place of faults that name theirs is ''."""
        if reasons:
            self._reasons.setdefault(str(place), {}).update(dict.fromkeys(reasons))

    def extend(self, faults: Iterable[tuple[object, str]]) -> None:
        """Add pairs of a place and what is wrong there."""
        for place, reason in faults:
            self.add(place, reason)

    def include(self, other: Faults | FaultsError, place: object = '') -> None:
        """Add the faults of another collector or error. ``place`` is for faults that name theirs."""
        for path, reasons in other.by_path.items():
            self.add(path or place, *reasons)

    @contextmanager
    def catch(self, place: object = '') -> Iterator[None]:
        """Add what a FaultsError, ValueError or OSError of the block says. ``place`` is for errors without one."""
        try:
            yield
        except FaultsError as error:
            self.include(error, place)
        except OSError as error:
            self.add(error.filename or place, error.strerror or str(error))
        except ValueError as error:
            self.add(place, str(error).removeprefix(f'{place}: '))

    def parse(self, path: object, entries: object, parse: Callable[[Any], T], name: str) -> list[T]:
        """Parse the entries of the list ``name`` in a file. Every entry that ``parse`` cannot parse is a fault."""
        parsed: list[T] = []
        if not isinstance(entries, list):
            self.add(path, f'{name}: not a list')
            return parsed
        for i, entry in enumerate(entries):
            try:
                parsed.append(parse(entry))
            except KeyError as error:
                self.add(path, f'{name}[{i}]: no key {error}')
            except (TypeError, AttributeError, ValueError, OverflowError) as error:  # the last of int(inf)
                self.add(path, f'{name}[{i}]: another layout ({error})')
        return parsed

    @property
    def by_path(self) -> dict[str, list[str]]:
        """The faults: place → reasons."""
        return {place: [*reasons] for place, reasons in self._reasons.items()}

    def __len__(self) -> int:
        return sum(map(len, self._reasons.values()))

    def __contains__(self, place: object) -> bool:
        return str(place) in self._reasons

    def check(self) -> None:
        """Raise a :class:`FaultsError` if there are faults."""
        if self._reasons:
            raise FaultsError(self.by_path)


def one_line(error: Exception) -> str:
    """Describe in one line what a parser raised."""
    text = ' '.join(str(error).split())
    return f'no {text}' if isinstance(error, KeyError) else text or repr(error)


@contextmanager
def reading(path: object, expected: str = '', describe: Callable[[Exception], str] = one_line) -> Iterator[None]:
    """Turn what the block raises because of the content of a file into a :class:`FaultsError` that names the file.

    Parsers and decoders raise many types, and not all of them are documented. What the operating system says, such as
    that a file is missing, and an error that names the file already are raised as they are.

    Args:
        path: the file, or a line in it.
        expected (str): what the file is not, such as 'not a JSON file'. Defaults to '', nothing.
        describe (Callable): describes what the block raised.

    Example:
        >>> with reading('sizes.json', 'not the size of an image'):
        ...     dict(height=3)['width']
        Traceback (most recent call last):
        mmattn.utils.faults.FaultsError: sizes.json: not the size of an image: no 'width'
    """
    try:
        yield
    except Exception as error:
        of_system = isinstance(error, OSError) and error.filename is not None
        if of_system or (isinstance(error, FaultsError) and str(path) in str(error)):
            raise
        if isinstance(error, ValueError) and str(path) in str(error):
            raise FaultsError(str(error)) from error
        raise FaultsError(path, f'{expected}{": " if expected else ""}{describe(error)}') from error


def difference(name: str, ours: Sequence[str], other: Sequence[str]) -> str:
    """Describe the first difference between two lists, and give their lengths. ``name`` is the word for an entry.

    Example:
        >>> difference('symbol', ['a', 'dog'], ['a'])
        "symbol 1 is 'dog', but None (of 2 and 1 symbols)"
    """
    number, (a, b) = next((n, pair) for n, pair in enumerate(zip_longest(ours, other)) if pair[0] != pair[1])
    return f'{name} {number} is {a!r}, but {b!r} (of {len(ours):,} and {len(other):,} {name}s)'
