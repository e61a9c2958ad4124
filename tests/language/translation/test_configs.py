"""Shipped configs of translation: schedule, attention, learning rates and operations."""

import re

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper

from mmattn.registry import MODELS
from mmattn.utils import config_path
from mmattn.utils.complexity import count

from ...test_configs import TEXT

IWSLT = 'bi_sa/{}_iwslt_1xb4000-50k_iwslt14-de-en.py'
TERMS = 'attention_terms_nmt/{}_base_8xb3750-100k_wmt14-en-de.py'


@pytest.mark.parametrize('name', ['attn1111-deform', 'wo-deform'])
def test_offsets_learn_at_a_tenth_of_the_rate(name):
    """Footnote 2 of the study, in encoder and decoder."""
    cfg = Config.fromfile(config_path(TERMS.format(name)))
    cfg.model.update(size='tiny', vocab_size=10)
    model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group['lr'] for group in groups for p in group['params']}
    offsets = [name for name in rates if '.offset.' in name]
    assert len(offsets) == 2 * 8  # weight and bias of each layer
    assert {name: 1e-4 if name in offsets else 1e-3 for name in rates} == pytest.approx(rates)


@pytest.mark.parametrize('name', TEXT)
def test_schedule_and_attention_are_those_of_the_name(name):
    """The learning rate is defined for every iteration."""
    cfg = Config.fromfile(config_path(name))
    length, counts = cfg.train_cfg.max_iters, cfg.optim_wrapper.get('accumulative_counts', 1)
    updates = re.search(r'_\d+xb\d+-(\d+)k_', name)
    assert updates is None or length == 1000 * int(updates[1]) * counts
    assert cfg.param_scheduler[-1].get('end', length) == length
    interval = cfg.default_hooks.checkpoint.interval
    assert length % counts == interval % counts == cfg.train_cfg.val_interval % interval == 0
    assert cfg.default_hooks.checkpoint.save_best == 'BLEU'
    assert cfg.val_evaluator == cfg.test_evaluator
    assert cfg.val_evaluator.get('compound_split', False) == name.endswith('wmt14-en-de.py')

    method = name.split('/')[1].split('_')[0]
    encoder, decoder = (cfg.model.get(f'{part}_attention') or {} for part in ('encoder', 'decoder'))
    if method == 'bi-sa':
        assert encoder == decoder == dict(type='mmattn.BilateralMultiheadAttention', window_size=21)
    if method.startswith('attn0'):
        assert encoder.terms == decoder.terms == method[4:8]
        assert cfg.model.cross_attention.terms == '1111'
    if method == 'dynamic-conv':
        sizes = [
            [layer.self_attention.kernel_size for layer in cfg.model[f'{part}_layers']]
            for part in ('encoder', 'decoder')
        ]
        assert sizes == [[3, 7, 15, 31, 31, 31, 31], [3, 7, 15, 31, 31, 31]]
    no_sinusoids = method.startswith(('sa-rpe', 'attn', 'dynconv', 'wo'))
    assert cfg.model.get('positions', 'sinusoidal') == ('none' if no_sinusoids else 'sinusoidal')


def in_both(option, value, layer=''):
    return {f'model.{part}_attention{layer}.{option}': value for part in ('encoder', 'decoder')}


def deformed(terms):
    return 'attn1111-deform', in_both('terms', terms, '.1')


# The paper's G multiply-accumulates, Tables 2 and 3; rows of one figure have one entry.
PUBLISHED = {
    'w/o': (1.7, 'wo', {}),
    'w/o + deformable': (2.2, 'wo-deform', {}),
    **{terms: (2.7, 'attn1111', in_both('terms', terms)) for terms in ('1111', '1100', '0111')},
    '0100': (2.6, 'attn1111', in_both('terms', '0100')),
    '1111 + deformable': (3.2, *deformed('1111')),
    '1001 + deformable': (3.2, *deformed('1001')),
    '1000 + deformable': (2.9, *deformed('1000')),
    '0011 + deformable': (3.0, *deformed('0011')),
    '0010 + deformable': (2.7, *deformed('0010')),
    '0001 + deformable': (2.9, *deformed('0001')),
    '0100, n_k = 31': (2.4, 'attn0100-nk31', {}),
    '0100, n_k = 13': (2.3, 'attn0100-nk31', in_both('spatial_range', 13)),
    'dynamic, n_k = 31': (2.4, 'dynconv31', {}),
    'dynamic, n_k = 13': (2.3, 'dynconv31', in_both('kernel_size', 13)),
}


@pytest.mark.parametrize('row', PUBLISHED)
def test_published_operations(row):
    """With 50 + 50 tokens and without the output layer, within the 0.1 G to which the paper prints; as on the page."""
    published, name, options = PUBLISHED[row]
    cfg = Config.fromfile(config_path(TERMS.format(name)))
    cfg.merge_from_dict(options)
    ours = (count(cfg, (3, 50, 50))[1] - 50 * 512 * 32768) / 1e9
    assert abs(ours - published) < 0.1
    page = config_path('attention_terms_nmt/README.md').read_text(encoding='utf-8')
    [line] = re.findall(rf'^\| [^|]*\b{row.split(" + ")[0]}(?!, n_k)[^|]*\|.*base_8x.*$', page, re.MULTILINE)
    regular, _, deformable = line.split('|')[4].partition('/')
    assert f'{ours:.2f}' == (deformable if 'deformable' in row else regular).strip()


def test_operations_are_those_of_the_matrix_products():
    """Of source length M and target length L; a causal layer counts all pairs, as torch's layers do."""
    m, n, d, f, v = 25, 20, 128, 256, 5036
    encoder = 4 * d * d * m + 2 * m * m * d + 2 * d * f * m
    own, cross = 4 * d * d * n + 2 * n * n * d, 2 * d * d * (n + m) + 2 * n * m * d
    expected = 4 * (encoder + own + cross + 2 * d * f * n) + v * d * n
    found = {}
    for method in ('sa', 'torch', 'bi-sa'):
        cfg = Config.fromfile(config_path(f'bi_sa/{method}_tiny_1xb4096_multi30k-en-de.py'))
        found[method] = count(cfg, (3, m, n))
    assert found['sa'][1] == expected
    # Bi-SA adds two linear layers: to d channels, and to the entries of 4 heads.
    added = 4 * (d * d * (m + n) + d * 4 * (21 * m + 11 * n))
    assert found['bi-sa'] == (found['sa'][0] + 4 * (2 * (d * d + d) + (d + 1) * 4 * (21 + 11)), expected + added)
    assert found['torch'][0] == found['sa'][0]
