"""The native kernels: ``mmattn/_C.so``, where it was built, and which calls it takes."""

import os
import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

CAPABILITY = 8, 0  # the least that the CUDA kernels run on
DTYPES = {'cpu': (torch.float32, torch.bfloat16), 'cuda': (torch.float32, torch.float16, torch.bfloat16)}
ENVIRONMENT = {'MMATTN_WITH_OPS': ('0', '1'), 'MMATTN_CPU_CAPABILITY': ('default', 'avx2', 'avx512')}
BUILD = 'pip install --no-build-isolation .'


def _load() -> tuple[str | None, str | None]:
    """Load the kernels. Return their file, and why they are not used.

    Raises:
        ValueError: an environment variable has a value that means nothing; the kernels would be others than requested.
    """
    for name, values in ENVIRONMENT.items():
        value = os.environ.get(name, values[-1])
        if value not in values:
            raise ValueError(f'the environment variable {name} must be one of {", ".join(values)}; got {value!r}')
    if os.environ.get('MMATTN_WITH_OPS') == '0':
        return None, 'MMATTN_WITH_OPS=0'
    spec = find_spec('mmattn._C')
    if spec is None or spec.origin is None:
        return None, f'not built; {BUILD} builds them'
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:  # most likely built against another torch
        reason = f'{spec.origin} does not load with torch {torch.__version__}; {BUILD} builds it anew ({error})'
        warnings.warn(f'mmattn: the operators run without native kernels: {reason}', stacklevel=2)
        return spec.origin, reason
    return spec.origin, None


FILE, WHY_NOT = _load()


def has_kernel(name: str, device: str = 'cpu') -> bool:
    """Whether an operator has a native kernel here, for 'cpu' or for 'cuda'."""
    return (
        WHY_NOT is None
        and hasattr(torch.ops.mmattn_native, name)
        and torch._C._dispatch_has_kernel_for_dispatch_key(f'mmattn_native::{name}', device.upper())
    )


def takes(name: str, *operands: Tensor | None) -> bool:
    """Whether the native kernel of an operator exists and takes these tensors, all of a device that has one."""
    tensors = [x for x in operands if x is not None]
    device = tensors[0].device
    if not has_kernel(name, device.type):
        return False
    if device.type == 'cuda' and torch.cuda.get_device_capability(device) < CAPABILITY:
        return False
    return all(x.device == device and x.dtype in DTYPES[device.type] and x.numel() > 0 for x in tensors)
