"""tools/reproduce.py on small images: its tables, the configs it makes of their rows, its runs, its report."""

import fcntl
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from PIL import Image
from scipy import stats

from mmattn.utils import config_path

TOOLS = Path(__file__).parents[1] / 'tools'
sys.path.insert(0, str(TOOLS))
import reproduce  # noqa: E402
from reproduction.plan import check_data, plan, words  # noqa: E402
from reproduction.protocol import Protocol, data_sets, metrics_of, read_data  # noqa: E402
from reproduction.report import Result, difference  # noqa: E402
from reproduction.tables import read_tables  # noqa: E402

TABLES = read_tables()
# A data set for each of the rows' tasks.
DATA = {
    '2': ('camvid', 'bccd'),
    '3': ('camvid', 'bccd'),
    '3.1': ('camvid',),
    '3.2': ('camvid',),
    '3.3': ('camvid',),
    '3.4': ('camvid',),
    '4.2': ('camvid',),
    '4.3': ('fasseg',),
    '4.4': ('fasseg', 'lfw_pl'),
    '5.1': ('davis_240p',),
    '5.2': ('davis_240p',),
    '5.3': ('davis_2016',),
    '5.4': ('davis_2017',),
}


@pytest.fixture
def data(tiny_data, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    return {name: Path(tiny_data[variable]) for name, variable in data_sets().items()}


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the tool in this process; return what it printed. An error has what it printed, too."""

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['reproduce.py', *map(str, arguments)])
        handler = signal.getsignal(signal.SIGTERM)
        try:
            reproduce.main()
        except SystemExit as error:
            raise SystemExit(f'{error} {capsys.readouterr().err}') from None
        finally:
            signal.signal(signal.SIGTERM, handler)
        return capsys.readouterr().out

    return run


def small(dataset, data, iterations=2):
    protocol = Protocol(dataset, iterations, 0.1 if dataset == 'camvid' else 1.0, small=True)
    return protocol, read_data(dataset, data[dataset])


# --- the tables


def test_every_table_has_its_rows_and_baselines():
    assert set(TABLES) == set(DATA)
    for table, rows in TABLES.items():
        places = [(row.setting, row.order) for row in rows]
        assert len(set(places)) == len(places), table
        assert {(row.baseline, row.setting) for row in rows if row.baseline} <= {
            (row.name, row.setting) for row in rows if row.baseline is None
        }, table
        assert all(config_path(name).is_file() for row in rows for name in row.configs)


def test_tables_are_those_of_the_readmes():
    """Each config that a README has beside figures of a paper is a row, or a stage of one; the figures are the same."""
    known = {name for rows in TABLES.values() for row in rows for name in row.configs}
    for folder in (path.parent.name for path in config_path().glob('*/metafile.yml')):
        section = re.search(r'## Paper and here\n(.*?)\n## ', config_path(f'{folder}/README.md').read_text(), re.S)[1]
        linked = {
            f'{folder}/{name}'
            for line in section.splitlines()
            if line.startswith('|')
            for name in re.findall(r'\]\(([^)]+\.py)\)', line)
        }
        assert len(linked) > 3
        assert linked - known <= {'unet_ba/unet-ba_r18-d32_1xb12-100e_helen-448x448.py'}  # in no table
        for row in (row for rows in TABLES.values() for row in rows if row.configs[-1].startswith(folder)):
            lines = ' '.join(line for line in section.splitlines() if row.configs[-1].split('/')[1] in line)
            printed = set(map(float, re.findall(r'(?<=[ |])\d+\.\d+(?=[ |])', lines)))
            assert set(row.metrics.values()) <= printed, row


def test_list_names_tables_rows_and_data_sets(call, capsys):
    with pytest.raises(SystemExit):
        call('--list')
    reproduce.print_tables(TABLES)
    said = capsys.readouterr().out
    assert re.findall(r'^Table (.+)$', said, re.M) == list(TABLES)
    assert all(row.name in said for rows in TABLES.values() for row in rows)
    assert {'camvid', 'fasseg', 'bccd', 'davis_2016', 'cityscapes'} <= set(re.findall(r'^\| (\w+) \|', said, re.M))


# --- the configs of the runs


@pytest.mark.parametrize(('table', 'dataset'), [(table, name) for table, names in DATA.items() for name in names])
def test_rows_differ_in_the_model_alone(table, dataset, data):
    """Same data, batch, budget and optimizer for all rows, and no two of them are the same."""
    protocol, source = small(dataset, data)
    methods = plan(TABLES[table], protocol, source)
    check_data(methods)
    configs = [method.configs[-1].to_dict() for method in methods]
    models = [config.pop('model') for config in configs]
    classes = dict(camvid=11, bccd=3, fasseg=6, lfw_pl=3).get(dataset)
    assert set(re.findall(r"'num_classes': (\d+)", str(models))) == ({str(classes)} if classes else set())
    assert all(config == configs[0] for config in configs)
    assert configs[0]['train_cfg'] == dict(type='IterBasedTrainLoop', max_iters=2, val_interval=2)
    assert all(model not in models[:i] for i, model in enumerate(models))
    assert {row.name for method in methods for row in method.rows} == {row.name for row in TABLES[table]}
    names = [method.name for method in methods]
    assert len(set(names)) == len(names)
    assert {method.baseline for method in methods if method.baseline} <= set(names)
    own = dataset == 'lfw_pl'
    assert [f'{dataset} in place of {methods[0].rows[0].data}' in words(methods, protocol, source)] == [not own]


@pytest.mark.parametrize(
    ('table', 'dataset'),
    [
        *((table, None) for table in TABLES if table not in '23'),
        ('2', 'cityscapes'),
        ('2', 'coco_detection'),
        ('3', 'cityscapes'),
        ('3', 'coco_detection'),
        ('3.1', 'ade20k'),
    ],
)
def test_the_papers_protocol_is_the_shipped_config(table, dataset):
    """Model, optimizer and schedule are untouched; one process has the batch of all, and scores at the end."""
    data = dataset and read_data(dataset, None)
    for method in plan(TABLES[table], Protocol(dataset), data):
        shipped = [Config.fromfile(config_path(name)) for name in method.rows[0].configs]
        assert len(method.configs) == len(shipped)
        for cfg, known in zip(method.configs, shipped):
            known.merge_from_dict(method.rows[0].options)
            for key in ('model', 'optim_wrapper', 'param_scheduler', 'test_dataloader', 'tta_pipeline'):
                assert cfg.get(key) == known.get(key)
            known.train_dataloader.batch_size = method.rows[0].batch_size
            assert cfg.train_dataloader == known.train_dataloader
            assert cfg.default_hooks.checkpoint.save_best is None
        assert words([method], Protocol(dataset), data) == []


def test_rows_that_become_the_same_are_run_once(data):
    methods = plan(TABLES['3.2'], *small('camvid', data))
    assert [method.name for method in methods] == ['NL', 'NL + RPE', 'Bi-NL', 'CC', 'CC + RPE', 'Bi-CC']
    assert [[row.setting for row in method.rows] for method in methods] == [['R50', 'R101']] * 6
    assert [method.baseline for method in methods] == [None, 'NL', 'NL', None, 'CC', 'CC']
    apart = plan(TABLES['3.2'], Protocol('camvid', 2), read_data('camvid', data['camvid']), ['Bi-CC'])
    assert [(method.name, method.baseline) for method in apart] == [
        ('CC, R50', None),
        ('Bi-CC, R50', 'CC, R50'),
        ('CC, R101', None),
        ('Bi-CC, R101', 'CC, R101'),
    ]


def test_iterations_shorten_the_schedule_in_proportion(data):
    """By iterations and by epochs, whose warm-up is a tenth at most."""
    (cityscapes,) = plan(TABLES['3.2'], Protocol(iterations=800), None, ['NL'])[:1]
    assert cityscapes.configs[0].param_scheduler == [
        dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=800, by_epoch=False)
    ]
    assert words([cityscapes], Protocol(iterations=800), None) == ['800 iterations of 80,000']
    (helen,) = (
        method for method in plan(TABLES['4.3'], Protocol(iterations=1000), None) if method.name == 'U-Net-BA, aligned'
    )
    assert [(step.begin, step.end) for step in helen.configs[0].param_scheduler] == [(0, 29), (29, 1000)]
    (coco,) = plan(TABLES['2'], Protocol('coco_detection', 1200), read_data('coco_detection', None), ['w/o'])[:1]
    warm_up, steps = coco.configs[0].param_scheduler
    assert (warm_up.end, steps.end, steps.milestones) == (120, 1200, [800, 1100])
    assert not warm_up.by_epoch
    assert not steps.by_epoch
    assert coco.configs[0].train_dataloader.sampler.type == 'mmattn.InfiniteSampler'
    assert words([coco], Protocol('coco_detection', 1200), read_data('coco_detection', None)) == [
        '1,200 iterations of 12 epochs'
    ]


def test_scale_makes_images_crops_and_tests_smaller(data):
    (method,) = plan(TABLES['3.2'], Protocol('camvid', 2, 0.5), read_data('camvid', None), ['NL'])[:1]
    cfg = method.configs[0]
    train, test = (loader.dataset.pipeline for loader in (cfg.train_dataloader, cfg.test_dataloader))
    assert [step.scale for step in train + test if 'scale' in step] == [(240, 180), (240, 180)]
    assert cfg.model.data_preprocessor.size == (180, 180)
    assert cfg.model.test_cfg == dict(mode='whole')
    assert not cfg.model.decode_head.align_corners
    assert cfg.model.decode_head.num_classes == cfg.model.auxiliary_head.num_classes == 11
    # Images that are tested as they are, are resized.
    cfg = plan(TABLES['4.3'], Protocol('fasseg', 2, 0.5), read_data('fasseg', None))[0].configs[0]
    assert [step.type for step in cfg.test_dataloader.dataset.pipeline] == [
        'LoadImageFromFile',
        'Resize',
        'LoadAnnotations',
        'PackSegInputs',
    ]
    cfg = plan(TABLES['3.1'], Protocol('camvid', 2, 0.5), read_data('camvid', None), ['NL'])[0].configs[0]
    assert [step.scale_factor for step in cfg.tta_pipeline[1].transforms[0]] == [0.375, 0.5, 0.625, 0.75]
    # The crop of the paper is 8·k + 1, and stays so.
    cfg = plan(TABLES['3.2'], Protocol(scale=0.5), None, ['NL'])[0].configs[0]
    assert cfg.model.data_preprocessor.size == (385, 385)
    assert cfg.model.decode_head.align_corners


def test_classes_are_those_of_the_data(data):
    """Also where the data set's class, not its config, has them."""
    (method,) = plan(TABLES['3.2'], Protocol('ade20k', 2), read_data('ade20k', None), ['NL'])[:1]
    assert method.configs[0].model.decode_head.num_classes == 150
    coco = Protocol('coco_detection', 2, small=True), read_data('coco_detection', None)
    (method,) = plan(TABLES['2'], *coco, ['w/o'])[:1]
    assert method.configs[0].model.roi_head.bbox_head.num_classes == 80


def test_stages_are_one_on_another_data_set(data):
    methods = plan(TABLES['5.2'], Protocol(iterations=2, small=True), None)
    assert [len(method.configs) for method in methods] == [3, 3]
    assert [cfg.val_cfg is None for cfg in methods[0].configs] == [True, True, False]  # YouTube-VOS has no truth
    protocol = Protocol('davis_240p', 2)
    methods = plan(TABLES['5.2'], protocol, read_data('davis_240p', None))
    assert [len(method.configs) for method in methods] == [1, 1]
    assert 'the first stage alone' in words(methods, protocol, read_data('davis_240p', None))


@pytest.mark.parametrize(
    ('table', 'dataset', 'name'),
    [
        ('3.3', 'camvid', 'Bi-CC, −∞, √d'),
        ('4.2', 'camvid', 'i: both, 8 heads, shared, 3 passes'),
        ('2', 'camvid', '1111: E1 E2 E3 E4'),
        ('3', 'bccd', 'dynamic, n_k = 13'),
        ('4.3', 'fasseg', 'U-Net-BA'),
        ('5.3', 'davis_240p', 'T Embedding'),
    ],
)
def test_a_row_trains_and_is_scored(table, dataset, name, data, tmp_path):
    method = next(
        method
        for method in plan(TABLES[table], *small(dataset, data, 1), [name])
        if method.rows[0].name == name and 'dcn' not in method.rows[0].configs[-1]
    )
    cfg = method.configs[-1]
    cfg.work_dir, cfg.log_level, cfg.experiment_name = str(tmp_path), 'ERROR', f'{table} {name} {dataset}'
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False, batch_size=min(loader.batch_size, 2))
    runner = Runner.from_cfg(cfg)
    runner.train()
    _, keys, factor = metrics_of(cfg)
    assert all(0 <= factor * runner.message_hub.get_scalar(f'val/{key}').current() <= 100 for key in keys)
    parameters, macs = method.counts()
    assert parameters > 1e4
    assert macs > 1e5


# --- statistics


def test_difference_is_the_paired_t_interval():
    ours, baseline = [30.1, 28.2, 33.3, 29.0], [29.0, 27.5, 30.0, 29.4]
    found = difference(ours, baseline)
    expected = stats.ttest_rel(ours, baseline)
    assert found.mean == pytest.approx(statistics.mean(a - b for a, b in zip(ours, baseline)))
    assert found[1:] == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert ('*' in str(found)) == (expected.pvalue < 0.05)
    assert str(difference([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])) == '+1.00 [+1.00, +1.00] *'
    assert difference([1.0], [2.0]) == (-1.0, None, None)
    assert str(difference([1.0], [2.0])) == '-1.00'
    with pytest.raises(ValueError, match='one seed or more; got none'):
        difference([], [])


# --- errors before any work


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((), 'a table, or --list'),
        (('9.9',), "'9.9' is none of 2, 3, 3.1"),
        (('3.2', '--seeds', -1), r'from 0 on, each once; got \[-1\]'),
        (('3.2', '--seeds', 0, 1, 0), r'each once.*\[0, 1, 0\]'),
        (('3.2', '--scale', 1.5), 'got 1.5'),
        (('3.2', '--iters', 0), '--iters is 1 or more'),
        (('3.2', '--jobs', 0), '--jobs is 1 or more'),
        (('3.2', '--gpus', '0,99'), '--gpus takes numbers below'),
        (('3.2', '--data-root', '.'), '--data-root needs --dataset'),
        (('3.2', '--dataset', 'nowhere'), "'nowhere' is none of ade20k, bccd"),
        (('3.2', '--dataset', 'bccd'), "'bccd' does not fit table 3.2, which is on Cityscapes"),
        (('5.2', '--dataset', 'camvid'), "'camvid' does not fit table 5.2"),
        (('3.2', '--dataset', 'camvid', '--rows', 'XL'), "'XL' is none of NL, NL"),
        (('3.2', '--dataset', 'camvid', '--data-root', 'missing'), 'there is no folder .*missing'),
        (('3.2', '--dataset', 'camvid', '--data-root', '.'), 'the data are not in .*(No such file|nothing)'),
        (('5.1',), 'not public: give another --dataset'),
        (('2',), 'table 2 is on COCO and Cityscapes, scored by different metrics: say by --dataset'),
    ],
)
def test_bad_input_is_an_error_before_work_starts(arguments, message, call, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        call(*arguments)
    assert not list(tmp_path.iterdir())


def test_a_work_dir_in_use_is_an_error(call, data, tmp_path):
    with open(tmp_path / '.lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match='in use by another process'):
            call('3.2', '--dataset', 'camvid', '--work-dir', tmp_path)


# --- runs


def test_runs_are_shared_between_gpus_and_reported(call, data, tmp_path, monkeypatch):
    """The runs are not trained here; their results are drawn."""
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(reproduce, 'run_stages', run := Recorder())
    said = call(
        '4.2',
        '--dataset',
        'camvid',
        '--scale',
        0.1,
        '--gpus',
        '0,1',
        '--jobs',
        2,
        '--seeds',
        3,
        5,
        '--work-dir',
        tmp_path,
    )
    assert len(run.calls) == 20
    assert set(run.calls) == {('0', 4), ('1', 4)}
    assert run.most == 2
    found = json.loads((tmp_path / 'results.json').read_text())
    assert found['deviations'] == [
        'camvid in place of Cityscapes',
        '160 iterations of 40,000',
        'ResNet-18 of half the width and a decoder of 64 channels, trained from scratch by AdamW 0.003',
        'inputs of 36×36',
    ]
    rows = {row['name']: row for row in found['rows']}
    assert len(rows) == 10
    assert rows['j: 3×3 convolution']['difference'] is None
    assert rows['e: both, 8 heads']['paper'] == [dict(setting='', data='Cityscapes', metrics=dict(mIoU=79.72))]
    # Beside a, e has γ: 64 channels to 8 heads of 3×3 logits, with bias and norm.
    assert rows['e: both, 8 heads']['parameters'] - rows['a: content, 8 heads']['parameters'] == 64 * 72 + 3 * 72
    for name, row in rows.items():
        ours, baseline = ([run.scores[name, seed] for seed in (3, 5)] for name in (name, 'j: 3×3 convolution'))
        assert row['mean']['mIoU'] == pytest.approx(statistics.mean(ours))
        assert row['deviation']['mIoU'] == pytest.approx(statistics.stdev(ours))
        if row['baseline']:
            assert list(row['difference'].values()) == pytest.approx(list(difference(ours, baseline)))
        line = next(line for line in said.splitlines() if line.startswith(f'| {name} |'))
        assert f'{statistics.mean(ours):.2f} ± {statistics.stdev(ours):.2f}' in line
    assert "**Not the paper's protocol**: camvid in place of Cityscapes; 160 iterations of 40,000;" in said
    assert (tmp_path / 'table.md').read_text() in said
    with Image.open(tmp_path / 'plot.png') as plot:
        assert plot.size[0] > 400
        assert len(set(plot.convert('RGB').getdata())) > 20
    assert not list(tmp_path.glob('*part*'))


def test_one_seed_is_reported_without_intervals(call, data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    monkeypatch.setattr(reproduce, 'run_stages', run := Recorder())
    rows = ['--rows', 'NL', '--seeds', 7, '--gpus', 0, '--work-dir', tmp_path]
    said = call('3.2', '--dataset', 'camvid', '--scale', 0.1, *rows)
    (row, *_) = json.loads((tmp_path / 'results.json').read_text())['rows']
    assert row['deviation']['mIoU'] is None
    assert row['mean']['mIoU'] == run.scores['NL', 7]
    assert 'camvid, seed 7. ' in said
    assert 'One seed: no deviation and no confidence interval.' in said
    assert '±' not in said
    assert '95 %' not in said


class Recorder:
    """In place of a run: keeps on which GPU it is, how many are at once on one, and its scores."""

    def __init__(self):
        self.calls, self.now, self.most, self.scores = [], [], 0, {}

    def __call__(self, run, method, workers, jobs):
        gpu = run.environment['CUDA_VISIBLE_DEVICES']
        self.calls.append((gpu, jobs))
        self.now.append(gpu)
        self.most = max(self.most, self.now.count(gpu))
        time.sleep(0.05)
        self.now.remove(gpu)
        self.scores[run.method, run.seed] = score = 20 + (hash(run.method) % 1000) / 100 + run.seed**2 / 10
        return Result(dict(mIoU=score, aAcc=50.0), 0.5, 100.0)


def test_killed_it_goes_on_and_repeats_nothing(call, data, tmp_path):
    """Through the real tools: killed in the second run, and again without; other settings; a lost validation."""
    arguments = [
        '3.2',
        '--dataset',
        'camvid',
        '--data-root',
        data['camvid'],
        '--rows',
        'NL',
        '--seeds',
        '0',
        '1',
        '--scale',
        '0.1',
        '--workers',
        '0',
        '--work-dir',
        tmp_path,
    ]
    killed = subprocess.Popen(
        [sys.executable, TOOLS / 'reproduce.py', *arguments, '--iters', '12'],
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    first, second = (tmp_path / f'nl_r50-d8_4xb2-80k_cityscapes-769x769_seed-{seed}' for seed in (0, 1))
    deadline = time.monotonic() + 280
    while not any(second.glob('iter_*.pth')):
        assert killed.poll() is None, killed.stdout.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.terminate()
    killed.communicate(timeout=60)
    assert killed.returncode != 0
    assert not (tmp_path / 'results.json').exists()
    before = {path: path.stat().st_mtime_ns for path in first.rglob('*')}

    said = call(*arguments, '--iters', 12)
    assert {path: path.stat().st_mtime_ns for path in first.rglob('*')} == before
    commands = re.findall(r'^\$ .*', (second / 'output.log').read_text(), re.M)
    assert ['--resume' in command for command in commands] == [False, True]
    found = json.loads((tmp_path / 'results.json').read_text())
    (row,) = found['rows']
    for folder, result in zip((first, second), row['seeds'].values()):
        lines = [
            json.loads(line)
            for path in sorted(folder.glob('*/vis_data/scalars.json'))
            for line in path.read_text().splitlines()
        ]
        assert [line['iter'] for line in lines if 'iter' in line][-1] == 12
        assert result['metrics']['mIoU'] == lines[-1]['mIoU']
        assert 0 < result['seconds'] < 60
        assert 50 < result['memory'] < 1e5
    assert row['mean']['mIoU'] == pytest.approx(statistics.mean(r['metrics']['mIoU'] for r in row['seeds'].values()))
    assert "**Not the paper's protocol**: camvid in place of Cityscapes; 12 iterations of 80,000;" in said

    with pytest.raises(SystemExit, match=r"other settings(.|\n)*-train_cfg.*12(.|\n)*\+train_cfg.*'max_iters': 5"):
        call(*arguments, '--iters', 5)

    log = next(first.glob('*/vis_data/scalars.json'))
    log.write_text(''.join(f'{line}\n' for line in log.read_text().splitlines() if 'mIoU' not in line))
    for folder in (first, second):  # written when a training has ended, if what waits for it lives on
        (folder / 'peak_memory.json').unlink()
    assert re.search(r'\| – \|$', call(*arguments, '--iters', 12), re.M)
    for result in row['seeds'].values():
        result['memory'] = None
    assert json.loads((tmp_path / 'results.json').read_text()) == found
    assert (first / 'test' / 'metrics.json').is_file()
