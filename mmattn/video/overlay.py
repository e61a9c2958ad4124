"""Write the overlay of a clip as a video that browsers play."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np

from mmattn.utils.files import atomic_write

CODECS = 'vp09', 'mp4v'  # VP9, which browsers play; MPEG-4 part 2, where OpenCV is built without an encoder of VP9


class OverlayWriter:
    """Write a video file frame by frame, through :func:`open_overlay`.

    Args:
        path (Path): the file, an MP4.
        size (tuple[int, int]): height and width of the frames. Odd sides are enlarged by one pixel.
        frame_rate (float): frames per second.

    Raises:
        OSError: OpenCV cannot write such a video.
    """

    def __init__(self, path: Path, size: tuple[int, int], frame_rate: float) -> None:
        self._bottom, self._right = (side % 2 for side in size)
        height, width = size[0] + self._bottom, size[1] + self._right
        for codec in CODECS:
            fourcc = cv2.VideoWriter.fourcc(*codec)
            self._writer = cv2.VideoWriter(str(path.absolute()), fourcc, frame_rate, (width, height))
            if self._writer.isOpened():
                break
        else:
            raise OSError(
                f'OpenCV cannot write MP4 of {width}×{height}, {frame_rate:g} frames per second; set overlay=False '
                '(--no-overlay) for the masks alone'
            )
        self.count = 0

    def write(self, image: np.ndarray) -> None:
        """Append a frame, uint8 ``(H, W, 3)``, BGR."""
        self._writer.write(cv2.copyMakeBorder(image, 0, self._bottom, 0, self._right, cv2.BORDER_REPLICATE))
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        self._writer.release()


def check_overlay(path: Path, size: tuple[int, int], frame_rate: float) -> None:
    """Check that OpenCV can write an overlay. An ``OSError`` begins with ``path``, which is not touched."""
    with TemporaryDirectory() as trial:
        try:
            OverlayWriter(Path(trial, 'overlay.mp4'), size, frame_rate).close()
        except OSError as error:
            raise OSError(f'{path}: {error}') from None


@contextmanager
def open_overlay(path: Path, size: tuple[int, int], frame_rate: float) -> Iterator[OverlayWriter]:
    """Open a writer whose file appears at ``path`` when it is complete. An ``OSError`` names ``path``."""
    with atomic_write(path) as temporary:
        writer = OverlayWriter(temporary, size, frame_rate)
        try:
            yield writer
        finally:
            writer.close()
        count = count_frames(temporary)  # OpenCV reports no error when a write fails
        if count != writer.count:
            raise OSError(f'{path}: {count} of {writer.count} frames could be written; is the disk full?')


def count_frames(path: Path) -> int:
    """Count the frames of a video that OpenCV decodes, whatever its header says."""
    video = cv2.VideoCapture(str(path.absolute()))
    count = 0
    while video.grab():
        count += 1
    video.release()
    return count
