"""Base class of data sets with a vocabulary: what checkpoints contain, and what a model must fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from mmattn.language.models.embedding import vocabulary_size
from mmattn.utils.faults import Faults, difference

from .vocabulary import SPECIALS, Vocabulary


class TextDataset(Dataset):
    """Data set with a vocabulary. When it reads a faulty file, a FaultsError lists the faults.

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
