"""Selects whether native kernels, Triton kernels or references run. No other module chooses."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import library, triton
from .gpu import verdict

_chosen = os.environ.get('MMATTN_BACKEND', 'auto')
_traced: list[str] | None = None  # names of the operators whose Triton kernels ran


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Select the implementation of the operators in a ``with`` block, for all threads.

    Args:
        name (str): 'native', the kernels; 'triton', Triton's kernels where there are some, otherwise the references;
            'reference', the references in PyTorch; 'auto', a kernel for each call that has one. Without native kernels,
            'auto' runs the references on the CPU.

    Raises:
        RuntimeError: ``name`` is 'native' or 'triton', and these kernels are not available. The message says why.

    Example:
        >>> with backend('reference'), kernels_run() as kernels:
        ...     _ = torch.ops.mmattn.dynamic_conv(torch.randn(1, 1, 4, 4, 2), torch.randn(1, 1, 4, 4, 9), [3, 3], 1)
        >>> kernels
        []
    """
    global _chosen
    if name not in library.BACKENDS:
        raise ValueError(f'backend must be one of {", ".join(library.BACKENDS)}; got {name!r}')
    if name == 'native' and library.UNAVAILABLE_REASON is not None:
        raise RuntimeError(f"backend 'native' requires native kernels: {library.UNAVAILABLE_REASON}")
    if name == 'triton' and triton.unavailable_reason():
        raise RuntimeError(f"backend 'triton' is not available: {triton.unavailable_reason()}")
    before, _chosen = _chosen, name
    native = library.UNAVAILABLE_REASON is None
    native_before = torch.ops.mmattn_native.set_backend('reference' if name == 'triton' else name) if native else ''
    try:
        yield
    finally:
        _chosen = before
        if native:
            torch.ops.mmattn_native.set_backend(native_before)


@contextmanager
def kernels_run() -> Iterator[list[str]]:
    """Record the operators whose kernels run in a ``with`` block: the list is filled when the block ends."""
    global _traced
    names: list[str] = []
    _traced = names
    if library.UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.trace(True)
    try:
        yield names
    finally:
        _traced = None
        if library.UNAVAILABLE_REASON is None:
            names += torch.ops.mmattn_native.trace(False)


def build_fallback(name: str, reference: Callable) -> Callable:
    """Build the function that runs if no native kernel does: a Triton kernel if one may run, or the reference.

    The first call on a GPU chooses the kernels that run on it (``gpu/verdict.py``). If this includes the native kernel
    of the operator, the call is repeated, so that the kernel runs.
    """
    operator = name.removesuffix('_backward')
    if not library.has_kernel(name, 'cuda') and operator not in triton.OPERATORS:
        return reference

    def run(*arguments: Any) -> Any:
        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in arguments)
        if on_gpu and verdict.current_choice() is None and verdict.choose_kernels().get(operator) == '':
            return getattr(torch.ops.mmattn, name).default(*arguments)
        if (on_gpu or triton.interpreted()) and verdict.may_run_triton(operator, _chosen):
            outputs = triton.run(name, arguments)
            if outputs is not NotImplemented:
                if _traced is not None:
                    _traced.append(name)
                return outputs
        return reference(*arguments)

    return run
