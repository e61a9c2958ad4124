"""Captions, stand-ins for a region store, a small store with its pictures, small models and their checkpoints."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

import mmattn.engine  # noqa: F401
from mmattn.language.regions import Regions, RegionWriter
from mmattn.registry import MODELS
from tests.real_data import missing, real_data

SYMBOLS = [f'word{number:02}' for number in range(20)]  # in the order of the vocabulary of the annotations
FEATURES = 6
SIZE = (60, 40)
IDS = ['7', '12', '5', '40', '41', '3', '8']
SHAPE = dict(
    vocab_size=4 + len(SYMBOLS), num_features=FEATURES, num_layers=2, embed_dim=16, num_heads=2, feedforward_dim=24
)
NG_SAN = dict(type='mmattn.RegionAttention', query_norm='instance', geometry='query_dependent', geometry_dim=4)
SAN = dict(SHAPE, type='mmattn.SANCaptioner', encoder_attention=NG_SAN, test_cfg=dict(max_length=7))
ETA = dict(SHAPE, type='mmattn.ETACaptioner', test_cfg=dict(beam=3, max_length=7))


def random_model(config, seed=0):
    """A model in evaluation mode whose captions depend on the image and differ in length."""
    torch.manual_seed(3 + seed)
    model = MODELS.build(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and 'embedding' not in name:
                parameter.mul_(2)
        # Otherwise, a caption would repeat a word.
        model.embedding.weight.mul_(5)
        model.decoder.layers[-1].feedforward_norm.weight.normal_(std=2.0)
    return model


def write_store(folder, ids=IDS, width=FEATURES, seed=0):
    """Write regions of some images, one to five each."""
    generator = torch.Generator().manual_seed(seed)
    with RegionWriter(folder) as writer:
        for number, image_id in enumerate(ids):
            n = 1 + number % 5
            corner = torch.rand(n, 2, generator=generator) * 25
            sides = 2 + torch.rand(n, 2, generator=generator) * 12
            features = torch.randn(n, width, generator=generator) * 2
            writer.write(image_id, Regions(features, torch.cat([corner, corner + sides], 1), SIZE))
    return folder


def write_model(folder, name, config, symbols=SYMBOLS, seed=0):
    """Write the config of a model and its checkpoint, as mmengine does; return their paths."""
    path, checkpoint = folder / f'{name}.py', folder / f'{name}.pth'
    Config(dict(model=config)).dump(str(path))
    meta = dict(dataset_meta=dict(symbols=symbols, max_words=16), epoch=1)
    torch.save(dict(meta=meta, state_dict=random_model(config, seed).state_dict()), checkpoint)
    return SimpleNamespace(config=path, checkpoint=checkpoint)


@pytest.fixture(scope='session')
def tiny(tmp_path_factory):
    """``store``, ``pictures``, ``attributes``, ``annotations``, and the models ``san`` and ``eta``."""
    folder = tmp_path_factory.mktemp('captioning')
    pictures = folder / 'pictures'
    pictures.mkdir()
    for number, image_id in enumerate(IDS):
        name = f'COCO_val2014_{int(image_id):012d}.jpg' if number % 2 else f'{image_id}.png'
        noise = np.random.default_rng(number).integers(0, 255, (*SIZE[::-1], 3), dtype=np.uint8)
        Image.fromarray(noise).save(pictures / name)
    attributes = {image_id: [[SYMBOLS[n + k], 0.9 - k / 10] for k in range(n % 4)] for n, image_id in enumerate(IDS)}
    (folder / 'attributes.json').write_text(json.dumps(attributes), encoding='utf-8')
    images = [
        dict(
            cocoid=int(image_id),
            split='test' if number < 4 else 'val',
            sentences=[dict(raw=f'Word{number} & word{k}.', tokens=[SYMBOLS[number], SYMBOLS[k]]) for k in range(20)],
        )
        for number, image_id in enumerate(IDS)
    ]
    (folder / 'dataset.json').write_text(json.dumps(dict(images=images)), encoding='utf-8')
    return SimpleNamespace(
        store=write_store(folder / 'regions'),
        pictures=pictures,
        attributes=folder / 'attributes.json',
        annotations=folder / 'dataset.json',
        san=write_model(folder, 'san', SAN),
        eta=write_model(folder, 'eta', ETA),
    )


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
