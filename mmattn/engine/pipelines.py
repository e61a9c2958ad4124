"""The pipeline of a config's test data, without its labels."""

from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose

from mmattn.utils.component_type import type_name


def first_dataset(cfg: Config) -> ConfigDict:
    """Find the config of the test set that has a pipeline. In wrappers such as ``ConcatDataset``, the first one counts.

    Args:
        cfg (Config): the config, whose ``test_dataloader.dataset`` may be a wrapper.

    Raises:
        ValueError: no test set has a pipeline.
    """
    dataset = cfg.test_dataloader.dataset
    while not dataset.get('pipeline') and (inner := dataset.get('dataset') or dataset.get('datasets')):
        dataset = inner[0] if isinstance(inner, list | tuple) else inner
    if not dataset.get('pipeline'):
        raise ValueError(f'test_dataloader.dataset of type {type_name(dataset)} has no pipeline')
    return dataset


def inference_pipeline(cfg: Config) -> Compose:
    """Build the transforms of :func:`first_dataset` for images that have no annotations.

    Args:
        cfg (Config): the config. Its default scope must be set.

    Returns:
        Compose: from ``dict(img_path=…)`` to a sample, which ``pseudo_collate`` makes a batch for ``test_step``.
    """
    return Compose([t for t in first_dataset(cfg).pipeline if 'Annotations' not in type_name(t)])
