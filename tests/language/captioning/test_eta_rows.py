"""ETA's page: its options reach the model through the tools' command line, and its rows without training are tested."""

import argparse
import re

import pytest
from mmengine.registry import MODELS

import mmattn.registry  # noqa: F401
from mmattn.engine import add_config_options, load_config
from mmattn.language.layers.entangled_attention import MODES
from mmattn.utils import config_path

CONFIG = config_path('eta/eta_1xb15-15e_coco-captions.py')
TINY = ['vocab_size=20', 'num_features=8', 'num_layers=1', 'embed_dim=8', 'num_heads=2', 'feedforward_dim=8']


def options():
    """The options beside a figure of the paper, in the tables of the page."""
    page = config_path('eta/README.md').read_text(encoding='utf-8').split('\n## ')[1]
    return re.findall(r'\| \d+\.\d+ \| `([^`]+=[^`]+)` \|', page)


def resolved(words):
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    return load_config(CONFIG, parser.parse_args(['--cfg-options', *words]).cfg_options)


@pytest.mark.parametrize('words', options())
def test_an_option_of_the_page_builds_its_row(words):
    cfg = resolved([*words.split(), *(f'model.{word}' for word in TINY)])
    model = MODELS.build(cfg.model)
    name, value = words.split()[-1].split('=')
    if name == 'model.sources':
        assert hasattr(model, 'visual_encoder') == (value == 'visual')
        return
    if 'oracle' in name:
        dataset = cfg.test_dataloader.dataset
        assert (dataset.attributes, dataset.oracle_attributes) == (None, True)
        return
    attention = model.decoder.layers[0].cross_attention
    if name.endswith('mode'):
        assert tuple(attention.sublayers) == MODES[value]
    else:
        assert attention.controller.activation == value


def test_the_page_has_the_rows_of_the_ablations():
    named = {words.rpartition('=')[2] for words in options()}
    assert named == {'visual', 'semantic', 'True', 'sigmoid', 'tanh', 'relu', 'identity', *MODES} - {'entangled'}
