"""Hook that checks data sets of sentences, and compares their vocabularies with the model and the checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from mmattn._compat import checkpoint_path
from mmattn.data_check.data_sets import LOADERS, Fault, data_sets
from mmattn.data_check.hook import DataCheckHook
from mmattn.language.models.embedding import vocabulary_size
from mmattn.registry import HOOKS
from mmattn.utils.faults import difference, split_faults

from .text_dataset import TextDataset, read_vocabulary, text_dataset
from .vocabulary import SPECIALS, Vocabulary


@HOOKS.register_module()
class TextDataCheckHook(DataCheckHook):
    """Checks data sets of sentences before the first iteration. Data, model and checkpoint must share one vocabulary.

    The vocabulary of a data set is ``vocabulary.txt`` in its ``data_root``, or the words of its captions or questions.
    Before training, the hook reads the data of ``train_dataloader`` and ``val_dataloader``. Before testing, it reads
    the data of ``test_dataloader``. These are faults:

    * The vocabulary cannot be read, or two data sets have different vocabularies.
    * The embedding (``vocab_size`` of the model) has another number of rows than the vocabulary.
    * Captions: annotations, regions or attributes are wrong, images have no regions, regions have another width than
      ``num_features`` of the model, or the model reads attributes and there are none.
    * Visual questions: files of questions are wrong, images have no regions or pictures, or the number of answers is
      not ``num_answers`` of the model.

    If a checkpoint contains the symbols of its training data, the hook compares them with the data. It also compares
    the languages of translations and the answers to visual questions. With another vocabulary of the same size, the
    weights would load, and every number would mean another symbol.

    Faults raise a ValueError before the first iteration, and a checkpoint with another vocabulary raises one when it is
    loaded. The messages name the files and the numbers of symbols. :class:`~mmattn.data_check.hook.DataCheckHook`
    describes when the check runs, and in which process.

    Args:
        enabled (bool): whether to check. To turn the check of a shipped config off, use
            ``--cfg-options default_hooks.data_check.enabled=False``. Defaults to True.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> HOOKS.build(dict(type='TextDataCheckHook')).enabled
        True
        >>> default_hooks = dict(data_check=dict(type='mmattn.TextDataCheckHook'))  # in a config
    """

    def find_faults(self, runner: Runner, loaders: tuple[str, ...]) -> Iterator[Fault]:
        """Compare the vocabularies of the data loaders with the embedding and with each other."""
        rows = vocabulary_size(runner.model)
        first: tuple[Path, Vocabulary] | None = None
        for path, cfg in _sources(runner.cfg, loaders):
            try:
                vocabulary = read_vocabulary(cfg)
            except (OSError, ValueError) as error:
                yield from ((str(path), fault) for fault in split_faults(error, path))
                continue
            first = first or (path, vocabulary)
            count = len(vocabulary)
            if count == len(SPECIALS):
                yield str(path), 'no words, so there is no vocabulary'
            elif rows is not None and rows != count:
                yield (
                    str(path),
                    f'{count - len(SPECIALS):,} symbols and {len(SPECIALS)} special ones, but the embedding of the '
                    f'model has {rows:,} rows (--cfg-options model.vocab_size={count})',
                )
            if vocabulary.symbols != first[1].symbols:
                yield str(path), f'{difference("symbol", vocabulary.symbols, first[1].symbols)} in {first[0]}'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare the checkpoint with the data and with the model of the config."""
        super().after_load_checkpoint(runner, checkpoint)
        meta = checkpoint.get('meta', {}).get('dataset_meta') or {}
        if not self.enabled or 'symbols' not in meta:
            return
        name = checkpoint_path(runner) or f'of {runner.work_dir}'
        symbols = (*SPECIALS, *meta['symbols'])
        for path, cfg in _sources(runner.cfg, LOADERS):
            vocabulary = read_vocabulary(cfg)
            if vocabulary.symbols != symbols:
                raise ValueError(
                    f'{path}: the vocabulary does not fit the checkpoint {name}: '
                    f'{difference("symbol", vocabulary.symbols, symbols)} in the checkpoint'
                )
            if faults := text_dataset(cfg).checkpoint_faults(cfg, meta):
                raise ValueError(f'{path}: the data do not fit the checkpoint {name}: {"; ".join(faults)}')


def _sources(cfg: Any, loaders: tuple[str, ...]) -> list[tuple[Path, dict]]:
    sources: dict[str, tuple[Path, dict]] = {}
    for _, part in data_sets(cfg, loaders, TextDataset):
        path, options = text_dataset(part).vocabulary_source(part)
        if path.is_file():  # for a missing file, the data set raises an error
            sources.setdefault(repr((path, options)), (path, part))
    return list(sources.values())
