"""Messages that list all faults of a file, or the first of many names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

SHOWN = 20  # lines of a message


def shorten(items: Iterable[object], most: int = SHOWN) -> list[str]:
    """List the first items, and the number of the others.

    Example:
        >>> ', '.join(shorten('abcde', most=2))
        'a, b, … and 3 more'
    """
    texts = [*map(str, items)]
    return texts if len(texts) <= most else [*texts[:most], f'… and {len(texts) - most:,} more']


def raise_faults(path: object, faults: Iterable[str]) -> None:
    """Raise a ValueError that lists the faults of a file, if there are any."""
    faults = list(faults)
    if faults:
        raise ValueError('\n  '.join([f'{path}: {len(faults):,} fault{"s" * (len(faults) > 1)}:', *shorten(faults)]))


def split_faults(error: Exception, path: str | Path) -> list[str]:
    """Split the error message of a file into its faults, without the path of the file.

    Example:
        >>> split_faults(ValueError('a.json: 2 faults:\\n  image 7: no caption\\n  image 9: no caption'), 'a.json')
        ['image 7: no caption', 'image 9: no caption']
    """
    if isinstance(error, OSError):
        return [error.strerror or str(error)]
    first, *listed = str(error).split('\n  ')
    return listed or [first.removeprefix(f'{path}: ')]


def one_line(error: Exception) -> str:
    """Describe in one line what a parser raised."""
    text = ' '.join(str(error).split())
    return f'no {text}' if isinstance(error, KeyError) else text or repr(error)


@contextmanager
def reading(
    path: object,
    expected: str = '',
    kind: type[Exception] = ValueError,
    describe: Callable[[Exception], str] = one_line,
) -> Iterator[None]:
    """Turn what the block raises because of the content of a file into an error that names the file.

    Parsers and decoders raise many types, and not all of them are documented. What the operating system says, such as
    that a file is missing, and an error that names the file already are raised as they are.

    Args:
        path: the file, or a line in it.
        expected (str): what the file is not, such as 'not a JSON file'. Defaults to '', nothing.
        kind (type): of the error. Defaults to ValueError.
        describe (Callable): describes what the block raised.

    Example:
        >>> with reading('sizes.json', 'not the size of an image'):
        ...     dict(height=3)['width']
        Traceback (most recent call last):
        ValueError: sizes.json: not the size of an image: no 'width'
    """
    try:
        yield
    except Exception as error:
        of_system = isinstance(error, OSError) and error.filename is not None
        if of_system or (isinstance(error, kind) and str(path) in str(error)):
            raise
        raise kind(f'{path}: {expected}{": " if expected else ""}{describe(error)}') from error


@contextmanager
def listing(faults: list[str], path: str | Path) -> Iterator[None]:
    """Turn an OSError or ValueError of the block into faults of the file, and add them with its path to ``faults``."""
    try:
        yield
    except (OSError, ValueError) as error:
        faults += [f'{path}: {reason}' for reason in split_faults(error, path)]


@contextmanager
def collect_faults(faults: dict[str, list[str]], path: str) -> Iterator[None]:
    """Turn an OSError or ValueError of the block into faults of the file, and add them to ``faults[path]``."""
    try:
        yield
    except (OSError, ValueError) as error:
        faults.setdefault(path, []).extend(split_faults(error, path))


def difference(name: str, ours: Sequence[str], other: Sequence[str]) -> str:
    """Describe the first difference between two lists, and give their lengths. ``name`` is the word for an entry.

    Example:
        >>> difference('symbol', ['a', 'dog'], ['a'])
        "symbol 1 is 'dog', but None (of 2 and 1 symbols)"
    """
    number, (a, b) = next((n, pair) for n, pair in enumerate(zip_longest(ours, other)) if pair[0] != pair[1])
    return f'{name} {number} is {a!r}, but {b!r} (of {len(ours):,} and {len(other):,} {name}s)'
