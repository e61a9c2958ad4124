"""What a training step of a layer asks of the host: launches, and nothing that waits for a GPU.

On the device 'meta' every number that the host would read is an error. The operators run as compositions.
"""

from contextlib import nullcontext
from inspect import signature

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmattn.ops import table_attention, tables
from mmattn.ops.dispatch import OPERATORS

from .test_every_layer import LAYERS

# The launches of a forward and of a backward pass, without those within PyTorch's operators, and of the first step.
LAUNCHES = {
    'BilateralCrissCrossAttention': (54, 71),
    'BilateralNonLocal2d': (44, 80),
    'LocalBilateralAttention': (36, 106),
    'StridedAttention3d': (81, 212),
    'GridAttention3d': (48, 83),
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
    monkeypatch.setattr(torch, 'autocast', lambda *_, **__: nullcontext())  # 'meta' has none
    monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)
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
            forward = mode.count
            loss = (out[0] if isinstance(out, tuple) else out).float().sum()
            torch.autograd.grad(loss, [*inputs, *layer.parameters()], allow_unused=True)
        assert mode.moved == []
        assert [name for name, casts in mode.cast.items() if len(casts) > 1] == []
    most = LAUNCHES.get(name)
    assert most is None or (forward, mode.count - forward) == most
