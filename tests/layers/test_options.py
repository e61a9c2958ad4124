"""Options that a constructor passes on: type checkers know those that are taken, and another one is an error."""

from inspect import signature

import pytest
from mmengine.dataset import BaseDataset

from mmattn import layers
from mmattn.layers.ba_conv2d import BilateralOptions
from mmattn.layers.multihead_attention_3d import EncodingOptions, MultiheadAttention3d
from mmattn.layers.positions import PositionOptions
from mmattn.registry import MODELS
from mmattn.video.datasets import FolderOptions, VideoFolderDataset, VideoOptions


def with_defaults(function):
    return {name for name, x in signature(function).parameters.items() if x.default is not x.empty}


def test_options_for_type_checkers_are_those_that_are_taken():
    assert {*EncodingOptions.__annotations__} == with_defaults(MultiheadAttention3d) - {'num_heads'}
    assert {*BilateralOptions.__annotations__} <= with_defaults(layers.LocalBilateralAttention)
    of_clips = with_defaults(VideoFolderDataset)
    assert {*FolderOptions.__annotations__} == with_defaults(BaseDataset) - of_clips
    own = {*VideoOptions.__annotations__} - {*FolderOptions.__annotations__}
    assert own == of_clips - {'ann_file', 'allow_gaps'}
    for kind in (layers.BilateralNonLocal2d, layers.BilateralCrissCrossAttention):
        assert {*kind.position_options} == {*PositionOptions.__annotations__}


@pytest.mark.parametrize('position', ['bilateral', 'relative', 'none'])
@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('BilateralNonLocal2d', dict(in_channels=8)),
        ('BilateralCrissCrossAttention', dict(in_channels=8)),
        ('BilateralMultiheadAttention', dict(embed_dim=8, num_heads=2)),
    ],
)
def test_an_unknown_option_of_positions_is_an_error(name, options, position):
    """Also where the position would not read it."""
    for wrong in (dict(position=position, pading='zero'), dict(position=dict(type=position, pading='zero'))):
        with pytest.raises(TypeError, match='pading'):
            MODELS.build(dict(options, type=f'mmattn.{name}', **wrong))


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('StridedAttention3d', dict(embed_dims=8, num_heads=2)),
        ('BAConv2d', dict(in_channels=8, out_channels=8, kernel_size=3, padding=1, num_heads=2)),
        ('BANHead', dict(question_dim=8, region_dim=6, num_answers=3)),
        ('CoAttentionHead', dict(question_dim=8, region_dim=6, num_answers=3)),
    ],
)
def test_an_unknown_option_that_is_passed_on_is_an_error(name, options):
    with pytest.raises(TypeError, match='unheard_of'):
        MODELS.build(dict(options, type=f'mmattn.{name}', unheard_of=1))
