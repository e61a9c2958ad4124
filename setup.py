"""What pyproject.toml cannot say: native operators; configs and tools as ``mmattn/.mim``, for mim and mmengine's hub.

MMATTN_WITH_OPS=0 leaves the native operators out; the package is then pure Python. Those for CUDA are built for the
architectures in TORCH_CUDA_ARCH_LIST, where torch has CUDA and there is an nvcc that fits it. FORCE_CUDA=1 makes it
an error if they cannot be built; FORCE_CUDA=0 leaves them out.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
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
HAS_TORCH = find_spec('torch') is not None
ARCHITECTURES = '8.0;9.0+PTX'
# Of configs and tools: what only a checkout needs, and the pictures of the pages.
CHECKOUT_ONLY = 'environment', 'benchmarks', 'gpu_run', 'quickstart.sh', 'run_tests.sh', '*.png', '*.jpg'
# For somebody who must make a new environment.
TOGETHER = 'torch 2.13.0 with onedl-mmcv 2.3.6 and onedl-mmsegmentation 1.4.2'


def switch(name: str) -> bool | None:
    """Return a variable of the environment that is 0 or 1; None where it is not set, or empty."""
    value = os.environ.get(name) or None
    if value not in (None, '0', '1'):
        raise SystemExit(f'{name} must be 0 or 1; got {value!r}')
    return value and value == '1'


def check_torch(version: str | None) -> None:
    """Refuse an installed torch that pip would replace: what was compiled for it, such as mmcv, would break."""
    from packaging.requirements import Requirement  # setuptools brings it

    pyproject = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
    required = Requirement(re.search(r"^dependencies = .*?'(torch\b[^']*)'", pyproject, re.MULTILINE)[1])
    if version is not None and not required.specifier.contains(version, prereleases=True):
        raise SystemExit(
            f'mmattn requires {required}, and finds torch {version}. Nothing was changed, because others may need it. '
            f'In a new environment, install versions that go together: {TOGETHER} (docs/install.md).'
        )


def installed_torch() -> str | None:
    """Return the version of the torch in this environment, which pip hides from a build in isolation."""
    path = [*sys.path, sysconfig.get_path('purelib'), sysconfig.get_path('platlib')]
    return next((found.version for found in metadata.distributions(name='torch', path=path)), None)


def why_without_cuda(torch_cuda: str | None, cuda_home: str | None) -> str | None:
    """Return why operators for CUDA cannot be built, and what to install; None where they can.

    As in torch's own check, nvcc and torch must be of one major version of CUDA.
    """
    if torch_cuda is None:
        return 'torch is a build without CUDA: install one with CUDA'
    major = torch_cuda.partition('.')[0]
    remedy = f"install the CUDA toolkit {torch_cuda} (any {major}.x will do), and set CUDA_HOME to the toolkit's folder"
    if not cuda_home:
        return f'there is no nvcc: {remedy}'
    nvcc = Path(cuda_home, 'bin', 'nvcc')
    try:
        said = subprocess.run([nvcc, '--version'], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return f'{nvcc} does not run ({error}): {remedy}'
    release = re.search(r'release ((\d+)\.\d+)', said)
    if release and release[2] != major:
        return f'{nvcc} is for CUDA {release[1]}, and torch for CUDA {torch_cuda}: {remedy}'
    return None


def why_it_failed(folder: Path, standard: str, with_cuda: bool) -> str:
    """Return what a failed build lacks, found by trying: space, compiler, headers, the standard of C++ or CUDA."""
    for place in (folder, Path(tempfile.gettempdir())):
        if shutil.disk_usage(place).free < 64 * 2**20:
            return f'There is no space left in {place}: free 200 MB, or use another disk (temporary files: TMPDIR=...).'
    named = os.environ.get('CXX', 'c++')
    compiler = shlex.split(named)
    if shutil.which(compiler[0]) is None:
        return f'There is no {named!r}: install g++ (Debian, Ubuntu: apt install g++), or set CXX=... to a compiler.'
    header = Path(sysconfig.get_path('include'), 'Python.h')
    if not header.exists():
        return f"There is no {header}: install Python's headers (Debian, Ubuntu: apt install python3-dev)."
    probe = [*compiler, f'-std={standard}', '-fsyntax-only', '-x', 'c++', os.devnull]
    if subprocess.run(probe, capture_output=True).returncode:
        return (
            f'{named!r} does not compile {standard}, which this torch requires: install g++ 11 or later, and '
            'set CXX=... to it, such as CXX=g++-12.'
        )
    return 'The first error is above.' + with_cuda * ' FORCE_CUDA=0 builds the operators for the CPU alone.'


if not os.access(ROOT, os.W_OK):
    raise SystemExit(f'mmattn: {ROOT.resolve()} is read-only, and the build writes into it: install from a copy of it')
check_torch(installed_torch())
WITH_OPS = switch('MMATTN_WITH_OPS') is not False


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
    from torch.utils import cpp_extension
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

    force_cuda = switch('FORCE_CUDA')
    without_cuda = why_without_cuda(torch.version.cuda, CUDA_HOME)
    if force_cuda and without_cuda:
        raise SystemExit(f'mmattn: FORCE_CUDA=1, but {without_cuda}')

    class Build(BuildExtension):
        """Says why CUDA is left out, and, below the compiler's output, what a failed build lacks."""

        def build_extensions(self) -> None:
            if torch.version.cuda and without_cuda and force_cuda is None:
                print(f'mmattn: builds its operators for the CPU alone, because {without_cuda}')
            try:
                super().build_extensions()
            except Exception as error:
                # torch compiles extensions by the standard that its own headers require
                source = Path(cpp_extension.__file__).read_text(encoding='utf-8')
                standard = max(re.findall(r'-std=(c\+\+\d\d)', source))
                raise SystemExit(
                    f'{error}\nmmattn: its operators did not compile. {why_it_failed(ROOT, standard, with_cuda)} '
                    'MMATTN_WITH_OPS=0 pip install --no-build-isolation . installs mmattn without them.'
                ) from None

    # -fopenmp for at::parallel_for, and not linked: the symbols are those of the OpenMP that torch itself has loaded.
    flags = ['-O3', '-g0', '-Wno-psabi', '-fvisibility=hidden', *(['-fopenmp'] if sys.platform == 'linux' else [])]
    extension = CppExtension
    with_cuda = force_cuda is not False and not without_cuda
    if with_cuda:
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
