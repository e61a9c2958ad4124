"""Names and classes of components in configs whose types have a scope, or are classes, as in pure-Python configs."""

import pytest
from mmseg.models.decode_heads import FCNHead
from torch import nn

from mmattn.layers import BAConv2d
from mmattn.registry import MODELS
from mmattn.utils.component_type import component_class, type_name


@pytest.mark.parametrize(
    ('cfg', 'name'),
    [
        (dict(type='BN'), 'BN'),
        (dict(type='mmseg.models.FCNHead'), 'FCNHead'),
        (dict(type=nn.SyncBatchNorm), 'SyncBatchNorm'),
        (dict(), 'given'),
    ],
)
def test_the_name_has_no_scope(cfg, name):
    assert type_name(cfg, 'given') == name


@pytest.mark.parametrize(
    ('kind', 'expected'),
    [('mmattn.BAConv2d', BAConv2d), ('FCNHead', FCNHead), (nn.ReLU, nn.ReLU), ('mmattn.NoSuch', None), (None, None)],
)
def test_the_class_is_found_in_its_scope(kind, expected):
    assert component_class(dict(type=kind), MODELS, 'mmseg') is expected
