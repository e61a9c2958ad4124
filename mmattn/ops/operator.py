"""The declaration of an operator: its schema, references, fake implementation, derivative and FLOPs."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, register_flop_formula

from . import autograd, dispatch
from .window_bias import accumulator

LIBRARY = autograd.LIBRARY
CUDA_LIBRARY = torch.library.Library('mmattn_cuda', 'FRAGMENT')  # the CUDA kernels, which `dispatch.py` calls
LSE = '(Tensor, Tensor)'  # outputs of an operator: attention, and log-sum-exp of the logits


class PublicOperator(Protocol):
    """The return type of :meth:`Operator.public`."""

    arguments: Callable[..., tuple]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run the operator."""


class Operator:
    """An operator ``mmattn::<name>`` and its derivative ``mmattn::<name>_backward``.

    On a CPU, PyTorch's dispatcher runs a native kernel if it supports the tensors. Otherwise ``dispatch.py`` chooses a
    CUDA or Triton kernel, a composition of PyTorch's operators, or the reference. The callables below receive the
    arguments as one object, whose attributes have the names of the schema.

    Args:
        name (str): name of the operator.
        arguments (str): arguments of the schema. The first dimension of every tensor is the batch.
        outputs (str): outputs of the schema. With '(Tensor, Tensor)', the second output is a log-sum-exp, and the
            operator has a last argument ``return_lse``: if False, an implementation may leave this output undefined.
        reference (Callable): computes the outputs from the arguments, literally, in float32 or float64. Every other
            implementation is compared with it.
        backward (Callable): called with the gradient of each differentiable output, the ``kept`` outputs, and the
            arguments. Returns a gradient or None for each tensor among the arguments. Gradients that are not needed are
            dropped. Native kernels do not compute them.
        fake (Callable): allocates outputs without data from the arguments.
        flops (Callable): counts FLOPs from the arguments, with shapes in place of tensors, and a bool, True for the
            backward pass.
        kept (sequence of str): names of the first outputs, which the derivative needs. Defaults to none.
        differentiable (int): the first ``differentiable`` outputs have a derivative. Defaults to 1.
        layout (torch.memory_format): memory format of the gradients, for ``torch.empty_like``. Defaults to contiguous.

    Example:
        >>> SQUARE = Operator('square', 'Tensor x', 'Tensor', reference=lambda a: a.x**2,
        ...                   backward=lambda grad, a: [2 * grad * a.x], fake=lambda a: torch.empty_like(a.x),
        ...                   flops=lambda a, backward: math.prod(a.x))
        >>> torch.ops.mmattn.square(torch.tensor([3.0]))
        tensor([9.])
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        outputs: str,
        *,
        reference: Callable,
        backward: Callable,
        fake: Callable,
        flops: Callable,
        kept: Sequence[str] = (),
        differentiable: int = 1,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.name = name
        self.returns_lse = outputs == LSE
        if self.returns_lse:
            arguments += ', bool return_lse'
        fields = re.findall(r'(\w+)(?:,|$)', arguments)
        self.Arguments: Any = namedtuple('Arguments', fields, defaults=[True] * self.returns_lse)  # type: ignore[misc]
        self._reference, self._backward = reference, backward
        self._fake, self._layout = fake, layout
        self._leading = differentiable + len(kept)  # arguments of the backward operator that come first
        leading = [f'Tensor grad{i or ""}' for i in range(differentiable)] + [f'Tensor {x}' for x in kept]
        derivative = f'({", ".join(leading)}, {arguments}, bool[] needed) -> Tensor[]'
        schema = arguments.replace('bool return_lse', 'bool return_lse=True')
        dispatch.register(name, 'reference', self.reference, self.reference_backward)
        self._define(name, f'({schema}) -> {outputs}', self.fake)
        self._define(f'{name}_backward', derivative, self.fake_backward)
        self.run = getattr(torch.ops.mmattn, name).default
        autograd.register(name, differentiable)
        count_flops(name, lambda *shapes: flops(self.Arguments(*shapes), False))
        count_flops(f'{name}_backward', lambda *shapes: flops(self.Arguments(*shapes[self._leading : -1]), True))
        dispatch.OPERATORS[name] = self

    def reference(self, *arguments: Any) -> Any:
        """Evaluate the operator in PyTorch."""
        return self._reference(self.Arguments(*arguments))

    def reference_backward(self, *arguments: Any) -> list[Tensor]:
        """Evaluate the needed gradients in PyTorch, in the dtypes of the tensors."""
        return self.needed_gradients(self._backward, *arguments)

    def needed_gradients(self, backward: Callable, *arguments: Any) -> list[Tensor]:
        """Call a function such as ``backward`` with the arguments of the backward operator. Drop unneeded gradients."""
        operands, needed = arguments[self._leading : -1], arguments[-1]
        grads = backward(*arguments[: self._leading], self.Arguments(*operands))
        tensors = autograd.list_tensors(operands)
        return [grad.to(x.dtype) for grad, x, is_needed in zip(grads, tensors, needed, strict=True) if is_needed]

    def composition(self, forward: Callable, backward: Callable) -> None:
        """Register a composition of PyTorch's operators. Its functions have the arguments of the reference."""

        def run(*arguments: Any) -> Any:
            return forward(self.Arguments(*arguments))

        dispatch.register(self.name, 'composition', run, functools.partial(self.needed_gradients, backward))

    def fake(self, *arguments: Any) -> Any:
        """Allocate outputs without data."""
        return self._fake(self.Arguments(*arguments))

    def fake_backward(self, *arguments: Any) -> list[Tensor]:
        """Allocate gradients without data."""
        tensors = autograd.list_tensors(arguments[self._leading : -1])
        return [torch.empty_like(x, memory_format=self._layout) for x, needed in zip(tensors, arguments[-1]) if needed]

    def public(self, arguments: Callable[..., tuple]) -> PublicOperator:
        """Decorate a function that checks the user's arguments and converts them to the schema.

        The result runs the operator and returns the first output, or the first two with ``return_lse=True``. Its
        attribute ``arguments`` is the original function.
        """
        run = self.run
        signature = inspect.signature(arguments)

        if self.returns_lse:

            @functools.wraps(arguments)
            def operator(*args: Any, return_lse: bool = False, **kwargs: Any) -> Any:
                outputs = run(*arguments(*args, **kwargs), return_lse)
                return outputs if return_lse else outputs[0]

            lse = inspect.Parameter('return_lse', inspect.Parameter.KEYWORD_ONLY, default=False, annotation='bool')
            signature = signature.replace(parameters=[*signature.parameters.values(), lse])
        else:

            @functools.wraps(arguments)
            def operator(*args: Any, **kwargs: Any) -> Any:
                return run(*arguments(*args, **kwargs))

        operator.__signature__ = signature.replace(return_annotation='Tensor')  # type: ignore[attr-defined]
        operator.arguments = arguments  # type: ignore[attr-defined]
        return operator  # type: ignore[return-value]

    def _define(self, name: str, schema: str, fake: Callable) -> None:
        def run(*arguments: Any) -> Any:
            return dispatch.run(name, arguments)

        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, run, 'CompositeExplicitAutograd')
        torch.library.register_fake(f'mmattn::{name}', fake, lib=LIBRARY)
        # Native code for CPUs calls this where no kernel runs.
        LIBRARY.define(f'_dispatch_{name}{schema}')
        LIBRARY.impl(f'_dispatch_{name}', run, 'CompositeExplicitAutograd')
        CUDA_LIBRARY.define(name + schema)


def count_flops(name: str, formula: Callable[..., int]) -> None:
    """Register the FLOPs of ``mmattn::<name>``: ``formula`` gets the arguments, with shapes in place of tensors."""
    op = getattr(torch.ops.mmattn, name)
    register_flop_formula(op)(lambda *shapes, out_shape=None, **_: formula(*shapes))
    flop_registry.setdefault(op, flop_registry.get(op.default))  # torch 2.4 registers the overload


def match_layout(like: Tensor, x: Tensor) -> Tensor:
    """Copy ``x``, if needed, to the dtype of ``like`` and its order of dimensions in memory."""
    to = empty_with_layout(like, x.shape)
    return x if x.dtype == to.dtype and x.stride() == to.stride() else to.copy_(x)


def empty_with_layout(like: Tensor, size: Sequence[int]) -> Tensor:
    """Allocate a tensor with the memory order of dimensions of ``like``, contiguous if ``like`` is expanded."""
    strides = like.stride()
    order = list(range(like.dim()))
    if 0 not in strides:
        order.sort(key=lambda dim: -strides[dim])
    return torch.empty_permuted(size, order, dtype=like.dtype, device=like.device)


def fake_attention(args: Any) -> tuple[Tensor, Tensor]:
    """Allocate output ``(B, heads, *S, Dv)`` and log-sum-exp ``(B, heads, *S)`` of attention, without data."""
    out = empty_with_layout(args.value, (*args.query.shape[:-1], args.value.shape[-1]))
    return out, args.query.new_empty(args.query.shape[:-1], dtype=accumulator(args.query))


def products(query: Sequence[int], value: Sequence[int], keys: int, backward: bool = False) -> int:
    """Count the FLOPs of attention with ``keys`` keys per query. The backward pass computes the logits again."""
    queries = math.prod(query[:-1])  # a multiply-accumulate counts as two
    return 2 * queries * keys * ((3 if backward else 1) * query[-1] + (2 if backward else 1) * value[-1])
