"""Calls of every operator with every option on fixed inputs."""

import math

import numpy as np
import torch

from mmattn import ops

MAPS = {'1d': (5,), '2d': (3, 4), '3d': (2, 3, 3)}
HEADS, CHANNELS, VALUES = 2, 3, 2
PATTERNS = ('block', 'centred', 'forward', 'strided')


class Call:
    """A call of an operator: tensors drawn by the order of their creation, and settings.

    NumPy's RandomState is used because its streams are the same in every version.
    """

    def __init__(self, operator: str, **settings) -> None:
        self.operator, self.settings = operator, settings
        self.tensors: dict[str, torch.Tensor] = {}
        self.random = np.random.RandomState(len(operator))

    def draw(self, name: str, *shape: int) -> 'Call':
        self.tensors[name] = torch.from_numpy(self.random.standard_normal(shape))
        return self

    def content(self, size, key_size=None, channels=CHANNELS) -> 'Call':
        self.draw('query', 1, HEADS, *size, channels)
        return self.draw('key', 1, HEADS, *(key_size or size), channels)

    def value(self, size) -> 'Call':
        return self.draw('value', 1, HEADS, *size, VALUES)


def calls() -> dict[str, Call]:
    """Return the calls by name."""
    found: dict[str, Call] = {}

    def add(name: str, call: Call) -> Call:
        found[f'{call.operator}: {name}'] = call
        return call

    def attention(operator: str, size, **settings) -> Call:
        return Call(operator, **settings).content(size).value(size)

    def windowed(operator: str, name: str, size, entries: int, learned: bool = False, **settings) -> None:
        call = add(name, attention(operator, size, **settings).draw('window_bias', 1, HEADS, *size, entries))
        if learned:
            call.draw('outside_bias', 1, HEADS, *size)

    for axes, size in MAPS.items():
        if len(size) > 1:
            add(f'{axes}', attention('grid_attention', size))
            entries = 3 * len(size) - len(size) + 1
            windowed('grid_attention', f'{axes}, learned outlier', size, entries, learned=True, window_size=3)
            windowed('grid_attention', f'{axes}, z-score', size, entries, learned=True, window_size=3, zscore=True)
        add(f'{axes}', attention('global_attention', size))
        windowed('global_attention', f'{axes}, learned outlier', size, 3 ** len(size), learned=True, window_size=3)
        for pattern in PATTERNS:
            add(f'{axes}, {pattern}', attention('strided_attention', size, pattern=pattern, step=2))

    size = MAPS['2d']
    for operator, square, oblong in (('global_attention', 9, 15), ('grid_attention', 5, 7)):
        add('scale', attention(operator, size, scale=0.3))
        windowed(operator, 'outlier of 0', size, square, window_size=3)
        windowed(operator, 'outlier of 0.7', size, square, window_size=3, outside_bias=0.7)
        windowed(operator, 'outlier of −inf', size, square, window_size=3, outside_bias=-math.inf)
        windowed(operator, 'window of 3×5', size, oblong, learned=True, window_size=(3, 5))
        windowed(operator, 'z-score', size, square, learned=True, window_size=3, zscore=True)
        windowed(operator, 'z-score, outlier of 0.7', size, square, window_size=3, outside_bias=0.7, zscore=True)

    mask = torch.tensor([[[True, False, True, True], [False] * 4, [True, True, True, False]]])
    add('causal', attention('global_attention', size, is_causal=True))
    windowed('global_attention', 'causal, window', size, 5, learned=True, window_size=3, is_causal=True)
    windowed('global_attention', 'causal, z-score', size, 5, True, window_size=3, is_causal=True, zscore=True)
    add('key mask', attention('global_attention', size, key_mask=mask))
    add('key logits', attention('global_attention', size).draw('key_bias', 1, HEADS, *size))
    axes = add('axis logits', attention('global_attention', size))
    axes.draw('axis_bias 0', 1, HEADS, *size, 3).draw('axis_bias 1', 1, HEADS, 1, 4, 4)
    other = add('keys at other positions', Call('global_attention').content(size, (2, 5)).value((2, 5)))
    other.draw('axis_bias 0', 1, HEADS, *size, 2).draw('axis_bias 1', 1, HEADS, *size, 5)
    everything = attention(
        'global_attention', size, scale=0.5, window_size=3, zscore=True, key_mask=mask, return_lse=True
    )
    everything.draw('window_bias', 1, HEADS, *size, 9).draw('outside_bias', 1, HEADS, *size).draw(
        'key_bias', 1, 1, *size
    )
    add('everything', everything.draw('axis_bias 0', 1, HEADS, *size, 3).draw('axis_bias 1', 1, HEADS, *size, 4))

    for name, settings in {'k 3': {}, 'k 3×5': {'kernel_size': (3, 5)}, 'dilation 2': {'dilation': 2},
                           'iterations 3': {'iterations': 3}, 'scale': {'scale': 0.3}}.items():  # fmt: skip
        entries = 15 if 'kernel_size' in settings else 9
        add(f'{name}, content', attention('local_attention', size, **settings))
        windowed('local_attention', f'{name}, content and geometry', size, entries, **settings)
    masked = attention('local_attention', size, key_mask=mask, iterations=2, return_lse=True)
    add('k 3, key mask, log-sum-exp', masked.draw('window_bias', 1, HEADS, *size, 9))
    for operator, entries in (('global_attention', 9), ('grid_attention', 5), ('local_attention', 9)):
        window = {} if operator == 'local_attention' else {'window_size': 3}
        table = add('one table', attention(operator, size, return_lse=True, **window))
        table.draw('window_bias', HEADS, entries)
    geometry = add('geometry', Call('local_attention', query=None, key=None).value(size))
    geometry.draw('window_bias', 1, HEADS, *size, 9)

    add('step of ⌈√side⌉', attention('strided_attention', size, pattern='block'))
    add('step 2×3', attention('strided_attention', size, pattern='strided', step=(2, 3)))
    add('scale', attention('strided_attention', size, pattern='block', step=2, scale=0.3))
    for pattern in PATTERNS:
        settings = {'pattern': pattern, 'step': 2, 'return_lse': True}
        logits = add(f'{pattern}, offset logits', attention('strided_attention', size, **settings))
        for axis, offsets in enumerate(ops.strided_offsets(size, 2, pattern)):
            logits.draw(f'offset_bias {axis}', 1, HEADS, *size, len(offsets))
        keys = Call('strided_attention', pattern=pattern, step=2).content(size, (2, 5)).value((2, 5))
        add(f'{pattern}, keys at other positions', keys)

    for name, entries, settings in (
        ('k 3', 9, {'kernel_size': 3}),
        ('k 3×5', 15, {'kernel_size': (3, 5)}),
        ('dilation 2', 9, {'kernel_size': 3, 'dilation': 2}),
    ):
        convolution = Call('dynamic_conv', **settings).value(size)
        add(name, convolution.draw('logits', 1, HEADS, *size, entries))
    pair = Call('bilinear_logits').draw('query', 2, 3, 4).draw('key', 2, 5, 4)
    add('two glimpses', pair.draw('weight', 2, 4))
    pooled = Call('bilinear_pooling').draw('weights', 2, 2, 3, 5)
    add('two glimpses', pooled.draw('query', 2, 3, 4).draw('value', 2, 5, 4))
    add('bias', Call('projection').draw('x', 2, 3, 4).draw('weight', 5, 4).draw('bias', 5))
    add('no bias', Call('projection').draw('x', 2, 3, 4).draw('weight', 5, 4))
    return found
