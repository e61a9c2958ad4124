"""Derivatives of the operators, and their batching under ``torch.vmap``.

``torch.library.register_autograd`` gives gradients and no more: forward-mode AD is silently 0, ``torch.func.grad``
raises an error about a class that the user never sees, and a second derivative requests a registration. So the
operators' kernels for autograd are these, for calls of the public functions and of ``torch.ops.mmattn`` alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map

LIBRARY = torch.library.Library('mmattn', 'FRAGMENT')
# A kernel for a device goes before that of `custom_op`, which is for the alias of all of them.
KEYS = [f'Autograd{device}' for device in ('CPU', 'CUDA', 'MPS', 'XPU', 'Meta', 'PrivateUse1', 'Other')]


def register(name: str) -> None:
    """Register the derivative of ``mmattn::<name>``, which ``mmattn::<name>_backward`` computes, and vmap for both.

    The first output is differentiable. The backward operator takes its gradient, then either all outputs or none, then
    the arguments of the operator. It returns the gradients of the floating-point tensors among these, in their order.
    The first dimension of all tensors is the batch. A second derivative is an error.
    """
    op, backward = (getattr(torch.ops.mmattn, x).default for x in (name, f'{name}_backward'))

    def gradients(needed: Sequence[bool], grad: Tensor, *saved: Any) -> list[Tensor]:
        return backward(grad, *saved)

    def twice(*_: Any) -> list[Tensor]:
        raise NotImplementedError(f'mmattn::{name} is not twice differentiable')

    kept = len(backward._schema.arguments) - 1 - len(op._schema.arguments)
    register_formula(name, gradients, _fold_into_batch(op), kept)
    register_formula(f'{name}_backward', twice, _fold_into_batch(backward))


def register_formula(name: str, gradients: Callable, vmap: Callable, kept: int = 0) -> None:
    """Register a derivative and a batching rule of ``mmattn::<name>``.

    Args:
        name (str): of the operator.
        gradients (Callable): called with whether each tensor among the arguments needs a gradient, the gradient of
            the output, the first ``kept`` outputs and the arguments. Returns the gradients of the floating-point
            tensors among the arguments, in their order.
        vmap (Callable): as in :func:`torch.library.register_vmap`; torch 2.4 has no such rules.
        kept (int): outputs that the derivative needs. Defaults to 0.
    """
    op = getattr(torch.ops.mmattn, name).default

    def kernel(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        def below(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

        tensors = [x for x in _leaves(arguments) if isinstance(x, Tensor)]
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not recorded and forward_ad._current_level < 0:
            return below(*arguments)
        others = _replace(arguments, lambda x: Tensor if isinstance(x, Tensor) else x)  # holds no tensor alive

        def fill(tensors: Sequence[Tensor]) -> Sequence:
            given = iter(tensors)
            return _replace(others, lambda x: next(given) if x is Tensor else x)

        # The dispatcher comes here once for each of torch.func's transforms, so this is one level of them;
        # `Function.apply` would begin with all of them again.
        with enable_single_level_autograd_function():
            outputs = super(torch.autograd.Function, _Call).apply(name, below, gradients, kept, fill, *tensors)
        return _as_returned(op, outputs)

    for key in KEYS:
        LIBRARY.impl(name, kernel, key, with_keyset=True)
    if hasattr(torch.library, 'register_vmap'):
        torch.library.register_vmap(op, vmap)


def _leaves(arguments: Sequence) -> list:
    """Return arguments with the items of lists among them; torch's pytrees would take as long as a small operator."""
    return [y for x in arguments for y in (x if isinstance(x, list | tuple) else (x,))]


def _replace(arguments: Sequence, by: Callable) -> list:
    return [[by(y) for y in x] if isinstance(x, list | tuple) else by(x) for x in arguments]


class _Call(torch.autograd.Function):
    """A call of an operator, as a node of autograd's graph."""

    @staticmethod
    def forward(ctx, name, below, gradients, kept, fill, *tensors):  # type: ignore[override]
        ctx.name, ctx.gradients, ctx.kept, ctx.fill = name, gradients, kept, fill
        # Autograd switches itself off in here; the next of torch.func's transforms wants it.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            found = below(*fill(tensors))
        outputs = (found,) if isinstance(found, Tensor) else tuple(found)
        ctx.save_for_backward(*outputs[:kept], *tensors)
        ctx.mark_non_differentiable(*outputs[1:kept])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        saved = ctx.saved_tensors  # read once: activation checkpointing refuses to unpack them a second time
        tensors = saved[ctx.kept :]
        needed = ctx.needs_input_grad[-len(tensors) :]
        found = iter(ctx.gradients(needed, grads[0], *saved[: ctx.kept], *ctx.fill(tensors)))
        return *[None] * 5, *(next(found) if x.is_floating_point() else None for x in tensors)

    @staticmethod
    def jvp(ctx, *_):  # type: ignore[override]
        raise NotImplementedError(
            f'mmattn::{ctx.name} has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); use '
            'reverse mode (torch.func.vjp, torch.autograd.grad)'
        )


def _as_returned(op: torch._ops.OpOverload, outputs: tuple[Tensor, ...]) -> Tensor | list[Tensor] | tuple[Tensor, ...]:
    """Return flat outputs as the schema has them."""
    returns = op._schema.returns
    if len(returns) > 1:
        return outputs
    return list(outputs) if isinstance(returns[0].type, torch.ListType) else outputs[0]


def _fold_into_batch(op: torch._ops.OpOverload) -> Callable:
    """Return the batching rule of an operator whose tensors begin with the batch: one call for all samples."""

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        outputs = op(*tree_map(fold, arguments, in_dims))
        return tree_map(lambda y: y.unflatten(0, (info.batch_size, -1)), outputs), tree_map(lambda _: 0, outputs)

    return rule
