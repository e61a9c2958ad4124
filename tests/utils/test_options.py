"""Options that a constructor passes on: its signature, its annotation for type checkers, and the error agree."""

from functools import wraps
from inspect import Parameter, signature
from typing import get_args

import pytest
from mmseg.models import EncoderDecoder

from mmattn.engine import CheckpointHook
from mmattn.language.translation import BLEU
from mmattn.layers import BAConv2d, BilateralNonLocal2d, GridAttention3d, StridedAttention3d
from mmattn.registry import DATASETS, HOOKS, METRICS, MODELS, OPTIM_WRAPPERS, PARAM_SCHEDULERS, TRANSFORMS
from mmattn.segmentation import TiledEncoderDecoder

REGISTRIES = (DATASETS, HOOKS, METRICS, MODELS, OPTIM_WRAPPERS, PARAM_SCHEDULERS, TRANSFORMS)


def registered(*registries):
    registries[0].import_from_location()
    components = (part for registry in registries for part in registry.module_dict.values())
    # Tools and other tests register theirs.
    return [part for part in components if isinstance(part, type) and part.__module__.startswith('mmattn.')]


def test_options_for_type_checkers_are_those_of_the_signature():
    checked = set()
    for kind in registered(DATASETS, MODELS):
        _, *own = signature(kind.__init__).parameters.values()
        for options in get_args(own[-1].annotation) if own and own[-1].kind is Parameter.VAR_KEYWORD else ():
            shown = dict(signature(kind).parameters)
            names = [x.name for x in own[:-1]]
            assert {*shown} == {*names, *options.__optional_keys__}, kind
            assert all(x.default is not x.empty for name, x in shown.items() if name not in names), kind
            checked.add(kind.__name__)
    assert {'BAConv2d', 'BilateralNonLocal2d', 'DAVISDataset', 'StridedAttention3d'} < checked


def test_an_unknown_option_of_any_component_is_told_of_that_component():
    """Also where its constructor is that of a base, or gets the option as one of ``**kwargs``."""
    components = registered(*REGISTRIES)
    assert len(components) > 80
    for kind in components:
        required = {
            name: None
            for name, x in signature(kind.__init__).parameters.items()
            if name != 'self' and x.default is x.empty and x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)
        }
        for wrong in ('options', 'kwargs', 'unheard_of'):
            with pytest.raises(TypeError, match=rf'^{kind.__name__}\b(?!.*, self\b|.*\*)'):
                kind(**required, **{wrong: 3})


@pytest.mark.parametrize(
    ('build', 'where', 'wrong', 'right'),
    [
        *((StridedAttention3d, (8,), *names) for names in (('num_head', 'num_heads'), ('scal', 'scale'))),
        *((BAConv2d, (8, 8, 3), *names) for names in (('num_head', 'num_heads'), ('scal', 'scale'))),
        *((BAConv2d, (8, 8, 1), *names) for names in (('num_head', 'num_heads'), ('scal', 'scale'))),
        (GridAttention3d, (64, 8), 'clip_ofset', 'clip_offset'),
        (BLEU, (), 'tokenis', 'detokenized'),
        (BLEU, (), 'prefx', 'prefix'),
        (CheckpointHook, (), 'max_keep_bests', 'max_keep_best'),
        (CheckpointHook, (), 'max_keep_ckpt', 'max_keep_ckpts'),
    ],
)
def test_a_wrong_option_is_named_with_the_nearest(build, where, wrong, right):
    with pytest.raises(TypeError, match=rf'{build.__name__} has no option .{wrong}.; did you mean {right}\?'):
        build(*where, **{wrong: 2})


def test_a_class_of_the_users_own_sets_options_of_its_base():
    """It takes none itself, or takes them and has others."""

    class NonLocal(BilateralNonLocal2d):
        def __init__(self):
            super().__init__(8, window_size=3)

    class Strided(StridedAttention3d):
        def __init__(self, sharpness):
            super().__init__(8, 2, scale=sharpness)

    class Score(BLEU):
        def __init__(self, level, **kwargs):
            super().__init__(prefix=level, **kwargs)

        @classmethod
        def passed_on(cls):
            return {}

    class Mixin(EncoderDecoder):
        def __init__(self, *args, level=1, **kwargs):
            super().__init__(*args, **kwargs)
            self.level = level

    class Tiled(TiledEncoderDecoder, Mixin):
        """The next class of one without a constructor is not its base."""

    head = dict(type='mmseg.FCNHead', in_channels=8, channels=4, num_classes=2)
    network = dict(backbone=dict(type='mmattn.ResNetStem', depth=18), decode_head=head)
    assert (Tiled(**network).level, Tiled(level=2, **network).level) == (1, 2)
    with pytest.raises(TypeError, match=r'Tiled has no option .levl.; did you mean level\?'):
        Tiled(levl=2, **network)
    assert NonLocal().window_position.window_size == (3, 3)
    assert Strided(0.5).local_attention.scale == 0.5
    assert Score('test', compound_split=True).prefix == 'test'
    with pytest.raises(TypeError, match=r'Score has no option .levl.; did you mean level\?'):
        Score('test', levl=2)


def test_a_constructor_that_others_wrap(monkeypatch):
    """As DeepSpeed and mocks do, or a second name in a registry."""
    init = BAConv2d.__init__

    @wraps(init)
    def wrapped(self, *args, **options):
        init(self, *args, **options)

    monkeypatch.setattr(BAConv2d, '__init__', wrapped)
    assert BAConv2d(8, 8, 3, padding=1).kernel_size == (3, 3)
    monkeypatch.setattr(MODELS, '_module_dict', MODELS.module_dict.copy())
    MODELS.register_module('Alias', module=BAConv2d)
    for name in ('Alias', 'BAConv2d'):
        cfg = dict(type=f'mmattn.{name}', in_channels=8, out_channels=8, padding=1)
        assert MODELS.build(dict(cfg, kernel_size=3)).kernel_size == (3, 3)
        with pytest.raises(TypeError, match=r'BAConv2d has no option .kernel.; did you mean kernel_size'):
            MODELS.build(dict(cfg, kernel=3))
