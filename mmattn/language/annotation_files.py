"""Files of annotations and their faults: JSON, paths relative to a folder, messages that list all faults."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SHOWN = 20


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file, which may be compressed (``.gz``).

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is not JSON, not UTF-8 or damaged; the message names it.
    """
    path = Path(path)
    data = path.read_bytes()
    try:
        return json.loads((gzip.decompress(data) if path.suffix == '.gz' else data).decode('utf-8'))
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f'{path}: not a JSON file: {error}') from error


def in_folder(folder: str, *paths: Any) -> list[Any]:
    """Return each path relative to a folder; what is not a path, such as None, as it is."""
    return [str(Path(folder, path)) if isinstance(path, str | Path) else path for path in paths]


def raise_faults(path: object, faults: Iterable[str]) -> None:
    """Raise a ValueError that lists the faults of a file, if there are any."""
    faults = list(faults)
    if faults:
        more = [f'… and {len(faults) - SHOWN:,} more'] if len(faults) > SHOWN else []
        raise ValueError(
            '\n  '.join([f'{path}: {len(faults):,} fault{"s" * (len(faults) > 1)}:', *faults[:SHOWN], *more])
        )


def faults_of(error: Exception, path: str | Path) -> list[str]:
    """Return the faults that the error of a file lists, without its path.

    Example:
        >>> faults_of(ValueError('a.json: 2 faults:\\n  image 7: no caption\\n  image 9: no caption'), 'a.json')
        ['image 7: no caption', 'image 9: no caption']
    """
    if isinstance(error, OSError):
        return [error.strerror or str(error)]
    first, *listed = str(error).split('\n  ')
    return listed or [first.removeprefix(f'{path}: ')]


@contextmanager
def noting(faults: dict[str, list[str]], path: str) -> Iterator[None]:
    """Add the error of a file that cannot be used to its faults."""
    try:
        yield
    except (OSError, ValueError) as error:
        faults.setdefault(path, []).extend(faults_of(error, path))
