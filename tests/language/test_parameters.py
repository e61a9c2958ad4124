"""Models have as many parameters as papers print, or as their formulas say."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmattn.registry import MODELS
from mmattn.utils import config_path

from .vqa.test_heads import FG, GATE, HADAMARD, NE

NG_SAN = dict(type='mmattn.RegionAttention', query_norm='instance', geometry='query_dependent', geometry_dim=64)
BILATERAL = dict(type='mmattn.BilateralMultiheadAttention', window_size=21)
ENSEMBLE = {name: NE[name] for name in ('query_activation', 'value_activation')}


def captioner(name, **options):
    return dict(type=f'mmattn.{name}Captioner', vocab_size=9488, **options)


def translator(size, attention=None, **options):
    if attention is not None:
        options |= dict(encoder_attention=attention, decoder_attention=attention)
    return dict(type='mmattn.TranslationTransformer', vocab_size=1000, size=size, **options)


def fusion_head(fusion, **options):
    sizes = dict(question_dim=2400, region_dim=2048, num_answers=2000)
    return dict(type='mmattn.FusionHead', fusion=dict(type=HADAMARD, **fusion), **sizes, **options)


def ban(name, **head):
    """With the vocabulary of the paper, 19,901 words and padding."""
    cfg = Config.fromfile(config_path(f'ban/{name}.py'))
    cfg.model.vocab_size = 19_902
    cfg.model.head.update(head)
    return cfg.model


def mcan(geometry):
    return dict(
        type='mmattn.MCAN', vocab_size=1000, region_attention=dict(type='mmattn.RegionAttention', geometry=geometry)
    )


COUNTS = [
    # the printed 18.1, 25.5, 40.2 and 54.9 M
    *((captioner('SAN', num_layers=n), n * 7_356_416 + 10_774_288) for n in (1, 2, 4, 6)),
    (captioner('SAN', num_layers=4, stack='Torch'), 40_199_952),
    (captioner('SAN', encoder_attention=NG_SAN), 40_199_952 + 4 * (512**2 + 832)),
    (captioner('ETA'), 97_478_416),
    (captioner('ETA', sources='visual'), 54_912_784),
    (captioner('ETA', sources='semantic'), 53_863_696),
    # beside the embedding; Bi-SA adds two linear layers, with 21 and 11 entries and pad 0
    *(
        (translator(size, **options), 1000 * width + plain + bilateral * ('attention' in options))
        for size, width, plain, bilateral in (
            ('iwslt', 512, 31_543_296, 3_545_856),
            ('base', 512, 44_138_496, 3_939_840),
            ('big', 1024, 176_357_376, 15_744_000),
        )
        for options in ({}, dict(stack='Torch'), dict(attention=BILATERAL))
    ),
    *((fusion_head(fusion), 8_379_912) for fusion in ({}, ENSEMBLE, FG, ENSEMBLE | FG)),
    (fusion_head(dict(GATE, squash=('identity',) * 4 + ('tanh',))), 8_379_912),
    (fusion_head({}, pooled_dim=310), 6_954_222),
    (fusion_head(NE | FG), 8_379_912 + 2 * 5 * 295_420),
    # words, LSTM, regions, 6 + 6 layers, two poolings, norm and classifier; GSA adds Q' and W to each region layer
    (mcan(None), 51_640_891 + 1000 * 300),
    (mcan('query_dependent'), 51_640_891 + 1000 * 300 + 6 * 262_976),
    (ban('unitary_1xb512-13e_vqa2'), 31_864_297),
    (ban('co-attention_1xb512-13e_vqa2'), 32_520_684),
    *((ban('ban-4_1xb512-13e_vqa2', mode=mode), 44_799_734) for mode in ('residual', 'sum')),
    (ban('ban-4_1xb512-13e_vqa2', mode='concat'), 51_091_190),
    *((ban('ban-4_1xb512-13e_vqa2', num_glimpses=n), 32_198_378 + (n - 1) * 4_200_452) for n in (1, 2, 12)),
    # f1 … f8 of the counter lack the weights that are fixed at 0
    (ban('ban-8-glove-counter_1xb512-13e_vqa2-trainval-genome'), 90_618_430 - 8),
]


def build(model):
    init_default_scope('mmengine')
    with torch.device('meta'):
        return MODELS.build(model)


@pytest.mark.parametrize(('model', 'expected'), COUNTS)
def test_parameters_are_those_of_the_paper(model, expected):
    assert sum(p.numel() for p in build(model).parameters()) == expected


def test_parameters_of_parts():
    """The attention of MUTAN, and the published GRU, of 2,400 channels."""
    head, gru = build(fusion_head({})), build(dict(type='mmattn.SkipThoughtEncoder', vocab_size=10))
    attention = torch.nn.ModuleList([head.attention_query, head.attention_value, head.attention_fusion, head.glimpses])
    assert sum(p.numel() for p in attention.parameters()) == 2_966_622
    assert gru.embed_dim == 2400
    assert sum(p.numel() for p in gru.gru.parameters()) == 21_758_400
