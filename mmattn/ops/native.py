"""The native kernels: ``mmattn/_C.so``, where it was built, and whether they or the references run."""

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
    """Load the kernels. Return their file, and why they are not used.

    Raises:
        ValueError: an environment variable has a value that means nothing; the kernels would be others than requested.
        RuntimeError: MMATTN_BACKEND=native, and there are no kernels.
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
        except OSError as error:  # most likely built against another torch
            reason = f'{file} does not load with torch {torch.__version__}; {BUILD} builds it again ({error})'
    if reason is None:
        torch.ops.mmattn_native.set_backend(backend)
    elif backend == 'native':
        raise RuntimeError(f'MMATTN_BACKEND=native: there are no native kernels: {reason}')
    elif file is not None:
        warnings.warn(f'mmattn: the operators run without native kernels: {reason}', stacklevel=2)
    return file, reason


FILE, UNAVAILABLE_REASON = _load()


def has_kernel(name: str, device: str = 'cpu') -> bool:
    """Whether an operator has a native kernel here, for 'cpu' or for 'cuda'."""
    return UNAVAILABLE_REASON is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'mmattn::{name}', device.upper()
    )


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Run the kernels ('native'), the references ('reference'), or what is chosen for each call ('auto'), in a block.

    It holds for all threads. Without native kernels the references run.

    Raises:
        ValueError: another name.
        RuntimeError: 'native', and there are no kernels.
    """
    if name not in BACKENDS:
        raise ValueError(f'backend must be one of {", ".join(BACKENDS)}; got {name!r}')
    if UNAVAILABLE_REASON is not None:
        if name == 'native':
            raise RuntimeError(f'there are no native kernels: {UNAVAILABLE_REASON}')
        yield
        return
    before = torch.ops.mmattn_native.set_backend(name)
    try:
        yield
    finally:
        torch.ops.mmattn_native.set_backend(before)


@contextmanager
def kernels_run() -> Iterator[list[str]]:
    """Yield a list that has, after the block, the names of the operators whose kernels ran in it."""
    names: list[str] = []
    if UNAVAILABLE_REASON is None:
        torch.ops.mmattn_native.trace(True)
    try:
        yield names
    finally:
        if UNAVAILABLE_REASON is None:
            names += torch.ops.mmattn_native.trace(False)


def reference_of(name: str, reference: Callable) -> Callable:
    """Return what runs in place of a kernel: the reference.

    The first call on a GPU decides whether the kernels run on it (``verdict.py``), and is made again where they do.
    """
    if not has_kernel(name, 'cuda'):
        return reference

    def run(*arguments: Any) -> Any:
        from . import verdict  # which needs the operators

        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in arguments)
        if on_gpu and verdict.settled() is None and verdict.decide().get(name.removesuffix('_backward')) == '':
            return getattr(torch.ops.mmattn, name).default(*arguments)
        return reference(*arguments)

    return run
