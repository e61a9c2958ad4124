"""The CUDA sources compile for sm_80 and sm_90 wherever there is nvcc: without a GPU, and with any build of torch."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import mmattn

from ..conftest import CACHE
from ..requirements import requires

pytestmark = pytest.mark.kernels

CSRC = Path(mmattn.__file__).parent / 'ops' / 'csrc'
OPERATOR = [CSRC / 'operator.h', CSRC / 'operator.cpp']
TORCH = [flag for path in cpp_extension.include_paths() for flag in ('-isystem', path)]
TORCH.append(f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}')  # wheels before torch 2.6: 0
NVCC = shutil.which('nvcc')


def built(command, sources, *included, name='built'):
    """What a compiler makes of sources, from the cache where neither the command nor what is included changed.

    Args:
        command (list[str]): without sources and output.
        sources (list[Path]): what it compiles.
        included (Path): files and folders, all that the sources include, but for torch and CUDA.
        name (str): of the file it makes.
    """
    digest = hashlib.sha256(repr([*command, *sources]).encode())
    for path in sorted(path for x in included for path in ([x] if x.is_file() else x.rglob('*.*'))):
        digest.update(path.read_bytes())
    target = CACHE / 'compiled' / digest.hexdigest()[:32] / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as aside:
            environment = {key: value for key, value in os.environ.items() if key != 'LD_PRELOAD'}  # a sanitizer
            done = subprocess.run(
                [*command, *sources, '-o', f'{aside}/{name}'],
                text=True,
                cwd=aside,
                timeout=600,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert done.returncode == 0, done.stdout
            os.replace(f'{aside}/{name}', target)
    return target


@requires('nvcc')
@pytest.mark.parametrize('source', sorted((CSRC / 'cuda').glob('*.cu')), ids=lambda path: path.name)
def test_kernels(source):
    architectures = [flag for sm in (80, 90) for flag in ('-gencode', f'arch=compute_{sm},code=sm_{sm}')]
    flags = [*cpp_extension.COMMON_NVCC_FLAGS, '-Werror', 'all-warnings', '-Xcompiler', '-Wall,-Wextra,-Werror']
    built([NVCC, '-c', '-O3', '-std=c++17', *flags, *architectures], [source], CSRC / 'cuda', name='kernels.o')


@requires('nvcc')
def test_calls():
    """The C++ that calls the kernels, in one piece, as most of the time goes to the headers of torch."""
    *others, last = sorted((CSRC / 'cuda').glob('*.cpp'))
    flags = ['-O0', '-std=c++20', '-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE', '-Xcompiler', '-Wall,-Wextra,-Werror,-fPIC']
    included = [flag for path in others for flag in ('-include', path)]
    headers = [CSRC / 'checks.h', CSRC / 'operator.h']
    built([NVCC, '-c', *flags, *TORCH, *included], [last], CSRC / 'cuda', *headers, name='calls.o')
