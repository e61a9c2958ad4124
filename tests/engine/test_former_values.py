"""Settings that keep the former value of a name that a child or an option changes, and how often a config runs."""

import pytest
from mmengine.config import Config

from mmattn.engine import former_values, load_config
from mmattn.utils.paths import config_path

BASE = """
data_root = '{{$MMATTN_TEST_ROOT:old}}/a'
kind = 'Photographs'
size = (64, 64)
top_k = 2
optimizer = dict(type='SGD', lr=0.1)
pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=size)]
model = dict(type='X', num_classes=2, top_k=top_k)
optim_wrapper = dict(optimizer=optimizer)
train_dataloader = dict(dataset=dict(type=kind, data_root=data_root, pipeline=pipeline))
val_dataloader = dict(dataset=dict(type=kind, data_root=data_root, pipeline=pipeline))
val_evaluator = dict(ann_file=data_root + '/val.json')
"""
CHILD = "_base_ = './base.py'\n"
TRAIN, VAL = 'train_dataloader.dataset', 'val_dataloader.dataset'
WRITTEN = (
    "data_root, crop = 'old', [8, 8]\nmodel = dict(crop=(8, 8), a=8)\nval_evaluator = dict(ann_file='old/val.json')"
)


@pytest.mark.parametrize(
    ('child', 'options', 'names'),
    [
        ("data_root = 'new'", {}, ['val_evaluator.ann_file', f'{TRAIN}.data_root', f'{VAL}.data_root']),
        ("if True:\n    kind = 'Mine'", {}, [f'{TRAIN}.type', f'{VAL}.type']),
        ('globals().update(size=(8, 8))', {}, [f'{TRAIN}.pipeline.1.scale', f'{VAL}.pipeline.1.scale']),
        ('top_k = 3', {}, ['model.top_k']),  # also the number of classes, by chance
        ('optimizer = dict(lr=0.5)', {}, ['optim_wrapper.optimizer']),
        ("pipeline = [*_base_.pipeline, dict(type='Y')]", {}, [f'{TRAIN}.pipeline', f'{VAL}.pipeline']),
        ("kind = 'Mine'\ntrain_dataloader = dict(dataset=dict(type=kind))", {}, [f'{VAL}.type']),
        ('', {'kind': 'Mine'}, [f'{TRAIN}.type', f'{VAL}.type']),
        ('', {'optimizer.lr': 0.5}, ['optim_wrapper.optimizer']),
        # what a training has written
        (WRITTEN, {'data_root': 'new'}, ['val_evaluator.ann_file']),
        (WRITTEN, {'crop': [4, 4]}, ['model.crop']),
        # all settings follow, or are meant
        ("kind = 'Mine'\ntrain_dataloader = val_dataloader = dict(dataset=dict(type=kind))", {}, []),
        ('', {'kind': 'Mine', f'{TRAIN}.type': 'Mine', f'{VAL}.type': 'Mine'}, []),
        ("kind = 'Photographs'", {f'{TRAIN}.type': 'Mine'}, []),
        ("kind = 'Photographs2'\nmodel = dict(a='Photo')", {f'{TRAIN}.type': 'A', f'{VAL}.type': 'A'}, []),
    ],
)
def test_settings_that_keep_a_former_value_are_a_warning(tmp_path, monkeypatch, child, options, names):
    logged = []
    monkeypatch.setattr(former_values, 'print_log', lambda *line: logged.append(line[0].rpartition(': ')[2]))
    monkeypatch.setenv('MMATTN_TEST_ROOT', 'mine')
    (tmp_path / 'base.py').write_text(BASE)
    (tmp_path / 'child.py').write_text(child if child == WRITTEN else CHILD + child)
    expected = Config.fromfile(tmp_path / 'child.py')
    expected.merge_from_dict(options)
    assert load_config(tmp_path / 'child.py', options).to_dict() == expected.to_dict()
    assert sorted(', '.join(logged).split(', ')) == sorted(names or [''])


@pytest.mark.parametrize(
    ('child', 'names'),
    [
        ('batch_size = 8\ntrain_cfg = dict(max_iters=5)\nmax_iters = 10', 'batch_size, max_iters'),
        ('train_dataloder = dict(batch_size=8)', 'train_dataloder'),
        ('compile = True\ncheck = None', None),  # read by the Runner and the tools
        ("data_root = 'new'", None),  # read by the base
        ('batch_size = 8\ntrain_dataloader = dict(batch_size=batch_size)', None),
        ("last = dict(type='Y')\npipeline = [*_base_.pipeline, last]", None),
        ("batch_size = 8\nmodel = dict(a='{{_base_.batch_size}}')", None),
    ],
)
def test_names_that_no_setting_reads_are_a_warning(tmp_path, monkeypatch, child, names):
    """Not those of what a training has written, which reads none."""
    logged = []
    monkeypatch.setattr(former_values, 'print_log', lambda *line: logged.append(line[0]))
    (tmp_path / 'base.py').write_text(BASE + 'batch_size = 2\nfound = batch_size\n' * ('{{' in child))
    (tmp_path / 'child.py').write_text(CHILD + child)
    cfg = Config.fromfile(tmp_path / 'child.py')
    former_values.warn_of_unread_names(cfg)
    expected = [] if names is None else [f'{tmp_path}/child.py: no setting reads {names}']
    assert [line.partition(';')[0] for line in logged] == expected
    cfg.dump(tmp_path / 'written.py')
    load_config(tmp_path / 'written.py')
    assert len(logged) == len(expected)


def test_no_shipped_config_has_such_a_name(monkeypatch):
    logged = []
    monkeypatch.setattr(former_values, 'print_log', lambda *line: logged.append(line[0]))
    for path in sorted(config_path().glob('bi_*/*.py')):
        former_values.warn_of_unread_names(Config.fromfile(path))
    assert logged == []


def test_settings_of_a_base_of_a_package(tmp_path, monkeypatch):
    """Whose parts mmengine marks with the scope."""
    logged = []
    monkeypatch.setattr(former_values, 'print_log', lambda *line: logged.append(line[0]))
    base = 'mmattn::bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
    (tmp_path / 'child.py').write_text(f'_base_ = {base!r}\nnorm_cfg = dict(type="BN", requires_grad=False)')
    load_config(tmp_path / 'child.py')
    assert ['model.backbone.norm_cfg' in line for line in logged] == [True]


def test_a_config_runs_as_often_as_by_mmengine(tmp_path):
    """Each file of a chain once: here, each makes a folder with a new number, and one value is no literal."""
    code = 'import glob, os\nos.makedirs(f\'{root}/{len(glob.glob(root + "/*"))}\')\n'
    shipped = config_path('bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py')
    for name, base in (('base', str(shipped)), ('child', 'base.py')):
        (tmp_path / f'{name}.py').write_text(
            f"_base_ = {base!r}\nroot = '{tmp_path}/{name}'\n{code}crop_size = __import__('numpy').zeros(2)"
        )
    load_config(tmp_path / 'child.py', {'crop_size': (16, 16)})
    assert [[x.name for x in (tmp_path / name).iterdir()] for name in ('base', 'child')] == [['0'], ['0']]
