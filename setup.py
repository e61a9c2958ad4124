"""What pyproject.toml cannot say: native operators; configs and tools as ``mmattn/.mim``, for mim and mmengine's hub.

MMATTN_WITH_OPS=0 leaves the native operators out; the package is then pure Python. Those for CUDA are built
where torch has CUDA and there is nvcc, or as FORCE_CUDA=1 or 0 says, for the architectures in TORCH_CUDA_ARCH_LIST.
"""

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

if int(setuptools.__version__.partition('.')[0]) < 77:
    # With --no-build-isolation, pip does not check the version. Before 61, a package UNKNOWN would be installed.
    raise SystemExit(
        f"mmattn requires setuptools>=77, and finds {setuptools.__version__}: pip install 'setuptools>=77,<81'"
    )
ROOT = Path(__file__).parent
WITH_OPS = {'0': False, '1': True}.get(os.environ.get('MMATTN_WITH_OPS', '1'))
if WITH_OPS is None:
    raise SystemExit(f'MMATTN_WITH_OPS must be 0 or 1; got {os.environ["MMATTN_WITH_OPS"]!r}')
HAS_TORCH = find_spec('torch') is not None
ARCHITECTURES = '8.0;9.0+PTX'
# Of configs and tools: what only a checkout needs, and the pictures of the pages.
CHECKOUT_ONLY = 'environment', 'benchmarks', 'gpu_run', 'quickstart.sh', 'run_tests.sh', '*.png', '*.jpg'


def architectures(given: str) -> str:
    """Return the CUDA architectures of TORCH_CUDA_ARCH_LIST that the operators can be built for, 8.0 and later.

    NVIDIA's images list all architectures that their torch was built for.
    """
    older = 'Kepler', 'Maxwell', 'Pascal', 'Volta', 'Turing'
    names = given.replace(';', ' ').split()
    left_out = [name for name in names if name.startswith(older) or re.match(r'[0-7]\.', name)]
    kept = [name for name in names if name not in left_out]
    if not kept:
        raise SystemExit(
            'mmattn: its CUDA operators need an architecture of 8.0 or later in TORCH_CUDA_ARCH_LIST, such as '
            f'{ARCHITECTURES!r}; got {given!r}. FORCE_CUDA=0 builds those for the CPU alone.'
        )
    if left_out:
        print(f'mmattn: TORCH_CUDA_ARCH_LIST: {" ".join(left_out)} left out; the CUDA operators need 8.0 or later')
    return ';'.join(kept)


class BuildWithConfigs(build_py):
    """Adds ``.mim``: copied into a wheel, linked into the source tree for an editable install."""

    def run(self) -> None:
        super().run()
        mim = (ROOT if self.editable_mode else Path(self.build_lib)) / 'mmattn' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in ('configs', 'tools'):
            if self.editable_mode:
                (mim / name).symlink_to(Path('..', '..', name), target_is_directory=True)
            else:
                shutil.copytree(ROOT / name, mim / name, ignore=shutil.ignore_patterns('__pycache__', *CHECKOUT_ONLY))
        metafiles = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/metafile.yml'))
        (mim / 'model-index.yml').write_text(f'Import: {metafiles}\n', encoding='utf-8')


class WithoutTorch(build_ext):
    """Says what to do where torch is not there to build against; archives of the sources need none."""

    def run(self) -> None:
        raise SystemExit(
            'mmattn: its operators are built against the torch that you have, and there is none here: '
            'pip install --no-build-isolation .   (MMATTN_WITH_OPS=0: without native operators)'
        )


def native() -> dict:
    """Arguments of ``setup`` that build ``mmattn/_C.so``, the native operators."""
    code = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('mmattn/ops/csrc/**/*.*'))
    units = re.compile(r'.*/(unit_\w+|cpu/isa_\w+|cpu/capability)\.cpp')  # they include the other files
    sources = [path for path in code if units.fullmatch(path)]
    cuda_sources = [path for path in code if '/cuda/' in path and path.endswith(('.cpp', '.cu'))]
    depends = [path for path in code if path not in sources + cuda_sources and not path.endswith('.md')]
    if not HAS_TORCH:
        return dict(ext_modules=[Extension('mmattn._C', sources)], cmdclass={'build_ext': WithoutTorch})
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

    class Build(BuildExtension):
        """Names what a failed build requires, below the compiler's output."""

        def build_extensions(self) -> None:
            try:
                super().build_extensions()
            except Exception as error:
                raise SystemExit(
                    f'{error}\nmmattn: its operators did not compile. They require a C++17 compiler (g++ 9, '
                    'or CXX=...) and the headers of torch. MMATTN_WITH_OPS=0 pip install '
                    '--no-build-isolation . installs mmattn without them.'
                ) from None

    # -fopenmp for at::parallel_for, and not linked: the symbols are those of the OpenMP that torch itself has loaded.
    flags = ['-O3', '-g0', '-Wno-psabi', '-fvisibility=hidden', *(['-fopenmp'] if sys.platform == 'linux' else [])]
    extension = CppExtension
    if os.environ.get('FORCE_CUDA', '1' if torch.version.cuda and CUDA_HOME else '0') == '1':
        os.environ['TORCH_CUDA_ARCH_LIST'] = architectures(os.environ.get('TORCH_CUDA_ARCH_LIST') or ARCHITECTURES)
        extension, sources = CUDAExtension, sources + cuda_sources
    return dict(
        ext_modules=[
            extension('mmattn._C', sources, depends=depends, extra_compile_args={'cxx': flags, 'nvcc': ['-O3']})
        ],
        cmdclass={'build_ext': Build.with_options(no_python_abi_suffix=True)},
    )


built = native() if WITH_OPS else {}
setup(
    ext_modules=built.get('ext_modules'),
    cmdclass={'build_py': BuildWithConfigs, **built.get('cmdclass', {})},
)
