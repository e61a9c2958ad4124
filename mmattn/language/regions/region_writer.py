"""The writer of a store of region features, image by image, which continues after any interruption."""

import errno
import json
import logging
import math
import os
import shutil
import struct
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from mmengine.logging import print_log
from torch import Tensor

from mmattn.utils.checks import check_count
from mmattn.utils.faults import reading
from mmattn.utils.files import hold, write_text
from mmattn.utils.resumable import OtherRunError, Resumable

from .region_store import DTYPES, VERSION, Regions, region_faults

NAMES = {'features', *DTYPES}
RECORD = 'store.json'
HEADER = 128  # bytes of a .npy header; the writer fills it in when it knows the number of regions


class RegionWriter:
    """Write a :class:`RegionStore`, image by image. The writer is a context manager.

    Images are written to the folder ``<path>.part``. When the block ends without an error, the store gets its name.
    After an interruption of any kind, ``kill -9`` included, a writer with the same arguments continues with the images
    that were completely written, and the result is the same, byte by byte. With another ``source`` or ``float16``, it
    raises a ValueError. One process at a time can write a store.

    A :class:`~mmattn.utils.resumable.Resumable` records the images. Their arrays are beside it: memory maps require one
    file for all images, whose length is known at the end.

    Args:
        path (str or Path): the folder to create. It must not exist: a store is never overwritten.
        source (str): where the features are from, for ``store.json``. Defaults to ''.
        float16 (bool): store the features with half precision, in half the space. Defaults to False.
        stamp (str): identifies the files that are read, for example by size and time. An unfinished store with another
            stamp is removed, and the writer begins again. Defaults to ''.

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
        self._part = self.path.with_name(f'{self.path.name}.part')
        self._new = self._part / 'new'
        self._new.mkdir(parents=True, exist_ok=True)
        settings = dict(version=VERSION, source=source, dtype='float16' if float16 else 'float32')
        self._record: dict[str, Any] = dict(settings)  # with the first image: num_features and arrays
        self._regions = 0
        self._files: dict[str, IO[bytes]] = {}
        self._images = Resumable(
            self._part / 'images.jsonl',
            dict(settings, stamp=stamp),
            key_type=str,
            is_intact=self._is_intact,
            restart=f'remove {self._part}',
            locked=False,  # a data loader would inherit its lock
        )
        with ExitStack() as stack:
            stack.enter_context(hold(self._part))
            self._read_record()
            try:
                stack.enter_context(self._images)
            except OtherRunError as error:
                if error.differing != ['stamp']:
                    raise
                message = f'{self._part}: the input has changed since this store was begun; it is begun again'
                print_log(message, 'current', logging.WARNING)
                self._images.resume = False
                stack.enter_context(self._images)
            if not len(self):
                self._record = dict(settings)
                shutil.rmtree(self._new)
                self._new.mkdir()
            for name in self._record.get('arrays', ()):
                self._files[name] = stack.enter_context(_open(self._new / f'{name}.npy'))
            self._stack = stack.pop_all()

    def __enter__(self) -> 'RegionWriter':
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self._finish()

    def __len__(self) -> int:
        return len(self._images.done)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._images.done

    def write(self, image_id: str, regions: Regions) -> None:
        """Append an image. A ValueError says why an image cannot be stored, and nothing is written.

        Args:
            image_id (str): not empty, without line breaks, and not in the store yet.
            regions (Regions): at least one. All images must have the same number of features, and either all or none
                must have ``classes``, and so for ``scores``.
        """
        _check_id(image_id)
        if image_id in self:
            raise ValueError(f'image {image_id} is already in the store {self.path}')
        arrays = {'features': _array(regions.features, self._record['dtype'])}
        for name, dtype in DTYPES.items():
            if getattr(regions, name) is not None:
                arrays[name] = _array(getattr(regions, name), dtype)
        size = int(regions.size[0]), int(regions.size[1])
        if size != tuple(regions.size):
            raise ValueError(f'image {image_id}: size must be whole numbers; got {tuple(regions.size)}')
        if regions.classes is not None and regions.classes.is_floating_point():
            raise ValueError(f'image {image_id}: classes must be integers; got {regions.classes.dtype}')
        faults = region_faults(arrays['features'], arrays['boxes'], size, arrays.get('classes'), arrays.get('scores'))
        shape = dict(num_features=arrays['features'].shape[-1], arrays=list(arrays))
        for name, value in shape.items():
            if len(self) and value != self._record[name]:
                faults.append(f'{name} must be {self._record[name]}, as of the images before; got {value}')
        if faults:
            raise ValueError(f'image {image_id}: {"; ".join(faults)}')
        if not len(self):
            self._record.update(shape)
            write_text(self._new / RECORD, json.dumps(self._record, indent=4, ensure_ascii=False))
            for name in arrays:
                self._files[name] = self._stack.enter_context(_open(self._new / f'{name}.npy'))
        for name, array in arrays.items():
            _write(self._files[name], self._offset(name, self._regions), array.tobytes())
        count = len(arrays['features'])
        self._images.add({image_id: dict(size=size, regions=count)})  # the last write: from now on, the image counts
        self._regions += count

    def _read_record(self) -> None:
        path, self._complete = self._new / RECORD, 0
        with reading(path, f'not the record of a store, remove {self._part}'):
            if path.exists() and path.stat().st_size:  # empty, if the computer stopped before it was written
                record = json.loads(path.read_text(encoding='utf-8'))
                check_count('num_features', record['num_features'])
                if not {*record['arrays']} <= NAMES:
                    raise ValueError(f'arrays is {record["arrays"]!r:.80}')
                self._record.update({name: record[name] for name in ('num_features', 'arrays')})
                files = {name: self._new / f'{name}.npy' for name in record['arrays']}
                sizes = {name: file.stat().st_size if file.is_file() else 0 for name, file in files.items()}
                # regions that all arrays have: the computer may have stopped before it wrote the rest
                self._complete = min((sizes[name] - HEADER) // self._offset(name, 1, 0) for name in files)

    def _is_intact(self, image_id: str, values: dict[str, Any]) -> bool:
        _check_id(image_id)
        numbers = [*values['size'], values['regions']]
        if [*map(type, numbers)] != [int] * 3 or not all(0 < n < 2**31 for n in numbers):
            raise ValueError(f'image {image_id} has {numbers!r:.80}, not width, height and number of regions')
        if self._regions + numbers[2] > self._complete:
            return False
        self._regions += numbers[2]
        return True

    def _shape(self, name: str) -> tuple[int, ...]:
        return {'features': (self._record['num_features'],), 'boxes': (4,)}.get(name, ())

    def _dtype(self, name: str) -> np.dtype:
        return np.dtype(DTYPES.get(name, self._record['dtype']))

    def _offset(self, name: str, count: int, header: int = HEADER) -> int:
        return header + count * math.prod(self._shape(name)) * self._dtype(name).itemsize

    def _finish(self) -> None:
        if not len(self):
            raise ValueError(f'{self.path}: no image was written')
        images = self._images.done
        entries = np.array([(*values['size'], values['regions']) for values in images.values()], dtype=np.int64)
        for name, file in self._files.items():
            _write(file, 0, _header(self._dtype(name), (self._regions, *self._shape(name))))
            file.truncate(self._offset(name, self._regions))
        np.save(self._new / 'offsets.npy', np.concatenate([[0], entries[:, 2].cumsum()]))
        np.save(self._new / 'sizes.npy', entries[:, :2].astype('int32'))
        Path(self._new, 'image_ids.txt').write_bytes(''.join(f'{image_id}\n' for image_id in images).encode())
        self._check_absent()
        self._new.rename(self.path)
        shutil.rmtree(self._part)

    def _check_absent(self) -> None:
        if os.path.lexists(self.path):
            raise FileExistsError(
                errno.EEXIST, 'this exists, and region features are never overwritten', str(self.path)
            )


def _check_id(image_id: str) -> None:
    if not isinstance(image_id, str) or not image_id or '\n' in image_id or image_id.endswith('\r'):
        raise ValueError(f'image_id must be a non-empty string without line breaks; got {image_id!r}')


def _array(x: Tensor, dtype: str) -> np.ndarray:
    with np.errstate(over='ignore'):  # reported as a fault
        return x.detach().cpu().numpy().astype(dtype)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    # version 1.0 of NumPy's format, in HEADER bytes
    text = repr(dict(descr=dtype.str, fortran_order=False, shape=shape)).encode()
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', HEADER - 10) + text.ljust(HEADER - 11) + b'\n'


def _open(path: Path) -> IO[bytes]:
    path.touch()
    return open(path, 'r+b', buffering=0)


def _write(file: IO[bytes], position: int, data: bytes) -> None:
    file.seek(position)
    rest = memoryview(data)
    while rest:  # a write to an unbuffered file may write only a part
        rest = rest[file.write(rest) :]
