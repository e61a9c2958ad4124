"""Transforms of whole clips, frames and their masks together; what is random is drawn once a clip.

They take and return ``frames``, a list of uint8 ``(H, W, 3)``, BGR, and ``masks``, a list of uint8 ``(H, W)``. Beyond
the image, frames are mirrored and masks are 255: these pixels do not count.
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
    """Base: ``draw`` decides once a clip what is done to each frame and to each mask."""

    def transform(self, results: dict) -> dict:
        """Change ``frames`` and, if there are any, ``masks``."""
        change_frame, change_mask = self.draw(results)
        results['frames'] = [change_frame(frame) for frame in results['frames']]
        if 'masks' in results:
            results['masks'] = [change_mask(mask) for mask in results['masks']]
        return results

    @abstractmethod
    def draw(self, results: dict) -> tuple[Change, Change]:
        """Return the functions for frames and for masks."""


@TRANSFORMS.register_module()
class ClipResize(ClipTransform):
    """Resize, frames bilinearly, masks by their nearest pixel.

    Args:
        scale (tuple[int, int]): width and height.
        ratio_range (tuple[float, float]): a factor to ``scale``, drawn from this range. Defaults to (1, 1).
        keep_ratio (bool): take the largest size of the clip's aspect ratio whose long side is at most the longer of
            ``scale``, and whose short side the shorter. Defaults to True.
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
        # 'nearest' of mmcv is half a pixel off the bilinear grid
        return (
            lambda frame: mmcv.imresize(frame, size),
            lambda mask: cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST_EXACT),
        )


@TRANSFORMS.register_module()
class ClipRandomAffine(BaseTransform):
    """Rotate, scale, shear and shift about the middle of the image; the size stays.

    Args:
        max_rotate (float): degrees, either way. Defaults to 15.
        scale_range (tuple[float, float]): factor. Defaults to (0.9, 1.1).
        max_shear (float): degrees, either way, along x. Defaults to 10.
        max_shift (float): part of each side, either way. Defaults to 0.1.
        drift (float): up to this share of the way, drawn from 0 on, the map changes from the first frame to the last
            towards another one, as if a camera moved. Defaults to 0: it is the same for all frames.
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
        """Change ``frames`` and, if there are any, ``masks``."""
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
        """Draw a map, float64 ``(2, 3)``."""
        rotate, shear = np.radians(np.random.uniform(-1, 1, 2) * (self.max_rotate, self.max_shear))
        turned = np.array([[np.cos(rotate), -np.sin(rotate)], [np.sin(rotate), np.cos(rotate)]])
        linear = np.random.uniform(*self.scale_range) * turned @ [[1, np.tan(shear)], [0, 1]]
        middle = np.array([w - 1, h - 1]) / 2
        shift = np.random.uniform(-self.max_shift, self.max_shift, 2) * (w, h)
        return np.column_stack([linear, middle + shift - linear @ middle])


@TRANSFORMS.register_module()
class ClipRandomCrop(ClipTransform):
    """Cut out a window that shows an object in the reference frame, the first, if that shows one.

    The window holds a random pixel of a random object there. Clips smaller than it are enlarged to the right and below.

    Args:
        crop_size (tuple[int, int]): height and width.
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
    """Flip left and right.

    Args:
        prob (float): how likely. Defaults to 0.5.
    """

    def __init__(self, prob: float = 0.5) -> None:
        self.prob = prob

    def draw(self, results: dict) -> tuple[Change, Change]:
        """Draw whether to."""
        change: Change = mmcv.imflip if np.random.rand() < self.prob else np.asarray
        return change, change


@TRANSFORMS.register_module()
class ClipColorJitter(BaseTransform):
    """Change brightness, contrast, saturation and hue, in this order; masks stay.

    Args:
        brightness (float), contrast (float), saturation (float): the factor is drawn from 1 ± this. Defaults to 0.3.
        hue (float): part of the circle, at most 0.5, either way. Defaults to 0.05.

    Raises:
        ValueError: ``hue`` is above 0.5.
    """

    def __init__(
        self, brightness: float = 0.3, contrast: float = 0.3, saturation: float = 0.3, hue: float = 0.05
    ) -> None:
        if not 0 <= hue <= 0.5:
            raise ValueError(f'hue must be of 0…0.5; got {hue}')
        self.ranges = np.array([brightness, contrast, saturation, hue])

    def transform(self, results: dict) -> dict:
        """Change ``frames``."""
        brightness, contrast, saturation, hue = np.random.uniform(-1, 1, 4) * self.ranges + (1, 1, 1, 0)
        frames = np.concatenate(results['frames'])  # one tall image: contrast about the mean of the clip
        frames = mmcv.adjust_contrast(mmcv.adjust_brightness(frames, brightness), contrast)
        frames = mmcv.adjust_hue(mmcv.adjust_color(frames, saturation), hue)
        results['frames'] = np.split(frames, len(results['frames']))
        return results


@TRANSFORMS.register_module()
class ClipCopyPaste(BaseTransform):
    """Paste the objects of another clip over all frames, as they move there: objects more to follow.

    Few clips give many scenes so. The other clip is drawn from a data set and goes through a pipeline of its own, which
    must end in as many frames with masks; of another size, they are cropped as by ``ClipRandomCrop``. What is pasted
    gets the lowest ids that no frame has.

    Args:
        dataset (dict): config of the data set with its pipeline.
        prob (float): how likely. Defaults to 0.5.

    Raises:
        ValueError: when called: the other clip has not as many frames.
    """

    def __init__(self, dataset: dict, prob: float = 0.5) -> None:
        self.dataset = DATASETS.build(dataset)
        self.prob = prob

    def transform(self, results: dict) -> dict:
        """Change ``frames`` and ``masks``."""
        if np.random.rand() >= self.prob:
            return results
        other = self.dataset[np.random.randint(len(self.dataset))]
        frames, masks = results['frames'], results['masks']
        if len(frames) != len(other['frames']):
            raise ValueError(
                f'ClipCopyPaste: {results["clip"]} has {len(frames)} frames; {other["clip"]}, which would '
                f'be pasted, has {len(other["frames"])}'
            )
        if frames[0].shape != other['frames'][0].shape:
            other = ClipRandomCrop(frames[0].shape[:2])(other)
        free = sorted(set(range(1, VOID)).difference(*map(object_ids, masks)))
        table = np.zeros(256, np.uint8)
        ids = object_ids(other['masks'][0])
        table[ids] = free[: len(ids)]
        for t, (frame, mask) in enumerate(zip(other['frames'], other['masks'])):
            new = table[mask]
            seen = cv2.GaussianBlur((new > 0).astype(np.float32), (3, 3), 0)[..., None]  # no edge as if cut by scissors
            frames[t] = np.rint(frames[t] + seen * (frame.astype(np.float32) - frames[t])).astype(np.uint8)
            masks[t] = np.where(new, new, masks[t])
        return results
