"""Options that make no sense: each is an error that names the argument and what came, before a layer is built."""

import math

import pytest
from mmengine.registry import MODELS

COUNTS = [0, -1, 2.0, '2', True]
LENGTHS = ['31', '3', 0, -1, 3.0, True, (3, '3')]
NUMBERS = [math.nan, math.inf, '1', True]
HEADS = [*COUNTS, 3, 16]  # of 8 channels
PLAIN = dict(in_channels=8)
VIDEO = dict(embed_dims=8)
HEAD = dict(in_channels=8, channels=8, num_classes=2)
CONV = dict(in_channels=8, out_channels=8, kernel_size=3, padding=1)
GRID = dict(type='mmattn.GridAttention3d', num_heads=2)
# layer, its other arguments, and for each argument what is wrong
WRONG = [
    ('BilateralNonLocal2d', PLAIN, dict(reduction=COUNTS, window_size=LENGTHS, in_channels=COUNTS)),
    ('BilateralNonLocal2d', dict(PLAIN, position='relative'), dict(max_offset=[-1, '3', 1.5, None])),
    ('BilateralCrissCrossAttention', PLAIN, dict(reduction=COUNTS, window_size=LENGTHS, in_channels=COUNTS)),
    ('BilateralCrissCrossAttention', dict(PLAIN, position='relative'), dict(max_offset=[-1, '3', 1.5, None])),
    (
        'BilateralMultiheadAttention',
        dict(embed_dim=8, num_heads=2),
        dict(num_heads=HEADS, window_size=LENGTHS, embed_dim=COUNTS),
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
        dict(groups=HEADS, kernel_size=LENGTHS, in_channels=COUNTS),
    ),
    (
        'TransformerAttention2d',
        PLAIN,
        dict(num_heads=HEADS, spatial_range=LENGTHS, position_dim=COUNTS, wavelength=[*NUMBERS, 0, -1.0]),
    ),
    (
        'TransformerAttention1d',
        dict(embed_dim=8, num_heads=2),
        dict(num_heads=HEADS, spatial_range=LENGTHS, embed_dim=COUNTS, terms=['0000', '111', '0120', 1111]),
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
    ('GridAttention3d', VIDEO, dict(num_heads=HEADS, scale=NUMBERS, max_offset=[-1, '3'], max_frames=COUNTS)),
    ('StridedAttention3d', VIDEO, dict(num_heads=HEADS, scale=NUMBERS, step=[*LENGTHS, (1, 2)], max_frames=COUNTS)),
    (
        'VideoTransformerLayer',
        dict(VIDEO, attention=GRID),
        dict(embed_dims=COUNTS, feedforward_channels=COUNTS, dropout=[*NUMBERS, -0.1, 1.1]),
    ),
    ('BiCCHead', HEAD, dict(recurrence=COUNTS, window_size=LENGTHS)),
    ('BiNLHead', HEAD, dict(reduction=COUNTS, window_size=LENGTHS)),
]


ARGUMENTS = [(layer, others, name, values) for layer, others, arguments in WRONG for name, values in arguments.items()]


# Two wrong values an argument. They differ from argument to argument, as the arguments of a kind share their check.
@pytest.mark.parametrize(
    ('layer', 'others', 'name', 'value'),
    [
        pytest.param(layer, others, name, value, id=f'{layer}-{name}-{value!r}')
        for number, (layer, others, name, values) in enumerate(ARGUMENTS)
        for value in [*values, *values][number % len(values) :][:2]
    ],
)
def test_the_error_names_the_argument(layer, others, name, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        MODELS.build({**others, 'type': f'mmattn.{layer}', name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
