"""Training and testing of heads on stored maps of a frozen backbone: data set, preprocessor, and the backbone's place.

A folder holds one file per image or crop, ``00000.pt`` and so on, which ``tools/reproduce.py --cached-crops`` writes:
the maps of the backbone, the labels, and the meta information of mmseg's data sample. ``cache.json`` describes them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmattn.registry import DATASETS, MODELS
from mmattn.utils.checks import check_count
from mmattn.utils.files import atomic_write


def sample_path(folder: str | Path, index: int) -> Path:
    """Return the file of a sample."""
    return Path(folder, f'{index:05}.pt')


def write_sample(path: Path, maps: Sequence[Tensor], sample: SegDataSample, dtype: torch.dtype = torch.float16) -> None:
    """Write the features and labels of one image or crop; the write is atomic.

    Args:
        path (Path): the file.
        maps (sequence of Tensor): maps of the backbone, ``(C, H, W)`` each.
        sample (SegDataSample): labels, ``(1, H, W)``, and meta information.
        dtype (torch.dtype): of the stored maps. Defaults to float16.

    Raises:
        OSError: the file cannot be written.
        ValueError: a value is not finite in this dtype; the message names the image.
    """
    stored = [x.detach().to('cpu', dtype, copy=True).contiguous() for x in maps]
    if not all(x.isfinite().all() for x in stored):
        raise ValueError(f'{sample.get("img_path")}: the features are not finite as {dtype}')
    labels = sample.gt_sem_seg.data.cpu()
    if labels.min() >= 0 and labels.max() <= 255:
        labels = labels.to(torch.uint8)
    with atomic_write(path) as temporary:
        torch.save(dict(maps=stored, labels=labels.clone(), metainfo=_plain(sample.metainfo)), temporary)


@DATASETS.register_module()
class CachedFeaturesDataset(Dataset):
    """Stored features of images or crops, with their labels.

    Files are memory-mapped: the operating system keeps in memory what fits.

    Args:
        data_root (str or Path): the folder.
        num_samples (int): number of samples; the first of the folder.

    Raises:
        TypeError, ValueError: ``num_samples`` is not a positive integer.
        FileNotFoundError: the folder has no description, or fewer samples; the message names the first missing file.

    Example:
        >>> sample = SegDataSample(metainfo=dict(img_path='a.png'))
        >>> sample.gt_sem_seg = PixelData(data=torch.zeros(1, 16, 24, dtype=torch.long))
        >>> write_sample(Path('cache/00000.pt'), [torch.zeros(8, 2, 3)], sample)
        >>> _ = Path('cache/cache.json').write_text('{"metainfo": {"classes": ["road"]}}', encoding='utf-8')
        >>> dataset = CachedFeaturesDataset('cache', 1)
        >>> dataset.metainfo, [x.shape for x in dataset[0]['inputs']]
        ({'classes': ['road']}, [torch.Size([8, 2, 3])])
    """

    def __init__(self, data_root: str | Path, num_samples: int) -> None:
        check_count('num_samples', num_samples)
        self.data_root, self.num_samples = Path(data_root), num_samples
        self.metainfo = json.loads((self.data_root / 'cache.json').read_text(encoding='utf-8'))['metainfo']
        for path in (sample_path(data_root, index) for index in range(num_samples)):
            if not path.is_file():
                raise FileNotFoundError(f'{path}: the cache does not have {num_samples} samples')

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return ``inputs``, a list of maps ``(C, H, W)``, and ``data_samples``, mmseg's data sample with labels."""
        if not 0 <= index < self.num_samples:
            raise IndexError(f'index must be from 0 to {self.num_samples - 1}; got {index}')
        path = sample_path(self.data_root, index)
        try:
            found = torch.load(str(path), map_location='cpu', weights_only=True, mmap=True)
        except (RuntimeError, OSError) as error:
            raise ValueError(f'{path} cannot be read ({error}); remove it to compute it again') from error
        sample = SegDataSample(metainfo=found['metainfo'])
        sample.gt_sem_seg = PixelData(data=found['labels'].long())
        return dict(inputs=found['maps'], data_samples=sample)


@MODELS.register_module()
class CachedFeaturesPreprocessor(BaseDataPreprocessor):
    """Stacks the maps of a batch of :class:`CachedFeaturesDataset`, as float32.

    Example:
        >>> from mmengine.dataset import pseudo_collate
        >>> batch = pseudo_collate([dict(inputs=[torch.zeros(8, 2, 3), torch.ones(4, 4, 6)])] * 5)
        >>> [x.shape for x in CachedFeaturesPreprocessor()(batch)['inputs']]
        [torch.Size([5, 8, 2, 3]), torch.Size([5, 4, 4, 6])]
    """

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Return the batch with ``inputs``, one float32 tensor ``(B, C, H, W)`` per map.

        Args:
            data (dict): a batch as mmengine's ``pseudo_collate`` returns it: ``inputs`` has a list per map.
            training (bool): it has no effect. Defaults to False.
        """
        data = self.cast_data(data)  # type: ignore[assignment]
        return {**data, 'inputs': [torch.stack(list(maps)).float() for maps in data['inputs']]}


@MODELS.register_module()
class CachedBackbone(nn.Identity):
    """Takes the place of a backbone whose maps are stored: it returns its input, the maps.

    Example:
        >>> maps = [torch.zeros(1, 8, 2, 3)]
        >>> CachedBackbone()(maps) is maps
        True
    """


def _plain(value: Any) -> Any:
    """Return meta information as values that are unpickled with ``weights_only``."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(part) for part in value)
    return value.item() if hasattr(value, 'item') else value.tolist() if hasattr(value, 'tolist') else value
