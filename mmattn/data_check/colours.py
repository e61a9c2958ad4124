"""Transforms of 8-bit colours in pipelines that load other images."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmattn.registry import TRANSFORMS
from mmattn.utils.faults import one_line

from .data_sets import Fault, Part

BRIGHT = 60000.0  # a value of 16 bits
LoadChannels: Any = TRANSFORMS.get('mmattn.LoadChannels')  # by its name: it is of a floor above
TRIES = 8  # transforms act by chance


def colour_faults(parts: Sequence[Part]) -> Iterator[Fault]:
    """Yield transforms that clip values at 255, or fail, given a bright image with the channels of ``LoadChannels``."""
    states = random.getstate(), np.random.get_state()
    try:
        for part in parts:
            transforms = getattr(part.dataset.pipeline, 'transforms', ())
            loader = next((t for t in transforms if isinstance(t, LoadChannels)), None)
            for transform in transforms if loader is not None else ():
                if loader is not None and (fault := _fault(transform, loader.channels)):
                    yield f'{part.where}.pipeline', f'{type(transform).__name__} {fault}; leave it out'
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _fault(transform: object, channels: int) -> str:
    for _ in range(TRIES):
        image = np.full((48, 48, channels), BRIGHT, np.float32)
        labels = np.zeros((48, 48), np.uint8)
        sample = dict(img=image, gt_seg_map=labels, seg_fields=['gt_seg_map'], img_shape=(48, 48), ori_shape=(48, 48))
        try:
            seen = transform(sample)['img']  # type: ignore[operator]
        except KeyError:  # it needs what only a file has, or packs the sample
            return ''
        except Exception as error:  # of OpenCV and others
            return f'fails on {channels} channels: {one_line(error)}'
        if seen.size and seen.max() == 255:  # others may rescale the image
            return 'clips values at 255, so it is for 8-bit images'
    return ''
