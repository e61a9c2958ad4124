"""Transforms of whole clips: frames and masks together. Random parameters are drawn once per clip.

All transforms take and return ``frames``, a list of uint8 ``(H, W, 3)``, BGR, and ``masks``, a list of uint8
``(H, W)``. Outside the image, frames are mirrored and masks are 255, the void label.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import cv2
import mmcv
import numpy as np
from mmcv.transforms import BaseTransform

from mmattn.registry import DATASETS, TRANSFORMS

from .masks import VOID, object_ids

Change = Callable[[np.ndarray], np.ndarray]


class ClipTransform(BaseTransform):
    """Base class: ``draw`` returns, once per clip, the functions that are applied to each frame and each mask."""

    def transform(self, results: dict) -> dict:
        """Transform ``frames`` and, if there are any, ``masks``."""
        change_frame, change_mask = self.draw(results)
        results['frames'] = [change_frame(frame) for frame in results['frames']]
        if 'masks' in results:
            results['masks'] = [change_mask(mask) for mask in results['masks']]
        return results

    @abstractmethod
    def draw(self, results: dict) -> tuple[Change, Change]:
        """Draw random parameters. Returns a function for frames and a function for masks."""


@TRANSFORMS.register_module()
class ClipResize(ClipTransform):
    """Resize clips: frames bilinearly, masks to the nearest pixel.

    Args:
        scale (tuple[int, int]): width and height.
        ratio_range (tuple[float, float]): range of a random factor on ``scale``. Defaults to (1, 1).
        keep_ratio (bool): keep the aspect ratio. Then the long side is at most the longer value of ``scale``, and the
            short side at most the shorter value. Defaults to True.

    Example:
        >>> resize = TRANSFORMS.build(dict(type='mmattn.ClipResize', scale=(22, 22)))
        >>> resize(dict(frames=[np.zeros((30, 44, 3), np.uint8)]))['frames'][0].shape
        (15, 22, 3)
    """

    def __init__(
        self, scale: tuple[int, int], ratio_range: tuple[float, float] = (1, 1), keep_ratio: bool = True
    ) -> None:
        self.scale = scale
        self.ratio_range = ratio_range
        self.keep_ratio = keep_ratio

    def draw(self, results: dict) -> tuple[Change, Change]:
        """Draw the size."""
        ratio = np.random.uniform(*self.ratio_range)
        size = tuple(max(1, round(side * ratio)) for side in self.scale)
        if self.keep_ratio:
            size = mmcv.rescale_size(results['frames'][0].shape[1::-1], size)
        # 'nearest' in mmcv is shifted by half a pixel relative to the bilinear grid
        return (
            lambda frame: mmcv.imresize(frame, size),
            lambda mask: cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST_EXACT),
        )


@TRANSFORMS.register_module()
class ClipRandomAffine(BaseTransform):
    """Rotate, scale, shear and shift clips about the centre of the image, without changing their size.

    Args:
        max_rotate (float): largest rotation in either direction, in degrees. Defaults to 15.
        scale_range (tuple[float, float]): range of the scale factor. Defaults to (0.9, 1.1).
        max_shear (float): largest shear along x in either direction, in degrees. Defaults to 10.
        max_shift (float): largest shift in either direction, relative to each side. Defaults to 0.1.
        drift (float): strength of simulated camera motion, 0 to 1. From the first to the last frame, the map moves a
            random fraction, 0 to ``drift``, of the way to a second random map. Defaults to 0: one map for all frames.

    Example:
        >>> rotate = ClipRandomAffine(max_rotate=90, drift=0.5)
        >>> rotate(dict(frames=[np.zeros((30, 44, 3), np.uint8)] * 2))['frames'][1].shape
        (30, 44, 3)
    """

    def __init__(
        self,
        max_rotate: float = 15,
        scale_range: tuple[float, float] = (0.9, 1.1),
        max_shear: float = 10,
        max_shift: float = 0.1,
        drift: float = 0,
    ) -> None:
        self.max_rotate = max_rotate
        self.scale_range = scale_range
        self.max_shear = max_shear
        self.max_shift = max_shift
        self.drift = drift

    def transform(self, results: dict) -> dict:
        """Transform ``frames`` and, if there are any, ``masks``."""
        frames = results['frames']
        h, w = frames[0].shape[:2]
        first = self._draw(h, w)
        towards = np.random.uniform(0, self.drift) * (self._draw(h, w) - first) if self.drift else 0
        matrices = [first + towards * i / max(1, len(frames) - 1) for i in range(len(frames))]
        results['frames'] = [
            cv2.warpAffine(frame, matrix, (w, h), borderMode=cv2.BORDER_REFLECT_101)
            for frame, matrix in zip(frames, matrices)
        ]
        if 'masks' in results:
            results['masks'] = [
                cv2.warpAffine(
                    mask, matrix, (w, h), flags=cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=VOID
                )
                for mask, matrix in zip(results['masks'], matrices)
            ]
        return results

    def _draw(self, h: int, w: int) -> np.ndarray:
        rotate, shear = np.radians(np.random.uniform(-1, 1, 2) * (self.max_rotate, self.max_shear))
        turned = np.array([[np.cos(rotate), -np.sin(rotate)], [np.sin(rotate), np.cos(rotate)]])
        linear = np.random.uniform(*self.scale_range) * turned @ [[1, np.tan(shear)], [0, 1]]
        middle = np.array([w - 1, h - 1]) / 2
        shift = np.random.uniform(-self.max_shift, self.max_shift, 2) * (w, h)
        return np.column_stack([linear, middle + shift - linear @ middle])


@TRANSFORMS.register_module()
class ClipRandomCrop(ClipTransform):
    """Crop a window that contains a random pixel of a random object of the first frame, the reference, if it has any.

    Smaller clips are padded on the right and at the bottom.

    Args:
        crop_size (tuple[int, int]): height and width.

    Example:
        >>> crop = ClipRandomCrop((16, 24))
        >>> crop(dict(frames=[np.zeros((30, 44, 3), np.uint8)]))['frames'][0].shape
        (16, 24, 3)
    """

    def __init__(self, crop_size: tuple[int, int]) -> None:
        self.crop_size = crop_size

    def draw(self, results: dict) -> tuple[Change, Change]:
        """Draw the window."""
        size = np.array(results['frames'][0].shape[:2])
        crop = np.array(self.crop_size)
        low, high = np.zeros(2, int), np.maximum(size - crop, 0)
        ids = object_ids(results['masks'][0]) if 'masks' in results else []
        if ids:
            pixels = np.argwhere(results['masks'][0] == np.random.choice(ids))
            pixel = pixels[np.random.randint(len(pixels))]
            low, high = np.maximum(low, pixel - crop + 1), np.minimum(high, pixel)
        top, left = np.random.randint(low, high + 1)
        bottom, right = np.maximum(crop - size, 0)

        def cut(image: np.ndarray, **border: Any) -> np.ndarray:
            image = image[top : top + crop[0], left : left + crop[1]]
            return cv2.copyMakeBorder(image, 0, bottom, 0, right, **border) if bottom or right else image

        return (
            lambda frame: cut(frame, borderType=cv2.BORDER_REFLECT_101),
            lambda mask: cut(mask, borderType=cv2.BORDER_CONSTANT, value=VOID),
        )


@TRANSFORMS.register_module()
class ClipRandomFlip(ClipTransform):
    """Flip clips horizontally.

    Args:
        prob (float): probability of a flip. Defaults to 0.5.

    Example:
        >>> flip = ClipRandomFlip(prob=1)
        >>> flip(dict(frames=[], masks=[np.array([[0, 1]], np.uint8)]))['masks']
        [array([[1, 0]], dtype=uint8)]
    """

    def __init__(self, prob: float = 0.5) -> None:
        self.prob = prob

    def draw(self, results: dict) -> tuple[Change, Change]:
        """Draw whether to flip."""
        change: Change = mmcv.imflip if np.random.rand() < self.prob else np.asarray
        return change, change


@TRANSFORMS.register_module()
class ClipColorJitter(BaseTransform):
    """Change brightness, contrast, saturation and hue of the frames, in this order.

    Args:
        brightness, contrast, saturation (float): the factor is drawn from 1 ± this value. Default to 0.3.
        hue (float): largest shift in either direction, as a fraction of the colour circle, 0 to 0.5. Defaults to 0.05.

    Example:
        >>> jitter = ClipColorJitter(hue=0.1)
        >>> jitter(dict(frames=[np.zeros((30, 44, 3), np.uint8)]))['frames'][0].shape
        (30, 44, 3)
    """

    def __init__(
        self, brightness: float = 0.3, contrast: float = 0.3, saturation: float = 0.3, hue: float = 0.05
    ) -> None:
        if not 0 <= hue <= 0.5:
            raise ValueError(f'hue must be of 0…0.5; got {hue}')
        self.ranges = np.array([brightness, contrast, saturation, hue])

    def transform(self, results: dict) -> dict:
        """Transform ``frames``."""
        brightness, contrast, saturation, hue = np.random.uniform(-1, 1, 4) * self.ranges + (1, 1, 1, 0)
        frames = np.concatenate(results['frames'])  # one tall image: the contrast refers to the mean of the clip
        frames = mmcv.adjust_contrast(mmcv.adjust_brightness(frames, brightness), contrast)
        frames = mmcv.adjust_hue(mmcv.adjust_color(frames, saturation), hue)
        results['frames'] = np.split(frames, len(results['frames']))
        return results


@TRANSFORMS.register_module()
class ClipCopyPaste(BaseTransform):
    """Paste the moving objects of another clip over the frames, as additional objects to follow.

    This creates many scenes from few clips. The other clip is drawn at random from a data set whose pipeline returns as
    many frames, with masks. If its size differs, it is cropped as by ``ClipRandomCrop``. The pasted objects get the
    lowest free ids.

    Args:
        dataset (dict): config of the data set, with its pipeline.
        prob (float): probability of pasting. Defaults to 0.5.

    Example:
        >>> from mmattn.video import write_mask
        >>> for folder in ('JPEGImages', 'Annotations'):
        ...     write_mask(f'{folder}/cat/0.png', np.eye(8, dtype=np.uint8))
        >>> pipeline = [dict(type='mmattn.LoadClipFrames'), dict(type='mmattn.LoadClipMasks')]
        >>> paste = ClipCopyPaste(dict(type='mmattn.VideoFolderDataset', pipeline=pipeline), prob=1)
        >>> clip = dict(frames=[np.zeros((8, 8, 3), np.uint8)], masks=[np.zeros((8, 8), np.uint8)])
        >>> np.array_equal(paste(clip)['masks'][0], np.eye(8))
        True
    """

    def __init__(self, dataset: dict, prob: float = 0.5) -> None:
        self.dataset = DATASETS.build(dataset)
        self.prob = prob

    def transform(self, results: dict) -> dict:
        """Transform ``frames`` and ``masks``."""
        if np.random.rand() >= self.prob:
            return results
        other = self.dataset[np.random.randint(len(self.dataset))]
        frames, masks = results['frames'], results['masks']
        if len(frames) != len(other['frames']):
            raise ValueError(
                f'ClipCopyPaste: {results["clip"]} has {len(frames)} frames; {other["clip"]}, which would be pasted, '
                f'has {len(other["frames"])}'
            )
        if frames[0].shape != other['frames'][0].shape:
            other = ClipRandomCrop(frames[0].shape[:2])(other)
        free = sorted(set(range(1, VOID)).difference(*map(object_ids, masks)))
        table = np.zeros(256, np.uint8)
        ids = object_ids(other['masks'][0])
        table[ids] = free[: len(ids)]
        for t, (frame, mask) in enumerate(zip(other['frames'], other['masks'])):
            new = table[mask]
            opacity = cv2.GaussianBlur((new > 0).astype(np.float32), (3, 3), 0)[..., None]  # soft edges
            frames[t] = np.rint(frames[t] + opacity * (frame.astype(np.float32) - frames[t])).astype(np.uint8)
            masks[t] = np.where(new, new, masks[t])
        return results
