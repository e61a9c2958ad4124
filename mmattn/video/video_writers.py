"""Write videos and GIFs frame by frame. Each frame is shown from its own time on, where the container can."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from mmengine.logging import print_log
from PIL import GifImagePlugin, Image

from mmattn.utils.files import atomic_write

CODECS = 'vp09', 'mp4v'  # VP9, which browsers play; MPEG-4 part 2, where OpenCV is built without an encoder of VP9
TICKS = 90_000  # per second, the usual clock of videos
H264 = 'libx264', dict(crf='20', preset='veryfast')
VP9 = 'libvpx-vp9', {'crf': '24', 'b': '0', 'deadline': 'realtime', 'cpu-used': '5', 'auto-alt-ref': '0'}
BT709 = 1  # the number of this colour space, which players expect, in H.264 and VP9
TRANSPARENT = 255  # index in the palettes of GIFs
OLDEST_PYAV = 15  # 18 was tried
SHORTEST = 2  # hundredths of a second, of a frame in a GIF: browsers show shorter ones for ten
INSTALL = "pip install 'mmattn[cutouts]'"


class OpenCVVideo:
    """Write a video with a constant frame rate, through :func:`open_writer`.

    Args:
        path (Path): the file, an MP4.
        size (tuple[int, int]): height and width of the frames. Odd sides are enlarged by one pixel.
        frame_rate (float): frames per second.

    Raises:
        OSError: OpenCV cannot write such a video.
    """

    failures: tuple[type[Exception], ...] = ()

    def __init__(self, path: Path, size: tuple[int, int], frame_rate: float) -> None:
        self._rate, self._drift = frame_rate, 0.0
        self._margins = _margins(size)
        height, width = size[0] + self._margins[1], size[1] + self._margins[3]
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

    def write(self, image: np.ndarray, time: float) -> None:
        """Append a frame, uint8 ``(H, W, 3)``, BGR. ``time`` is in seconds after the first frame."""
        self._drift = max(self._drift, abs(time - self.count / self._rate))
        self._writer.write(cv2.copyMakeBorder(image, *self._margins, cv2.BORDER_REPLICATE))
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        self._writer.release()
        if self._drift > 1.5 / self._rate:
            print_log(
                f'the frames come at unequal times, and the overlay shows them at a constant {self._rate:.4g} per '
                f'second, up to {self._drift:.2g} s too early or late; with PyAV, they keep their times: {INSTALL}',
                'current',
                logging.WARNING,
            )


class PyAVVideo:
    """Write a video whose frames keep their times, through :func:`open_writer`.

    Args:
        path (Path): the file. Its suffix chooses the container: WebM has VP9, others H.264.
        size, frame_rate: as in :class:`OpenCVVideo`. The last frame is shown for ``1 / frame_rate`` seconds.
        transparent (bool): write a WebM with transparency. Defaults to False.

    Raises:
        OSError: FFmpeg cannot write such a video.
    """

    def __init__(self, path: Path, size: tuple[int, int], frame_rate: float, transparent: bool = False) -> None:
        import av  # late: optional

        self.failures: tuple[type[Exception], ...] = (av.FFmpegError,)
        self._margins = _margins(size)
        self._format = 'yuva420p' if transparent else 'yuv420p'
        height, width = size[0] + self._margins[1], size[1] + self._margins[3]
        codec, options = VP9 if path.suffix == '.webm' or H264[0] not in av.codecs_available else H264
        rate = Fraction(frame_rate).limit_denominator(1001)
        self._duration, self._last, self.count = round(TICKS / rate), -TICKS, 0
        self._file = av.open(str(path.absolute()), 'w')
        try:
            self._stream: Any = self._file.add_stream(codec, rate=rate, options=options)
            self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, self._format
            context = self._stream.codec_context
            context.time_base = Fraction(1, TICKS)
            context.colorspace = context.color_primaries = context.color_trc = BT709
            if transparent:
                self._stream.metadata['alpha_mode'] = '1'
            context.open()
        except (av.FFmpegError, ValueError) as error:  # the latter of an unknown codec
            self._file.close()
            raise OSError(
                f'FFmpeg cannot write {path.suffix} of {width}×{height}, {frame_rate:g} frames per second: {error}'
            ) from error

    def write(self, image: np.ndarray, time: float) -> None:
        """Append a frame, uint8 ``(H, W, 3)``, BGR, or, if transparent, ``(H, W, 4)``, BGRA."""
        from av import VideoFrame

        padded = cv2.copyMakeBorder(image, *self._margins, cv2.BORDER_REPLICATE)
        frame = VideoFrame.from_ndarray(padded, 'bgr24' if image.shape[2] == 3 else 'bgra')
        frame = frame.reformat(format=self._format, dst_colorspace='ITU709')
        self._last = max(round(time * TICKS), self._last + TICKS // 1000)  # WebM counts milliseconds
        frame.pts, frame.time_base, frame.duration = self._last, Fraction(1, TICKS), self._duration
        self._file.mux(self._stream.encode(frame))
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        try:
            if self.count:
                self._file.mux(self._stream.encode())
        finally:
            self._file.close()


class AnimatedGIF:
    """Write a GIF that repeats, through :func:`open_writer`. No more than one frame is held.

    A GIF counts hundredths of a second. Frames that would be shown for less than two are left out.

    Args:
        path, size, frame_rate: as in :class:`PyAVVideo`.
    """

    failures: tuple[type[Exception], ...] = ()

    def __init__(self, path: Path, size: tuple[int, int], frame_rate: float) -> None:
        self._last = max(SHORTEST, round(100 / frame_rate))
        self._waiting: tuple[Image.Image, int] | None = None
        self._file = open(path, 'wb')  # noqa: SIM115 (closed by `close`)
        self._file.write(b'GIF89a' + b''.join(side.to_bytes(2, 'little') for side in size[::-1]) + b'\0\0\0')
        self._file.write(b'\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0')  # repeat without end

    def write(self, image: np.ndarray, time: float) -> None:
        """Append a frame, uint8 ``(H, W, 3)``, BGR, or ``(H, W, 4)``, BGRA: transparent below half of the opacity."""
        start = round(100 * time)
        if self._waiting is None or start - self._waiting[1] >= SHORTEST:
            self._show_waiting(start)
            colours = Image.fromarray(np.ascontiguousarray(image[..., 2::-1])).quantize(TRANSPARENT)
            if image.shape[2] == 4:
                indices = np.where(image[..., 3] < 128, TRANSPARENT, np.array(colours)).astype(np.uint8)
                palette = (colours.getpalette() or [])[: 3 * TRANSPARENT]
                colours = Image.fromarray(indices)
                colours.putpalette(palette + [0] * (768 - len(palette)))
            self._waiting = colours, start

    def _show_waiting(self, until: int) -> None:
        if self._waiting is not None:
            image, start = self._waiting
            options: dict[str, Any] = dict(
                duration=10 * min(until - start, 65535), disposal=2, include_color_table=True
            )
            parts = GifImagePlugin.getdata(image, transparency=TRANSPARENT, **options)
            self._file.write(b''.join(parts))

    def close(self) -> None:
        """Finish the file."""
        with self._file:
            self._show_waiting(self._waiting[1] + self._last if self._waiting else 0)
            self._file.write(b';')


Writer = OpenCVVideo | PyAVVideo | AnimatedGIF


def _writer(path: Path, size: tuple[int, int], frame_rate: float, transparent: bool) -> Writer:
    if path.suffix == '.gif':
        return AnimatedGIF(path, size, frame_rate)
    if has_pyav():
        try:
            return PyAVVideo(path, size, frame_rate, transparent)
        except OSError:
            if transparent or path.suffix != '.mp4':
                raise
    return OpenCVVideo(path, size, frame_rate)


def has_pyav() -> bool:
    """Say whether PyAV is installed, in a version whose frames have a duration."""
    return find_spec('av') is not None and int(version('av').partition('.')[0]) >= OLDEST_PYAV


def check_writer(path: Path, size: tuple[int, int], frame_rate: float, transparent: bool = False) -> None:
    """Check that such a video can be written. An ``OSError`` begins with ``path``, which is not touched."""
    failures: tuple[type[Exception], ...] = (OSError,)
    with TemporaryDirectory() as trial:
        try:
            writer = _writer(Path(trial, path.name), size, frame_rate, transparent)
            failures += writer.failures
            writer.write(np.zeros((*size, 4 if transparent else 3), np.uint8), 0)
            writer.close()
        except failures as error:
            raise OSError(f'{path}: {error}') from None


@contextmanager
def open_writer(path: Path, size: tuple[int, int], frame_rate: float, transparent: bool = False) -> Iterator[Writer]:
    """Open a writer whose file appears at ``path`` when it is complete. An ``OSError`` names ``path``.

    An MP4 is written by PyAV, or, without PyAV, by OpenCV, at a constant rate.
    """
    with atomic_write(path) as temporary:
        writer = _writer(temporary, size, frame_rate, transparent)
        try:
            try:
                yield writer
            finally:
                writer.close()
        except writer.failures as error:
            raise OSError(f'{path}: {error}') from error
        if isinstance(writer, OpenCVVideo):  # it reports no error when a write fails
            count = count_frames(temporary)
            if count != writer.count:
                raise OSError(f'{path}: {count} of {writer.count} frames could be written; is the disk full?')


def _margins(size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the pixels above, below, left and right that make sides even, as codecs want them."""
    return 0, size[0] % 2, 0, size[1] % 2


def count_frames(path: Path) -> int:
    """Count the frames of a video that OpenCV decodes, whatever its header says."""
    video = cv2.VideoCapture(str(path.absolute()))
    count = 0
    while video.grab():
        count += 1
    video.release()
    return count
