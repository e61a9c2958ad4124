"""The numbers of many sentences in one array."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import torch


class PackedSequences:
    """Numbers of all sentences in one array: one tensor per sentence would need several times the memory.

    Args:
        sentences (iterable of sequence of int): the numbers of the symbols of each.

    Example:
        >>> PackedSequences([[4, 5, 2], [6, 2]])[1]
        tensor([6, 2])
    """

    def __init__(self, sentences: Iterable[Sequence[int]]) -> None:
        numbers, ends = array('i'), array('q', [0])
        for sentence in sentences:
            numbers.extend(sentence)
            ends.append(len(numbers))
        self.numbers, self.ends = np.asarray(numbers), np.asarray(ends)

    def lengths(self) -> list[int]:
        """Return the number of symbols of each sentence."""
        return np.diff(self.ends).tolist()

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the numbers of a sentence, int64 ``(length)``."""
        index = range(len(self.ends) - 1)[index]
        start, end = self.ends[index : index + 2]
        return torch.from_numpy(self.numbers[start:end].astype(np.int64))
