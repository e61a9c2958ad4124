"""Files of published word vectors: text, such as GloVe, and the table of Skip-Thought."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmattn.language.text.text_files import iter_lines, read_lines


def read_word_vectors(
    path: str | Path, words: Collection[str], dim: int, dictionary: str | Path | None = None
) -> dict[str, Tensor]:
    """Return the vectors of some words; words without one are left out.

    A text file, which may be compressed (``.gz``), has one word per line and its numbers, separated by spaces, as those
    of GloVe. A file ``.npy`` has one row per line of ``dictionary``, as ``utable.npy`` of Skip-Thought.

    Args:
        path (str or Path): the file.
        words (collection of str): the words.
        dim (int): channels of the vectors.
        dictionary (str or Path, optional): file with the words of an ``.npy`` file, one per line. Defaults to None.

    Returns:
        dict[str, Tensor]: float32 ``(dim)`` by word.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has another layout or other channels, or none of the words; the message names it.

    Example:
        >>> _ = Path('vectors.txt').write_text('dog 1 0.5\\ncat 0 2\\n', encoding='utf-8')
        >>> read_word_vectors('vectors.txt', ['a', 'dog'], dim=2)
        {'dog': tensor([1.0000, 0.5000])}
    """
    if (Path(path).suffix == '.npy') != (dictionary is not None):
        raise ValueError(f'{path}: dictionary must be given for a file .npy, and only then; got {dictionary}')
    wanted = set(words)
    found = _from_text(path, wanted, dim) if dictionary is None else _from_table(path, wanted, dim, dictionary)
    if not found:
        raise ValueError(f'{path}: none of the {len(wanted):,} words is in the file')
    return found


def _from_text(path: str | Path, words: set[str], dim: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for number, line in enumerate(iter_lines(path), 1):
        word, *numbers = line.rstrip().rsplit(' ', dim)  # a word of some published files contains spaces
        if number > 1 and word not in words:
            continue
        try:
            vector = torch.tensor([float(x) for x in numbers])
        except ValueError:
            vector = torch.empty(0)
        if len(vector) != dim or ' ' in word or not vector.isfinite().all():
            raise ValueError(
                f'{path}, line {number}: expected a word and {dim} numbers (word_dim of the question encoder); got '
                f'{len(line.split()) - 1}: {line[:60]!r}'
            )
        if word in words:
            found.setdefault(word, vector)
    return found


def _from_table(path: str | Path, words: set[str], dim: int, dictionary: str | Path) -> dict[str, Tensor]:
    try:
        table = np.load(path, mmap_mode='r', allow_pickle=False)
    except ValueError as error:
        raise ValueError(f'{path}: not an array: {error}') from error
    rows = {word.strip(): number for number, word in enumerate(read_lines(dictionary))}
    if table.ndim != 2 or table.shape[1] != dim or len(table) < len(rows):
        raise ValueError(
            f'{path}: must be (n, {dim}), with word_dim of the question encoder and at least {len(rows):,} rows, the '
            f'lines of {dictionary}; got {table.shape}'
        )
    return {word: torch.tensor(table[rows[word]], dtype=torch.float32) for word in words & rows.keys()}
