"""The pipeline of a config's test data, without its labels."""

from mmengine.config import Config
from mmengine.dataset import Compose

from mmattn.utils.component_type import inner_data_sets, type_name


def inference_pipeline(cfg: Config) -> Compose:
    """Build the transforms of ``test_dataloader`` for images that have no annotations.

    Args:
        cfg (Config): the config. Its default scope must be set. Of several data sets, as in ``ConcatDataset``, the
            first one counts.

    Returns:
        Compose: from ``dict(img_path=…)`` to a sample, which ``pseudo_collate`` makes a batch for ``test_step``.
    """
    dataset = inner_data_sets(cfg.test_dataloader.dataset)[0]
    if not dataset.get('pipeline'):
        raise ValueError(f'test_dataloader.dataset of type {type_name(dataset)} has no pipeline')
    return Compose([transform for transform in dataset['pipeline'] if 'Annotations' not in type_name(transform)])
