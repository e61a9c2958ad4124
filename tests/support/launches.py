"""Compositions on the device 'meta', as on a GPU: what they launch, and the memory that they take."""

import contextlib
import importlib
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LAB = torch.library.Library('mmattn_tests', 'FRAGMENT')
LAB.define('sdpa(Tensor query, Tensor key, Tensor value, Tensor? table) -> Tensor')
LAB.define('sdpa_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? table) -> Tensor[]')
LAB.impl('sdpa', lambda query, key, value, _: value.new_empty(*query.shape[:-1], value.shape[-1]), 'Meta')
LAB.impl('sdpa_backward', lambda _, *x: [torch.empty_like(y) for y in x if y is not None], 'Meta')


class OneLaunch(torch.autograd.Function):
    """PyTorch's attention, of which a GPU launches one kernel per pass."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.ops.mmattn_tests.sdpa(*tensors)

    @staticmethod
    def backward(ctx, grad):
        grads = torch.ops.mmattn_tests.sdpa_backward(grad, *ctx.saved_tensors)
        return *grads, *[None] * (4 - len(grads))


def as_on_a_gpu(monkeypatch):
    """Compositions see tensors without data as they see those of a GPU: nothing there may look at values."""
    for name in ('table_attention', 'global_attention', 'strided_attention'):
        module = importlib.import_module(f'mmattn.ops.{name}')
        monkeypatch.setattr(module, 'sdpa', lambda *args: OneLaunch.apply(*args[:4]))
    monkeypatch.setattr(torch, 'autocast', lambda *_, **__: contextlib.nullcontext())  # it does not know the device


class Peak(TorchDispatchMode):
    """Keeps the largest number of bytes that are allocated at one time within the block."""

    def __init__(self):
        super().__init__()
        self.bytes, self.live, self._known = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in self._known:
                storage = x.untyped_storage()
                self._known.add(storage._cdata)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._end, storage._cdata, storage.nbytes())
        self.bytes = max(self.bytes, self.live)
        return out

    def _end(self, storage, size):
        self._known.remove(storage)
        self.live -= size
