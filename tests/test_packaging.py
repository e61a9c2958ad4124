"""The package as installed: three ways into a clean environment, its configs, its metadata and its import."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from setuptools import Distribution

from .conftest import ORIGINAL_MMENGINE

ROOT = Path(__file__).parents[1]
SHIPPED = (
    *('setup.py', 'pyproject.toml', 'MANIFEST.in', 'LICENSE', 'CITATION.cff'),
    *('README.md', 'CHANGELOG.md', 'CONTRIBUTING.md'),
    *('.clang-format', '.dockerignore', '.gitignore', '.pre-commit-config.yaml'),
    *('.github', 'docker', 'docs', 'mmattn', 'configs', 'tools', 'tests'),
)
# What a checkout holds beside its tracked files, and must not be shipped.
LEFTOVERS = (
    *('work_dirs/run/config.py', 'work_dirs/__init__.py', 'data/__init__.py'),
    *(f'{folder}/__pycache__/old.pyc' for folder in ('configs', 'configs/bi_cc', 'tools', 'mmattn/utils')),
)
CONFIGS = sorted(path.relative_to(ROOT / 'configs').as_posix() for path in (ROOT / 'configs').rglob('*.py'))
CONFIG = next(name for name in CONFIGS if name.startswith('bi_cc/bi-cc_'))
HEAVY = {'torch', 'numpy', 'mmengine', 'mmcv', 'mmseg', 'mmdet'}

DESCRIBE = """
import importlib.metadata, json, mmattn
from mmattn.utils import config_path
try:
    config_path('bi_cc/no_such_config.py')
except FileNotFoundError as error:
    missing = str(error)
print(json.dumps(dict(
    file=mmattn.__file__, version=mmattn.__version__, metadata=importlib.metadata.version('mmattn'),
    requires=importlib.metadata.requires('mmattn'), missing=missing, path=str(config_path({config!r})),
    configs=sorted(path.relative_to(config_path()).as_posix() for path in config_path().rglob('*.py')))))
"""

LOAD = """
import json, mmattn.registry, mmengine
from mmengine.config import Config
from mmengine.hub import get_config
user = Config.fromfile({user!r})
assert user.pop('work_dir') == 'elsewhere'
print(json.dumps(dict(version=mmengine.__version__, file=mmattn.__file__, user=user.to_dict(),
                      hub=get_config('mmattn::{config}').to_dict(), source=Config.fromfile({source!r}).to_dict())))
"""


def files(folder):
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob('*')
        if path.is_file() and path.suffix not in ('.so', '.whl') and not {'.mim', '__pycache__'} & set(path.parts)
    }


def python(*args, **options):
    """Without native operators: what is compiled is tested elsewhere, and would take a minute each time."""
    env = {**os.environ, 'MMATTN_WITH_OPS': '0'}
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env, **options)
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'


def make_wheel(source, folder):
    python('-m', 'pip', 'wheel', '--no-index', '--no-build-isolation', '--no-deps', '--wheel-dir', folder, source)
    return next(folder.glob('mmattn-*.whl'))


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    """A copy of the checkout, with leftovers."""
    folder = tmp_path_factory.mktemp('checkout')
    for name in SHIPPED:
        copy = shutil.copy2 if (ROOT / name).is_file() else shutil.copytree
        options = {} if copy is shutil.copy2 else {'ignore': shutil.ignore_patterns('.mim', '__pycache__', '*.so')}
        copy(ROOT / name, folder / name, **options)
    for name in LEFTOVERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('')
    return folder


@pytest.fixture(scope='module')
def child(run_python, tmp_path_factory):
    """The interpreter of an environment that has everything of this one except mmattn."""
    folder = tmp_path_factory.mktemp('child')
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', folder], check=True)
    # Links, because a path in a .pth file would show this environment's mmattn too. mmengine looks for the name
    # `site-packages` in a module's path.
    linked = folder / 'parent' / 'site-packages'
    linked.mkdir(parents=True)
    for packages in dict.fromkeys(path for path in sys.path if path.endswith(('site-packages', 'dist-packages'))):
        for entry in Path(packages).iterdir():
            if 'mmattn' not in entry.name and not (linked / entry.name).exists():
                (linked / entry.name).symlink_to(entry)
    python = folder / 'bin' / 'python'
    own = run_python("import sysconfig; print(sysconfig.get_path('purelib'))", python=python).strip()
    Path(own, 'parent.pth').write_text(f'import site; site.addsitedir({str(linked)!r})\n')
    return python


@pytest.fixture(scope='module')
def wheel(checkout, tmp_path_factory):
    return make_wheel(checkout, tmp_path_factory.mktemp('wheel'))


@pytest.fixture(scope='module')
def archive(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp('archive')
    python('setup.py', '-q', 'sdist', '-d', folder, cwd=checkout)
    return next(folder.glob('mmattn-*.tar.gz'))


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='of a checkout')
def test_a_checkout_on_the_path_needs_no_installation(child, run_python):
    """In plain Python, since it has what an editable install makes."""
    code = (
        f"import mmattn.registry; from mmengine.hub import get_config; print(get_config('mmattn::{CONFIG}').filename)"
    )
    said = run_python(code, python=child, PYTHONPATH=str(ROOT))
    assert Path(said.splitlines()[-1]).samefile(ROOT / 'configs' / CONFIG)
    metafiles = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/metafile.yml'))
    assert (ROOT / 'mmattn/.mim/model-index.yml').read_text() == f'Import: {metafiles}\n'


# An editable install leaves `mmattn/.mim` in the checkout, and the plain one comes after it.
@pytest.fixture(scope='module', params=['editable', 'plain', 'wheel'])
def installed(request, child, checkout):
    """The interpreter of an environment with mmattn, and the folder where mmattn must be."""
    what = {'editable': ['-e', checkout], 'plain': [checkout]}.get(request.param)
    command = ['-m', 'pip', '--python', child, 'install', '--no-index', '--no-build-isolation', '--no-deps']
    python(*command, '--force-reinstall', *(what or [request.getfixturevalue('wheel')]))
    return child, checkout if request.param == 'editable' else child.parents[1] / 'lib'


@pytest.fixture(scope='module')
def described(installed, run_python):
    return json.loads(run_python(DESCRIBE.format(config=CONFIG), python=installed[0], PYTHONPATH=''))


@pytest.mark.slow
def test_the_wheel_holds_the_mim_layout_and_nothing_else(wheel):
    """It is pure without native operators, whose sources are in it."""
    names = set(zipfile.ZipFile(wheel).namelist())
    checkout_only = {'environment', 'benchmarks', 'gpu_run', 'quickstart.sh', 'run_tests.sh'}
    shipped = {name for name in files('tools') if not checkout_only & set(name.split('/'))}
    shipped |= {name for name in files('configs') if not name.endswith(('.png', '.jpg'))}
    laid_out = {f'mmattn/.mim/{name}' for name in shipped}
    assert {name for name in names if '/.mim/' in name} == {'mmattn/.mim/model-index.yml', *laid_out}
    assert {name for name in files('mmattn') if name.endswith('.py') or '/csrc/' in name} <= names
    assert {name.partition('/')[0].partition('-')[0] for name in names} == {'mmattn'}
    assert not [name for name in names if {'tests', 'work_dirs', '__pycache__'} & set(name.split('/'))]
    assert not [name for name in names if name.endswith(('.json', '.so'))]  # results are in docs/
    assert wheel.name.endswith('-py3-none-any.whl')


@pytest.mark.slow
def test_the_archive_holds_what_the_wheel_and_the_tests_are_made_from(archive):
    with tarfile.open(archive) as opened:
        names = {name.partition('/')[2] for name in opened.getnames()}
    shipped = {path for folder in SHIPPED if (ROOT / folder).is_dir() for path in files(folder)}
    assert shipped | {path for path in SHIPPED if (ROOT / path).is_file()} <= names
    assert not [name for name in names if name.endswith(('.so', '.o', '.pyc'))]


@pytest.mark.slow
def test_the_archive_makes_the_same_wheel(archive, wheel, tmp_path):
    this, other = (zipfile.ZipFile(path) for path in (wheel, make_wheel(archive, tmp_path)))
    assert set(this.namelist()) == set(other.namelist())
    assert {name for name in this.namelist() if this.read(name) != other.read(name)} == set()


@pytest.mark.parametrize(
    ('python', 'env', 'names'),
    [
        # As in the isolated environment of a plain ``pip install .``, which has no torch.
        (
            "import sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; __file__ = 'setup.py'; "
            "exec(open('setup.py').read())",
            {},
            ['pip install --no-build-isolation .'],
        ),
        ('', {'CXX': '/no/such/compiler'}, ['CXX', 'MMATTN_WITH_OPS=0']),
    ],
    ids=['no torch', 'no compiler'],
)
def test_a_build_that_fails_says_what_is_missing(checkout, tmp_path, python, env, names):
    command = [sys.executable, *(('-c', python) if python else ()), 'setup.py', '-q', 'build_ext', '-b', tmp_path]
    env = {**os.environ, 'MMATTN_WITH_OPS': '1', **env}
    done = subprocess.run([*command, '-t', tmp_path], cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert all(name in done.stderr.splitlines()[-1] for name in names)


@pytest.mark.slow
def test_the_model_index_names_every_metafile(wheel):
    archive = zipfile.ZipFile(wheel)
    named = json.loads(archive.read('mmattn/.mim/model-index.yml').decode().partition('Import: ')[2].replace("'", '"'))
    assert named == sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob('configs/*/metafile.yml'))
    assert {f'mmattn/.mim/{name}' for name in named} <= set(archive.namelist())


@pytest.mark.one_case
def test_config_path_finds_the_shipped_configs(installed, described):
    assert installed[1] in Path(described['file']).parents
    assert described['version'] == described['metadata']
    assert described['configs'] == CONFIGS
    assert Path(described['path']).read_text() == (ROOT / 'configs' / CONFIG).read_text()
    assert 'bi_cc/no_such_config.py' in described['missing']


@pytest.mark.slow
def test_only_an_extra_requires_openmmlab(described):
    """pip cannot tell that mmengine or onedl-mmengine will do, so the user names the family."""
    wanted = defaultdict(set)
    for requirement in described['requires']:
        name, extra = re.fullmatch(r"""([\w.-]+)[^;]*(?:; *extra == ['"](\w+)['"])?""", requirement).groups(default='')
        wanted[extra].add(name)
    assert wanted[''] == {'torch', 'numpy'}
    with_openmmlab = {extra for extra, names in wanted.items() if {'mmcv', 'onedl-mmcv'} & names}
    assert with_openmmlab == {'onedl', 'openmmlab'}
    brought = set().union(*(names for extra, names in wanted.items() if extra not in with_openmmlab))
    assert not [name for name in brought if name.startswith(('mm', 'onedl', 'opencv-python-headless'))]


@pytest.fixture
def loaded(installed, run_python, tmp_path):
    """Load a config by ``get_config``, by ``_base_`` in a user's config, and in the checkout; they must agree."""
    user = tmp_path / 'user.py'
    user.write_text(f"_base_ = 'mmattn::{CONFIG}'\nwork_dir = 'elsewhere'\n")
    code = LOAD.format(user=str(user), config=CONFIG, source=str(ROOT / 'configs' / CONFIG))

    def load(path=''):
        said = json.loads(run_python(code, python=installed[0], PYTHONPATH=path).splitlines()[-1])
        assert installed[1] in Path(said['file']).parents
        assert said['hub'] == said['source']
        assert set(said['user']) == set(said['source'])
        assert said['user']['model']['decode_head'] == said['source']['model']['decode_head']
        return said['version']

    return load


@pytest.mark.slow
def test_mmengine_finds_the_configs(loaded):
    assert loaded()


@pytest.mark.slow
def test_the_original_mmengine_finds_the_configs(loaded, original_mmengine):
    assert loaded(str(original_mmengine)) == ORIGINAL_MMENGINE


@pytest.fixture
def setup(monkeypatch):
    """The functions of ``setup.py``."""
    monkeypatch.setenv('MMATTN_WITH_OPS', '0')
    monkeypatch.setattr('setuptools.setup', lambda **_: None)
    return SimpleNamespace(**runpy.run_path(str(ROOT / 'setup.py')))


@pytest.mark.parametrize(
    ('given', 'built', 'left_out'),
    [
        ('5.2 6.0 6.1 7.0 7.5 8.0 8.6 9.0+PTX', '8.0;8.6;9.0+PTX', '5.2 6.0 6.1 7.0 7.5'),  # NVIDIA's images
        ('7.5+PTX;8.0; 10.0', '8.0;10.0', '7.5+PTX'),
        ('Volta Turing Ampere 9.0a', 'Ampere;9.0a', 'Volta Turing'),
        ('8.0;9.0+PTX', '8.0;9.0+PTX', ''),
        *((none, None, '') for none in ('7.0 7.5+PTX', 'Turing', ' ; ')),
    ],
)
def test_architectures_before_ampere_are_left_out(setup, capsys, given, built, left_out):
    if built is None:
        with pytest.raises(SystemExit, match=rf'8\.0 .*{re.escape(given)}'):
            setup.architectures(given)
        return
    assert setup.architectures(given) == built
    said = capsys.readouterr().out
    assert said.count('\n') == bool(left_out)
    assert left_out in said


@pytest.mark.parametrize(
    ('nvcc', 'torch_cuda', 'named'),
    [
        ('release 13.0, V13.0.88', '13.0', None),
        ('release 13.1, V13.1.10', '13.0', None),  # as torch: the major version counts
        ('release 12.4, V12.4.131', '13.0', ('CUDA 12.4', '13.0', 'CUDA_HOME')),
        ('release 14.0, V14.0.1', '13.0', ('CUDA 14.0', '13.0', 'CUDA_HOME')),
        (None, '13.0', ('nvcc', '13.0', 'CUDA_HOME')),
        ('release 13.0, V13.0.88', None, ('without CUDA',)),
    ],
)
def test_cuda_that_does_not_fit_torch_is_explained(setup, tmp_path, nvcc, torch_cuda, named):
    (tmp_path / 'bin').mkdir()
    if nvcc:
        (tmp_path / 'bin/nvcc').write_text(f'#!/bin/sh\necho "Cuda compilation tools, {nvcc}"\n')
        (tmp_path / 'bin/nvcc').chmod(0o755)
    reason = setup.why_without_cuda(torch_cuda, str(tmp_path))
    assert (reason is None) == (named is None)
    assert all(name in reason for name in named or ())


def test_no_toolkit_is_no_nvcc(setup):
    assert 'CUDA_HOME' in setup.why_without_cuda('13.0', None)


def test_a_torch_that_pip_would_replace_is_refused(setup):
    """Pre-releases of the oldest, too, as in NVIDIA's images: pip replaces them."""
    for version in (None, '2.4.0', '2.4.1+cpu', '2.13.0a0+git1', '3.0'):
        setup.check_torch(version)
    for version in ('2.3.1', '2.4.0a0+f70bd71', '1.13.1+cu117'):
        with pytest.raises(SystemExit, match=re.escape(version)):
            setup.check_torch(version)


def test_an_isolated_build_sees_the_torch_of_the_environment(setup, monkeypatch):
    version = setup.installed_torch()
    assert version
    monkeypatch.setattr(sys, 'path', [])
    assert setup.installed_torch() == version


def test_a_failed_build_is_explained_by_what_is_missing(setup, monkeypatch, tmp_path):
    """The compiler is blamed if it is the cause, and only then."""
    old = tmp_path / 'g++-8'
    old.write_text('#!/bin/sh\nexit 1\n')
    old.chmod(0o755)
    monkeypatch.setenv('CXX', shlex.quote(str(old)))
    said = setup.why_it_failed(tmp_path, 'c++20', True)
    assert all(name in said for name in ('c++20', str(old)))
    monkeypatch.setenv('CXX', 'true --as a-compiler')  # accepts everything
    said = setup.why_it_failed(tmp_path, 'c++20', True)
    assert 'FORCE_CUDA=0' in said
    assert 'CXX' not in said + setup.why_it_failed(tmp_path, 'c++20', False)
    monkeypatch.setattr(shutil, 'disk_usage', lambda _: SimpleNamespace(free=2**20))
    assert str(tmp_path) in setup.why_it_failed(tmp_path, 'c++20', False)


def test_force_cuda_is_an_error_without_cuda(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr('torch.version.cuda', '13.0')
    monkeypatch.setattr('torch.utils.cpp_extension.CUDA_HOME', str(tmp_path))
    monkeypatch.setattr('setuptools.setup', lambda **_: None)
    monkeypatch.setenv('MMATTN_WITH_OPS', '1')
    for value, said in (('1', 'CUDA_HOME'), ('yes', "'yes'")):
        monkeypatch.setenv('FORCE_CUDA', value)
        with pytest.raises(SystemExit, match=said):
            runpy.run_path(str(ROOT / 'setup.py'))
    monkeypatch.delenv('FORCE_CUDA')
    built = runpy.run_path(str(ROOT / 'setup.py'))['built']
    assert not [source for source in built['ext_modules'][0].sources if source.endswith('.cu')]
    monkeypatch.setattr('torch.utils.cpp_extension.BuildExtension.build_extensions', lambda self: None)
    built['cmdclass']['build_ext'](Distribution()).build_extensions()
    assert re.search('^mmattn: .*CUDA_HOME', capsys.readouterr().out, re.MULTILINE)  # what setup.sh prints


def test_importing_imports_nothing_heavy(run_python):
    modules = run_python("import sys, mmattn; print(*{module.partition('.')[0] for module in sys.modules})").split()
    assert 'mmattn' in modules
    assert not {*modules} & HEAVY
