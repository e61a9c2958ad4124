"""A small store of regions, pictures, questions, and small models of visual questions with random weights."""

from functools import partial

import torch

import mmattn.engine  # noqa: F401
from mmattn.registry import MODELS

from .. import files
from ..captioning import tiny_models

FEATURES, SIZE = tiny_models.FEATURES, tiny_models.SIZE
WORDS = ['what', 'is', 'this', 'dog', 'the', 'colour', 'of', 'how', 'many', 'cats']
ANSWERS = ['yes', 'no', 'dog', 'two', 'red', 'on the table']
IDS = ['7', '12', '5', '40']
QUESTIONS = [
    ('7', 'What is this?'),
    ('7', 'What is the colour of the dog?'),
    ('12', 'How many zebras, of what colour?'),
    ('5', 'Is this a dog?'),
    ('40', 'dog'),
]
SHAPE = dict(vocab_size=4 + len(WORDS), num_answers=len(ANSWERS))
ENCODER = dict(type='mmattn.QuestionGRU', word_dim=8, embed_dim=12)
BAN = dict(
    SHAPE,
    type='mmattn.VQAModel',
    num_features=FEATURES,
    question_encoder=ENCODER,
    head=dict(type='mmattn.BANHead', num_glimpses=2, embed_dim=12),
)
UNITARY = dict(BAN, head=dict(type='mmattn.UnitaryHead', embed_dim=12))
CONCAT = dict(BAN, head=dict(type='mmattn.ConcatHead'))
PICTURES = dict(BAN, image_encoder=dict(type='mmattn.ConvImageEncoder', channels=(4, 6)))
MCAN = dict(
    SHAPE,
    type='mmattn.MCAN',
    num_features=FEATURES,
    word_dim=8,
    num_layers=1,
    embed_dim=16,
    num_heads=2,
    feedforward_dim=24,
    fused_dim=12,
)


def random_model(config, seed=0):
    """A model in evaluation mode whose answers depend on image and question."""
    torch.manual_seed(seed)
    model = MODELS.build(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Matrices, and the scales of weight norm.
            if (parameter.dim() > 1 and 'embedding' not in name) or name.endswith('original0'):
                parameter.mul_(2)
    return model


write_store = partial(tiny_models.write_store, ids=IDS, least=3, different=4)


def write_model(folder, name, config, **meta):
    meta = dict(symbols=WORDS, answers=ANSWERS, tokens='ban', max_words=7) | meta
    return files.write_model(folder, name, random_model(config), config, **meta)


def write_pictures(folder, ids=IDS, size=(16, 16)):
    folder.mkdir()
    for number, image_id in enumerate(ids):
        files.write_noise(folder / f'{image_id}.png', number, size)
    return folder
