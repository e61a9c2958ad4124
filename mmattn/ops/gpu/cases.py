"""Cases and workloads of the GPU check: calls whose results are compared, and calls whose times are."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmattn import ops

Tensors = dict[str, Any]  # arguments by name: a tensor, or a list of them


@dataclass
class Case:
    """A call whose results are compared with the reference in float64."""

    title: str
    tensors: Tensors
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Workload:
    """A call whose time is measured."""

    title: str
    function: Callable[..., Tensor]
    inputs: list[Tensor]

    def call(self) -> Tensor:
        """Call the function with its inputs."""
        return self.function(*self.inputs)


class Draw:
    """Generates normally distributed tensors, with the same sequence in every run on a device."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float64) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        """Draw a tensor of this shape."""
        return torch.randn(*shape, generator=self.generator, device=self.device, dtype=self.dtype)

    def maps(self, *shape: int) -> Tensor:
        """Draw a tensor ``(B, heads, H, W, C)`` with the strides of a convolution's output."""
        *positions, channels = shape
        return self(*positions[:2], channels, *positions[2:]).movedim(2, -1)

    def operands(self, at: tuple, size: tuple, channels: tuple, key_size: tuple = ()) -> Tensors:
        """Draw query, key and value for ``at = (B, heads)``."""
        keys = key_size or size
        return {
            'query': self(*at, *size, channels[0]),
            'key': self(*at, *keys, channels[0]),
            'value': self(*at, *keys, channels[1]),
        }

    def mask(self, *shape: int) -> Tensor:
        """Draw a mask that is mostly True."""
        return self(*shape) > -1


def _global_attention_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    side, k = (21, 7) if quick else (97, 31)
    for channels in (32,) if quick else (64, 256):
        tensors = draw.operands((1, 1), (side, side), (channels, channels))
        tensors |= {'window_bias': draw(1, 1, side, side, k * k), 'outside_bias': draw(1, 1, side, side)}
        yield Case(f'{side}×{side}, {channels} channels, window {k}×{k}', tensors, {'window_size': k})
    tensors = draw.operands((1, 1), (side, side), (128, 64))
    yield Case(f'{side}×{side}, 128 channels, causal', tensors, {'is_causal': True})
    tensors = draw.operands((2, 3), (3, 7, 13), (24, 40))
    tensors |= {'window_bias': draw(2, 3, 3, 7, 13, 105), 'outside_bias': draw(2, 3, 3, 7, 13)}
    tensors |= {'axis_bias': [draw(2, 3, 3, 7, 13, n) for n in (3, 7, 13)], 'key_bias': draw(2, 3, 3, 7, 13)}
    tensors['key_mask'] = draw.mask(2, 3, 7, 13)
    yield Case('3×7×13, every bias and a mask', tensors, {'window_size': (3, 5, 7), 'scale': 0.3})
    tensors = draw.operands((1, 2), (5, 11), (20, 12), key_size=(9, 11)) | {'window_bias': draw(1, 2, 5, 11, 8)}
    yield Case('5×11 of 9×11, causal, window', tensors, {'window_size': (3, 5), 'is_causal': True})
    tensors = draw.operands((1, 1), (101,), (7, 9), key_size=(67,)) | {'axis_bias': [draw(1, 1, 101, 67)]}
    yield Case('101 queries, 67 keys, axis biases', tensors)
    tensors = draw.operands((1, 1), (19, 23), (16, 16)) | {'window_bias': draw(1, 1, 19, 23, 9)}
    yield Case('19×23, window alone', tensors, {'window_size': 3, 'outside_bias': -torch.inf})


def _grid_attention_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    side, k, channels = (21, 7, (8, 16)) if quick else (97, 31, (64, 512))
    tensors = draw.operands((2, 1), (side, side), channels)
    tensors |= {'window_bias': draw(2, 1, side, side, 2 * k - 1), 'outside_bias': draw(2, 1, side, side)}
    yield Case(f'{side}×{side}, {channels[0]} and {channels[1]} channels, window {k}', tensors, {'window_size': k})
    tensors = draw.operands((1, 3), (5, 7, 9), (24, 40)) | {'window_bias': draw(1, 3, 5, 7, 9, 9)}
    yield Case('5×7×9, windows', tensors, {'window_size': (3, 5, 3), 'outside_bias': 0.7, 'scale': 0.3})
    yield Case('19×23, content alone', draw.operands((1, 2), (19, 23), (5, 3)))
    tensors = draw.operands((1, 1), (19, 23), (16, 16)) | {'window_bias': draw(1, 1, 19, 23, 5)}
    yield Case('19×23, window alone', tensors, {'window_size': 3, 'outside_bias': -torch.inf})


def _local_attention_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    side = 17 if quick else 96
    tensors = {name: draw.maps(1, 8, side, side, 32) for name in ('query', 'key', 'value')}
    tensors['window_bias'] = draw.maps(1, 8, side, side, 9)
    yield Case(f'{side}×{side}, 8 heads', tensors, {'kernel_size': 3})
    tensors = draw.operands((2, 2), (33, 47), (6, 6)) | {'window_bias': draw(2, 2, 33, 47, 9)}
    yield Case('33×47, refined', tensors, {'kernel_size': 3, 'iterations': 3, 'scale': 0.3})
    tensors = draw.operands((1, 3), (17, 19), (5, 7))
    yield Case('17×19, 13×13 neighbours, dilation 2', tensors, {'kernel_size': 13, 'dilation': 2})
    tensors = {'value': draw(1, 3, 17, 19, 7), 'window_bias': draw(1, 3, 17, 19, 15)}
    yield Case('17×19, geometry alone', tensors, {'query': None, 'key': None, 'kernel_size': (3, 5)})


def _dynamic_conv_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    for side, groups, k in ((17, 8, 3), (17, 16, 5)) if quick else ((96, 8, 3), (48, 16, 13)):
        tensors = {'value': draw.maps(1, groups, side, side, 256 // groups)}
        tensors['logits'] = draw.maps(1, groups, side, side, k * k)
        yield Case(f'{side}×{side}, {groups} groups, {k}×{k}', tensors, {'kernel_size': k})
    tensors = {'value': draw(2, 3, 17, 19, 5), 'logits': draw(2, 3, 17, 19, 15)}
    yield Case('17×19, 5×3, dilation 2', tensors, {'kernel_size': (5, 3), 'dilation': 2})


def _strided_attention_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    def offsets(at: tuple, size: tuple, step: tuple, pattern: str) -> list[Tensor]:
        return [draw(*at, *size, len(offset)) for offset in ops.strided_offsets(size, step, pattern)]

    size, step = ((8, 16, 8) if quick else (16, 64, 64)), (4, 8, 8)
    tensors = draw.operands((1, 1), size, (32, 32)) | {'offset_bias': offsets((1, 1), size, step, 'block')}
    yield Case(f'{"×".join(map(str, size))}, block', tensors, {'pattern': 'block', 'step': step})
    size, step = (5, 9, 11), (2, 3, 4)
    for pattern in ('block', 'centred', 'forward', 'strided'):
        tensors = draw.operands((1, 2), size, (24, 40)) | {'offset_bias': offsets((1, 2), size, step, pattern)}
        yield Case(f'5×9×11, {pattern}', tensors, {'pattern': pattern, 'step': step})
    yield Case('19×23, strided', draw.operands((2, 1), (19, 23), (7, 5)), {'pattern': 'strided', 'scale': 0.3})
    tensors = draw.operands((1, 2), (5, 9), (7, 5), key_size=(7, 9))
    yield Case('5×9 of 7×9, centred', tensors, {'pattern': 'centred', 'step': 3})


def _with_window(operator: Callable[..., Tensor], window_size: int | tuple[int, ...]) -> Callable[..., Tensor]:
    def call(query: Tensor, key: Tensor, value: Tensor, window_bias: Tensor, outside_bias: Tensor) -> Tensor:
        return operator(query, key, value, window_bias=window_bias, window_size=window_size, outside_bias=outside_bias)

    return call


def _global_attention_workloads(draw: Draw, quick: bool) -> Iterator[Workload]:
    side, k = (21, 7) if quick else (97, 31)
    for channels in (32,) if quick else (256, 64):  # a kernel may support fewer channels in float32
        inputs = [draw(1, 1, side, side, *rest) for rest in ((channels,), (channels,), (channels,), (k * k,), ())]
        yield Workload(f'{side}×{side}, {channels} channels', _with_window(ops.global_attention, k), inputs)


def _grid_attention_workloads(draw: Draw, quick: bool) -> Iterator[Workload]:
    side, k, channels = (11, 5, 16) if quick else (97, 31, 512)
    query, key, value = (draw.maps(2, 1, side, side, c) / c**0.25 for c in (channels // 8, channels // 8, channels))
    positions = [draw(2, 1, side, side, *rest) for rest in ((2 * k - 1,), ())]
    unscaled = partial(ops.grid_attention, scale=1.0)
    title = f'2×{side}×{side}, {channels // 8} and {channels} channels'
    yield Workload(title, _with_window(unscaled, k), [query, key, value, *positions])
    size, windows = ((4, 8, 8) if quick else (16, 64, 64)), (9, 9, 11)
    inputs = [draw(1, 1, *size, *rest) for rest in ((32,), (32,), (32,), (27,), ())]
    yield Workload(f'{"×".join(map(str, size))}, 32 channels', _with_window(ops.grid_attention, windows), inputs)


def _local_attention_workloads(draw: Draw, quick: bool) -> Iterator[Workload]:
    side, channels = (17, 64) if quick else (96, 256)
    for iterations in (1, 3):

        def call(query: Tensor, key: Tensor, value: Tensor, window_bias: Tensor, n: int = iterations) -> Tensor:
            return ops.local_attention(
                query, key, value, window_bias=window_bias, kernel_size=3, scale=1.0, iterations=n
            )

        # small enough for finite refined logits in float16
        inputs = [draw.maps(1, 8, side, side, channels // 8) / 4 for _ in range(3)] + [draw.maps(1, 8, side, side, 9)]
        refined = ', refined' if iterations > 1 else ''
        yield Workload(f'{side}×{side}, {channels} channels, 8 heads{refined}', call, inputs)


def _dynamic_conv_workloads(draw: Draw, quick: bool) -> Iterator[Workload]:
    for side, groups, k in ((17, 8, 3), (17, 16, 5)) if quick else ((96, 8, 3), (48, 16, 13)):
        inputs = [draw.maps(1, groups, side, side, c) for c in (256 // groups, k * k)]
        title = f'{side}×{side}, 256 channels, {groups} groups, {k}×{k}'
        yield Workload(title, partial(ops.dynamic_conv, kernel_size=k), inputs)


def _strided_attention_workloads(draw: Draw, quick: bool) -> Iterator[Workload]:
    size, step = ((8, 16, 8) if quick else (16, 64, 64)), (4, 8, 8)
    widths = [len(offset) for offset in ops.strided_offsets(size, step, 'block')]

    def call(query: Tensor, key: Tensor, value: Tensor, *offset_bias: Tensor) -> Tensor:
        return ops.strided_attention(query, key, value, pattern='block', step=step, offset_bias=offset_bias)

    for heads, positions in itertools.product((1, 8), (False, True)):
        inputs = [draw(1, heads, *size, 32 // heads) for _ in range(3)]
        inputs += [draw(1, heads, *size, n) for n in widths if positions]
        biases = ', biases by offset' if positions else ''
        yield Workload(f'{"×".join(map(str, size))}, 32 channels, heads: {heads}{biases}', call, inputs)


CASES: dict[str, Callable[[Draw, bool], Iterator[Case]]] = {
    'global_attention': _global_attention_cases,
    'grid_attention': _grid_attention_cases,
    'local_attention': _local_attention_cases,
    'dynamic_conv': _dynamic_conv_cases,
    'strided_attention': _strided_attention_cases,
}
WORKLOADS: dict[str, Callable[[Draw, bool], Iterator[Workload]]] = {
    'global_attention': _global_attention_workloads,
    'grid_attention': _grid_attention_workloads,
    'local_attention': _local_attention_workloads,
    'dynamic_conv': _dynamic_conv_workloads,
    'strided_attention': _strided_attention_workloads,
}


def cases(operator: str, device: str, quick: bool) -> Iterator[Case]:
    """Yield the calls of an operator: a large map, odd shapes, and every option."""
    return CASES[operator](Draw(device), quick)


def workloads(operator: str, device: str, dtype: torch.dtype, quick: bool) -> Iterator[Workload]:
    """Yield the workloads of an operator."""
    for work in WORKLOADS[operator](Draw(device, dtype), quick):
        work.inputs = [x.requires_grad_() for x in work.inputs]
        yield work
