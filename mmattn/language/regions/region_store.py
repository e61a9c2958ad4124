"""Region features of images, computed once and stored: a folder of HDF5 files.

The files ``regions-00000.h5``, ``regions-00001.h5`` and so on are written by the converters ``bottom_up_features.py``,
``region_npz.py`` and ``region_features.py`` of ``tools/dataset_converters``, or with
:class:`mmattn.language.RegionWriter`. Each has these arrays of up to 500 images::

    features    the regions of the images, (R, D), float16 or float32
    boxes       (R, 4), float32: left, top, right, bottom, in pixels of the image
    classes     optional: (R,), int32, the detector's classes, -1 for no class, such as the whole image
    scores      optional: (R,), float32
    first       (images + 1,), int64: image i has the regions from first[i] to first[i + 1]
    sizes       (images, 2), int32: width and height of the images, in pixels
    names       (images,), the ids of the images, UTF-8 of a fixed length

The attribute ``source`` of a file says what made the features. Arrays are contiguous, as h5py writes them by default.
"""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmattn.language.text.words import normalize_unicode
from mmattn.utils.faults import Faults, FaultsError, reading
from mmattn.utils.optional import import_optional
from mmattn.utils.progress import track

from .image_regions import Regions, region_faults

FILES = 'regions-*.h5'


class RegionStore:
    """Read region features of images by their ids.

    The features are read from the files, which each process opens for itself. All else is in memory. A pickled store
    contains only its paths. So the workers of a data loader, forked or spawned, can use a store in a data set. An id
    may have another form of Unicode than in the store, as macOS writes the names of files.

    A FaultsError lists all faults: files that are damaged, arrays that do not fit each other or are not in their file,
    an id that occurs twice, or files with features of different widths.

    Args:
        path (str, Path or sequence of them): the folder of a store, one of its files, or several that together are one
            store, such as training and validation images.

    Attributes:
        files (list[Path]): the HDF5 files.
        image_ids (list[str]): ids of all images, in the order of the files.
        sizes (dict): width and height of all images in pixels, by id.
        num_features (int): the width of the features.

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
        self.paths = [Path(path)] if isinstance(path, str | Path) else [*map(Path, path)]
        self.files = [file for place in self.paths for file in _find_files(place)]
        if not self.files:
            raise ValueError('path must have at least one folder; got none')
        self._name = ', '.join(map(str, self.paths))
        faults = Faults()
        self._files: list[_RegionFile] = []
        self._places: dict[str, tuple[_RegionFile, int]] = {}
        for place in self.files:
            with faults.catch(place):
                file = _RegionFile(place)
                self._files.append(file)
                for row, image_id in enumerate(file.image_ids):
                    other = self._places.setdefault(normalize_unicode(image_id), (file, row))
                    if other != (file, row):
                        faults.add(place, f'image {image_id} is also in {other[0].path}')
                if (width := self._files[0].num_features) != file.num_features:
                    faults.add(place, f'{file.num_features} features per region, but {self._files[0].path} has {width}')
        faults.check()
        self.num_features = self._files[0].num_features
        self.sizes = {name: (w, h) for file in self._files for name, (w, h) in zip(file.image_ids, file.sizes)}
        self.image_ids = [*self.sizes]

    def __reduce__(self) -> tuple[type['RegionStore'], tuple[list[Path]]]:
        return RegionStore, (self.paths,)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and normalize_unicode(image_id) in self._places

    def __getitem__(self, image_id: str) -> Regions:
        """Copy the regions of an image into memory. Unusable features or boxes, such as NaN, raise a ValueError."""
        if image_id not in self:
            raise KeyError(f'image {image_id} is not in the store {self._name}')
        file, row = self._places[normalize_unicode(image_id)]
        features, boxes, size, classes, scores = file.read(row)
        if len(features) and (faults := region_faults(features, boxes, size, classes, scores)):
            raise ValueError(f'image {image_id} of the region store {file.path}: {"; ".join(faults)}')
        tensors = [None if x is None else torch.tensor(x) for x in (classes, scores)]
        return Regions(torch.from_numpy(features), torch.tensor(boxes), size, *tensors)

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
        for image_id in track(checked, 'Checking regions'):
            if image_id not in self:
                faults.append(f'image {image_id} is not in the store')
                continue
            file, row = self._places[normalize_unicode(image_id)]
            regions = file.read(row, features)
            if (expected := (sizes or {}).get(image_id, regions.size)) != regions.size:
                sides = [f'{width}×{height}' for width, height in (expected, regions.size)]
                faults.append(f'image {image_id}: {sides[0]} in the annotations, {sides[1]} in the region store')
            if len(regions.features) or not allow_empty:
                faults += [f'image {image_id}: {reason}' for reason in region_faults(*regions)]
        return faults

    def source_faults(self, required: str | Sequence[str] | None) -> list[str]:
        """List the sources of the features that lack one of the ``required`` parts, such as 'resnet152'.

        A source is the converter with its options. A file without source, as your own program may write it, is no
        fault.
        """
        parts = [required] if isinstance(required, str) else required or ()
        return [
            f'made by {source!r}, but the config requires {" and ".join(map(repr, parts))}'
            for source in dict.fromkeys(file.source for file in self._files)
            if source and not all(part in source for part in parts)
        ]

    def check(self, image_ids: Iterable[str] | None = None, num_features: int | None = None, **options: Any) -> None:
        """Raise a FaultsError, if :meth:`image_faults` finds any."""
        Faults(self._name, self.image_faults(image_ids, num_features, **options)).check()


class _RegionFile:
    def __init__(self, path: Path) -> None:
        self.path, self._process = path, 0
        file = open_hdf5(path, ('features', 'boxes', 'first', 'sizes', 'names'), ('classes', 'scores'))
        with file, reading(path, 'not a file of a region store'):
            (regions, self.num_features), (images,) = file['features'].shape, file['names'].shape

            def read(name: str, dtype: type, *shape: int) -> Any:
                if name in file and file[name].shape != shape:
                    raise FaultsError(path, f'{name} is {file[name].shape}, not {shape} as the other arrays')
                return file[name][()].astype(dtype, casting='same_kind') if name in file else None

            self.source = str(file.attrs.get('source', ''))
            self.image_ids = file['names'].asstr()[()].tolist()
            self.sizes = read('sizes', np.int32, images, 2).tolist()
            self._boxes = read('boxes', np.float32, regions, 4)
            self._details = [read('classes', np.int64, regions), read('scores', np.float32, regions)]
            self._first = read('first', np.int64, images + 1).tolist()
            if self._first != sorted(self._first) or self._first[0] != 0 or self._first[-1] != regions:
                raise FaultsError(path, f'first must ascend from 0 to {regions}, the number of regions')

    def read(self, row: int, features: bool = True) -> Any:
        """Read the regions of an image, as arrays. Without ``features``, their width is 0."""
        regions = slice(*self._first[row : row + 2])
        if features and self._process != os.getpid():  # HDF5 files are not for forked processes
            self._file = open_hdf5(self.path, ('features',))
            self._features, self._process = self._file['features'], os.getpid()
        boxes, values = self._boxes[regions], self._boxes[regions, :0]
        if features:
            with reading(self.path, 'damaged'):
                values = torch.from_numpy(self._features[regions]).float().numpy()
        details = [None if x is None else x[regions] for x in self._details]
        return Regions(values, boxes, tuple(self.sizes[row]), *details)


def open_hdf5(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """Open an HDF5 file, and check that its arrays are there, each in one piece in the file itself.

    Links, virtual arrays and external storage would read other files, and chunks can claim more than the memory has.
    """
    h5py = import_optional('h5py')
    with reading(path, 'damaged, or not an HDF5 file'):
        file = h5py.File(path, 'r', locking=False)  # some file systems have no locks
        names = [name for name in (*required, *optional) if file.id.links.exists(name.encode())]
        if missing := [name for name in required if name not in names]:
            raise FaultsError(path, f'no array {", ".join(missing)} in it')
        for name in names:
            linked = file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD
            start = None if linked or isinstance(file[name], h5py.Group) else file[name].id.get_offset()
            if start is None or start + file[name].nbytes > path.stat().st_size:
                raise FaultsError(path, f'the array {name} is not in one piece in this file')
    return file


def _find_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(errno.ENOENT, 'no such folder, which a converter writes', str(place))
    if files := sorted(place.glob(FILES)):
        return files
    if (place / 'store.json').exists():
        raise FaultsError(place, 'a region store of an earlier release; a script in docs/custom_data.md converts it')
    raise FaultsError(place / FILES.replace('*', '00000'), 'no such file')
