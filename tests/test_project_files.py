"""What a repository's host reads, such as citation and workflow, and image files, which ``docker/prove.sh`` builds."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import yaml

import mmattn

ROOT = Path(__file__).parents[1]
CPU, CUDA = ((ROOT / 'docker' / name).read_text() for name in ('Dockerfile.cpu', 'Dockerfile'))
LINE = re.compile('^# -{20,}$', re.MULTILINE)


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding='utf-8'))


def test_what_is_built_has_the_version_of_the_newest_section():
    """A section without a date is under way, those with a date name their commit, and the newest release is cited."""
    changelog = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
    first, *_ = re.findall(r'^## (.+)$', changelog, re.MULTILINE)
    coming = re.fullmatch(r'Unreleased \((.+)\)', first)
    released = re.findall(r'^## ([\d.]+) \((.+)\)\n\n(.*)$', changelog, re.MULTILINE)
    assert mmattn.__version__ == (f'{coming.group(1)}.dev0' if coming else released[0][0])
    citation = read('CITATION.cff')
    assert (citation['version'], str(citation['date-released'])) == released[0][:2]
    if coming:
        assert re.fullmatch('Commit `[0-9a-f]{8}`.', released[0][2])


def test_the_citation_has_every_source():
    citation = read('CITATION.cff')
    assert {'cff-version', 'message', 'title', 'authors'} <= set(citation)  # the schema requires these
    sources = (ROOT / 'docs/methods.md').read_text(encoding='utf-8').partition('## Sources')[2]
    titles = [' '.join(title.split()) for title in re.findall(r'\. \*(.+?)\*\.', sources, re.DOTALL)]
    assert sorted(reference['title'] for reference in citation['references']) == sorted(titles)
    assert len(titles) == 5


def test_the_workflow_runs_the_command_of_the_readme():
    workflow = read('.github/workflows/tests.yml')
    assert set(workflow) == {'name', True, 'permissions', 'jobs'}  # YAML 1.1 reads the key `on` as true
    (job,) = workflow['jobs'].values()
    assert {'runs-on', 'steps'} <= set(job)
    assert all(('uses' in step) != ('run' in step) for step in job['steps'])
    (command,) = (step['run'] for step in job['steps'] if 'run' in step)
    assert f'\n{command}\n' in (ROOT / 'README.md').read_text(encoding='utf-8')


def test_ci_runs_the_first_two_commands_of_the_readme():
    ci = [str(ROOT / '.ci/run'), '--commands']
    assert subprocess.run(['bash', *ci], capture_output=True, text=True, check=True).stdout.splitlines() == [
        'bash tools/quickstart.sh',
        'bash tools/run_tests.sh',
    ]


def test_ci_runs_each_test_once_and_sets_aside_what_changes_them(tmp_path):
    """In copies that only note how they are called."""
    notes, checkout, config = tmp_path / 'notes', tmp_path / 'mmattn', tmp_path / 'config'
    shutil.copytree(ROOT / '.ci', checkout / '.ci')
    for name in ('README.md', 'tools/environment/steps.sh'):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name in ('quickstart.sh', 'run_tests.sh'):
        (checkout / 'tools' / name).write_text(f'printf "%s\\n" "$0 $*" "$(env)" >> "{notes}"')
    (config / 'uv').mkdir(parents=True)
    (config / 'uv/uv.toml').touch()
    changes = (
        'MMATTN_BACKEND',
        'PYTEST_ADDOPTS',
        'PYTHONOPTIMIZE',
        'OMP_NUM_THREADS',
        'CUDA_HOME',
        'CAMVID_ROOT',
        'TORCH_LOGS',
    )
    kept = dict.fromkeys(('UV_INDEX', 'PIP_INDEX_URL', 'TORCH_INDEX_URL', 'PYTHON'), 'of the caller')
    env = {**os.environ, **dict.fromkeys(changes, 'of the caller'), **kept, 'XDG_CONFIG_HOME': str(config)}
    subprocess.run(['bash', checkout / '.ci/run'], env=env, capture_output=True, check=True)
    lines = notes.read_text().splitlines()
    scripts = [line.strip() for line in lines if line.startswith('tools/')]
    tests = 'tools/run_tests.sh'
    assert scripts == [f'{tests} --lint', 'tools/quickstart.sh', tests, f'{tests} --rest']
    assert {line.split('=')[0] for line in lines if line.endswith('=of the caller')} == {*kept}
    assert f'UV_CONFIG_FILE={config}/uv/uv.toml' in lines


def test_hooks_before_a_commit_are_the_linters_of_the_tests():
    (repository,) = read('.pre-commit-config.yaml')['repos']
    linters = re.findall(
        r'\.venv/bin/(?:ruff check|ruff format|clang-format|mypy)\b',
        (ROOT / 'tools/run_tests.sh').read_text(encoding='utf-8'),
    )
    assert repository['repo'] == 'local'
    assert all({'id', 'name', 'language', 'entry'} <= set(hook) for hook in repository['hooks'])
    assert {hook['entry'].removesuffix(' -i') for hook in repository['hooks']} == {*linters}


def test_both_files_make_the_same_image_on_their_bases():
    (of_cpu, steps), (of_cuda, same_steps) = LINE.split(CPU), LINE.split(CUDA)
    assert steps == same_steps
    assert re.search(r'^FROM debian:bookworm-\d{8}-slim\nENV MMATTN_ACCELERATOR=cpu$', of_cpu, re.MULTILINE)
    assert re.search(r'^FROM nvidia/cuda:[\d.]+-devel-\S+\nENV MMATTN_ACCELERATOR=cuda ', of_cuda, re.MULTILINE)
    assert re.search(r'image\.version="(.+?)"', steps).group(1) == mmattn.__version__


def test_nothing_that_git_ignores_travels():
    def names(file: str) -> set[str]:
        lines = (ROOT / file).read_text().splitlines()
        return {line.removeprefix('**/').rstrip('/') for line in lines if line and not line.startswith('#')}

    assert names('.gitignore') <= names('.dockerignore')
