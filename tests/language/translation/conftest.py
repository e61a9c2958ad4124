"""A small model with random weights, its config and its checkpoint."""

import string

import pytest
import torch

import mmattn.engine  # noqa: F401
from mmattn.registry import MODELS

from ..files import write_model

LETTERS = string.ascii_lowercase
# merged pieces of a source text with these words; the letters are for all other words
CODES = ['#version: 0.2', 't h', 'th e</w>', 'd o', 'do g</w>', 'm a', 'ma n</w>']
SYMBOLS = [*LETTERS, *(f'{letter}@@' for letter in LETTERS), 'the', 'th@@', 'dog', 'do@@', 'man', 'ma@@', '.', ',', "'"]
META = dict(source='en', target='de', lowercase=True, moses=dict(escape=True), symbols=SYMBOLS, codes=CODES)
BILATERAL = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
CONFIG = dict(
    type='mmattn.TranslationTransformer',
    vocab_size=4 + len(SYMBOLS),
    size='tiny',
    encoder_attention=BILATERAL,
    decoder_attention=BILATERAL,
    test_cfg=dict(beam=3, max_length=(1.0, 4)),
)
LINES = [
    'The dog.',
    '',
    'A man and the dog, they run.',
    'Dogs',
    'the man sees a house with a man',
    '   ',
    "The man's dog barks.",
    'Grüße',  # letters that the vocabulary does not have
    'a b c d e f g',
    'a dog',
]


def random_model(**options):
    """A model in evaluation mode whose translations depend on the source and differ in length."""
    torch.manual_seed(0)
    model = MODELS.build({**CONFIG, **options}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name != 'embedding.weight':
                parameter.mul_(2)
        # Otherwise, the most probable token would be the last one.
        model.decoder.layers[-1].feedforward_norm.weight.normal_(std=1.0)
        model.embedding.weight[2] *= 1.5  # ends
    return model


@pytest.fixture(scope='session')
def trained(tmp_path_factory):
    """Paths of a config and of a checkpoint as mmengine writes it."""
    return write_model(tmp_path_factory.mktemp('translation'), 'epoch_1', random_model(), CONFIG, **META)
