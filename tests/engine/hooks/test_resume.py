"""A run that was killed and resumed ends as if it had not been: through tools/train.py, in processes really killed."""

import copy
import json
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import mmengine.dataset
import mmseg
import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub, MMLogger
from mmengine.runner import EpochBasedTrainLoop
from torch.utils.data import DataLoader

from mmattn.engine import (
    CheckpointHook,
    DefaultSampler,
    InfiniteSampler,
    SeedAugmentation,
    data_sampling,
    guard_checkpoints,
    latest_checkpoint,
)
from mmattn.engine.data_sampling import SampleIndex, continue_data, find_sampler
from mmattn.engine.hooks import checkpoint as checkpoint_module
from mmattn.engine.hooks.checkpoint import get_rng_state, set_rng_state

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / 'tools/train.py'
MMSEGS_TRAIN = Path(mmseg.__file__).parent / '.mim/tools/train.py'

# Starts trainings as forks of one process that has imported everything once, and does not format configs: the most of a
# short run's time. A job is one line: the command, the environment of each process, the log. The answer is the exit
# codes.
SERVER = """
import gc, json, os, random, runpy, sys
answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)  # for what the imports print
import numpy as np, torch._dynamo, mmengine.config
import mmseg.datasets, mmseg.engine, mmseg.evaluation, mmseg.models, mmseg.visualization
import mmattn.engine, mmattn.segmentation
mmengine.config.config.FormatCode = lambda text, **options: (text, False)
gc.freeze()
for line in sys.stdin:
    job = json.loads(line)
    processes = []
    for environment in job['environments']:
        processes.append(os.fork())
        if processes[-1] == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(job['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            os.dup2(1, 2)
            os.environ.update(environment)
            random.seed(), np.random.seed()  # as a process of its own would have them
            sys.argv = job['command']
            sys.exit(runpy.run_path(sys.argv[0], run_name='__main__') and 0)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]),
          file=answers, flush=True)
"""

# A hook that signals its process and the workers of its data loaders, as a scheduler does, and a transform that notes
# the samples that the pipeline gets.
SABOTAGE = """
import multiprocessing, os, signal, subprocess
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, TRANSFORMS

KILL = os.environ.get('KILL')
SIGNALS = [signal.Signals[name] for name in os.environ.get('SIGNALS', 'SIGKILL').split()]

def kill():
    workers = [str(worker.pid) for worker in multiprocessing.active_children()]
    for number in SIGNALS:
        if number != signal.SIGKILL and workers:  # a worker obeys its parent
            subprocess.run(['kill', f'-{int(number)}', *workers], check=True)
        os.kill(os.getpid(), number)

def write_half(self, obj, filepath):
    with open(filepath, 'wb') as file:
        file.write(obj[:len(obj) // 2])
        file.flush()
        kill()

@HOOKS.register_module()
class Killer(Hook):
    priority = 'LOWEST'

    def after_train_iter(self, runner, *args, **kwargs):
        if KILL == f'step {runner.iter + 1}':
            kill()

    def before_loops(self, runner):
        if KILL == 'loops':
            kill()

    def before_val(self, runner):
        if KILL == f'validation {runner.iter}':
            kill()

    def before_save_checkpoint(self, runner, checkpoint):
        if KILL == f"write {checkpoint['meta']['iter']}":
            LocalBackend.put = write_half

@TRANSFORMS.register_module()
class Note:
    def __call__(self, results):
        index = results['sample_idx']
        with open(os.environ['NOTES'], 'a') as file:
            file.write(f'{getattr(index, "position", None)} {int(index)}\\n')
        return results
"""

CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['sabotage'])
custom_hooks = [dict(type='Killer')]
norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=(32, 32)),
    backbone=dict(base_channels=8),
    decode_head=dict(in_channels=64, channels=16, dropout_ratio=0.3),
    auxiliary_head=dict(in_channels=32, channels=8, dropout_ratio=0.3))
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        pipeline=[
            dict(type='mmattn.SeedAugmentation'),
            dict(type='Note'),
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='RandomCrop', crop_size=(32, 32)),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PhotoMetricDistortion'),
            dict(type='PackSegInputs')
        ]))
train_cfg = dict(max_iters=6, val_interval=2)
default_hooks = dict(checkpoint=dict(interval=4, max_keep_ckpts=-1), logger=dict(interval=1))
"""
# With the hook above, for the trainings of other tests.
KILLED = """
_base_ = './plain.py'
custom_imports = dict(imports=['sabotage'])
custom_hooks = [dict(type='Killer')]
"""
# By epoch, of two iterations each.
EPOCHS = """
_base_ = './config.py'
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=3, val_interval=3)
train_dataloader = dict(sampler=dict(type='mmattn.DefaultSampler'))
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1))
"""
TWO_HOOKS = """
_base_ = './config.py'
custom_hooks = [dict(type='mmattn.CheckpointHook', by_epoch=False, interval=3, filename_tmpl='other_{}.pth')]
"""
STOCK = [
    'default_hooks.checkpoint.type=CheckpointHook',
    'train_dataloader.sampler.type=InfiniteSampler',
    'train_dataloader.dataset.pipeline.0.type=Note',
]


class Trainer:
    """Runs tools/train.py in processes of their own and returns their exit codes; keeps the last log and samples."""

    def __init__(self, folder, environment, *python_path):
        self.folder, self.runs = folder, 0
        (folder / 'sabotage.py').write_text(SABOTAGE)
        base = ROOT / 'configs/bi_cc/bi-cc_r18-d8-half_1xb8-50_buildings-256x256.py'
        (folder / 'epochs.py').write_text(EPOCHS)
        (folder / 'config.py').write_text(CONFIG.format(base=str(base)))
        path = os.pathsep.join(str(part) for part in (*python_path, ROOT, folder))
        self.sockets = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # which killed workers leave behind
        self.server = subprocess.Popen(
            [sys.executable, '-c', SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                **environment,
                'OMP_NUM_THREADS': '1',
                'CUDA_VISIBLE_DEVICES': '',
                'PYTHONPATH': path,
                'TMPDIR': self.sockets.name,
            },
        )

    def __call__(
        self,
        work_dir,
        *options,
        tool=TRAIN,
        config='config.py',
        checkpoint=None,
        resume=False,
        workers=0,
        processes=1,
        kill='',
        signals='SIGKILL',
        signalled=None,
    ):
        self.runs += 1
        log, notes = self.folder / f'{self.runs}.log', self.folder / f'{self.runs}.notes'
        notes.touch()
        command = [
            tool,
            self.folder / config,
            *([checkpoint] if checkpoint else []),  # to test
            '--work-dir',
            work_dir,
            *(['--resume'] if resume else []),
            *(['--launcher', 'pytorch'] if processes > 1 else []),
            '--cfg-options',
            f'train_dataloader.num_workers={workers}',
            f'train_dataloader.persistent_workers={workers > 0}',
            *options,
        ]
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = probe.getsockname()[1]
        shared = dict(NOTES=str(notes), KILL=kill, SIGNALS=signals)
        if processes > 1:
            shared.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE=str(processes))
        ranks = [dict(shared, RANK=str(i), LOCAL_RANK=str(i)) if processes > 1 else shared for i in range(processes)]
        for rank in ranks:
            if signalled not in (None, rank.get('RANK')):
                rank['KILL'] = ''
        job = dict(command=[str(part) for part in command], environments=ranks, log=str(log))
        self.server.stdin.write(f'{json.dumps(job)}\n')
        self.server.stdin.flush()
        codes = json.loads(self.server.stdout.readline())
        self.log = log.read_text()
        self.samples = [line.split() for line in notes.read_text().splitlines()]
        return codes

    def close(self):
        self.server.kill()
        self.server.communicate()
        self.sockets.cleanup()


@pytest.fixture(scope='module')
def train(tiny_data, tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp('trainer'), tiny_data)
    yield trainer
    trainer.close()


@pytest.fixture(scope='module')
def uninterrupted(train, tmp_path_factory):
    """The work dirs of two runs that nothing interrupted, by their number of workers."""
    folders = {workers: tmp_path_factory.mktemp(f'uninterrupted_{workers}') for workers in (0, 3)}
    for workers, folder in folders.items():
        assert train(folder, workers=workers) == [0], train.log
    return folders


def load(path):
    return torch.load(path, map_location='cpu', weights_only=False)


def differences(this, other, name=''):
    """The names of all that is not equal, to the bit, in two nested structures."""
    if isinstance(this, dict | list | tuple):
        assert type(this) is type(other)
        assert len(this) == len(other)
        items = this.items() if isinstance(this, dict) else enumerate(this)
        return [found for key, value in items for found in differences(value, other[key], f'{name}.{key}')]
    equal = torch.equal(this, other) if isinstance(this, torch.Tensor) else np.array_equal(this, other)
    return [] if equal else [name]


def to_resume(checkpoint):
    return checkpoint['message_hub']['runtime_info']['to_resume']


def assert_same_end(folder, other, last='iter_6.pth', others=None):
    this, other = load(folder / last), load(other / (others or last))
    assert len(this['state_dict']) > 100
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert differences(this[part], other[part]) == []
    # `outdated` names the best checkpoints to remove, which an interrupted copy does not have
    states = [{key: x for key, x in to_resume(run).items() if key != 'outdated'} for run in (this, other)]
    assert differences(*states) in ([], ['.validating'])


def interrupted_copy(folder, work_dir, name):
    """Make ``work_dir`` what would be left of ``folder`` if the run had been killed after the checkpoint ``name``."""
    work_dir.mkdir()
    shutil.copy(folder / name, work_dir)
    (work_dir / 'last_checkpoint').write_text(str(work_dir / name))
    return work_dir


@pytest.mark.slow
@pytest.mark.parametrize(('workers', 'kill'), [(0, 'validation 4'), pytest.param(3, 'step 5', marks=pytest.mark.e2e)])
def test_killed_and_resumed(train, uninterrupted, tmp_path, workers, kill):
    """The checkpoint is at 4, no multiple of the workers; with none, the samples are those behind it and no others."""
    assert train(tmp_path, workers=workers, kill=kill) == [-signal.SIGKILL], train.log
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_4.pth')
    assert train(tmp_path, workers=workers, resume=True) == [0], train.log
    assert 'Iter(train) [4/6]' not in train.log
    assert 'Iter(train) [5/6]' in train.log
    if workers == 0:
        assert [int(position) for position, _ in train.samples] == list(range(8, 12))
    assert_same_end(tmp_path, uninterrupted[workers])


@pytest.mark.e2e
def test_two_hooks(train, uninterrupted, tmp_path):
    """Both restore the generators."""
    (train.folder / 'two_hooks.py').write_text(TWO_HOOKS)
    work_dir = interrupted_copy(uninterrupted[0], tmp_path / 'work', 'iter_4.pth')
    assert train(work_dir, config='two_hooks.py', resume=True) == [0], train.log
    assert 'rng_state' not in train.log
    assert_same_end(work_dir, uninterrupted[0])
    assert_same_end(work_dir, uninterrupted[0], 'other_6.pth', 'iter_6.pth')


@pytest.mark.e2e
def test_workers_do_not_matter(uninterrupted):
    assert_same_end(uninterrupted[0], uninterrupted[3])


@pytest.mark.e2e
def test_the_stock_hook_and_sampler_do_not_resume_exactly(train, tmp_path):
    """Else the tests here could not fail."""
    assert train(tmp_path / 'whole', *STOCK) == [0], train.log
    work_dir = interrupted_copy(tmp_path / 'whole', tmp_path / 'resumed', 'iter_4.pth')
    assert train(work_dir, *STOCK, resume=True) == [0], train.log
    this, other = (load(folder / 'iter_6.pth')['state_dict'] for folder in (tmp_path / 'whole', work_dir))
    assert len(differences(this, other)) > 100
    work_dir = interrupted_copy(tmp_path / 'whole', tmp_path / 'by_ours', 'iter_4.pth')
    assert train(work_dir, resume=True) == [0], train.log
    assert "'rng_state' of 0 processes" in train.log


@pytest.mark.e2e
@pytest.mark.parametrize(
    ('config', 'middle', 'last'), [('config.py', 'iter_4', 'iter_6'), ('epochs.py', 'epoch_2', 'epoch_3')]
)
def test_without_a_seed_in_the_config(train, tmp_path, config, middle, last):
    """A resumed process draws another seed, but takes the sampler's from the checkpoint; by iteration and by epoch."""
    options = dict(config=config, workers=3)
    assert train(tmp_path / 'whole', 'randomness.seed=None', **options) == [0], train.log
    work_dir = interrupted_copy(tmp_path / 'whole', tmp_path / 'resumed', f'{middle}.pth')
    assert train(work_dir, 'randomness.seed=None', resume=True, **options) == [0], train.log
    assert_same_end(work_dir, tmp_path / 'whole', f'{last}.pth')


@pytest.mark.e2e
def test_killed_while_writing_the_only_checkpoint(train, uninterrupted, tmp_path):
    options = ['default_hooks.checkpoint.max_keep_ckpts=1', 'default_hooks.checkpoint.interval=2']
    assert train(tmp_path, *options, kill='write 4') == [-signal.SIGKILL], train.log
    assert {path.name for path in tmp_path.glob('iter_*')} == {'iter_2.pth'}
    assert [path.name[:8] for path in tmp_path.glob('.*.part*')] == ['.iter_4.']
    assert train(tmp_path, *options, resume=True) == [0], train.log
    assert 'Iter(train) [3/6]' in train.log
    best = load(tmp_path / 'iter_6.pth')['message_hub']['runtime_info']['best_ckpt']
    left = {path for path in tmp_path.iterdir() if path.suffix == '.pth'}  # the other part is gone, too
    assert left == {tmp_path / 'iter_6.pth', Path(best)}
    assert_same_end(tmp_path, uninterrupted[0])


@pytest.mark.e2e
def test_a_truncated_checkpoint_is_passed_over(train, uninterrupted, tmp_path):
    """By mmseg's own train.py, too."""
    work_dir = interrupted_copy(uninterrupted[0], tmp_path / 'work', 'iter_4.pth')
    (work_dir / 'iter_6.pth').write_bytes((uninterrupted[0] / 'iter_6.pth').read_bytes()[:-1000])
    (work_dir / 'last_checkpoint').write_text(str(work_dir / 'iter_6.pth'))
    assert train(work_dir, tool=MMSEGS_TRAIN, resume=True) == [0], train.log
    assert f'missing or truncated: resuming from {work_dir}/iter_4.pth' in train.log
    assert_same_end(work_dir, uninterrupted[0])


@pytest.mark.e2e
def test_two_processes(train, tmp_path):
    """Each with random numbers of its own."""
    options = dict(processes=2, workers=1)
    assert train(tmp_path / 'whole', 'randomness.diff_rank_seed=True', **options) == [0, 0], train.log
    work_dir = tmp_path / 'resumed'
    assert train(work_dir, 'randomness.diff_rank_seed=True', kill='step 5', **options) == [-signal.SIGKILL] * 2
    assert train(work_dir, 'randomness.diff_rank_seed=True', resume=True, **options) == [0, 0], train.log
    assert_same_end(work_dir, tmp_path / 'whole')
    first, second = to_resume(load(work_dir / 'iter_6.pth'))['rng_state']
    assert differences(first, second)


@pytest.mark.e2e
def test_the_original_mmengine(original_mmengine, tiny_data, tmp_path):
    """It loads its own checkpoints, mIoU and all, resumes exactly, and skips the data trained on without loading it."""
    train = Trainer(tmp_path, tiny_data, original_mmengine)
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    assert train(whole, workers=3) == [0], train.log
    assert 'mmengine: 0.10.7' in train.log.lower()
    assert train(killed, workers=3, kill='step 5') == [-signal.SIGKILL], train.log
    assert train(killed, workers=3, resume=True) == [0], train.log
    assert_same_end(killed, whole)
    work_dir = interrupted_copy(whole, tmp_path / 'resumed', 'iter_4.pth')
    assert train(work_dir, resume=True) == [0], train.log
    assert [int(position) for position, _ in train.samples] == list(range(8, 12))
    assert_same_end(work_dir, whole)
    train.close()


@pytest.mark.slow
def test_safe_globals(uninterrupted):
    """What the original mmengine's loading of a checkpoint, a plain `torch.load`, lacks."""
    path = uninterrupted[0] / 'iter_6.pth'
    torch.serialization.clear_safe_globals()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    guard_checkpoints()
    assert isinstance(torch.load(path, weights_only=True)['message_hub']['runtime_info']['best_score'], np.float32)


def checkpoints(folder, *names):
    for age, name in enumerate(names):
        torch.save(dict(meta={}), folder / name)
        os.utime(folder / name, (age, age))


@pytest.mark.parametrize(
    ('named', 'expected'),
    [
        ('iter_2.pth', 'iter_2.pth'),
        ('iter_8.pth', 'iter_4.pth'),  # gone
        ('iter_6.pth', 'iter_4.pth'),  # truncated
        ('', 'iter_4.pth'),
        (None, 'iter_4.pth'),
        ('../old/iter_10.pth', 'iter_10.pth'),  # of a work dir that was copied
    ],
)
def test_the_latest_checkpoint(tmp_path, named, expected):
    new, old = tmp_path / 'new', tmp_path / 'old'
    for folder in (new, old):
        folder.mkdir()
        checkpoints(folder, 'iter_10.pth', 'iter_2.pth', 'iter_4.pth', 'best_mIoU_iter_4.pth', 'iter_4-0a1b2c3d.pth')
    (new / 'iter_6.pth').write_bytes((new / 'iter_2.pth').read_bytes()[:-1])
    if named is not None:
        (new / 'last_checkpoint').write_text(os.path.normpath(new / named) if named else '')
    assert latest_checkpoint(new) == str(new / expected)
    shutil.rmtree(old)
    assert latest_checkpoint(new) == str(new / expected)


def test_no_checkpoint_to_resume_from(tmp_path):
    assert latest_checkpoint(tmp_path / 'not there yet') is None
    checkpoints(tmp_path, 'best_mIoU_iter_4.pth')
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_6.pth'))
    with pytest.raises(FileNotFoundError, match=r'last_checkpoint names .*iter_6\.pth, which is missing or truncated'):
        latest_checkpoint(tmp_path)


@pytest.mark.parametrize('sound', [True, False])
def test_a_folder_is_checked_before_a_strategy_resumes_from_it(tmp_path, sound):
    """DeepSpeed reads it by itself."""
    folder = tmp_path / 'iter_4.pth'
    folder.mkdir()
    torch.save(dict(module={}), folder / 'mp_rank_00_model_states.pt')
    if not sound:
        (folder / 'zero_pp_rank_0_optim_states.pt').write_text('no weights')
    (tmp_path / 'last_checkpoint').write_text(str(folder))
    runner = fake_runner(tmp_path, f'folder {sound}')
    runner._resume, runner._load_from = True, None
    hook = CheckpointHook(by_epoch=False, interval=2)
    with nullcontext() if sound else pytest.raises(ValueError, match=r'iter_4\.pth.*zero_pp_rank_0_optim_states\.pt'):
        hook.before_loops(runner)
    assert runner._load_from == (str(folder) if sound else None)


@pytest.mark.every_case
@pytest.mark.parametrize('device', [True, False])
@pytest.mark.parametrize('stored', [True, False])
def test_the_generator_of_a_gpu_is_stored_and_set_if_there_is_one(monkeypatch, device, stored):
    """By stand-ins for those of CUDA."""
    numbers, restored = torch.arange(5, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: stored)
    monkeypatch.setattr(torch.cuda, 'get_rng_state', lambda: numbers)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: device)
    monkeypatch.setattr(torch.cuda, 'set_rng_state', restored.append)
    state = get_rng_state()
    assert state['cuda'] is (numbers if stored else None)
    drawn = [(random.random(), np.random.rand(), torch.rand(()).item()) for _ in range(2) if not set_rng_state(state)]
    assert drawn[0] == drawn[1]
    assert [x.tolist() for x in restored] == [[0, 1, 2, 3, 4]] * 2 * (device and stored)


@pytest.mark.parametrize(('iteration', 'expected'), [(5, 4), (4, 4), (7, 7), (0, 0)])
def test_flexible_runner_goes_back_to_where_it_saved(iteration, expected):
    """Its strategies that call no hooks, DeepSpeed's, resume one iteration late; what is older is left alone."""
    hub = MessageHub(f'flexible {iteration}')
    if iteration:
        hub.update_info('to_resume', dict(epoch=0, iter=4))
    loop = SimpleNamespace(_epoch=0, _iter=iteration)
    runner = SimpleNamespace(_resume=True, _load_from='here', message_hub=hub, train_loop=loop, iter=iteration)
    CheckpointHook(by_epoch=False, interval=2).before_run(runner)
    assert loop._iter == expected


def fake_runner(folder, name, seen=None, **info):
    """A runner that writes empty checkpoints, notes those that are there before, and starts with this information."""

    def save(out_dir, filename, *args, **kwargs):
        if seen is not None:
            seen.append({path.name for path in folder.glob('*.pth')})
        Path(out_dir, filename).touch()

    hub = MessageHub(name)
    for key, value in info.items():
        hub.update_info(key, value)
    return SimpleNamespace(
        work_dir=str(folder),
        logger=MMLogger.get_current_instance(),
        message_hub=hub,
        train_dataloader=SimpleNamespace(batch_sampler=SimpleNamespace(sampler=None)),
        train_loop=SimpleNamespace(),
        hooks=[],
        save_checkpoint=save,
        epoch=0,
        iter=0,
        max_iters=9,
    )


def start(hook, runner):
    """Register the hook, and start the training."""
    runner.hooks.append(hook)
    hook.before_train(runner)


def validate(hook, runner, score):
    hook.before_val(runner)
    hook.after_val_epoch(runner, dict(mIoU=score))
    hook.after_val(runner)


def test_old_checkpoints_are_removed_when_the_new_one_is_written(tmp_path):
    seen = []
    runner = fake_runner(tmp_path, 'old checkpoints', seen)
    hook = CheckpointHook(by_epoch=False, interval=2, max_keep_ckpts=1, save_best='mIoU')
    start(hook, runner)
    for runner.iter, score in enumerate((10.0, 5.0, 20.0)):
        validate(hook, runner, score)
    assert seen == [set(), {'best_mIoU_iter_0.pth'}]
    assert {path.name for path in tmp_path.glob('*.pth')} == {'best_mIoU_iter_2.pth'}
    for runner.iter in (3, 5):
        hook.after_train_iter(runner, runner.iter)
    assert seen[2:] == [{'best_mIoU_iter_2.pth'}, {'best_mIoU_iter_2.pth', 'iter_4.pth'}]
    assert {path.name for path in tmp_path.glob('*.pth')} == {'best_mIoU_iter_2.pth', 'iter_6.pth'}


def note_warnings(runner):
    warnings = []
    runner.logger = SimpleNamespace(warning=warnings.append, info=lambda _: None)
    return warnings


@pytest.mark.parametrize('iteration', [0, 3])
def test_checkpoints_of_an_earlier_run_are_a_warning_unless_it_goes_on(tmp_path, iteration):
    names = [f'iter_{number}.pth' for number in (20, 4, 16, 8)] + ['best_mIoU_iter_16.pth', 'iter_4.pth.txt', 'x.pth']
    checkpoints(tmp_path, *names)
    runner = fake_runner(tmp_path, f'earlier {iteration}')
    loader = DataLoader(range(6), sampler=InfiniteSampler(range(6)))
    runner.iter, runner.world_size, runner.val_loop, runner.train_dataloader = iteration, 1, None, loader
    runner.train_loop = SimpleNamespace(dataloader=loader, dataloader_iterator=None, iter=iteration)
    warnings = note_warnings(runner)
    start(CheckpointHook(by_epoch=False, interval=2), runner)
    said = [text for text in warnings if 'earlier run' in text]
    assert len(said) == (iteration == 0)
    assert all(f'{tmp_path} ' in text and 'best_mIoU_iter_16.pth, iter_16.pth, iter_20.pth,' in text for text in said)
    assert all('2 more' in text and 'x.pth' not in text for text in said)


def test_training_steps_share_one_sequence_of_random_numbers(tmp_path):
    """What a validation draws between two steps does not change it."""
    runner = fake_runner(tmp_path, 'steps')
    hook = CheckpointHook(by_epoch=False, interval=9)
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    start(hook, runner)
    found = []
    for step in range(3):
        torch.rand(5)
        hook.before_train_iter(runner, step)
        found.append(torch.rand(()).item())
        hook.after_train_iter(runner, step)
    assert found == expected


@pytest.mark.parametrize('processes', [1, 2])
def test_a_checkpoint_of_another_number_of_processes_is_a_warning(tmp_path, processes):
    """The random numbers of the checkpoint then go on in no process."""
    loader = DataLoader(range(6), sampler=InfiniteSampler(range(6)))
    states = [dict(python=number) for number in range(processes)]
    resumed = dict(iter=2, rng_state=states, batches_done=1, sampler_seed=7)
    runner = fake_runner(tmp_path, f'processes {processes}', to_resume=resumed)
    runner.iter, runner.world_size, runner.rank, runner.val_loop, runner.train_dataloader = 2, 1, 0, None, loader
    runner.train_loop = SimpleNamespace(dataloader=loader, dataloader_iterator=None, iter=2)
    hook = CheckpointHook(by_epoch=False, interval=2)
    warnings = note_warnings(runner)
    start(hook, runner)
    assert loader.sampler.seed == 7
    assert (hook._rng_state is states[0]) == (processes == 1)
    said = [text for text in warnings if 'rng_state' in text]
    assert len(said) == (processes == 2)
    assert all('2 processes' in text and 'has 1:' in text for text in said)


@pytest.mark.parametrize(('iteration', 'validating', 'said'), [(9, False, '9'), (9, True, ''), (8, False, '')])
def test_a_run_goes_on_at_its_end_with_an_interrupted_validation_or_not_at_all(tmp_path, iteration, validating, said):
    resumed = dict(iter=iteration, rng_state=[{}], batches_done=0, sampler_seed=7, validating=validating)
    runner = fake_runner(tmp_path, f'end {iteration} {validating}', to_resume=resumed)
    loader, validated = DataLoader(range(6), sampler=InfiniteSampler(range(6))), []
    runner.iter, runner.world_size, runner.rank, runner.train_dataloader = iteration, 1, 0, loader
    runner.train_loop = SimpleNamespace(dataloader=loader, dataloader_iterator=None, iter=iteration)
    runner.val_loop = SimpleNamespace(run=lambda: validated.append(1))
    warnings = note_warnings(runner)
    start(CheckpointHook(by_epoch=False, interval=2), runner)
    assert len(validated) == validating
    assert [text for text in warnings if 'Nothing is trained' in text and f' {iteration},' in text] == warnings
    assert len(warnings) == bool(said)


def test_a_checkpoint_removes_no_file_of_another_folder(tmp_path):
    foreign, beside, own = tmp_path / 'iter_1.pth', tmp_path / 'iter_3.pth', tmp_path / 'run' / 'iter_2.pth'
    own.parent.mkdir()
    for path in (foreign, beside, own):
        path.touch()
    names = [str(foreign), '../iter_3.pth', 'iter_2.pth']
    resumed = dict(iter=4, rng_state=[{}], batches_done=0, sampler_seed=7, outdated=names)
    runner = fake_runner(own.parent, 'foreign', to_resume=resumed)
    loader = DataLoader(range(6), sampler=InfiniteSampler(range(6)))
    runner.iter, runner.world_size, runner.rank, runner.val_loop, runner.train_dataloader = 4, 1, 0, None, loader
    runner.train_loop = SimpleNamespace(dataloader=loader, dataloader_iterator=None, iter=4)
    start(CheckpointHook(by_epoch=False, interval=2), runner)
    assert [path.exists() for path in (foreign, beside, own)] == [True, True, False]


@pytest.mark.parametrize('ours', [False, True])
def test_a_sampler_that_cannot_go_on_is_a_warning(tmp_path, ours):
    resumed = dict(iter=2, rng_state=[{}], batches_done=0)
    runner = fake_runner(tmp_path, f'sampler {ours}', to_resume=resumed)
    sampler = InfiniteSampler(range(6)) if ours else torch.utils.data.SequentialSampler(range(6))
    loader = DataLoader(range(6), sampler=sampler)
    runner.iter, runner.world_size, runner.rank, runner.val_loop, runner.train_dataloader = 2, 1, 0, None, loader
    runner.train_loop = SimpleNamespace(dataloader=loader, dataloader_iterator=None, iter=2)
    warnings = note_warnings(runner)
    start(CheckpointHook(by_epoch=False, interval=2), runner)
    assert len(warnings) == (not ours)
    assert all('SequentialSampler' in text for text in warnings)


@pytest.mark.parametrize(
    ('kept', 'in_parts', 'main', 'left'),
    [(2, False, True, {6, 9}), (2, True, True, {6, 9}), (-1, False, True, {1, 3, 6, 9})]
    + [(2, in_parts, False, {1, 6, 9}) for in_parts in (True, False)],
)
def test_a_resumed_run_removes_the_checkpoint_of_a_signal_when_it_writes_the_next(
    tmp_path, monkeypatch, kept, in_parts, main, left
):
    """Unless all are kept. A strategy may write a folder. The main process alone removes."""
    states = []
    monkeypatch.setattr(checkpoint_module, 'is_main_process', lambda: main)

    def started(iteration, **info):
        runner = fake_runner(tmp_path, f'extra {kept} {in_parts} {main} {iteration}', **info)

        def save(out_dir, filename, *_, **__):
            states.append(runner.message_hub.get_info('to_resume'))
            path = Path(out_dir, filename)
            path.mkdir(exist_ok=True) if in_parts else path.touch()

        runner.save_checkpoint, runner.iter, runner.world_size, runner.rank, runner.val_loop = (
            save,
            iteration,
            1,
            0,
            None,
        )
        loader = DataLoader(range(6), sampler=InfiniteSampler(range(6)))
        runner.train_dataloader = loader
        runner.train_loop = SimpleNamespace(dataloader=loader, dataloader_iterator=None, iter=iteration)
        hook = CheckpointHook(by_epoch=False, interval=3, max_keep_ckpts=kept)
        start(hook, runner)
        return runner, hook

    runner, hook = started(0)
    runner.iter = 1
    hook.save_now(runner)
    if main:
        hook._lock.close()  # the process ends
    state = dict(states[0], iter=1, rng_state=[{}])
    assert state['extra'] == ('iter_1.pth' if kept > 0 else '')
    runner, hook = started(1, to_resume=state)
    for runner.iter in range(1, 9):
        hook.after_train_iter(runner, runner.iter)
    assert {path.name for path in tmp_path.glob('*.pth')} == {f'iter_{number}.pth' for number in left}


def test_a_checkpoint_out_of_turn_replaces_no_regular_one(tmp_path):
    runner = fake_runner(tmp_path, 'out of turn')
    hook = CheckpointHook(by_epoch=False, interval=2, max_keep_ckpts=1)
    start(hook, runner)
    runner.iter = 1
    hook.after_train_iter(runner, 1)
    for runner.iter, left in ((3, {2, 3}), (4, {3, 4})):
        hook.save_now(runner)
        assert {path.name for path in tmp_path.glob('*.pth')} == {f'iter_{number}.pth' for number in left}


@pytest.mark.parametrize('named', [False, True])
def test_a_full_disk_names_what_was_written(tmp_path, named):
    runner = fake_runner(tmp_path, f'full {named}')
    hook = CheckpointHook(by_epoch=False, interval=3)
    start(hook, runner)

    def fail(*_, **__):
        raise OSError(28, 'No space left', *(['iter_3.pth'] if named else []))

    runner.save_checkpoint, runner.iter = fail, 2
    with pytest.raises(OSError, match='No space left') as caught:
        hook.after_train_iter(runner, runner.iter)
    assert caught.value.filename == ('iter_3.pth' if named else str(tmp_path / 'last_checkpoint'))
    assert caught.value.errno == 28


def test_names_of_checkpoints_may_have_a_format(tmp_path):
    """Also of one within an epoch; and a dot in the name is no other letter."""
    runner = fake_runner(tmp_path, 'formats')
    hook = CheckpointHook(by_epoch=True, interval=1, filename_tmpl='epoch_{:03d}.pth')
    start(hook, runner)
    runner.epoch, runner.iter = 1, 30
    hook.after_train_iter(runner, 4)
    hook.save_now(runner)
    assert [path.name for path in tmp_path.glob('*.pth')] == ['epoch_001_iter_30.pth']
    (tmp_path / 'last_checkpoint').unlink()
    checkpoints(tmp_path, 'epoch_001_iter_30.pth')
    checkpoints(tmp_path, 'epoch_002_pth')
    assert latest_checkpoint(tmp_path, 'epoch_{:03d}.pth') == str(tmp_path / 'epoch_001_iter_30.pth')


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    hook = CheckpointHook(by_epoch=False, interval=2)
    start(hook, fake_runner(tmp_path, 'run that holds its folder'))
    code = f'from mmattn.utils.files import hold; hold({str(tmp_path)!r})'
    other = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert f"in use by another run: '{tmp_path}'" in other.stderr


@pytest.mark.parametrize(('rank', 'world_size'), [(0, 1), (1, 3)])
def test_samplers(monkeypatch, rank, world_size):
    """The stock order, the positions of the stream that the processes share, and skipping."""
    monkeypatch.setattr(mmengine.dataset.sampler, 'get_dist_info', lambda: (rank, world_size))
    data = range(7)
    stock, ours = (list(islice(kind(data, seed=3), 30)) for kind in (mmengine.dataset.InfiniteSampler, InfiniteSampler))
    assert ours == stock
    assert [(index.position, index.seed) for index in ours] == [(rank + i * world_size, 3) for i in range(30)]
    sampler = InfiniteSampler(data, seed=3)
    sampler.skip(11)
    skipped = list(islice(sampler, 19))
    assert [(index, index.position) for index in skipped] == [(index, index.position) for index in ours[11:]]
    stock, ours = (kind(data, seed=3) for kind in (mmengine.dataset.DefaultSampler, DefaultSampler))
    for epoch in range(2):
        stock.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(stock)
        first = epoch * (7 if world_size == 1 else 9) + rank
        assert [index.position for index in ours] == [first + i * world_size for i in range(len(ours))]


@pytest.mark.parametrize(
    'move',
    [lambda index: pickle.loads(pickle.dumps(index)), copy.deepcopy, lambda index: (index - 3) % 7],
    ids=['pickle', 'deepcopy', 'data set wrappers'],
)
def test_an_index_keeps_its_position(move):
    index = move(SampleIndex(5, 11, 42))
    assert index in (2, 5)
    assert (index.position, index.seed) == (11, 42)


def draw(transform, index):
    transform(dict(sample_idx=index))
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_seed_augmentation():
    """Position and seed decide, the index does not; a replacement of a rejected sample goes on where that one was."""
    seed = SeedAugmentation()
    indices = SampleIndex(0, 5, 1), 3, SampleIndex(0, 5, 2), SampleIndex(0, 6, 1), SampleIndex(2, 5, 1), 4
    expected, replacement, *others, again, replaced_again = (draw(seed, index) for index in indices)
    assert (again, replaced_again) == (expected, replacement)
    assert len({*expected, *replacement, *others[0], *others[1]}) == 12


def test_a_worker_tells_the_sampler_that_it_needs(monkeypatch):
    """Until it has met one: an index of another kind then replaces a rejected sample."""
    monkeypatch.setattr(data_sampling, 'get_worker_info', object)
    seed = SeedAugmentation()
    with pytest.raises(TypeError, match=r'sampler\.type'):
        draw(seed, 3)
    draw(seed, SampleIndex(0, 5, 1))
    draw(seed, 3)


@pytest.mark.slow
@pytest.mark.parametrize('index', [3, None])
def test_without_one_of_our_samplers(index):
    """An index of the user's own seeds nothing; a worker tells the sampler that it needs."""
    states = []
    for _ in range(2):
        random.seed(0)
        states.append(draw(SeedAugmentation(), index)[0])
    assert states == [random.Random(0).random()] * 2
    samples = dict.fromkeys(range(2), index)
    loader = DataLoader(samples, num_workers=1, collate_fn=lambda batch: SeedAugmentation()(dict(sample_idx=batch[0])))
    with pytest.raises(TypeError, match=r"sampler.type='mmattn.InfiniteSampler'[^$]* got (int 3|NoneType None)"):
        next(iter(loader))


class Rectangles(torch.utils.data.Dataset):
    """Seven wide and seven tall images, as mmdet's sampler by aspect ratio asks for."""

    def __len__(self):
        return 14

    def get_data_info(self, index):
        return dict(width=2 + index % 2, height=2 + (index + 1) % 2)


@pytest.mark.parametrize('sampler_class', [DefaultSampler, InfiniteSampler])
def test_the_sampler_behind_a_batch_sampler_is_found(sampler_class):
    """By epoch its seed is the interrupted run's again; an infinite one behind a batch sampler cannot go on."""
    from mmdet.datasets import AspectRatioBatchSampler

    def loop(seed):
        sampler = sampler_class(Rectangles(), shuffle=True, seed=seed)
        loader = DataLoader(Rectangles(), batch_sampler=AspectRatioBatchSampler(sampler, 2))
        return SimpleNamespace(dataloader=loader, iter=3)

    first, resumed = loop(5), loop(6)
    assert find_sampler(first.dataloader).seed == 5
    went_on = continue_data(resumed, find_sampler(first.dataloader).seed)
    assert went_on == (sampler_class is DefaultSampler)
    if went_on:
        assert list(resumed.dataloader.batch_sampler) == list(first.dataloader.batch_sampler)
        assert list(loop(6).dataloader.batch_sampler) != list(first.dataloader.batch_sampler)


class Batches(torch.utils.data.BatchSampler):
    """Counts the batches that it skips, as ours by tokens do."""

    infinite, skipped = True, 0

    def skip(self, count):
        self.skipped += count

    def __iter__(self):
        yield from ([number] for number in range(self.skipped, 100))


@pytest.mark.parametrize('counts_batches', [False, True])
@pytest.mark.parametrize('skips', [False, True])
def test_an_infinite_loop_goes_on_where_it_was(counts_batches, skips):
    """mmengine skips batches by itself in some versions, and takes one for each earlier iteration in others."""

    def loop(seed):
        sampler = InfiniteSampler(range(7), shuffle=True, seed=seed)
        options = (
            dict(batch_sampler=Batches(sampler, 2, False)) if counts_batches else dict(sampler=sampler, batch_size=2)
        )
        loader = DataLoader(torch.arange(100), **options)
        iterator = SimpleNamespace(skip_iter=None) if skips else None
        return SimpleNamespace(dataloader=loader, dataloader_iterator=iterator, iter=3)

    first, kept, resumed = loop(5), loop(6), loop(6)
    assert continue_data(resumed, 5)
    assert continue_data(kept, None)
    assert [find_sampler(each.dataloader).seed for each in (first, kept, resumed)] == [5, 6, 5]
    batches = resumed.dataloader_iterator
    if skips and not counts_batches:
        assert batches.skip_iter is None  # as it was
        batches = iter(resumed.dataloader)
    if not skips:
        assert [next(batches) for _ in range(3)] == [None] * 3
    found = [batch.tolist() for batch in islice(batches, 4)]
    assert found == ([[3], [4], [5], [6]] if counts_batches else [x.tolist() for x in islice(first.dataloader, 3, 7)])


class StartedLoop(EpochBasedTrainLoop):
    """A loop by epoch that has trained on some batches, and notes those that it is given."""

    def __init__(self, loader, epoch):
        self.dataloader, self._epoch, self._iter, self.seen = loader, epoch, 0, []

    def run_iter(self, idx, batch):
        self.seen.append((idx, batch.tolist()))

    def run_rest(self):
        for idx, batch in enumerate(self.dataloader):
            self.run_iter(idx, batch)
        self._epoch += 1


@pytest.mark.parametrize('batches_done', [0, 2])
def test_a_resumed_epoch_has_its_other_batches_and_the_next_has_all(batches_done):
    def started(seed):
        sampler = DefaultSampler(range(7), shuffle=True, seed=seed)
        sampler.set_epoch(3)
        return StartedLoop(DataLoader(torch.arange(7), batch_size=2, sampler=sampler), epoch=3)

    first, resumed = started(5), started(6)
    assert continue_data(resumed, 5, batches_done)
    assert len(resumed.dataloader) == 4  # which progress is counted by
    first.run_rest()
    resumed.run_rest()
    assert resumed.seen == first.seen[batches_done:]
    del first.seen[:], resumed.seen[:]
    first.run_rest()
    resumed.run_rest()
    assert resumed.seen == first.seen
    assert [idx for idx, _ in resumed.seen] == [0, 1, 2, 3]
