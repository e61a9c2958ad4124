"""``tools/misc/gpu_day.sh`` and ``tools/benchmarks/layers.py``, on a machine without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / 'tools/misc/gpu_day.sh'


@pytest.fixture
def machine(tmp_path):
    """A checkout with the script, and a folder of programs that replace those of a machine with a GPU."""
    (tmp_path / 'tools/misc').mkdir(parents=True)
    (tmp_path / 'bin').mkdir()
    text = SCRIPT.read_text(encoding='utf-8')
    parts = 'parts=("first|echo one >>runs; echo said" "second|echo two >>runs; exit 3" "third|echo three >>runs")'
    (tmp_path / 'tools/misc/gpu_day.sh').write_text(re.sub(r'parts=\(.*?\n\)', parts, text, flags=re.DOTALL))

    def run(*arguments, script=tmp_path / 'tools/misc/gpu_day.sh'):
        env = {**os.environ, 'PATH': f'{tmp_path / "bin"}:/usr/bin:/bin'}
        return subprocess.run(['bash', script, *arguments], env=env, text=True, capture_output=True)

    run.folder = tmp_path
    return run


def add(machine, *names):
    for name in names:
        path = machine.folder / 'bin' / name
        path.write_text('#!/bin/sh\n')
        path.chmod(0o755)


def test_a_dry_run_prints_the_plan_and_what_is_missing(machine):
    done = machine('--dry-run', script=SCRIPT)
    plan = done.stdout.splitlines()
    assert re.match(r'\d\d build +FORCE_CUDA=1 bash tools/environment/setup.sh', plan[1])
    for command in ('tests/ops/test_gpu.py', 'compute-sanitizer', 'check_gpu --operators', 'layers.py', 'ops.py'):
        assert command in done.stdout
    assert done.returncode == 1
    assert 'missing: a GPU that nvidia-smi lists' in done.stderr


def test_every_file_of_the_plan_exists(machine):
    plan = machine('--dry-run', script=SCRIPT).stdout
    files = set(re.findall(r'(?:tools|tests)/\S+\.(?:py|sh)', plan))
    assert len(files) >= 4
    assert all((ROOT / file).is_file() for file in files)
    operators = re.findall(r'--operators (\w+)', plan)
    assert set(operators) == {
        'local_attention', 'dynamic_conv', 'global_attention', 'grid_attention', 'strided_attention',
    }  # fmt: skip


def test_parts_that_fail_are_repeated_and_the_others_are_not(machine):
    add(machine, 'nvidia-smi', 'nvcc', 'compute-sanitizer')
    assert machine('--dry-run').returncode == 0
    for attempt in range(2):
        done = machine()
        assert done.returncode == 1
        assert 'complete: 2 of 3 parts; failed: second' in done.stdout
        assert 'second: exit code 3' in done.stdout
        assert ('first: complete, see work_dirs/gpu_day/01_first.log' in done.stdout) == bool(attempt)
    assert (machine.folder / 'runs').read_text().split() == ['one', 'two', 'three', 'two']
    assert (machine.folder / 'work_dirs/gpu_day/01_first.log').read_text() == 'said\n'


def test_layers_are_measured_beside_stock_layers(run):
    output = run(
        sys.executable, ROOT / 'tools/benchmarks/layers.py', '--device', 'cpu', '--small', '--repeats', '1',
        '--backend', 'composition', '--dtypes', 'bfloat16',
    )  # fmt: skip
    rows = [line.split(' | ') for line in output.splitlines() if line.startswith('| ')]
    names = {row[0].removeprefix('| ') for row in rows}
    assert {'Bi-NL', 'NonLocal2d', 'Bi-CC', 'BA', '3×3 convolution', 'SST (Grid)', 'SST (Strided)'} <= names
    stock = [row for row in rows if row[0] == '| NonLocal2d']
    assert [row[4] for row in stock] == ['1.00'] * 2
