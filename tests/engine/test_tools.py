"""The tools as a user calls them, on small images: flags, several processes, mixed precision, mmseg's own train.py."""

import hashlib
import json
import os
import re
import runpy
import shutil
import socket
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import mmseg
import numpy as np
import pytest
import torch
from PIL import Image

from ..forked_tools import run_command, tool
from ..requirements import requires
from ..tiny_data import SIZE

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
SMALL = [
    'train_dataloader.batch_size=2',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'train_dataloader.dataset.pipeline.3.crop_size=(32,32)',
    'model.data_preprocessor.size=(32,32)',
    'model.backbone.base_channels=8',
    'model.decode_head.in_channels=64',
    'model.decode_head.channels=16',
    'model.auxiliary_head.in_channels=32',
    'model.auxiliary_head.channels=8',
    'train_cfg.max_iters=2',
    'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=2',
    'default_hooks.logger.interval=1',
]


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def losses(log):
    return [float(loss) for loss in re.findall(r'  loss: (\S+)', log)]


def metrics(folder):
    (path,) = folder.glob('*/*.json')
    return json.loads(path.read_text())


def weights(path):
    return torch.load(path, weights_only=False)['state_dict']


@pytest.mark.slow
def test_a_log_has_the_losses_and_what_runs_the_operators(trained):
    assert len(losses(trained[1])) == 2
    assert trained[1].count('Operators on the CPU: ') == 1


def test_other_classes_than_trained_are_named(run, trained, tmp_path):
    """Another order of classes exchanges results."""
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = ['mmattn::bi_cc/{CONFIG.name}']")  # mmengine adds `_scope_` to its components
    command = tool('test.py', config, trained[0] / 'iter_2.pth', '--work-dir', tmp_path)
    assert 'classes: the checkpoint' not in run(*command, '--cfg-options', *SMALL)
    other = 'test_dataloader.dataset.metainfo.classes=[building,background]'
    log = run(*command, '--tta', '--cfg-options', *SMALL, other)
    [warning] = [line for line in log.splitlines() if 'classes: the checkpoint' in line]
    assert re.search(r"iter_2\.pth: .*'background', 'building'.*\['building', 'background'\]", warning)


@pytest.mark.slow
def test_a_new_run_names_checkpoints_that_it_may_replace(run, trained, tmp_path):
    shutil.copy(trained[0] / 'iter_2.pth', tmp_path)
    command = tool('train.py', CONFIG, '--work-dir', tmp_path)
    assert f'{tmp_path} holds checkpoints of an earlier run, iter_2.pth' in run(*command, '--cfg-options', *SMALL)
    assert 'an earlier run' not in trained[1] + run(*command, '--resume', '--cfg-options', *SMALL)


@pytest.mark.e2e
def test_mmsegs_own_train_runs_our_config_and_agrees(run, trained, tmp_path):
    stock = Path(mmseg.__file__).parent / '.mim/tools/train.py'
    log = run(sys.executable, stock, CONFIG, '--work-dir', tmp_path, '--cfg-options', *SMALL)
    assert losses(log) == losses(trained[1])
    expected = weights(trained[0] / 'iter_2.pth')
    for name, tensor in weights(tmp_path / 'iter_2.pth').items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.e2e
def test_amp_trains_in_bfloat16_on_a_cpu(run, trained, tmp_path):
    command = tool('train.py', CONFIG, '--work-dir', tmp_path, '--amp', '--auto-scale-lr', '--cfg-options', *SMALL)
    log = run(*command, CUDA_VISIBLE_DEVICES='')
    assert 'autocast to bfloat16' in log
    assert 'LR is set based on batch size of 8 and the current batch size is 2' in log
    full, mixed = losses(trained[1]), losses(log)
    assert mixed == pytest.approx(full, rel=0.02)  # the same images and weights, in 8 bits
    assert mixed != full


AT_EXIT = """
import atexit, os, pathlib
threads = lambda: [path.read_text() for path in pathlib.Path('/proc/self/task').glob('*/comm')]
atexit.register(lambda: os.write(1, b'of gloo: %d\\n' % sum('gloo' in name for name in threads())))  # a line, whole
"""


@pytest.mark.e2e
def test_two_processes_train_on_cpus(run, tmp_path):
    """To the end: a thread of gloo that outlives the interpreter may abort the process, now and then."""
    (tmp_path / 'sitecustomize.py').write_text(AT_EXIT)
    options = '--work-dir', tmp_path, '--cfg-options', *SMALL, 'model.backbone.norm_cfg.type=SyncBN'
    env = dict(PORT=free_port(), PYTHONPATH=f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}')
    log = run(*tool('dist_train.sh', CONFIG, 2, *options), CUDA_VISIBLE_DEVICES='', **env)
    assert re.findall('of gloo: .*', log) == ['of gloo: 0'] * 3  # torch's launcher is one of the three
    assert 'Distributed training: True' in log
    assert 'GPU number: 2' in log
    assert re.search(r'\d+ SyncBN entries of the model are replaced by BN', log)
    assert len(losses(log)) == 2
    assert log.count('Operators on the CPU: ') == 1
    assert not any('module.' in name for name in weights(tmp_path / 'iter_2.pth'))


SLURM = dict(SLURM_PROCID='0', SLURM_LOCALID='0', SLURM_NTASKS='1', SLURM_NODELIST='localhost')  # a task of srun


@pytest.mark.one_case
@pytest.mark.parametrize(
    ('name', 'options', 'env'),
    [
        ('test.py', ['--fuse-conv-bn', '--cfg-options', 'train_dataloader.dataset.data_root=not_here'], {}),
        ('test.py', ['--amp', '--channels-last', '--cfg-options'], {}),
        pytest.param('dist_test.sh', [2, '--cfg-options'], {}, marks=pytest.mark.e2e),
        pytest.param('test.py', ['--launcher', 'slurm', '--cfg-options'], SLURM, marks=pytest.mark.e2e),
    ],
    ids=['fuse-conv-bn', 'amp', 'dist_test.sh', 'slurm'],
)
def test_testing_gives_the_same_metrics_however_launched(run, trained, tmp_path, name, options, env):
    """Two processes share the images and pool their counts. Training data need not be there."""
    command = tool(name, CONFIG, trained[0] / 'iter_2.pth', *options, *SMALL, '--work-dir', tmp_path)
    env = dict(env, CUDA_VISIBLE_DEVICES='', PORT=free_port(), MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())
    run(*command, **(env if name != 'test.py' or '--launcher' in options else {}))
    expected = float(re.findall(r'mIoU: (\S+)', trained[1])[-1])
    tolerance = 2 if '--amp' in options else 1e-4  # else, the log rounds to two digits
    assert metrics(tmp_path)['mIoU'] == pytest.approx(expected, abs=tolerance)


@pytest.mark.e2e
def test_test_draws_writes_predictions_and_augments(run, trained, tmp_path):
    """Of several metrics, one writes; a second run replaces the results of the first."""
    config = tmp_path / 'config.py'
    metric = 'dict(type="mmattn.ForegroundIoUMetric", background="background", iou_metrics=["{0}"], prefix="{0}")'
    evaluator = f'test_evaluator = [{metric.format("mIoU")}, {metric.format("mFscore")}]'
    config.write_text(f'_base_ = {str(CONFIG)!r}\n{evaluator}\n')
    folders = '--work-dir', tmp_path / 'work', '--out', tmp_path / 'predictions'
    command = tool('test.py', config, trained[0] / 'iter_2.pth', *folders)
    run(*command, '--cfg-options', *SMALL)
    run(*command, '--show-dir', tmp_path / 'shown', '--tta', '--cfg-options', *SMALL)
    for folder in ('shown', 'predictions'):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == ['tile_0.png', 'tile_1.png']
    shown, labels = (Image.open(tmp_path / folder / 'tile_0.png') for folder in ('shown', 'predictions'))
    assert shown.height > labels.height  # by the legend


@pytest.mark.e2e
@requires('mmcv operators')
def test_the_test_of_a_detector_agrees_with_its_validation_and_draws(run, tmp_path):
    config = ROOT / 'configs/attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'
    small = [
        *(f'{part}_dataloader.num_workers=0' for part in ('train', 'val', 'test')),
        *(f'{part}_dataloader.persistent_workers=False' for part in ('train', 'val', 'test')),
        'train_dataloader.batch_size=2',
        'train_dataloader.dataset.pipeline.4.scale=(144,120)',
        *(f'{part}_dataloader.dataset.pipeline.1.scale=(144,120)' for part in ('val', 'test')),
        'model.test_cfg.rcnn.score_thr=0.0',
        *('train_cfg.max_iters=3', 'train_cfg.val_interval=3', 'default_hooks.checkpoint.interval=3'),
    ]
    options = '--work-dir', tmp_path, '--cfg-options', *small
    logs = [
        run(*tool('train.py', config, *options)),
        run(*tool('test.py', config, tmp_path / 'iter_3.pth', '--show-dir', tmp_path / 'shown', *options)),
    ]
    validated, tested = (re.findall(r'pascal_voc/AP50: (\S+)', log)[-1] for log in logs)
    assert tested == validated
    assert sorted(path.name for path in (tmp_path / 'shown').iterdir()) == ['val_0.png', 'val_1.png']


def test_the_majority_baseline_is_the_share_of_the_majority(run, tiny_data, tmp_path):
    """Most pixels are void, which is no class."""
    root = shutil.copytree(tiny_data['BUILDINGS_ROOT'], tmp_path / 'data')
    for path in (root / 'ann_dir/train').iterdir():
        labels = np.array(Image.open(path))
        labels[:, : labels.shape[1] * 3 // 4] = 255
        Image.fromarray(labels).save(path)
    (tmp_path / 'ours.json').write_text('{"aAcc": 1, "mIoU": 2, "mAcc": 3}')
    options = '--result', f'Bi-CC={tmp_path / "ours.json"}', '--out', tmp_path / 'table.md'
    twice = "{0}_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=[{1}, {1}]))\n"
    twice = [twice.format(part, f'{{{{_base_.{part}_dataloader.dataset}}}}') for part in ('train', 'test')]
    (tmp_path / 'config.py').write_text(f'_base_ = {str(CONFIG)!r}\n' + ''.join(twice))
    run(*tool('analysis_tools/majority_baseline.py', tmp_path / 'config.py', *options), BUILDINGS_ROOT=str(root))
    labels = {
        part: b''.join(Image.open(path).tobytes() for path in sorted((root / 'ann_dir' / part).iterdir()))
        for part in ('train', 'val')
    }
    majority = max((0, 1), key=labels['train'].count)
    share = labels['val'].count(majority) / (labels['val'].count(0) + labels['val'].count(1))
    lines = (tmp_path / 'table.md').read_text().splitlines()
    assert lines[2] == '| Bi-CC | 1.00 | 2.00 | 3.00 |'
    assert lines[3] == f'| majority class | {100 * share:.2f} | {50 * share:.2f} | 50.00 |'


def test_the_majority_baseline_holds_one_mask_at_a_time(monkeypatch):
    alive = []

    class Masks(list):
        metainfo = dict(classes=('a', 'b'))

        def __getitem__(self, number):
            assert sum(mask() is not None for mask in alive) <= 1
            mask = np.full((2, 3), number % 2)
            alive.append(weakref.ref(mask))
            return dict(gt_seg_map=mask)

    name, *_ = tool('analysis_tools/majority_baseline.py')[1:]
    annotations = runpy.run_path(str(name))['annotations']
    registry = SimpleNamespace(build=lambda cfg: Masks(range(cfg['size'])))
    monkeypatch.setitem(annotations.__globals__, 'DATASETS', registry)
    maps, meta = annotations(dict(dataset=dict(datasets=[dict(size=2), dict(size=3)])), [])
    assert [int(labels.sum()) for labels in maps] == [0, 6, 0, 6, 0]
    assert meta == Masks.metainfo


@requires('mmcv operators')
def test_get_flops_counts_the_stock_head_and_ours_alike(run):
    """They differ by the self key, which mmcv computes twice and masks once."""
    counts = {}
    for name, options in (('cc', []), ('bi-cc', ['--cfg-options', 'model.decode_head.position=none'])):
        config = str(CONFIG).replace('bi-cc_', f'{name}_')
        said = run(*tool('analysis_tools/get_flops.py', config, '--shape', 256, *options))
        counts[name] = [float(x) for x in re.findall(r'input 256×256: (\S+) G multiply-accumulates, (\S+) M', said)[0]]
    assert counts['cc'] == pytest.approx(counts['bi-cc'], rel=1e-3)
    assert counts['cc'][0] > 1


@pytest.mark.slow
def test_get_flops_prints_the_rows_of_table_4_2(run):
    """Multiply-accumulates of a to f and j within 1 % of the paper's; g to i do not follow from its text."""
    said = run(*tool('analysis_tools/get_flops.py', ROOT / 'configs/deeplabv3plus_ba'))
    rows = re.findall(r'\| +([a-j]) \| +(\S+) \| +(\S+) \| +(\S+) \| +(\S+) \| +(\S+)% \|', said)
    assert ''.join(row[0] for row in rows) == 'abcdefghij'
    assert [float(row[4]) for row in rows] == [2.45, 2.01, 2.48, 2.54, 2.63, 2.80, 1.22, 1.39, 1.71, 5.44]
    for row, our_weights, paper_weights, ours, paper, difference in rows:
        assert our_weights == paper_weights
        assert float(difference) == pytest.approx(100 * (float(ours) / float(paper) - 1), abs=0.5)
        assert abs(float(difference)) <= 1 or row in 'ghi'


@pytest.mark.slow
def test_get_flops_prints_the_tables_of_the_empirical_study(run):
    """All 46 figures of Tables 2 and 3 within 1 %, and what is added, too.

    With E1 the paper counts nothing for E2, which costs N(H+W)C: 1.27 % of what 11xx adds to the detector. With E3
    alone it projects the output at every position, a third of what is added, where we project the one that there is.
    """
    said = run(*tool('analysis_tools/get_flops.py', ROOT / 'configs/attended_residual'))
    rows = re.findall(r'\| +(detection|segmentation) (\S+) \|.*\| +(\S+) \| +(\S+) \| +(\S+)% \| +(\S+)% \|', said)
    assert len(rows) == len({row[:2] for row in rows}) == 2 * (15 + 4 + 4)
    for task, kind, ours, paper, difference, of_added in rows:
        assert float(difference) == pytest.approx(100 * (float(ours) / float(paper) - 1), abs=0.05)
        if kind == 'attn0010':
            assert float(of_added) == pytest.approx(-33, abs=1)
            continue
        assert abs(float(difference)) <= (0.6 if kind.startswith('attn11') else 0.1), (task, kind)
        assert abs(float(of_added)) <= (1.3 if kind.startswith('attn11') and task == 'detection' else 1), (task, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('faster-rcnn_r50-attn0010-dcn_fpn_8xb2-1x_coco', ''),
        ('fcn_r50-d8-attn0010-dcn_8xb1-60k_cityscapes-769x769', ''),
        ('faster-rcnn_r50-attn0010_fpn_8xb2-1x_coco', 'detection attn0010'),
    ],
)
def test_get_flops_counts_detectors_and_deformable_convolutions(run, name, expected):
    """The latter count as the convolutions that they replace, and those of their offsets."""
    folder = ROOT / 'configs/attended_residual'

    def macs(name):
        said = run(*tool('analysis_tools/get_flops.py', folder / f'{name}.py', '--shape', 256, 320))
        return float(re.findall(r'input 256×320: (\S+) G', said)[0]), said

    ours, said = macs(name)
    assert ('of the paper' in said) == bool(expected)
    assert expected in said
    regular = macs(name.replace('-dcn', '').replace('-attn0010', '') if expected else name.replace('-dcn', ''))[0]
    offsets = 18 * 9 * (6 * 256 * 16 * 20 + 3 * 512 * 8 * 10 if 'faster' in name else (6 * 256 + 3 * 512) * 32 * 40)
    attention = 2 * (6 * 256**2 * 16 * 20 + 3 * 512**2 * 8 * 10)
    added = attention if expected else offsets
    assert ours - regular == pytest.approx(added / 1e9, abs=0.02 + 0.1 * added / 1e9)


@pytest.mark.e2e
def test_browse_dataset_draws_every_training_image(run, tmp_path):
    options = '--output-dir', tmp_path, '--not-show', '--cfg-options', *SMALL[3:4]
    run(*tool('analysis_tools/browse_dataset.py', CONFIG, *options))
    assert [path.stem for path in sorted(tmp_path.iterdir())] == [f'{i:05}_tile_{i}' for i in range(4)]


@pytest.mark.e2e
def test_browse_dataset_draws_evaluation_images_at_their_size(run, tmp_path):
    """Labels are loaded after the image is resized."""
    resized = ('dict(type="LoadImageFromFile")', 'dict(type="Resize",scale=(96,80))', 'dict(type="LoadAnnotations")')
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(CONFIG)!r}\n'
        f'pipeline = [{", ".join(resized)}, dict(type="PackSegInputs")]\n'
        'val_dataloader = dict(dataset=dict(pipeline=pipeline))\n'
    )
    trees = ROOT / 'configs/attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py'
    for name, path in (('seg', config), ('det', trees)):
        options = '--split', 'val', '--output-dir', tmp_path / name, '--not-show'
        run(*tool('analysis_tools/browse_dataset.py', path, *options))
        pictures = sorted((tmp_path / name).iterdir())
        assert len(pictures) == 2
        assert all(Image.open(picture).size == SIZE for picture in pictures)


def test_a_published_model_has_weights_and_what_describes_it(tmp_path):
    content = dict(
        meta=dict(dataset_meta=dict(classes=('a', 'b')), cfg='a = 1', epoch=3, iter=7),
        state_dict=dict(weight=torch.arange(6.0)),
    )
    more = dict(content, meta=dict(content['meta'], time='now', seed=1), optimizer=dict(step=1), message_hub={})
    torch.save(more, tmp_path / 'iter_7.pth')
    done = run_command(tool('misc/publish_model.py', tmp_path / 'iter_7.pth', tmp_path / 'model.pth'))
    published = torch.load(done.stdout.splitlines()[-1])
    assert str(published) == str(content)
    done = run_command(tool('misc/publish_model.py', tmp_path / 'iter_7.pth', tmp_path / 'model-v0.3.1'))
    assert re.fullmatch(r'model-v0\.3\.1-[0-9a-f]{8}\.pth', Path(done.stdout.splitlines()[-1]).name)
    for bare in content['state_dict'], dict(meta=None, state_dict=content['state_dict']):
        torch.save(bare, tmp_path / 'bare.pth')
        done = run_command(tool('misc/publish_model.py', tmp_path / 'bare.pth', tmp_path / 'model.pth'))
        assert str(torch.load(done.stdout.splitlines()[-1])) == str(dict(content, meta={}))


@pytest.mark.e2e
def test_a_published_model_is_named_by_its_hash_and_scores_the_same(run, trained, tmp_path):
    said = run(*tool('misc/publish_model.py', trained[0] / 'iter_2.pth', tmp_path / 'model.pth'))
    published = Path(said.splitlines()[-1])
    assert published.name == f'model-{hashlib.sha256(published.read_bytes()).hexdigest()[:8]}.pth'
    assert [path.name for path in tmp_path.iterdir()] == [published.name]
    assert published.stat().st_size < (trained[0] / 'iter_2.pth').stat().st_size / 2  # no optimizer
    run(*tool('test.py', CONFIG, published, '--work-dir', tmp_path, '--cfg-options', *SMALL))
    assert metrics(tmp_path)['mIoU'] == pytest.approx(float(re.findall(r'mIoU: (\S+)', trained[1])[-1]), abs=1e-4)


@pytest.mark.slow
def test_attention_maps_are_of_the_format_of_the_suffix(run, trained, tiny_data, tmp_path):
    image = Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val/tile_0.png')
    options = '--query', '1,1', '--out', tmp_path / 'q.jpg', '--cfg-options', *SMALL
    run(*tool('visualization/attention_maps.py', CONFIG, trained[0] / 'iter_2.pth', image, *options))
    assert Image.open(tmp_path / 'q.jpg').format == 'JPEG'
