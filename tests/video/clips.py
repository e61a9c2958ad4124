"""Small clips in the layouts of the data sets."""

import json

import numpy as np
import pytest
from PIL import Image

from mmattn.video.masks import write_mask

from ..real_data import missing, real_data

SIZE = (30, 44)  # height, width
DAVIS = real_data('davis_240p', 'davis')
needs_davis = pytest.mark.skipif(not DAVIS.is_dir(), reason=missing('davis_240p', DAVIS))


def squares(position, *ids, size=SIZE):
    """A mask of squares, one an object, which move to the right."""
    mask = np.zeros(size, np.uint8)
    for i in ids:
        top, left = 2 + 9 * (i % 3), 2 + position + i % 7
        mask[top : top + 7, left : left + 8] = i
    return mask


def frame(mask, position):
    """A frame that shows what the mask does, and which position it has: its red is 9 · position + 10, more or less."""
    pixels = np.stack([np.full(mask.shape, 9 * position + 10), mask * 30, 200 - mask], -1)
    return pixels.astype(np.uint8)


def clip(root, name, masks, frames='JPEGImages', annotations='Annotations', numbers=None, masked=None, suffix='.jpg'):
    """Write a frame for each mask, and the masks, or those at the positions ``masked``."""
    for position, mask in enumerate(masks):
        stem = f'{position if numbers is None else numbers[position]:05}'
        path = root / frames / name / f'{stem}{suffix}'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(frame(mask, position)).save(path, quality=95)
        if masked is None or position in masked:
            write_mask(root / annotations / name / f'{stem}.png', mask)


def davis(root, resolution='240p', lists='ImageSets', **clips):
    """DAVIS with clips by name, listed as training and validation sets."""
    for name, masks in clips.items():
        clip(root, name, masks, f'JPEGImages/{resolution}', f'Annotations/{resolution}')
    (root / lists).mkdir(parents=True)
    for part in ('train', 'val'):
        (root / lists / f'{part}.txt').write_text('\n'.join(clips) + '\n')


def youtube_vos(root, objects, lengths, masked=None):
    """YouTube-VOS with every fifth frame: ``objects[clip][id] = (category, first position)``."""
    videos = {}
    for name, things in objects.items():
        masks = [squares(p, *(i for i, (_, first) in things.items() if first <= p)) for p in range(lengths[name])]
        numbers = [5 * p for p in range(lengths[name])]
        clip(root, name, masks, numbers=numbers, masked=masked)
        videos[name] = dict(
            objects={
                str(i): dict(category=category, frames=[f'{number:05}' for number in numbers[first:]])
                for i, (category, first) in things.items()
            }
        )
    (root / 'meta.json').write_text(json.dumps(dict(videos=videos)))
