"""Hook that checks data sets of sentences, and compares their vocabularies with the model and the checkpoint."""

from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.runner import Runner

from mmattn._compat import built_data_loaders, checkpoint_path
from mmattn.data_check.data_sets import LOADERS
from mmattn.data_check.hook import DataCheckHook, checkable_data_sets
from mmattn.language.regions.image_inputs import warn_of_shared_images
from mmattn.registry import HOOKS
from mmattn.utils.faults import Faults

from .text_dataset import TextDataset


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

    def check_data(self, runner: Runner, loaders: tuple[str, ...], faults: Faults) -> None:
        """Compare the data sets of the data loaders with each other."""
        data_sets = text_data_sets(built_data_loaders(runner), loaders)
        for dataset in data_sets[1:]:
            dataset.compare(without_length(data_sets[0].metainfo), data_sets[0].sources['symbols'], faults)
        training, validation = (
            {name for dataset in data_sets if dataset.test_mode == mode for name in dataset.image_ids}
            for mode in (False, True)
        )
        warn_of_shared_images(training, validation)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare the checkpoint with the data and with the model of the config."""
        super().after_load_checkpoint(runner, checkpoint)
        meta = checkpoint.get('meta', {}).get('dataset_meta') or {}
        if not self.enabled or 'symbols' not in meta:
            return
        name = checkpoint_path(runner) or f'of {runner.work_dir}'
        faults = Faults()
        for dataset in text_data_sets(built_data_loaders(runner), LOADERS):
            dataset.compare(meta, f'the checkpoint {name}', faults)
            meta = without_length(meta)  # of the first data set, that of the training if there is one
        faults.check()


def text_data_sets(data_loaders: Mapping[str, Any], keys: Iterable[str]) -> list[TextDataset]:
    """List the data sets of sentences of the data loaders with these keys in the config."""
    data_sets = (each for key in keys if key in data_loaders for each in checkable_data_sets(data_loaders[key].dataset))
    return [dataset for dataset in data_sets if isinstance(dataset, TextDataset)]


def without_length(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out at how many words sentences are cut: data sets of a run may differ in it."""
    return {key: value for key, value in meta.items() if key != 'max_words'}
