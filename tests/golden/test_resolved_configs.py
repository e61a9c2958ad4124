"""Every shipped config, resolved: each setting once, with the numbers of the configs that have it."""

import json
import os
import re
from collections import defaultdict
from itertools import groupby

import pytest
from mmengine.config import Config

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


@pytest.mark.slow
def test_resolved_configs(same_lines):
    configs = numbered([path.relative_to(config_path()).as_posix() for path in config_path().glob('[!_]*/*.py')])
    having = defaultdict(list)
    for number, name in configs.items():
        for line in settings(Config.fromfile(config_path(name)).to_dict()):
            having[line].append(number)
    lines = [f'{number} {name}' for number, name in configs.items()]
    same_lines(FILE, lines + [f'{line}    [{spans(numbers)}]' for line, numbers in sorted(having.items())])
