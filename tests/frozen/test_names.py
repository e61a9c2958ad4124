"""Nobody who had release 0.3.0 stands before a riddle: the registry or the changelog answers for what is gone."""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from mmattn.former_names import FORMER_NAMES

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONDONTWRITEBYTECODE': '1'}
FORMER = json.loads((FOLDER / 'names_0.3.0.json').read_text(encoding='utf-8'))


def names(*parts):
    """What the user of this checkout may write."""
    command = [sys.executable, FOLDER / 'names.py', *parts]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope='module')
def present():
    return names('components', 'configs', 'tools')


@pytest.fixture(scope='module')
def rows():
    """What stands in backticks in the first column of the changelog's table since 0.3.0."""
    text = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8').partition('\n## 0.3')[0]
    cells = [line.replace('\\|', '¦').split('|')[1] for line in text.splitlines() if line.startswith('|')]
    return [name for cell in cells for name in re.findall('`([^`]+)`', cell)]


def unanswered(names, rows):
    """The names of which no row has the last part as a word, or a pattern with ``*`` for the whole."""
    words = {word for row in rows for word in re.findall(r'[\w./-]*\w', row)}
    words |= {part for word in words for part in word.split('.')} | {Path(word).name for word in words}
    patterns = [f'*{row}' for row in rows if '*' in row]
    return [
        name
        for name in names
        if name not in words
        and Path(name).name not in words
        and not any(fnmatch(name, pattern) for pattern in patterns)
    ]


def nothing(missing, why):
    assert not missing, '\n'.join([f'{len(missing)} {why}:', *sorted(missing)])


def test_registered_names(present):
    """Sentences are for names that are gone alone."""
    now = {name for those in present['components'].values() for name in those}
    former = {name for those in FORMER['components'].values() for name in those}
    nothing(former - now - {*FORMER_NAMES}, 'without a sentence in mmattn/former_names.py')
    nothing(now & {*FORMER_NAMES}, 'registered, and called gone in mmattn/former_names.py')
    nothing({*FORMER_NAMES} - former, 'in mmattn/former_names.py, but not in release 0.3.0')


def test_options_of_components(present, rows):
    gone = [
        f'{name}.{option}'
        for registry, those in FORMER['components'].items()
        for name, options in those.items()
        if name in present['components'].get(registry, ()) and '**' not in present['components'][registry][name]
        for option in {*options} - {*present['components'][registry][name]}
    ]
    missing = {*unanswered({name.partition('.')[2] for name in gone}, rows)}
    nothing([name for name in gone if name.partition('.')[2] in missing], 'without a row in CHANGELOG.md')


@pytest.mark.slow
def test_keys_of_configs(present, rows):
    """A key counts as there where any config or component has one of its name."""
    now = {key.rpartition('.')[2] for key in names('keys')['keys']}
    now |= {option for those in present['components'].values() for options in those.values() for option in options}
    gone = {key.rpartition('.')[2] for key in FORMER['keys']} - now
    nothing(unanswered(gone, rows), 'without a row in CHANGELOG.md')


def test_files_of_configs(present, rows):
    gone = {*FORMER['configs']} - {*present['configs']}
    nothing(unanswered(gone, rows), 'without a row in CHANGELOG.md, which may have a pattern, `bi_cc/*ade20k*`')


def test_options_of_tools(present, rows):
    gone = {path: {*options} - {*present['tools'].get(path, ())} for path, options in FORMER['tools'].items()}
    missing = [path for path in gone if path not in present['tools'] and unanswered([path], rows)]
    missing += [
        f'{path} {x}' for path in gone if path in present['tools'] for x in unanswered(sorted(gone[path]), rows)
    ]
    nothing(missing, 'without a row in CHANGELOG.md')
