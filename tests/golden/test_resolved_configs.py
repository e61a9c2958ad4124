"""Every shipped config, resolved: each setting once, with the numbers of the configs that have it.

Configs of 0.2.0 that became options of another one are frozen as digests.
"""

import json
import os
import re
import shlex
from argparse import ArgumentParser
from collections import defaultdict
from hashlib import sha256
from itertools import groupby
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.fileio import load

from mmattn.engine import add_config_options, load_config
from mmattn.utils import config_path

from .conftest import FOLDER

FILE = 'configs.txt'


def settings(value, key=''):
    """Yield lines ``a.b.0.c = value``: a value is JSON, a list of dicts is numbered."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    if value and (isinstance(value, dict) or any(isinstance(child, dict | list | tuple) for _, child in children)):
        for name, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from settings(child, f'{key}.{name}' if key else str(name))
    else:
        yield f'{key} = {json.dumps(value, ensure_ascii=False)}'


def spans(numbers):
    """Write ascending numbers as '0-3 7'."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ' '.join(f'{run[0]}-{run[-1]}' if len(run) > 1 else f'{run[0]}' for run in runs)


def numbered(names):
    """Return the configs by number; recorded ones keep theirs, so that a new config changes few lines."""
    path = FOLDER / FILE
    recorded = re.findall(r'^(\d+) (\S+\.py)$', path.read_text(encoding='utf-8') if path.exists() else '', re.MULTILINE)
    found = {int(number): name for number, name in recorded if name in names}
    first = max((int(number) for number, _ in recorded), default=-1) + 1
    return found | dict(enumerate(sorted({*names} - {*found.values()}), first))


@pytest.fixture(autouse=True)
def shipped_folders_of_data(monkeypatch):
    for name in [key for key in os.environ if key.endswith('_ROOT')]:
        monkeypatch.delenv(name)


def test_resolved_configs(same_lines):
    configs = numbered([path.relative_to(config_path()).as_posix() for path in config_path().glob('[!_]*/*.py')])
    having = defaultdict(list)
    for number, name in configs.items():
        for line in settings(Config.fromfile(config_path(name)).to_dict()):
            having[line].append(number)
    lines = [f'{number} {name}' for number, name in configs.items()]
    same_lines(FILE, lines + [f'{line}    [{spans(numbers)}]' for line, numbers in sorted(having.items())])


def test_removed_configs_are_options():
    """The command of docs/options.md makes the config that was removed, and a metafile has it."""
    frozen = dict(line.split()[::-1] for line in (FOLDER / 'removed_configs.txt').read_text().splitlines())
    parser = ArgumentParser()
    parser.add_argument('config')
    add_config_options(parser)
    resolved = {}
    page = (Path(__file__).parents[2] / 'docs/options.md').read_text(encoding='utf-8')
    for section in page.split('\n## configs/')[1:]:
        folder = section.partition('\n')[0]
        models = {model['Config']: model for model in load(config_path(f'{folder}/metafile.yml'))['Models']}
        for removed, command in re.findall(r'^\| `(\S+\.py)` \| `(.+)` \|$', section, re.MULTILINE):
            args = parser.parse_args(shlex.split(command))
            cfg = load_config(config_path(f'{folder}/{args.config}'), args.cfg_options).to_dict()
            cfg.pop('attention', None)  # a variable of the file, which nothing else reads
            lines = '\n'.join(sorted(settings(cfg)))
            resolved[f'{folder}/{removed}'] = sha256(lines.encode()).hexdigest()[:16]
            rows = models[f'configs/{folder}/{args.config}']['Tables']
            assert args.cfg_options in [row.get('Options') for row in rows], command
            assert not (config_path() / folder / removed).exists()
    assert resolved == frozen
