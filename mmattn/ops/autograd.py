"""Derivatives of the operators, and their batching under ``torch.vmap``.

This module registers autograd kernels. The README says what this costs. ``torch.library.register_autograd`` cannot
replace them, neither for :func:`projection` nor where no compiler built those of ``csrc/autograd.cpp``: it supports
gradients only. With it, forward-mode derivatives are 0, without an error, and ``torch.func.grad`` is an error.

Example:
    >>> toy = torch.library.Library('mmattn_toy', 'FRAGMENT')
    >>> name = toy.define('double(Tensor x) -> Tensor')
    >>> toy.impl(name, lambda x: 2 * x, 'CompositeExplicitAutograd')
    >>> torch.library.register_autograd(f'mmattn_toy::{name}', lambda ctx, grad: 2 * grad, lib=toy)
    >>> x = torch.ones(())
    >>> torch.func.jvp(torch.ops.mmattn_toy.double, (x,), (x,))[1]  # it should be 2
    tensor(0.)
    >>> torch.func.grad(torch.ops.mmattn_toy.double)(x)
    Traceback (most recent call last):
    RuntimeError: In order to use an autograd.Function with functorch transforms...it must override the setup_context...
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map

from . import library

LIBRARY = torch.library.Library('mmattn', 'FRAGMENT')
# A kernel for a device takes precedence over the kernel of `custom_op`, which is registered for the alias key Autograd.
KEYS = [f'Autograd{device}' for device in ('CPU', 'CUDA', 'MPS', 'XPU', 'Meta', 'PrivateUse1', 'Other')]


def register(name: str, differentiable: int = 1) -> None:
    """Register the derivative of the first ``differentiable`` outputs of ``mmattn::<name>``, and vmap.

    ``mmattn::<name>_backward`` is called with the gradients of these outputs (a tensor for the first one, and None for
    others without a gradient), the outputs that it needs, the arguments of the operator, and one bool per tensor among
    these arguments: whether it needs a gradient. It returns the needed gradients in the order of the tensors. The batch
    is the first dimension of every tensor. Native code registers the same derivative, with less overhead per call.
    """
    op, backward = (getattr(torch.ops.mmattn, x).default for x in (name, f'{name}_backward'))
    for overload in (op, backward):
        register_vmap(overload, _fold_into_batch(overload))
    register_grads_batch(backward)
    if library.UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.register_derivative(name, differentiable)
        return

    def gradients(needed: Sequence[bool], grads: Sequence[Tensor | None], kept: Sequence[Tensor], *arguments: Any):
        results = iter(backward(*grads, *kept, *arguments, needed))
        return [next(results) if is_needed else None for is_needed in needed]

    def twice(*_: Any) -> list[Tensor]:
        raise NotImplementedError(f'mmattn::{name} is not twice differentiable')

    kept = len(backward._schema.arguments) - differentiable - 1 - len(op._schema.arguments)
    register_formula(name, gradients, differentiable, kept)
    register_formula(f'{name}_backward', twice, None)


def register_vmap(op: torch._ops.OpOverload, rule: Callable) -> None:
    """Call :func:`torch.library.register_vmap`, which torch 2.4 does not have."""
    if hasattr(torch.library, 'register_vmap'):
        torch.library.register_vmap(op, rule)


def register_grads_batch(backward: torch._ops.OpOverload) -> None:
    """Register an operator, whose tensors have the batch first, for ``torch.autograd.grad(…, is_grads_batched=True)``.

    It marks batches otherwise than ``torch.vmap``, and has no public way to register a rule.
    """

    def kernel(*arguments: Any) -> list[Tensor]:
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        batched = next(x for x in list_tensors(arguments) if torch._C._functorch.is_legacy_batchedtensor(x))
        count = torch._remove_batch_dim(batched, level, 1, 0).shape[0]

        def fold(x: Tensor) -> Tensor:
            return torch._remove_batch_dim(x, level, count, 0).flatten(0, 1)

        outputs = backward(*_replace(arguments, lambda x: fold(x) if isinstance(x, Tensor) else x))
        return [torch._add_batch_dim(y.unflatten(0, (count, -1)), 0, level) for y in outputs]

    LIBRARY.impl(backward._schema.name.removeprefix('mmattn::'), kernel, 'Batched')


def register_formula(name: str, gradients: Callable, differentiable: int | None = 1, kept: int = 0) -> None:
    """Register the derivative of the first ``differentiable`` outputs of ``mmattn::<name>``, None for all outputs.

    ``gradients`` is called with one bool per tensor among the arguments (whether it needs a gradient), the gradients of
    the differentiable outputs as in :func:`register`, the first ``kept`` outputs, and the arguments. It returns a
    gradient or None for each tensor.
    """
    op = getattr(torch.ops.mmattn, name).default
    defaults = [x.default_value for x in op._schema.arguments]

    def kernel(keyset: torch._C.DispatchKeySet, *arguments: Any) -> Any:
        arguments = (*arguments, *defaults[len(arguments) :])  # the dispatcher drops what equals a default

        def below(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

        tensors = list_tensors(arguments)
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not recorded and forward_ad._current_level < 0:
            return below(*arguments)
        template = _replace(arguments, lambda x: Tensor if isinstance(x, Tensor) else x)  # keeps no tensors
        formula = _Formula(name, below, gradients, differentiable, kept, template)
        # The dispatcher calls this kernel once for each active transform of torch.func, so it must handle one level;
        # `Function.apply` would apply all transforms again.
        with enable_single_level_autograd_function():
            outputs = super(torch.autograd.Function, _Call).apply(formula, *tensors)
        return _as_returned(op, outputs)

    for key in KEYS:
        LIBRARY.impl(name, kernel, key, with_keyset=True)


def list_tensors(arguments: Sequence) -> list[Tensor]:
    """List the tensors among the arguments, including tensors in lists. This is faster than torch's pytrees."""
    tensors = []
    for x in arguments:
        if isinstance(x, Tensor):
            tensors.append(x)
        elif isinstance(x, list | tuple):
            tensors += list_tensors(x)
    return tensors


def _replace(arguments: Sequence, by: Callable) -> list:
    return [[by(y) for y in x] if isinstance(x, list | tuple) else by(x) for x in arguments]


class _Formula(NamedTuple):
    """The derivative of an operator, for one call."""

    name: str
    below: Callable  # runs the operator without autograd
    gradients: Callable
    differentiable: int | None
    kept: int
    template: list  # the arguments, with the class Tensor in place of tensors

    def arguments(self, tensors: Sequence[Tensor]) -> list:
        """Fill the template."""
        remaining = iter(tensors)
        return _replace(self.template, lambda x: next(remaining) if x is Tensor else x)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx, formula, *tensors):  # type: ignore[override]
        ctx.formula = formula
        # Autograd is disabled inside `forward`, but the next transform of torch.func requires it.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            results = formula.below(*formula.arguments(tensors))
        outputs = (results,) if isinstance(results, Tensor) else tuple(results)
        first = outputs[0]
        ctx.zeros = functools.partial(torch.zeros, first.shape, dtype=first.dtype, device=first.device)
        ctx.save_for_backward(*outputs[: formula.kept], *tensors)
        ctx.mark_non_differentiable(*([] if formula.differentiable is None else outputs[formula.differentiable :]))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        formula, saved = ctx.formula, ctx.saved_tensors  # read once: checkpointing does not allow unpacking them twice
        kept, tensors = saved[: formula.kept], saved[formula.kept :]
        needed = [flag and x.is_floating_point() for flag, x in zip(ctx.needs_input_grad[1:], tensors)]
        grads = (ctx.zeros() if grads[0] is None else grads[0], *grads[1 : formula.differentiable])
        return None, *formula.gradients(needed, grads, kept, *formula.arguments(tensors))

    @staticmethod
    def jvp(ctx, *_):  # type: ignore[override]
        raise NotImplementedError(
            f'mmattn::{ctx.formula.name} has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); '
            'use reverse mode (torch.func.vjp, torch.autograd.grad)'
        )


def _as_returned(op: torch._ops.OpOverload, outputs: tuple[Tensor, ...]) -> Tensor | list[Tensor] | tuple[Tensor, ...]:
    returns = op._schema.returns
    if len(returns) > 1:
        return outputs
    return list(outputs) if isinstance(returns[0].type, torch.ListType) else outputs[0]


def _fold_into_batch(op: torch._ops.OpOverload) -> Callable:
    """Build the vmap rule of an operator whose tensors have the batch first: one call for all samples."""

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple:
        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        outputs = op(*tree_map(fold, arguments, in_dims))
        return tree_map(lambda y: y.unflatten(0, (info.batch_size, -1)), outputs), tree_map(lambda _: 0, outputs)

    return rule
