"""tools/reproduce.py on small images: its list, its errors, its runs, its report."""

import fcntl
import json
import os
import re
import runpy
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from reproduction import reproduce, runs
from reproduction.plan import plan, write_configs
from reproduction.protocol import Protocol, adapt, read_data
from reproduction.reproduce import Machine
from reproduction.results import Result, difference
from reproduction.store import Store
from reproduction.tables import read_tables
from reproduction.task import has_own_test

TOOL = Path(__file__).parents[2] / 'tools' / 'reproduce.py'


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the tool in this process; return what it printed. An error has what it printed, too."""

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['reproduce.py', *map(str, arguments)])
        handler = signal.getsignal(signal.SIGTERM)
        try:
            runpy.run_path(str(TOOL), run_name='__main__')
        except SystemExit as error:
            if error.code:
                raise SystemExit(f'{error} {capsys.readouterr().err}') from None
        finally:
            signal.signal(signal.SIGTERM, handler)
        return capsys.readouterr().out

    return run


def test_list_names_tables_rows_and_data_sets(call):
    """One line per table below its paper; with a table, all its rows, and the data sets of its task alone."""
    tables = read_tables()
    parts = dict(re.findall(r'^(?!\|)(\S.+)\n\n((?:\|.*\n)+)', said := call('--list'), re.M))
    listed = {paper: re.findall(r'^\| (\S+) \|', lines, re.M) for paper, lines in parts.items()}
    papers = {rows[0].paper for rows in tables.values()} - {''}
    by_paper = {(paper, table) for paper in papers for table in listed.pop(paper) if table in tables}
    assert by_paper == {(rows[0].paper, table) for table, rows in tables.items() if rows[0].paper}
    own, data_sets = listed.values()
    assert {'bccd', 'multi30k'} <= {*own}
    assert {'camvid', 'cityscapes'} <= {*data_sets}
    assert len(said.splitlines()) < 150
    for table, others in (('3.2', ['buildings', 'camvid', 'cityscapes']), ('multi30k', ['multi30k_en-de'])):
        said = call(table, '--list')
        assert all(f'| {row.name} |' in said for row in tables[table])
        data = said.splitlines()[-1].partition(': ')[2].split(', ')
        assert {*others} <= {*data}
        assert not {*data} & {'coco_detection', 'vqa2'}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('table', 'data'),
    [('ban-3', 'vqa2'), ('ngsan-vqa', 'vqa2'), ('fusion-3.2-trainval', 'vqa2'), ('5.4', 'youtube_vos_2018')],
)
def test_a_data_set_without_public_truth_is_not_offered(table, data, call):
    """The error names data sets that can be chosen, and no other."""
    offered = call(table, '--list').splitlines()[-1].partition(': ')[2].split(', ')
    assert data not in offered
    with pytest.raises(SystemExit, match='not public') as error:
        call(table, '--dataset', data)
    named = re.search('one of (.*) by --dataset', str(error.value))[1].split(', ')
    assert named == offered


@pytest.mark.slow
@pytest.mark.parametrize(
    ('arguments', 'names'),
    [
        ('', 'table, or --list'),
        ('9.9', r"table .*'9\.9'"),
        ('3.2 --seeds -1', r'\[-1\]'),
        ('3.2 --seeds 0 1 0', r'\[0, 1, 0\]'),
        ('3.2 --scale 1.5', 'got 1.5'),
        ('3.2 --iters 0', '--iters'),
        ('3.2 --jobs 0', '--jobs'),
        ('3.2 --cfg-options a.b', r"--cfg-options .*'a\.b'"),
        ('3.2 --variant new NL', "'new'"),
        ('3.2 --variant NL NL a=1', "'NL' already"),
        ('3.2 --variant new XL a=1', "'XL', only NL; NL"),
        ('3.2 --gpus 0,99', '--gpus'),
        ('3.2 --data-root .', '--data-root requires --dataset'),
        ('3.2 --dataset nowhere', "--dataset .*'nowhere'"),
        ('3.2 --dataset bccd', "'bccd' .*3.2"),
        ('5.2 --dataset camvid', "'camvid' .*5.2"),
        ('3.2 --dataset camvid --rows XL', "--rows .* NL; NL.*'XL'"),
        ('3.2 --dataset camvid --data-root missing', 'missing'),
        ('3.2 --dataset camvid --data-root .', 'the data are not in'),
        ('3.6 --dataset multi30k_en-de --scale 0.5', '--scale .*3.6'),
        ('5.1', 'not public: .*--dataset'),
        ('2', 'COCO and Cityscapes, .*--dataset'),
    ],
)
def test_bad_input_is_an_error_before_work_starts(arguments, names, call, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=names):
        call(*arguments.split())
    assert not list(tmp_path.iterdir())


def test_a_work_dir_in_use_is_an_error(call, data, tmp_path):
    with open(tmp_path / '.lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match='in use by another process'):
            call('3.2', '--dataset', 'camvid', '--work-dir', tmp_path)


@pytest.mark.e2e
def test_runs_are_shared_between_gpus_and_reported(call, data, tmp_path, monkeypatch):
    """The runs are not trained here; their results are drawn."""
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(reproduce, 'run_stages', run := Recorder())
    machine = ['--gpus', '0,1', '--jobs', 2, '--work-dir', tmp_path]
    said = call('4.2', '--dataset', 'camvid', '--scale', 0.1, '--seeds', 3, 5, *machine)
    assert len(run.calls) == 20
    assert set(run.calls) == {('0', 4), ('1', 4)}
    assert run.most == 2
    found = json.loads((tmp_path / 'results.json').read_text())
    assert found['setup']['deviations'][:2] == ['camvid in place of Cityscapes', '160 iterations of 40,000']
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
    assert (tmp_path / 'table.md').read_text() in said
    with Image.open(tmp_path / 'plot.png') as plot:
        assert len(set(plot.convert('RGB').getdata())) > 20
    assert not list(tmp_path.glob('*part*'))


def test_the_best_checkpoint_is_tested_if_the_training_saves_it(tmp_path):
    """Parts of faces are validated on another split; the validation of street scenes is the test of the papers."""
    last = tmp_path / 'epoch_9.pth'
    for name, expected in (('epoch_9.pth', last), ('best_CIDEr-D_epoch_4.pth', tmp_path / 'best_CIDEr-D_epoch_4.pth')):
        (tmp_path / name).touch()
        for table, saves in (('4.3', True), ('4.2', False)):
            (cfg,) = adapt(next(row for row in read_tables()[table] if not row.test), Protocol(), None)
            assert bool(cfg.default_hooks.checkpoint.save_best) == has_own_test(cfg) == saves
            assert reproduce.chosen(tmp_path, cfg, last) == (expected if saves else last)


@pytest.fixture
def tools(monkeypatch):
    """In place of the tools: notes name, folder, checkpoint and words of each call, and leaves files as it would."""
    calls = []

    def call(run, jobs, name, config, *arguments):
        training = name == 'train.py'
        folder = run.folder if training else Path(arguments[2])
        words = [str(word) for word in arguments]
        calls.append(SimpleNamespace(tool=name, folder=run.folder.name, checkpoint=arguments[0], words=words))
        log = folder / 'time' / ('vis_data/scalars.json' if training else 'metrics.json')
        log.parent.mkdir(parents=True, exist_ok=True)
        scores = {'JF': 0.5, 'CIDEr-D': 40.0, 'accuracy': 1.0}
        lines = [dict(scores, **line, step=step) for step in (2, 10) for line in (dict(loss=1.0, time=0.1), {})]
        log.write_text('\n'.join(map(json.dumps, lines if training else [scores])) + '\n')
        if '--out' in words:
            (folder / 'scores.json').write_text('{"clip": [1, 2]}')
        for name in ('iter_2', 'epoch_2', 'epoch_10', 'best_CIDEr-D_epoch_1') if training else ():
            torch.save({}, folder / f'{name}.pth')
        time.sleep(0.05 * training)  # another one may start meanwhile

    monkeypatch.setattr(runs, 'call', call)
    return calls


def test_a_stage_that_is_another_row_is_trained_once(tools, tmp_path, monkeypatch):
    """Two runs at once: self-critical training waits for the row whose checkpoint it starts from."""
    monkeypatch.setattr(reproduce, 'read_samples', lambda *_: {})
    methods = plan(read_tables()['flickr8k'], Protocol(), None, ['NG-SAN*'])
    write_configs(methods, tmp_path / 'configs', [])
    reproduce.train_all(methods, [3], Machine(jobs=4), Store(tmp_path / 'results.json'))
    first = 'ng-san_small_1xb10-10e_flickr8k_seed-3'
    second = ('ng-san_small_1xb10-scst-2e_flickr8k_seed-3', [f'load_from={tmp_path / first}/best_CIDEr-D_epoch_1.pth'])
    names = ('torch_small', 'san_small', 'ng-san_small')
    trained = [
        (each.folder, [x for x in each.words if x.startswith('load_from')]) for each in tools if each.tool == 'train.py'
    ]
    assert sorted(trained) == sorted([*((f'{name}_1xb10-10e_flickr8k_seed-3', []) for name in names), second])


@pytest.mark.parametrize(('by_unit', 'tests'), [(False, 2), (True, 6)])
def test_rows_that_differ_in_their_test_alone_are_trained_once(by_unit, tests, data, tools, tmp_path):
    """Sparse and dense evaluation of one network, in both stages; each has its own test, and scores by clip."""
    protocol, source = Protocol('davis_2017', 2, small=True), read_data('davis_2017', data['davis_2017'])
    methods = plan(read_tables()['5.4'], protocol, source)
    write_configs(methods, tmp_path / 'configs', [])
    store = Store(tmp_path / 'results.json')
    results = reproduce.train_all(methods, [0], Machine(jobs=2), store, by_unit)
    assert {name for name, _ in results} == {method.name for method in methods}
    assert all(dict(result.samples) == (dict(clip=[1, 2]) if by_unit else {}) for result in results.values())
    assert len(methods) == 6
    trained = [each.folder for each in tools if each.tool == 'train.py']
    assert len(trained) == len({*trained}) == 4
    own = {(f'{method.paths[-1].stem}_seed-0', f'{method.trainings[-1].stem}_seed-0') for method in methods}
    tested = [(each.folder, each.checkpoint.parent.name) for each in tools if each.tool == 'test.py']
    assert {*tested} <= own
    assert {each.checkpoint.name for each in tools if each.tool == 'test.py'} == {'iter_2.pth'}
    assert len(tested) == tests  # without scores of clips, the log of the trained rows has the test


@pytest.mark.parametrize(('table', 'pairs', 'trainings'), [('2.2', {'ETA, oracle': 'ETA'}, 3), ('5.4', {}, 8)])
def test_trainings_are_shared_in_every_stage(table, pairs, trainings, tmp_path):
    """In the papers' protocol: 5.4 has two networks, with and without appearance model, in two stages each."""
    methods = plan(read_tables()[table], Protocol(), None)
    write_configs(methods, tmp_path, [])
    named = {method.name: method for method in methods}
    pairs = pairs or {name: name.replace('sparse', 'dense') for name in ('SST (Grid), sparse', 'SST (Strided), sparse')}
    for name, other in pairs.items():
        assert named[name].trainings == named[other].trainings == named[other].paths
        assert not {*named[name].paths} & {*named[other].paths}
    assert len({path for method in methods for path in method.trainings}) == trainings


def test_a_test_without_scores_of_its_samples_is_repeated_for_them(tools, tmp_path):
    run = runs.Run('CC', 0, tmp_path / 'cc.py', tmp_path / 'cc_seed-0')
    for files in (False, False, True, True):
        found = runs.test(run, 1, tmp_path / 'last.pth', runs.test_folder(run), files=files)
        assert found['accuracy'] == 1
    assert ['--out' in each.words for each in tools] == [False, True]


class Recorder:
    """In place of a run: keeps on which GPU it is, how many are at once on one, and its scores."""

    def __init__(self):
        self.calls, self.now, self.most, self.scores = [], [], 0, {}

    def __call__(self, run, method, by_unit, workers, jobs, store):
        gpu = run.environment['CUDA_VISIBLE_DEVICES']
        self.calls.append((gpu, jobs))
        self.now.append(gpu)
        self.most = max(self.most, self.now.count(gpu))
        time.sleep(0.05)
        self.now.remove(gpu)
        self.scores[run.method, run.seed] = score = 20 + (hash(run.method) % 1000) / 100 + run.seed**2 / 10
        return Result(dict(mIoU=score, aAcc=50.0), 0.5, 100.0)


@pytest.mark.e2e
def test_killed_it_goes_on_and_repeats_nothing(call, data, tmp_path):
    """Through the real tools: killed in the second run, and again without; other settings; a lost validation."""
    arguments = ['3.2', '--dataset', 'camvid', '--rows', 'NL', '--seeds', '0', '1', '--scale', '0.1', '--workers', '0']
    arguments += ['--data-root', data['camvid'], '--work-dir', tmp_path]
    options = dict(env={**os.environ, 'OMP_NUM_THREADS': '1'}, start_new_session=True)
    options |= dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    killed = subprocess.Popen([sys.executable, TOOL, *arguments, '--iters', '12'], **options)
    first, second = (tmp_path / f'nl_r50-d8_4xb2-80k_cityscapes-769x769_seed-{seed}' for seed in (0, 1))
    deadline = time.monotonic() + 280
    while not any(second.glob('iter_*.pth')):
        assert killed.poll() is None, killed.stdout.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.terminate()
    killed.communicate(timeout=60)
    assert killed.returncode != 0
    results = tmp_path / 'results.json'
    assert list(json.loads(results.read_text())['runs'].values()) == [{'0': finished(first)}]
    before = {path: path.stat().st_mtime_ns for path in first.rglob('*')}

    said = call(*arguments, '--iters', 12)
    assert {path: path.stat().st_mtime_ns for path in first.rglob('*')} == before
    commands = re.findall(r'^\$ .*', (second / 'output.log').read_text(), re.M)
    assert ['--resume' in command for command in commands] == [False, True]
    found = json.loads(results.read_text())
    (row,) = found['rows']
    ((config, by_seed),) = found['runs'].items()
    assert row['configs'] == [config]
    for folder, result, metrics in zip((first, second), by_seed.values(), row['seeds'].values(), strict=True):
        assert result == finished(folder)
        assert result['metrics'] == metrics
        assert 0 < result['seconds'] < 60
        assert 50 < result['memory'] < 1e5
    assert row['mean']['mIoU'] == pytest.approx(statistics.mean(r['mIoU'] for r in row['seeds'].values()))
    assert "**Not the paper's protocol**: camvid in place of Cityscapes; 12 iterations of 80,000;" in said

    with pytest.raises(SystemExit, match=r"other settings(.|\n)*-train_cfg.*12(.|\n)*\+train_cfg.*'max_iters': 5"):
        call(*arguments, '--iters', 5)

    # A run in a results.json that was copied from another machine is not trained again; another training is an error.
    (first / 'peak_memory.json').rename(tmp_path / 'peak_memory.json')
    first.rename(tmp_path / 'moved')
    call(*arguments, '--iters', 12)
    assert json.loads(results.read_text()) == found
    assert not first.exists()
    (tmp_path / 'moved').rename(first)
    results.write_text(results.read_text().replace('"steps":12', '"steps":13'))
    with pytest.raises(SystemExit, match=rf'results.json: {config}, seed 0, .*length than 12'):
        call(*arguments, '--iters', 12)

    results.unlink()
    log = next(first.glob('*/vis_data/scalars.json'))
    log.write_text(''.join(f'{line}\n' for line in log.read_text().splitlines() if 'mIoU' not in line))
    # Written when a training has ended, if what waits for it lives on.
    for path in (tmp_path / 'peak_memory.json', second / 'peak_memory.json'):
        path.unlink()
    assert re.search(r'\| – \|$', call(*arguments, '--iters', 12), re.M)
    for result in by_seed.values():
        result['memory'] = None
    del by_seed['0']['curve']
    assert json.loads(results.read_text()) == found
    assert (first / 'test' / 'metrics.json').is_file()


def finished(folder):
    """The run of a work dir, from its logs, and how it differs from the paper's."""
    logs = [path.read_text().splitlines() for path in sorted(folder.glob('*/vis_data/scalars.json'))]
    logs = [[json.loads(line) for line in log] for log in logs]
    (last,) = (line for log in logs for line in log if 'mIoU' in line)
    trained = [[line for line in log if 'loss' in line] for log in logs]
    assert trained[-1][-1]['iter'] == last['step'] == 12
    times = [line['time'] for log in trained for line in log[1:] or log]  # the first includes the start
    return dict(
        steps=12,
        deviations=[
            'camvid in place of Cityscapes',
            '12 iterations of 80,000',
            'ResNet-18 of half the width, heads of 64 channels, trained from scratch by AdamW 0.003',
            'inputs of 36×36',
        ],
        metrics={name: last[name] for name in ('mIoU', 'mAcc', 'aAcc')},
        seconds=statistics.median(times),
        memory=json.loads((folder / 'peak_memory.json').read_text()),
        curve=[[12, round(last['mIoU'], 4)]],
    )


@pytest.mark.parametrize(('steps', 'awaits'), [((2, 4), False), ((2, 4), True), ((2,), False), ((), False)])
def test_a_run_that_stopped_in_its_last_validation_is_not_finished(steps, awaits, tmp_path, monkeypatch):
    """The last checkpoint is written before it. It is resumed; an error names what lacks its validation even then.

    Between the line in the log and the best checkpoint, the last one still awaits the validation.
    """
    log = tmp_path / 'run/20260101_000000/vis_data/scalars.json'
    log.parent.mkdir(parents=True)
    lines = [dict(loss=1.0, time=0.1, step=step) for step in range(1, 5)] + [
        dict(mIoU=0.5, step=step) for step in steps
    ]
    log.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    last = tmp_path / 'run/iter_4.pth'
    torch.save(dict(message_hub=dict(runtime_info=dict(to_resume=dict(validating=awaits)))), last)
    called = []
    monkeypatch.setattr(runs, 'call', lambda run, jobs, tool, *command: called.append(command))
    run = runs.Run('CC', 0, tmp_path / 'config.py', tmp_path / 'run')
    if 4 in steps:
        runs.finish(run, 1, last, 4)
        assert ['--resume' in command for command in called] == [True] * awaits
        return
    with pytest.raises(RuntimeError, match=rf'no validation of it: remove {tmp_path}/run$'):
        runs.finish(run, 1, last, 4)
    assert ['--resume' in command for command in called] == [True]
    runs.finish(run, 1, last)  # the validation is not required


def test_the_reason_is_of_this_call(tmp_path, monkeypatch):
    """An error that an earlier call left in the log is none; the tool may lie in a folder."""
    (tmp_path / 'tools/misc').mkdir(parents=True)
    tool = tmp_path / 'tools/misc/fail.py'
    monkeypatch.setattr(runs, 'config_path', lambda: tmp_path / 'configs')
    run = runs.Run('a', 0, tmp_path / 'a.py', tmp_path / 'run', [], {})
    for line, reason in (('print("fail.py: error: no data")', ': no data'), ('', '')):
        tool.write_text(f'{line}\nraise SystemExit(3)\n')
        with pytest.raises(RuntimeError, match=rf'misc/fail\.py failed with exit code 3{reason}; see'):
            runs.call(run, 1, 'misc/fail.py')
