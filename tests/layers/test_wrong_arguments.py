"""Options that make no sense: each is an error that names the argument and what came, before a layer is built."""

import math

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

COUNTS = [0, -1, 2.0, '2', True]
LENGTHS = ['31', '3', 0, -1, 3.0, True, (3, '3')]
POSITIONS = dict(position=['absolute', 0], padding=['one', 1], smoothing=['sqrt', 0], content_smoothing=[-1.0, 0])
NUMBERS = [math.nan, math.inf, '1', True]
HEADS = [*COUNTS, 3, 16]  # of 8 channels
PLAIN = dict(in_channels=8)
VIDEO = dict(embed_dims=8)
HEAD = dict(in_channels=8, channels=8, num_classes=2)
CONV = dict(in_channels=8, out_channels=8, kernel_size=3, padding=1)
GRID = dict(type='mmattn.GridAttention3d', num_heads=2)
# layer, its other arguments, and for each argument what is wrong
WRONG = [
    ('BilateralNonLocal2d', PLAIN, dict(POSITIONS, reduction=COUNTS, window_size=LENGTHS, in_channels=COUNTS)),
    ('BilateralNonLocal2d', dict(PLAIN, position='relative'), dict(max_offset=[-1, '3', 1.5, None])),
    ('BilateralCrissCrossAttention', PLAIN, dict(POSITIONS, reduction=COUNTS, window_size=LENGTHS, in_channels=COUNTS)),
    ('BilateralCrissCrossAttention', dict(PLAIN, position='relative'), dict(max_offset=[-1, '3', 1.5, None])),
    (
        'BilateralMultiheadAttention',
        dict(embed_dim=8, num_heads=2),
        dict(POSITIONS, num_heads=HEADS, window_size=LENGTHS, embed_dim=COUNTS),
    ),
    (
        'LocalBilateralAttention',
        PLAIN,
        dict(
            num_heads=HEADS,
            kernel_size=LENGTHS,
            dilation=COUNTS,
            iterations=COUNTS,
            scale=NUMBERS,
            out_channels=COUNTS,
            in_channels=COUNTS,
        ),
    ),
    ('BAConv2d', CONV, dict(num_heads=HEADS, kernel_size=LENGTHS[:-2], dilation=COUNTS, in_channels=COUNTS)),
    (
        'DynamicConv2d',
        dict(PLAIN, kernel_size=3, groups=2),
        dict(groups=HEADS, kernel_size=[*LENGTHS, 4, (3, 2)], in_channels=COUNTS),
    ),
    (
        'TransformerAttention2d',
        PLAIN,
        dict(
            num_heads=HEADS,
            spatial_range=[*LENGTHS, 4],
            position_dim=[*COUNTS, 3],
            wavelength=[*NUMBERS, 0, -1.0],
            terms=['012', '0120', '11111', 1111],
        ),
    ),
    (
        'TransformerAttention1d',
        dict(embed_dim=8, num_heads=2),
        dict(num_heads=HEADS, spatial_range=LENGTHS, embed_dim=COUNTS, terms=['111', '0120', 1111]),
    ),
    (
        'DynamicConv1d',
        dict(embed_dim=8, num_heads=2),
        dict(num_heads=HEADS, kernel_size=[*LENGTHS, 4], embed_dim=COUNTS),
    ),
    ('DeformConv1d', dict(embed_dim=8), dict(kernel_size=[*LENGTHS, 4], embed_dim=COUNTS)),
    (
        'RegionAttention',
        dict(embed_dim=8, num_heads=2),
        dict(
            num_heads=HEADS,
            embed_dim=COUNTS,
            geometry_dim=COUNTS,
            dropout=[*NUMBERS, -0.1, 1.1],
            query_norm=['group', 0],
            key_norm=['group', True],
            geometry=['phi', ['phi'], ['key_dependent'] * 2],
            is_causal=[True],
        ),
    ),
    (
        'EntangledAttention',
        dict(embed_dim=8, num_heads=2),
        dict(num_heads=HEADS, embed_dim=COUNTS, mode=['stacked', 0], dropout=[*NUMBERS, -0.1, 1.1]),
    ),
    ('GatedBilateralController', dict(embed_dim=8), dict(embed_dim=COUNTS, activation=['linear', 0])),
    (
        'GridAttention3d',
        VIDEO,
        dict(num_heads=HEADS, scale=NUMBERS, max_offset=[-1, '3'], max_frames=COUNTS, wavelength=[*NUMBERS, 0, -1.0]),
    ),
    ('StridedAttention3d', VIDEO, dict(num_heads=HEADS, scale=NUMBERS, step=[*LENGTHS, (1, 2)], max_frames=COUNTS)),
    (
        'VideoTransformerLayer',
        dict(VIDEO, attention=GRID),
        dict(embed_dims=COUNTS, feedforward_channels=COUNTS, dropout=[math.nan, True]),  # torch refuses -0.1 and 1.1
    ),
    ('BiCCHead', HEAD, dict(recurrence=COUNTS, window_size=LENGTHS)),
    ('BiNLHead', HEAD, dict(reduction=COUNTS, window_size=LENGTHS)),
]


GROUP_NORM = dict(type='GN', num_groups=2)
LOCAL = ('LocalBilateralAttention', dict(PLAIN, num_heads=2))
# A layer, its arguments, what does not go together with them, and the argument that the error names.
TOGETHER = [
    *(
        (layer, {**others, **wrong}, name)
        for layer, others in (('BilateralNonLocal2d', PLAIN), ('BilateralCrissCrossAttention', PLAIN))
        for wrong, name in (
            (dict(padding='neg_inf', smoothing='zscore'), 'smoothing'),
            (dict(padding='neg_inf', smoothing='sqrt_dim', zero_init=True), 'zero_init'),
        )
    ),
    ('BilateralMultiheadAttention', dict(embed_dim=8, num_heads=2, padding='neg_inf', smoothing='zscore'), 'smoothing'),
    ('BilateralNonLocal2d', dict(PLAIN, mode='dot_product'), 'mode'),
    ('BilateralNonLocal2d', dict(PLAIN, mode='gaussian', position='relative'), 'mode'),
    ('BilateralNonLocal2d', dict(PLAIN, mode='dot_product', position='none', content_smoothing=2.0), 'mode'),
    ('BilateralNonLocal2d', dict(PLAIN, sub_sample=True), 'sub_sample'),
    *(
        (LOCAL[0], {**LOCAL[1], **wrong}, next(iter(wrong)))
        for wrong in (
            dict(content=False, geometric=False),
            dict(factorised=True, geometric=False),
            dict(late_fusion=True, content=False),
            dict(late_fusion=True, geometric=False),
            dict(matching='same', share=True),
            dict(matching='same', content=False),
            dict(iterations=2),
            dict(iterations=2, share=True, content=False),
            *(dict(norm_cfg=dict(GROUP_NORM, type=kind)) for kind in ('GN', 'mmengine.GN', nn.GroupNorm)),
        )
    ),
    *(
        ('BAConv2d', dict(in_channels=4, out_channels=6, kernel_size=3, **wrong), name)
        for wrong, name in (
            ({}, 'padding'),
            (dict(padding=1, dilation=2), 'padding'),
            (dict(padding=(2, 1), dilation=(2, 1)), 'dilation'),
            (dict(padding=1, num_heads=4), 'num_heads'),
        )
    ),
    ('BAConv2d', dict(in_channels=4, out_channels=6, kernel_size=2, padding=1), 'kernel_size'),
    *(('BAConv2d', dict(CONV, dilation=dilation), 'dilation') for dilation in (0, 2.0, (1, 0))),
    *(
        (layer, {**VIDEO, 'num_heads': 2, **wrong}, next(reversed(wrong)))
        for layer in ('GridAttention3d', 'StridedAttention3d')
        for wrong in (
            dict(spatial_position='absolute'),
            dict(temporal_position='learned'),
            dict(spatial_position='none', temporal_position='relative'),
            dict(clip_offset=97),
            dict(clip_offset=(1, 2, 3)),  # time has no relative encoding
        )
    ),
    *((layer, dict(embed_dims=9, num_heads=3), 'channels') for layer in ('GridAttention3d', 'StridedAttention3d')),
    *(('StridedAttention3d', dict(VIDEO, local_pattern=pattern), 'pattern') for pattern in ('strided', 'cube')),
    ('VideoTransformerLayer', dict(VIDEO, attention=GRID, query='video'), 'query'),
    ('TransformerAttention2d', dict(PLAIN, position_dim=3), 'position_dim'),
    *(('TransformerAttention2d', dict(PLAIN, wavelength=number), 'wavelength') for number in NUMBERS),
    *(
        ('TransformerAttention2d', {**PLAIN, 'spatial_range': 3, name: 2}, 'spatial_range')
        for name in ('q_stride', 'kv_stride')
    ),
    *(('TransformerAttention2d', {**PLAIN, name: 0}, name) for name in ('q_stride', 'kv_stride')),
    ('TransformerAttention2d', dict(PLAIN, query_bias=True), 'norm_cfg'),
    *(('TransformerAttention1d', dict(embed_dim=9, num_heads=3, terms=terms), 'even') for terms in ('0100', '0001')),
    ('AttendedResidual', dict(PLAIN, attention=nn.Conv2d(8, 8, 1)), 'attention'),
    *(
        (layer, {**arguments, **wrong}, name)
        for layer, arguments in (
            ('BilateralNonLocal2d', PLAIN),
            ('BilateralCrissCrossAttention', PLAIN),
            ('BilateralMultiheadAttention', dict(embed_dim=8, num_heads=2)),
        )
        for wrong, name in (
            (dict(position=dict(window_size=5), window_size=3), 'window_size'),
            (dict(position=dict(type='relative', max_offset=5), window_size=3, max_offset=5), 'max_offset'),
            (dict(position=dict(type='none', window=5)), 'window'),
            (dict(position='none', window=5), 'window'),  # not even if nothing reads it
            (dict(position=dict(type='absolute')), 'absolute'),
            *((dict(position=kind, pading='zero'), 'pading') for kind in ('bilateral', 'relative', 'none')),
            *((dict(position=dict(type=kind, pading='zero')), 'pading') for kind in ('bilateral', 'relative', 'none')),
        )
    ),
]


# Options that a constructor passes on.
TOGETHER += [
    (layer, arguments | {'unheard_of': 1}, 'unheard_of')
    for layer, arguments in (
        ('StridedAttention3d', dict(VIDEO, num_heads=2)),
        ('BAConv2d', dict(CONV, num_heads=2)),
        ('BANHead', dict(question_dim=8, region_dim=6, num_answers=3)),
        ('CoAttentionHead', dict(question_dim=8, region_dim=6, num_answers=3)),
    )
]


def constructors():
    """Yield a layer, wrong arguments, and what the error names: an argument, and its value where it alone is wrong.

    Of each argument there are two wrong values. They differ from argument to argument, as the arguments of a kind share
    their check.
    """
    arguments = [(layer, others, name, values) for layer, others, wrong in WRONG for name, values in wrong.items()]
    for number, (layer, others, name, values) in enumerate(arguments):
        for value in [*values, *values][number % len(values) :][:2]:
            yield layer, {**others, name: value}, (name, repr(value))
    for layer, together, name in TOGETHER:
        yield layer, together, (name,)


@pytest.mark.parametrize('layer', sorted({layer for layer, *_ in constructors()}))
def test_the_error_names_the_argument(layer):
    for name, arguments, named in constructors():
        if name == layer:
            with pytest.raises((TypeError, ValueError)) as caught:
                MODELS.build({**arguments, 'type': f'mmattn.{layer}'})
            assert [x for x in named if x not in str(caught.value)] == [], arguments


MAP, SEQUENCE, CLIP = torch.zeros(1, 8, 4, 5), torch.zeros(2, 6, 8), torch.zeros(1, 3, 4, 5, 8)
NUMBERED, SHORT = torch.arange(3)[None], torch.arange(2)[None]
NON_LOCAL, MULTIHEAD = ('BilateralNonLocal2d', PLAIN), ('BilateralMultiheadAttention', dict(embed_dim=8, num_heads=2))
WITHOUT = ('BilateralNonLocal2d', dict(PLAIN, position='none'))
PRODUCT = ('BilateralNonLocal2d', dict(PLAIN, position='none', mode='dot_product'))
TERMS = ('TransformerAttention2d', dict(PLAIN, terms='1010'))
VIDEOS = [(layer, dict(VIDEO, num_heads=2)) for layer in ('GridAttention3d', 'StridedAttention3d')]
AT = dict(queries=torch.tensor([[0, 0]]))
# A layer, inputs of `forward`, or of `attention_weights` if there are queries, and the argument that the error names.
CALLS = [
    (NON_LOCAL, (MAP,), dict(AT, kind='all'), 'kind'),
    (WITHOUT, (MAP,), dict(AT, kind='position'), 'kind'),
    (WITHOUT, (MAP,), dict(AT, kind='bilateral'), 'kind'),
    (NON_LOCAL, (MAP,), dict(queries=torch.tensor([[4, 0]]), kind='content'), 'queries'),
    (PRODUCT, (MAP,), dict(AT, kind='content'), 'mode'),
    (TERMS, (MAP,), dict(AT, kind='position'), 'kind'),
    (MULTIHEAD, (SEQUENCE, SEQUENCE[:, :5], SEQUENCE[:, :5]), {}, 'key'),
    (MULTIHEAD, (SEQUENCE,) * 3, dict(need_weights=True), 'need_weights'),
    (MULTIHEAD, (SEQUENCE,) * 3, dict(is_causal=True), 'is_causal'),
    *(
        (MULTIHEAD, (SEQUENCE,) * 3, dict(key_padding_mask=mask), 'key_padding_mask')
        for mask in (torch.zeros(2, 5).bool(), torch.zeros(1, 6), torch.zeros(2, 6).long())
    ),
    *((video, (CLIP,), {}, 'frame_numbers') for video in VIDEOS),
    *((video, (CLIP, None, SHORT), {}, 'frame_numbers') for video in VIDEOS),
    # the shape of the query, then the shape of the key
    *((video, (CLIP, CLIP[:, :2], NUMBERED), {}, r'\(1, 3, 4, 5, 8\) and \(1, 2, 4, 5, 8\)') for video in VIDEOS),
    *((video, (CLIP[..., :6], None, NUMBERED), {}, 'H, W') for video in VIDEOS),
]


@pytest.mark.parametrize(('layer', 'inputs', 'options', 'name'), CALLS)
def test_wrong_calls(layer, inputs, options, name):
    layer = MODELS.build({**layer[1], 'type': f'mmattn.{layer[0]}'})
    with pytest.raises((TypeError, ValueError), match=name):
        (layer.attention_weights if 'queries' in options else layer)(*inputs, **options)
