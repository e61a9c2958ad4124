"""What a repository's host reads: citation, workflow, forms for reports, hooks for commits."""

import re
from pathlib import Path

import yaml

import mmattn

ROOT = Path(__file__).parents[1]


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding='utf-8'))


def test_the_citation_has_the_version_and_every_source():
    citation = read('CITATION.cff')
    assert {'cff-version', 'message', 'title', 'authors', 'version'} <= set(
        citation
    )  # the schema requires the first four
    assert citation['version'] == mmattn.__version__
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


def test_reports_come_with_the_environment():
    form = read('.github/ISSUE_TEMPLATE/bug.yml')
    assert {'name', 'description', 'body'} == set(form)
    required = [field['attributes'] for field in form['body'] if field.get('validations', {}).get('required')]
    assert any('python -m mmattn.utils.collect_env' in field['description'] for field in required)


def test_hooks_before_a_commit_are_the_linters_of_the_tests():
    (repository,) = read('.pre-commit-config.yaml')['repos']
    linters = (ROOT / 'tools/run_tests.sh').read_text(encoding='utf-8')
    assert repository['repo'] == 'local'
    for hook in repository['hooks']:
        assert {'id', 'name', 'language', 'entry'} <= set(hook)
        tool, _, option = hook['entry'].partition(' ')
        assert f'{tool} {option}'.removesuffix(' -i') in linters
