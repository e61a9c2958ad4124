"""What the scripts of the quick start print: a line per step, everything else in the log."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from shutil import copy, copytree, rmtree
from zipfile import ZipFile

import pytest

from .conftest import CACHE

ROOT = Path(__file__).parents[1]


def steps(code, **env):
    words = ['bash', '-euo', 'pipefail', '-c', f'source {ROOT}/tools/environment/steps.sh; {code}']
    return subprocess.run(words, text=True, capture_output=True, env={'PATH': '/usr/bin:/bin', **env}, timeout=60)


def test_a_step_is_one_line_and_its_output_is_in_the_log(tmp_path):
    log = tmp_path / 'new/log.txt'
    done = steps("step 'first' seq 3; step 'second' bash -c 'echo out; echo err >&2'", MMATTN_LOG=str(log))
    assert (done.returncode, done.stderr) == (0, '')
    assert re.fullmatch(r'\[mmattn\] first +\d s\n\[mmattn\] second +\d s\n', done.stdout)
    assert log.read_text(encoding='utf-8') == '\n=== first\n1\n2\n3\n\n=== second\nout\nerr\n'


@pytest.mark.parametrize('with_log', [True, False])
def test_a_step_that_fails_ends_the_script_and_shows_the_end_of_its_output(tmp_path, with_log):
    env = {'MMATTN_LOG': str(tmp_path / 'log.txt')} if with_log else {}
    done = steps("step 'before' echo earlier; step 'broken' bash -c 'seq 100; exit 3'; echo reached", **env)
    assert done.returncode == 3
    assert 'reached' not in done.stdout
    *shown, last = done.stderr.splitlines()
    assert shown == [str(number) for number in range(81, 101)]
    assert last.endswith('log.txt' if with_log else 'broken')


@pytest.fixture
def scripts(tmp_path):
    """``scripts(name, *options, **env)`` runs a script of a copy, in which nothing is made if it ends early."""
    copytree(ROOT / 'tools/environment', tmp_path / 'tools/environment')
    copy(ROOT / 'tools/quickstart.sh', tmp_path / 'tools')

    def run(name, *options, **env):
        before = set(tmp_path.rglob('*'))
        command = ['bash', tmp_path / 'tools' / name, *options]
        done = subprocess.run(command, env={**os.environ, **env}, text=True, capture_output=True, timeout=60)
        assert set(tmp_path.rglob('*')) == before
        return done

    return run


@pytest.mark.parametrize('script', ['quickstart.sh', 'environment/setup.sh', 'environment/dependencies.sh'])
def test_an_unknown_option_is_an_error_before_any_work(scripts, script):
    done = scripts(script, '--fast')
    assert done.returncode in (1, 2)
    assert re.search('--peer' if script == 'quickstart.sh' else '--fast', done.stderr)
    if script != 'quickstart.sh':
        done = scripts(script, '--help')
        assert done.returncode == 0
        words = '--with-mmcv-ops', 'PYTHON', 'MMATTN_ACCELERATOR', 'MMATTN_CACHE', 'TORCH_INDEX_URL'
        assert all(word in done.stdout for word in words)


def test_another_python_or_accelerator_is_an_error(scripts, tmp_path):
    (tmp_path / '.venv/bin').mkdir(parents=True)
    for path, version in ('.venv/bin/python', '3.11'), ('.venv/bin/pip', ''), ('newer', '3.12'):
        (tmp_path / path).write_text(f'#!/bin/sh\necho {version}\n')
        (tmp_path / path).chmod(0o755)
    for name, value in dict(PYTHON=str(tmp_path / 'newer'), MMATTN_ACCELERATOR='gpu').items():
        done = scripts('environment/dependencies.sh', **{name: value})
        assert done.returncode == 1
        assert value in done.stderr


PIP = """#!/bin/sh
case "$*" in
    *'pip install -v'*) echo run >>runs; echo '  mmattn: for the CPU alone, because there is no nvcc' ;;
esac
"""


def test_what_the_build_leaves_out_is_printed_each_time_until_it_can_be_built(tmp_path):
    """pip shows what setup.py says with -v alone. A toolkit that is installed later is a reason to build again."""
    for name in ('mmattn/ops/csrc', '.venv/bin', 'later'):
        (tmp_path / name).mkdir(parents=True)
    copytree(ROOT / 'tools/environment', tmp_path / 'tools/environment')
    (tmp_path / 'tools/environment/dependencies.sh').write_text('echo cuda >.venv/dependencies-stamp')
    for name in ('setup.py', 'pyproject.toml'):
        (tmp_path / name).touch()
    for name, text in (('.venv/bin/python', PIP), ('later/nvcc', '')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    command = ['bash', tmp_path / 'tools/environment/setup.sh']

    def said(path='/usr/bin:/bin'):
        return subprocess.check_output(command, env={'PATH': path}, text=True, timeout=60)

    for _ in range(2):
        assert '[mmattn] for the CPU alone, because there is no nvcc\n' in said()
    assert (tmp_path / 'runs').read_text() == 'run\n'
    said(f'{tmp_path}/later:/usr/bin:/bin')
    assert (tmp_path / 'runs').read_text() == 'run\n' * 2


def add_wheel(folder, name, version, cuda=None):
    folder.mkdir(parents=True, exist_ok=True)
    with ZipFile(folder / f'{name}-{version}-py3-none-any.whl', 'w') as wheel:
        code = f'class version:\n    cuda = {cuda!r}\n__version__ = {version!r}\n'
        wheel.writestr(f'{name}.py', code)
        info = f'{name}-{version}.dist-info'
        wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        wheel.writestr(f'{info}/RECORD', '')


@pytest.fixture
def environment(tmp_path):
    """``environment(*options, **env)`` runs dependencies.sh where pip knows a folder of wheels alone.

    mmcv with operators is in the cache. ``versions`` are those of the script.
    """
    copytree(ROOT / 'tools/environment', tmp_path / 'tools/environment')
    (tmp_path / 'tools/environment/lock.txt').write_text('')
    script = (tmp_path / 'tools/environment/dependencies.sh').read_text()
    versions = dict(re.findall(r'^(torch|mmcv)=(\S+)$', script, re.MULTILINE))
    for accelerator in ('cpu', 'cuda'):
        wheels = (
            f'py{sys.version_info[0]}{sys.version_info[1]}-torch{versions["torch"]}-{accelerator}-{os.uname().machine}'
        )
        add_wheel(tmp_path / 'cache/wheels' / wheels, 'onedl_mmcv', versions['mmcv'])
    (tmp_path / 'nvcc').touch(mode=0o755)
    outside = {key: value for key, value in os.environ.items() if not key.startswith(('PIP_', 'UV_', 'PYTHONPATH'))}
    settings = {
        'MMATTN_CACHE': str(tmp_path / 'cache'),
        'PATH': f'{tmp_path}:{os.environ["PATH"]}',
        'PIP_CONFIG_FILE': os.devnull,
        'PIP_FIND_LINKS': (tmp_path / 'wheels').as_uri(),
        'PIP_NO_INDEX': '1',
        'PYTHON': sys.executable,
    }

    def run(*options, **env):
        command = ['bash', tmp_path / 'tools/environment/dependencies.sh', *options]
        env = {key: value for key, value in (outside | settings | env).items() if value}
        return subprocess.run(command, env=env, text=True, capture_output=True, timeout=300)

    def torch():
        code = 'import torch; print(torch.__version__, torch.version.cuda)'
        return subprocess.check_output([tmp_path / '.venv/bin/python', '-c', code], env=outside, text=True).strip()

    run.versions, run.torch = versions, torch
    return run


@pytest.mark.e2e
def test_a_build_of_torch_for_cpus_does_not_hide_the_one_for_cuda(environment, tmp_path):
    """pip installs from a folder of wheels: torch for CPUs, which it prefers, then beside torch for CUDA."""
    version = environment.versions['torch']
    add_wheel(tmp_path / 'wheels', 'torch', f'{version}+cpu')
    done = environment('--with-mmcv-ops', MMATTN_ACCELERATOR='cuda')
    assert done.returncode == 1
    assert 'is a build for CPUs: set PIP_INDEX_URL to an index with the CUDA build, or MMATTN_ACCEL' in done.stderr

    add_wheel(tmp_path / 'wheels', 'torch', version, cuda='13.0')
    done = environment('--with-mmcv-ops', MMATTN_ACCELERATOR='cuda')
    assert done.returncode == 0, done.stderr
    assert environment.torch() == f'{version} 13.0'


@pytest.mark.e2e
def test_without_an_index_of_pytorch_the_build_for_cuda_serves_and_a_cache_changes_nothing(environment, tmp_path):
    """The index of pip has torch for CUDA alone. The cache has mmcv with operators, for those who ask for it."""
    version = environment.versions['torch']
    add_wheel(tmp_path / 'index/torch', 'torch', version, cuda='13.0')
    wheel = next((tmp_path / 'index/torch').iterdir()).name
    (tmp_path / 'index/torch/index.html').write_text(f'<!DOCTYPE html><a href="{wheel}">{wheel}</a>')
    no_folder = dict(PIP_FIND_LINKS='', PIP_NO_INDEX='', PIP_INDEX_URL=(tmp_path / 'index').as_uri())
    no_folder.update(TORCH_INDEX_URL=(tmp_path / 'nothing').as_uri(), MMATTN_ACCELERATOR='cpu')
    done = environment(**no_folder)
    assert 'for CUDA, which runs on CPUs' in done.stdout
    assert environment.torch() == f'{version} 13.0'
    assert done.returncode == 1  # mmcv without operators is on no index here
    assert 'installing mmcv without its operators' in done.stderr

    done = environment('--with-mmcv-ops', **no_folder)
    assert done.returncode == 0, done.stderr
    assert 'torch' not in done.stdout  # it is kept


def test_the_quick_start_compiles_the_cuda_kernels():
    """In a clone of the last commit. It stays in the cache with its environment, so that a second run is quick."""
    if os.environ.get('MMATTN_CUDA_TESTS') != '1':
        pytest.skip('set MMATTN_CUDA_TESTS=1 to install torch for CUDA (6 GB), and to compile with nvcc 13')
    clone = CACHE / 'quickstart_cuda'
    if not clone.exists():
        subprocess.run(['git', 'init', '--quiet', clone], check=True)
    subprocess.run(['git', '-C', clone, 'fetch', '--quiet', ROOT, 'HEAD'], check=True)
    subprocess.run(['git', '-C', clone, 'checkout', '--quiet', '--force', '--detach', 'FETCH_HEAD'], check=True)
    rmtree(clone / 'work_dirs', ignore_errors=True)  # else training would resume at its end
    env = {key: value for key, value in os.environ.items() if key not in ('OMP_NUM_THREADS', 'PYTHONPATH')}
    env = {'PYTHON': 'python3.12', **env, 'MMATTN_ACCELERATOR': 'cuda', 'MMATTN_CACHE': str(CACHE)}
    subprocess.run(['bash', 'tools/quickstart.sh'], cwd=clone, env=env, check=True)

    command = [clone / '.venv/bin/python', '-m', 'mmattn.utils.collect_env']
    lines = subprocess.check_output(command, cwd=clone, env=env, text=True).splitlines()
    found = dict(line.split(': ', 1) for line in lines if ': ' in line)
    assert found['CUDA'].startswith('13.')
    assert found['CUDA kernels'] == 'dynamic_conv, grid_attention, local_attention, strided_attention'
    table = (clone / 'work_dirs/quickstart/miou.md').read_text(encoding='utf-8').splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip('|').split('|')] for line in table)
    miou = {row[0]: float(row[header.index('mIoU')]) for row in rows}
    assert miou['Bi-CC'] > 65 > 45 > miou['majority class']


def test_a_script_that_is_killed_leaves_no_progress_behind(tmp_path):
    """Whoever prints the progress has the pipe open: it ends when the last of them has ended."""
    code = f"source {ROOT}/tools/environment/steps.sh; step 'long' bash -c 'echo there > started; exec sleep 5'"
    process = subprocess.Popen(['bash', '-c', code], cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    while not (tmp_path / 'started').exists():
        time.sleep(0.05)
    process.kill()
    process.wait()
    process.communicate(timeout=4)  # the command itself writes to the log


def test_uv_gets_the_settings_of_pip():
    """Of the environment and of files; what is set for uv remains."""
    script = ROOT / 'tools/environment/uv_settings.py'
    env = {key: value for key, value in os.environ.items() if not key.startswith(('PIP_', 'UV_', 'SSL_'))}
    env |= {
        'PIP_CONFIG_FILE': os.devnull,
        'PIP_INDEX_URL': 'https://index.example/simple',
        'PIP_EXTRA_INDEX_URL': 'https://a.example https://b.example',
        'PIP_FIND_LINKS': '/wheels /more',
        'UV_INDEX': 'mine',
    }
    lines = subprocess.check_output([sys.executable, script], env=env, text=True).splitlines()
    assert lines == ['export UV_DEFAULT_INDEX=https://index.example/simple', 'export UV_FIND_LINKS=/wheels,/more']
    env['PIP_INDEX_URL'] = 'https://user:a%20b&c@index.example'
    shell = ['bash', '-c', f'eval "$({sys.executable} {script})"; echo "$UV_DEFAULT_INDEX"']
    assert subprocess.check_output(shell, env=env, text=True) == f'{env["PIP_INDEX_URL"]}\n'
