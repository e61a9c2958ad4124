"""Base class of data sets of texts about images: mmengine's data set, with a vocabulary and with region features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset

from mmattn.language.text.annotation_files import in_folder
from mmattn.language.text.text_dataset import TextDataset
from mmattn.language.text.words import unspaced_fault
from mmattn.utils.faults import Faults, shorten

from .region_store import RegionStore

FIRST_TEXTS = 1000  # the script of a file is that of its first texts


class ImageTextDataset(TextDataset, BaseDataset, ABC):
    """Texts about images, as mmengine's ``BaseDataset``.

    A subclass defines ``load_data_list``, which sets the attributes and ``_metainfo``, and ``default_pipeline``, whose
    transforms make the samples if the config has no ``pipeline``.

    Attributes:
        paths (tuple of str): names of the attributes that are a path, or a list of paths, in ``data_root``.
        store (object): the region store.
        region_options (dict): what regions may be, options of :meth:`RegionStore.image_faults`.
        shared (dict): what the transforms get with every entry, such as the vocabulary and the region store.
    """

    paths: tuple[str, ...] = ('ann_file', 'regions')
    ann_file: Any
    data_root: str
    _metainfo: dict[str, Any]
    store: Any = None
    region_options: dict[str, Any]

    def __init__(self, ann_file: Any, regions: Any, **options: Any) -> None:
        self.regions = regions
        self.test_mode = options.get('test_mode', False)
        self.shared: dict[str, Any] = {}
        self._unspaced: dict[str, str] = {}
        pipeline = options.pop('pipeline', None)
        pipeline = self.default_pipeline() if pipeline is None else pipeline
        super().__init__(ann_file, data_prefix={}, pipeline=pipeline, **options)

    @abstractmethod
    def default_pipeline(self) -> list[dict]:
        """List the transforms that make a sample."""

    def _join_prefix(self) -> None:
        for name in self.paths:
            setattr(self, name, in_folder(self.data_root or '', getattr(self, name)))

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """Get an entry for the transforms, with what all entries share, and with ``inputs``, which they fill."""
        return super().get_data_info(idx) | self.shared | dict(inputs={})

    def _open_regions(self, ann_file: str, image_ids: Sequence[str], **region_options: Any) -> None:
        """Open the region store. If an image is not in it, a FaultsError lists all faults of the images."""
        self.store = RegionStore(self.regions) if isinstance(self.regions, str | Path) else self.regions
        self.shared['store'], self.image_ids, self.region_options = self.store, image_ids, region_options
        missing = [name for name in dict.fromkeys(image_ids) if name not in self.store]
        if isinstance(self.store, RegionStore):
            self.needs['num_features'] = (self.store.num_features, str(self.regions))
            if missing:
                Faults(self.regions, self._region_faults()).check()
        Faults(ann_file, [f'image {name}: not in the region store' for name in missing]).check()

    def _region_faults(self) -> list[str]:
        """List the faults of the images in the region store, at most 20, and the number of the others."""
        if not isinstance(self.store, RegionStore):
            return []
        return shorten(self.store.image_faults(self.image_ids, features=False, **self.region_options))

    def _check_spaces(self, ann_file: str, texts: Sequence[str]) -> None:
        if fault := unspaced_fault(texts[:FIRST_TEXTS]):
            self._unspaced[ann_file] = fault

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add the faults of text and regions, and what the model does not accept. Region features are not read."""
        super().check_for_model(model, faults)
        for path, fault in self._unspaced.items():
            faults.add(path, fault)
        faults.add(self.regions, *self._region_faults())
