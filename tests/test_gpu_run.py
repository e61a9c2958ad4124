"""``tools/misc/gpu_run`` and ``tools/benchmarks/layers.py``, on a machine without a GPU."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmattn.ops import library, triton

from .requirements import requires

ROOT = Path(__file__).parents[1]
GPU_RUN = ROOT / 'tools/misc/gpu_run'


def read(folder):
    return [json.loads(line) for line in (folder / 'results.jsonl').read_text(encoding='utf-8').splitlines()]


@requires('triton')
@pytest.mark.e2e
def test_both_calls_are_rehearsed_without_a_gpu(tmp_path):
    """Every part, on small maps, in the time of the calls: a changed name or signature fails here."""
    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('before 3.7, the interpreter fails with this numpy')
    paths = {'OUT': str(tmp_path), 'SITE': str(tmp_path / 'site'), 'PYTHON': sys.executable}
    outside = {name: value for name, value in os.environ.items() if not name.startswith('PYTEST_')}
    env = {**outside, **paths, 'SMALL': '--small', 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(['bash', GPU_RUN / 'gpu_run.sh', '1', '2'], env=env, text=True, capture_output=True)
    lines = read(tmp_path)
    assert [line for line in lines if 'error' in line or line.get('ok') is False] == []
    assert done.returncode == 0, done.stdout
    parts = 'env', 'tune', 'ops', 'layers', 'tests', 'train', 'capture', 'sanitize', 'flex'
    assert [line['part'] for line in lines if 'seconds' in line] == [*parts]
    assert len(done.stdout) < 20_000  # for both; a lent machine gives back 12,000 characters of a call

    tested = {line['part']: line['passed'] for line in lines if 'passed' in line}
    assert all(tested[part] > 0 for part in ('tests', 'sanitize'))  # their selections
    timed = [line for line in lines if {'ms', 'pass'} <= {*line}]
    assert all(min(line['ms'], line['device_ms'], line['launches']) > 0 for line in timed)
    layers = {(x['title'], x['backend'], x['pass']) for x in timed if x['part'] == 'layers'}
    titles, passes = ('Bi-NL', 'Bi-CC', 'BA', 'SST (Grid)', 'SST (Strided)'), ('forward', 'forward + backward')
    assert layers >= {*itertools.product(titles, ('auto', 'composition'), passes)}
    operators = {(x['workload'], x['title'], x['pass']) for x in timed if x['part'] == 'ops'}
    implementations = ['composition', *(['native'] if library.has_kernel('grid_attention') else [])]
    assert operators >= {*itertools.product(('P1', 'P2', 'P3', 'P6, positions'), implementations, passes)}
    assert ('P1', 'triton', 'forward + backward') in operators
    (tuned,) = [line['ms'] for line in lines if line['part'] == 'tune' and 'ms' in line]
    assert {*tuned} == {'forward_kernel', 'query_gradients', 'key_gradients'}
    trained = {line['title'] for line in lines if line['part'] == 'train' and 'ms' in line}
    assert trained == {'NL', 'Bi-NL', 'CC', 'Bi-CC', 'U-Net', 'U-Net-BA'}


HITS = """
import os
import sys
import warm_cache
from triton import knobs

if __name__ == '__main__':
    first, then, hits = sys.argv[1], sys.argv[2], []
    groups = [(16, (16, 16, 16, 4, 2))]
    knobs.cache.dir = first
    warm_cache.warm(90, groups)  # in other processes
    os.rename(first, then)
    knobs.cache.dir = then
    knobs.compilation.listener = lambda **compiled: hits.append(compiled['cache_hit'])
    for group in groups:
        warm_cache.compile_group(90, group)
    print('hits:', *hits)
"""


@requires('triton')
@pytest.mark.slow
def test_a_cache_that_moved_has_the_kernels(tmp_path):
    """As from the machine that compiled them to one with a GPU: nothing is compiled again."""
    (tmp_path / 'hits.py').write_text(HITS)
    path = os.pathsep.join(map(str, [GPU_RUN, ROOT / 'tools/benchmarks', ROOT, *sys.path]))
    env = {**os.environ, 'PYTHONPATH': path, 'TRITON_STORE_BINARY_ONLY': '1', 'SMALL': ''}
    command = [sys.executable, tmp_path / 'hits.py', tmp_path / 'first', tmp_path / 'then']
    done = subprocess.run(command, env=env, cwd=tmp_path, text=True, capture_output=True)
    assert 'hits: True True True\n' in done.stdout, done.stderr


@pytest.mark.parametrize('place', ['tools/misc/gpu_run', '.gpu_run'])
def test_the_run_measures_the_checkout_that_it_is_in(place, tmp_path):
    (tmp_path / 'mmattn').mkdir()
    (tmp_path / 'mmattn/__init__.py').touch()
    shutil.copytree(GPU_RUN, tmp_path / place, ignore=shutil.ignore_patterns('whl', '_C.so'))
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho "$PWD $PYTHONPATH $1"\n')
    python.chmod(0o755)
    env = {**os.environ, 'SMALL': '--small', 'OUT': str(tmp_path / 'out'), 'SITE': '/site', 'PYTHON': str(python)}
    env.pop('PYTHONPATH', None)
    subprocess.run(['bash', tmp_path / place / 'gpu_run.sh', 'env'], env=env, cwd='/', check=True, capture_output=True)
    folder = tmp_path / place
    path = f'/site:{tmp_path}:{tmp_path}/tools/benchmarks:{folder}'
    assert f'{tmp_path} {path} {folder}/gpu_run.py' in (tmp_path / 'out/run.log').read_text().split('\n')


GROUPS = """
import atexit
import os
from unittest import mock
import findings

def group(name):
    findings.record('x', ran=name, process=os.getpid())
    if name == 'crash':
        os._exit(9)
    if name == 'last':
        atexit.register(os.abort)
    with findings.guarded('x', case=name), mock.patch('findings.usable', return_value=name != 'illegal access'):
        with findings.guarded('x', case=f'{name}, within'):
            assert name not in ('wrong', 'illegal access'), name
        findings.record('x', after=name)

if __name__ == '__main__':
    findings.START = 'spawn'  # as on a GPU
    names = ['first', 'crash', 'wrong', 'illegal access', 'last']
    print(findings.run_groups('x', group, names, 100))
    print(findings.run_groups('late', group, names[:2], 0))
"""


@pytest.mark.e2e
def test_a_group_that_ends_its_process_ends_no_other_group(tmp_path):
    (tmp_path / 'groups.py').write_text(GROUPS)
    outside = {name: value for name, value in os.environ.items() if not name.startswith('PYTEST_')}
    env = {**outside, 'OUT': str(tmp_path), 'PYTHONPATH': str(GPU_RUN)}
    done = subprocess.run([sys.executable, tmp_path / 'groups.py'], env=env, text=True, capture_output=True)
    assert "['first', 'wrong', 'last']" in done.stdout, done.stderr
    lines = read(tmp_path)
    processes = {x['ran']: x['process'] for x in lines if 'ran' in x}
    assert list(processes) == ['first', 'crash', 'wrong', 'illegal access', 'last']
    assert len(set(processes.values())) == 3
    assert [x['after'] for x in lines if 'after' in x] == ['first', 'wrong', 'last']
    errors = [(x.get('group', x.get('case')), x['error']) for x in lines if 'error' in x]
    assert errors == [
        ('crash', 'ended its process, exit code 9'),
        ('wrong, within', 'AssertionError: wrong'),
        ('illegal access, within', 'AssertionError: illegal access'),
        ('last', 'ended its process, exit code -6'),
        ('first', 'ran out of time'),
        ('crash', 'ran out of time'),
    ]
