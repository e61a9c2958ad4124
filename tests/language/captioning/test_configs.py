"""Shipped configs of captioning: what their names say, dropout, captions, operations, and the options of ETA's page."""

import argparse
import re
import shutil

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS

from mmattn.engine import add_config_options, load_config
from mmattn.language.layers.entangled_attention import MODES
from mmattn.language.text.vocabulary import PAD
from mmattn.registry import DATASETS
from mmattn.utils import config_path
from mmattn.utils.complexity import count

from ...test_configs import CAPTIONS
from ...tiny_data import FEATURES, WORDS
from ..files import read_json, write_json

TINY = dict(
    vocab_size=4 + len(WORDS), num_features=FEATURES, num_layers=1, embed_dim=16, num_heads=2, feedforward_dim=24
)


@pytest.mark.parametrize('name', CAPTIONS)
def test_the_config_is_that_of_its_name(name):
    """Stage, attention and size; the learning rate is defined for every iteration."""
    cfg = Config.fromfile(config_path(name))
    method, data = re.fullmatch(r'\w+/([\w-]+?)_(?:small_)?1xb\d+(?:-scst)?-\d+e_([\w-]+)\.py', name).groups()
    assert data.split('-')[0].upper() in cfg.train_dataloader.dataset.data_root.upper()
    steps = cfg.param_scheduler[-1]
    assert 'end' not in steps
    assert max(steps.get('milestones', [0])) < cfg.train_cfg.max_epochs
    models = cfg.model.get('members', [cfg.model])
    critical = ['self_critical' in model for model in models]
    assert critical == ['-scst-' in name] * len(models)
    assert [hook.type for hook in cfg.get('custom_hooks', [])] == ['mmattn.SelfCriticalHook'] * critical[0]
    members = re.search(r'ensemble-?(\d*)$', method)
    assert len(models) == (int(members[1] or 2) if members else 1)
    for model in models:
        assert model.embed_dim == (128 if '_small_' in name else 512)
        assert ('attributes' in cfg.train_dataloader.dataset) == (model.type == 'mmattn.ETACaptioner')
        if name.startswith('ng_san/'):
            attention = model.encoder_attention
            assert attention.get('query_norm') == ('instance' if method.startswith(('n-', 'ng-')) else None)
            assert attention.get('geometry') == ('query_dependent' if method.startswith(('g-', 'ng-')) else None)
            assert model.get('stack', 'Sequence') == ('Torch' if method == 'torch' else 'Sequence')
            assert model.get('positions', 'none') == ('sinusoidal' if data == 'vatex' else 'none')


@pytest.mark.parametrize(
    ('name', 'dropout'), [('san_1xb10-15e_coco-captions', 0.1), ('san_small_1xb10-10e_flickr8k', 0)]
)
def test_attention_weights_of_the_decoder_are_dropped_as_in_the_paper(name, dropout):
    """NG-SAN follows Transformer-Base with dropout 0.1; the small configs are as they were measured."""
    cfg = Config.fromfile(config_path(f'ng_san/{name}.py'))
    for layer in MODELS.build(dict(cfg.model, **TINY)).decoder.layers:
        assert layer.self_attention[0].dropout == layer.cross_attention.dropout == dropout


def test_vatex_has_ten_captions_of_up_to_30_words(tiny_data, tmp_path, monkeypatch):
    root = shutil.copytree(tiny_data['VATEX_ROOT'], tmp_path / 'vatex')
    path = root / 'vatex_training_v1.0.json'
    videos = read_json(path)
    videos[0]['enCap'] = [' '.join([word] * count) for word in WORDS[:2] for count in (1, 16, 17, 30, 31)]
    write_json(path, videos)
    monkeypatch.setenv('VATEX_ROOT', str(root))
    cfg = Config.fromfile(config_path('ng_san/n-san-vatex_1xb10-scst-15e_vatex.py'))
    captions = DATASETS.build(cfg.train_dataloader.dataset)[0]['inputs']['captions']
    assert sorted((captions != PAD).sum(1).tolist()) == sorted([2, 17, 18, 31, 31] * 2)  # with </s>
    assert cfg.model.test_cfg == dict(beam=3, max_length=30)


def test_operations_are_those_of_the_matrix_products():
    """Of N regions, M attributes and T words; a causal layer counts all pairs, as torch's layers do."""
    n, m, t, d, f, v, channels, heads, geometry = 36, 20, 16, 128, 256, 2269, 128, 4, 64
    regions, attributes = (4 * d * d * k + 2 * k * k * d + 2 * d * f * k for k in (n, m))
    to_regions, to_attributes = (2 * d * d * (t + k) + 2 * k * t * d for k in (n, m))
    decoder = 4 * d * d * t + 2 * t * t * d + to_regions + 2 * d * f * t
    expected = channels * d * n + 2 * (regions + decoder) + v * d * t
    found = {}
    for name in ('ng_san/san', 'ng_san/torch', 'ng_san/n-san', 'ng_san/g-san', 'eta/eta-visual', 'eta/eta'):
        cfg = Config.fromfile(config_path(f'{name}_small_1xb10-10e_flickr8k.py'))
        found[name.split('/')[1]] = count(cfg, (3, n, t))
    assert found['san'][1] == expected
    assert found['san'] == found['torch'] == found['n-san'] == found['eta-visual']
    # G of all pairs, Q', and their products.
    added = 4 * geometry * n * n + d * heads * geometry * n + heads * geometry * n * n
    weights = 4 * geometry + geometry + (d + 1) * heads * geometry
    assert found['g-san'] == (found['san'][0] + 2 * weights, expected + 2 * added)
    # A second encoder; in each layer of the decoder three more attentions with their norms, and the gate.
    added = attributes + to_regions + 2 * to_attributes + 3 * d * d * t
    weights = (4 * d * d + 9 * d + 2 * d * f + f) + 3 * (4 * d * d + 6 * d) + 3 * d * d + d
    assert found['eta'] == (found['eta-visual'][0] + 2 * weights, expected + 2 * added)


ETA = config_path('eta/eta_1xb15-15e_coco-captions.py')
ETA_TINY = ['vocab_size=20', 'num_features=8', 'num_layers=1', 'embed_dim=8', 'num_heads=2', 'feedforward_dim=8']


def options():
    """The options beside a figure of the paper, in the tables of the page."""
    page = config_path('eta/README.md').read_text(encoding='utf-8').split('\n## ')[1]
    return re.findall(r'\| \d+\.\d+ \| `([^`]+=[^`]+)` \|', page)


def resolved(words):
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    return load_config(ETA, parser.parse_args(['--cfg-options', *words]).cfg_options)


@pytest.mark.parametrize('words', options())
def test_an_option_of_the_page_builds_its_row(words):
    cfg = resolved([*words.split(), *(f'model.{word}' for word in ETA_TINY)])
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
