"""Find and read published files of parallel text, and check them against each other."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from xml.sax.saxutils import unescape

from .text_files import iter_lines

Pair = tuple[str, str]  # a line of the source and its translation
SEGMENT = re.compile(r'<seg id="?\d+"?>(.*?)</seg>')


def iter_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of lines of two files. Raise a ValueError that names both files if one has fewer lines."""
    for number, (first, second) in enumerate(zip_longest(iter_lines(source), iter_lines(target)), 1):
        if first is None or second is None:
            shorter = source if first is None else target
            raise ValueError(f'{source} and {target} must have one line per pair; {shorter} ends before line {number}')
        yield first, second


def iter_table(path: Path, columns: tuple[int, int] = (1, 2)) -> Iterator[Pair]:
    """Yield two columns of a file whose columns are separated by tabs; an empty line is a pair of empty lines.

    ``columns`` are counted from 1. Raises a ValueError that names file and line if a line has fewer columns.
    """
    if min(columns) < 1 or columns[0] == columns[1]:
        raise ValueError(f'columns must be two different numbers, at least 1; got {columns[0]} and {columns[1]}')
    for number, line in enumerate(iter_lines(path), 1):
        cells = line.split('\t') if line.strip() else [''] * max(columns)
        if len(cells) < max(columns):
            raise ValueError(
                f'{path}, line {number}: {len(cells)} column(s) separated by tabs, but columns {columns[0]} and '
                f'{columns[1]} are read'
            )
        yield cells[columns[0] - 1], cells[columns[1] - 1]


def read_segments(path: str | Path) -> list[str]:
    """Read the texts between ``<seg id="…">`` and ``</seg>`` in the XML or SGML file of a test set.

    Raises a ValueError with file and line number if a line is not UTF-8, or if a tag has no partner in its line.
    """
    segments = []
    for number, line in enumerate(iter_lines(path), 1):
        texts = SEGMENT.findall(line)
        if not len(texts) == line.count('<seg ') == line.count('</seg>'):
            raise ValueError(f'{path}, line {number}: expected <seg id="…">text</seg>; got {line.strip()!r}')
        segments += [unescape(text, {'&quot;': '"', '&apos;': "'"}).strip() for text in texts]
    return segments


def find_files(folder: Path, names: Iterable[str]) -> tuple[dict[str, Path], list[str]]:
    """Find files, with or without the suffix ``.gz``, in a folder and its subfolders.

    Returns a dict from name to the path with the fewest folders above it, and a list with one fault per missing file.
    """
    there: dict[str, Path] = {}
    for path in sorted(folder.rglob('*'), key=lambda path: (len(path.parts), path), reverse=True):
        if path.is_file():
            there[path.name] = path  # the last is the nearest
    names = list(names)
    paths = {name: there[file] for name in names for file in (f'{name}.gz', name) if file in there}
    return paths, [f'{folder}: no {name} or {name}.gz in it' for name in names if name not in paths]


def find_pairs(
    folder: Path, stems: Iterable[str], languages: Pair, suffix: str = ''
) -> tuple[dict[str, tuple[Path, Path]], list[str]]:
    """Find the files ``stem.source`` and ``stem.target``, with a suffix, as :func:`find_files` does.

    Returns a dict from stem to both paths, if both exist, and a list with one fault per missing file.
    """
    names = {stem: [f'{stem}.{language}{suffix}' for language in languages] for stem in stems}
    paths, faults = find_files(folder, [name for both in names.values() for name in both])
    pairs = {stem: (paths[a], paths[b]) for stem, (a, b) in names.items() if a in paths and b in paths}
    return pairs, faults


def check_pairs(
    pairs: Mapping[str, tuple[Path, Path]], read: Callable[[Path], Iterable[str]] = iter_lines
) -> tuple[dict[str, int], list[str]]:
    """Count the sentences of pairs of files, and collect the faults of all files.

    Returns a dict from name to number of sentences, for the pairs without a fault, and a list of faults. ``read`` gets
    the path of a file and returns its sentences.
    """
    counts: dict[str, int] = {}
    faults: list[str] = []
    for name, paths in pairs.items():
        lengths = []
        for path in paths:
            try:
                lengths.append(sum(1 for _ in read(path)))
            except ValueError as error:
                faults.append(str(error))
            except OSError as error:
                faults.append(f'{path}: {error.strerror or error}')
        if len(lengths) == 2 and lengths[0] != lengths[1]:
            faults.append(f'{paths[0]}: {lengths[0]:,} sentences, but {paths[1]} has {lengths[1]:,}')
        elif len(lengths) == 2:
            counts[name] = lengths[0]
    return counts, faults
