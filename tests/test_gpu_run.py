"""``tools/misc/gpu_run`` and ``tools/benchmarks/layers.py``, on a machine without a GPU."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmattn.ops import library
from mmattn.ops.gpu.check_gpu import DTYPE_CLASSES, kernels_of

ROOT = Path(__file__).parents[1]
GPU_RUN = ROOT / 'tools/misc/gpu_run'


def read(folder):
    return [json.loads(line) for line in (folder / 'results.jsonl').read_text(encoding='utf-8').splitlines()]


@pytest.mark.e2e
def test_the_run_is_rehearsed_without_a_gpu(tmp_path):
    paths = {'OUT': str(tmp_path), 'SITE': str(tmp_path / 'site'), 'PYTHON': sys.executable}
    outside = {name: value for name, value in os.environ.items() if not name.startswith('PYTEST_')}
    env = {**outside, **paths, 'SMALL': '--small', 'OMP_NUM_THREADS': '1'}
    command = ['bash', GPU_RUN / 'gpu_run.sh', 'env', 'compare', 'layers', 'ops', 'sanitize']
    done = subprocess.run(command, env=env, text=True, capture_output=True)
    lines = read(tmp_path)
    assert [line for line in lines if 'error' in line or line.get('ok') is False] == [], done.stdout
    assert [line['part'] for line in lines if 'seconds' in line] == ['env', 'compare', 'layers', 'ops']
    assert done.stdout.count('exit code 0') == 5, done.stdout
    assert next(line['passed'] for line in reversed(lines) if 'passed' in line) > 0  # the selection of `sanitize`
    assert {line.get('torch') for line in lines} >= {torch.__version__}

    kernels = {name: kernels_of(name, torch.device('cpu')) for name in library.KERNELS}
    compared = [(x['operator'], x['kernel'], x['dtypes']) for x in lines if x['part'] == 'compare' and 'kernel' in x]
    assert sorted(compared) == sorted((n, k, x) for n, found in kernels.items() for k in found for x in DTYPE_CLASSES)

    timed = [line for line in lines if 'ms' in line]
    layers = {(x['title'], x['mode'], x['pass']) for x in timed if x['part'] == 'layers'}
    titles = 'Bi-NL', 'NonLocal2d', 'Bi-CC', 'CrissCrossAttention', 'BA', 'SST (Grid)', 'SST (Strided)'
    passes = 'forward', 'forward + backward'
    assert layers >= set(itertools.product(titles, ('float32', 'amp bfloat16'), passes))
    operators = {(x['workload'], x['title'], x['dtype'], x['pass']) for x in timed if x['part'] == 'ops'}
    calls = {
        ('SST, grid', 'grid_attention'): ('composition',),
        ('SST, strided', 'strided_attention'): ('composition', 'composition, formulas'),
        ('global, 64 channels', 'global_attention'): ('composition, SDPA backward', 'composition, formulas backward'),
        ('P2', 'grid_attention'): ('mmcv CrissCrossAttention, content only',),
        ('P7 1111', 'global_attention'): ('mmcv GeneralizedAttention',),
    }
    for (workload, operator), compared in calls.items():
        titles = *compared, *kernels[operator]
        assert operators >= set(itertools.product([workload], titles, ('float32', 'bfloat16'), passes))
    assert all(x['ms'] > 0 for x in timed)


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
    assert (tmp_path / 'out/parts.log').read_text().split('\n')[1] == f'{tmp_path} {path} {folder}/gpu_run.py'


GROUPS = """
import os
from unittest import mock
import findings

def group(name):
    findings.record('x', ran=name, process=os.getpid())
    if name == 'crash':
        os._exit(9)
    with findings.guarded('x', case=name), mock.patch('findings.usable', return_value=name != 'illegal access'):
        with findings.guarded('x', case=f'{name}, within'):
            assert name not in ('wrong', 'illegal access'), name
        findings.record('x', after=name)

if __name__ == '__main__':
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
        ('first', 'ran out of time'),
        ('crash', 'ran out of time'),
    ]
