"""mmengine's counter of multiply-accumulates agrees with PyTorch's, for every kind of operator."""

import logging

import pytest
import torch
from mmengine.analysis import get_model_complexity_info
from mmengine.analysis.complexity_analysis import _DEFAULT_SUPPORTED_FLOP_OPS
from torch.utils.flop_counter import FlopCounterMode

from mmattn import layers
from mmattn.engine import add_flop_handles
from mmattn.language.layers import BilateralMultiheadAttention, DynamicConv1d, TransformerAttention1d

MAP, CLIP, SENTENCE = (8, 12, 10), (3, 6, 5, 8), (7, 8)
LAYERS = dict(
    criss_cross=(lambda: layers.BilateralCrissCrossAttention(8, window_size=3), MAP),
    criss_cross_relative=(lambda: layers.BilateralCrissCrossAttention(8, position='relative'), MAP),
    non_local=(lambda: layers.BilateralNonLocal2d(8, window_size=3), MAP),
    non_local_relative=(lambda: layers.BilateralNonLocal2d(8, position='relative'), MAP),
    transformer=(lambda: layers.TransformerAttention2d(8, 2), MAP),
    transformer_range=(lambda: layers.TransformerAttention2d(8, 2, spatial_range=3), MAP),
    dynamic_conv=(lambda: layers.DynamicConv2d(8, 3, groups=2), MAP),
    grid_3d=(lambda: layers.GridAttention3d(8, 2, temporal_position='relative'), CLIP),
    sequence=(lambda: BilateralMultiheadAttention(8, 2, window_size=3), SENTENCE),
    sequence_relative=(lambda: BilateralMultiheadAttention(8, 2, position='relative'), SENTENCE),
    sequence_transformer=(lambda: TransformerAttention1d(8, 2), SENTENCE),
    sequence_dynamic=(lambda: DynamicConv1d(8, 2, 3), SENTENCE),
)


class First(torch.nn.Sequential):
    def forward(self, x):
        out = self[0](x)
        return out[0] if isinstance(out, tuple) else out


@pytest.fixture
def handles():
    before = {name: handle for name, handle in _DEFAULT_SUPPORTED_FLOP_OPS.items() if 'mmattn' not in name}
    add_flop_handles()
    yield
    _DEFAULT_SUPPORTED_FLOP_OPS.clear()
    _DEFAULT_SUPPORTED_FLOP_OPS.update(before)


@pytest.mark.parametrize('name', LAYERS)
def test_the_counts_are_those_of_torch(name, handles, caplog):
    build, size = LAYERS[name]
    layer = First(build()).eval()
    with caplog.at_level(logging.WARNING), torch.no_grad():
        counted = get_model_complexity_info(layer, size, show_table=False, show_arch=False)['flops']
        with FlopCounterMode(display=False) as counter:
            layer(torch.zeros(1, *size))
    assert counted == counter.get_total_flops() / 2
    assert 'mmattn::' not in caplog.text
