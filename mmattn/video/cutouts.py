"""Cut followed objects out of a clip: on a transparent background, or on a colour."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image

from mmattn.utils.checks import check_choice
from mmattn.utils.files import atomic_write

from .label_propagation import guided_filter
from .painted_masks import parse_colours
from .video_writers import INSTALL, OLDEST_PYAV, check_writer, has_pyav, open_writer

FORMATS = 'webm', 'png', 'gif', 'mp4', 'mov', 'mkv'
OPAQUE = 'mp4', 'mov', 'mkv'  # without transparency
FILTERED = 240  # lines of a frame whose edges are soft within one pixel; of larger frames, within more


class CutOuts(NamedTuple):
    """Which cut-outs a run writes: ``cutout.<format>``, or for 'png', ``cutout/<frame>.png``.

    Attributes:
        formats (sequence of str): some of FORMATS.
        objects (sequence of int): ids of the objects that remain. Without any, all of them.
        background (tuple[int, int, int], optional): RGB of the background. With None, it is transparent.
    """

    formats: Sequence[str] = ()
    objects: Sequence[int] = ()
    background: tuple[int, int, int] | None = None

    def paths(self, out_dir: Path) -> list[Path]:
        """List the files, and the folder, that are written."""
        return [out_dir / ('cutout' if name == 'png' else f'cutout.{name}') for name in self.formats]

    def check_objects(self, ids: set[int]) -> None:
        """Check that masks show the chosen objects."""
        if missing := sorted({*self.objects} - ids):
            raise ValueError(f'cutout_objects must be ids in the masks, {sorted(ids)}; got {missing}')

    def check(self, out_dir: Path, size: tuple[int, int], frame_rate: float) -> None:
        """Check that the files can be written. An ``OSError`` begins with the path."""
        for path in self.paths(out_dir):
            if path.suffix:
                check_writer(path, size, frame_rate, self.background is None)

    def open(
        self, stack: ExitStack, out_dir: Path, size: tuple[int, int], frame_rate: float
    ) -> Callable[[str, np.ndarray, np.ndarray, float], None]:
        """Open the files in ``stack``. Call the result with each frame's name, image, ids and time in seconds."""
        is_clear = self.background is None
        paths = self.paths(out_dir)
        writers = [stack.enter_context(open_writer(x, size, frame_rate, is_clear)) for x in paths if x.suffix]
        folders = [path for path in paths if not path.suffix]

        def write(name: str, image: np.ndarray, ids: np.ndarray, time: float) -> None:
            shown = cut_out(image, np.isin(ids, self.objects) if self.objects else ids > 0, self.background)
            for writer in writers:
                writer.write(shown, time)
            for folder in folders:
                with atomic_write(folder / f'{name}.png') as temporary:
                    order = [2, 1, 0, 3][: shown.shape[2]]
                    Image.fromarray(np.ascontiguousarray(shown[..., order])).save(temporary, 'PNG', compress_level=3)

        return write


def read_cutouts(formats: Sequence[str], objects: Iterable[int], background: str | None) -> CutOuts:
    """Check the arguments of an inferencer, before work starts.

    Raises:
        ImportError: a video requires PyAV, which is not installed.
        ValueError: an argument is wrong.
    """
    formats = [formats] if isinstance(formats, str) else [*dict.fromkeys(formats)]
    for name in formats:
        check_choice('cutouts', name, FORMATS)
    if not formats and (objects or background is not None):
        raise ValueError('cutout_objects and background are for cutouts: choose a format, such as webm (--cutout webm)')
    opaque = [name for name in formats if name in OPAQUE]
    if opaque and background is None:
        raise ValueError(
            f'cutouts: {opaque[0]} has no transparency; choose webm, png or gif, or set background '
            "(--background), such as '#00ff00'"
        )
    videos = [name for name in formats if name not in ('png', 'gif')]
    if videos and not has_pyav():
        raise ImportError(
            f'cutouts: {videos[0]} requires PyAV {OLDEST_PYAV} or later, of the extra "cutouts": {INSTALL}, or pip '
            'install av; png and gif do not require it'
        )
    return CutOuts(formats, [*objects], None if background is None else parse_colours([background])[0])


def cut_out(image: np.ndarray, mask: np.ndarray, background: tuple[int, int, int] | None = None) -> np.ndarray:
    """Cut an object out of a frame. Its edges are soft, and follow those of the frame (a guided filter).

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, BGR.
        mask (np.ndarray): bool ``(H, W)``.
        background (tuple[int, int, int], optional): RGB. Defaults to None, transparent.

    Returns:
        np.ndarray: uint8 ``(H, W, 3)``, BGR, or, if transparent, ``(H, W, 4)``, BGRA, not multiplied by the opacity.
            Near the object, transparent pixels have the colours of the frame, so that codecs do not darken its edges.

    Example:
        >>> import numpy as np
        >>> image, mask = np.full((8, 8, 3), 200, np.uint8), np.zeros((8, 8), bool)
        >>> mask[:, :4] = True
        >>> cut_out(image, mask)[0, :, 3]
        array([255, 255, 227, 170,  85,  28,   0,   0], dtype=uint8)
    """
    opacity = soft_edges(image, mask)[..., None]
    if background is not None:
        return np.rint(opacity * image + (1 - opacity) * np.array(background[::-1], np.float32)).astype(np.uint8)
    near = cv2.dilate((opacity > 0).astype(np.uint8), np.ones((17, 17), np.uint8))
    return np.dstack([image * near[..., None], np.rint(255 * opacity).astype(np.uint8)])


def soft_edges(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Compute the opacity of an object, float32 ``(H, W)`` of 0 to 1, from its mask and the colours of the frame."""
    opacity = mask.astype(np.float32)
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return opacity
    radius = max(1, round(min(mask.shape) / FILTERED))
    margin = 4 * radius  # beyond 2 radii of the mask, the result is 0; its means need 2 more
    box = tuple(slice(max(int(x[0]) - margin, 0), int(x[-1]) + margin + 1) for x in (rows, columns))
    guide = torch.from_numpy(image[box]).permute(2, 0, 1)[None] / 127.5
    opacity[box] = guided_filter(torch.from_numpy(opacity[box])[None, None], guide, radius)[0, 0].clamp(0, 1).numpy()
    return opacity
