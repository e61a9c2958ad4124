"""Public names exist, registered names stay, and so do keys and shapes of every component's state dict."""

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

import mmattn
from mmattn import registry
from mmattn.utils import config_path

POSITIONS = ('bilateral', 'relative', 'none')
CONV_NORM = dict(norm_cfg=dict(type='BN'))
HEAD = dict(in_channels=8, channels=8, num_classes=3)
ANSWERS = dict(question_dim=8, region_dim=6, num_answers=3)
LAYERS = {
    **{f'BilateralNonLocal2d {p}': dict(in_channels=8, position=p, window_size=3) for p in POSITIONS},
    'BilateralNonLocal2d gaussian': dict(in_channels=8, position='none', mode='gaussian'),
    'BilateralNonLocal2d norm': dict(in_channels=8, window_size=(3, 5), **CONV_NORM),
    **{f'BilateralCrissCrossAttention {p}': dict(in_channels=8, position=p, window_size=3) for p in POSITIONS},
    **{
        f'BilateralMultiheadAttention {p}': dict(embed_dim=8, num_heads=2, position=p, window_size=3) for p in POSITIONS
    },
    'BilateralMultiheadAttention causal': dict(embed_dim=8, num_heads=2, window_size=3, is_causal=True, bias=False),
    **{
        f'BilateralCrissCrossAttention {padding}': dict(
            in_channels=8, window_size=3, padding=padding, smoothing='sqrt_dim'
        )
        for padding in ('learned', 'zero', 'neg_inf', 'mean', 'min')
    },
    'LocalBilateralAttention': dict(in_channels=8, num_heads=2),
    'LocalBilateralAttention share, refined': dict(in_channels=8, num_heads=2, share=True, iterations=2),
    'LocalBilateralAttention content': dict(in_channels=8, num_heads=2, geometric=False, norm_cfg=None),
    'LocalBilateralAttention geometry': dict(in_channels=8, num_heads=2, content=False, out_channels=16),
    'BAConv2d': dict(in_channels=8, out_channels=8, kernel_size=3, padding=1, num_heads=2),
    'DynamicConv2d': dict(in_channels=8, kernel_size=3, groups=2),
    'AttendedResidual': dict(in_channels=8, attention=dict(type='mmattn.DynamicConv2d', kernel_size=3, groups=2)),
    **{f'TransformerAttention2d {n:04b}': dict(in_channels=8, num_heads=2, terms=f'{n:04b}') for n in range(16)},
    'TransformerAttention2d norm': dict(in_channels=8, num_heads=2, **CONV_NORM),
    'TransformerAttention2d query bias': dict(in_channels=8, num_heads=2, query_bias=True, **CONV_NORM),
    'DynamicConv1d': dict(embed_dim=8, num_heads=2, kernel_size=3),
    'DeformConv1d': dict(embed_dim=8),
    **{f'TransformerAttention1d {n:04b}': dict(embed_dim=8, num_heads=2, terms=f'{n:04b}') for n in range(16)},
    'TransformerAttention1d query bias': dict(embed_dim=8, num_heads=2, query_bias=True),
    'RegionAttention': dict(embed_dim=8, num_heads=2, query_norm='instance'),
    'RegionAttention norms': dict(embed_dim=8, num_heads=2, query_norm='batch', key_norm='instance_affine'),
    'RegionAttention layer norm': dict(embed_dim=8, num_heads=2, query_norm='layer'),
    'RegionAttention geometry': dict(
        embed_dim=8, num_heads=2, geometry=('content_independent', 'query_dependent', 'key_dependent')
    ),
    **{
        f'EntangledAttention {mode}': dict(embed_dim=8, num_heads=2, mode=mode)
        for mode in ('entangled', 'parallel', 'stacked_v', 'stacked_s')
    },
    'GatedBilateralController residual': dict(embed_dim=8, residual=True),
    **{
        f'BilinearAttentionNetwork {mode}': dict(word_dim=8, region_dim=6, num_glimpses=2, mode=mode)
        for mode in ('residual', 'sum', 'concat')
    },
    'BilinearAttentionNetwork counter': dict(
        word_dim=8, region_dim=6, num_glimpses=1, pool_factor=3, counter=dict(type='mmattn.ObjectCounter')
    ),
    'BilinearLogits': dict(word_dim=8, region_dim=6, embed_dim=4),
    'UnitaryAttention': dict(query_dim=8, region_dim=6, embed_dim=4),
    'CoAttention': dict(word_dim=8, region_dim=6, embed_dim=4, hidden_dim=3),
    'ObjectCounter': dict(),
    'HadamardFusion': dict(query_dim=8, value_dim=6, out_dim=4),
    'HadamardFusion post-fusion network': dict(
        query_dim=8, value_dim=6, out_dim=4, num_branches=2, post_network=dict(hidden_dim=3, skip='concat')
    ),
    'ConcatFusion': dict(query_dim=8, value_dim=6, out_dim=4),
    'MCBFusion': dict(query_dim=8, value_dim=6, out_dim=4, sketch_dim=16),
    'QuestionGRU': dict(vocab_size=8, word_dim=6, embed_dim=4),
    'SkipThoughtEncoder': dict(vocab_size=8, word_dim=6, embed_dim=4),
    'ConvImageEncoder': dict(channels=(4, 8)),
    'BANHead': dict(ANSWERS, num_glimpses=1, counter=dict(type='mmattn.ObjectCounter')),
    **{f'{name}Head': ANSWERS for name in ('Unitary', 'CoAttention', 'Concat', 'QuestionOnly', 'ImageOnly')},
    'FusionHead': dict(ANSWERS, query_dim=4, value_dim=4, pooled_dim=6, out_dim=5),
    'GridAttention3d': dict(embed_dims=8, num_heads=2, max_offset=3, max_frames=4),
    'StridedAttention3d': dict(embed_dims=8, num_heads=2, max_offset=3, max_frames=4),
    'StridedAttention3d sinusoidal': dict(embed_dims=8, num_heads=2, max_offset=3, temporal_position='sinusoidal'),
    'DenseAttention3d': dict(embed_dims=8, num_heads=2, max_offset=3, temporal_position='relative'),
    'DynamicConv1d no GLU': dict(embed_dim=8, num_heads=2, kernel_size=3, gated=False),
    'LocalBilateralAttention factorised, late': dict(in_channels=8, num_heads=2, factorised=True, late_fusion=True),
    'VideoTransformerLayer': dict(
        embed_dims=8, attention=dict(type='mmattn.GridAttention3d', num_heads=2, max_offset=3, max_frames=4)
    ),
    **{f'BiNLHead {p}': dict(HEAD, position=p, window_size=3) for p in POSITIONS},
    **{f'BiCCHead {p}': dict(HEAD, position=p, window_size=3) for p in POSITIONS},
    'AttentionHead': dict(HEAD, attention=dict(type='mmattn.TransformerAttention2d', num_heads=2)),
    'DeepLabV3PlusBAHead': dict(HEAD, c1_in_channels=8, c1_channels=4, dilations=(1, 2)),
    'UNetBAHead': dict(in_channels=(8,) * 5, up_channels=(8,) * 4, num_classes=3),
}


def test_public_names_exist():
    modules = [info.name for info in pkgutil.walk_packages(mmattn.__path__, 'mmattn.') if '._' not in info.name]
    modules = [name for name in modules if find_spec('triton') or not name.startswith('mmattn.ops.triton.')]
    for name in ['mmattn', *modules]:
        for exported in getattr(import_module(name), '__all__', ()):
            assert hasattr(import_module(name), exported)


def test_registered_names():
    """A config may have any of these names."""
    recorded = Path(__file__).with_name('registered.txt').read_text(encoding='utf-8').splitlines()
    registries = {key: value for key, value in vars(registry).items() if isinstance(value, registry.FolderRegistry)}
    for folder_registry in registries.values():
        folder_registry.import_from_location()
    names = {f'{key} mmattn.{name}' for key, r in registries.items() for name in r.module_dict}
    assert {*recorded} <= names


def test_state_dicts(same_lines):
    init_default_scope('mmseg')
    lines = []
    video = Config.fromfile(config_path('sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py')).model
    videos = {'SST': dict(video, appearance=False), 'SST appearance': video}
    for title, settings in {**LAYERS, **videos}.items():
        with torch.device('meta'):
            module = MODELS.build(dict(settings, type=f'mmattn.{title.split()[0]}'))
        state = ', '.join(f'{key} {"×".join(map(str, x.shape)) or "·"}' for key, x in module.state_dict().items())
        lines.append(f'{title}: {state}')
    same_lines('state_dicts.txt', lines)
