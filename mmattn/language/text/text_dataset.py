"""Base class of data sets with a vocabulary, and compact storage for their sentences."""

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from mmattn.registry import DATASETS

from .vocabulary import Vocabulary


class PackedSequences:
    """Numbers of all sentences in one array. One tensor per sentence would need several times the memory."""

    def __init__(self, sentences: Iterable[Sequence[int]]) -> None:
        numbers, ends = array('i'), array('q', [0])
        for sentence in sentences:
            numbers.extend(sentence)
            ends.append(len(numbers))
        self.numbers, self.ends = np.asarray(numbers), np.asarray(ends)

    def lengths(self) -> list[int]:
        """Count the symbols of every sentence."""
        return np.diff(self.ends).tolist()

    def __getitem__(self, index: int) -> torch.Tensor:
        """Get the numbers of one sentence, int64 ``(length)``."""
        index = range(len(self.ends) - 1)[index]
        start, end = self.ends[index : index + 2]
        return torch.from_numpy(self.numbers[start:end].astype(np.int64))


Indices = int | Sequence[int] | None


def select_indices(items: Sequence[Any], indices: Indices) -> list[Any]:
    """Select items as ``indices`` of mmengine's data sets: None for all, n for the first n, −n for the last n.

    Example:
        >>> select_indices('abcd', 2), select_indices('abcd', -1), select_indices('abcd', [3, 0])
        (['a', 'b'], ['d'], ['d', 'a'])
    """
    if indices is None:
        return list(items)
    if isinstance(indices, int) and not isinstance(indices, bool) and indices:
        return list(items[:indices] if indices > 0 else items[indices:])
    numbers = list(indices) if isinstance(indices, Sequence) and not isinstance(indices, str) else []
    if not numbers or not all(type(i) is int and -len(items) <= i < len(items) for i in numbers):
        raise ValueError(f'indices must be a number of samples, or positions among {len(items):,}; got {indices!r}')
    if len({i % len(items) for i in numbers}) < len(numbers):
        raise ValueError('indices must not contain a sample twice, because a metric counts each sample once')
    return [items[i] for i in numbers]


class TextDataset(Dataset):
    """Data set with a vocabulary, which can be read before the data set is built.

    A subclass can define ``find_faults`` as in :class:`~mmattn.data_check.data_sets.CheckableDataset`.
    """

    @classmethod
    @abstractmethod
    def vocabulary_source(cls, cfg: dict) -> tuple[Path, Any]:
        """Find the vocabulary file, and the settings that select words from it, such as splits."""

    @classmethod
    @abstractmethod
    def read_vocabulary(cls, cfg: dict) -> Vocabulary:
        """Read the vocabulary of a data set with this config."""

    @classmethod
    def checkpoint_faults(cls, cfg: dict, meta: Mapping[str, Any]) -> list[str]:
        """Compare a data set with a checkpoint, ignoring the vocabulary. Returns one message per difference.

        ``meta`` is the ``metainfo`` of the data set on which the checkpoint was trained.
        """
        return []


def text_dataset(cfg: dict) -> type[TextDataset]:
    """Look up the class of a :class:`TextDataset` by its config."""
    return DATASETS.get(cfg['type'])  # type: ignore[return-value]


def read_vocabulary(cfg: dict) -> Vocabulary:
    """Read the vocabulary of a :class:`TextDataset` by its config."""
    return text_dataset(cfg).read_vocabulary(cfg)
