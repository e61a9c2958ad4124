"""The tools as a user calls them, on small images: flags, several processes, mixed precision, mmseg's own train.py."""

import hashlib
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import mmseg
import pytest
import torch
from PIL import Image

from ..forked_tools import run_command
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


@pytest.fixture(scope='module')
def trained(run, tmp_path_factory):
    """A work dir after two iterations in one process, and the log."""
    folder = tmp_path_factory.mktemp('trained')
    return folder, run(sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', folder, '--cfg-options', *SMALL)


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


def test_another_model_and_other_classes_than_trained_are_named(run, trained, tmp_path):
    """Weights of another smoothing have the same names and shapes; another order of classes exchanges results."""
    command = [sys.executable, ROOT / 'tools/test.py', CONFIG, trained[0] / 'iter_2.pth', '--work-dir', tmp_path]
    log = run(*command, '--cfg-options', *SMALL, 'model.decode_head.dropout_ratio=0.3')
    assert 'another model' not in log
    assert 'the checkpoint was trained on' not in log
    other = ['model.decode_head.smoothing=sqrt_dim', 'test_dataloader.dataset.metainfo.classes=[building,background]']
    log = run(*command, '--tta', '--cfg-options', *SMALL, *other)
    assert "another model: model.decode_head.smoothing is 'sqrt_dim' (in training: not set)" in log
    assert "classes ['building', 'background']; the checkpoint was trained on ['background', 'building']" in log


def test_masks_of_clips_are_not_replaced(tiny_data, trained, tmp_path):
    """Their folder is not in the config: the data set knows it."""
    config = ROOT / 'configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
    masks = Path(tiny_data['DAVIS_240P_ROOT'], 'Annotations/240p')
    before = {path: path.read_bytes() for path in masks.rglob('*.png')}
    command = [sys.executable, ROOT / 'tools/test.py', config, trained[0] / 'iter_2.pth', '--work-dir', tmp_path]
    done = run_command([*command, '--out', masks], {**os.environ, **tiny_data})
    assert done.returncode == 1
    assert f'--out {masks} would replace an input, {masks}' in done.stderr
    assert before == {path: path.read_bytes() for path in masks.rglob('*.png')}


def test_a_new_run_names_checkpoints_that_it_may_replace(run, trained, tmp_path):
    shutil.copy(trained[0] / 'iter_2.pth', tmp_path)
    command = [sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', tmp_path, '--cfg-options', *SMALL]
    assert f'{tmp_path} holds checkpoints of an earlier run, iter_2.pth; new ones replace' in run(*command)
    assert 'an earlier run' not in trained[1] + run(*command[:5], '--resume', *command[5:])


def test_train_leaves_log_checkpoint_and_metrics(trained):
    folder, log = trained
    assert (folder / 'iter_2.pth').exists()
    assert len(losses(log)) == 2
    assert 'mIoU' in log
    assert log.count('Operators on the CPU: ') == 1


@pytest.mark.e2e
def test_mmsegs_own_train_runs_our_config_and_agrees(run, trained, tmp_path):
    stock = Path(mmseg.__file__).parent / '.mim/tools/train.py'
    log = run(sys.executable, stock, CONFIG, '--work-dir', tmp_path, '--cfg-options', *SMALL)
    assert losses(log) == losses(trained[1])
    expected = weights(trained[0] / 'iter_2.pth')
    for name, tensor in weights(tmp_path / 'iter_2.pth').items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.e2e
def test_resume_continues_at_the_last_checkpoint(run, trained, tmp_path):
    (tmp_path / 'iter_2.pth').write_bytes((trained[0] / 'iter_2.pth').read_bytes())
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_2.pth'))
    options = [option.replace('max_iters=2', 'max_iters=3') for option in SMALL]
    log = run(
        sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', tmp_path, '--resume', '--cfg-options', *options
    )
    assert 'Iter(train) [3/3]' in log
    assert 'Nothing is trained' not in log
    log = run(
        sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', tmp_path, '--resume', '--cfg-options', *SMALL
    )
    assert 'Nothing is trained: the checkpoint is of iteration 3, and training ends at 2' in log
    assert 'Iter(train) [1/3]' not in log


@pytest.mark.e2e
def test_amp_trains_in_bfloat16_on_a_cpu(run, trained, tmp_path):
    log = run(
        sys.executable,
        ROOT / 'tools/train.py',
        CONFIG,
        '--work-dir',
        tmp_path,
        '--amp',
        '--auto-scale-lr',
        '--cfg-options',
        *SMALL,
        CUDA_VISIBLE_DEVICES='',
    )
    assert 'autocast to bfloat16' in log
    assert 'LR is set based on batch size of 8 and the current batch size is 2' in log
    assert losses(log) == pytest.approx(losses(trained[1]), rel=0.02)  # the same images and weights, in 8 bits
    expected = weights(trained[0] / 'iter_2.pth')
    assert any(not torch.equal(tensor, expected[name]) for name, tensor in weights(tmp_path / 'iter_2.pth').items())


AT_EXIT = """
import atexit, os, pathlib
threads = lambda: [path.read_text() for path in pathlib.Path('/proc/self/task').glob('*/comm')]
atexit.register(lambda: os.write(1, b'of gloo: %d\\n' % sum('gloo' in name for name in threads())))  # a line, whole
"""


@pytest.mark.e2e
def test_two_processes_train_on_cpus(run, tmp_path):
    """To the end: a thread of gloo that outlives the interpreter may abort the process, now and then."""
    (tmp_path / 'sitecustomize.py').write_text(AT_EXIT)
    log = run(
        'bash',
        ROOT / 'tools/dist_train.sh',
        CONFIG,
        2,
        '--work-dir',
        tmp_path,
        '--cfg-options',
        *SMALL,
        'model.backbone.norm_cfg.type=SyncBN',
        CUDA_VISIBLE_DEVICES='',
        PORT=free_port(),
        PYTHONPATH=f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}',
    )
    assert re.findall('of gloo: .*', log) == ['of gloo: 0'] * 3  # torch's launcher is one of the three
    assert 'Distributed training: True' in log
    assert 'GPU number: 2' in log
    assert re.search(r'\d+ SyncBN entries of the model are replaced by BN', log)
    assert len(losses(log)) == 2
    assert log.count('Operators on the CPU: ') == 1
    assert not any('module.' in name for name in weights(tmp_path / 'iter_2.pth'))


@pytest.mark.parametrize(
    'launcher',
    ['none', pytest.param('dist_test.sh', marks=pytest.mark.e2e), pytest.param('slurm', marks=pytest.mark.e2e)],
)
def test_testing_gives_the_same_metrics_however_launched(run, trained, tmp_path, launcher):
    """Two processes share the images and pool their counts. Training data need not be there."""
    expected = float(re.findall(r'mIoU: (\S+)', trained[1])[-1])
    arguments = [CONFIG, trained[0] / 'iter_2.pth']
    options = ['--work-dir', tmp_path, '--cfg-options', *SMALL]
    tool = ROOT / 'tools/test.py'
    if launcher == 'none':
        run(sys.executable, tool, *arguments, *options, 'train_dataloader.dataset.data_root=not_here')
    elif launcher == 'slurm':  # the environment of a task that srun started
        run(
            sys.executable,
            tool,
            *arguments,
            '--launcher',
            'slurm',
            *options,
            CUDA_VISIBLE_DEVICES='',
            SLURM_PROCID='0',
            SLURM_LOCALID='0',
            SLURM_NTASKS='1',
            SLURM_NODELIST='localhost',
            MASTER_ADDR='127.0.0.1',
            MASTER_PORT=free_port(),
        )
    else:
        run('bash', ROOT / 'tools' / launcher, *arguments, 2, *options, CUDA_VISIBLE_DEVICES='', PORT=free_port())
    assert metrics(tmp_path)['mIoU'] == pytest.approx(expected, abs=1e-4)  # the log rounds to two digits


@pytest.mark.e2e
def test_test_draws_writes_predictions_and_augments(run, trained, tmp_path):
    run(
        sys.executable,
        ROOT / 'tools/test.py',
        CONFIG,
        trained[0] / 'iter_2.pth',
        '--work-dir',
        tmp_path / 'work',
        '--show-dir',
        tmp_path / 'shown',
        '--out',
        tmp_path / 'predictions',
        '--tta',
        '--cfg-options',
        *SMALL,
    )
    assert sorted(path.name for path in (tmp_path / 'shown').iterdir()) == ['tile_0.png', 'tile_1.png']
    assert sorted(path.name for path in (tmp_path / 'predictions').iterdir()) == ['tile_0.png', 'tile_1.png']


def test_the_majority_baseline_is_the_share_of_the_majority(run, tiny_data, trained, tmp_path):
    (tmp_path / 'ours.json').write_text('{"aAcc": 1, "mIoU": 2, "mAcc": 3}')
    run(
        sys.executable,
        ROOT / 'tools/analysis_tools/majority_baseline.py',
        CONFIG,
        '--result',
        f'Bi-CC={tmp_path / "ours.json"}',
        '--out',
        tmp_path / 'table.md',
    )
    labels = {
        part: b''.join(
            Image.open(path).tobytes() for path in sorted(Path(tiny_data['BUILDINGS_ROOT'], 'ann_dir', part).iterdir())
        )
        for part in ('train', 'val')
    }
    majority = max((0, 1), key=labels['train'].count)
    share = labels['val'].count(majority) / (labels['val'].count(0) + labels['val'].count(1))
    lines = (tmp_path / 'table.md').read_text().splitlines()
    assert lines[2] == '| Bi-CC | 1.00 | 2.00 | 3.00 |'
    assert lines[3] == f'| majority class | {100 * share:.2f} | {50 * share:.2f} | 50.00 |'


@pytest.mark.mmcv_operators
def test_get_flops_counts_the_stock_head_and_ours_alike(run):
    """They differ by the self key, which mmcv computes twice and masks once."""
    counts = {}
    for name, options in (('cc', []), ('bi-cc', ['--cfg-options', 'model.decode_head.position=none'])):
        config = str(CONFIG).replace('bi-cc_', f'{name}_')
        said = run(sys.executable, ROOT / 'tools/analysis_tools/get_flops.py', config, '--shape', 256, *options)
        counts[name] = [float(x) for x in re.findall(r'input 256×256: (\S+) G multiply-accumulates, (\S+) M', said)[0]]
    assert counts['cc'] == pytest.approx(counts['bi-cc'], rel=1e-3)
    assert counts['cc'][0] > 1


@pytest.mark.slow
def test_get_flops_prints_the_rows_of_table_4_2(run):
    """Multiply-accumulates of a to f and j within 1 % of the paper's; g to i do not follow from its text."""
    said = run(sys.executable, ROOT / 'tools/analysis_tools/get_flops.py', ROOT / 'configs/deeplabv3plus_ba')
    rows = re.findall(r'\| +([a-j]) \| +(\S+) \| +(\S+) \| +(\S+) \| +(\S+) \| +(\S+)% \|', said)
    assert [row[0] for row in rows] == list('abcdefghij')
    assert all(ours == paper for _, ours, paper, *_ in rows)
    assert [float(row[4]) for row in rows] == [2.45, 2.01, 2.48, 2.54, 2.63, 2.80, 1.22, 1.39, 1.71, 5.44]
    for row, *_, ours, paper, difference in rows:
        assert float(difference) == pytest.approx(100 * (float(ours) / float(paper) - 1), abs=0.5)
        assert abs(float(difference)) <= 1 or row in 'ghi'


def test_get_flops_of_a_folder_takes_no_options():
    tool, folder = ROOT / 'tools/analysis_tools/get_flops.py', ROOT / 'configs/deeplabv3plus_ba'
    done = run_command([sys.executable, tool, folder, '--shape', '512'])
    assert done.returncode == 2
    assert 'is a folder: its metafile defines what is counted' in done.stderr


@pytest.mark.slow
def test_get_flops_prints_the_tables_of_the_empirical_study(run):
    """All 46 figures of Tables 2 and 3 within 1 %, and what is added, too.

    With E1 the paper counts nothing for E2, which costs N(H+W)C: 1.27 % of what 11xx adds to the detector. With E3
    alone it projects the output at every position, a third of what is added, where we project the one that there is.
    """
    said = run(sys.executable, ROOT / 'tools/analysis_tools/get_flops.py', ROOT / 'configs/attended_residual')
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
    tool = ROOT / 'tools/analysis_tools/get_flops.py'
    folder = ROOT / 'configs/attended_residual'

    def macs(name):
        said = run(sys.executable, tool, folder / f'{name}.py', '--shape', 256, 320)
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
    run(
        sys.executable,
        ROOT / 'tools/analysis_tools/browse_dataset.py',
        CONFIG,
        '--output-dir',
        tmp_path,
        '--not-show',
        '--cfg-options',
        *SMALL[3:4],
    )
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
    tool = ROOT / 'tools/analysis_tools/browse_dataset.py'
    run(sys.executable, tool, config, '--split', 'val', '--output-dir', tmp_path / 'seg', '--not-show')
    trees = 'configs/attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py'
    run(sys.executable, tool, ROOT / trees, '--split', 'val', '--output-dir', tmp_path / 'det', '--not-show')
    for name in ('seg', 'det'):
        pictures = sorted((tmp_path / name).iterdir())
        assert len(pictures) == 2
        assert all(Image.open(picture).size == SIZE for picture in pictures)


@pytest.mark.e2e
def test_one_of_several_metrics_writes_the_predictions(run, trained, tmp_path):
    config = tmp_path / 'config.py'
    metric = 'dict(type="IoUMetric", iou_metrics=["{0}"], prefix="{0}")'
    config.write_text(
        f'_base_ = {str(CONFIG)!r}\ntest_evaluator = [{metric.format("mIoU")}, {metric.format("mFscore")}]\n'
    )
    arguments = [ROOT / 'tools/test.py', config, trained[0] / 'iter_2.pth', '--work-dir', tmp_path / 'work']
    for _ in range(2):  # the second run replaces the results of the first
        run(sys.executable, *arguments, '--out', tmp_path / 'predictions', '--cfg-options', *SMALL)
    assert sorted(path.name for path in (tmp_path / 'predictions').iterdir()) == ['tile_0.png', 'tile_1.png']


@pytest.mark.e2e
def test_images_of_one_name_are_named_before_the_test(trained, tiny_data, tmp_path):
    for part in ('img_dir', 'ann_dir'):
        for folder in 'ab':
            shutil.copytree(Path(tiny_data['BUILDINGS_ROOT'], part, 'val'), tmp_path / 'data' / part / 'val' / folder)
    done = run_command(
        [
            *(sys.executable, ROOT / 'tools/test.py', CONFIG, trained[0] / 'iter_2.pth'),
            *('--work-dir', tmp_path / 'work', '--out', tmp_path / 'predictions', '--cfg-options', *SMALL),
            f'test_dataloader.dataset.data_root={tmp_path / "data"}',
        ],
        {**os.environ, **tiny_data, 'OMP_NUM_THREADS': '1'},
    )
    assert done.returncode == 1
    assert '--out names label maps by the file names of images' in done.stderr.splitlines()[-1]
    assert not [*(tmp_path / 'predictions').glob('*')]


@pytest.mark.e2e
def test_outputs_never_replace_the_data(trained, tiny_data, tmp_path):
    """Labels, images through a link, and images of the training."""
    data = tmp_path / 'data'
    shutil.copytree(tiny_data['BUILDINGS_ROOT'], data)
    (tmp_path / 'link').symlink_to(data / 'img_dir')
    before = {path: path.read_bytes() for path in data.rglob('*') if path.is_file()}
    command = [
        sys.executable,
        ROOT / 'tools/test.py',
        CONFIG,
        trained[0] / 'iter_2.pth',
        '--work-dir',
        tmp_path / 'work',
    ]
    outputs = ['--out', data / 'ann_dir/val'], ['--show-dir', tmp_path / 'link/val'], ['--out', data / 'img_dir/train']
    for output in outputs:
        done = run_command([*command, *output, '--cfg-options', *SMALL], {**os.environ, 'BUILDINGS_ROOT': str(data)})
        assert done.returncode == 1
        assert f'{output[0]} {output[1]} would replace an input, {data}' in done.stderr
    option = f'test_evaluator.output_dir={data / "ann_dir/val"}'
    done = run_command([*command, '--cfg-options', *SMALL, option], {**os.environ, 'BUILDINGS_ROOT': str(data)})
    assert f'test_evaluator.output_dir {data / "ann_dir/val"} would replace an input, {data}' in done.stderr
    tool = ROOT / 'tools/analysis_tools/browse_dataset.py'
    output = ['--not-show', '--output-dir', data / 'img_dir/train/new']
    done = run_command([sys.executable, tool, CONFIG, *output], {**os.environ, 'BUILDINGS_ROOT': str(data)})
    assert 'would replace an input' in done.stderr
    assert before == {path: path.read_bytes() for path in data.rglob('*') if path.is_file()}


@pytest.mark.parametrize(
    ('tool', 'flags'),
    [
        ('visualization/attention_maps.py', ['x.pth', 'a.png', '--query', '1,1', '--out']),
        ('visualization/attention_explorer.py', ['x.pth', 'a.png', '--out']),
        ('analysis_tools/majority_baseline.py', ['--result', 'x=a.png', '--out']),
    ],
)
@pytest.mark.parametrize('link', [os.symlink, os.link, None])
def test_a_file_that_is_read_is_not_replaced(tmp_path, monkeypatch, tool, flags, link):
    monkeypatch.chdir(tmp_path)
    Path('a.png').write_bytes(b'content')
    if link is not None:
        link('a.png', 'link.png')
    done = run_command([sys.executable, ROOT / 'tools' / tool, CONFIG, *flags, 'a.png' if link is None else 'link.png'])
    assert done.returncode == 1
    assert 'would replace an input, a.png' in done.stderr
    assert Path('a.png').read_bytes() == b'content'


@pytest.mark.e2e
def test_a_published_model_is_named_by_its_hash_and_scores_the_same(run, trained, tmp_path):
    published = Path(
        run(
            sys.executable, ROOT / 'tools/misc/publish_model.py', trained[0] / 'iter_2.pth', tmp_path / 'model.pth'
        ).split()[-1]
    )
    assert published.name == f'model-{hashlib.sha256(published.read_bytes()).hexdigest()[:8]}.pth'
    assert [path.name for path in tmp_path.iterdir()] == [published.name]
    assert published.stat().st_size < (trained[0] / 'iter_2.pth').stat().st_size / 2  # no optimizer
    run(sys.executable, ROOT / 'tools/test.py', CONFIG, published, '--work-dir', tmp_path, '--cfg-options', *SMALL)
    assert metrics(tmp_path)['mIoU'] == pytest.approx(float(re.findall(r'mIoU: (\S+)', trained[1])[-1]), abs=1e-4)


@pytest.mark.parametrize(
    ('tool', 'flags', 'said'),
    [
        (
            'train.py',
            ['--amp', '--cfg-options', 'optim_wrapper.type=ApexOptimWrapper'],
            'mixed precision requires optim_wrapper.type=',
        ),
        ('train.py', ['--auto-scale-lr', '--cfg-options', 'auto_scale_lr=None'], 'auto_scale_lr.base_batch_size'),
        (
            'test.py',
            ['x.pth', '--show-dir', 'x', '--cfg-options', 'default_hooks.visualization=None'],
            'default_hooks.visualization',
        ),
        ('test.py', ['x.pth', '--tta', '--cfg-options', 'tta_model=None'], 'tta_model'),
        ('test.py', ['x.pth', '--show'], '--show requires a display, which Matplotlib does not have here; --show-dir'),
        ('analysis_tools/browse_dataset.py', [], 'a run without --output-dir requires a display'),
    ],
)
def test_flags_that_do_not_fit_are_named(tool, flags, said):
    done = run_command([sys.executable, ROOT / 'tools' / tool, CONFIG, *flags], {**os.environ, 'MPLBACKEND': 'agg'})
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ('tool', 'flags', 'said'),
    [
        ('analysis_tools/majority_baseline.py', ['--result', 'x.json'], '--result must be NAME=METRICS.json'),
        ('analysis_tools/majority_baseline.py', ['--result', f'x={CONFIG}'], f'--result: {CONFIG} is not JSON'),
        ('analysis_tools/browse_dataset.py', ['--not-show'], '--not-show requires --output-dir'),
        ('analysis_tools/browse_dataset.py', ['--number', '-1'], '--number must be at least 1; got -1'),
        (
            'analysis_tools/get_flops.py',
            ['--shape', '0', '5'],
            '--shape must be one side, or height and width, of at least',
        ),
        (
            'visualization/attention_maps.py',
            ['x.pth', 'x.png', '--query', '1,1', '--threshold', '2'],
            '--threshold must be from 0 to 1; got 2.0',
        ),
    ],
)
def test_numbers_of_which_nothing_would_come_are_refused(tool, flags, said):
    done = run_command([sys.executable, ROOT / 'tools' / tool, CONFIG, *flags])
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert 'Traceback' not in done.stderr


@pytest.fixture(scope='module')
def resume(trained, tiny_data):
    """Resume the trained run, or from another checkpoint, with options; return the process."""

    def resume(work_dir, *options, checkpoint=trained[0] / 'iter_2.pth'):
        command = [sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', work_dir, '--resume', checkpoint]
        small = [option.replace('max_iters=2', 'max_iters=3') for option in SMALL]
        return run_command([*command, '--cfg-options', *small, *options], {**os.environ, **tiny_data}, merged=True)

    return resume


@pytest.mark.e2e
@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (
            [
                'optim_wrapper.optimizer._delete_=True',
                'optim_wrapper.optimizer.type=SGD',
                'optim_wrapper.optimizer.lr=1',
            ],
            r'iter_2.pth is of another optimizer: its options are amsgrad, betas',
        ),
        (['param_scheduler=[]'], r'iter_2.pth has the states of \d other param_schedulers than the config'),
        (
            ['optim_wrapper.optimizer.lr=0.5'],
            r'The learning rate of the checkpoint, \S+, continues; .*, 0.5, is not',
        ),
    ],
)
def test_a_run_is_resumed_with_its_own_optimizer_and_schedulers(resume, tmp_path, options, said):
    done = resume(tmp_path, *options)
    assert re.search(said, done.stdout), done.stdout[-2000:]
    assert ('Iter(train) [3/3]' in done.stdout) == ('learning rate' in said) == (done.returncode == 0)


@pytest.mark.e2e
def test_weights_without_the_state_of_a_run_cannot_be_resumed(resume, trained, tmp_path):
    checkpoint = torch.load(trained[0] / 'iter_2.pth', weights_only=False)
    torch.save({key: checkpoint[key] for key in ('meta', 'state_dict')}, tmp_path / 'published.pth')
    done = resume(tmp_path / 'work', checkpoint=tmp_path / 'published.pth')
    assert done.returncode == 1
    assert 'published.pth cannot be resumed: it has weights, but no state of a run' in done.stdout


@pytest.mark.e2e
def test_weights_that_are_no_numbers_are_refused_by_every_tool(trained, tiny_data, tmp_path):
    checkpoint = torch.load(trained[0] / 'iter_2.pth', weights_only=False)
    checkpoint['state_dict']['decode_head.conv_seg.weight'][0, 0] = torch.nan
    torch.save(checkpoint, tmp_path / 'nan.pth')
    photo = next(Path(tiny_data['BUILDINGS_ROOT'], 'img_dir/val').iterdir())
    said = f'{tmp_path / "nan.pth"} has NaN or infinite weights: decode_head.conv_seg.weight'
    for command in (
        ['test.py', CONFIG, tmp_path / 'nan.pth', '--work-dir', tmp_path / 'work'],
        ['train.py', CONFIG, '--work-dir', tmp_path / 'work', '--resume', tmp_path / 'nan.pth'],
        ['image_demo.py', photo, CONFIG, tmp_path / 'nan.pth', '--out-dir', tmp_path / 'out'],
        [
            'misc/average_checkpoints.py',
            tmp_path / 'nan.pth',
            trained[0] / 'iter_2.pth',
            '--out',
            tmp_path / 'mean.pth',
        ],
        ['misc/publish_model.py', tmp_path / 'nan.pth', tmp_path / 'published.pth'],
    ):
        done = run_command([sys.executable, ROOT / 'tools' / command[0], *command[1:]], {**os.environ, **tiny_data})
        assert done.returncode == 1
        assert said in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) in (['nan.pth'], ['nan.pth', 'work'])
