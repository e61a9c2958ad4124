"""Region features of images, computed once and stored: a folder of arrays that are read through memory maps.

The folder of a store, written by the converters ``bottom_up_features.py``, ``region_npz.py`` and
``region_features.py`` of ``tools/dataset_converters``, or with :class:`mmattn.language.RegionWriter`::

    features.npy        all regions of all images, (R, D), float16 or float32
    boxes.npy           (R, 4), float32: left, top, right, bottom, in pixels of the image
    classes.npy         optional: (R,), int32, the detector's classes, -1 for no class, such as the whole image
    scores.npy          optional: (R,), float32
    offsets.npy         (images + 1,), int64: image i has the regions from offsets[i] to offsets[i + 1]
    sizes.npy           (images, 2), int32: width and height of the images, in pixels
    image_ids.txt       the ids of the images, one per line, UTF-8
    store.json          version of the format, num_features (D), dtype, arrays, source
"""

import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmattn.language.text.text_files import read_lines
from mmattn.language.text.words import normalize_unicode
from mmattn.utils.checks import check_count
from mmattn.utils.faults import Faults, reading, shorten
from mmattn.utils.optional import import_optional

VERSION = 1
DTYPES = dict(boxes='float32', classes='int32', scores='float32')  # of the arrays besides the features


class Regions(NamedTuple):
    """The regions of an image.

    Args:
        features (Tensor): ``(n, D)``, float32.
        boxes (Tensor): left, top, right, bottom ``(n, 4)``, float32, in pixels of the image. Right and bottom are
            exclusive: the whole image is ``(0, 0, width, height)``.
        size (tuple[int, int]): width and height of the image, in pixels.
        classes (Tensor, optional): the detector's classes ``(n,)``, int64. -1 is no class.
        scores (Tensor, optional): ``(n,)``, float32.

    Example:
        >>> Regions(torch.zeros(1, 8), torch.tensor([[0.0, 0.0, 50.0, 40.0]]), (50, 40)).scores is None
        True
    """

    features: Tensor
    boxes: Tensor
    size: tuple[int, int]
    classes: Tensor | None = None
    scores: Tensor | None = None


def clip_boxes(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Clip boxes to an image of ``size`` (width, height), and extend sides shorter than a pixel.

    Boxes are left, top, right, bottom ``(..., 4)``. Width and height must be at least 1.
    """
    limit = boxes.new_tensor(size)
    start = torch.minimum(boxes[..., :2].clamp(min=0), limit - 1)
    end = torch.maximum(torch.minimum(boxes[..., 2:], limit), start + 1)
    return torch.cat([start, end], -1)


def grid_boxes(size: tuple[int, int], rows: int, columns: int | None = None) -> Tensor:
    """Divide an image of ``size`` (width, height) into cells, row by row: boxes ``(rows · columns, 4)``, float32."""
    counts = (rows if columns is None else columns), rows
    x, y = (torch.linspace(0, side, count + 1, dtype=torch.float64) for side, count in zip(size, counts))
    top, left = torch.meshgrid(y[:-1], x[:-1], indexing='ij')
    bottom, right = torch.meshgrid(y[1:], x[1:], indexing='ij')
    return torch.stack([left, top, right, bottom], -1).flatten(0, 1).float()


class RegionStore:
    """Read region features of images by their ids, through memory maps.

    Only the ids and the sizes of the images are in memory. A pickled store contains only its paths, and opens the files
    again when it is loaded. So the workers of a data loader, forked or spawned, can use a store in a data set. An id
    may have another form of Unicode than in the store, as macOS writes the names of files.

    A FaultsError lists all faults: files that are missing, truncated or do not fit each other, an id that occurs twice,
    or folders with features of different widths.

    Args:
        path (str, Path or sequence of them): the folder of a store, or several folders that together are one store,
            such as training and validation images.

    Example:
        >>> from mmattn.language import RegionWriter
        >>> with RegionWriter('regions') as writer:
        ...     boxes = torch.tensor([[0.0, 0.0, 50.0, 40.0], [5.0, 5.0, 9.0, 9.0]])
        ...     writer.write('dog.1', Regions(torch.ones(2, 8), boxes, (50, 40)))
        >>> store = RegionStore('regions')
        >>> store['dog.1'].features.shape, store['dog.1'].size, store.num_features
        (torch.Size([2, 8]), (50, 40), 8)
        >>> store.check(['dog.1', 'cat.7'])
        Traceback (most recent call last):
        mmattn.utils.faults.FaultsError: regions: image cat.7 is not in the store
    """

    def __init__(self, path: str | Path | Sequence[str | Path]) -> None:
        paths = [path] if isinstance(path, str | Path) else list(path)
        if not paths:
            raise ValueError('path must have at least one folder; got none')
        self.paths = [Path(folder) for folder in paths]
        for folder in self.paths:
            if not folder.is_dir():
                message = 'no such folder; a converter such as tools/dataset_converters/region_npz.py writes it'
                raise FileNotFoundError(errno.ENOENT, message, str(folder))
        faults = Faults()
        self._folders = [_Folder(folder, faults) for folder in self.paths]
        self._places: dict[str, tuple[_Folder, int]] = {}
        if not faults:
            for files in self._folders:
                for row, image_id in enumerate(files.image_ids):
                    other = self._places.setdefault(normalize_unicode(image_id), (files, row))
                    if other != (files, row):
                        faults.add(files.path, f'image {image_id} is also in {other[0].path}, line {other[1] + 1}')
            first = self._folders[0]
            for files in self._folders:
                if files.width != first.width:
                    faults.add(files.path, f'{files.width} features per region, but {first.path} has {first.width}')
        faults.check()
        self.num_features = self._folders[0].width
        self.sources = [files.source for files in self._folders]

    def __reduce__(self) -> tuple[type['RegionStore'], tuple[list[Path]]]:
        return RegionStore, (self.paths,)

    @property
    def image_ids(self) -> list[str]:
        """Ids of all images, in the order of the folders."""
        return [image_id for files in self._folders for image_id in files.image_ids]

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and normalize_unicode(image_id) in self._places

    def __getitem__(self, image_id: str) -> Regions:
        """Copy the regions of an image into memory. Unusable features or boxes, such as NaN, raise a ValueError."""
        if image_id not in self:
            raise KeyError(f'image {image_id} is not in the store {self._name()}')
        folder, row = self._places[normalize_unicode(image_id)]
        features, boxes, size, *details = folder.slice_arrays(row)
        if len(features) and (faults := region_faults(features, boxes, size, *details)):
            raise ValueError(f'image {image_id} of the region store {folder.path}: {"; ".join(faults)}')
        classes, scores = (
            None if x is None else torch.from_numpy(np.array(x, dtype))
            for x, dtype in zip(details, (np.int64, np.float32))
        )
        return Regions(
            torch.from_numpy(np.array(features, np.float32)), torch.from_numpy(np.array(boxes)), size, classes, scores
        )

    def image_faults(
        self,
        image_ids: Iterable[str] | None = None,
        num_features: int | None = None,
        *,
        features: bool = True,
        allow_empty: bool = False,
        sizes: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[str]:
        """List what makes images unusable, one line per fault.

        Faults are images without regions or not in the store, features or boxes that are not finite, and boxes outside
        their image or with a side that is not positive.

        Args:
            image_ids (iterable of str, optional): the images. Defaults to all images.
            num_features (int, optional): width of the features that the model accepts.
            features (bool): read the features. False is faster, and sufficient for a store by :class:`RegionWriter`,
                which writes only finite features. Defaults to True.
            allow_empty (bool): an image may be without regions. Defaults to False.
            sizes (mapping, optional): width and height of images by id. Another size in the store is a fault.
        """
        faults = []
        if num_features is not None and num_features != self.num_features:
            faults.append(f'{self.num_features} features per region, but the model has {num_features}')
        checked = list(dict.fromkeys(self.image_ids if image_ids is None else image_ids))
        tqdm = import_optional('tqdm').tqdm
        for image_id in tqdm(checked, 'checking regions', unit=' images', disable=None, leave=False):
            if image_id not in self:
                faults.append(f'image {image_id} is not in the store')
                continue
            folder, row = self._places[normalize_unicode(image_id)]
            stored, *details = folder.slice_arrays(row)
            size = details[1]
            if (expected := (sizes or {}).get(image_id, size)) != size:
                sides = [f'{width}×{height}' for width, height in (expected, size)]
                faults.append(f'image {image_id}: {sides[0]} in the annotations, {sides[1]} in the region store')
            if allow_empty and not len(stored):
                continue
            reasons = region_faults(stored if features else stored[:, :0], *details)
            faults += [f'image {image_id}: {reason}' for reason in reasons]
        return faults

    def source_faults(self, required: str | Sequence[str] | None) -> list[str]:
        """List the folders whose source, in ``store.json``, lacks one of the ``required`` parts, such as 'resnet152'.

        A source is the converter with its options. A folder without source, as your own program may write it, is no
        fault.
        """
        parts = [required] if isinstance(required, str) else required or ()
        return [
            f'made by {source!r}, but the config requires {" and ".join(map(repr, parts))}'
            for source in self.sources
            if source and not all(part in source for part in parts)
        ]

    def check(self, image_ids: Iterable[str] | None = None, num_features: int | None = None, **options: Any) -> None:
        """Raise a FaultsError, if :meth:`image_faults` finds any."""
        Faults(self._name(), self.image_faults(image_ids, num_features, **options)).check()

    def _name(self) -> str:
        return ', '.join(map(str, self.paths))


class _Folder:
    def __init__(self, path: Path, faults: Faults) -> None:
        # An object that has added to ``faults`` is not complete.
        self.path = path
        before = len(faults)
        self.image_ids = self._read_ids(faults)
        record = self._read_record(faults)
        offsets, sizes = (self._load(name, faults) for name in ('offsets', 'sizes'))
        self.arrays = {name: self._load(name, faults, 'r') for name in record.get('arrays', ())}
        if len(faults) > before:
            return
        self.width, self.source = record['num_features'], record['source']
        self.offsets, self.sizes = offsets, sizes
        images, regions = len(self.image_ids), len(self.arrays['features'])
        expected = {
            'offsets': (offsets, 'int64', (images + 1,)),
            'sizes': (sizes, 'int32', (images, 2)),
            'features': (self.arrays['features'], record['dtype'], (regions, self.width)),
            'boxes': (self.arrays['boxes'], 'float32', (regions, 4)),
            'classes': (self.arrays.get('classes'), 'int32', (regions,)),
            'scores': (self.arrays.get('scores'), 'float32', (regions,)),
        }
        for name, (array, dtype, shape) in expected.items():
            if array is not None and (array.dtype != dtype or array.shape != shape):
                faults.add(f'{path / name}.npy', f'{array.dtype} {array.shape}, not {dtype} {shape} as the other files')
        if len(faults) == before and (offsets[0] != 0 or offsets[-1] != regions or np.any(np.diff(offsets) < 0)):
            faults.add(path / 'offsets.npy', f'must ascend from 0 to {regions}, the number of regions')

    def slice_arrays(self, row: int) -> tuple[Any, Any, tuple[int, int], Any, Any]:
        # Slices are views, and absent arrays are None.
        start, end = self.offsets[row : row + 2]
        features, boxes, classes, scores = (
            self.arrays[name][start:end] if name in self.arrays else None for name in ('features', *DTYPES)
        )
        width, height = self.sizes[row].tolist()
        return features, boxes, (width, height), classes, scores

    def _read_ids(self, faults: Faults) -> list[str]:
        path = self.path / 'image_ids.txt'
        with faults.catch(path):
            return read_lines(path)[: None if path.stat().st_size else 0]
        return []

    def _read_record(self, faults: Faults) -> Mapping[str, Any]:
        path = self.path / 'store.json'
        with faults.catch(path), reading(path, 'not the record of a store'):
            record = json.loads(path.read_text(encoding='utf-8'))
            if record['version'] != VERSION:
                raise ValueError(f'version {record["version"]} of the format; this release reads {VERSION}')
            if not {'features', 'boxes'} <= set(record['arrays']) <= {'features', *DTYPES}:
                raise ValueError(f'arrays is {record["arrays"]}')
            check_count('num_features', record['num_features'])
            return {name: record[name] for name in ('num_features', 'dtype', 'arrays')} | {
                'source': str(record.get('source') or '')
            }
        return {}

    def _load(self, name: str, faults: Faults, mmap_mode: Any = None) -> Any:
        path = self.path / f'{name}.npy'
        with faults.catch(path), reading(path, 'truncated, or not a NumPy array'):
            array = np.load(path, mmap_mode='r', allow_pickle=False)  # a header may claim more than the file has
            if not isinstance(array, np.ndarray):
                raise ValueError('it is an archive')
            return array if mmap_mode else np.array(array)


def region_faults(features: Any, boxes: Any, size: tuple[int, int], classes: Any, scores: Any) -> list[str]:
    """List why the regions of an image cannot be used."""
    count = len(features)
    shapes = dict(boxes=(boxes, (count, 4)), classes=(classes, (count,)), scores=(scores, (count,)))
    faults = [
        f'{name} must be {shape}, one per region; got {x.shape}'
        for name, (x, shape) in shapes.items()
        if x is not None and x.shape != shape
    ]
    if features.ndim != 2:
        faults.append(f'features must be (n, D); got {features.shape}')
    if faults:
        return faults
    if not count:
        return ['no regions']
    if min(size) < 1:
        return [f'its size must be positive; got {size[0]}×{size[1]}']
    left, top, right, bottom = boxes.T
    finite = np.isfinite(boxes).all(1)
    wrong = {
        f'features are NaN, infinite or too large for {features.dtype}': ~np.isfinite(features).all(1),
        'boxes are NaN or infinite': ~finite,
        f'boxes are outside the image of {size[0]}×{size[1]}': finite
        & ((left < 0) | (top < 0) | (right > size[0]) | (bottom > size[1])),
        'boxes have a side that is not positive': finite & ((right <= left) | (bottom <= top)),
        'boxes are in 0…1, not in pixels': np.full(count, min(size) > 1 and boxes.max() <= 1),
    }
    if scores is not None:
        wrong['scores are NaN or infinite'] = ~np.isfinite(scores)
    return [
        f'{text}: region{"s" if where.sum() > 1 else ""} {", ".join(shorten(np.flatnonzero(where), 5))}'
        for text, where in wrong.items()
        if where.any()
    ]
