"""Files of a corpus: lines, the symbols of a line, and the record ``corpus.json``."""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mmattn.utils.faults import FaultsError, reading

RECORD = dict(source=str, target=str, lowercase=bool, moses=dict)
MOSES = dict(normalize=bool, aggressive_dashes=bool, escape=bool, joins=bool)  # some of them


def split_symbols(line: str) -> list[str]:
    r"""Split a segmented or tokenized line at spaces. Other white space, such as '\u00a0', may be part of a symbol."""
    return [symbol for symbol in line.split(' ') if symbol]


def decode_lines(file: Iterable[bytes], name: str | Path) -> Iterator[str]:
    r"""Yield the lines of a binary file object as text, without their ends.

    Only '\n' and '\r\n' end a line. :meth:`str.splitlines` would also split within sentences, for example at U+2028. A
    byte order mark at the start of the file is removed. Raises a ValueError with ``name`` and the line number if a line
    is not UTF-8, or if compressed data are damaged.
    """
    done = 0
    try:
        for line in file:
            yield line.removesuffix(b'\n').removesuffix(b'\r').decode('utf-8' if done else 'utf-8-sig')
            done += 1
    except UnicodeDecodeError as error:
        raise FaultsError(f'{name}, line {done + 1}', f'not UTF-8 ({error.reason})') from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise FaultsError(name, f'damaged after line {done}: {error}') from error


def iter_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, which may be compressed (``.gz``). The file is read line by line."""
    path = Path(path)
    with gzip.open(path, 'rb') if path.suffix == '.gz' else open(path, 'rb') as file:
        yield from decode_lines(file, path)


def read_lines(path: str | Path) -> list[str]:
    """Read all lines of a UTF-8 text file, as :func:`iter_lines` does."""
    return list(iter_lines(path))


def read_record(folder: str | Path) -> dict[str, Any]:
    """Read 'source', 'target', 'lowercase' and 'moses' from ``corpus.json`` in a folder, or raise a ValueError."""
    path = Path(folder, 'corpus.json')
    with reading(path, 'not the record of a corpus'):
        content = json.loads(path.read_text(encoding='utf-8'))
        record = {name: content[name] for name in RECORD}
        if wrong := {k: x for k, x in {**record['moses'], **record}.items() if type(x) is not {**MOSES, **RECORD}[k]}:
            raise ValueError(f'{wrong!r:.80}')
        if odd := [record[name] for name in ('source', 'target') if not re.fullmatch(r'[\w-]+', record[name])]:
            raise ValueError(f'{odd[0]!r:.80} is no code of a language')
        return record
