"""Base class of data sets with a vocabulary, and compact storage for their sentences."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from mmattn.language.models.embedding import vocabulary_size
from mmattn.utils.faults import Faults, difference

from .vocabulary import SPECIALS, Vocabulary


class PackedSequences:
    """Numbers of all sentences in one array. One tensor per sentence would need several times the memory.

    ``kind`` is the type code of the array, such as 'H' for numbers below 65,536.
    """

    def __init__(self, sentences: Iterable[Sequence[int]], kind: str = 'i') -> None:
        numbers, ends = array(kind), array('q', [0])
        for sentence in sentences:
            numbers.extend(sentence)
            ends.append(len(numbers))
        self.numbers, self.ends = np.asarray(numbers), np.asarray(ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def lengths(self) -> np.ndarray:
        """Count the symbols of every sentence."""
        return np.diff(self.ends)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Get the numbers of one sentence, int64 ``(length)``."""
        index = range(len(self))[index]
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
    """Data set with a vocabulary. The constructor reads all files, and a FaultsError lists all their faults.

    Attributes:
        vocabulary (Vocabulary): the symbols.
        metainfo (dict): what checkpoints contain, with the symbols.
        sources (dict): key of ``metainfo`` → the file that decides it. A checkpoint must agree with these keys, and so
            must other data sets of the run, which may only cut sentences at another length.
        needs (dict): argument of the model, such as 'vocab_size' → the value that it must have, and the file that
            decides it.
        image_ids (list of str): ids of the images, if there are any.
    """

    vocabulary: Vocabulary
    metainfo: dict[str, Any]
    sources: dict[str, str]
    needs: dict[str, tuple[int, str]]
    image_ids: Sequence[str] = ()
    test_mode = False

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add to ``faults`` what the model does not accept.

        An attribute of ``needs`` that the model lacks, or that is None, accepts any value.
        """
        path = self.sources['symbols']
        if len(self.vocabulary) == len(SPECIALS):
            faults.add(path, 'no words, so there is no vocabulary')
            return
        for name, (value, path) in self.needs.items():
            accepted = vocabulary_size(model) if name == 'vocab_size' else getattr(model, name, None)
            if accepted not in (None, value):
                special = f', {len(SPECIALS)} of them special' if name == 'vocab_size' else ''
                hint = f'--cfg-options model.{name}={value}'
                faults.add(path, f'{name} is {value:,}{special}, but the model has {accepted:,} ({hint})')

    def compare(self, meta: Mapping[str, Any], where: str, faults: Faults) -> None:
        """Compare the data set with the ``metainfo`` of another one, or of the training of a checkpoint."""
        for name, path in self.sources.items():
            ours, other = self.metainfo[name], meta.get(name, self.metainfo[name])
            if isinstance(ours, list) and [*ours] != [*other]:
                before = SPECIALS if name == 'symbols' else ()
                text = difference(name.removesuffix('s'), (*before, *ours), (*before, *other))
                faults.add(path, f'{text} in {where}')
            elif not isinstance(ours, list) and ours != other:
                faults.add(path, f'{name} is {ours!r}, but {other!r} in {where}')
