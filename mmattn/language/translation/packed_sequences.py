"""Compact storage for the sentences of a large corpus."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import torch


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
