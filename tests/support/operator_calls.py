"""Calls of the operators: tables of them, and random ones, for tests and fuzzers."""

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import mmattn.ops
from mmattn.ops.patterns import PATTERNS, strided_offsets

Tensors = dict[str, Any]  # arguments by name: a tensor, or a tuple of tensors
QKV = ('query', 'key', 'value')
WINDOW = ('window_bias', 'outside_bias')
# Of each tensor that is drawn, so that a map of a size has the same numbers in every call.
SEEDS = {name: seed for seed, name in enumerate((*QKV, *WINDOW, 'axis_bias', '', 'key_bias', 'key_mask'), 1)}


@dataclass
class Call:
    """A call of an operator. The settings are its other arguments, and ``normalize`` of :func:`operator`."""

    operator: str
    tensors: Tensors
    settings: dict[str, Any]
    title: str = ''


def operator(name: str) -> Callable[..., Any]:
    """Look up an operator. With ``normalize=True``, global and grid attention take the z-score of the biases first."""
    function, support = getattr(mmattn.ops, name), name.partition('_')[0]
    if support not in ('global', 'grid'):
        return function

    @functools.wraps(function)
    def call(*args: Any, normalize: bool = False, **kwargs: Any) -> Any:
        if normalize and kwargs.get('window_bias') is not None:
            shared = {key: kwargs[key] for key in ('key_mask', 'is_causal') if key in kwargs}
            biases = kwargs['window_bias'], kwargs['window_size'], kwargs.get('outside_bias', 0.0)
            kwargs['window_bias'], kwargs['outside_bias'] = mmattn.ops.unit_variance(*biases, support=support, **shared)
        return function(*args, **kwargs)

    return call


# Tensors


def each(tensors: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    """Change each tensor of a call, and each of a tuple of them."""
    return {name: tuple(map(change, x)) if isinstance(x, tuple) else change(x) for name, x in tensors.items()}


def cast(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    """Cast the floating-point tensors of a call."""
    return each(tensors, lambda x: x.to(dtype) if x.is_floating_point() else x)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw normally distributed numbers: the same for every device and dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def as_tuple(length: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Repeat a length for each axis, unless there is one for each."""
    return (length,) * axes if isinstance(length, int) else tuple(length)


def make(
    operator: str,
    size: tuple[int, ...],
    *biases: str,
    key_size: tuple[int, ...] | None = None,
    batch: int = 1,
    heads: int = 1,
    channels: int = 3,
    value_channels: int = 2,
    dtype: torch.dtype = torch.float64,
    draw: Callable[..., Tensor] = randn,
    title: str = '',
    **settings: Any,
) -> Call:
    """Make a call of an operator on a map, with numbers that are drawn.

    Args:
        operator (str): an attention, or dynamic_conv.
        size (tuple): size of the map.
        *biases (str): optional tensors. ``'table'`` is a window bias without batch and positions.
        key_size (tuple, optional): size of the map of keys. Defaults to ``size``.
        batch (int): batch size. Defaults to 1.
        heads (int): number of heads. Defaults to 1.
        channels (int): channels of query and key. 0 leaves them out. Defaults to 3.
        value_channels (int): channels of the value. Defaults to 2.
        dtype (torch.dtype): dtype of the tensors. Defaults to float64.
        draw (Callable): called with a shape, ``seed`` and ``dtype``. Defaults to :func:`randn`.
        title (str): title of the call. Defaults to ''.
        **settings: further arguments of the operator.
    """
    keys = key_size or size
    shapes: dict[str, Any] = {'value': (*keys, value_channels)}
    lengths = as_tuple(settings.get('window_size', settings.get('kernel_size', 3)), len(size))
    entries = math.prod(lengths)
    if operator == 'grid_attention':
        entries = sum(lengths) - len(size) + 1
    if settings.get('is_causal'):
        entries = (entries + 1) // 2
    if operator == 'dynamic_conv':
        shapes['logits'] = (*size, entries)
    elif channels:
        shapes = {'query': (*size, channels), 'key': (*keys, channels), **shapes}
    else:
        settings = {'query': None, 'key': None, **settings}
    optional: dict[str, Any] = {
        'window_bias': (*size, entries),
        'outside_bias': size,
        'key_bias': keys,
        'key_mask': keys,
    }
    optional['axis_bias'] = tuple((*size, length) for length in keys)
    if 'offset_bias' in biases:
        offsets = strided_offsets(size, settings.get('step'), settings['pattern'], key_size)
        optional['offset_bias'] = tuple((*size, len(x)) for x in offsets)
    shapes |= {name: optional[name] for name in biases if name != 'table'}

    def drawn(name: str, shape: tuple, axis: int = 0) -> Tensor:
        seed = SEEDS.get(name, SEEDS['window_bias']) + axis
        if name == 'key_mask':
            return draw(batch, *shape, seed=seed, dtype=dtype) > -0.5
        return draw(batch, heads, *shape, seed=seed, dtype=dtype)

    tensors = {
        name: tuple(drawn(name, x, axis) for axis, x in enumerate(shape))
        if name in ('axis_bias', 'offset_bias')
        else drawn(name, shape)
        for name, shape in shapes.items()
    }
    if 'table' in biases:
        tensors['window_bias'] = draw(heads, entries, seed=SEEDS['window_bias'], dtype=dtype)
    return Call(operator, tensors, settings, title)


# Tables


@functools.cache
def small_calls() -> dict[str, Call]:
    """Calls of every operator with every option on maps of a few positions, by operator and title."""
    calls: dict[str, Call] = {}
    size = (3, 4)

    def add(operator: str, title: str, *biases: str, size: tuple = size, **settings: Any) -> None:
        calls[f'{operator}: {title}'] = make(operator, size, *biases, heads=2, title=title, **settings)

    for axes, sides in {'1d': (5,), '2d': size, '3d': (2, 3, 3)}.items():
        for name in ('global_attention', 'grid_attention')[: len(sides)]:
            add(name, axes, size=sides)
            add(name, f'{axes}, learned outlier', *WINDOW, size=sides, window_size=3)
        if len(sides) > 1:
            add('grid_attention', f'{axes}, z-score', *WINDOW, size=sides, window_size=3, normalize=True)
        for pattern in PATTERNS:
            add('strided_attention', f'{axes}, {pattern}', size=sides, pattern=pattern, step=2)
    for name in ('global_attention', 'grid_attention'):
        add(name, 'scale', scale=0.3)
        for title, outside in {'0': 0.0, '0.7': 0.7, '−inf': -math.inf}.items():
            add(name, f'outlier of {title}', 'window_bias', window_size=3, outside_bias=outside)
        add(name, 'window of 3×5', *WINDOW, window_size=(3, 5))
        add(name, 'z-score', *WINDOW, window_size=3, normalize=True)
        add(name, 'z-score, outlier of 0.7', 'window_bias', window_size=3, outside_bias=0.7, normalize=True)

    add('global_attention', 'causal', is_causal=True)
    add('global_attention', 'causal, window', *WINDOW, window_size=3, is_causal=True)
    add('global_attention', 'causal, z-score', *WINDOW, window_size=3, is_causal=True, normalize=True)
    for title in ('key mask', 'key bias', 'axis bias'):
        add('global_attention', title, title.replace(' ', '_'))
    rows, columns = calls['global_attention: axis bias'].tensors['axis_bias']
    calls['global_attention: axis bias'].tensors['axis_bias'] = rows, columns[:, :, :1]  # of all rows of queries
    add('global_attention', 'keys at other positions', 'axis_bias', key_size=(2, 5))
    settings: dict[str, Any] = dict(scale=0.5, window_size=3, normalize=True, return_lse=True)
    add('global_attention', 'everything', *WINDOW, 'axis_bias', 'key_bias', 'key_mask', **settings)
    everything = calls['global_attention: everything'].tensors  # heads share the key logits, a row has no key
    everything['key_bias'], everything['key_mask'][:, 1] = everything['key_bias'][:, :1], False

    kernels: dict[str, dict[str, Any]] = {'k 3': {}, 'k 3×5': {'kernel_size': (3, 5)}, 'dilation 2': {'dilation': 2}}
    for title, settings in (kernels | {'iterations 3': {'iterations': 3}, 'scale': {'scale': 0.3}}).items():
        add('local_attention', f'{title}, content', **settings)
        add('local_attention', f'{title}, content and geometry', 'window_bias', **settings)
    settings = dict(iterations=2, return_lse=True)
    add('local_attention', 'k 3, key mask, log-sum-exp', 'window_bias', 'key_mask', **settings)
    add('local_attention', 'geometry', 'window_bias', channels=0)
    for name in ('global_attention', 'grid_attention', 'local_attention'):
        settings = {} if name == 'local_attention' else {'window_size': 3}
        add(name, 'one table', 'table', return_lse=True, **settings)

    add('strided_attention', 'step of ⌈√side⌉', pattern='block')
    add('strided_attention', 'step 2×3', pattern='strided', step=(2, 3))
    add('strided_attention', 'scale', pattern='block', step=2, scale=0.3)
    for pattern in PATTERNS:
        settings = dict(pattern=pattern, step=2)
        add('strided_attention', f'{pattern}, offset logits', 'offset_bias', return_lse=True, **settings)
        add('strided_attention', f'{pattern}, keys at other positions', key_size=(2, 5), return_lse=True, **settings)
    add('dynamic_conv', 'k 3', kernel_size=3)
    add('dynamic_conv', 'k 3×5', kernel_size=(3, 5))
    add('dynamic_conv', 'dilation 2', kernel_size=3, dilation=2)
    for name, title, shapes in (
        ('bilinear_logits', 'two glimpses', dict(query=(2, 3, 4), key=(2, 5, 4), weight=(2, 4))),
        ('bilinear_pooling', 'two glimpses', dict(weights=(2, 2, 3, 5), query=(2, 3, 4), value=(2, 5, 4))),
        ('projection', 'bias', dict(x=(2, 3, 4), weight=(5, 4), bias=(5,))),
        ('projection', 'no bias', dict(x=(2, 3, 4), weight=(5, 4))),
    ):
        tensors = {key: randn(*shape, seed=seed) for seed, (key, shape) in enumerate(shapes.items())}
        calls[f'{name}: {title}'] = Call(name, tensors, {}, title)
    return calls


def large_calls(operator: str, device: str = 'cpu') -> Iterator[Call]:
    """Yield calls of an operator with kernels on maps of many tiles, odd sizes, and what is rare in a training."""

    def call(title: str, size: tuple, *biases: str, channels: Any = 16, at: tuple = (1, 1), **settings: Any) -> Call:
        if isinstance(channels, int):
            channels = channels, channels
        settings |= dict(batch=at[0], heads=at[1], channels=channels[0], value_channels=channels[1])
        made = make(operator, size, *biases, title=f'{"×".join(map(str, size))}, {title}', **settings)
        made.tensors = each(made.tensors, lambda x: x.to(device))
        return made

    def from_convolution(call: Call) -> Call:
        call.tensors = each(call.tensors, lambda x: x.movedim(-1, 2).contiguous().movedim(2, -1))
        return call

    calls: Sequence[Call]
    unset: dict[str, Any] = dict(outside_bias=-math.inf)
    if operator == 'global_attention':
        yield call('32 channels, window 7×7', (21, 21), *WINDOW, channels=32, window_size=7)
        every: dict[str, Any] = dict(channels=(24, 40), at=(2, 3), window_size=(3, 5, 7), scale=0.3)
        calls = [
            call('128 channels, causal', (21, 21), channels=(128, 64), is_causal=True),
            call('every bias and a mask', (3, 7, 13), *WINDOW, 'axis_bias', 'key_bias', 'key_mask', **every),
            call('9×11 keys, causal, window', (5, 11), 'window_bias', channels=(20, 12), at=(1, 2),
                 key_size=(9, 11), window_size=(3, 5), is_causal=True),
            call('67 keys, axis bias', (101,), 'axis_bias', channels=(7, 9), key_size=(67,)),
            call('window alone', (19, 23), 'window_bias', window_size=3, **unset),
            call('odd channels', (9, 7), 'window_bias', channels=(33, 17), at=(2, 1), window_size=3),
            call('256 channels', (11, 12), 'window_bias', channels=256, at=(2, 1), window_size=3),
            call('blocks of keys of −inf', (24, 24), 'window_bias', channels=64, at=(2, 1), window_size=3, **unset),
            call('window alone', (7, 15), 'window_bias', window_size=3, **unset),
            *(call('causal', (n,), at=(2, 2), is_causal=True) for n in (127, 320)),
            *(call('a sample without keys', (n, n), *WINDOW, 'key_mask', channels=c, at=(2, 2), window_size=3)
              for n, c in ((8, 64), (9, 64), (16, 16))),
            call('logits near −200', (8, 8), *WINDOW, channels=64, at=(2, 2), window_size=3),
        ]  # fmt: skip
        for x in calls:
            if 'without keys' in x.title:
                x.tensors['key_mask'] = x.tensors['key_mask'] | True
                x.tensors['key_mask'][1] = False
        for name in WINDOW:
            calls[-1].tensors[name] -= 200
    elif operator == 'grid_attention':
        yield call('8 and 16 channels, window 7', (21, 21), *WINDOW, channels=(8, 16), at=(2, 1), window_size=7)
        windows: dict[str, Any] = dict(window_size=(3, 5, 3), outside_bias=0.7, scale=0.3)
        calls = [
            call('windows', (5, 7, 9), 'window_bias', channels=(24, 40), at=(1, 3), **windows),
            call('content alone', (19, 23), channels=(5, 3), at=(1, 2)),
            call('window alone', (19, 23), 'window_bias', window_size=3, **unset),
            call('a line of one position', (1, 9), at=(1, 2)),
        ]
    elif operator == 'local_attention':
        yield from_convolution(call('8 heads', (17, 17), 'window_bias', channels=32, at=(1, 8), kernel_size=3))
        refined: dict[str, Any] = dict(kernel_size=3, iterations=3, scale=0.3)
        calls = [
            call('refined', (33, 47), 'window_bias', channels=6, at=(2, 2), **refined),
            call('13×13 neighbours, dilation 2', (17, 19), channels=(5, 7), at=(1, 3), kernel_size=13, dilation=2),
            call('geometry alone', (17, 19), 'window_bias', channels=(0, 7), at=(1, 3), kernel_size=(3, 5)),
            call('dilation beyond the map', (5, 4), at=(1, 2), kernel_size=5, dilation=9),
        ]
    elif operator == 'dynamic_conv':
        for groups, k in ((8, 3), (16, 5)):
            settings: dict[str, Any] = dict(channels=256 // groups, at=(1, groups), kernel_size=k)
            yield from_convolution(call(f'{groups} groups, {k}×{k}', (17, 17), **settings))
        calls = [call('5×3, dilation 2', (17, 19), channels=5, at=(2, 3), kernel_size=(5, 3), dilation=2)]
    else:
        block: dict[str, Any] = dict(pattern='block', step=(4, 8, 8))
        for heads, channels in ((1, 32), (8, 16)):
            title = f'block, {heads} × {channels} channels'
            yield call(title, (8, 16, 8), 'offset_bias', channels=channels, at=(1, heads), **block)
        calls = [
            *(call(pattern, (5, 9, 11), 'offset_bias', channels=(24, 40), at=(1, 2), pattern=pattern,
                   step=(2, 3, 4)) for pattern in PATTERNS),
            call('strided', (19, 23), channels=(7, 5), at=(2, 1), pattern='strided', scale=0.3),
            call('7×9 keys, centred', (5, 9), channels=(7, 5), at=(1, 2), key_size=(7, 9), pattern='centred', step=3),
            call('queries without keys', (4, 11), at=(1, 2), key_size=(4, 5), pattern='block', step=3),
        ]  # fmt: skip
    yield from calls


def all_calls(operator: str, device: str = 'cpu') -> Iterator[Call]:
    """Yield the large calls of an operator, then the small ones."""
    yield from large_calls(operator, device)
    for call in small_calls().values():
        if call.operator == operator:
            yield Call(operator, each(call.tensors, lambda x: x.to(device)), call.settings, call.title)


def random_call(
    operator: str, chance: random.Random, draw: Callable[..., Tensor] = randn, most: int = 300, widest: int = 21
) -> Call:
    """Draw the options of a call of an operator.

    Args:
        operator (str): an attention, or dynamic_conv.
        chance (random.Random): draws the options.
        draw (Callable): draws a tensor, as in :func:`make`.
        most (int): largest number of positions of a map. Defaults to 300.
        widest (int): longest side of a window. Defaults to 21.
    """

    def choose(*among: Any) -> Any:
        return chance.choice(among)

    def maybe(share: float = 0.5) -> bool:
        return chance.random() < share

    axes = {'global_attention': (1, 2, 2, 3), 'grid_attention': (2, 3), 'strided_attention': (1, 2, 3)}
    count = choose(*axes.get(operator, (2,)))

    def draw_size() -> tuple[int, ...]:
        area, sides = choose(most // 8, most), [1] * count
        for axis in chance.sample(range(count), count):
            sides[axis] = chance.randint(1, max(1, min(area // math.prod(sides), 40)))
        return tuple(sides)

    def lengths(*among: int) -> int | tuple[int, ...]:
        return choose(*among) if maybe() else tuple(choose(*among) for _ in range(count))

    odd = [length for length in (1, 3, 5, 9, 21) if length <= widest]
    size, key_size = draw_size(), None
    biases: list[str] = []
    settings: dict[str, Any] = {'channels': choose(1, 2, 3, 4, 5, 7, 8, 16, 17, 33)}
    if operator in ('global_attention', 'grid_attention') and maybe(0.6):
        outside = choose('outside_bias', 'outside_bias', 0.0, 0.7, -math.inf)
        biases += ['window_bias', outside] if isinstance(outside, str) else ['window_bias']
        settings |= {} if isinstance(outside, str) else {'outside_bias': outside}
        settings |= {'window_size': lengths(*odd), 'normalize': outside != -math.inf and maybe()}
    if operator == 'global_attention':
        settings['is_causal'] = maybe(0.3)
        if not biases and not settings['is_causal'] and maybe():
            key_size = draw_size()
        biases += [name for name in ('axis_bias', 'key_bias', 'key_mask') if maybe(0.4)]
    elif operator == 'strided_attention':
        settings |= {'pattern': choose(*PATTERNS), 'step': lengths(*range(1, 10))}
        if maybe():
            key_size = draw_size()
        elif maybe():
            settings['step'] = None
        biases += ['offset_bias'] if maybe() else []
    elif operator != 'grid_attention':
        settings |= {'kernel_size': lengths(*odd), 'dilation': choose(1, 1, 2, 3, 4)}
    if operator == 'local_attention':
        settings |= {'iterations': choose(1, 1, 2, 3)} if maybe(0.75) else {'channels': 0}
        biases += [choose('window_bias', 'window_bias', 'table')] if not settings['channels'] or maybe() else []
        biases += ['key_mask'] if maybe(0.4) else []
    if operator != 'dynamic_conv':
        settings['return_lse'] = maybe()
        settings |= {'scale': choose(None, 0.0, 0.3, 1.0)} if settings['channels'] else {}
    settings |= {'value_channels': choose(1, 2, 3, 4, 5, 7, 8, 16, 17, 33)}
    batch, heads = choose((1, 1), (1, 2), (2, 1), (2, 3))
    call = make(operator, size, *biases, key_size=key_size, batch=batch, heads=heads, draw=draw, **settings)
    if 'key_mask' in biases and maybe(0.1):
        call.tensors['key_mask'][0] = False  # a sample without keys
    return call
