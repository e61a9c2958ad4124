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
    found = {number: name for number, name in NAMES.items() if name in names}
    first = max(NAMES, default=-1) + 1
    return found | dict(enumerate(sorted({*names} - {*found.values()}), first))


def recorded():
    """Return the names of the recorded configs by number, and the numbers of those that have each setting."""
    names, having = {}, {}
    for line in (FOLDER / FILE).read_text(encoding='utf-8').splitlines():
        if found := re.fullmatch(r'(\S+ = .*)    \[([\d -]+)\]', line):
            runs = [[int(n) for n in run.split('-')] for run in found[2].split()]
            having[found[1]] = {n for run in runs for n in range(run[0], run[-1] + 1)}
        elif found := re.fullmatch(r'(\d+) (\S+\.py)', line):
            names[int(found[1])] = found[2]
    return names, having


def covering(having):
    """Choose configs, greedily, that have every setting of these."""
    left, chosen = {*having}, []
    while left:
        numbers = [number for setting in left for number in having[setting]]
        chosen.append(max(sorted({*numbers}), key=numbers.count))
        left = {setting for setting in left if chosen[-1] not in having[setting]}
    return chosen


@pytest.fixture(autouse=True)
def shipped_folders_of_data(monkeypatch):
    for name in [key for key in os.environ if key.endswith('_ROOT')]:
        monkeypatch.delenv(name)


SCHEDULE = 'optim_wrapper.', 'param_scheduler.', 'train_cfg.'
NAMES, HAVING = recorded()


@pytest.mark.parametrize('number', covering({key: HAVING[key] for key in HAVING if key.startswith(SCHEDULE)}))
def test_every_schedule_once(number, request):
    """Configs that together have every recorded setting of a schedule, without resolving all of them."""
    if request.config.getoption('--update-golden'):
        pytest.skip('the settings are being recorded')
    found = settings(Config.fromfile(config_path(NAMES[number])).to_dict())
    expected = {line for line in HAVING if number in HAVING[line] and line.startswith(SCHEDULE)}
    assert {line for line in found if line.startswith(SCHEDULE)} == expected


@pytest.mark.slow
def test_resolved_configs(same_lines):
    configs = numbered([path.relative_to(config_path()).as_posix() for path in config_path().glob('[!_]*/*.py')])
    having = defaultdict(list)
    for number, name in configs.items():
        for line in settings(Config.fromfile(config_path(name)).to_dict()):
            having[line].append(number)
    lines = [f'{number} {name}' for number, name in configs.items()]
    same_lines(FILE, lines + [f'{line}    [{spans(numbers)}]' for line, numbers in sorted(having.items())])
