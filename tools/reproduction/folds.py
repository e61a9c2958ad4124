"""Cross-validation: each fold tests some clips or images, and trains on the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def list_folds(names: Sequence[Sequence[str]], folder: Path) -> list[Fold]:
    """Return the folds, given the test names of each, with their lists in a folder."""
    tested = [name for fold in names for name in fold]
    repeated = sorted({name for name in tested if tested.count(name) > 1})
    if repeated or len(names) < 2:
        raise ProtocolError(f'--folds requires two folds or more without common names; common: {", ".join(repeated)}')
    return [
        Fold(number, folder / f'fold-{number}_train.txt', folder / f'fold-{number}_test.txt')
        for number in range(1, len(names) + 1)
    ]


@contextmanager
def fold_lists(names: Sequence[Sequence[str]], folder: Path) -> Iterator[None]:
    """Write the lists of folds to a folder for a check of the data; if it fails, remove lists that are new."""
    written = []
    tested = [name for fold in names for name in fold]
    try:
        for fold, test in zip(list_folds(names, folder) if names else [], names):
            for path, lines in ((fold.train, [name for name in tested if name not in test]), (fold.test, test)):
                text = ''.join(f'{name}\n' for name in lines)
                if not path.exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    write_text(path, text)
                    written.append(path)
                elif path.read_text(encoding='utf-8') != text:
                    raise ProtocolError(f'{path} lists other names: choose another --work-dir, or the same --folds')
        yield
    except Exception:
        for path in written:
            path.unlink()
        raise


def use_fold(cfg: Config, fold: Fold) -> None:
    """Let all data sets of a config, also those of pasted objects, read the lists of a fold."""
    for loader, path in (('train', fold.train), ('val', fold.test), ('test', fold.test)):
        listed = [part for part in dicts(cfg[f'{loader}_dataloader'].dataset) if 'ann_file' in part]
        if not listed or any(Path(part.ann_file).suffix != '.txt' for part in listed):
            raise ProtocolError('--folds requires a data set whose splits are lists of names, such as davis_240p')
        for part in listed:
            part.ann_file = str(path.resolve())
