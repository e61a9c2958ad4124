"""The writer of a store of region features, image by image, which continues after any interruption."""

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from mmattn.language.text.words import normalize_unicode
from mmattn.utils.files import atomic_write, hold, remove_temporary_files
from mmattn.utils.optional import import_optional
from mmattn.utils.resumable import digest

from .image_regions import Regions, region_faults
from .region_store import FILES, RegionStore

IMAGES = 500  # in a file: the most that a killed process loses


class RegionWriter:
    """Write a :class:`RegionStore`, image by image. The writer is a context manager.

    Images are collected in memory. 500 at a time are written to a file in the folder ``part`` beside ``path``. When the
    block ends without an error, the folder gets its name. After an interruption of any kind, a writer with the same
    arguments continues, and the result is the same, byte by byte. A process that is killed loses the images that are in
    no file yet, and an exception loses none. A writer with other arguments begins a folder of its own. One process at a
    time can write a store.

    Args:
        path (str or Path): the folder to create. It must not exist: a store is never overwritten.
        source (str): where the features are from. Defaults to ''.
        float16 (bool): store the features with half precision, in half the space. Defaults to False.
        stamp (str): identifies the files that are read, for example by size and time. With another stamp, the writer
            begins again. Defaults to ''.

    Example:
        >>> from mmattn.language import RegionStore
        >>> def regions(value):
        ...     return Regions(torch.full((1, 4), value), torch.tensor([[0.0, 0.0, 5.0, 5.0]]), (5, 5))
        >>> with RegionWriter('animals', float16=True) as writer:
        ...     for image_id, value in (('cat', 1.0), ('dog', 2.0)):
        ...         if image_id not in writer:  # as after an interruption
        ...             writer.write(image_id, regions(value))
        >>> RegionStore('animals')['dog'].features
        tensor([[2., 2., 2., 2.]])
    """

    def __init__(self, path: str | Path, source: str = '', float16: bool = False, stamp: str = '') -> None:
        self.path = Path(path)
        self._check_absent()
        self._source, self._h5py = source, import_optional('h5py')
        dtype = 'float16' if float16 else 'float32'
        self._dtypes = dict(features=dtype, boxes='float32', classes='int32', scores='float32')
        self.part = self.path.with_name(f'{self.path.name}.{digest([source, float16, stamp])[:8]}.part')
        self.part.mkdir(parents=True, exist_ok=True)
        self._names: set[str] = set()
        self._images: dict[bytes, Any] = {}  # those that are in no file yet: size and arrays
        self._layout: dict[str, Any] = {}  # of the arrays: the shape of a region
        self._number = 0  # of the next file
        self._lock = hold(self.part)
        remove_temporary_files(self.part)
        files = sorted(self.part.glob(FILES))
        for file in files[:-1]:
            self._names.update(map(normalize_unicode, RegionStore(file).image_ids))
        for file in files[-1:]:  # is written again: an exception may have left it with fewer images
            self._number = int(file.stem.rpartition('-')[2])
            store = RegionStore(file)
            for image_id in store.image_ids:
                self.write(image_id, store[image_id])

    def __enter__(self) -> 'RegionWriter':
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._lock:
            if self._images:
                self._write_file()
            if kind is None:
                if not len(self):
                    raise ValueError(f'{self.path}: no image was written')
                self._check_absent()
                (self.part / '.lock').unlink()
                self.part.rename(self.path)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and normalize_unicode(image_id) in self._names

    def write(self, image_id: str, regions: Regions) -> None:
        """Append an image. A ValueError says why an image cannot be stored, and nothing is written.

        Args:
            image_id (str): not empty, without line breaks and zeros, and not in the store yet.
            regions (Regions): at least one. All images must have the same number of features, and either all or none
                must have ``classes``, and so for ``scores``.
        """
        if not isinstance(image_id, str) or not image_id or {*image_id} & {'\n', '\r', '\0'}:
            raise ValueError(f'image_id must be a non-empty string without line breaks and zeros; got {image_id!r}')
        if image_id in self:
            raise ValueError(f'image {image_id} is already in the store {self.path}')
        size = int(regions.size[0]), int(regions.size[1])
        tensors = {key: getattr(regions, key) for key in self._dtypes}
        with np.errstate(over='ignore'):  # reported as a fault
            arrays = {key: x.numpy(force=True).astype(self._dtypes[key]) for key, x in tensors.items() if x is not None}
        faults = region_faults(arrays['features'], arrays['boxes'], size, arrays.get('classes'), arrays.get('scores'))
        if size != tuple(regions.size):
            faults.append(f'size must be whole numbers; got {tuple(regions.size)}')
        if regions.classes is not None and regions.classes.is_floating_point():
            faults.append(f'classes must be integers; got {regions.classes.dtype}')
        layout = {key: array.shape[1:] for key, array in arrays.items()}
        if self._layout not in ({}, layout):
            faults.append(f'arrays and widths must be {self._layout}, as of the images before; got {layout}')
        if faults:
            raise ValueError(f'image {image_id}: {"; ".join(faults)}')
        if len(self._images) == IMAGES:
            self._write_file()
        self._images[image_id.encode()] = size, arrays
        self._names.add(normalize_unicode(image_id))
        self._layout = layout

    def _write_file(self) -> None:
        # In memory first: on a full disk, HDF5 2.0 ends the process.
        sizes, images = zip(*self._images.values())
        content, names = io.BytesIO(), np.array([*self._images])
        with self._h5py.File(content, 'w') as file:
            file.attrs['source'] = self._source
            file['names'] = names.astype(self._h5py.string_dtype('utf-8', names.itemsize))
            file['sizes'] = np.array(sizes, 'int32')
            file['first'] = np.cumsum([0, *(len(arrays['boxes']) for arrays in images)], dtype='int64')
            for name in images[0]:
                file[name] = np.concatenate([arrays[name] for arrays in images])
        with atomic_write(self.part / FILES.replace('*', f'{self._number:05}')) as path, open(path, 'wb') as out:
            out.write(content.getbuffer())
            out.flush()
            os.fsync(out.fileno())  # before it gets its name
        self._images.clear()
        self._number += 1

    def _check_absent(self) -> None:
        if os.path.lexists(self.path):
            raise FileExistsError(errno.EEXIST, 'region features are never overwritten', str(self.path))
