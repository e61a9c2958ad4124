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

from mmattn.utils.faults import reading
from mmattn.utils.files import hold

from .region_store import DTYPES, VERSION, Regions, region_faults

NAMES = {'features', *DTYPES}
HEADER = 128  # bytes of a .npy header; the writer fills it in when it knows the number of regions


class RegionWriter:
    """Write a :class:`RegionStore`, image by image. The writer is a context manager.

    Images are written to the folder ``<path>.part``. When the block ends without an error, the store gets its name.
    After an interruption of any kind, ``kill -9`` included, a writer with the same arguments continues with the images
    that were completely written, and the result is the same, byte by byte. With another ``source`` or ``float16``, it
    raises a ValueError. One process at a time can write a store.

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
        self.path, self.stamp = Path(path), stamp
        self._check_absent()
        self._record: dict[str, Any] = dict(
            version=VERSION, source=source, dtype='float16' if float16 else 'float32', num_features=None, arrays=None
        )
        self._part = self.path.with_name(f'{self.path.name}.part')
        self._new = self._part / 'new'
        self._new.mkdir(parents=True, exist_ok=True)
        self._images: dict[str, tuple[int, int, int]] = {}  # width, height and number of regions
        self._regions = 0
        self._files: dict[str, IO[bytes]] = {}
        with ExitStack() as stack:
            stack.enter_context(hold(self._part))
            self._journal = stack.enter_context(_open(self._part / 'images.jsonl'))
            self._resume()
            for name in self._record['arrays'] or ():
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
        return len(self._images)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._images

    def write(self, image_id: str, regions: Regions) -> None:
        """Append an image. A ValueError says why an image cannot be stored, and nothing is written.

        Args:
            image_id (str): not empty, without line breaks, and not in the store yet.
            regions (Regions): at least one. All images must have the same number of features, and either all or none
                must have ``classes``, and so for ``scores``.
        """
        _check_id(image_id)
        if image_id in self._images:
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
            if self._images and value != self._record[name]:
                faults.append(f'{name} must be {self._record[name]}, as of the images before; got {value}')
        if faults:
            raise ValueError(f'image {image_id}: {"; ".join(faults)}')
        if not self._images:
            self._record.update(shape)
            for name in arrays:
                self._files[name] = self._stack.enter_context(_open(self._new / f'{name}.npy'))
            self._journal.truncate(0)
            self._journal_end = _write(self._journal, 0, _line(dict(self._record, stamp=self.stamp)))
        for name, array in arrays.items():
            _write(self._files[name], self._offset(name, self._regions), array.tobytes())
        entry = (*size, len(arrays['features']))
        # the last write: an image counts when its line is complete
        self._journal_end = _write(self._journal, self._journal_end, _line([image_id, *entry]))
        self._images[image_id] = entry
        self._regions += entry[2]

    def _resume(self) -> None:
        # Images after the last complete one are written again over the rest of the files.
        path = self._part / 'images.jsonl'
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b'\n'):
            del lines[-1]
        with reading(path, f'not the progress of a store, remove {self._part}'):
            read: list[Any] = [json.loads(line) for line in lines] or [dict(self._record, stamp=self.stamp)]
            record, entries = read[0], read[1:]
            stamp = record.pop('stamp', '')
            settings = {name: record[name] for name in ('version', 'source', 'dtype')}
            if not (entries == [] or (type(record['num_features']) is int and {*record['arrays']} <= NAMES)):
                raise ValueError(f'num_features is {record["num_features"]!r:.80}, arrays {record["arrays"]!r:.80}')
            for image_id, *numbers in entries:
                _check_id(image_id)
                if [*map(type, numbers)] != [int] * 3 or not all(0 < n < 2**31 for n in numbers):
                    raise ValueError(f'image {image_id} has {numbers!r:.80}, not width, height and number of regions')
        for name, value in settings.items():
            if value != self._record[name]:
                raise ValueError(
                    f'{self._part}: begun with {name} {value!r}, but now it is {self._record[name]!r}; remove this '
                    'folder to start again'
                )
        begun, self._record = self._record, record
        if stamp != self.stamp:
            print_log(
                f'{self._part}: the input has changed since this store was begun; it is begun again',
                'current',
                logging.WARNING,
            )
            entries = []
        sizes = {name: self._new / f'{name}.npy' for name in record['arrays'] or ()}
        stored = {name: path.stat().st_size if path.is_file() else 0 for name, path in sizes.items()}
        for image_id, width, height, count in entries:
            if any(self._offset(name, self._regions + count) > size for name, size in stored.items()):
                break  # the computer has stopped before it wrote the rest
            self._images[image_id] = width, height, count
            self._regions += count
        if self._images:
            self._journal_end = sum(map(len, lines[: 1 + len(self._images)]))
            self._journal.truncate(self._journal_end)
        else:
            self._record = begun
            shutil.rmtree(self._new)
            self._new.mkdir()

    def _shape(self, name: str) -> tuple[int, ...]:
        return {'features': (self._record['num_features'],), 'boxes': (4,)}.get(name, ())

    def _dtype(self, name: str) -> np.dtype:
        return np.dtype(DTYPES.get(name, self._record['dtype']))

    def _offset(self, name: str, count: int) -> int:
        return HEADER + count * math.prod(self._shape(name)) * self._dtype(name).itemsize

    def _finish(self) -> None:
        if not self._images:
            raise ValueError(f'{self.path}: no image was written')
        entries = np.array(list(self._images.values()), dtype=np.int64)
        for name, file in self._files.items():
            _write(file, 0, _header(self._dtype(name), (self._regions, *self._shape(name))))
            file.truncate(self._offset(name, self._regions))
        np.save(self._new / 'offsets.npy', np.concatenate([[0], entries[:, 2].cumsum()]))
        np.save(self._new / 'sizes.npy', entries[:, :2].astype('int32'))
        ids = ''.join(f'{image_id}\n' for image_id in self._images)
        Path(self._new, 'image_ids.txt').write_bytes(ids.encode())
        Path(self._new, 'store.json').write_bytes(json.dumps(self._record, indent=4, ensure_ascii=False).encode())
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


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b'\n'


def _open(path: Path) -> IO[bytes]:
    path.touch()
    return open(path, 'r+b', buffering=0)


def _write(file: IO[bytes], position: int, data: bytes) -> int:
    file.seek(position)
    rest = memoryview(data)
    while rest:  # a write to an unbuffered file may write only a part
        rest = rest[file.write(rest) :]
    return position + len(data)  # the end
