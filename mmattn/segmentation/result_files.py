"""The files of a segmented image: index map, overlay and, on request, probabilities."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from mmattn.utils.channels import without_data
from mmattn.utils.checks import check_fraction
from mmattn.utils.files import atomic_write, check_path, check_writable
from mmattn.utils.image_files import check_names
from mmattn.utils.images import CLASS_INDICES

IGNORED = 255  # the label of pixels without data, if it is no class
PART = 1 << 20  # pixels that are drawn together


class Result(NamedTuple):
    """Height and width, and from top to bottom the labels ``(h, W)`` and scores ``(channels, h, W)`` of parts."""

    shape: tuple[int, int]
    rows: Iterable[tuple[Tensor, Tensor]]  # a score is a logit or, of one channel, the probability of label 1


class ResultFiles:
    """Write the results of images into a folder, see :class:`~mmattn.segmentation.SegmentationInferencer`.

    Args:
        out_dir (str or Path): the folder. A ValueError or an OSError says what is wrong with it.
        meta (dict): 'classes' and 'palette' of the model.
        read_image (callable): the pixels of a file, uint8 ``(H, W, 3)``, RGB.
        opacity, probabilities: as in the inferencer's call.

    Attributes:
        folders (list of Path): of the files.
    """

    def __init__(
        self,
        out_dir: str | Path,
        meta: dict[str, Any],
        read_image: Callable[[str], np.ndarray],
        opacity: float,
        *,
        probabilities: bool,
    ) -> None:
        check_fraction('opacity', opacity)
        self._out, self._meta, self._read_image = check_path('out_dir', out_dir), meta, read_image
        self._opacity, self._probabilities = opacity, probabilities
        self.folders = [self._out / name for name in ('pred', 'vis', *['prob'] * probabilities)]
        for folder in self.folders:
            check_writable(folder)

    def check(self, paths: list[str]) -> None:
        """Raise a ValueError, if two images would have one name, or overwrite an image."""
        check_names(paths, [f'{Path(path).stem}.png' for path in paths], *self.folders)

    def of(self, path: str) -> list[Path]:
        """Return the files of an image that :meth:`write` writes, the index map first."""
        kinds = ('pred/{}.png', 'vis/{}.png', *(['prob/{}.npy'] if self._probabilities else []))
        return [self._out / kind.format(Path(path).stem) for kind in kinds]

    def write(self, path: str, result: Result) -> None:
        """Write index map, overlay and probabilities of an image."""
        labels, top = np.empty(result.shape, np.uint8), 0
        classes = len(self._meta['classes'])
        index_file, overlay_file, *probability_file = self.of(path)
        with atomic_write(probability_file[0]) if probability_file else nullcontext() as temporary:
            for row_labels, scores in result.rows:
                end = top + len(row_labels)
                labels[top:end] = row_labels.cpu().numpy()
                if temporary is not None:  # closed after each part, so that it takes no memory
                    file = open_memmap(temporary, 'r+' if top else 'w+', np.float16, (classes, *result.shape))
                    file[:, top:end] = _probabilities(scores.float()).cpu().numpy()
                    del file
                top = end
        palette = np.array(self._meta['palette'], np.uint8)
        colours = palette.tobytes()
        if classes <= IGNORED and (without := without_data(path)) is not None:
            labels[without] = IGNORED
            colours = colours.ljust(768, b'\0')  # PIL stores labels with the bits of their palette
        index_map = Image.fromarray(labels)
        index_map.putpalette(colours)
        text = PngInfo()
        for key, value in CLASS_INDICES.items():
            text.add_text(key, value)
        with atomic_write(index_file) as temporary:
            index_map.save(temporary, pnginfo=text)
        drawn = draw_labels(self._read_image(path), labels, palette, self._opacity)
        with atomic_write(overlay_file) as temporary:
            Image.fromarray(drawn).save(temporary)


def _probabilities(scores: Tensor) -> Tensor:
    return scores.softmax(0) if len(scores) > 1 else torch.cat([1 - scores, scores])


def draw_labels(image: np.ndarray, labels: np.ndarray, palette: np.ndarray, opacity: float) -> np.ndarray:
    """Draw class colours over an image. Labels without a colour show the image.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, RGB, or ``(H, W, 1)``.
        labels (np.ndarray): uint8 ``(H, W)``.
        palette (np.ndarray): uint8 ``(classes, 3)``, RGB.
        opacity (float): opacity of the colours, 0 to 1.

    Returns:
        np.ndarray: uint8 ``(H, W, 3)``, RGB.

    Example:
        >>> image, labels = np.full((1, 2, 3), 100, np.uint8), np.array([[0, 255]], np.uint8)
        >>> draw_labels(image, labels, np.array([[200, 0, 0]], np.uint8), 0.5).tolist()
        [[[150, 50, 50], [100, 100, 100]]]
    """
    drawn = np.empty((*labels.shape, 3), np.uint8)
    step = max(1, PART // labels.shape[1])
    for top in range(0, len(labels), step):  # in parts, since floats take memory
        part = labels[top : top + step]
        coloured = part < len(palette)
        shares = np.where(coloured, np.float32(opacity), np.float32(0))[..., None]
        colours = palette[np.where(coloured, part, 0)]
        drawn[top : top + step] = np.rint(image[top : top + step] * (1 - shares) + colours * shares)
    return drawn  # mmseg's visualizer fails on one pixel
