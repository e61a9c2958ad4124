"""Readers of clips, which yield one frame after another: of a data set, of a folder of frames, of a video file."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
from mmengine.logging import print_log
from PIL import Image

from mmattn.utils.faults import shorten

from .frame_files import find_faults, find_files, find_gaps, numbers_in_names, orientation, raise_for, read_frame

FRAME_RATE = 24.0  # of an overlay, if the clip's own frame rate is unknown or out of range
FRAME_RATES = 0.01, 1000.0  # range of MPEG-4 files written by OpenCV
ANIMATIONS = 'GIF', 'PNG'  # image formats that OpenCV decodes as videos; of a TIFF, it decodes only the first page
AHEAD = 4  # frames that are decoded while the model computes
T = TypeVar('T')
R = TypeVar('R')


def read_ahead(read: Callable[[T], R], items: Iterable[T], ahead: int = AHEAD) -> Iterator[R]:
    """Yield ``read(item)`` for each item, in order, while a thread reads up to ``ahead`` further items.

    An error of ``read`` is raised when its item is due. If the iterator is closed, nothing more is read.

    Example:
        >>> [*read_ahead(str.upper, ['a', 'b', 'c'])]
        ['A', 'B', 'C']
    """
    pool, due = ThreadPoolExecutor(1), deque[Future[R]]()
    try:
        for item in items:
            due.append(pool.submit(read, item))
            if len(due) > ahead:
                yield due.popleft().result()
        while due:
            yield due.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class ClipFrames:
    """Read the frames of a data set's clip on access, as a sequence. No frame is kept in memory.

    Args:
        paths (sequence of str): the files. An error on access names the file.
        size (tuple[int, int]): height and width of the clip's masks, which every frame must have.
    """

    def __init__(self, paths: Sequence[str], size: tuple[int, int]) -> None:
        self.paths = paths
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> np.ndarray:
        path = self.paths[position]
        image = read_frame(path)
        if image.shape[:2] != tuple(self.size):
            raise ValueError(
                f'{path}: {image.shape[1]}×{image.shape[0]}, but the masks of {Path(path).parent.name} are '
                f'{self.size[1]}×{self.size[0]} (width×height)'
            )
        return image

    def read(self, positions: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield the frames at these positions, uint8 ``(H, W, 3)``, BGR. The next ones are decoded meanwhile."""
        return read_ahead(self.__getitem__, positions)


class FrameFolder:
    """Read a clip from a folder of images. ``size`` is height and width, ``frame_rate`` is in frames per second.

    An error lists the frames that are missing, unreadable, or of different sizes.
    """

    frame_rate: float = FRAME_RATE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files, self._numbers, _, faults = find_files(path, Path(os.devnull))
        faults += find_gaps(self.files, self._numbers)
        faults += find_faults(self.files, [])
        names = [file.stem for file in self.files]
        raise_for(faults, f'the frames in {path}')
        self._names = dict(zip(self._numbers, names))
        self._by_name = dict(zip(names, self._numbers))
        self._by_number_in_name = dict(zip(numbers_in_names(self.files) or self._numbers, self._numbers))
        other_files = {file for file in path.iterdir() if file.is_file()} - set(self.files)
        rest = sorted(file.name for file in other_files if not file.name.startswith('.'))
        if rest:
            print_log(f'{path}: ignored, not named like frames: {", ".join(shorten(rest, 10))}', 'current')
        turned = [file.name for file in self.files if orientation(file) != 1]
        if turned:
            print_log(
                f'{path}: {len(turned)} frames, the first of which is {turned[0]}, have an EXIF orientation, which is '
                'ignored; masks must match the pixels as stored in the file',
                'current',
                logging.WARNING,
            )
        self.length: int | None = len(self.files)
        self.size = read_frame(self.files[0]).shape[:2]

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each frame, and the image, uint8 ``(H, W, 3)``, BGR."""
        return zip(self._numbers, read_ahead(read_frame, self.files))

    def name(self, number: int) -> str:
        """Look up the name of a frame."""
        return self._names[number]

    def find(self, name: str) -> int | None:
        """Find the number of the frame with exactly this name, or None."""
        return self._by_name.get(name)

    def find_number(self, digits: str) -> int:
        """Find the number of the frame that has this number in its name. Without numbers in all names, count frames."""
        if int(digits) not in self._by_number_in_name:
            first, last = self.files[0].name, self.files[-1].name
            raise ValueError(f'no frame {digits} in {self.path}, whose first frame is {first} and last frame is {last}')
        return self._by_number_in_name[int(digits)]


class VideoFile:
    """Read a clip from a video file, with the interface of :class:`FrameFolder`. ``length`` may be None."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(f'no video or folder {path}')
        with suppress(OSError), Image.open(path) as picture:  # PIL raises an OSError for files other than images
            if picture.format not in ANIMATIONS or not getattr(picture, 'is_animated', False):
                raise ValueError(f'{path}: a picture; a clip must be a video file or a folder of frames')
        self.path = path
        self.files = [path]
        video = cv2.VideoCapture(str(path.absolute()))  # FFmpeg reads 'a:b.mp4' as a URL
        whole, image = video.read()
        if not whole:
            raise ValueError(f'{path}: OpenCV cannot decode a frame of this file')
        self.size = image.shape[:2]
        length = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        self.length = length if length > 0 else None
        rate = video.get(cv2.CAP_PROP_FPS)
        self.frame_rate: float = rate if FRAME_RATES[0] <= rate <= FRAME_RATES[1] else FRAME_RATE
        video.release()

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each frame, and the image, uint8 ``(H, W, 3)``, BGR."""
        # Not mmcv's reader: it seeks, which fails if the container's count is wrong.
        video = cv2.VideoCapture(str(self.path.absolute()))
        number = 0
        while (frame := video.read())[0]:
            image = frame[1]
            if image.shape[:2] != self.size:
                height, width = image.shape[:2]
                raise ValueError(
                    f'{self.path}: frame {number} is {width}×{height}, earlier ones are {self.size[1]}×{self.size[0]}'
                )
            yield number, image
            number += 1
        video.release()

    def name(self, number: int) -> str:
        """Name a frame by its number, with at least five digits."""
        return f'{number:05}'

    def find(self, name: str) -> None:
        """Return None: frames have no names."""

    def find_number(self, digits: str) -> int:
        """Parse the number of a frame. It must be below ``length``, if that is known."""
        if self.length is not None and int(digits) >= self.length:
            raise ValueError(
                f'no frame {int(digits)} in {self.path}, whose first frame is 0 and last frame is {self.length - 1}'
            )
        return int(digits)


Clip = FrameFolder | VideoFile
