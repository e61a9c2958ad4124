"""Report the environment for a bug report: ``python -m mmattn.utils.collect_env``."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import mmattn
from mmattn.ops import library, reports, triton
from mmattn.ops.projection import ONEDNN
from mmattn.utils.optional import OPENMMLAB


def collect_env() -> dict[str, Any]:
    """Add to what mmengine collects: versions, kernels, instruction set, and what runs each operator on CPU and GPU."""
    env = {}
    with suppress(ImportError):
        from mmengine.utils.dl_utils import collect_env

        env = collect_env()
    env |= {'mmattn': f'{mmattn.__version__} ({Path(mmattn.__file__).parent})', 'torch': torch.__version__}
    env |= {'CUDA': str(torch.version.cuda), 'CPU threads': str(torch.get_num_threads())}
    env |= {name: _installed(*names) for name, names in OPENMMLAB.items()}
    if library.UNAVAILABLE_REASON is None:
        built, capability = (getattr(torch.ops.mmattn_native, name)() for name in ('torch_version', 'cpu_capability'))
        env |= {'native operators': f'{library.FILE}, built with torch {built}', 'instruction set': capability}
    else:
        env['native operators'] = library.UNAVAILABLE_REASON
    for name in library.KERNELS:
        env[name] = 'kernel for float32 and bfloat16, else reference' if library.has_kernel(name) else 'reference'
    env['projection'] = 'oneDNN for float32, else torch' if ONEDNN else 'torch'
    hint = f'; with nvcc: FORCE_CUDA=1 {library.BUILD}' if torch.version.cuda else ''
    env['CUDA kernels'] = ', '.join(x for x in library.KERNELS if library.has_kernel(x, 'cuda')) or f'not built{hint}'
    env['Triton kernels'] = triton.unavailable_reason() or ', '.join(triton.OPERATORS)
    if torch.cuda.is_available():
        device = torch.device('cuda', torch.cuda.current_device())
        env |= {f'{x} on {torch.cuda.get_device_name(device)}': reports.describe(x, device) for x in library.KERNELS}
    return env


def _installed(*names: str) -> str:
    for name in (*names, 'mmcv-lite') if 'mmcv' in names else names:
        with suppress(PackageNotFoundError):
            return f'{version(name)} ({name})'
    return 'not installed'


if __name__ == '__main__':
    for key, value in collect_env().items():
        print(f'{key}: {value}')
