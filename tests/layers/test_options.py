"""Options that a constructor passes on: type checkers know those that are taken."""

from inspect import signature

from mmengine.dataset import BaseDataset

from mmattn import layers
from mmattn.layers.ba_conv2d import BilateralOptions
from mmattn.layers.multihead_attention_3d import EncodingOptions, MultiheadAttention3d
from mmattn.layers.positions import PositionOptions
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
