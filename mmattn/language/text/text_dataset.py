"""What data sets of sentences share."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from mmattn.registry import DATASETS

from .vocabulary import Vocabulary


class TextDataset(Dataset):
    """Data set with a vocabulary, which can be read before the data set is built.

    Its class method ``find_faults``, if any, is that of :class:`~mmattn.data_check.data_sets.CheckableDataset`.
    """

    @classmethod
    @abstractmethod
    def vocabulary_source(cls, cfg: dict) -> tuple[Path, Any]:
        """Return the file of the vocabulary of a data set, and what else is compared with a checkpoint."""

    @classmethod
    @abstractmethod
    def read_vocabulary(cls, cfg: dict) -> Vocabulary:
        """Return the vocabulary of a data set with this config.

        Raises:
            OSError, ValueError: the file cannot be read.
        """

    @classmethod
    def checkpoint_faults(cls, cfg: dict, meta: Mapping[str, Any]) -> list[str]:
        """Return what else than the vocabulary of a data set with this config differs from that of a checkpoint.

        Args:
            cfg (dict): config of the data set.
            meta (mapping): ``metainfo`` of the data set that the checkpoint was trained on.
        """
        return []


def text_dataset(cfg: dict) -> type[TextDataset]:
    """Return the class of a :class:`TextDataset`, given by its config."""
    return DATASETS.get(cfg['type'])  # type: ignore[return-value]


def read_vocabulary(cfg: dict) -> Vocabulary:
    """Return the vocabulary of a :class:`TextDataset`, given by its config."""
    return text_dataset(cfg).read_vocabulary(cfg)
