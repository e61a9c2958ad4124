"""A run that was interrupted and resumed ends as if it had not been: tools/train.py, in processes really killed."""

import os
import re
import shutil
import signal

import pytest

from ..trainer import MMSEGS_TRAIN, TRAIN, Trainer, assert_same_end, differences, load, to_resume

pytestmark = pytest.mark.e2e

STOPPED = os.EX_TEMPFAIL


@pytest.fixture(scope='module')
def trainer(train, tiny_data, tmp_path_factory, request):
    """``trainer(version)``: what trains with the installed mmengine, or with the original one."""
    trainers = {'': train}

    def trainer(version):
        if version not in trainers:
            path = request.getfixturevalue('original_mmengine')
            trainers[version] = Trainer(tmp_path_factory.mktemp('trainer'), tiny_data, path)
        return trainers[version]

    yield trainer
    for version in trainers.keys() - {''}:
        trainers[version].close()


@pytest.fixture(scope='module')
def whole(trainer, tmp_path_factory):
    """``whole(*options, **settings)``: the work dir of a run that nothing interrupted. Each is trained once."""
    folders = {}

    def run(*options, version='', **settings):
        key, train = str((options, version, settings)), trainer(version)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp('whole')
            assert train(folders[key], *options, **settings) == [0] * settings.get('processes', 1), train.log
            assert f'mmengine: {version}' in train.log.lower()
        return folders[key]

    return run


def checkpoints(folder):
    return {path.name for path in folder.glob('[!.]*_[0-9]*.pth') if not path.name.startswith(('best', 'other'))}


def interrupted_copy(folder, work_dir, name):
    """Make ``work_dir`` what would be left of ``folder`` if the run had been killed after the checkpoint ``name``."""
    work_dir.mkdir()
    shutil.copy(folder / name, work_dir)
    (work_dir / 'last_checkpoint').write_text(str(work_dir / name))
    return work_dir


WAITING = 'optim_wrapper.accumulative_counts=2'
EVERY = 'default_hooks.checkpoint.interval=2'
ONE, TWO = (f'{EVERY} default_hooks.checkpoint.max_keep_ckpts={number}' for number in (1, 2))
LAST = 'iter_6.pth', 'other_6.pth', 'epoch_3.pth'
FLEXIBLE = 'runner_type=FlexibleRunner strategy.type=SingleDeviceStrategy'
OWN_NUMBERS, NO_SEED = 'randomness.diff_rank_seed=True', 'randomness.seed=None'
AVERAGES = 'default_hooks.ema.type=EMAHook'
ORIGINAL, EPOCHS = dict(version='0.10.7', workers=3), dict(config='epochs.py')


@pytest.mark.parametrize(
    ('how', 'moment', 'options', 'settings', 'left'),
    [
        ('SIGKILL', 'validation 4', '', {}, 'iter_4'),
        ('SIGKILL', 'step 5', '', dict(workers=3), 'iter_4'),  # no multiple of the workers
        ('SIGKILL', 'step 5', '', ORIGINAL, 'iter_4'),
        ('SIGKILL', 'step 5', OWN_NUMBERS, dict(processes=2, workers=1), 'iter_4'),
        ('SIGKILL', 'write 4', ONE, {}, 'iter_2'),
        ('full disk', 'fill 4', ONE, {}, 'iter_2'),
        # The truncated file is passed over, by mmseg's own train.py, too.
        ('truncated', 'step 5', EVERY, dict(tool=MMSEGS_TRAIN), 'iter_2 iter_4'),
        # Without a seed in the config, a resumed process draws another one. The sampler's is in the checkpoint.
        ('copied', 'iter_4', NO_SEED, dict(workers=3), 'iter_4'),
        ('copied', 'epoch_2', NO_SEED, dict(EPOCHS, workers=3), 'epoch_2'),
        ('copied', 'iter_4', '', dict(config='two_hooks.py'), 'iter_4'),
        # The workers, which get the signals, too, do not take the run with them.
        ('SIGTERM SIGTERM', 'step 3', '', dict(workers=3), 'iter_3'),
        ('SIGTERM', 'step 3', '', ORIGINAL, 'iter_3'),
        ('SIGTERM', 'step 3', '', dict(ORIGINAL, **EPOCHS), 'epoch_1 epoch_1_iter_3'),
        # The second epoch goes on behind its first batch, then comes the third.
        ('SIGTERM', 'step 3', 'log_processor.by_epoch=True', dict(EPOCHS, workers=3), 'epoch_1 epoch_1_iter_3'),
        # One of two processes gets the signal.
        ('SIGUSR1', 'step 3', '', dict(processes=2, workers=1, signalled='1'), 'iter_3'),
        # Accumulated gradients are waited for, also in a validation, which is then completed.
        ('SIGTERM', 'step 1', WAITING, {}, 'iter_2'),
        ('SIGTERM', 'validation 3', f'{WAITING} train_cfg.val_interval=1', {}, 'iter_4'),
        # An interruption leaves the same checkpoints.
        ('SIGTERM', 'step 5', TWO, {}, 'iter_2 iter_4 iter_5'),
        # mmengine's Runner of strategies.
        ('SIGUSR1', 'validation 4', FLEXIBLE, {}, 'iter_4'),
        # The weights are exchanged for their averages while a validation lasts.
        ('SIGTERM', 'validation 4', AVERAGES, {}, 'iter_4'),
        # Nothing is left to train, not even an epoch before which to validate, but the score is still to come.
        ('SIGUSR1', 'validation 6', '', {}, 'iter_4 iter_6'),
        ('SIGTERM', 'validation 6', '', EPOCHS, 'epoch_1 epoch_2 epoch_3'),
        ('SIGTERM', 'loops', '', {}, ''),  # before training there is nothing to save
    ],
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(trainer, whole, tmp_path, how, moment, options, settings, left):
    """Weights, optimizer, schedule, generators, score and files; nothing is trained twice, or validated twice."""
    options, left, settings, stopped = options.split(), left.split(), dict(settings), tmp_path / 'stopped'
    tool, signalled = settings.pop('tool', TRAIN), settings.pop('signalled', None)
    uninterrupted = whole(*options, **settings)
    train, processes = trainer(settings.pop('version', '')), settings.get('processes', 1)
    if how == 'copied':
        interrupted_copy(uninterrupted, stopped, f'{moment}.pth')
    else:
        code = {'SIGKILL': -signal.SIGKILL, 'truncated': -signal.SIGKILL, 'full disk': 1}.get(how, STOPPED)
        signals = dict(kill=moment, signals=how if how.startswith('SIG') else 'SIGKILL', signalled=signalled)
        assert train(stopped, *options, **settings, **signals) == [code] * processes, train.log
        if code == STOPPED:
            saved = [f'{stopped}/{name}.pth' for name in left[-1:]]
            assert re.search('.*'.join([how.split()[0], *saved]), train.log), train.log
            assert 'Traceback' not in train.log
    assert how != 'full disk' or f'{stopped}/iter_4.pth: File too large' in train.log
    assert [path.name[:8] for path in stopped.glob('.*.part*')] == ['.iter_4.'] * (moment == 'write 4')
    assert checkpoints(stopped) == {f'{name}.pth' for name in left}
    if how == 'truncated':
        path = stopped / f'{left.pop()}.pth'
        path.write_bytes(path.read_bytes()[:-1000])
    done = load(stopped / f'{left[-1]}.pth')['meta']['iter'] if left else 0

    assert train(stopped, *options, tool=tool, resume=True, **settings) == [0] * processes, train.log
    assert len(re.findall(r'(?:Iter|Epoch)\(train\)', train.log)) == 6 - done
    if processes == 1 and ('config' in settings or settings.get('workers', 0) == 0):
        assert sorted(int(position) for position, _ in train.samples) == list(range(2 * done, 12))
    if moment == f'validation {done}':
        assert train.log.count('[2/2]    aAcc') == (6 - done) // 2 + 1
    assert 'rng_state' not in train.log
    for name in LAST:
        if (uninterrupted / name).exists():
            assert_same_end(stopped, uninterrupted, name)
            ends = [load(folder / name)['message_hub']['runtime_info'] for folder in (stopped, uninterrupted)]
    assert ends[0]['best_score'] == ends[1]['best_score']
    assert 'to_resume' not in load(ends[0]['best_ckpt'])['message_hub']['runtime_info']
    assert how == 'copied' or [*map(str, stopped.glob('best_*'))] == [ends[0]['best_ckpt']]
    kept = set() if 'max_keep_ckpts' in str(options) else {f'{name}.pth' for name in left}
    assert how == 'copied' or checkpoints(stopped) == checkpoints(uninterrupted) | kept
    assert not [*stopped.glob('.*.part*')]


def test_settings_of_the_runs_above_matter(whole):
    """Processes have random numbers of their own, averages are not the weights, and workers make no difference."""
    first, second = to_resume(load(whole(OWN_NUMBERS, processes=2, workers=1) / 'iter_6.pth'))['rng_state']
    assert differences(first, second)
    last = load(whole(AVERAGES) / 'iter_6.pth')
    averages = {name.removeprefix('module.'): x for name, x in last['ema_state_dict'].items() if 'module.' in name}
    assert any((x != last['state_dict'][name]).any() for name, x in averages.items())
    assert_same_end(whole(), whole(workers=3))


@pytest.mark.parametrize('processes', [1, 2])
def test_a_loop_that_hangs_is_left(train, tmp_path, processes):
    """With the code of a requeue, where a worker never returns its fifth sample. A second process is left waiting."""
    options = [f'default_hooks.{name}' for name in ('preemption.timeout=1', 'checkpoint.interval=1')]
    options += ['train_cfg.val_interval=6']
    hang = 'train_dataloader.dataset.pipeline.1.type=Hang'
    settings = dict(processes=processes, workers=1, kill='step 2', signals='SIGTERM')
    codes = train(tmp_path, *options, hang, **settings)
    assert codes[-1] == STOPPED, train.log
    assert 0 not in codes
    assert f'last checkpoint: {tmp_path}/iter_2.pth' in train.log
    assert train(tmp_path, *options, resume=True, processes=processes) == [0] * processes, train.log
    assert len(re.findall(r'Iter\(train\)', train.log)) == 4


def test_a_batch_that_cannot_be_sent_ends_the_run(train, tmp_path):
    """With the remedy for a full /dev/shm. A loader would wait for it for ever."""
    full = 'train_dataloader.dataset.pipeline.1.type=FullSharedMemory'
    assert train(tmp_path, full, workers=1) == [1], train.log
    assert '--shm-size' in train.log
    assert 'error: DataLoader worker' in train.log


STOCK = [
    'default_hooks.checkpoint.type=CheckpointHook',
    'train_dataloader.sampler.type=InfiniteSampler',
    'train_dataloader.dataset.pipeline.0.type=Note',
]


def test_the_stock_hook_and_sampler_do_not_resume_exactly(train, whole, tmp_path):
    """Else the tests here could not fail."""
    work_dir = interrupted_copy(whole(*STOCK), tmp_path / 'resumed', 'iter_4.pth')
    assert train(work_dir, *STOCK, resume=True) == [0], train.log
    this, other = (load(folder / 'iter_6.pth')['state_dict'] for folder in (whole(*STOCK), work_dir))
    assert len(differences(this, other)) > 100
    work_dir = interrupted_copy(whole(*STOCK), tmp_path / 'by_ours', 'iter_4.pth')
    assert train(work_dir, resume=True) == [0], train.log
    assert "'rng_state' of 0 processes" in train.log


def test_resume_before_the_first_checkpoint_starts_as_the_config_says(train, whole, tmp_path):
    """From its ``load_from``: a job that always says ``--resume`` must not lose it."""
    path = whole() / 'iter_6.pth'
    assert train(tmp_path, f'load_from={path}', 'train_cfg.max_iters=1', resume=True) == [0], train.log
    assert f'Load checkpoint from {path}' in train.log
    assert 'Iter(train) [1/1]' in train.log
