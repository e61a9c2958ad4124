"""Every option that a page prints builds on a config of the page."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmattn.engine import add_config_options
from mmattn.utils import config_path

from .requirements import missing_of, parts_for

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted(ROOT.glob('docs/*.md')), *sorted(ROOT.glob('configs/*/README.md'))]
PARTS = (
    'model|train_cfg|(?:train|val|test)_(?:dataloader|evaluator)|param_scheduler|default_hooks|optim_wrapper|randomness'
)
OPTION = re.compile(rf'(?<![\w.])((?:{PARTS})(?:\.\w+)+)=((?:"[^"]*"|\([^)]*\)|[\w\'./:-])+)')
FIRST = [min(folder.glob('*.py')) for folder in sorted(config_path().glob('[!_]*/'))]
CONFIG = re.compile(r'[a-z_\d]+/[\w-]+\.py')


def printed(page):
    """The options of a page with a value, and where each stands."""
    return [
        (match[1], match[2].removesuffix("'" * (match[2].count("'") % 2)), match.start())  # 'key=(1,2)'
        for match in OPTION.finditer(page.read_text(encoding='utf-8'))
        if (len(match[2]) > 1 or match[2].isdigit()) and 'dict(' not in match[2]  # neither n nor Python
    ]


def depth(cfg, key):
    """The number of parts of a key that are in a config."""
    for i, part in enumerate(key.split('.')):
        try:
            cfg = cfg[int(part)] if isinstance(cfg, list | tuple) else cfg[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return i
        if not isinstance(cfg, dict | list | tuple):
            return i + (cfg is not None or i == key.count('.'))
    return key.count('.') + 1


def configs_of(page, end):
    """The configs that a page names, the last before its option first, or those of its folder."""
    text = page.read_text(encoding='utf-8')
    named = [*reversed(CONFIG.findall(text[:end])), *CONFIG.findall(text[end:])]
    folders = dict.fromkeys([page.parent.name, *(name.partition('/')[0] for name in named)])
    siblings = [path for folder in folders for path in sorted(Path(config_path(), folder).glob('*.py'))]
    # A page of docs/ that names none is about all: the first of each folder.
    names = [*named, *(path.relative_to(config_path()).as_posix() for path in siblings or FIRST)]
    return [name for name in dict.fromkeys(names) if Path(config_path(), name).is_file()]


def test_the_pages_print_options():
    assert sum(len(printed(page)) for page in PAGES) > 50


CASES = {
    f'{page.parent.name}/{page.stem} {key}={value}': (page, key, value, end)
    for page in PAGES
    for key, value, end in printed(page)
}


def together(page, key, value, place):
    """The options of one part that a command prints beside each other, such as the type of a loss and its options."""
    part, text = key.rpartition('.')[0], page.read_text(encoding='utf-8')
    others = [(k, v) for k, v, at in printed(page) if '`' not in text[min(at, place) : max(at, place)] and k != key]
    return [f'{k}={v}' for k, v in (*others, (key, value)) if k.rpartition('.')[0] == part]


def build(name, key, words):
    cfg = Config.fromfile(config_path(name))
    options = argparse.ArgumentParser()
    add_config_options(options)
    cfg.merge_from_dict(options.parse_args(['--cfg-options', *shlex.split(' '.join(words))]).cfg_options)
    assert depth(cfg, key) == key.count('.') + 1
    if key.startswith('model.'):
        init_default_scope(cfg.get('default_scope', 'mmattn'))
        with torch.device('meta'):
            MODELS.build(cfg.model)


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_an_option_builds_as_printed(case):
    """On one of the configs of the page that have most of its key."""
    page, key, value, end = CASES[case]
    names = configs_of(page, end)
    depths = {name: depth(Config.fromfile(config_path(name)), key) for name in names[:20]}
    deepest = [name for name in depths if depths[name] == max(depths.values())]
    missing = {name: missing_of(parts_for(name)) for name in deepest if key.startswith('model.')}
    errors = []
    for name in deepest:
        try:
            if not missing.get(name):
                return build(name, key, together(page, key, value, end))
        except Exception as error:
            errors.append(f'{name}: {type(error).__name__}: {error}')
    reason = next(filter(None, missing.values()), None)
    if reason is None or (errors and 'recurrence=0' not in case):  # CC's, which requires the operators
        pytest.fail('\n'.join(errors))
    pytest.skip(reason)
