"""Captions, a stand-in for a region store, and a small store with its pictures and models."""

from types import SimpleNamespace

import pytest
import torch

from ...requirements import real_data
from ..files import write_json, write_noise
from .tiny_models import ETA, IDS, SAN, SIZE, SYMBOLS, write_model, write_store


class Store(dict):
    """Like a region store: regions by image id."""

    def __init__(self, sizes, channels=3, boxes=True):
        generator = torch.Generator().manual_seed(0)
        for name, n in sizes.items():
            features = torch.rand(n, channels, generator=generator)
            self[name] = SimpleNamespace(
                features=features, boxes=torch.rand(n, 4, generator=generator) if boxes else None, size=(640, 480)
            )


@pytest.fixture(scope='session')
def flickr8k():
    """The folder of Flickr8k, for tests that require it."""
    return real_data('flickr8k')


@pytest.fixture(scope='session')
def tiny(tmp_path_factory):
    """``store``, ``pictures``, ``attributes``, ``annotations``, and the models ``san`` and ``eta``."""
    folder = tmp_path_factory.mktemp('captioning')
    pictures = folder / 'pictures'
    pictures.mkdir()
    for number, image_id in enumerate(IDS):
        name = f'COCO_val2014_{int(image_id):012d}.jpg' if number % 2 else f'{image_id}.png'
        write_noise(pictures / name, number, SIZE)
    attributes = {image_id: [[SYMBOLS[n + k], 0.9 - k / 10] for k in range(n % 4)] for n, image_id in enumerate(IDS)}
    write_json(folder / 'attributes.json', attributes)
    images = [
        dict(
            cocoid=int(image_id),
            split='test' if number < 4 else 'val',
            sentences=[dict(raw=f'Word{number} & word{k}.', tokens=[SYMBOLS[number], SYMBOLS[k]]) for k in range(20)],
        )
        for number, image_id in enumerate(IDS)
    ]
    write_json(folder / 'dataset.json', dict(images=images))
    return SimpleNamespace(
        store=write_store(folder / 'regions'),
        pictures=pictures,
        attributes=folder / 'attributes.json',
        annotations=folder / 'dataset.json',
        san=write_model(folder, 'san', SAN),
        eta=write_model(folder, 'eta', ETA),
    )
