"""CheckpointHook and latest_checkpoint: which file is written, kept, removed and resumed from."""

import os
import random
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from torch.utils.data import DataLoader, SequentialSampler

from mmattn.engine import CheckpointHook, InfiniteSampler, latest_checkpoint
from mmattn.engine.hooks import checkpoint as checkpoint_module
from mmattn.engine.hooks.checkpoint import get_rng_state, set_rng_state


def checkpoints(folder, *names):
    for age, name in enumerate(names):
        torch.save(dict(meta={}), folder / name)
        os.utime(folder / name, (age, age))


def left(folder):
    return {path.name.removeprefix('iter_').removesuffix('.pth') for path in folder.glob('*.pth')}


@pytest.mark.parametrize(
    ('named', 'expected'),
    [
        ('iter_2.pth', 'iter_2.pth'),
        ('iter_8.pth', 'iter_10.pth'),  # gone
        ('iter_6.pth', 'iter_10.pth'),  # truncated
        ('', 'iter_10.pth'),
        (None, 'iter_10.pth'),
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
    with pytest.raises(FileNotFoundError, match=r'last_checkpoint .*iter_6\.pth'):
        latest_checkpoint(tmp_path)


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
    hub = MessageHub('flexible')
    if iteration:
        hub.update_info('to_resume', dict(epoch=0, iter=4))
    loop = SimpleNamespace(_epoch=0, _iter=iteration)
    runner = SimpleNamespace(_resume=True, _load_from='here', message_hub=hub, train_loop=loop, iter=iteration)
    CheckpointHook(by_epoch=False, interval=2).before_run(runner)
    assert loop._iter == expected


class FakeRunner(SimpleNamespace):
    """Writes empty checkpoints, and notes the files before each, its state, and its warnings.

    After some iterations it has what a checkpoint of them holds, or ``resumed`` in it.
    """

    def __init__(self, folder, iteration=0, sampler=None, **resumed):
        self.work_dir, self.folder, self.written, self.warnings = str(folder), folder, [], []
        self.epoch, self.iter, self.max_iters, self.world_size, self.rank = 0, iteration, 9, 1, 0
        self.logger = SimpleNamespace(warning=self.warnings.append, info=lambda _: None)
        self.message_hub, self.hooks, self.val_loop = MessageHub('runner'), [], None
        self.train_dataloader = DataLoader(range(6), sampler=sampler or InfiniteSampler(range(6)))
        self.train_loop = SimpleNamespace(dataloader=self.train_dataloader, dataloader_iterator=None, iter=iteration)
        if iteration:
            state = dict(iter=iteration, rng_state=[{}], batches_done=0, sampler_seed=7)
            self.message_hub.update_info('to_resume', state | resumed)

    def save_checkpoint(self, out_dir, filename, *args, **kwargs):
        self.written.append((left(self.folder), self.message_hub.get_info('to_resume')))
        Path(out_dir, filename).touch()

    def start(self, **options):
        hook = CheckpointHook(**{'by_epoch': False, 'interval': 2, **options})
        self.hooks.append(hook)
        hook.before_train(self)
        return hook


@pytest.mark.parametrize('sound', [True, False])
def test_a_folder_is_checked_before_a_strategy_resumes_from_it(tmp_path, sound):
    """DeepSpeed reads it by itself."""
    folder = tmp_path / 'iter_4.pth'
    folder.mkdir()
    torch.save(dict(module={}), folder / 'mp_rank_00_model_states.pt')
    if not sound:
        (folder / 'zero_pp_rank_0_optim_states.pt').write_text('no weights')
    (tmp_path / 'last_checkpoint').write_text(str(folder))
    runner = FakeRunner(tmp_path)
    runner._resume, runner._load_from = True, None
    with nullcontext() if sound else pytest.raises(ValueError, match=r'iter_4\.pth.*zero_pp_rank_0_optim_states\.pt'):
        CheckpointHook(by_epoch=False, interval=2).before_loops(runner)
    assert runner._load_from == (str(folder) if sound else None)


def test_old_checkpoints_are_removed_when_the_new_one_is_written(tmp_path):
    runner = FakeRunner(tmp_path)
    hook = runner.start(max_keep_ckpts=1, save_best='mIoU')
    for runner.iter, score in enumerate((10.0, 5.0, 20.0)):
        hook.before_val(runner)
        hook.after_val_epoch(runner, dict(mIoU=score))
        hook.after_val(runner)
    first, last = ('best_mIoU_iter_0', 'best_mIoU_iter_2')
    assert left(tmp_path) == {last}
    for runner.iter in (3, 5):
        hook.after_train_iter(runner, runner.iter)
    assert [files for files, _ in runner.written] == [set(), {first}, {last}, {last, '4'}]
    assert left(tmp_path) == {last, '6'}


def test_a_best_checkpoint_alone_is_not_to_be_resumed(tmp_path):
    checkpoints(tmp_path, 'best_mIoU_iter_16.pth')
    runner = FakeRunner(tmp_path)
    runner.start()
    assert ['load_from' in text and '--resume' not in text for text in runner.warnings] == [True]


@pytest.mark.parametrize(
    ('iteration', 'sampler', 'resumed', 'named'),
    [
        (0, None, {}, '{0} .*best_mIoU_iter_16.pth, iter_16.pth, iter_20.pth,.* 2 '),  # of another run
        (3, None, {}, ''),
        (2, None, dict(rng_state=[{}, {}]), 'rng_state.* 2 .* 1'),  # of other processes
        (2, SequentialSampler(range(6)), {}, 'SequentialSampler'),  # which cannot go on
        (9, None, {}, ' 9,'),  # nothing is trained
        (9, None, dict(validating=True), ''),  # but an interrupted validation is repeated
        (8, None, {}, ''),
    ],
)
def test_a_run_is_told_once_what_will_not_be_as_it_was(tmp_path, iteration, sampler, resumed, named):
    names = [f'iter_{number}.pth' for number in (20, 4, 16, 8)] + ['best_mIoU_iter_16.pth', 'iter_4.pth.txt', 'x.pth']
    checkpoints(tmp_path, *names)
    runner, validated = FakeRunner(tmp_path, iteration, sampler, **resumed), []
    runner.val_loop = SimpleNamespace(run=lambda: validated.append(1))
    hook = runner.start()
    assert [bool(re.search(named.format(re.escape(str(tmp_path))), text)) for text in runner.warnings] == [True] * bool(
        named
    )
    assert 'x.pth' not in str(runner.warnings)
    assert len(validated) == ('validating' in resumed)
    if iteration:
        assert (hook._rng_state == {}) == ('rng_state' not in resumed)
        assert sampler or runner.train_dataloader.sampler.seed == 7


def test_training_steps_share_one_sequence_of_random_numbers(tmp_path):
    """What a validation draws between two steps does not change it."""
    runner = FakeRunner(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(3).tolist()
    torch.manual_seed(3)
    hook, found = runner.start(interval=9), []
    for step in range(3):
        torch.rand(5)
        hook.before_train_iter(runner, step)
        found.append(torch.rand(()).item())
        hook.after_train_iter(runner, step)
    assert found == expected


def test_a_checkpoint_removes_no_file_of_another_folder(tmp_path):
    foreign, beside, own = tmp_path / 'iter_1.pth', tmp_path / 'iter_3.pth', tmp_path / 'run' / 'iter_2.pth'
    own.parent.mkdir()
    for path in (foreign, beside, own):
        path.touch()
    FakeRunner(own.parent, 4, outdated=[str(foreign), '../iter_3.pth', 'iter_2.pth']).start()
    assert [path.exists() for path in (foreign, beside, own)] == [True, True, False]


@pytest.mark.parametrize(
    ('kept', 'in_parts', 'main', 'expected'),
    [(2, False, True, '6 9'), (2, True, True, '6 9'), (-1, False, True, '1 3 6 9')]
    + [(2, in_parts, False, '1 6 9') for in_parts in (True, False)],
)
def test_a_resumed_run_removes_the_checkpoint_of_a_signal_when_it_writes_the_next(
    tmp_path, monkeypatch, kept, in_parts, main, expected
):
    """Unless all are kept. A strategy may write a folder. The main process alone removes."""
    monkeypatch.setattr(checkpoint_module, 'is_main_process', lambda: main)
    if in_parts:
        monkeypatch.setattr(Path, 'touch', lambda path: path.mkdir(exist_ok=True))
    runner = FakeRunner(tmp_path)
    hook = runner.start(interval=3, max_keep_ckpts=kept)
    runner.iter = 1
    hook.save_now(runner)
    if main:
        hook._lock.close()  # the process ends
    state = dict(runner.written[0][1], iter=1, rng_state=[{}])
    assert state['extra'] == ('iter_1.pth' if kept > 0 else '')
    runner = FakeRunner(tmp_path, 1, **state)
    hook = runner.start(interval=3, max_keep_ckpts=kept)
    for runner.iter in range(1, 9):
        hook.after_train_iter(runner, runner.iter)
    assert left(tmp_path) == {*expected.split()}


def test_a_checkpoint_out_of_turn_replaces_no_regular_one(tmp_path):
    runner = FakeRunner(tmp_path)
    hook = runner.start(max_keep_ckpts=1)
    runner.iter = 1
    hook.after_train_iter(runner, 1)
    for runner.iter, expected in ((3, {'2', '3'}), (4, {'3', '4'})):
        hook.save_now(runner)
        assert left(tmp_path) == expected


@pytest.mark.parametrize('named', [False, True])
def test_a_full_disk_names_what_was_written(tmp_path, named):
    runner = FakeRunner(tmp_path)
    hook = runner.start(interval=3)

    def fail(*_, **__):
        raise OSError(28, 'No space left', *(['iter_3.pth'] if named else []))

    runner.save_checkpoint, runner.iter = fail, 2
    with pytest.raises(OSError, match='No space left') as caught:
        hook.after_train_iter(runner, runner.iter)
    assert caught.value.filename == ('iter_3.pth' if named else str(tmp_path / 'last_checkpoint'))
    assert caught.value.errno == 28


def test_names_of_checkpoints_may_have_a_format(tmp_path):
    """Also of one within an epoch; and a dot in the name is no other letter."""
    runner = FakeRunner(tmp_path)
    hook = runner.start(by_epoch=True, interval=1, filename_tmpl='epoch_{:03d}.pth')
    runner.epoch, runner.iter = 1, 30
    hook.after_train_iter(runner, 4)
    hook.save_now(runner)
    assert left(tmp_path) == {'epoch_001_iter_30'}
    (tmp_path / 'last_checkpoint').unlink()
    checkpoints(tmp_path, 'epoch_001_iter_30.pth')
    checkpoints(tmp_path, 'epoch_002_pth')
    assert latest_checkpoint(tmp_path, 'epoch_{:03d}.pth') == str(tmp_path / 'epoch_001_iter_30.pth')


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    hook = FakeRunner(tmp_path).start()
    code = f'from mmattn.utils.files import hold; hold({str(tmp_path)!r})'
    other = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert f"'{tmp_path}'" in other.stderr
    assert not hook._lock.closed
