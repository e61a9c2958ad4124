"""Helpers of a config that a later file or an option changes: which settings keep their former values."""

import logging
import re

import pytest
from mmengine.config import Config

from mmattn.engine import command_line, config_helpers, load_config
from mmattn.engine.config_helpers import EvaluatedConfig
from mmattn.utils.paths import config_path

ROOT = 'train_dataloader.dataset.data_root, val_dataloader.dataset.data_root'
VAL = 'val_dataloader.dataset.data_root'
BASE = """
data_root = 'old'
size = (64, 64)
split = 'train'
rate, batch_size = 0.001, 2
optimizer = dict(type='SGD', lr=0.1)
pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=size)]
model = dict(type='X', num_classes=3)
optim_wrapper = dict(optimizer=optimizer, clip_grad=dict(max_norm=rate * 8))
train_dataloader = dict(batch_size=batch_size, dataset=dict(data_root=data_root, img=f'dir/{split}', pipeline=pipeline))
val_dataloader = dict(dataset=dict(data_root=data_root, pipeline=pipeline))
"""
CHILD = "_base_ = './base.py'\n"
LAZY = 'from mmengine.config import read_base\nwith read_base():\n    from .base import *\n'
STATEMENTS = {  # all leave data_root = 'new'
    "data_root: str = 'new'",
    "data_root = 'ne'\ndata_root += 'w'",
    "data_root, *_ = 'new', 1",
    "model = dict(a=(data_root := 'new'))",
    "for data_root in ('a', 'new'): pass",
    "globals()['data_root'] = 'new'",
    "globals().update(data_root='new')",
    'exec(\'data_root = "new"\')',
    "def change():\n    global data_root\n    data_root = 'new'\nchange()",
    'from string import ascii_letters as data_root',
    "if size_is_small := True:\n    data_root = 'new'",
}
SAME = "data_root = 'new'\ntrain_dataloader = dict(dataset=dict(data_root=data_root))\n"
DERIVED = (
    SAME.replace("'new'", "_base_.data_root + '/sub'", 1) + 'val_dataloader = dict(dataset=dict(data_root=data_root))'
)
YAML = (
    'data_root: &root old\nopt: &opt {lr: 0.1}\nmodel: {a: *root}\noptim_wrapper: {optimizer: {<<: *opt, type: SGD}}\n'
)
ALIAS = {  # a helper that repeats another
    'base.yaml': 'root: &root old\nother: *root\nmodel: {a: *root}\n',
    'middle.py': "_base_ = 'base.yaml'\nmodel = dict(b=_base_.other)\n",
}
DUMP = """
data_root, size, optimizer, batch_size = 'old/', (64, 64), dict(type='SGD', lr=0.1), 2
split, threshold = 'train', 3
model = dict(type='X', num_classes=3, size=(64, 64))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
train_dataloader = dict(batch_size=2, num_workers=2, dataset=dict(data_root='old/', img='dir/train'))
val_evaluator = dict(ann_file='old/val.json', prefix='older/val')
"""
HELD = 'train_dataloader.dataset.data_root, val_evaluator.ann_file'
OF_BASE = [  # statements of a base and a change of it, which a setting does not follow
    ("x = 'a'\ndef f(y):\n    return x + y\nmodel = dict(a=f('b'))", "x = 'c'"),
    ("x = 'a'\nmodel = dict(a='{x}'.format(**globals()))", "x = 'c'"),
    ('x = [1, 2]\nmodel = dict(a=[y * 2 for y in x])', 'x = [3, 4]'),
    ("x = False\nmodel = dict(type='X')\nif x:\n    model['a'] = 1", 'x = True'),
    ('def f():\n    global x\n    x = 1\nf()\nmodel = dict(a=x)', 'x = 2'),
    ('x = 2\nx *= 2\nmodel = dict(a=x)', 'x = 5'),
    ('x = None\nmodel = dict(a=x)', 'x = 0'),
    ('x = dict(b=1)\nmodel = dict(a=x)\nx.update(b=2)', 'x = dict(b=3)'),
    ("y = 'a'\nx = y + 'b'\nmodel = dict(a=x)", "y = 'c'"),
]


@pytest.mark.parametrize(
    ('files', 'options', 'names'),
    [
        *(({'child.py': CHILD + text}, {}, ROOT) for text in sorted(STATEMENTS)),
        *(({'base.py': base, 'child.py': CHILD + change}, {}, 'model.a') for base, change in OF_BASE),
        ({'child.py': CHILD + 'rate = 0.01'}, {}, 'optim_wrapper.clip_grad.max_norm'),
        (
            {'child.py': CHILD + "rate = 0.01\nsplit = 'all'"},
            {},
            r"'split' .* too: \S+\.img \(of \S+\)\n.*'rate' .* too: \S+\.max_norm \(of \S+\)$",
        ),
        ({'child.py': CHILD + 'batch_size = 3'}, {}, 'train_dataloader.batch_size'),  # also the number of classes
        ({'child.py': CHILD}, {'split': 'all'}, 'train_dataloader.dataset.img'),
        ({'child.py': CHILD}, {'optimizer.lr': 0.5}, 'optim_wrapper.optimizer.lr'),
        ({'child.py': CHILD}, {'pipeline.1.scale': (32, 32)}, 'train_dataloader.dataset.pipeline.1.scale, '),
        ({'child.py': CHILD}, {'data_root': 'new', 'train_dataloader.dataset.data_root': 'new'}, f'too: {VAL} '),
        ({'child.py': CHILD + '_base_.optimizer.lr = 0.5'}, {}, 'optim_wrapper.optimizer.lr'),
        ({'child.py': CHILD + "optimizer = dict(_delete_=True, type='Adam')"}, {}, 'optim_wrapper.optimizer.type, '),
        ({'child.py': CHILD + "pipeline = [*_base_.pipeline, dict(type='Y')]"}, {}, 'val_dataloader.dataset.pipeline '),
        (
            {'middle.py': CHILD + DERIVED, 'child.py': "_base_ = 'middle.py'\ndata_root = 'x'"},
            {},
            f'{ROOT} .of .*middle',
        ),
        ({'child.yaml': '_base_: base.py\ndata_root: new'}, {}, ROOT),
        ({'base.yaml': YAML, 'child.py': "_base_ = 'base.yaml'\ndata_root = 'new'"}, {}, 'too: model.a '),
        ({'base.yaml': YAML, 'child.yaml': '_base_: base.yaml\nopt: {lr: 0.2}'}, {}, 'optim_wrapper.optimizer.lr'),
        ({**ALIAS, 'child.py': "_base_ = 'middle.py'\nother = 'new'"}, {}, 'too: model.b '),
        ({'child.py': LAZY + "data_root = 'new'"}, {}, ROOT),
        ({'child.py': LAZY + 'optimizer.update(lr=0.5)'}, {}, 'optim_wrapper.optimizer.lr'),
        (
            {'child.py': LAZY.replace('*', 'train_dataloader') + "data_root = 'new'"},
            {},
            'train_dataloader.dataset.data_',
        ),
        # of a config that a training has written, nothing reads the helpers
        *(
            ({'base.py': DUMP, 'child.py': CHILD}, {option: value}, f"nothing .*reads '{option[:4]}.*instead: {names}$")
            for option, value, names in (
                ('data_root', 'new', HELD),
                ('optimizer.lr', 9, 'optim_wrapper.optimizer.lr'),
                ('size', (32, 32), 'model.size'),
                ('batch_size', 3, 'train_dataloader.batch_size'),
            )
        ),
        ({'dump.py': DUMP}, {'data_root': 'new'}, HELD),
        (
            {'dump.json': '{"data_root": "old/a", "model": {"a": ["old/a"]}}'},
            {'data_root': 'new'},
            r'instead: model\.a\.0$',
        ),
        ({'base.py': DUMP, 'child.py': CHILD + "data_root = 'new'"}, {}, HELD),
        (
            {'dump.py': DUMP},
            {'data_root': 'old/new', 'train_dataloader.dataset.data_root': 'old/new'},
            r'instead: val_evaluator\.ann_file$',
        ),
        ({'dump.py': DUMP}, {'optimizer.lr': 9, 'optim_wrapper.optimizer.lr': 9}, None),
        # a word, and what is equal in a config whose other settings depend on helpers
        ({'dump.py': DUMP.replace('dir/train', 'train/images')}, {'split': 'val'}, None),
        ({'base.py': f'{BASE}threshold = 7\nval_cfg = dict(threshold=7)', 'child.py': CHILD}, {'threshold': 9}, None),
        # every setting follows, or nothing reads the helper
        ({**ALIAS, 'child.py': "_base_ = 'base.yaml'\nother = 'new'"}, {}, None),
        ({'child.py': CHILD + DERIVED}, {}, None),
        ({'child.py': CHILD + SAME}, {VAL: 'new'}, None),
        (
            {'child.py': LAZY + "data_root = 'old'\nfor x in train_dataloader, val_dataloader: x.dataset.a = 'new'"},
            {},
            None,
        ),
        ({'child.py': CHILD + "data_root = 'old'\nthreshold = 0.5"}, {'threshold': 0.6}, None),
        ({'base.py': "x = 'a'\ny = x + 'b'\nmodel = dict(a=y)", 'child.py': CHILD + "x = 'c'\ny = 'ab'"}, {}, None),
        ({'base.py': 'x = [1]\ny = x\nmodel = dict(a=x)', 'child.py': CHILD + 'y = [2]'}, {}, None),
        (
            {'base.py': 'import time\nx = 1\nwork_dir = str(time.time_ns())\nmodel = dict(a=x)'}
            | {'child.py': CHILD + 'x = 2\nmodel = dict(a=x)'},
            {},
            None,
        ),
        (
            {'other.py': "data_root = 'two'\ntest_dataloader = dict(a=data_root)"}
            | {'child.py': f'{LAZY}    from .other import *\n'},
            {},
            None,
        ),
    ],
)
def test_settings_that_keep_a_former_value_are_named(tmp_path, files, options, names):
    for name, text in {'base.py': BASE, **files}.items():
        (tmp_path / name).write_text(text, encoding='utf-8')
    path = tmp_path / [*files][-1]
    if names is not None:
        with pytest.raises(ValueError, match=names):
            load_config(path, options)
        return
    expected = Config.fromfile(path)
    expected.merge_from_dict(options)
    assert load_config(path, options).to_dict().keys() == expected.to_dict().keys()


@pytest.mark.parametrize(
    ('files', 'names'),
    [
        ({'child.py': CHILD + SAME}, f'too: {VAL} .of .*base'),
        ({'middle.py': CHILD + "data_root = 'new'", 'child.py': "_base_ = 'middle.py'"}, f'middle.py: .*{ROOT}'),
        ({'middle.json': '{"_base_": "base.py", "data_root": "new"}', 'child.py': "_base_ = 'middle.json'"}, ROOT),
    ],
)
def test_what_may_be_meant_is_a_warning(tmp_path, monkeypatch, files, names):
    """Some settings take the new value, as in mmdet's configs for several data sets, or a base changes the helper."""
    logged = []
    monkeypatch.setattr(command_line, 'print_log', lambda *line: logged.append(line))
    for name, text in {'base.py': BASE, **files}.items():
        (tmp_path / name).write_text(text, encoding='utf-8')
    assert load_config(tmp_path / 'child.py').data_root == 'new'
    assert re.search(names, logged[0][0])


BROKEN = """
data_root = 'old'
steps = [dict(size=1), dict(size=2)]
steps[1]['size'] = 3  # fails with a shorter list
model = dict(root=data_root, steps=steps)
"""


def test_a_helper_that_cannot_be_followed_hides_no_other(tmp_path):
    (tmp_path / 'base.py').write_text(BROKEN)
    child = "data_root = 'new'\nsteps = [dict(size=1)]\nmodel = dict(steps=steps)"
    (tmp_path / 'child.py').write_text(CHILD + child)
    with pytest.raises(ValueError, match=r"'data_root' is a helper.*model\.root"):
        load_config(tmp_path / 'child.py')


def test_what_shipped_bases_change_among_themselves_hides_no_helper(tmp_path):
    """Their pipeline has another length than that of their own base."""
    base = config_path('bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py')
    (tmp_path / 'child.py').write_text(f"_base_ = '{base}'\ncrop_size = (128, 128)")
    with pytest.raises(ValueError, match=r"'crop_size' is a helper.*pipeline\.3\.crop_size"):
        load_config(tmp_path / 'child.py')


def test_a_name_of_another_version_in_a_base_is_a_warning(tmp_path, monkeypatch):
    """As `optimizer_config` in a config of mmdet, which its user did not write."""
    logged = []
    monkeypatch.setattr(command_line, 'print_log', lambda *line: logged.append(line))
    for name, text in (('base.py', 'optimizer_config = dict(a=1)'), ('child.py', CHILD)):
        (tmp_path / name).write_text(text, encoding='utf-8')
    load_config(tmp_path / 'child.py')
    assert "'optimizer_config' is not a setting" in logged[0][0]
    with pytest.raises(ValueError, match='optim_wrapper'):
        load_config(tmp_path / 'base.py')


def test_the_config_is_that_of_mmengine(tmp_path):
    """The files run in other dictionaries, with and without values of another evaluation."""
    (tmp_path / 'base.py').write_text(BASE, encoding='utf-8')
    for name, text in (('child.py', CHILD + 'a = {{_base_.data_root}}\nb = _base_.size'), ('lazy.py', LAZY + 'a = 1')):
        (tmp_path / name).write_text(text, encoding='utf-8')
        config, expected = EvaluatedConfig(tmp_path / name).config, Config.fromfile(tmp_path / name)
        assert config.to_dict() == expected.to_dict()
        assert config.text == expected.text


def test_what_a_package_ships_is_a_warning(tmp_path, monkeypatch):
    folder = tmp_path / '.mim'
    folder.mkdir()
    logged = []
    monkeypatch.setattr(command_line, 'print_log', lambda *line: logged.append(line))
    for name, text in (('base.py', BASE), ('child.py', CHILD + "data_root = 'new'")):
        (folder / name).write_text(text, encoding='utf-8')
    assert load_config(folder / 'child.py').data_root == 'new'
    assert re.search(ROOT, str(logged))
    with pytest.raises(ValueError, match=ROOT):
        load_config(folder / 'child.py', {'data_root': 'other'})


def test_a_config_that_does_not_run_with_another_value_is_a_warning(tmp_path, monkeypatch):
    logged = []
    monkeypatch.setattr(config_helpers, 'print_log', lambda *line: logged.append(line))
    for name, text in (('base.py', 'x = 1\nassert x == 1, "no"\nmodel = dict(a=x)'), ('child.py', CHILD + 'x = 2')):
        (tmp_path / name).write_text(text, encoding='utf-8')
    assert load_config(tmp_path / 'child.py').model.a == 1
    ((text, _, level),) = logged
    assert re.search(rf'{tmp_path}/child\.py: .*\bx\b.*AssertionError no', text)
    assert level == logging.WARNING


def test_an_option_that_nothing_reads_is_a_warning(tmp_path, monkeypatch):
    """Code of the user may read it. New settings are read."""
    logged = []
    monkeypatch.setattr(command_line, 'print_log', lambda *line: logged.append(line))
    (tmp_path / 'dump.py').write_text(DUMP, encoding='utf-8')
    options = {'split': 'all', 'threshold': 4, 'work_dir': 'x', 'custom_hooks': [dict(type='Y')], 'load_from': 'z'}
    assert load_config(tmp_path / 'dump.py', options).threshold == 4
    assert [re.search(r"reads '(\w+)'", line[0])[1] for line in logged] == ['split', 'threshold']
    (tmp_path / 'read.py').write_text(BASE, encoding='utf-8')
    load_config(tmp_path / 'read.py', {'split': 'all', 'train_dataloader.dataset.img': 'dir/all'})
    assert len(logged) == 2
