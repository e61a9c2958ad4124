"""Readers of clips, which yield one frame after another: of a data set, a folder, or a video file."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
from mmengine.logging import print_log
from PIL import Image

from mmattn.utils.faults import Faults, shorten
from mmattn.utils.files import atomic_write, check_not_input, check_path, check_writable
from mmattn.utils.images import decoding

from .frame_files import check_frames, check_gaps, find_files, orientation, read_frame, regular_step
from .frame_names import sort_frames
from .overlay import count_frames

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

    ``frame_order`` says how to read the names, see :func:`~mmattn.video.frame_names.sort_frames`. An error lists the
    frames that are missing, unless ``allow_gaps``, unreadable, or of different sizes. ``step`` is the regular one
    between numbers.
    """

    frame_rate: float = FRAME_RATE

    def __init__(self, path: Path, frame_order: str | None = None, allow_gaps: bool = False) -> None:
        self.path = path
        faults = Faults()
        self.files, self._numbers, _ = find_files(path, Path(os.devnull), frame_order, faults)
        if not allow_gaps:
            check_gaps(self.files, self._numbers, faults)
        check_frames(self.files, [], faults)
        faults.check()
        self.step = regular_step(self._numbers)
        names = [file.stem for file in self.files]
        self._names = dict(zip(self._numbers, names))
        self._by_name = dict(zip(names, self._numbers))
        in_names = sort_frames(self.files, frame_order).numbers if self.files else []
        self._by_number_in_name = dict(zip(in_names, self._numbers))
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
    """Read a clip from a video file, any number of times, with the interface of :class:`FrameFolder`.

    ``length`` is what the file announces, an estimate in WebM and Matroska. It may be None.
    """

    step = 1

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(f'no video or folder {path}')
        with suppress(OSError), Image.open(path) as picture:  # PIL raises an OSError for files other than images
            if picture.format not in ANIMATIONS or not getattr(picture, 'is_animated', False):
                raise ValueError(f'{path}: a picture; a clip must be a video file or a folder of frames')
        self.path = path
        self.files = [path]
        video = self._open()
        whole, first = video.read()
        if not whole:
            raise ValueError(f'{path}: OpenCV cannot decode a frame of it')
        self.size = first.shape[:2]
        rate = video.get(cv2.CAP_PROP_FPS)
        self.frame_rate: float = rate if FRAME_RATES[0] <= rate <= FRAME_RATES[1] else FRAME_RATE
        length = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        self.length = length if length > 0 else None
        video.release()

    def _open(self) -> cv2.VideoCapture:
        return cv2.VideoCapture(str(self.path.absolute()))  # FFmpeg reads 'a:b.mp4' as a URL

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of each frame, and the image, uint8 ``(H, W, 3)``, BGR."""
        # Not mmcv's reader: it seeks, which fails if the container's count is wrong.
        video, number = self._open(), 0
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

    @cached_property
    def _count(self) -> int:
        return count_frames(self.path)

    def find_number(self, digits: str) -> int:
        """Parse the number of a frame. Before one is refused, the frames are counted, which sets ``length``."""
        if self.length is not None and int(digits) >= self.length:
            self.length = self._count
            if int(digits) >= self.length:
                raise ValueError(
                    f'no frame {int(digits)} in {self.path}, whose first frame is 0 and last frame is {self.length - 1}'
                )
        return int(digits)


Clip = FrameFolder | VideoFile


def open_clip(video: str | Path, frame_order: str | None = None, allow_gaps: bool = False) -> Clip:
    """Open a folder of frames, for which ``frame_order`` and ``allow_gaps`` are, or a video file."""
    path = check_path('video', video)
    return FrameFolder(path, frame_order, allow_gaps) if path.is_dir() else VideoFile(path)


def split_number(entry: str | Path) -> tuple[str, str]:
    """Split a path from the number of a frame after '@', or return it with ''.

    Example:
        >>> split_number('mask.png@20'), split_number('mask.png')
        (('mask.png', '20'), ('mask.png', ''))
    """
    before, _, digits = str(entry).rpartition('@')
    return (before, digits) if before and digits.isdecimal() else (str(entry), '')


def write_frame(video: str | Path, frame: str | Path, frame_order: str | None = None, allow_gaps: bool = False) -> Path:
    """Write a frame of a clip, on which its mask can be painted. It is rotated as the metadata of the video say.

    Args:
        video, frame_order, allow_gaps: as in :class:`~mmattn.video.VOSInferencer`.
        frame (str or Path): path of a PNG for the first frame, or ``<path>@20`` for frame 20.

    Returns:
        Path: the PNG.

    Raises:
        FileNotFoundError: the video does not exist.
        ValueError: the video has no such frame, or the path does not end in '.png', is in the clip, or is that of a
            file that shows anything else, such as a painted mask.
    """
    path, digits = split_number(frame)
    if Path(path).suffix.lower() != '.png':
        raise ValueError(f'{path}: the frame must be a .png, which has no loss')
    check_writable(Path(path).parent)
    clip = open_clip(video, frame_order, allow_gaps)
    check_not_input('frame', path, clip.files)
    if isinstance(clip, FrameFolder) and Path(path).resolve().parent == clip.path.resolve():
        raise ValueError(f'frame {path} would become a frame of the clip; choose another folder')
    wanted = clip.find_number(digits) if digits else 0
    for number, image in clip.read():
        if number == wanted:
            shown = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
            if Path(path).exists():
                with decoding(path), Image.open(path) as there:
                    is_same = np.array_equal(np.asarray(there), shown)
                if not is_same:
                    raise ValueError(f'frame {path} exists, and shows something else, perhaps a mask; choose another')
                return Path(path)
            with atomic_write(path) as temporary:
                Image.fromarray(shown).save(temporary, 'PNG')
            return Path(path)
    raise ValueError(f'{video}: ends before frame {digits}')
