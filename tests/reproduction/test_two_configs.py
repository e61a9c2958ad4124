"""tools/compare.py: what must be equal, what the runs say, and a comparison through the real tools."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import METRICS
from PIL import Image

from mmattn.utils import config_path
from reproduction.task import ProtocolError, find_metrics
from reproduction.two_configs import read_pair
from reproduction.units import score_by_unit, score_sample

BASE = 'bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py'
SMALLER = dict(scale=(48, 36), crop_size=(36, 36))


@pytest.fixture(scope='module')
def base(tiny_data, tmp_path_factory):
    """A shipped config on small images, in one file: reading its bases takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tiny_data.items():
            patch.setenv(name, value)
        cfg = Config.fromfile(config_path(BASE))
    for transform in cfg.train_dataloader.dataset.pipeline:
        transform.update({key: value for key, value in SMALLER.items() if key in transform})
    cfg.model.data_preprocessor.size = SMALLER['crop_size']
    settings = cfg.to_dict()
    path = tmp_path_factory.mktemp('base') / 'base.py'
    path.write_text(''.join(f'{key} = {value!r}\n' for key, value in settings.items()))
    return path


@pytest.fixture
def pair(base, tmp_path):
    """Write two configs, of which the second has further lines, and read them; ``pair.paths`` has their paths."""

    def read(lines='', options=None):
        pair.paths[0].write_text(f'_base_ = [{str(base)!r}]\nmodel = dict(decode_head=dict(position="none"))\n')
        pair.paths[1].write_text(f'_base_ = [{str(base)!r}]\n{lines}\n')
        return read_pair(pair.paths, options or {})

    pair = read
    pair.paths = [tmp_path / 'stock.py', tmp_path / 'mine.py']
    return pair


@pytest.mark.parametrize(
    ('lines', 'named'),
    [
        ('train_cfg = dict(max_iters=80)', 'length of training: 160 iters in stock, 80 iters in mine'),
        ("test_evaluator = dict(ignore_index=3, iou_metrics=['mIoU'])", 'metric, test_evaluator.ignore_index'),
        (
            "val_dataloader = dict(dataset=dict(data_prefix=dict(img_path='img_dir/train', "
            "seg_map_path='ann_dir/train')))",
            'choice of the checkpoint: the last in stock, the best',
        ),
        (
            "test_dataloader = dict(dataset=dict(data_prefix=dict(img_path='img_dir/train', "
            "seg_map_path='ann_dir/train')))",
            r'data of the test: \d+ samples in stock, \d+ in mine',
        ),
        ('test_dataloader = dict(dataset=dict(reduce_zero_label=True))', 'sample 0, (label_map|reduce_zero_label)'),
        (
            "test_dataloader = dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile'), "
            "dict(type='LoadAnnotations'), dict(type='Resize', scale=(24, 18)), dict(type='PackSegInputs')]))",
            'truth of the test',
        ),
        ('default_scope = "mmdet"', 'task: mmseg in stock, mmdet in mine'),
        ("test_evaluator = [dict(type='IoUMetric'), dict(type='IoUMetric')]", 'mine.py: test_evaluator must be one'),
        ("test_evaluator = dict(iou_metrics=['mDice'])", 'test_evaluator.iou_metrics must have mIoU'),
        ("test_evaluator = dict(_delete_=True, type='Accuracy')", 'test_evaluator must be one of IoUMetric'),
        ("default_hooks = dict(checkpoint=dict(save_best=['mIoU', 'aAcc']))", 'save_best must be one metric'),
        ("custom_hooks = [dict(type='EarlyStoppingHook', monitor='mIoU')]", 'EarlyStoppingHook'),
        ('model = dict(decode_head=dict(position="none"))', 'nothing to compare'),
    ],
)
def test_what_must_be_equal_is_named_before_work_starts(lines, named, pair):
    with pytest.raises(ProtocolError, match=named):
        pair(lines)


def test_what_may_differ_is_no_fault(pair):
    """Training data, augmentation, optimizer; the test at another scale, whose truth has the size of the file."""
    pair(
        'optim_wrapper = dict(optimizer=dict(lr=0.1))\ntrain_dataloader = dict(batch_size=2)\n'
        "pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(24, 18)), "
        "dict(type='LoadAnnotations'), dict(type='PackSegInputs')]\n"
        'val_dataloader = dict(dataset=dict(pipeline=pipeline))\ntest_dataloader = val_dataloader'
    )


@pytest.mark.parametrize(
    'options',
    [
        {'test_evaluator.iou_metrics': ['mIoU', 'mFscore']},
        {'val_evaluator.iou_metrics': ['mIoU', 'mDice']},
        {'val_dataloader.dataset.pipeline.1.scale': (24, 18)},
    ],
    ids=str,
)
def test_no_checkpoint_is_chosen_on_the_images_of_the_test(options, pair):
    """Whatever else the validation has: metrics, or sizes."""
    for cfg in pair(options={'default_hooks.checkpoint.save_best': 'mIoU', **options}).configs:
        assert cfg.default_hooks.checkpoint.save_best is None
        assert cfg.train_cfg.val_interval == cfg.train_cfg.max_iters


def test_runs_keep_what_resuming_and_the_report_need(pair):
    """A checkpoint now and then, a log of figures, one validation: where it is the test, nothing is chosen by it."""
    lines = (
        "default_hooks = dict(checkpoint=dict(type='CheckpointHook', interval=-1, save_best='mIoU', out_dir='x'), "
        'logger=dict(interval=5000))\n'
        "visualizer = dict(vis_backends=[dict(type='TensorboardVisBackend')])\nval_dataloader = None\n"
        'val_evaluator = None\nval_cfg = None\nwork_dir = "elsewhere"\nresume = True'
    )
    first, second = pair(lines, {'train_cfg.max_iters': 40}).configs
    for cfg in (first, second):
        assert cfg.default_hooks.checkpoint.interval == 10
        assert cfg.default_hooks.checkpoint.type == 'mmattn.CheckpointHook'
        assert cfg.default_hooks.checkpoint.save_best is None
        assert 'out_dir' not in cfg.default_hooks.checkpoint
        assert cfg.default_hooks.logger.interval <= 4
        assert [backend.type for backend in cfg.visualizer.vis_backends].count('LocalVisBackend') == 1
        assert cfg.train_cfg.val_interval == cfg.train_cfg.max_iters == 40
        assert cfg.val_evaluator == cfg.test_evaluator
        assert 'work_dir' not in cfg
        assert not cfg.get('resume')


@pytest.mark.parametrize(
    'lines',
    [
        'visualizer = None',
        'default_hooks = dict(checkpoint=None)',
        'default_hooks = dict(logger=None)',
        'default_hooks = dict(checkpoint=dict(interval=None))',
        'default_hooks = None',
    ],
)
def test_what_is_none_is_as_not_set(pair, lines):
    cfg = pair(lines).configs[1]
    assert cfg.default_hooks.checkpoint.type.endswith('CheckpointHook')
    assert cfg.default_hooks.checkpoint.interval == cfg.train_cfg.max_iters // 4
    assert cfg.default_hooks.logger.interval <= cfg.train_cfg.max_iters // 10
    assert [backend.type for backend in cfg.visualizer.vis_backends] == ['LocalVisBackend']


def test_the_metric_of_the_foreground_has_intervals_over_images(pair):
    metric = "dict(_delete_=True, type='mmattn.ForegroundIoUMetric', iou_metrics=['mIoU'], background='Sky')"
    lines = f'test_evaluator = {metric}\nval_evaluator = test_evaluator\n'
    with pytest.raises(ProtocolError, match='test_evaluator'):  # the other config has mmseg's
        pair(lines)
    pair.paths[0].write_text(pair.paths[0].read_text() + lines)
    cfg = read_pair(pair.paths, {}).configs[1]
    assert [*find_metrics(cfg)[1]] == ['mIoU', 'mAcc', 'aAcc', 'mIoU_foreground', 'mAcc_foreground']

    results = [
        tuple(map(torch.tensor, areas))
        for areas in (
            ([3.0, 1], [4.0, 5], [3.0, 5], [4.0, 1]),
            ([0.0, 2], [2.0, 2], [0.0, 2], [2.0, 2]),
        )
    ]
    metric = METRICS.build(cfg.test_evaluator)
    metric._dataset_meta = dict(classes=['Sky', 'Road'])
    sums = np.sum([score_sample(metric, result, 'mIoU') for result in results], 0)
    assert 100 * (sums[:2] / sums[2:]).mean() == pytest.approx(metric.compute_metrics(results)['mIoU'], abs=0.01)
    assert score_by_unit(cfg) == 'mIoU'


SCRIPT = """
import sys
from pathlib import Path
from reproduction.machine import Machine
from reproduction.two_configs import compare_configs, read_pair
paths, work_dir, seeds = sys.argv[1:3], *sys.argv[3:]
options = {'train_cfg.max_iters': 2, 'train_dataloader.batch_size': 2}
pair = read_pair([*map(Path, paths)], options)
machine = Machine(workers=0, in_forks=True)
print(compare_configs(pair, Path(work_dir), int(seeds), machine))
"""


@pytest.mark.e2e
def test_two_configs_are_compared_and_further_seeds_added(run, pair, tmp_path):
    """Through the real tools: one seed, then two; finished runs are not repeated."""
    pair()
    (tmp_path / 'go.py').write_text(SCRIPT)
    work_dir = tmp_path / 'compared'
    command = [sys.executable, tmp_path / 'go.py', *pair.paths, work_dir]
    assert 'interval over samples of the test' in run(*command, 1)
    before = {path: path.stat().st_mtime_ns for path in work_dir.rglob('*.pth')}
    assert {path.parent.name for path in before} == {'stock_seed-0', 'mine_seed-0'}
    said = run(*command, 2)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    stored = json.loads((work_dir / 'results.json').read_text())
    values = {name: [run['metrics']['mIoU'] for run in runs.values()] for name, runs in stored['runs'].items()}
    gap = np.mean(np.subtract(values['mine'], values['stock']))
    found = re.search(r'\| mine \|.*\| ([+-]\S+) \[([+-]\S+), ([+-]\S+)\]', said).groups()
    assert float(found[0]) == pytest.approx(gap, abs=0.02)  # mmseg rounds both
    assert float(found[1]) < float(found[0]) < float(found[2])
    assert 'interval over seeds and samples of the test' in said
    assert 'model.decode_head.position' in (work_dir / 'comparison.md').read_text()
    with Image.open(work_dir / 'comparison.png') as plot:
        assert len(set(plot.convert('RGB').getdata())) > 20
