"""JSON files of annotations, relative paths, and messages that list all faults of a file."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

SHOWN = 20
T = TypeVar('T')


def read_json(path: str | Path) -> Any:
    """Read a JSON file, which may be compressed (``.gz``). A ValueError names a damaged file."""
    path = Path(path)
    data = path.read_bytes()
    try:
        return json.loads((gzip.decompress(data) if path.suffix == '.gz' else data).decode('utf-8-sig'))
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f'{path}: not a JSON file: {error}') from error


def parse_each(entries: Any, parse: Callable[[Any], T], faults: list[str], name: str) -> list[T]:
    """Parse the entries of a list. Every entry that ``parse`` cannot parse adds a fault of ``name``."""
    parsed: list[T] = []
    if not isinstance(entries, list):
        faults.append(f'{name}: not a list')
        return parsed
    for i, entry in enumerate(entries):
        try:
            parsed.append(parse(entry))
        except KeyError as error:
            faults.append(f'{name}[{i}]: no key {error}')
        except (TypeError, AttributeError, ValueError) as error:
            faults.append(f'{name}[{i}]: another layout ({error})')
    return parsed


def check_text(value: Any) -> str:
    """Return ``value`` if it is a string. Raise a TypeError if it is not."""
    if not isinstance(value, str):
        raise TypeError(f'expected str; got {value!r}')
    return value


def in_folder(folder: str, *paths: Any) -> list[Any]:
    """Prepend a folder to paths. Values that are not paths, such as None, stay unchanged."""
    return [str(Path(folder, path)) if isinstance(path, str | Path) else path for path in paths]


def raise_faults(path: object, faults: Iterable[str]) -> None:
    """Raise a ValueError that lists the faults of a file, if there are any."""
    faults = list(faults)
    if faults:
        more = [f'… and {len(faults) - SHOWN:,} more'] if len(faults) > SHOWN else []
        raise ValueError(
            '\n  '.join([f'{path}: {len(faults):,} fault{"s" * (len(faults) > 1)}:', *faults[:SHOWN], *more])
        )


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
