"""Loads the native kernels (``mmattn/_C.so``), and selects whether they or the references run."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

BACKENDS = ('auto', 'native', 'reference')
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


def has_kernel(name: str, device: str = 'cpu') -> bool:
    """Return whether this build has a native kernel of an operator, for the device 'cpu' or 'cuda'."""
    return UNAVAILABLE_REASON is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'mmattn::{name}', device.upper()
    )


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Context manager that selects the implementation of the operators, for all threads.

    Args:
        name (str): 'native', the kernels; 'reference', the references in PyTorch; 'auto', a kernel for each call that
            has one. Without native kernels, 'auto' and 'reference' both run the references.

    Raises:
        ValueError: ``name`` is unknown.
        RuntimeError: ``name`` is 'native', and there are no native kernels.

    Example:
        >>> with backend('reference'), kernels_run() as kernels:
        ...     _ = torch.ops.mmattn.dynamic_conv(torch.randn(1, 1, 4, 4, 2), torch.randn(1, 1, 4, 4, 9), [3, 3], 1)
        >>> kernels
        []
    """
    if name not in BACKENDS:
        raise ValueError(f'backend must be one of {", ".join(BACKENDS)}; got {name!r}')
    if UNAVAILABLE_REASON is not None:
        if name == 'native':
            raise RuntimeError(f"backend 'native' requires native kernels: {UNAVAILABLE_REASON}")
        yield
        return
    before = torch.ops.mmattn_native.set_backend(name)
    try:
        yield
    finally:
        torch.ops.mmattn_native.set_backend(before)


@contextmanager
def kernels_run() -> Iterator[list[str]]:
    """Yield a list that contains, after the block, the names of the operators whose native kernels ran in the block."""
    names: list[str] = []
    if UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.trace(True)
    try:
        yield names
    finally:
        if UNAVAILABLE_REASON is None:
            names += torch.ops.mmattn_native.trace(False)


def reference_of(name: str, reference: Callable) -> Callable:
    """Return the function that runs if no kernel does: the reference.

    The first call on a GPU decides whether kernels run on it (``verdict.py``). If they do, the call is repeated, so
    that the kernel runs.
    """
    if not has_kernel(name, 'cuda'):
        return reference

    def run(*arguments: Any) -> Any:
        from . import verdict  # imported here, because it imports the operators

        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in arguments)
        if on_gpu and verdict.settled() is None and verdict.decide().get(name.removesuffix('_backward')) == '':
            return getattr(torch.ops.mmattn, name).default(*arguments)
        return reference(*arguments)

    return run
