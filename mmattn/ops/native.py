"""Loads the native kernels (``mmattn/_C.so``), and selects whether they, Triton's kernels or the references run."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from . import triton

BACKENDS = ('auto', 'native', 'triton', 'reference')
ENVIRONMENT = {'MMATTN_BACKEND': BACKENDS, 'MMATTN_CPU_CAPABILITY': ('default', 'avx2', 'avx512')}
BUILD = 'pip install --no-build-isolation .'


def _load() -> tuple[str | None, str | None]:
    """Load the kernels. Return their file, and the reason if they are not used.

    Raises:
        ValueError: an environment variable of ``ENVIRONMENT`` has an unknown value.
        RuntimeError: MMATTN_BACKEND=native, and the kernels are not built or do not load.
    """
    for name, values in ENVIRONMENT.items():
        value = os.environ.get(name, values[0])
        if value not in values:
            raise ValueError(f'the environment variable {name} must be one of {", ".join(values)}; got {value!r}')
    backend = os.environ.get('MMATTN_BACKEND', 'auto')
    if backend == 'reference':
        return None, 'MMATTN_BACKEND=reference'
    spec = find_spec('mmattn._C')
    file = None if spec is None else spec.origin
    reason = None
    if file is None:
        reason = f'not built; {BUILD} builds them'
    else:
        try:
            torch.ops.load_library(file)
        except OSError as error:  # most likely built for another torch
            reason = f'{file} does not load with torch {torch.__version__}; {BUILD} rebuilds it ({error})'
    if reason is None:
        torch.ops.mmattn_native.set_backend(backend)
    elif backend == 'native':
        raise RuntimeError(f'MMATTN_BACKEND=native requires native kernels: {reason}')
    elif file is not None:
        warnings.warn(f'mmattn: the operators run without native kernels: {reason}', stacklevel=2)
    return file, reason


FILE, UNAVAILABLE_REASON = _load()
_chosen = os.environ.get('MMATTN_BACKEND', 'auto')
_traced: list[str] | None = None  # names of the operators whose Triton kernels ran


def has_kernel(name: str, device: str = 'cpu') -> bool:
    """Return whether this build has a native kernel of an operator, for the device 'cpu' or 'cuda'."""
    return UNAVAILABLE_REASON is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'mmattn::{name}', device.upper()
    )


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Context manager that selects the implementation of the operators, for all threads.

    Args:
        name (str): 'native', the kernels; 'triton', Triton's kernels where there are some, otherwise the references;
            'reference', the references in PyTorch; 'auto', a kernel for each call that has one. Without native kernels,
            'auto' runs the references on the CPU.

    Raises:
        ValueError: ``name`` is unknown.
        RuntimeError: ``name`` is 'native' or 'triton', and these kernels are not available.

    Example:
        >>> with backend('reference'), kernels_run() as kernels:
        ...     _ = torch.ops.mmattn.dynamic_conv(torch.randn(1, 1, 4, 4, 2), torch.randn(1, 1, 4, 4, 9), [3, 3], 1)
        >>> kernels
        []
    """
    global _chosen
    if name not in BACKENDS:
        raise ValueError(f'backend must be one of {", ".join(BACKENDS)}; got {name!r}')
    if name == 'native' and UNAVAILABLE_REASON is not None:
        raise RuntimeError(f"backend 'native' requires native kernels: {UNAVAILABLE_REASON}")
    if name == 'triton' and triton.unavailable_reason():
        raise RuntimeError(f"backend 'triton' is not available: {triton.unavailable_reason()}")
    before, _chosen = _chosen, name
    native = UNAVAILABLE_REASON is None
    native_before = torch.ops.mmattn_native.set_backend('reference' if name == 'triton' else name) if native else ''
    try:
        yield
    finally:
        _chosen = before
        if native:
            torch.ops.mmattn_native.set_backend(native_before)


@contextmanager
def kernels_run() -> Iterator[list[str]]:
    """Yield a list that contains, after the block, the names of the operators whose kernels ran in the block."""
    global _traced
    names: list[str] = []
    _traced = names
    if UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.trace(True)
    try:
        yield names
    finally:
        _traced = None
        if UNAVAILABLE_REASON is None:
            names += torch.ops.mmattn_native.trace(False)


def reference_of(name: str, reference: Callable) -> Callable:
    """Return the function that runs if no native kernel does: a Triton kernel if one may run, or the reference.

    The first call on a GPU decides whether kernels run on it (``verdict.py``). If native kernels do, the call is
    repeated, so that the kernel runs.
    """
    operator = name.removesuffix('_backward')
    if not has_kernel(name, 'cuda') and operator not in triton.OPERATORS:
        return reference

    def run(*arguments: Any) -> Any:
        from . import verdict  # imported here, because it imports the operators

        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in arguments)
        if on_gpu and verdict.settled() is None and verdict.decide().get(operator) == '':
            return getattr(torch.ops.mmattn, name).default(*arguments)
        if (on_gpu or triton.interpreted()) and verdict.may_run_triton(operator, _chosen):
            found = triton.run(name, arguments)
            if found is not NotImplemented:
                if _traced is not None:
                    _traced.append(name)
                return found
        return reference(*arguments)

    return run
