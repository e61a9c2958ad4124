"""What a training step of a layer asks of the host: launches, and nothing that waits for a GPU.

On the device 'meta' every number that the host would read is an error. The operators run as compositions.
"""

import re
from inspect import signature
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmattn import layers
from mmattn.ops import tables
from mmattn.ops.dispatch import OPERATORS

from ..support.launches import as_on_a_gpu
from .test_every_layer import LAYERS

PAGE = Path(__file__).parents[2] / 'docs/performance.md'
# Of the page's rows, | `layer` | sides | bfloat16 | float32 |: launches of a forward and of a backward pass.
ROW = re.compile(r'^\| `(\w+)` \| ([\d×]+) \| (\d+) \+ (\d+) \| (\d+) \+ (\d+) \|$', re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding='utf-8'))
CHANNELS = {'BilateralNonLocal2d': 512, 'BilateralCrissCrossAttention': 512, 'LocalBilateralAttention': 256}
MOST = {  # of both passes; StridedAttention3d is two attentions
    **{(name, size): 150 for name in CHANNELS for size in ('97×97', '193×193')},
    ('BilateralNonLocal2d', '97×97'): 200,
    ('BilateralNonLocal2d', '193×193'): 1200,
    ('GridAttention3d', '8×60×107'): 150,
    ('StridedAttention3d', '8×60×107'): 300,
}


class Launches(TorchDispatchMode):
    """Counts what launches a kernel, within operators, too, and lists what moves between devices or is cast again."""

    def __init__(self):
        super().__init__()
        self.count, self.moved, self.cast = 0, [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name.split('::')[1]
        if operator := OPERATORS.get(name.removesuffix('_backward')):
            values = [kwargs.get(x.name, x.default_value) for x in func._schema.arguments]
            values[: len(args)] = args
            compute = operator.compute if name == operator.name else operator.compute_backward
            with self:
                return compute(operator.implementations[-1], values)
        out = func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        if any(x.device.type != 'meta' for x in tensors):
            self.moved.append(name)
        if name == '_to_copy' and args[0].dtype != out.dtype:
            casts = self.cast.setdefault((id(args[0]), out.dtype), [])
            casts.append(args[0])  # kept, so that no other tensor has its id
        self.count += not func.is_view and not name.startswith(('empty', 'new_empty', 'detach', '_unsafe_view'))
        return out


@pytest.mark.parametrize('name', LAYERS)
def test_a_training_step_does_not_wait_for_the_gpu(name, monkeypatch):
    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(tables, '_kept', {})
    cfg, shape = LAYERS[name]
    init_default_scope('mmattn')
    with torch.device('meta'):
        layer = MODELS.build({'type': f'mmattn.{name}', **cfg}).bfloat16()
        required = [p for p in signature(layer.forward).parameters.values() if p.default is p.empty]
        shapes = shape if isinstance(shape, list) else [shape] * len(required)
        inputs = [torch.empty(size, dtype=torch.bfloat16, requires_grad=True) for size in shapes]
    # Without the device as a default: a table that is made on the host, and copied, would wait for the GPU.
    for _ in range(2):  # the second step has the tables of the first
        with Launches() as mode:
            out = layer(*inputs)
            loss = (out[0] if isinstance(out, tuple) else out).float().sum()
            torch.autograd.grad(loss, [*inputs, *layer.parameters()], allow_unused=True)
        assert mode.moved == []
        assert [name for name, casts in mode.cast.items() if len(casts) > 1] == []


@pytest.mark.parametrize(('name', 'sides', 'counted'), [(name, sides, counted) for name, sides, *counted in ROWS])
def test_launches_at_the_size_of_the_papers(name, sides, counted, monkeypatch):
    """Of a step with one sample, without those within PyTorch's operators, after a first step: as the page says."""
    as_on_a_gpu(monkeypatch)
    size = [*map(int, sides.split('×'))]
    clip = len(size) == 3
    shape = (1, *size, 128) if clip else (1, CHANNELS[name], *size)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(tables, '_kept', {})
        with torch.device('meta'):
            layer = getattr(layers, name)(128 if clip else CHANNELS[name]).to(dtype)
            x = torch.empty(shape, dtype=dtype, requires_grad=True)
            frames = {'frame_numbers': torch.empty(1, size[0], dtype=torch.int64)} if clip else {}
        for _ in range(2):
            with Launches() as mode:
                out = layer(x, **frames)
                forward = mode.count
                torch.autograd.grad(out.float().sum(), [x, *layer.parameters()], allow_unused=True)
        found += [forward, mode.count - forward]
    assert found == [*map(int, counted)]
    assert sum(found[:2]) <= MOST[name, sides]


def test_the_page_has_all_layers():
    assert {(name, sides) for name, sides, *_ in ROWS} == MOST.keys()
