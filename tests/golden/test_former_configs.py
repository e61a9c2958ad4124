"""Configs of 0.2.0 that became options: each name, by the changelog's table, gives the model that it had."""

import re
import shlex
from argparse import ArgumentParser
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from mmengine.config import Config

from mmattn.engine import add_config_options
from mmattn.utils import config_path

from .conftest import FOLDER
from .settings import digest, settings

CODE = re.compile('`([^`]+)`')
PLACEHOLDERS = {'TTTT': '[01]{4}', **dict.fromkeys('NED', r'\d+')}
LETTERS = re.compile('TTTT|[NED](?=[-_h]|$)')


def read_table():
    """Return the rows of the changelog's table: former part of the name, part now, options."""
    changelog = (Path(__file__).parents[2] / 'CHANGELOG.md').read_text(encoding='utf-8')
    section = changelog.partition('### Configs that are options now')[2].partition('\n#')[0]
    return [line.strip('| ').split(' | ') for line in section.splitlines() if line.startswith('| ')][1:]


def by_placeholder(stem, row):
    """A row whose letters stand for numbers, such as `bi-cc-kN`, or with one name."""
    (part, *_), (now,) = CODE.findall(row[0]), CODE.findall(row[1])
    pattern = LETTERS.sub(lambda x: f'(?P<{x[0]}>{PLACEHOLDERS[x[0]]})', part)
    match = re.match(f'{pattern.replace("heads", "heads?")}(?=[-_])', stem)
    if not match:
        return None
    options = ' '.join(CODE.findall(row[2]))
    for letters, value in match.groupdict().items():
        options = options.replace(f'=2{letters}−1', f'={2 * int(value) - 1}' if value.isdigit() else '')
        options = re.sub(rf"""(=["']*){letters}\b""", rf'\g<1>{value}', options)
    kept = part.partition(re.match('[a-z]+', now)[0])[0]
    return kept + now + stem[match.end() :], options


def by_words(stem, row):
    """A row that lists words and their options, such as `sst-grid-absolute`, `-relative`."""
    parts, codes = CODE.findall(row[0]), CODE.findall(re.sub('(with|for) `.*', '', row[2]))
    first = codes[0]
    options = [
        code.replace('…', first.rpartition('.')[0])
        if code.startswith('…')
        else code
        if '=' in code
        else f'{first.partition("=")[0]}={code}'
        for code in codes
    ]
    bases = [part.removesuffix('-…') for part in parts if part.endswith('-…')]
    words = [part.strip('-') for part in parts if not part.endswith('-…')]
    if not bases:
        base, _, words[0] = parts[0].rpartition('-')
        bases = [base]
    if '=…' in first:
        options = [first.replace('…', word.replace('-', '_')) for word in words]
    chosen = dict(zip(words, options)) | dict(re.findall('(?:with|for) `([^`]+)` also `([^`]+)`', row[2]))
    name, _, rest = stem.partition('_')
    for base in bases:
        tail = f'{name.removeprefix(base)}-'
        found = [option for word, option in chosen.items() if f'-{word}-' in tail]
        if name.startswith(base) and found:
            found = [option.replace('…', first.rpartition('.')[0]) for option in found]
            return f'{base}_{rest}', ' '.join(found)
    return None


def replace(stem, table):
    """Return the name and the options that the table gives for a former name."""
    for row in table:
        if row[0].startswith('the same of') and stem.startswith(other := CODE.findall(row[0])[0]):
            first = CODE.findall(table[0][0])[0].rpartition('-')[0]
            now, options = replace(stem.replace(other, first), table)
            (also,) = CODE.findall(row[2])
            return now.replace(first, other), f'{options} {options.replace("model.backbone.plugins.0.cfg", also)}'
    found = []
    for row in table:
        if row[0].startswith('the same of'):
            continue
        parts = CODE.findall(row[0])
        of_words = len(parts) > 1 and not LETTERS.search(parts[0])
        result = (by_words if of_words else by_placeholder)(stem, row)
        found += [(len(parts[0]), result)] if result else []
    assert found, f'{stem}: not in the table of the changelog'
    return max(found)[1]


def without_named_changes(model):
    """Leave out what the changelog says has changed: SyncBN of `fcn_*`, appearance model and offsets of SST."""
    model = deepcopy(model)
    if model['type'] == 'mmattn.SST':
        model.pop('appearance', None)
        model['attention'].pop('max_offset', None)
    elif model['type'] == 'EncoderDecoder' and 'attention' in model['decode_head']:
        for attention in (model['decode_head']['attention'], model['backbone']['plugins'][0]['cfg']):
            attention.pop('norm_cfg', None)
    return model


@cache
def load(path):
    return Config.fromfile(config_path(path))


@pytest.mark.slow
def test_former_configs_are_options():
    recorded = dict(line.split()[::-1] for line in (FOLDER / 'former_configs.txt').read_text().splitlines())
    parser = ArgumentParser()
    add_config_options(parser)
    table, wrong = read_table(), []
    for former, expected in recorded.items():
        folder, _, stem = former.rpartition('/')
        now, options = replace(stem, table)
        cfg = deepcopy(load(f'{folder}/{now}'))
        cfg.merge_from_dict(parser.parse_args(['--cfg-options', *shlex.split(options)]).cfg_options)
        if digest(settings(without_named_changes(cfg.to_dict()['model']))) != expected:
            wrong.append((former, now, options))
    assert not wrong
    assert len(recorded) == 100
