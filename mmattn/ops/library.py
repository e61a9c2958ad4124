"""Loads the native kernels, ``mmattn/_C.so``."""

import os
import warnings
from importlib.util import find_spec

import torch

BACKENDS = ('auto', 'native', 'triton', 'composition', 'reference')
ENVIRONMENT = {'MMATTN_BACKEND': BACKENDS, 'MMATTN_CPU_CAPABILITY': ('default', 'avx2', 'avx512')}
BUILD = 'pip install --no-build-isolation .'
KERNELS = ('dynamic_conv', 'global_attention', 'grid_attention', 'local_attention', 'strided_attention')


def native_backend(backend: str, interpreted: bool) -> str:
    """Choose what native code does under a backend: 'auto', 'native', or 'reference', where no native kernel runs."""
    if backend == 'triton':  # except in Triton's interpreter, operators without a Triton kernel run as with 'auto'
        return 'reference' if interpreted else 'auto'
    return 'reference' if backend == 'composition' else backend


def _load() -> tuple[str | None, str | None]:  # file of the kernels; reason if they are not used
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
        interpreted = os.environ.get('TRITON_INTERPRET') == '1'
        torch.ops.mmattn_native.set_backend(native_backend(backend, interpreted))
    elif backend == 'native':
        raise RuntimeError(f'MMATTN_BACKEND=native requires native kernels: {reason}')
    elif file is not None:
        warnings.warn(f'mmattn: the operators run without native kernels: {reason}', stacklevel=2)
    return file, reason


FILE, UNAVAILABLE_REASON = _load()


def has_kernel(name: str, device: str = 'cpu') -> bool:
    """Check whether this build has a native kernel of an operator, for the device 'cpu' or 'cuda'."""
    return UNAVAILABLE_REASON is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'mmattn::{name}', device.upper()
    )
