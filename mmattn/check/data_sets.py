"""The data sets of a config, with the facts of their files."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from mmengine.fileio import LocalBackend, get_file_backend, load
from mmengine.registry import DATASETS, TRANSFORMS

from mmattn.utils.component_type import component_class, dicts
from mmattn.utils.faults import one_line

from .facts import Facts, read_facts

STOCK = ('mmcv', 'mmseg', 'mmdet', 'mmattn')  # loaders of other packages are not called
IGNORED = 255  # default of mmseg's heads, data sets and metrics
COCO_KEYS = ('id', 'image_id', 'category_id', 'bbox', 'file_name', 'width', 'height', 'name')


class Part:
    """A data set of mmseg or mmdet.

    Attributes:
        where (str): the place in the config, such as 'train_dataloader.dataset'.
        loader (str): the start of the place, such as 'train_dataloader'.
        is_segmentation (bool): whether it has masks, not boxes.
        fault (str): why it cannot be built, or ''.
        infos (list of dict): its samples.
        coco (dict): the lists of its COCO file, if there is one: a few keys of each entry.
        images, masks (dict): path → facts of the files that its pipeline loads from a local disk.
    """

    def __init__(self, where: str, kind: type, cfg: Mapping) -> None:
        self.where, self.loader = where, where.partition('.')[0]
        self.is_segmentation = is_kind(kind, 'BaseSegDataset')
        self.dataset: Any = None
        self.fault = ''
        self.infos: list[dict] = []
        self.coco: dict[str, list[dict]] = {}
        self.images: dict[str, Facts] = {}
        self.masks: dict[str, Facts] = {}
        try:
            self._read(cfg)
        except ImportError:  # of a remote backend: its files are not checked
            self.dataset, self.infos = None, []
        except Exception as error:  # parsers of annotations raise many types
            self.fault = f'{getattr(self.dataset, "ann_file", "")}: {one_line(error)}'.removeprefix(': ')

    def _read(self, cfg: Mapping) -> None:
        try:
            self.dataset = DATASETS.build({**deepcopy(cfg), 'lazy_init': True, 'serialize_data': False})
        except TypeError:  # a class without these arguments; it raises again for another reason
            self.dataset = DATASETS.build(deepcopy(cfg))
        if hasattr(self.dataset, 'COCOAPI'):
            content = load(self.dataset.ann_file, backend_args=self.dataset.backend_args)
            for kind in ('images', 'annotations', 'categories'):
                self.coco[kind] = [{key: x[key] for key in COCO_KEYS if key in x} for x in content.get(kind) or ()]
        self.dataset.full_init()
        self.infos = [self.dataset.get_data_info(i) for i in range(len(self.dataset))]
        self.images = self._facts(cfg, 'img_path', 'LoadImageFromFile', 'transform')
        if self.is_segmentation:
            self.masks = self._facts(cfg, 'seg_map_path', 'LoadAnnotations', '_load_seg_map')

    def _facts(self, cfg: Mapping, key: str, base: str, method: str) -> dict[str, Facts]:
        """Read the facts of files that a loader of ``base`` with its method reads from a local disk."""
        for step in dicts(cfg.get('pipeline')) if self.infos else ():
            kind = component_class(step, TRANSFORMS)
            if is_kind(kind, base) and getattr(kind, method).__module__.partition('.')[0] in STOCK:
                loader = TRANSFORMS.build(step)
                backend = get_file_backend(self.infos[0].get(key) or '', backend_args=loader.backend_args)
                return read_facts(self.infos, key, loader) if isinstance(backend, LocalBackend) else {}
        return {}

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes. Empty if the data set does not define them."""
        return tuple(getattr(self.dataset, 'metainfo', {}).get('classes') or ())

    @property
    def indices(self) -> set[int]:
        """The labels of the masks, and the class indices of the boxes."""
        labels = {label for mask in self.masks.values() for label in mask.labels}
        return labels | {box['bbox_label'] for info in self.infos for box in info.get('instances', ())}

    @property
    def ignored(self) -> list[str]:
        """The masks whose pixels are all ignored."""
        return [path for path, mask in self.masks.items() if [*mask.labels] == [IGNORED]]


class Run:
    """What rules are asked about.

    Args:
        cfg (Config): the whole config.
        loaders (sequence of str): the data loaders that are checked, such as 'train_dataloader'.
        model (nn.Module, optional): the model, without wrappers.
        checkable (sequence): the built data sets that have a method ``check_for_model``.
    """

    def __init__(self, cfg: Mapping, loaders: Sequence[str], model: Any = None, checkable: Sequence[Any] = ()) -> None:
        self.cfg, self.loaders, self.model, self.checkable = cfg, loaders, model, checkable
        listed = data_sets(cfg, loaders)
        self.parts = [Part(*x) for x in listed if is_kind(x[1], 'BaseSegDataset') or is_kind(x[1], 'BaseDetDataset')]


def walk(cfg: Any, where: str) -> Iterator[tuple[str, dict]]:
    """Yield all dictionaries in a part of a config, with their places."""
    if isinstance(cfg, dict):
        yield where, cfg
    if isinstance(cfg, dict | list | tuple):
        for key, part in cfg.items() if isinstance(cfg, dict) else enumerate(cfg):
            yield from walk(part, f'{where}.{key}')


def data_sets(cfg: Mapping, loaders: Sequence[str]) -> Iterator[tuple[str, type, dict]]:
    """Yield place, class and config of the data sets of data loaders, also those in wrappers like ``ConcatDataset``."""
    for loader in loaders:
        for where, data in walk((cfg.get(loader) or {}).get('dataset'), f'{loader}.dataset'):
            kind = component_class(data, DATASETS, data.get('_scope_')) if '.pipeline' not in where else None
            if isinstance(kind, type):
                yield where, kind, data


def is_kind(kind: Any, name: str) -> bool:
    """Tell whether a class derives from a class of this name, whose package may be missing."""
    return name in (base.__name__ for base in getattr(kind, '__mro__', ()))
