"""Names and classes of components in configs whose types have a scope, or are classes, as in pure-Python configs."""

import pytest
from mmseg.models.decode_heads import FCNHead
from torch import nn

from mmattn.layers import BAConv2d
from mmattn.registry import MODELS
from mmattn.utils.component_type import check_model, component_class, inner_data_sets, model_scope, type_name


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


def test_data_sets_in_wrappers_are_found():
    inner = [dict(type=name) for name in 'abcd']
    wrapped = dict(type='RepeatDataset', dataset=dict(datasets=[inner[1], dict(dataset=inner[2])]))
    assert inner_data_sets(dict(datasets=[inner[0], wrapped], dataset=inner[3])) == inner
    assert inner_data_sets(inner[0]) == inner[:1]


@pytest.mark.parametrize(
    ('cfg', 'scope'),
    [
        (dict(model=dict(type='mmattn.SST'), default_scope='mmseg'), 'mmattn'),
        (dict(model=dict(type='SST'), default_scope='mmseg'), 'mmseg'),
        (dict(model=dict(type='SST')), ''),
        (dict(model=dict(type=FCNHead), default_scope='mmdet'), 'mmseg'),
        (dict(model=dict(type=type('MyHead', (FCNHead,), {})), default_scope='mmdet'), 'mmseg'),
        (dict(model=dict(type=BAConv2d)), 'mmattn'),
        (dict(model=dict(type=type('Mine', (nn.Module,), {}))), 'tests'),
    ],
)
def test_the_scope_of_a_model(cfg, scope):
    assert model_scope(cfg) == scope


def test_a_model_of_another_kind_is_named():
    cfg = dict(model=dict(type='FCNHead'), default_scope='mmseg')
    check_model(cfg, (nn.Conv2d, nn.Module), 'a segmentor')
    check_model(dict(model=dict(type='NoSuch'), default_scope='mmseg'), nn.Conv2d, 'a segmentor')
    with pytest.raises(ValueError, match=r'a segmentor; .* FCNHead '):
        check_model(cfg, nn.Conv2d, 'a segmentor')
