"""Report the environment for a bug report: ``python -m mmattn.utils.collect_env``."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

import mmattn
from mmattn.ops import library, reports, triton
from mmattn.ops.projection import ONEDNN
from mmattn.utils.optional import OPENMMLAB

# Package → distributions that may provide it.
DISTRIBUTIONS = OPENMMLAB | {'mmcv': (*OPENMMLAB['mmcv'], 'mmcv-lite')}


def collect_env() -> dict[str, str]:
    """Collect versions, available kernels, instruction set, and the implementation of each operator on CPU and GPU."""
    env = {
        'mmattn': f'{mmattn.__version__} ({os.path.dirname(mmattn.__file__)})',
        'Python': platform.python_version(),
        'torch': torch.__version__,
        'CUDA': str(torch.version.cuda),
        'CPU threads': str(torch.get_num_threads()),
    }
    env |= {name: _installed(*names) for name, names in DISTRIBUTIONS.items()}
    if library.UNAVAILABLE_REASON is None:
        built, capability = (getattr(torch.ops.mmattn_native, name)() for name in ('torch_version', 'cpu_capability'))
        env |= {'native operators': f'{library.FILE}, built with torch {built}', 'instruction set': capability}
    else:
        env['native operators'] = library.UNAVAILABLE_REASON
    for name in library.KERNELS:
        env[name] = 'kernel for float32 and bfloat16, else reference' if library.has_kernel(name) else 'reference'
    env['projection'] = 'oneDNN for float32, else torch' if ONEDNN else 'torch'
    hint = f'; with nvcc: FORCE_CUDA=1 {library.BUILD}' if torch.version.cuda else ''
    built_for_cuda = ', '.join(x for x in library.KERNELS if library.has_kernel(x, 'cuda'))
    env['CUDA kernels'] = built_for_cuda or f'not built{hint}'
    env['Triton kernels'] = triton.unavailable_reason() or ', '.join(triton.OPERATORS)
    if torch.cuda.is_available():
        device = torch.device('cuda', torch.cuda.current_device())
        env |= {
            f'{name} on {torch.cuda.get_device_name(device)}': reports.describe(name, device)
            for name in library.KERNELS
        }
    return env


def _installed(*names: str) -> str:
    for name in names:
        try:
            return f'{version(name)} ({name})'
        except PackageNotFoundError:
            continue
    return 'not installed'


if __name__ == '__main__':
    for key, value in collect_env().items():
        print(f'{key}: {value}')
