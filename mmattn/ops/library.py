"""Loads the native kernels, ``mmattn/_C.so``."""

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

CPU_CAPABILITIES = ('default', 'avx2', 'avx512', 'avx512_bf16', 'amx')
BUILD = 'pip install --no-build-isolation .'
KERNELS = ('dynamic_conv', 'global_attention', 'grid_attention', 'local_attention', 'strided_attention')


def _load() -> tuple[str | None, str | None]:  # file of the kernels; reason if they are not used
    capability = os.environ.get('MMATTN_CPU_CAPABILITY', 'default')
    if capability not in CPU_CAPABILITIES:
        raise ValueError(f'MMATTN_CPU_CAPABILITY must be one of {", ".join(CPU_CAPABILITIES)}; got {capability!r}')
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
    if reason is not None and file is not None and backend != 'native':
        warnings.warn(f'mmattn: the operators run without native kernels: {reason}', stacklevel=2)
    return file, reason


FILE, UNAVAILABLE_REASON = _load()


def _declined(*_: Any) -> None:
    """Stand for :func:`direct_call` without native code."""


# direct_call(name, *arguments) calls a public function in native code, with the arguments in the order of its operator,
# `outside_bias` as it is given. It returns None where Python must check the call, and prepare it: if an argument is
# wrong, or of a rare type. Compilers cannot trace it.
direct_call: Callable[..., Any] = _declined if UNAVAILABLE_REASON else import_module('mmattn._C').direct_call


def has_kernel(name: str, device: str = 'cpu') -> bool:
    """Check whether this build has a native kernel of an operator, for the device 'cpu' or 'cuda'."""
    namespace = 'mmattn' if device == 'cpu' else 'mmattn_cuda'  # `dispatch.py` calls the CUDA kernels
    return UNAVAILABLE_REASON is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'{namespace}::{name}', device.upper()
    )
