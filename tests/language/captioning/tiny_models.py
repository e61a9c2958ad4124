"""A small store of regions, small models with random weights, their configs and checkpoints."""

import torch

import mmattn.engine  # noqa: F401
from mmattn.language.regions.image_regions import Regions
from mmattn.language.regions.region_writer import RegionWriter
from mmattn.registry import MODELS

from .. import files

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


def write_store(folder, ids=IDS, width=FEATURES, seed=0, least=1, different=5):
    """Write regions of some images, one to five each."""
    generator = torch.Generator().manual_seed(seed)
    with RegionWriter(folder) as writer:
        for number, image_id in enumerate(ids):
            n = least + number % different
            corner = torch.rand(n, 2, generator=generator) * 25
            sides = 2 + torch.rand(n, 2, generator=generator) * 12
            features = torch.randn(n, width, generator=generator) * 2
            writer.write(image_id, Regions(features, torch.cat([corner, corner + sides], 1), SIZE))
    return folder


def write_model(folder, name, config, symbols=SYMBOLS, seed=0, **meta):
    return files.write_model(folder, name, random_model(config, seed), config, symbols=symbols, max_words=16, **meta)
