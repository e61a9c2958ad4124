"""Options that a constructor passes on: its signature, its annotation for type checkers, and the error agree."""

from inspect import Parameter, signature
from typing import get_args

import pytest

from mmattn.engine import CheckpointHook
from mmattn.layers import BAConv2d, StridedAttention3d
from mmattn.registry import DATASETS, MODELS


def test_options_for_type_checkers_are_those_of_the_signature():
    checked = set()
    for registry in (DATASETS, MODELS):
        registry.import_from_location()
        for kind in filter(lambda kind: isinstance(kind, type), registry.module_dict.values()):
            _, *own = signature(kind.__init__).parameters.values()
            for options in get_args(own[-1].annotation) if own and own[-1].kind is Parameter.VAR_KEYWORD else ():
                shown = dict(signature(kind).parameters)
                names = [x.name for x in own[:-1]]
                assert {*shown} == {*names, *options.__optional_keys__}, kind
                assert all(x.default is not x.empty for name, x in shown.items() if name not in names), kind
                checked.add(kind.__name__)
    assert {'BAConv2d', 'BilateralNonLocal2d', 'DAVISDataset', 'StridedAttention3d'} < checked


@pytest.mark.parametrize(('build', 'where'), [(StridedAttention3d, (8,)), (BAConv2d, (8, 8, 3)), (BAConv2d, (8, 8, 1))])
def test_a_wrong_option_is_named_with_the_nearest(build, where):
    for wrong, right in (('num_head', 'num_heads'), ('scal', 'scale')):
        with pytest.raises(TypeError, match=rf'{build.__name__} has no option .{wrong}.; did you mean {right}\?'):
            build(*where, **{wrong: 2})


@pytest.mark.parametrize(('wrong', 'right'), [('max_keep_bests', 'max_keep_best'), ('max_keep_ckpt', 'max_keep_ckpts')])
def test_a_wrong_option_of_the_checkpoint_hook_is_an_error_before_training(wrong, right):
    with pytest.raises(TypeError, match=rf'CheckpointHook has no option .{wrong}.; did you mean {right}\?'):
        CheckpointHook(**{wrong: 2})
