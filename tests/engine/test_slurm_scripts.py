"""What the scripts for Slurm request, and their help, without Slurm; test_nodes.py has a real one."""

import os
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / 'tools'
ARGUMENTS = {'slurm_train.sh': ['c.py'], 'slurm_test.sh': ['c.py', 'c.pth'], 'slurm_submit.sh': ['c.py']}


@pytest.fixture
def launch(tmp_path):
    for name in ('srun', 'sbatch'):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)

    for name in ('c.py', 'c.pth'):
        (tmp_path / name).touch()

    def launch(script, *arguments, **settings):
        kept = {k: v for k, v in os.environ.items() if k not in ('GPUS', 'GPUS_PER_NODE', 'CPUS_PER_TASK', 'SRUN_ARGS')}
        environment = {**kept, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', **settings}
        return subprocess.run(
            ['bash', TOOLS / script, *arguments], env=environment, capture_output=True, text=True, cwd=tmp_path
        )

    return launch


@pytest.mark.parametrize('script', ARGUMENTS)
@pytest.mark.parametrize(
    ('settings', 'tasks', 'on_a_node'),
    [
        ({}, 4, 4),
        ({'GPUS': '1'}, 1, 1),
        ({'GPUS': '2'}, 2, 2),
        ({'GPUS': '16'}, 16, 4),
        ({'GPUS': '16', 'GPUS_PER_NODE': '8'}, 16, 8),
        ({'GPUS': '2', 'GPUS_PER_NODE': '0'}, 2, None),
    ],
)
def test_what_is_requested(launch, script, settings, tasks, on_a_node):
    done = launch(script, 'part', 'job', *ARGUMENTS[script], '--more', 'a b', **settings)
    assert done.returncode == 0
    said = done.stdout.splitlines()
    assert said[:3] == ['-p', 'part', '--job-name=job']
    per_node = [f'--ntasks-per-node={on_a_node}', f'--gres=gpu:{on_a_node}'] if on_a_node else []
    assert [line for line in said if line.startswith(('--ntasks', '--gres'))] == [f'--ntasks={tasks}', *per_node]
    if script != 'slurm_submit.sh':
        tool = f'{TOOLS}/{script.removeprefix("slurm_").replace(".sh", ".py")}'
        assert said[-7 - (script == 'slurm_test.sh') :] == [
            '-u', tool, *ARGUMENTS[script], '--launcher', 'slurm', '--more', 'a b'
        ]  # fmt: skip


@pytest.mark.parametrize('script', ARGUMENTS)
@pytest.mark.parametrize('name', ['GPUS', 'GPUS_PER_NODE', 'CPUS_PER_TASK'])
def test_what_is_no_number_is_named(launch, script, name):
    done = launch(script, 'part', 'job', *ARGUMENTS[script], **{name: 'abc'})
    assert done.returncode == 2
    assert f'{name} ' in done.stderr
    assert 'abc' in done.stderr


@pytest.mark.parametrize('script', ARGUMENTS)
def test_a_missing_file_is_an_error_before_the_job_waits(launch, script, tmp_path):
    files = [tmp_path / name for name in ARGUMENTS[script]]
    for missing in files:
        for file in files:
            file.touch()
        missing.unlink()
        done = launch(script, 'part', 'job', *map(str, files))
        assert (done.returncode, done.stdout) == (2, '')
        assert str(missing) in done.stderr
    missing.touch()
    assert (
        launch(script, 'part', 'job', 'mmattn::bi_cc/x.py', *(['https://a/b.pth'] if files[1:] else [])).returncode == 0
    )


@pytest.mark.parametrize('script', ARGUMENTS)
def test_help_and_too_few_arguments(launch, script):
    asked, short = launch(script, '--help'), launch(script, 'part')
    assert (asked.returncode, short.returncode) == (0, 2)
    assert asked.stdout == short.stderr
    assert script in asked.stdout
    assert 'set -e' not in asked.stdout
