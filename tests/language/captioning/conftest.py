"""Captions and a stand-in for a region store."""

import json
from types import SimpleNamespace

import pytest
import torch

from tests.real_data import missing, real_data


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
    """The folder of Flickr8k."""
    folder = real_data('flickr8k', 'flickr8k_entities')
    if not folder.is_dir():
        pytest.skip(missing('flickr8k', folder))
    return folder


def write_json(path, data):
    path.write_text(json.dumps(data), encoding='utf-8')
    return str(path)
