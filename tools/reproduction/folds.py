"""Cross-validation: each fold tests some clips or images, and trains on those of the other folds."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mmengine.config import Config

from mmattn.utils.complexity import dicts
from mmattn.utils.files import write_text

from .task import ProtocolError


class Fold(NamedTuple):
    """A fold, by its number from 1, and the files that list the names for training and test."""

    number: int
    train: Path
    test: Path


def write_folds(names: Sequence[Sequence[str]], folder: Path) -> list[Fold]:
    """Write the lists of folds, given the test names of each; existing lists must be the same.

    Raises:
        ProtocolError: a name is in two folds, there is only one fold, or an existing list differs.
    """
    tested = [name for fold in names for name in fold]
    repeated = sorted({name for name in tested if tested.count(name) > 1})
    if len(names) < 2 or repeated:
        raise ProtocolError(f'--folds requires two folds or more without common names; common: {", ".join(repeated)}')
    folds = []
    for number, test in enumerate(names, 1):
        fold = Fold(number, folder / f'fold-{number}_train.txt', folder / f'fold-{number}_test.txt')
        for path, lines in ((fold.train, [name for name in tested if name not in test]), (fold.test, test)):
            text = ''.join(f'{name}\n' for name in lines)
            if path.exists() and path.read_text(encoding='utf-8') != text:
                raise ProtocolError(f'{path} lists other names: choose another --work-dir, or the same --folds')
            write_text(path, text)
        folds.append(fold)
    return folds


def use_fold(cfg: Config, fold: Fold) -> None:
    """Let all data sets of a config, also those of pasted objects, read the lists of a fold.

    Raises:
        ProtocolError: the splits of the data set are not lists of names.
    """
    for loader, path in (('train', fold.train), ('val', fold.test), ('test', fold.test)):
        listed = [part for part in dicts(cfg[f'{loader}_dataloader'].dataset) if 'ann_file' in part]
        if not listed or any(Path(part.ann_file).suffix != '.txt' for part in listed):
            raise ProtocolError('--folds requires a data set whose splits are lists of names, such as davis_240p')
        for part in listed:
            part.ann_file = str(path.resolve())
