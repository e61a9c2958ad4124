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
from scipy import stats

from mmattn.utils import config_path
from reproduction.results import Measured, Result, compare
from reproduction.task import ProtocolError, find_metrics
from reproduction.two_configs import read_pair
from reproduction.units import score_by_unit, score_sample
from reproduction.verdict import POWER, Verdict

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
            "val_evaluator = dict(iou_metrics=['mIoU', 'mDice'])",
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


def measured(name, values, samples=None):
    results = {
        seed: Result(dict(mIoU=value), samples=samples[seed] if samples else {}) for seed, value in enumerate(values)
    }
    return Measured(name, [], None, 'config', 0, 0.0, results)


def verdict_of(ours, baseline):
    return Verdict.of(baseline, ours, compare(ours, baseline), None)


def test_seeds_needed_find_the_difference_that_was_seen():
    """In simulated comparisons, they do so with the power; one seed less does not."""
    pairs = np.array([0.1, 1.6, 0.4, 1.1, 0.2])
    verdict = verdict_of(measured('b', 70 + pairs), measured('a', [70.0] * 5))
    number = verdict.seeds_needed()
    assert 5 < number < 20
    rng = np.random.default_rng(0)
    powers = []
    for seeds in (number - 1, number):
        draws = rng.normal(pairs.mean(), pairs.std(ddof=1), (20000, seeds))
        reach = draws.std(1, ddof=1) / seeds**0.5
        powers.append((draws.mean(1) > stats.t.ppf(0.975, seeds - 1) * reach).mean())
    assert powers[0] < POWER + 0.005
    assert powers[1] > POWER - 0.005
    assert str(number) in verdict.advice()


def test_images_can_be_the_limit():
    """The seeds agree, the images do not: more seeds would not help, about so many images would."""
    rng = np.random.default_rng(1)
    gaps = rng.normal(1, 6, 40)
    ours, baseline = ({f'{i}': 70 + gap * sign for i, gap in enumerate(gaps)} for sign in (1, 0))
    mean = float(np.mean([*ours.values()]))
    verdict = verdict_of(measured('b', [mean] * 3, [ours] * 3), measured('a', [70.0] * 3, [baseline] * 3))
    assert not verdict.is_decided
    assert verdict.seeds_needed() is None
    expected = (2.8016 * gaps.std() / gaps.mean()) ** 2  # z of 97.5 % and 80 %
    assert verdict.samples_needed() == pytest.approx(expected, rel=0.15)
    assert str(verdict.samples_needed()) in verdict.advice()
    assert '40 samples' in verdict.sentence()


@pytest.mark.parametrize(
    ('values', 'result'), [([71.0, 71.2, 70.9], 'better'), ([69.0, 69.1, 68.8], 'worse'), ([69.0, 72, 70], 'undecided')]
)
def test_the_sentence_has_figures_and_what_they_say(values, result):
    ours, baseline = measured('mine', values), measured('stock', [70.0, 70.1, 70.0])
    said = verdict_of(ours, baseline).sentence()
    assert f'mine against stock is {result}' in said
    gap = compare(ours, baseline)
    for figure in (gap.mean, gap.low, gap.high):
        assert f'{figure:+.2f}' in said
    assert '3 seeds' in said


def test_one_seed_has_no_interval():
    verdict = verdict_of(measured('mine', [71.0]), measured('stock', [70.0]))
    assert 'no interval' in verdict.sentence()
    assert '--seeds 5' in verdict.advice()


SCRIPT = """
import sys
from pathlib import Path
from reproduction.machine import Machine
from reproduction.two_configs import compare_configs, read_pair
paths, work_dir, seeds, metric = sys.argv[1:3], *sys.argv[3:]
options = {'train_cfg.max_iters': 2, 'train_dataloader.batch_size': 2}
pair = read_pair([*map(Path, paths)], options)
machine = Machine(workers=0, in_forks=True)
print(compare_configs(pair, Path(work_dir), int(seeds), machine, metric or None))
"""


@pytest.mark.e2e
def test_two_configs_are_compared_and_further_seeds_added(run, pair, tmp_path):
    """Through the real tools: one seed, then two, by another metric; finished runs are not repeated."""
    pair()
    (tmp_path / 'go.py').write_text(SCRIPT)
    work_dir = tmp_path / 'compared'
    command = [sys.executable, tmp_path / 'go.py', *pair.paths, work_dir]
    first = run(*command, 1, 'aAcc')
    assert 'points of aAcc' in first
    assert 'One seed' in first
    before = {path: path.stat().st_mtime_ns for path in work_dir.rglob('*.pth')}
    assert {path.parent.name for path in before} == {'stock_seed-0', 'mine_seed-0'}
    said = run(*command, 2, '')
    assert {path: path.stat().st_mtime_ns for path in before} == before
    stored = json.loads((work_dir / 'results.json').read_text())
    values = {name: [run['metrics']['mIoU'] for run in runs.values()] for name, runs in stored['runs'].items()}
    gap = np.mean(np.subtract(values['mine'], values['stock']))
    assert float(re.search(r': ([+-].*) points of mIoU', said)[1]) == pytest.approx(gap, abs=0.02)  # mmseg rounds both
    assert re.search(r'over seeds and samples of the test\).* 2 seeds, \d samples of the test', said)
    assert 'model.decode_head.position' in (work_dir / 'comparison.md').read_text()
    with Image.open(work_dir / 'comparison.png') as plot:
        assert len(set(plot.convert('RGB').getdata())) > 20
