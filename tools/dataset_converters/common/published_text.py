"""Find and read published files of parallel text, and check them against each other."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from xml.sax.saxutils import unescape

from mmattn.language.text.text_files import iter_lines
from mmattn.utils.faults import Faults, FaultsError

from .conversion import files_below

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
            raise FaultsError(
                f'{path}, line {number}',
                f'{len(cells)} column(s) separated by tabs, but columns {columns[0]} and {columns[1]} are read',
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
            raise FaultsError(f'{path}, line {number}', f'expected <seg id="…">text</seg>; got {line.strip()!r}')
        segments += [unescape(text, {'&quot;': '"', '&apos;': "'"}).strip() for text in texts]
    return segments


def find_files(folder: Path, names: Iterable[str], faults: Faults) -> dict[str, Path]:
    """Find files, with or without the suffix ``.gz``, in a folder and its subfolders.

    Returns a dict from name to the path with the fewest folders above it. Outputs of converters below the folder are
    not searched. A missing file is a fault.
    """
    there: dict[str, Path] = {}
    for path in sorted(files_below(folder), key=lambda path: (len(path.parts), path), reverse=True):
        there[path.name] = path  # the last is the nearest
    names = list(names)
    paths = {name: there[file] for name in names for file in (f'{name}.gz', name) if file in there}
    faults.add(folder, *(f'no {name} or {name}.gz in it' for name in names if name not in paths))
    return paths


def find_pairs(
    folder: Path, stems: Iterable[str], languages: Pair, faults: Faults, suffix: str = ''
) -> dict[str, tuple[Path, Path]]:
    """Find the files ``stem.source`` and ``stem.target``, with a suffix, as :func:`find_files` does.

    Returns a dict from stem to both paths, if both exist.
    """
    names = {stem: [f'{stem}.{language}{suffix}' for language in languages] for stem in stems}
    paths = find_files(folder, [name for both in names.values() for name in both], faults)
    return {stem: (paths[a], paths[b]) for stem, (a, b) in names.items() if a in paths and b in paths}


def check_pairs(
    pairs: Mapping[str, tuple[Path, Path]], faults: Faults, read: Callable[[Path], Iterable[str]] = iter_lines
) -> dict[str, int]:
    """Count the sentences of pairs of files, and collect the faults of all files.

    Returns a dict from name to number of sentences, for the pairs without a fault. ``read`` gets the path of a file and
    returns its sentences.
    """
    counts: dict[str, int] = {}
    for name, paths in pairs.items():
        lengths = []
        for path in paths:
            with faults.catch(path):
                lengths.append(sum(1 for _ in read(path)))
        if len(lengths) == 2 and lengths[0] != lengths[1]:
            faults.add(paths[0], f'{lengths[0]:,} sentences, but {paths[1]} has {lengths[1]:,}')
        elif len(lengths) == 2:
            counts[name] = lengths[0]
    return counts
