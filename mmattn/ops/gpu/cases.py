"""Calls of the operators whose results are compared with the reference. Some are also timed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
    is_timed: bool = False


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
        yield Case(f'{side}×{side}, {channels} channels, window {k}×{k}', tensors, {'window_size': k}, True)
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
    yield Case(
        f'{side}×{side}, {channels[0]} and {channels[1]} channels, window {k}', tensors, {'window_size': k}, True
    )
    tensors = draw.operands((1, 3), (5, 7, 9), (24, 40)) | {'window_bias': draw(1, 3, 5, 7, 9, 9)}
    yield Case('5×7×9, windows', tensors, {'window_size': (3, 5, 3), 'outside_bias': 0.7, 'scale': 0.3})
    yield Case('19×23, content alone', draw.operands((1, 2), (19, 23), (5, 3)))
    tensors = draw.operands((1, 1), (19, 23), (16, 16)) | {'window_bias': draw(1, 1, 19, 23, 5)}
    yield Case('19×23, window alone', tensors, {'window_size': 3, 'outside_bias': -torch.inf})


def _local_attention_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    side = 17 if quick else 96
    tensors = {name: draw.maps(1, 8, side, side, 32) for name in ('query', 'key', 'value')}
    tensors['window_bias'] = draw.maps(1, 8, side, side, 9)
    yield Case(f'{side}×{side}, 8 heads', tensors, {'kernel_size': 3}, True)
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
        yield Case(f'{side}×{side}, {groups} groups, {k}×{k}', tensors, {'kernel_size': k}, True)
    tensors = {'value': draw(2, 3, 17, 19, 5), 'logits': draw(2, 3, 17, 19, 15)}
    yield Case('17×19, 5×3, dilation 2', tensors, {'kernel_size': (5, 3), 'dilation': 2})


def _strided_attention_cases(draw: Draw, quick: bool) -> Iterator[Case]:
    def offsets(at: tuple, size: tuple, step: tuple, pattern: str) -> list[Tensor]:
        return [draw(*at, *size, len(offset)) for offset in ops.strided_offsets(size, step, pattern)]

    size, step = ((8, 16, 8) if quick else (16, 64, 64)), (4, 8, 8)
    for heads, channels in ((1, 32), (8, 16)):
        tensors = draw.operands((1, heads), size, (channels, channels))
        tensors |= {'offset_bias': offsets((1, heads), size, step, 'block')}
        title = f'{"×".join(map(str, size))}, block, {heads} × {channels} channels'
        yield Case(title, tensors, {'pattern': 'block', 'step': step}, True)
    size, step = (5, 9, 11), (2, 3, 4)
    for pattern in ('block', 'centred', 'forward', 'strided'):
        tensors = draw.operands((1, 2), size, (24, 40)) | {'offset_bias': offsets((1, 2), size, step, pattern)}
        yield Case(f'5×9×11, {pattern}', tensors, {'pattern': pattern, 'step': step})
    yield Case('19×23, strided', draw.operands((2, 1), (19, 23), (7, 5)), {'pattern': 'strided', 'scale': 0.3})
    tensors = draw.operands((1, 2), (5, 9), (7, 5), key_size=(7, 9))
    yield Case('5×9 of 7×9, centred', tensors, {'pattern': 'centred', 'step': 3})


CASES: dict[str, Callable[[Draw, bool], Iterator[Case]]] = {
    'global_attention': _global_attention_cases,
    'grid_attention': _grid_attention_cases,
    'local_attention': _local_attention_cases,
    'dynamic_conv': _dynamic_conv_cases,
    'strided_attention': _strided_attention_cases,
}


def cases(operator: str, device: str, quick: bool) -> Iterator[Case]:
    """Yield the calls of an operator: a large map, odd shapes, and every option."""
    return CASES[operator](Draw(device), quick)
