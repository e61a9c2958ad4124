"""``tools/misc/gpu_run``, and how its benchmarks measure, on a machine without a GPU."""

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
PASSES = 'forward', 'forward + backward'


def outside():
    return {name: value for name, value in os.environ.items() if not name.startswith('PYTEST_')}


def records(path):
    return json.loads(path.read_text(encoding='utf-8'))


@requires('triton')
@pytest.mark.e2e
def test_all_calls_are_rehearsed_without_a_gpu(tmp_path):
    """Every part, on small maps: a changed name or signature fails here."""
    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('before 3.7, the interpreter fails with this numpy')
    paths = {'OUT': str(tmp_path), 'SITE': str(tmp_path / 'site'), 'PYTHON': sys.executable}
    env = {**outside(), **paths, 'SMALL': '--small', 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(['bash', GPU_RUN / 'gpu_run.sh', '1', '2', '3'], env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + (tmp_path / 'run.log').read_text()
    parts = 'env', 'ops', 'layers', 'tests', 'networks', 'sanitize', 'flex', 'calls'
    assert [part for part in parts if f'{part}: done' not in done.stdout] == []

    found = {part: records(tmp_path / f'{part}.json') for part in ('ops', 'layers', 'networks', 'flex')}
    assert all(min(x['ours_s'], x['peer_s'], x['time_ratio']) > 0 for those in found.values() for x in those)
    measured = {(x['workload'], x['backend'], x['pass']) for x in found['ops']}
    kernels = ['native'] if library.has_kernel('grid_attention') else []
    for workload in ('P1', 'P2', 'P3', 'P6, positions'):
        assert measured >= {(workload, backend, of) for backend in ('composition', *kernels) for of in PASSES}
    assert ('P1', 'triton', PASSES[1]) in measured
    assert {x['workload'] for x in found['layers']} == {'Bi-NL', 'Bi-CC', 'BA', 'SST (Grid)', 'SST (Strided)'}
    assert {x['workload'] for x in found['networks']} == {'Bi-NL', 'Bi-CC', 'U-Net-BA'}
    assert 'FlexAttention' in {x['peer'] for x in found['flex']}


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
    command = ['bash', tmp_path / place / 'gpu_run.sh', 'layers']
    subprocess.run(command, env=env, cwd='/', check=True, capture_output=True)
    log = (tmp_path / 'out/run.log').read_text().split('\n')
    assert f'{tmp_path} /site:{tmp_path} tools/benchmarks/layers.py' in log


TABLE = """
import os
from functools import partial

import measuring
import torch
import workloads

def build(small, dtype, device, kind):
    x = torch.arange(1.0, 5, requires_grad=True)

    def ours(x):
        if kind == 'crash':
            os._exit(9)
        return x * x

    def theirs(x):
        if kind == 'wrong gradient':
            return (x * x).detach() + 0 * x
        return (1.01 if kind == 'wrong' else 1) * x * x

    calls = [workloads.contender(function, {'x': x}) for function in (ours, theirs)]
    return workloads.Workload(kind, '', calls[0], {'peer': calls[1]})

if __name__ == '__main__':
    parser = measuring.parser('')
    table = {x: partial(build, kind=x) for x in ('first', 'crash', 'wrong', 'wrong gradient', 'last')}
    raise SystemExit(measuring.run(parser, parser.parse_args(), table))
"""


@pytest.mark.e2e
def test_a_workload_that_fails_is_no_time_and_ends_no_other(tmp_path):
    """It ends its process, or its values or gradients are not those of its peer."""
    (tmp_path / 'table.py').write_text(TABLE)
    env = {**outside(), 'PYTHONPATH': os.pathsep.join(map(str, [ROOT, ROOT / 'tools/benchmarks']))}
    command = [sys.executable, tmp_path / 'table.py', '--device', 'cpu', '--json', tmp_path / 'table.json']
    done = subprocess.run(command, env=env, text=True, capture_output=True)
    assert done.returncode == 1, done.stderr
    lines = records(tmp_path / 'table.json')
    assert [x['workload'] for x in lines if 'error' in x] == ['crash', 'wrong', 'wrong gradient']
    measured = [(x['workload'], x['pass']) for x in lines if 'error' not in x]
    assert measured == [(name, of) for name in ('first', 'last') for of in PASSES]
